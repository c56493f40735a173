//! The simulation as tests: one trace a seed, and as many seeds as fit into the time that is given.
//!
//! `PLASMON_SIMULATE_SEED` runs one seed. `PLASMON_SIMULATE_SECONDS` runs seeds for so long, from
//! `PLASMON_SIMULATE_FIRST` on, or else from one that is drawn. Each core runs seeds of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, iter, thread};

use super::{Outcome, Simulation};
use crate::kernel::planted::{Bug, plant};
use crate::kernel::random::random_u64;

/// Seeds that are run where the environment gives no time.
const FEW_SEEDS: u64 = 10;

/// Seeds that are tried to find a bug that was put in.
const SEEDS_FOR_A_BUG: u64 = 200;

/// A number that the environment may give.
fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn run(seed: u64) -> Outcome {
    let outcome = Simulation::run(seed);
    assert!(
        outcome.wrong.is_empty(),
        "seed {seed} (`make simulate SEED={seed}` runs it again):\n{}\n{}",
        outcome.log.join("\n"),
        outcome.wrong.join("\n")
    );
    outcome
}

#[test]
fn a_seed_gives_one_run() {
    let outcomes = [Simulation::run(7), Simulation::run(7)];
    assert_eq!(outcomes[0].trace, outcomes[1].trace);
    assert_ne!(outcomes[0].trace, Simulation::run(8).trace);
}

/// Puts a bug in, and runs seeds until one shows that something is wrong.
fn find(bug: Bug) {
    plant(Some(bug));
    let found = (1..=SEEDS_FOR_A_BUG).find(|seed| !Simulation::run(*seed).wrong.is_empty());
    plant(None);
    let seed = found.unwrap_or_else(|| panic!("{SEEDS_FOR_A_BUG} seeds did not find {bug:?}"));
    eprintln!("seed {seed} finds {bug:?}");
}

#[test]
fn a_bug_in_claims_is_found() {
    find(Bug::ClaimGrantedTwice);
}

#[test]
fn a_bug_in_copies_is_found() {
    find(Bug::ReplicaNotMade);
}

#[test]
fn a_bug_in_drains_is_found() {
    find(Bug::DrainedTooSoon);
}

#[test]
fn a_lack_of_comparison_is_found() {
    find(Bug::NotCompared);
}

#[test]
fn a_bug_in_repair_is_found() {
    find(Bug::KeeperNotTold);
}

#[test]
fn what_is_promised_holds_for_every_seed() {
    if let Some(seed) = number("PLASMON_SIMULATE_SEED") {
        eprintln!("seed {seed}: {:?}", run(seed));
        return;
    }
    let (first, span) = match number("PLASMON_SIMULATE_SECONDS") {
        Some(seconds) => {
            let first = number("PLASMON_SIMULATE_FIRST").unwrap_or_else(|| random_u64() >> 24);
            (first, Duration::from_secs(seconds))
        }
        None => (1, Duration::MAX),
    };
    let (begun, seeds) = (Instant::now(), AtomicU64::new(0));
    let next = || {
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        (begun.elapsed() < span && (span < Duration::MAX || seed < FEW_SEEDS)).then(|| run(first + seed))
    };
    let count = || iter::from_fn(next).map(|outcome| [1, outcome.calls, outcome.successes]).fold([0; 3], add);
    let counts = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(count)).collect();
        // A thread that has failed has said why.
        threads.into_iter().map(|thread| thread.join().expect("all seeds hold")).fold([0; 3], add)
    });
    let [seeds, calls, successes] = counts;
    eprintln!("{seeds} seeds from {first}: {calls} calls, {successes} of them ended well");
    assert!(successes > 0, "nothing was tried");
}

fn add(one: [usize; 3], other: [usize; 3]) -> [usize; 3] {
    std::array::from_fn(|at| one[at] + other[at])
}
