//! Waiting for a condition instead of for a time.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest anything may take before a test calls it a hang. Nothing is expected to come near it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often to look.
const PERIOD: Duration = Duration::from_micros(500);

/// Looks until `condition` holds.
///
/// # Panics
/// When it does not within [`PATIENCE`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}

/// Looks until `look` finds something.
///
/// # Panics
/// When it does not within [`PATIENCE`].
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
