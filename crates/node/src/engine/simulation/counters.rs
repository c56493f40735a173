//! Regions of simulated nodes: each addition counts once, a region has one home, and its memory returns.

use std::cell::OnceCell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use plasmon::region::Rights;
use plasmon::shared::{ARGUMENTS, CallPayload, CallRequest, CallResult};
use plasmon::wire::{BySlot, Operation, RegionCall, Reply, Request};
use plasmon::{Error, ErrorKind};

use super::worker::Replies;
use super::{Simulation, below, percent, seeded, span};
use crate::kernel::ClientKey;
use crate::service::{Asked, Return, Session};
use crate::sessions::client::Client;

/// Seeds of each case.
const SEEDS: RangeInclusive<u64> = 1..=6;
/// The node on which the region is made.
pub(super) const HOME: usize = 0;
/// The name of the region.
pub(super) const NAME: &str = "counter";
/// Number of bytes of the region.
const LEN_BYTES: u64 = 100_000;
/// Time in which nodes follow a change of members, and end what they had begun.
pub(super) const SETTLED_TIME: Duration = Duration::from_secs(30);
/// Longest time that a call may take.
const CALL_PATIENCE: Duration = Duration::from_secs(8);
/// Longest time until a region is mapped.
const MAP_PATIENCE: Duration = Duration::from_secs(20);
/// Number of rounds in which all clients add.
const ROUNDS: usize = 40;

/// The result of a call, once the call has ended.
pub(super) type Ended = Rc<OnceCell<Result<CallResult, Error>>>;

/// A client of a host's node, with a handle once it has one.
pub(super) struct User {
    pub(super) host: usize,
    pub(super) key: ClientKey,
    pub(super) session: Rc<Replies>,
    requests: u64,
    pub(super) handle: u32,
}

impl User {
    pub(super) fn connect(simulation: &Simulation, host: usize) -> Self {
        let core = simulation.hosts[host].core().expect("it runs");
        let (key, session) = (core.sessions.next_key(), Rc::<Replies>::default());
        let client = Client::new(Rc::clone(&session) as Rc<dyn Session>, 0, simulation.time.instant());
        core.sessions.clients.borrow_mut().insert(key, client);
        let hello = Request::Hello { name: "user of a region".to_owned() };
        simulation.hosts[host].ask(Asked { session: key, number: 0, request: hello, file: None });
        session.0.borrow_mut().clear();
        Self { host, key, session, requests: 0, handle: 0 }
    }

    pub(super) fn begin_ask(&mut self, simulation: &Simulation, request: Request) {
        self.requests += 1;
        let asked = Asked { session: self.key, number: self.requests, request, file: None };
        simulation.hosts[self.host].ask(asked);
    }

    /// Number of requests that were made, and of the last of them.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// Makes a request, and lets time pass until it is answered.
    pub(super) fn ask(&mut self, simulation: &mut Simulation, request: Request) -> Result<Reply, Error> {
        self.begin_ask(simulation, request);
        for _ in 0..100 {
            simulation.pass(SETTLED_TIME / 30);
            let reply = self.session.0.borrow_mut().pop_front();
            if let Some((number, reply)) = reply {
                assert_eq!(number, self.requests, "no other request is open");
                return match reply {
                    Reply::Failed { error } => Err(error),
                    reply => Ok(reply),
                };
            }
        }
        panic!("request {} of node {} is answered", self.requests, self.host);
    }

    fn take_handle(&mut self, reply: &Reply) {
        let Reply::RegionMapped { handle, len: LEN_BYTES, place: None, .. } = reply else {
            panic!("{reply:?}")
        };
        self.handle = *handle;
    }

    fn create(&mut self, simulation: &mut Simulation) -> Result<(), Error> {
        let create = Request::CreateRegion {
            name: NAME.to_owned(),
            len: LEN_BYTES,
            node: None,
            public: Rights::NONE,
            mappable: percent(50),
            ephemeral: false,
            exist_ok: false,
            room_us: 0,
        };
        let reply = self.ask(simulation, create)?;
        self.take_handle(&reply);
        Ok(())
    }

    pub(super) fn map(&mut self, simulation: &mut Simulation) -> Result<(), Error> {
        let (name, rights) = (NAME.to_owned(), Rights::ALL);
        let timeout_us = MAP_PATIENCE.as_micros() as u64;
        let map = Request::MapRegion { name, owner: None, rights, timeout_us };
        let reply = self.ask(simulation, map)?;
        self.take_handle(&reply);
        Ok(())
    }

    /// Begins an operation.
    pub(super) fn begin(&self, simulation: &Simulation, operation: Operation) -> Ended {
        self.call(simulation, RegionCall::On(operation).through(self.handle).encode(), CALL_PATIENCE)
    }

    /// Begins a call by slot.
    pub(super) fn call(
        &self,
        simulation: &Simulation,
        (opcode, arguments): (u8, [u64; ARGUMENTS]),
        patience: Duration,
    ) -> Ended {
        let timeout_us = patience.as_micros() as u64;
        let payload = CallPayload::EMPTY;
        self.call_with(simulation, CallRequest { opcode, class: None, timeout_us, arguments, payload })
    }

    /// Begins any call by slot.
    pub(super) fn call_with(&self, simulation: &Simulation, request: CallRequest) -> Ended {
        let core = simulation.hosts[self.host].core().expect("it runs");
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

    fn add(&self, simulation: &Simulation) -> Ended {
        self.begin(simulation, Operation::FetchAdd { offset: 8, value: 1 })
    }
}

/// Number of calls that ended well, and number of further calls that may have been carried out.
fn counted(ended: &[Ended]) -> (u64, u64) {
    let (mut done, mut unknown) = (0, 0);
    for one in ended {
        match one.get().expect("every call ends") {
            Ok(_) => done += 1,
            Err(error) => match error.kind() {
                ErrorKind::OutcomeUnknown => unknown += 1,
                ErrorKind::Lost | ErrorKind::Freed | ErrorKind::Disconnected => {}
                other => panic!("{other:?}: {error}"),
            },
        }
    }
    (done, unknown)
}

/// A cluster of whose nodes each has a client with a handle to the region.
pub(super) fn mapped(seed: u64) -> (Simulation, Vec<User>) {
    let mut simulation = Simulation::new(seed, |_| Vec::new());
    simulation.network.change_faults(|faults| (faults.spoiled_read_ppm, faults.cut_ppm) = (0, 0));
    simulation.pass(SETTLED_TIME);
    let mut users: Vec<_> =
        (0..simulation.hosts.len()).map(|host| User::connect(&simulation, host)).collect();
    users[HOME].create(&mut simulation).expect("the name is free");
    for user in &mut users[HOME + 1..] {
        user.map(&mut simulation).expect("the region is there");
    }
    (simulation, users)
}

/// Number of regions and of their bytes on a node.
pub(super) fn left(simulation: &Simulation, host: usize) -> (u64, u64) {
    let regions = simulation.hosts[host].core().expect("it runs").services.status().regions;
    (regions.regions, regions.bytes)
}

pub(super) fn end(simulation: Simulation) {
    drop(simulation);
    seeded::set(None);
}

#[test]
fn an_add_counts_once_although_connections_break() {
    for seed in SEEDS {
        let (mut simulation, users) = mapped(seed);
        simulation.network.change_faults(|faults| faults.cut_ppm = 20_000);
        let (mut ended, mut parted) = (Vec::new(), None);
        for round in 0..ROUNDS {
            ended.extend(users.iter().map(|user| user.add(&simulation)));
            simulation.pass(span(Duration::from_millis(50)));
            if round % 10 == 5 {
                let other = 1 + below(users.len() - 1);
                simulation.network.partition(HOME as u32, other as u32, true);
                parted = Some(other);
            } else if let Some(other) = parted.filter(|_| round % 10 == 8) {
                simulation.network.partition(HOME as u32, other as u32, false);
            }
        }
        simulation.mend();
        simulation.pass(SETTLED_TIME);
        let (done, unknown) = counted(&ended);
        assert!(done > 0, "seed {seed}: some adds end well");
        let value = users[HOME].add(&simulation);
        simulation.pass(SETTLED_TIME);
        let value = value.get().expect("it ends").as_ref().expect("the region is there").values[0];
        assert!((done..=done + unknown).contains(&value), "seed {seed}: {value} of {done} and {unknown}");
        end(simulation);
    }
}

/// Checks that one node has the region, that all can add to it, and that no addition is lost.
fn check_counter(seed: u64, simulation: &mut Simulation, users: &[User], ended: &[Ended]) {
    let (done, unknown) = counted(ended);
    assert!(done > 0, "seed {seed}: some adds end well");
    for (nth, user) in (0..).zip(users) {
        let value = user.add(simulation);
        simulation.pass(SETTLED_TIME);
        let value = value.get().expect("it ends").as_ref().expect("the region is there").values[0] - nth;
        assert!((done..=done + unknown).contains(&value), "seed {seed}: {value} of {done} and {unknown}");
    }
    let homes = (0..users.len()).filter(|host| left(simulation, *host) != (0, 0)).count();
    assert_eq!(homes, 1, "seed {seed}: nodes that have a region, or memory of one");
}

#[test]
fn an_add_counts_once_although_the_region_moves() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        if percent(50) {
            simulation.network.change_faults(|faults| faults.cut_ppm = 5_000);
        }
        let mut ended = Vec::new();
        for round in 0..ROUNDS {
            ended.extend(users.iter().map(|user| user.add(&simulation)));
            simulation.pass(span(Duration::from_millis(40)));
            if round % 5 == 2 {
                let (by, to) = (below(users.len()), below(users.len()));
                let node = simulation.hosts[to].id().expect("it runs");
                let handle = users[by].handle;
                users[by].begin_ask(&simulation, Request::MoveRegion { handle, node, timeout_us: 5_000_000 });
            }
        }
        simulation.mend();
        simulation.pass(SETTLED_TIME);
        let moved = |user: &User| {
            let replies = user.session.0.borrow();
            replies.iter().filter(|(_, reply)| matches!(reply, Reply::Done)).count()
        };
        assert!(users.iter().map(moved).sum::<usize>() > 0, "seed {seed}: it moved");
        check_counter(seed, &mut simulation, &users, &ended);
        users.iter().for_each(|user| user.session.0.borrow_mut().clear());
        let free = Request::FreeRegion { handle: users[1].handle, timeout_us: 20_000_000 };
        users[1].ask(&mut simulation, free).expect("a master frees it");
        simulation.pass(SETTLED_TIME);
        assert!((0..users.len()).all(|host| left(&simulation, host) == (0, 0)), "seed {seed}");
        end(simulation);
    }
}

#[test]
fn a_region_survives_the_death_of_a_node_that_it_has_not_moved_to() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        let node = simulation.hosts[1].id().expect("it runs");
        let handle = users[HOME].handle;
        users[HOME].begin_ask(&simulation, Request::MoveRegion { handle, node, timeout_us: 20_000_000 });
        // The target dies at any step of the move.
        simulation.pass(span(Duration::from_millis(5)));
        simulation.hosts[1].kill();
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        simulation.pass(SETTLED_TIME);
        let reply = users[HOME].session.0.borrow_mut().pop_front().map(|(_, reply)| reply);
        let after = users[2].add(&simulation);
        simulation.pass(SETTLED_TIME);
        let after = after.get().expect("it ends");
        let is_gone = |error: &Error| matches!(error.kind(), ErrorKind::Lost | ErrorKind::Freed);
        match (&reply, after) {
            // The region went with the node to which it had moved.
            (Some(Reply::Done), Err(error)) => assert!(is_gone(error), "seed {seed}: {error}"),
            (Some(Reply::Failed { error: why }), Err(error)) if why.kind() == ErrorKind::Lost => {
                assert!(is_gone(error), "seed {seed}: {error}");
            }
            (Some(Reply::Failed { .. }), Ok(_)) => {
                assert_eq!(left(&simulation, HOME), (1, LEN_BYTES), "seed {seed}")
            }
            other => panic!("seed {seed}: {other:?}"),
        }
        end(simulation);
    }
}

#[test]
fn a_node_that_was_away_while_the_region_moved_finds_it() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        simulation.begin_expelling(2);
        simulation.coordinator.remove(&mut simulation.hosts, 2, simulation.time.now());
        simulation.pass(SETTLED_TIME);
        let (node, handle) = (simulation.hosts[1].id().expect("it runs"), users[HOME].handle);
        let moves = Request::MoveRegion { handle, node, timeout_us: 20_000_000 };
        users[HOME].ask(&mut simulation, moves).expect("nothing is in its way");
        simulation.bring_back(2);
        simulation.pass(SETTLED_TIME);
        let add = users[2].add(&simulation);
        simulation.pass(SETTLED_TIME);
        let value = add.get().expect("it ends").as_ref().map(|result| result.values[0]);
        assert_eq!(value, Ok(0), "seed {seed}");
        for to in [0, 1, 0] {
            let node = simulation.hosts[to].id().expect("it runs");
            let moves = Request::MoveRegion { handle, node, timeout_us: 20_000_000 };
            users[HOME].ask(&mut simulation, moves).expect("nothing is in its way");
            let add = users[2].add(&simulation);
            simulation.pass(SETTLED_TIME);
            let value = add.get().expect("it ends").as_ref().map(|result| result.values[0]);
            assert!(value.is_ok(), "seed {seed}: to {to}: {value:?}");
        }
        end(simulation);
    }
}

#[test]
fn a_region_is_mapped_although_those_who_know_of_it_are_silent_for_a_while() {
    for seed in SEEDS {
        let (mut simulation, _users) = mapped(seed);
        let until = simulation.time.now() + MAP_PATIENCE * 3 / 4;
        for host in (0..simulation.hosts.len()).filter(|host| *host != HOME + 1) {
            simulation.hosts[host].stall(until);
        }
        let mut other = User::connect(&simulation, HOME + 1);
        other.map(&mut simulation).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        end(simulation);
    }
}

#[test]
fn a_region_ends_with_its_home_and_the_name_is_free() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        let mut ended: Vec<_> = users[1..].iter().map(|user| user.add(&simulation)).collect();
        let waits = users[1].begin(&simulation, Operation::Wait { offset: 16, expected: 0 });
        simulation.pass(span(Duration::from_millis(20)));
        simulation.hosts[HOME].kill();
        simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        ended.extend(users[1..].iter().map(|user| user.add(&simulation)));
        simulation.pass(SETTLED_TIME);
        counted(&ended);
        let kind = |ended: &Ended| ended.get().expect("it ends").as_ref().expect_err("nobody has it").kind();
        assert_eq!(kind(&waits), ErrorKind::Lost, "seed {seed}");
        let after = users[1].add(&simulation);
        simulation.pass(SETTLED_TIME);
        assert_eq!(kind(&after), ErrorKind::Lost, "seed {seed}");
        users[1].create(&mut simulation).expect("the name is free again");
        users[2].map(&mut simulation).expect("the new region is there");
        let add = users[2].add(&simulation);
        simulation.pass(SETTLED_TIME);
        let value = add.get().expect("it ends").as_ref().expect("it is there").values[0];
        assert_eq!(value, 0, "seed {seed}: the new region has zeros");
        end(simulation);
    }
}

#[test]
fn the_memory_of_a_freed_region_returns_whoever_has_gone() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        assert_eq!(left(&simulation, HOME), (1, LEN_BYTES), "seed {seed}");
        let dies = percent(50);
        if dies {
            simulation.hosts[1].kill();
            simulation.coordinator.forget(&mut simulation.hosts, simulation.time.now(), None);
        }
        let free = Request::FreeRegion { handle: users[2].handle, timeout_us: 20_000_000 };
        users[2].ask(&mut simulation, free).expect("a master frees it");
        simulation.pass(SETTLED_TIME);
        let freed = users[2].add(&simulation);
        simulation.pass(SETTLED_TIME);
        let kind = freed.get().expect("it ends").as_ref().expect_err("it was freed").kind();
        assert_eq!(kind, ErrorKind::Freed, "seed {seed}");
        assert_eq!(left(&simulation, HOME), (0, 0), "seed {seed}: with a death: {dies}");
        end(simulation);
    }
}

#[test]
fn a_home_that_was_expelled_gives_way_to_the_next() {
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        simulation.begin_expelling(HOME);
        simulation.coordinator.remove(&mut simulation.hosts, HOME, simulation.time.now());
        simulation.pass(SETTLED_TIME);
        users[1].create(&mut simulation).expect("the name is free");
        let fenced = users[HOME].add(&simulation);
        simulation.pass(SETTLED_TIME);
        let kind = fenced.get().expect("it ends").as_ref().expect_err("it is no member").kind();
        assert!(matches!(kind, ErrorKind::Disconnected | ErrorKind::Freed), "seed {seed}: {kind:?}");
        simulation.bring_back(HOME);
        simulation.pass(SETTLED_TIME);
        assert_eq!(left(&simulation, 1), (1, LEN_BYTES), "seed {seed}: the next region stays");
        assert_eq!(left(&simulation, HOME), (0, 0), "seed {seed}: the former one ends");
        end(simulation);
    }
}
