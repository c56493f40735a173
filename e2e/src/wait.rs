//! Waiting for a condition instead of for a time, and the few other things that tests may do with time.
//!
//! Tests neither sleep nor assert how long something took, but for what stands here, each for one purpose.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time that anything may take before a test calls it a hang. Nothing is expected to come near it.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Time by which something may be later than promised, on a machine that has other things to do.
pub const SLACK: Duration = Duration::from_secs(10);

/// Time between two looks.
const PERIOD: Duration = Duration::from_micros(500);

/// Time between two looks that cost something.
const LONG_PERIOD: Duration = Duration::from_millis(5);

/// Waits until `condition` holds. `what` names the condition.
///
/// # Panics
/// Panics when the condition does not hold within [`PATIENCE`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}

/// Waits until `look` finds something, and gives it. `what` names what is looked for.
///
/// # Panics
/// Panics when `look` finds nothing within [`PATIENCE`].
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
        sleep(PERIOD);
    }
}

/// Looks until `look` finds something, and not much longer than `patience`. Returns the last result of
/// `look`. For conditions whose failure takes more than a word to explain, and for those that may take longer
/// than [`PATIENCE`].
pub fn patiently<T, E>(patience: Duration, mut look: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + patience;
    loop {
        let found = look();
        if found.is_ok() || Instant::now() >= deadline {
            return found;
        }
        sleep(LONG_PERIOD);
    }
}

/// Lets a time pass that is itself what the test is about, such as a lease that has to be renewed meanwhile
/// or a worker's pause. `why` says why there is no condition to wait for.
pub fn let_pass(span: Duration, why: &str) {
    assert!(!why.is_empty(), "a test that waits for a time says why");
    sleep(span);
}

/// Lets a time pass as [`let_pass`] does, or a shorter one if `over` holds before its end.
pub fn let_pass_unless(span: Duration, why: &str, mut over: impl FnMut() -> bool) {
    let end = Instant::now() + span;
    while !over() && Instant::now() < end {
        let_pass(LONG_PERIOD, why);
    }
}

/// Checks that something which began at `begun` and is over now did not outlast its time-out.
///
/// # Panics
/// Panics when it took longer than `promised` and [`SLACK`].
pub fn ended_in_time(what: &str, begun: Instant, promised: Duration) {
    let took = begun.elapsed();
    assert!(took < promised + SLACK, "{what} was to take {promised:?} at most, and took {took:?}");
}

/// Checks that something which began at `begun` and has given up now had the time that it was given.
///
/// # Panics
/// Panics when it gave up before `promised` had passed.
pub fn had_its_time(what: &str, begun: Instant, promised: Duration) {
    let took = begun.elapsed();
    assert!(took >= promised, "{what} gave up after {took:?} of {promised:?}");
}
