//! Until when a node may take itself for a member.
//!
//! Shared by the control thread, which prolongs it, and the engine, which looks at it before it acts on what
//! peers say: a process that was stopped finds its time over before its control thread has run. Over means
//! over: whoever notices first decides for both, and only a new membership begins a new time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// There is no end: the membership is ended by others.
const FOREVER: u64 = u64::MAX;
/// It has ended.
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
    /// One without an end.
    pub(crate) fn forever() -> Self {
        Self { origin: Instant::now(), until: AtomicU64::new(FOREVER) }
    }

    /// A membership begins, to last until then.
    pub(crate) fn begin(&self, until: Instant) {
        self.until.store(self.micros(until), Ordering::SeqCst);
    }

    /// It lasts longer, unless it is over: `false` then.
    pub(crate) fn prolong(&self, until: Instant) -> bool {
        let (now, until) = (self.micros(Instant::now()), self.micros(until));
        let longer = |end: u64| (end > now).then_some(end.max(until));
        self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, longer).is_ok()
    }

    /// It is over.
    pub(crate) fn end(&self) {
        self.until.store(OVER, Ordering::SeqCst);
    }

    /// For how long it lasts still, unless it is prolonged; nothing for one without an end.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        match self.until.load(Ordering::Relaxed) {
            FOREVER => None,
            end => Some(Duration::from_micros(end.saturating_sub(self.micros(now)))),
        }
    }

    /// Whether it is over; if so, it stays so until the next membership.
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
        // The engine's clock is the later one.
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
