//! Services of simulated nodes: each call is run at most once, each answered call exactly once, and a name
//! goes on when its home has gone.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use plasmon::service::Allow;
use plasmon::shared::{CallPayload, CallRequest, CallResult};
use plasmon::wire::{BySlot, LentRange, Received, Reply, Request, ServiceCall, SlotResult};
use plasmon::{Error, ErrorKind};

use super::worker::Replies;
use super::{Simulation, below, percent, seeded, span};
use crate::kernel::ClientKey;
use crate::service::{Asked, Return, Session};
use crate::sessions::client::Client;

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=6;
/// The name of the service.
const NAME: &str = "adder";
/// Number of the node of the callers. The other nodes serve.
const CALLER: usize = 0;
/// Number of threads of a server.
const THREADS: usize = 2;
/// Time in which nodes follow a change of members, and end what they had begun.
const SETTLED_TIME: Duration = Duration::from_secs(30);
/// Longest time that a call may take.
const CALL_PATIENCE: Duration = Duration::from_secs(8);
/// Longest time until a service is found.
const FIND_PATIENCE: Duration = Duration::from_secs(20);
/// Number of rounds of calls.
const ROUNDS: usize = 40;

const NOWHERE: LentRange = LentRange { buffer: 0, at: 0 };

/// The result of a call by slot, once the call has ended.
type Ended = Rc<OnceCell<Result<CallResult, Error>>>;

/// A client of a host's node.
struct User {
    host: usize,
    key: ClientKey,
    session: Rc<Replies>,
    requests: u64,
}

impl User {
    fn connect(simulation: &Simulation, host: usize) -> Self {
        let core = simulation.hosts[host].core().expect("it runs");
        let (key, session) = (core.sessions.next_key(), Rc::<Replies>::default());
        let client = Client::new(Rc::clone(&session) as Rc<dyn Session>, 0, simulation.time.instant());
        core.sessions.clients.borrow_mut().insert(key, client);
        let hello = Request::Hello { name: "user of a service".to_owned() };
        simulation.hosts[host].ask(Asked { session: key, number: 0, request: hello, file: None });
        session.0.borrow_mut().clear();
        Self { host, key, session, requests: 0 }
    }

    /// Makes a request, and lets time pass until it is answered.
    fn ask(&mut self, simulation: &mut Simulation, request: Request) -> Result<Reply, Error> {
        self.requests += 1;
        let asked = Asked { session: self.key, number: self.requests, request, file: None };
        simulation.hosts[self.host].ask(asked);
        for _ in 0..100 {
            simulation.pass(SETTLED_TIME / 30);
            if let Some((_, reply)) = self.session.0.borrow_mut().pop_front() {
                return match reply {
                    Reply::Failed { error } => Err(error),
                    reply => Ok(reply),
                };
            }
        }
        panic!("request {} of node {} is answered", self.requests, self.host);
    }

    fn find(&mut self, simulation: &mut Simulation) -> u32 {
        let timeout_us = FIND_PATIENCE.as_micros() as u64;
        let find = Request::FindService { name: NAME.to_owned(), owner: None, timeout_us };
        match self.ask(simulation, find).expect("it is served") {
            Reply::ServiceFound { service, .. } => service,
            other => panic!("{other:?}"),
        }
    }

    /// Begins a call by slot.
    fn begin(&self, simulation: &Simulation, call: ServiceCall, payload: &[u8]) -> Ended {
        let core = simulation.hosts[self.host].core().expect("it runs");
        let (opcode, arguments) = call.encode();
        let payload = CallPayload::new(payload).expect("it fits a slot");
        let timeout_us = CALL_PATIENCE.as_micros() as u64;
        let request = CallRequest { opcode, class: None, timeout_us, arguments, payload };
        let ended = Ended::default();
        let end = Rc::clone(&ended);
        match core.services.on_call(self.key, request) {
            Return::Now(result) => end.set(result).expect("it ends once"),
            Return::Later { task, .. } => {
                simulation.hosts[self.host].spawn(async move { end.set(task.await).expect("it ends once") });
            }
        }
        ended
    }
}

/// A server, whose threads are parked calls.
struct Server {
    user: User,
    port: u32,
    parked: Vec<Ended>,
}

impl Server {
    fn serve(simulation: &mut Simulation, host: usize) -> Self {
        let mut user = User::connect(simulation, host);
        let functions = vec!["add".to_owned()];
        let serve = Request::Serve { name: NAME.to_owned(), functions, allow: Allow::User };
        let Reply::Serving { port } = user.ask(simulation, serve).expect("it serves") else {
            panic!("no port")
        };
        Self { user, port, parked: Vec::new() }
    }

    /// Runs the functions of the calls that have come, counts each call by its number, and parks the threads
    /// again.
    fn work(&mut self, simulation: &Simulation, run: &mut HashMap<u64, u64>) {
        let (come, parked): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.parked).into_iter().partition(|ended| ended.get().is_some());
        self.parked = parked;
        for ended in come {
            // A port that has ended says so.
            let Some(Ok(result)) = ended.get() else { continue };
            let number = u64::from_le_bytes((*result.payload).try_into().expect("a number"));
            *run.entry(number).or_default() += 1;
            let Received { number, .. } =
                Received::of_values(result.values, &result.payload).expect("a call has a caller");
            let reply = ServiceCall::Reply { number, len: 0, data: NOWHERE };
            self.user.begin(simulation, reply, &result.payload);
        }
        while self.parked.len() < THREADS {
            let receive = ServiceCall::Receive { port: self.port, room: 0, into: NOWHERE };
            self.parked.push(self.user.begin(simulation, receive, &[]));
        }
    }
}

/// A cluster with a caller and servers, and the calls so far.
struct Bench {
    simulation: Simulation,
    callers: Vec<(User, u32)>,
    servers: Vec<Server>,
    /// Calls by their numbers, with the hosts of their callers.
    calls: Vec<(usize, Ended)>,
    run: HashMap<u64, u64>,
    /// The host that was killed. Calls that its clients had begun have no outcome.
    dead: Option<usize>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let mut simulation = Simulation::new(seed, |_| Vec::new());
        simulation.network.change_faults(|faults| (faults.spoiled_read_ppm, faults.cut_ppm) = (0, 0));
        simulation.pass(SETTLED_TIME);
        let servers = (1..simulation.hosts.len()).map(|host| Server::serve(&mut simulation, host)).collect();
        let callers = [CALLER, 1]
            .map(|host| {
                let mut user = User::connect(&simulation, host);
                let service = user.find(&mut simulation);
                (user, service)
            })
            .into_iter()
            .collect();
        Self { simulation, callers, servers, calls: Vec::new(), run: HashMap::new(), dead: None }
    }

    /// Has each caller begin a call, and the servers run what has come.
    fn round(&mut self) {
        let what = |service| {
            let (data, into) = (NOWHERE, NOWHERE);
            ServiceCall::Call { service, function: 0, len: 0, data, room: 0, into }
        };
        for (user, service) in &self.callers {
            if self.simulation.hosts[user.host].core().is_some() {
                let number = (self.calls.len() as u64).to_le_bytes();
                self.calls.push((user.host, user.begin(&self.simulation, what(*service), &number)));
            }
        }
        self.work();
        self.simulation.pass(span(Duration::from_millis(50)));
    }

    fn work(&mut self) {
        for server in &mut self.servers {
            server.work(&self.simulation, &mut self.run);
        }
    }

    /// Lets all calls end, and checks how often each call was run.
    fn finish(mut self, seed: u64) {
        self.simulation.mend();
        for _ in 0..200 {
            self.work();
            self.simulation.pass(SETTLED_TIME / 100);
        }
        let mut answered = 0;
        for (number, (host, ended)) in (0..).zip(&self.calls) {
            let run = self.run.get(&number).copied().unwrap_or_default();
            if ended.get().is_none() && self.dead == Some(*host) {
                assert!(run <= 1, "seed {seed}: call {number} was run {run} times");
                continue;
            }
            let most = match ended.get().unwrap_or_else(|| panic!("seed {seed}: call {number} ends")) {
                Ok(result) => {
                    answered += 1;
                    assert_eq!(*result.payload, number.to_le_bytes(), "seed {seed}: the reply of another");
                    assert_eq!(run, 1, "seed {seed}: call {number} was answered");
                    1
                }
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => 1,
                Err(error) => {
                    let kinds = [
                        ErrorKind::NotFound,
                        ErrorKind::TimedOut,
                        ErrorKind::Disconnected,
                        ErrorKind::Lost,
                        ErrorKind::Busy,
                    ];
                    assert!(kinds.contains(&error.kind()), "seed {seed}: {:?}: {error}", error.kind());
                    0
                }
            };
            assert!(run <= most, "seed {seed}: call {number} was run {run} times: {:?}", ended.get());
        }
        assert!(answered > 0, "seed {seed}: some calls end well");
        for host in self.simulation.hosts.iter().filter_map(|host| host.core()) {
            let status = host.services.status().functions;
            assert_eq!((status.under_way, status.waiting), (0, 0), "seed {seed}");
        }
        drop(self);
        seeded::set(None);
    }
}

#[test]
fn a_call_is_run_once_although_connections_break() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        bench.simulation.network.change_faults(|faults| faults.cut_ppm = 20_000);
        let mut parted = None;
        for round in 0..ROUNDS {
            bench.round();
            if round % 10 == 5 {
                let other = 1 + below(bench.servers.len());
                bench.simulation.network.partition(CALLER as u32, other as u32, true);
                parted = Some(other);
            } else if let Some(other) = parted.filter(|_| round % 10 == 8) {
                bench.simulation.network.partition(CALLER as u32, other as u32, false);
            }
        }
        bench.finish(seed);
    }
}

#[test]
fn what_a_dead_server_has_begun_is_unknown_and_the_rest_goes_to_others() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        for round in 0..ROUNDS {
            bench.round();
            if round % 8 == 4 && bench.servers.len() > 1 {
                let server = bench.servers.remove(below(bench.servers.len()));
                let core = bench.simulation.hosts[server.user.host].core().expect("it runs");
                core.sessions.let_go(server.user.key, "it was killed");
                if percent(50) {
                    let host = server.user.host;
                    let next = Server::serve(&mut bench.simulation, host);
                    bench.servers.push(next);
                }
            }
        }
        bench.finish(seed);
    }
}

#[test]
fn a_service_outlives_the_nodes_that_serve_it() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        let dies = 1 + below(bench.servers.len());
        for round in 0..ROUNDS {
            bench.round();
            if round == ROUNDS / 4 {
                bench.servers.retain(|server| server.user.host != dies);
                bench.callers.retain(|(user, _)| user.host != dies);
                // Calls of the dead host's own clients have no outcome.
                bench.dead = Some(dies);
                let Simulation { hosts, coordinator, time, .. } = &mut bench.simulation;
                hosts[dies].kill();
                coordinator.forget(hosts, time.now(), None);
            }
        }
        bench.simulation.pass(SETTLED_TIME);
        // The name has a home again, so the name is found and other servers may serve it.
        let mut other = User::connect(&bench.simulation, CALLER);
        other.find(&mut bench.simulation);
        let joined = Server::serve(&mut bench.simulation, CALLER);
        bench.servers.push(joined);
        bench.round();
        bench.finish(seed);
    }
}

#[test]
fn nodes_that_were_expelled_serve_again_when_they_are_back() {
    for seed in SEEDS {
        let mut bench = Bench::new(seed);
        let away = 1 + below(bench.servers.len());
        (0..ROUNDS / 4).for_each(|_| bench.round());
        bench.simulation.begin_expelling(away);
        bench.simulation.coordinator.remove(&mut bench.simulation.hosts, away, bench.simulation.time.now());
        (0..ROUNDS / 4).for_each(|_| bench.round());
        bench.simulation.pass(SETTLED_TIME);
        bench.simulation.bring_back(away);
        bench.simulation.pass(SETTLED_TIME);
        (0..ROUNDS / 4).for_each(|_| bench.round());
        let joined = |bench: &Bench| {
            let names = |host: usize| {
                let core = bench.simulation.hosts[host].core().expect("it runs");
                core.services.status().functions.names
            };
            (0..bench.simulation.hosts.len()).map(names).sum::<u64>()
        };
        assert_eq!(joined(&bench), 1, "seed {seed}: nodes that keep the name");
        bench.finish(seed);
    }
}

#[test]
fn a_service_is_found_although_those_who_know_of_it_are_silent_for_a_while() {
    for seed in SEEDS {
        let Bench { mut simulation, .. } = Bench::new(seed);
        let until = simulation.time.now() + FIND_PATIENCE * 3 / 4;
        simulation.hosts[CALLER + 1..].iter_mut().for_each(|host| host.stall(until));
        User::connect(&simulation, CALLER).find(&mut simulation);
        drop(simulation);
        seeded::set(None);
    }
}
