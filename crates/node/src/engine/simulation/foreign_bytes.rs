//! Regions that are read and written while they are freed, moved, and followed by other regions in the same
//! memory: no byte comes from a region of another life, or goes to one.
//!
//! All bytes of a region have one value, that of its life, which no one else writes there. A client that
//! reads another value, or 0, has read foreign memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use plasmon::region::{Rights, region_id};
use plasmon::shared::{CallPayload, CallRequest};
use plasmon::wire::{BySlot, LentRange, Operation, RegionCall, Reply, Request};
use plasmon::{ErrorKind, Verify};

use super::host::Host;
use super::tests::each_seed;
use super::worker::Replies;
use super::{MAX_CASE_HOSTS, Setup, Simulation, below, percent, seeded, span};
use crate::config::{PushBy, Qos};
use crate::kernel::ClientKey;
use crate::service::{Asked, Return, Session};
use crate::sessions::client::Client;

/// Seeds of a run where the environment names none.
const FEW_SEEDS: u64 = 24;
/// Number of bytes of each region.
const LEN_BYTES: u64 = 300_000;
/// Number of lives in a run.
const LIVES: u8 = 8;
/// Number of times in a life that all clients begin something.
const ROUNDS: usize = 6;
/// Longest time that a call or a request may take.
const CALL_PATIENCE: Duration = Duration::from_secs(8);
/// Longest stall of a node, and longest separation of two nodes: longer than a lease.
const MAX_OUTAGE: Duration = Duration::from_secs(4);
/// Time in which nodes follow a change of members, and end what they had begun.
const SETTLED_TIME: Duration = Duration::from_secs(60);

/// Counts of the results of calls.
#[derive(Default)]
struct Met {
    reads: Cell<usize>,
    writes: Cell<usize>,
    /// Releases that ended well.
    freed: Cell<usize>,
    wrong: RefCell<Vec<String>>,
}

/// A client of a host's node.
struct User {
    host: usize,
    key: ClientKey,
    session: Rc<Replies>,
    requests: u64,
    /// Handle to the region of this life, if there is one.
    handle: Option<u32>,
    /// Lent memory, whose bytes have the value of this life, or are read. No buffer is used in two lives.
    source: u64,
    target: u64,
    /// Calls that are not over.
    under_way: Rc<Cell<usize>>,
}

impl User {
    fn connect(simulation: &Simulation, host: usize) -> Self {
        let core = simulation.hosts[host].core().expect("it runs");
        let (key, session) = (core.sessions.next_key(), Rc::<Replies>::default());
        let client = Client::new(Rc::clone(&session) as Rc<dyn Session>, 0, simulation.time.instant());
        core.sessions.clients.borrow_mut().insert(key, client);
        let hello = Request::Hello { name: "user of regions".to_owned() };
        simulation.hosts[host].ask(Asked { session: key, number: 0, request: hello, file: None });
        session.0.borrow_mut().clear();
        let (source, target) = (0, 0);
        let under_way = Rc::default();
        Self { host, key, session, requests: 0, handle: None, source, target, under_way }
    }

    fn begin_ask(&mut self, simulation: &Simulation, request: Request) {
        self.requests += 1;
        let asked = Asked { session: self.key, number: self.requests, request, file: None };
        simulation.hosts[self.host].ask(asked);
    }

    /// Makes a request, and lets time pass until it is answered.
    fn ask(&mut self, simulation: &mut Simulation, request: Request) -> Result<Reply, ErrorKind> {
        self.begin_ask(simulation, request);
        let due = simulation.time.now() + 2 * SETTLED_TIME;
        while simulation.time.now() < due {
            simulation.pass(Duration::from_millis(20));
            let replies = std::mem::take(&mut *self.session.0.borrow_mut());
            if let Some((_, reply)) = replies.into_iter().find(|(number, _)| *number == self.requests) {
                return match reply {
                    Reply::Failed { error } => Err(error.kind()),
                    reply => Ok(reply),
                };
            }
        }
        panic!("request {} of node {} is not answered", self.requests, self.host);
    }

    fn lend(&mut self, simulation: &mut Simulation) -> u64 {
        let lend = Request::Lend { len: LEN_BYTES, private: false, room_us: 20_000_000 };
        match self.ask(simulation, lend) {
            Ok(Reply::Lent { buffer, .. }) => buffer,
            other => panic!("{other:?}"),
        }
    }

    /// Begins a life, and gives up what was of the former life.
    fn begin_life(&mut self, simulation: &mut Simulation, value: u8) {
        for buffer in [self.source, self.target].into_iter().filter(|buffer| *buffer > 0) {
            self.begin_ask(simulation, Request::GiveBack { buffer });
        }
        if let Some(handle) = self.handle.take() {
            self.begin_ask(simulation, Request::UnmapRegion { handle });
        }
        (self.source, self.target) = (self.lend(simulation), self.lend(simulation));
        let core = simulation.hosts[self.host].core().expect("it runs");
        let source = LentRange { buffer: self.source, at: 0 };
        let given = core.requests.give(self.key, source, LEN_BYTES).expect("it was lent");
        given.write(0, &vec![value; LEN_BYTES as usize]).expect("it has so many bytes");
    }

    /// Makes the region of a life.
    fn create(&mut self, simulation: &mut Simulation, name: &str) -> Result<(), ErrorKind> {
        let node = percent(30).then(|| simulation.hosts[below(3)].id().expect("it runs"));
        let create = Request::CreateRegion {
            name: name.to_owned(),
            len: LEN_BYTES,
            node,
            public: Rights::NONE,
            mappable: percent(50),
            ephemeral: false,
            exist_ok: false,
            room_us: 2_000_000,
        };
        self.take_handle(simulation, create)
    }

    fn map(&mut self, simulation: &mut Simulation, name: &str) -> Result<(), ErrorKind> {
        let (name, rights) = (name.to_owned(), Rights::ALL);
        self.take_handle(simulation, Request::MapRegion { name, owner: None, rights, timeout_us: 1_000_000 })
    }

    fn take_handle(&mut self, simulation: &mut Simulation, request: Request) -> Result<(), ErrorKind> {
        match self.ask(simulation, request)? {
            Reply::RegionMapped { handle, .. } => self.handle = Some(handle),
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    /// Begins a call; `end` is told whether it ended well.
    fn begin(&self, simulation: &Simulation, call: RegionCall, end: impl FnOnce(bool) + 'static) {
        let Some(handle) = self.handle else { return };
        let core = simulation.hosts[self.host].core().expect("it runs");
        let (opcode, arguments) = call.through(handle).encode();
        let timeout_us = CALL_PATIENCE.as_micros() as u64;
        let request = CallRequest { opcode, class: None, timeout_us, arguments, payload: CallPayload::EMPTY };
        match core.services.on_call(self.key, request) {
            Return::Now(result) => end(result.is_ok()),
            Return::Later { task, .. } => {
                let under_way = Rc::clone(&self.under_way);
                under_way.set(under_way.get() + 1);
                simulation.hosts[self.host].spawn(async move {
                    end(task.await.is_ok());
                    under_way.set(under_way.get() - 1);
                });
            }
        }
    }

    /// Begins to read the region of a life. The bytes are looked at in the turn in which the read ends.
    fn read(&self, simulation: &Simulation, (value, met): (u8, &Rc<Met>)) {
        let (offset, memory) = (0, LentRange { buffer: self.target, at: 0 });
        let core = Rc::downgrade(simulation.hosts[self.host].core().expect("it runs"));
        let (met, key, host) = (Rc::clone(met), self.key, self.host);
        let call = RegionCall::ReadTo { offset, len: LEN_BYTES, memory };
        self.begin(simulation, call, move |ended_well| {
            let Some(core) = core.upgrade().filter(|_| ended_well) else { return };
            let Ok(given) = core.requests.give(key, memory, LEN_BYTES) else { return };
            let mut found = vec![0; LEN_BYTES as usize];
            given.read(0, &mut found).expect("it has so many bytes");
            met.reads.set(met.reads.get() + 1);
            if let Some(at) = found.iter().position(|byte| *byte != value) {
                let wrong = format!("node {host} read {} at {at} in life {value}", found[at]);
                met.wrong.borrow_mut().push(wrong);
            }
        });
    }

    /// Begins to write the value of a life to all bytes of its region, which have it already.
    fn write(&self, simulation: &Simulation, value: u8, met: &Rc<Met>) {
        let memory = LentRange { buffer: self.source, at: 0 };
        let call = match percent(70) {
            true => RegionCall::WriteFrom { offset: 0, len: LEN_BYTES, memory },
            false => RegionCall::On(Operation::Fill { offset: 0, len: LEN_BYTES, byte: value }),
        };
        let met = Rc::clone(met);
        self.begin(simulation, call, move |ended_well| {
            met.writes.set(met.writes.get() + usize::from(ended_well));
        });
    }
}

/// Name of the next region in the memory of a freed one. Nobody writes in that region.
fn next_of(value: u8) -> String {
    format!("next {value}")
}

/// A run of a seed.
struct Bench {
    seed: u64,
    simulation: Simulation,
    users: Vec<User>,
    /// Name of the region of this life.
    name: String,
    met: Rc<Met>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let setup = |_| {
            let push = if percent(25) { PushBy::Messages } else { PushBy::Auto };
            let qos = Qos::ALL[below(Qos::ALL.len())];
            let (has_disks, has_better_network, verify) = (false, percent(30), Verify::Off);
            Setup { max_hosts: MAX_CASE_HOSTS, has_disks, has_better_network, verify, push, qos }
        };
        let simulation = Simulation::with(seed, |_| Vec::new(), setup);
        let cut_ppm = if percent(50) { 2_000 } else { 0 };
        simulation.network.change_faults(|faults| (faults.spoiled_read_ppm, faults.cut_ppm) = (0, cut_ppm));
        let users = (0..simulation.hosts.len()).map(|host| User::connect(&simulation, host)).collect();
        Self { seed, simulation, users, name: String::new(), met: Rc::default() }
    }

    /// Makes the region of a life, which all clients map and whose bytes have its value.
    fn begin_life(&mut self, value: u8) {
        let Self { seed, simulation, users, .. } = self;
        for user in &mut *users {
            user.begin_life(simulation, value);
        }
        // Half of the lives have the same name, unless a region has it that nobody could free.
        let names = ["again".to_owned(), format!("life {value}")];
        let (maker, first) = (below(users.len()), below(2));
        let mut make = |name: &String| users[maker].create(simulation, name);
        let name = names[first..].iter().find(|name| make(name).is_ok()).cloned();
        let name = name.unwrap_or_else(|| panic!("seed {seed}, life {value}: a region is made"));
        let filled = Rc::new(Cell::new(false));
        let (fill, done) = (Operation::Fill { offset: 0, len: LEN_BYTES, byte: value }, Rc::clone(&filled));
        users[maker].begin(simulation, RegionCall::On(fill), move |ended_well| done.set(ended_well));
        simulation.pass(Duration::from_secs(2));
        assert!(filled.get(), "seed {seed}, life {value}: it is filled");
        for other in (0..users.len()).filter(|other| *other != maker) {
            assert_eq!(users[other].map(simulation, &name), Ok(()), "seed {seed}, life {value}");
        }
        self.name = name;
    }

    /// Has all clients begin something, while things break and the region moves.
    fn go_on(&mut self, value: u8) {
        let Self { simulation, users, met, .. } = self;
        for user in &*users {
            user.read(simulation, (value, met));
            if percent(50) {
                user.write(simulation, value, met);
            }
        }
        if percent(30) {
            let (by, to) = (below(users.len()), below(simulation.hosts.len()));
            let (handle, node) = (users[by].handle.expect("it has one"), simulation.hosts[to].id());
            let node = node.expect("it runs");
            users[by].begin_ask(simulation, Request::MoveRegion { handle, node, timeout_us: 2_000_000 });
        }
        let (one, other) = (below(users.len()), below(users.len()));
        let until = simulation.time.now() + span(MAX_OUTAGE);
        match below(16) {
            0 | 1 => simulation.hosts[one].stall(until),
            2 if one != other => simulation.network.cut(one as u32, other as u32),
            3 if one != other => simulation.network.partition(one as u32, other as u32, true),
            4 => simulation.begin_expelling(one),
            _ => {}
        }
    }

    /// Has the region freed, and another region made in its memory. Then all faults end: no call outlives its
    /// time-out, and no node has a region that was freed.
    fn end_life(&mut self, value: u8) {
        let Self { seed, simulation, users, name, .. } = self;
        let (by, maker) = (below(users.len()), below(users.len()));
        let handle = users[by].handle.expect("it has one");
        users[by].begin_ask(simulation, Request::FreeRegion { handle, timeout_us: 5_000_000 });
        let asked = users[by].requests;
        simulation.pass(span(Duration::from_millis(4)));
        let next = Request::CreateRegion {
            name: next_of(value),
            len: LEN_BYTES,
            node: None,
            public: Rights::NONE,
            mappable: percent(50),
            ephemeral: false,
            exist_ok: false,
            room_us: 0,
        };
        users[maker].begin_ask(simulation, next);
        simulation.pass(span(Duration::from_millis(400)));
        simulation.mend();
        let left: usize = users.iter().map(|user| user.under_way.get()).sum();
        assert_eq!(left, 0, "seed {seed}, life {value}: calls that do not end");
        let replies = users[by].session.0.borrow();
        if replies.contains(&(asked, Reply::Done)) {
            let has = |host: &Host| {
                host.core().is_some_and(|core| core.regions.home.find(&region_id(name)).is_some())
            };
            let there: Vec<_> = (0..users.len()).filter(|host| has(&simulation.hosts[*host])).collect();
            assert_eq!(there, [0; 0], "seed {seed}, life {value}: nodes that have what was freed");
            self.met.freed.set(self.met.freed.get() + 1);
        }
    }

    /// Checks the bytes that were read, and that nothing was written where nobody writes.
    fn check(&self) {
        let mut wrong = self.met.wrong.take();
        for (host, value) in
            (0..self.users.len()).flat_map(|host| (1..=LIVES).map(move |value| (host, value)))
        {
            let core = self.simulation.hosts[host].core().expect("it runs");
            let Some(next) = core.regions.home.find(&region_id(&next_of(value))) else { continue };
            let mut found = vec![1; LEN_BYTES as usize];
            let bytes = next.run(0, LEN_BYTES).expect("it is there");
            bytes.read(0, &mut found).expect("it has so many bytes");
            if let Some(at) = found.iter().position(|byte| *byte != 0) {
                wrong.push(format!("{} was written at {at} behind life {value} of node {host}", found[at]));
            }
        }
        let log = self.simulation.log.join("\n");
        assert!(wrong.is_empty(), "seed {}: {}\n{log}", self.seed, wrong.join("\n"));
    }
}

#[test]
fn no_byte_of_another_region_is_read_or_written() {
    let (seeds, [reads, writes, freed]) = each_seed(FEW_SEEDS, |seed| {
        let mut bench = Bench::new(seed);
        for value in 1..=LIVES {
            bench.begin_life(value);
            for _ in 0..ROUNDS {
                bench.go_on(value);
                bench.simulation.pass(span(Duration::from_millis(8)));
            }
            bench.end_life(value);
        }
        bench.check();
        let counts = [bench.met.reads.get(), bench.met.writes.get(), bench.met.freed.get()];
        drop(bench);
        seeded::set(None);
        counts
    });
    eprintln!("{seeds}: {reads} reads, {writes} writes and {freed} releases of regions ended well");
    assert!(reads > 0 && writes > 0 && freed > 0, "nothing was tried");
}
