//! Run of the chaos test: rounds of work while faults happen, and the checks after each round.

use std::env;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use plasmon_e2e::{Chance, until};

use super::calls;
use super::calm::{Before, complete, look, nothing_is_left};
use super::faults::Faults;
use super::model::Model;
use super::schedule::{Coordinator, NODES, Troubles, WORKERS};
use super::watcher::Watch;
use super::worker::{Ground, Worker};

/// Approximate length of a round in seconds.
const ROUND_SECONDS: f64 = 20.0;

/// Number in an environment variable, or a default.
fn number<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no such number")),
        Err(_) => otherwise,
    }
}

/// Guard that ends the workers, also if the main thread has failed.
struct End(Arc<Ground>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[test]
fn whatever_breaks_what_is_promised_holds() {
    run(Coordinator::Embedded);
}

#[test]
fn whatever_breaks_etcd_as_well_what_is_promised_holds() {
    run(Coordinator::Etcd);
}

/// Runs the rounds for one coordinator, in half of the time.
fn run(coordinator: Coordinator) {
    let seed: u64 = number("PLASMON_CHAOS_SEED", 1);
    let minutes: f64 = number("PLASMON_CHAOS_MINUTES", 1.0);
    let rounds = (minutes * 60.0 / 2.0 / ROUND_SECONDS).ceil().max(1.0) as usize;
    eprintln!(
        "chaos: {coordinator:?}, {rounds} rounds; again: make test-chaos SEED={seed} MINUTES={minutes}"
    );

    let mut faults = Faults::new(seed, coordinator);
    let kept = env::var_os("PLASMON_CHAOS_LOGS").map_or_else(env::temp_dir, PathBuf::from);
    faults.cluster.keep_logs(kept.join(format!("plasmon-chaos-{seed}-{coordinator:?}")));
    let journal = File::create(faults.cluster.folder().join("journal.log")).expect("the folder is writable");
    let sockets = (0..NODES).map(|node| faults.cluster.socket(node)).collect();
    let ground = Arc::new(Ground::new(Model::new(seed, coordinator), sockets, journal));
    let end = End(Arc::clone(&ground));
    faults.introduce(&ground.model);
    complete(&faults.cluster);
    let mut chance = Chance::of_seed(seed ^ 1);
    let watch = Arc::new(Watch::default());
    let mut threads = Vec::new();
    for node in 1..NODES {
        let ground = Arc::clone(&ground);
        threads.push(thread::spawn(move || calls::serve(&ground, node)));
    }
    look(&ground, &faults.cluster, &watch, &mut chance);
    let before = Before::of(&faults.cluster);

    for number in 0..WORKERS {
        let worker = Worker::new(&ground, number);
        threads.push(thread::spawn(move || worker.work()));
    }
    for node in 0..NODES {
        let (watching, watch) = (Arc::clone(&ground), Arc::clone(&watch));
        threads.push(thread::spawn(move || watch.watch(&watching, node)));
    }
    let well = || {
        assert_eq!(ground.hanging(), None, "a call hangs");
        assert!(
            !threads.iter().any(|thread| thread.is_finished()),
            "a worker found something wrong: see above"
        );
    };
    for (round, troubles) in Troubles::of(seed, coordinator).take(rounds).enumerate() {
        ground.note(&format!("ROUND {round}: {troubles:?}"));
        eprintln!("chaos: round {round}: {troubles:?}");
        let epoch = |node| faults.cluster.status(node).cluster.epoch;
        ground.is_calm((0..NODES).map(epoch).collect());
        ground.work();
        faults.round(&ground, &troubles, &well);
        ground.rest();
        until("the workers rest", || {
            well();
            ground.all_rest().then_some(())
        });
        look(&ground, &faults.cluster, &watch, &mut chance);
    }
    drop(end);
    for thread in threads {
        thread.join().expect("a worker found something wrong: see above");
    }
    let (adds, lives) = ground.regions.adds();
    let guards = ground.locks.given();
    let (ends, passed) = (ground.model.ends(), ground.barriers.passed());
    eprintln!(
        "chaos: {ends}; {adds} adds to {lives} lives of regions; {guards} guards of locks; {passed} passages \
         of barriers"
    );
    assert!(adds > 0 && passed > 0, "nobody added or passed anything");
    nothing_is_left(&ground, &faults.cluster, &before);
}
