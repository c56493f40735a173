//! Ends of calls by the client's own clock, so that a stopped daemon cannot delay them.
//!
//! Owns no state. Any thread.
//!
//! | call | ends |
//! |---|---|
//! | with a time-out | [`DAEMON_GRACE`] after the time-out, which the daemon keeps too: its error says more |
//! | with a time-out of zero | after [`IMMEDIATE_TIMEOUT`], or later if it gets objects |
//! | that waits for objects or other nodes, without a time-out | never |
//! | that waits for the daemon's answer alone | after [`ANSWER_TIMEOUT`], or what `Client::within` says |
//!
//! A call that makes room waits for the daemon's answer alone if it has no time-out, or one of zero. A call
//! that gets objects with a time-out of zero may have to bring them from other nodes or from disk. A wait for
//! more than 1,024 objects may have to look them up for long. As long as the daemon says in its tables that
//! it lives, such a call ends like one that waits for the daemon's answer alone. Time that the program itself
//! takes, to copy bytes or to write them in place, does not count.

use std::time::{Duration, Instant};

/// Longest wait for any answer of the daemon. A live daemon answers far sooner.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that connecting takes, unless the caller sets another.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that the daemon gets beyond a time-out before the client ends the call itself.
const DAEMON_GRACE: Duration = Duration::from_millis(250);
/// Time that the daemon gets to answer a call with a time-out of zero.
pub(super) const IMMEDIATE_TIMEOUT: Duration = Duration::from_secs(1);
/// Shortest remaining time-out that is sent: a time-out of zero has another meaning.
const SHORTEST_TIMEOUT: Duration = Duration::from_micros(1);

/// End of a call, if it has one.
pub(super) type Due = Option<Instant>;

/// End of a call with this time-out that begins now.
pub(super) fn due(timeout: Option<Duration>) -> Due {
    let timeout = timeout?;
    let patience = if timeout.is_zero() { IMMEDIATE_TIMEOUT } else { timeout.saturating_add(DAEMON_GRACE) };
    Instant::now().checked_add(patience)
}

/// End of an attempt to connect that begins now.
pub(super) fn due_of_connecting(timeout: Option<Duration>) -> Due {
    due(Some(timeout.unwrap_or(CONNECT_TIMEOUT)))
}

/// Time-out to send for the rest of a call that ends at `due`.
pub(super) fn rest(due: Due) -> Option<Duration> {
    due.map(|due| {
        due.saturating_duration_since(Instant::now()).saturating_sub(DAEMON_GRACE).max(SHORTEST_TIMEOUT)
    })
}

/// Time-out to send for the rest of a call that was given `timeout` and ends at `due`. A time-out of zero
/// stays zero, because it has another meaning.
pub(super) fn rest_of(timeout: Duration, due: Due) -> Duration {
    if timeout.is_zero() { timeout } else { rest(due).unwrap_or(timeout) }
}

/// End of a call, put off by the time since `since`, which the program spent itself.
pub(super) fn put_off(due: Due, since: Instant) -> Due {
    due.and_then(|due| due.checked_add(since.elapsed()))
}
