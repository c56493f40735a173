//! Test that ids are registers: put, replace, delete, get, get_into and contains of one id are linearizable,
//! on whichever nodes they are called.
//!
//! Workers on all nodes use a handful of ids at the same time, as drawn from a seed, and note when each call
//! began and ended and what was answered. Meanwhile nodes die or are cut off ([`weather`]). A round ends when
//! the workers have made enough calls. Then [`plasmon_e2e::linear`] looks for an order that explains the
//! answers, and the next round has new ids. A failure shows the calls that no order explains.
//! `PLASMON_REGISTERS_SEED` sets the seed, `PLASMON_REGISTERS_SECONDS` the length of the run.

mod content;
mod weather;
mod worker;

use std::collections::BTreeMap;
use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use plasmon::ObjectId;
use plasmon_e2e::linear::{Action, Call, Violation, violations};
use plasmon_e2e::{Chance, PATIENCE, eventually};

use weather::{Kind, Weather};
use worker::{Ground, Round, Worker};

const NODES: usize = 4;
const WORKERS: usize = 12;
/// Number of workers that write. The others, one a node, read, because deletions may have to wait for nodes
/// that are cut off.
const WRITERS: usize = 8;
/// Number of ids of a round.
const IDS: usize = 4;
/// Largest number of violations of a kind that are shown.
const SHOWN: usize = 3;
/// Largest number of violations of one id that are looked for.
const MOST: usize = 10;

/// Number in an environment variable, or a default.
fn number<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no such number")),
        Err(_) => otherwise,
    }
}

/// Violations that were found so far.
#[derive(Default)]
struct Findings {
    calls: usize,
    reads: usize,
    ends: BTreeMap<String, usize>,
    found: BTreeMap<String, Vec<(ObjectId, Violation)>>,
}

impl Findings {
    /// Checks the calls on one id.
    fn check(&mut self, id: ObjectId, calls: &[Call]) {
        self.calls += calls.len();
        let reads = calls.iter().filter(|call| matches!(call.action, Action::Got(_) | Action::Contains(_)));
        self.reads += reads.count();
        for violation in violations(calls, MOST) {
            let kind = match &violation {
                Violation::Impossible { kind, .. } => kind,
                Violation::Undecided { .. } => "undecided",
            };
            self.found.entry(kind.to_owned()).or_default().push((id, violation));
        }
    }

    /// Fails if any violation was found.
    fn conclude(self, seed: u64) {
        let Self { calls, reads, ends, found } = self;
        eprintln!("registers: {calls} calls noted, {reads} of them reads; {ends:?}");
        assert!(reads > 0, "nothing was read");
        let counts: Vec<_> = found.iter().map(|(kind, all)| format!("{}: {kind}", all.len())).collect();
        for (id, violation) in found.values().flat_map(|all| all.iter().take(SHOWN)) {
            eprintln!("{id}: {violation}");
        }
        assert!(
            found.is_empty(),
            "PLASMON_REGISTERS_SEED={seed}: ids are no registers, see above; \
             of {calls} calls and {reads} reads {counts:#?}"
        );
    }
}

#[test]
fn ids_are_registers() {
    run(Kind::Calm, 6);
}

#[test]
fn ids_are_registers_where_memory_is_short() {
    run(Kind::Crowded, 5);
}

#[test]
fn ids_are_registers_while_nodes_die() {
    run(Kind::Deaths, 6);
}

#[test]
fn ids_are_registers_while_nodes_are_cut_off() {
    run(Kind::Outages, 8);
}

fn run(kind: Kind, seconds: u64) {
    let seed: u64 = number("PLASMON_REGISTERS_SEED", 1);
    let load = Duration::from_secs(number("PLASMON_REGISTERS_SECONDS", seconds));
    eprintln!("registers: {kind:?}, PLASMON_REGISTERS_SEED={seed}");
    let mut chance = Chance::of_seed(seed);
    let mut weather = Weather::new(kind, chance.split());
    let rough = kind.is_rough();
    let ground = Ground {
        sockets: (0..NODES).map(|node| weather.cluster.socket(node)).collect(),
        nodes: (0..NODES).map(|node| weather.cluster.client(node).node()).collect(),
        start: Instant::now(),
        excuses: kind.excuses(),
        pause: Duration::from_millis(if rough { 15 } else { 0 }),
        calls: if rough { 200 } else { 60 },
    };
    let mut workers: Vec<_> =
        (0..WORKERS).map(|number| Worker::new(&ground, number, chance.split())).collect();
    let mut findings = Findings::default();
    let mut rounds = 0;
    // A round of bad weather on a busy machine may be over before anything was read.
    let nothing_yet = |findings: &Findings| findings.reads == 0 && ground.start.elapsed() < PATIENCE;
    while ground.start.elapsed() < load || nothing_yet(&findings) {
        rounds += 1;
        let id = |name| ObjectId::from_name(&format!("registers {seed} {rounds} {name}"));
        let round = Round { ids: (0..IDS).map(id).collect(), over: AtomicBool::new(false) };
        let histories = thread::scope(|scope| {
            let working: Vec<_> =
                workers.iter_mut().map(|worker| scope.spawn(|| worker.work(&round))).collect();
            let happened = weather.happen(&ground, &|| working.iter().all(ScopedJoinHandle::is_finished));
            round.over.store(rough, Ordering::Relaxed);
            let mut histories = vec![happened; IDS];
            for worker in working {
                for (at, call) in worker.join().expect("a worker found something wrong: see above") {
                    histories[at].push(call);
                }
            }
            histories
        });
        round.ids.iter().zip(&histories).for_each(|(id, calls)| findings.check(*id, calls));
        weather.settle();
        eventually("what was put is deleted", || weather.cluster.client(0).delete(&round.ids).is_ok());
    }
    for worker in &workers {
        worker.ends.iter().for_each(|(end, count)| *findings.ends.entry(end.clone()).or_default() += count);
    }
    findings.conclude(seed);
}
