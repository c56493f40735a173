//! Validity: the time until which a node may take itself for a member.
//!
//! The control thread prolongs it, and the engine checks it before it acts on frames of peers: a process
//! that was stopped finds its time over before its control thread has run. A validity that is over stays
//! over: the thread that notices first decides for both, and only a new membership begins a new time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The value of a membership without an end, which others end.
const FOREVER: u64 = u64::MAX;
/// The value of a membership that has ended.
const OVER: u64 = 0;

/// The end of a membership, unless it is prolonged.
#[derive(Debug)]
pub(crate) struct Validity {
    origin: Instant,
    /// Microseconds after the origin.
    until: AtomicU64,
}

#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "memberships by etcd alone have an end"))]
impl Validity {
    /// Makes a validity without an end.
    pub(crate) fn forever() -> Self {
        Self { origin: Instant::now(), until: AtomicU64::new(FOREVER) }
    }

    /// Begins a membership that lasts until then.
    pub(crate) fn begin(&self, until: Instant) {
        self.until.store(self.micros(until), Ordering::SeqCst);
    }

    /// Prolongs the membership; `false` if it is over.
    pub(crate) fn prolong(&self, until: Instant) -> bool {
        let (now, until) = (self.micros(Instant::now()), self.micros(until));
        let longer = |end: u64| (end > now).then_some(end.max(until));
        self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, longer).is_ok()
    }

    /// Ends the membership.
    pub(crate) fn end(&self) {
        self.until.store(OVER, Ordering::SeqCst);
    }

    /// How long the membership still lasts, unless it is prolonged; `None` for one without an end.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        match self.until.load(Ordering::Relaxed) {
            FOREVER => None,
            end => Some(Duration::from_micros(end.saturating_sub(self.micros(now)))),
        }
    }

    /// Whether the membership is over; if so, it stays over until the next membership.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let now = self.micros(now);
        let ended = |end: u64| (end != FOREVER && end <= now).then_some(OVER);
        match self.until.load(Ordering::Relaxed) {
            FOREVER => false,
            end if end > now => false,
            _ => self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, ended).is_ok(),
        }
    }

    fn micros(&self, at: Instant) -> u64 {
        let micros = at.saturating_duration_since(self.origin).as_micros();
        u64::try_from(micros).unwrap_or(FOREVER - 1).max(OVER + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_end_it_is_never_over() {
        let validity = Validity::forever();
        assert!(!validity.is_over(Instant::now() + Duration::from_secs(1 << 30)));
    }

    #[test]
    fn it_is_prolonged_while_it_lasts() {
        let (validity, now) = (Validity::forever(), Instant::now());
        let hour = Duration::from_secs(3600);
        validity.begin(now + hour);
        assert!(validity.prolong(now + 2 * hour));
        assert!(validity.prolong(now + hour), "an answer that comes late takes nothing away");
        assert!(!validity.is_over(now + 2 * hour - Duration::from_secs(1)));
        assert_eq!(validity.left(now + hour).map(|left| left.as_secs()), Some(3600));
        assert!(validity.is_over(now + 2 * hour));
    }

    #[test]
    fn once_over_only_a_new_membership_helps() {
        let (validity, now) = (Validity::forever(), Instant::now());
        let hour = Duration::from_secs(3600);
        validity.begin(now + hour);
        // The engine's clock is ahead of the control thread's.
        assert!(validity.is_over(now + hour));
        assert!(!validity.prolong(now + 2 * hour));
        assert!(validity.is_over(now));
        validity.begin(now + hour);
        assert!(!validity.is_over(now));
        validity.end();
        assert!(validity.is_over(now) && !validity.prolong(now + hour));
        assert_eq!(validity.left(now), Some(Duration::ZERO));
    }
}
