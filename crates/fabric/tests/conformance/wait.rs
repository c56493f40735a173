//! Times that have to pass in tests, with the reasons.

use std::thread;
use std::time::Duration;

/// Lets a time pass that is itself what the test is about. `why` says why there is no condition to wait for.
pub(crate) fn let_pass(span: Duration, why: &str) {
    assert!(!why.is_empty(), "a test that waits for a time says why");
    thread::sleep(span);
}
