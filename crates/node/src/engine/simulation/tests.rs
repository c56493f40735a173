//! The simulation as tests: one trace a seed, and as many seeds as fit into the time that is given.
//!
//! `PLASMON_SIMULATE_SEED` runs one seed. `PLASMON_SIMULATE_SECONDS` runs seeds for so many seconds, and
//! `PLASMON_SIMULATE_SEEDS` runs so many seeds, from `PLASMON_SIMULATE_FIRST` on, or else from a seed that is
//! drawn. Each core runs seeds of its own. When a seed has failed, no further ones are begun.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, iter, thread};

use super::pushes::late_writes;
use super::{Outcome, Simulation};
use crate::kernel::planted::{Bug, plant};
use crate::kernel::random::random_u64;

/// Seeds that are run where the environment gives no time.
const FEW_SEEDS: u64 = 10;

/// Seeds that are run twice.
const SEEDS_RUN_TWICE: RangeInclusive<u64> = 100..=102;

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
    let mut traces = Vec::new();
    for seed in SEEDS_RUN_TWICE {
        let [one, again] = [Simulation::run(seed), Simulation::run(seed)];
        assert_eq!(one.trace, again.trace, "seed {seed}, run twice:\n{}", one.log.join("\n"));
        traces.push(one.trace);
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), SEEDS_RUN_TWICE.count(), "other seeds give other runs");
}

/// Puts a bug in, and runs seeds from `first` on until one shows a fault. `first` is a seed that found the
/// bug when this test was written, which saves the time of the seeds before it. After a change of the code
/// another seed may find it.
fn find(bug: Bug, first: u64) {
    find_by(bug, first, |seed| Simulation::run(seed).wrong);
}

/// Puts a bug in, and runs seeds from `first` on until `wrong` returns something for one of them.
fn find_by(bug: Bug, first: u64, wrong: fn(u64) -> Vec<String>) {
    plant(Some(bug));
    let found = (first..first + SEEDS_FOR_A_BUG).find(|seed| !wrong(*seed).is_empty());
    plant(None);
    let seed = found.unwrap_or_else(|| panic!("{SEEDS_FOR_A_BUG} seeds from {first} did not find {bug:?}"));
    eprintln!("seed {seed} finds {bug:?}");
}

/// Runs a seed. Returns the fault that was found right after a step, while clients worked.
fn wrong_at_once(seed: u64) -> Vec<String> {
    let outcome = Simulation::run(seed);
    if outcome.broken_at.is_some() { outcome.wrong } else { Vec::new() }
}

#[test]
fn a_bug_in_claims_is_found_at_once() {
    find_by(Bug::ClaimGrantedTwice, 14, wrong_at_once);
}

#[test]
fn a_bug_in_copies_is_found() {
    find(Bug::ReplicaNotMade, 8);
}

#[test]
fn a_bug_in_drains_is_found() {
    find(Bug::DrainedTooSoon, 146);
}

#[test]
fn a_lack_of_comparison_is_found_at_once() {
    find_by(Bug::NotCompared, 41, wrong_at_once);
}

#[test]
fn a_bug_in_repair_is_found() {
    find(Bug::KeeperNotTold, 11);
}

#[test]
fn a_guard_that_is_not_awaited_is_found() {
    find(Bug::GuardNotAwaited, 3);
}

#[test]
fn a_guarded_object_that_is_given_unasked_is_found() {
    find(Bug::GuardedGivenUnasked, 162);
}

#[test]
fn a_version_that_is_compared_too_early_is_found() {
    find(Bug::ExpectedOnceCompared, 11);
}

#[test]
fn a_successor_that_is_shown_too_early_is_found() {
    find(Bug::ShownBeforeSwitch, 2);
}

#[test]
fn a_bug_in_windows_is_found() {
    find_by(Bug::WindowUsedAgain, 11, late_writes);
}

#[test]
fn what_is_promised_holds_for_every_seed() {
    let counts = |seed| {
        let Outcome { calls, successes, pushes, amid_pushes, .. } = run(seed);
        [calls, successes, pushes, amid_pushes]
    };
    let (seeds, [calls, successes, pushes, amid]) = each_seed(FEW_SEEDS, counts);
    eprintln!(
        "{seeds}: {calls} calls, {successes} of them ended well; {pushes} pushes by writes, and {amid} times \
         something broke amid a push"
    );
    let is_one = number("PLASMON_SIMULATE_SEED").is_some();
    assert!(is_one || successes > 0 && pushes > 0 && amid > 0, "nothing was tried");
}

/// Runs the seeds that the environment names, or the first `few`. Returns a text about the seeds that were
/// run, and the sums of what `run` has counted.
pub(super) fn each_seed<const N: usize>(
    few: u64,
    run: impl Fn(u64) -> [usize; N] + Sync,
) -> (String, [usize; N]) {
    if let Some(seed) = number("PLASMON_SIMULATE_SEED") {
        return (format!("seed {seed}"), run(seed));
    }
    let first = || number("PLASMON_SIMULATE_FIRST").unwrap_or_else(|| random_u64() >> 24);
    let (first, span, most) = match (number("PLASMON_SIMULATE_SECONDS"), number("PLASMON_SIMULATE_SEEDS")) {
        (Some(seconds), _) => (first(), Duration::from_secs(seconds), u64::MAX),
        (None, Some(seeds)) => (first(), Duration::MAX, seeds),
        (None, None) => (1, Duration::MAX, few),
    };
    let (begun, seeds, has_failed) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
    let next = || {
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        let is_over = begun.elapsed() >= span || seed >= most || has_failed.load(Ordering::Relaxed);
        (!is_over).then(|| {
            let _failing = Failing(&has_failed);
            (1, run(first + seed))
        })
    };
    let none = (0, [0; N]);
    let count = || iter::from_fn(next).fold(none, add);
    let (count, counts) = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(count)).collect();
        // A thread that has failed has told the reason.
        threads.into_iter().map(|thread| thread.join().expect("all seeds hold")).fold(none, add)
    });
    (format!("{count} seeds from {first}"), counts)
}

/// Says that a seed has failed if it is dropped by a panic.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(thread::panicking(), Ordering::Relaxed);
    }
}

fn add<const N: usize>(one: (usize, [usize; N]), other: (usize, [usize; N])) -> (usize, [usize; N]) {
    (one.0 + other.0, std::array::from_fn(|at| one.1[at] + other.1[at]))
}
