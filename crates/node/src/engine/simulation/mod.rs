//! A cluster in one process and on one thread: the daemon's own turns and services, driven by a seed.
//!
//! Only the parts of a node that belong to its host are replaced: the networks are in memory ([`networks`]),
//! the clock shows the simulated time, the coordinator is a list of members ([`coordinator`]), and clients
//! are sessions that keep their replies ([`worker`]). In every fourth seed, hosts have disks and little
//! memory: the files are real, and the time that a request takes, or that the disk is full, is drawn. A seed
//! decides all: ids, settings, delays, faults ([`weather`]), calls of clients. Invariant: the same seed gives
//! the same run, event by event.
//!
//! A run has two parts. First clients work while things break. Then all faults end, the cluster comes to
//! rest, and [`checks`] looks at what is left. After every step, [`invariants`] checks what is true at any
//! moment; the first fault that it finds ends the run. The answers of all clients must fit one register an id
//! ([`plasmon_linear`]); objects that were promised to be kept are kept; a client that watches all nodes
//! knows what they have ([`watcher`]); nothing waits for ever, and no table keeps what nobody needs.
//!
//! `make simulate SEED=n` runs one seed, `make simulate SECONDS=n` as many as fit, and `make simulate
//! SEEDS=n` so many, from a seed that is drawn.

mod abandoned;
mod anew;
mod barriers;
mod cases;
mod checks;
mod clocks;
mod coordinator;
mod counters;
mod echo;
mod fenced;
mod files;
mod foreign_bytes;
mod full_disk;
mod host;
mod invariants;
mod kept;
mod locks;
mod mirrors;
mod networks;
mod pings;
mod pulls;
mod pushes;
mod races;
mod regions;
mod replacing;
mod returns;
mod services;
mod tests;
mod told;
mod watcher;
mod weather;
mod worker;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use plasmon::{ObjectId, Verify};
use plasmon_linear::{Action, Call, Value};

use self::coordinator::Coordinator;
use self::host::{Further, Host};
use self::invariants::Seen;
use self::networks::Networks;
use self::watcher::Watcher;
use self::weather::Weather;
use self::worker::Worker;
use crate::config::{PushBy, Qos};
use crate::kernel::random::{random_u64, seeded};

/// Number of ids that clients of a run use.
const IDS: usize = 6;
/// Number of the first id whose objects are put with two replicas, so that one death may not lose them.
const FIRST_REPLICATED_ID: usize = 3;
/// Number of nodes of the smallest cluster.
const MIN_HOSTS: usize = 3;
/// Number of nodes of the largest cluster.
const MAX_HOSTS: usize = 7;
/// Number of nodes of the largest cluster of a case.
const MAX_CASE_HOSTS: usize = 5;
/// Number of clients of a run, and so the greatest number of nodes that have clients.
const WORKERS: usize = 6;
/// Number of the last values of an id that may come back with a node after a blackout.
const WRITTEN_LATELY: usize = 4;
/// Number of seeds of which one has disks.
const DISK_SEEDS: u64 = 4;
/// Number of seeds in a hundred that have a better network beside the common one.
const BETTER_NETWORK_PERCENT: usize = 30;
/// Maximum number of turns that a node takes at one time before the time goes on.
const MAX_TURNS: usize = 64;
/// Simulated time in which the nodes of a new cluster get to know each other.
const FORMING_TIME: Duration = Duration::from_secs(1);
/// Simulated time after which a cluster without faults has come to rest.
const REST_TIME: Duration = Duration::from_secs(60);

/// Draws a number below a limit.
fn below(limit: usize) -> usize {
    (random_u64() % limit as u64) as usize
}

/// Draws whether something happens that happens `chance` times in a hundred.
fn percent(chance: usize) -> bool {
    below(100) < chance
}

/// Draws a span up to a limit.
fn span(limit: Duration) -> Duration {
    Duration::from_nanos(random_u64() % (limit.as_nanos() as u64 + 1))
}

/// The simulated time, which all hosts share.
#[derive(Clone)]
struct Time {
    start: Instant,
    now: Rc<Cell<Duration>>,
}

impl Time {
    fn new() -> Self {
        Self { start: Instant::now(), now: Rc::default() }
    }

    /// The time since the start.
    fn now(&self) -> Duration {
        self.now.get()
    }

    /// The time as the engine knows it.
    fn instant(&self) -> Instant {
        self.start + self.now.get()
    }
}

/// Equipment of the hosts of a run, and settings of their nodes.
#[derive(Debug, Clone, Copy)]
struct Setup {
    max_hosts: usize,
    has_disks: bool,
    has_better_network: bool,
    verify: Verify,
    push: PushBy,
    qos: Qos,
}

impl Setup {
    /// Draws the equipment of a seed. Bytes are compared with their digests where reads bring wrong bytes,
    /// and mostly nowhere else, since the comparison would hide other faults of bytes.
    fn draw(seed: u64) -> Self {
        let verify = if percent(35) { Verify::Sealed } else { Verify::Off };
        let push = if percent(25) { PushBy::Messages } else { PushBy::Auto };
        let qos = Qos::ALL[below(Qos::ALL.len())];
        let has_better_network = percent(BETTER_NETWORK_PERCENT);
        Self { max_hosts: MAX_HOSTS, has_better_network, verify, push, qos, ..Self::plain(seed) }
    }

    /// Makes the equipment of cases, which set all the rest by themselves.
    fn plain(seed: u64) -> Self {
        let (verify, push, qos) = (Verify::Sealed, PushBy::Auto, Qos::Off);
        let (max_hosts, has_disks) = (MAX_CASE_HOSTS, seed.is_multiple_of(DISK_SEEDS));
        Self { max_hosts, has_disks, has_better_network: false, verify, push, qos }
    }
}

/// Result of the run of a seed.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// A digest of everything that happened.
    trace: u64,
    /// Number of calls that clients made.
    calls: usize,
    /// Number of calls that ended well.
    successes: usize,
    /// Number of objects that were written to nodes which lived to the end, and number of faults in the
    /// middle of a write.
    pushes: usize,
    amid_pushes: usize,
    /// Descriptions of broken promises; empty if none was broken.
    wrong: Vec<String>,
    /// Simulated time of the step after which a fault was found.
    broken_at: Option<Duration>,
    /// Events of the nodes, as text.
    log: Vec<String>,
}

/// A cluster, its clients and what happens to it.
struct Simulation {
    time: Time,
    network: Networks,
    coordinator: Coordinator,
    hosts: Vec<Host>,
    workers: Vec<Worker>,
    watcher: Watcher,
    weather: Weather,
    ids: Vec<ObjectId>,
    /// Calls about each id.
    histories: Vec<Vec<Call>>,
    /// For each id, versions of which clients were told, with their values.
    versions: Vec<Vec<(u64, Value)>>,
    /// For each id, puts that did not end well: the times at which they began, and at which they were gone.
    failed_puts: Vec<Vec<(u64, u64)>>,
    /// The last moment at which a call began or ended, in steps that people see as microseconds.
    moments: u64,
    trace: u64,
    /// Contents of the replicas that were looked at.
    seen: Seen,
    /// The first fault that was found after a step, until it is taken.
    broken: Option<String>,
    /// Time at which that fault was found.
    broken_at: Option<Duration>,
    /// Events of the nodes, as text.
    log: Vec<String>,
}

impl Simulation {
    /// A cluster of 3 to 5 nodes with these further services, all of them members.
    fn new(seed: u64, further: Further) -> Self {
        Self::with(seed, further, Setup::plain)
    }

    /// A cluster as [`Simulation::new`] makes it, with a setup that the seed may decide.
    fn with(seed: u64, further: Further, setup: fn(u64) -> Setup) -> Self {
        seeded::set(Some(seed));
        let time = Time::new();
        let setup = setup(seed);
        let network = Networks::new(setup.has_better_network);
        if setup.verify == Verify::Off {
            network.change_faults(|faults| faults.spoiled_read_ppm = 0);
        }
        let count = MIN_HOSTS + below(setup.max_hosts - MIN_HOSTS + 1);
        let start = |number| Host::start(number, &time, &network, (further, setup));
        let mut simulation = Self {
            hosts: (0..count as u32).map(start).collect(),
            time,
            network,
            coordinator: Coordinator::default(),
            workers: Vec::new(),
            watcher: Watcher::on(count - 1),
            weather: Weather::default(),
            ids: (0..IDS).map(|number| ObjectId::from_name(&format!("{seed} {number}"))).collect(),
            histories: vec![Vec::new(); IDS],
            versions: vec![Vec::new(); IDS],
            failed_puts: vec![Vec::new(); IDS],
            moments: 0,
            trace: 0,
            seen: Seen::default(),
            broken: None,
            broken_at: None,
            log: Vec::new(),
        };
        simulation.log(format_args!("{count} hosts, {setup:?}"));
        for host in 0..count {
            simulation.join(host);
        }
        simulation.pass(FORMING_TIME);
        for number in 0..WORKERS {
            let worker = Worker::connect(number, number % count, &mut simulation);
            simulation.workers.push(worker);
        }
        simulation.draw_weather();
        simulation
    }

    /// Runs a seed from beginning to end.
    fn run(seed: u64) -> Outcome {
        let mut simulation = Self::with(seed, |_| Vec::new(), Setup::draw);
        simulation.coordinator.draw_lag(simulation.hosts.len());
        let until = simulation.time.now() + Duration::from_secs(2) + span(Duration::from_secs(8));
        while simulation.time.now() < until && simulation.broken_at.is_none() {
            simulation.step(until, true);
        }
        let wrong = simulation.wrong();
        simulation.log_disks();
        let pushed =
            |host: &Host| host.core().map_or(0, |core| core.services.status().transfer.pushed_fetched);
        let outcome = Outcome {
            trace: simulation.trace ^ simulation.network.fingerprint(),
            calls: simulation.workers.iter().map(|worker| worker.calls).sum(),
            successes: simulation.workers.iter().map(|worker| worker.successes).sum(),
            pushes: simulation.hosts.iter().map(pushed).sum::<u64>() as usize,
            amid_pushes: simulation.weather.amid_pushes,
            wrong,
            broken_at: simulation.broken_at,
            log: std::mem::take(&mut simulation.log),
        };
        drop(simulation);
        seeded::set(None);
        outcome
    }

    /// Makes a host a member, for the first time or again.
    fn join(&mut self, host: usize) {
        self.coordinator.join(&mut self.hosts, host, self.time.now());
    }

    /// A moment that is later than all before.
    fn moment(&mut self) -> u64 {
        self.moments += 1000;
        self.moments
    }

    /// Notes what happened to an id.
    fn note(&mut self, id: usize, call: Call) {
        self.histories[id].push(call);
    }

    /// Notes a death that may have lost what a node held: objects that no other node was to keep, and objects
    /// whose put has not returned, or not well.
    fn note_loss(&mut self, node: usize) {
        let begin = self.moment();
        for id in 0..IDS {
            let maybe = self.histories[id].iter().any(|call| matches!(call.action, Action::MaybePut(_)));
            let putting = self.workers.iter().any(|worker| worker.puts(id));
            if id < FIRST_REPLICATED_ID || maybe || putting {
                self.note(id, Call { node, client: None, begin, end: None, action: Action::Lost });
            }
        }
        if self.hosts[node].has_disk() {
            self.note_cut_off(node);
        }
    }

    /// Notes that other nodes may not see the objects of a node for a while.
    fn note_cut_off(&mut self, node: usize) {
        let begin = self.moment();
        for id in 0..IDS {
            self.note(id, Call { node, client: None, begin, end: None, action: Action::CutOff });
        }
    }

    /// Notes that a value that was replaced lately may be there again with a node that comes back: if all who
    /// know of its successor were away too, nobody tells the node.
    fn note_return(&mut self) {
        let begin = self.moment();
        for id in 0..IDS {
            let written = self.histories[id].iter().rev().filter_map(|call| call.action.written());
            for value in written.take(WRITTEN_LATELY).collect::<BTreeSet<_>>() {
                let action = Action::MaybeWrote(value);
                self.note(id, Call { node: 0, client: None, begin, end: None, action });
            }
        }
    }

    /// Whether nodes come back with objects that were not there in the meantime.
    fn brings_back(&self) -> bool {
        self.weather.brings_back(self.hosts.iter().any(Host::has_disk))
    }

    /// Enters what happened to nodes into the log.
    fn log(&mut self, what: std::fmt::Arguments<'_>) {
        self.log.push(format!("{:>12?} {what}", self.time.now()));
    }

    /// Enters into the log the use of the disks of the nodes that are left.
    fn log_disks(&mut self) {
        let disks = self.hosts.iter().filter_map(|host| host.core()?.store.spill_store());
        let lines: Vec<_> = disks.map(|disk| format!("{:?}", disk.usage())).collect();
        self.log.extend(lines);
    }

    /// Enters something that happened into the trace.
    fn trace(&mut self, what: u64) {
        self.trace = self.trace.rotate_left(5) ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Lets `span` pass, in which clients make no new calls.
    fn pass(&mut self, span: Duration) {
        let until = self.time.now() + span;
        while self.time.now() < until {
            self.step(until, false);
        }
    }

    /// Goes on to the next moment at which something is due, at most to `until`, and lets it happen.
    fn step(&mut self, until: Duration, works: bool) {
        let hosts = self.hosts.iter().filter_map(|host| host.due(self.time.now()));
        let due = hosts.chain(self.network.next_due());
        let due = due.chain(self.workers.iter().filter_map(|worker| worker.due().filter(|_| works)));
        let due = due.chain(self.weather.due().filter(|_| works)).min().unwrap_or(until);
        let now = due.clamp(self.time.now(), until);
        self.time.now.set(now);
        self.network.advance(now);
        if works {
            self.let_weather_happen();
        }
        let (first, count) = (below(self.hosts.len()), self.hosts.len());
        for at in 0..count {
            if self.hosts[(first + at) % count].run(now) {
                self.coordinator.forget(&mut self.hosts, now, None);
            }
        }
        self.coordinator.decide(&mut self.hosts, now);
        self.hear_workers();
        self.hear_watcher();
        if works {
            self.let_workers_act();
        }
        self.let_expelled_go();
        self.check_step();
    }

    /// Tells the coordinator of nodes that have fenced themselves.
    fn let_expelled_go(&mut self) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_expelled && self.hosts[host].is_fenced() {
                self.hosts[host].is_expelled = false;
                self.coordinator.remove(&mut self.hosts, host, self.time.now());
            }
        }
    }

    /// Ends all faults, and lets the cluster come to rest.
    fn mend(&mut self) {
        self.weather.mend(&self.network, self.hosts.len());
        self.hosts.iter_mut().for_each(Host::mend);
        self.coordinator.forget(&mut self.hosts, self.time.now(), None);
        self.pass(Duration::from_secs(5));
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_alive() && !self.coordinator.has(&self.hosts[host]) {
                self.join(host);
            }
        }
        self.pass(REST_TIME);
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        if let Some(broken) = self.broken.take()
            && !thread::panicking()
        {
            panic!("{}\n{broken}", self.log.join("\n"));
        }
    }
}
