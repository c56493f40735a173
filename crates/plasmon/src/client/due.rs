//! When a call ends, by the client's own clock: a daemon that has stopped ends none.
//!
//! | call | ends |
//! |---|---|
//! | with a time-out | [`GRACE`] after it: the daemon keeps to the time-out, too, and has the better words |
//! | with a time-out of zero, which waits for nobody | after [`AT_ONCE`] |
//! | that waits for objects or other nodes, without a time-out | never |
//! | that waits for the daemon's answer alone | as with a time-out of [`PATIENCE`], or of what [`Client::within`](super::Client::within) says |
//!
//! To make room, and to read an object from disk, is the daemon's answer alone if there is no time-out, or
//! one of zero. What the program takes itself, to copy bytes or to write them in place, does not count.

use std::time::{Duration, Instant};

/// How long a call waits for the daemon to say anything. Far longer than a live daemon takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long connecting takes at most, unless told otherwise.
const CONNECTING: Duration = Duration::from_secs(10);
/// What the daemon gets beyond a time-out before the client gives up on its own.
const GRACE: Duration = Duration::from_millis(250);
/// What a daemon gets that is to answer at once.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The least that is left of a time-out: zero says something else.
const LEAST: Duration = Duration::from_micros(1);

/// The end of a call, if it has one.
pub(super) type Due = Option<Instant>;

/// The end of a call with this time-out that begins now.
pub(super) fn due(timeout: Option<Duration>) -> Due {
    let timeout = timeout?;
    let patience = if timeout.is_zero() { AT_ONCE } else { timeout.saturating_add(GRACE) };
    Instant::now().checked_add(patience)
}

/// The end of connecting that begins now.
pub(super) fn due_of_connecting(timeout: Option<Duration>) -> Due {
    due(Some(timeout.unwrap_or(CONNECTING)))
}

/// The time-out for the rest of a call that is due then.
pub(super) fn rest(due: Due) -> Option<Duration> {
    due.map(|due| due.saturating_duration_since(Instant::now()).saturating_sub(GRACE).max(LEAST))
}

/// The same end, without the time that passed since: the program's own.
pub(super) fn put_off(due: Due, since: Instant) -> Due {
    due.and_then(|due| due.checked_add(since.elapsed()))
}
