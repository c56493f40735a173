//! Waiting for a condition, with a deadline that nothing comes near.

use std::thread;
use std::time::{Duration, Instant};

/// Time after which a wait counts as a hang.
const HANG_PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds, and fails after [`HANG_PATIENCE`].
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG_PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {HANG_PATIENCE:?} in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
