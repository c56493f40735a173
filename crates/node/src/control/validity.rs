//! Validity: the time until which a node may take itself for a member.
//!
//! A [`Validity`] is shared by two threads: the control thread prolongs it, and the engine checks it before
//! it acts on frames of peers. So a process that was stopped finds its time over before its control thread
//! has run. The time is counted by the clock that goes on while the host sleeps, which timers do not: a host
//! that wakes up finds it over as well. Invariant: a validity that is over stays over until a new membership
//! begins; the thread that notices first decides for both.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use plasmon::shared::boot_ns;

/// The value of a membership without an end, which others end.
const FOREVER: u64 = u64::MAX;
/// The value of a membership that has ended.
const OVER: u64 = 0;

/// The end of a membership, unless it is prolonged. Times are nanoseconds since the host was booted.
#[derive(Debug)]
pub(crate) struct Validity {
    until: AtomicU64,
}

#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "memberships by etcd alone have an end"))]
impl Validity {
    /// Makes a validity without an end.
    pub(crate) fn forever() -> Self {
        Self { until: AtomicU64::new(FOREVER) }
    }

    /// Begins a membership that lasts until `until`.
    pub(crate) fn begin(&self, until: u64) {
        self.until.store(until.clamp(OVER + 1, FOREVER - 1), Ordering::SeqCst);
    }

    /// Prolongs the membership; `false` if it is over.
    pub(crate) fn prolong(&self, until: u64) -> bool {
        let (now, until) = (boot_ns(), until.min(FOREVER - 1));
        let longer = |end: u64| (end > now).then_some(end.max(until));
        self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, longer).is_ok()
    }

    /// Ends the membership.
    pub(crate) fn end(&self) {
        self.until.store(OVER, Ordering::SeqCst);
    }

    /// How long the membership still lasts, unless it is prolonged; `None` for one without an end.
    pub(crate) fn left(&self, now: u64) -> Option<Duration> {
        match self.until.load(Ordering::Relaxed) {
            FOREVER => None,
            end => Some(Duration::from_nanos(end.saturating_sub(now))),
        }
    }

    /// Whether the membership is over; if so, it stays over until the next membership.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        let ended = |end: u64| (end != FOREVER && end <= now).then_some(OVER);
        match self.until.load(Ordering::Relaxed) {
            FOREVER => false,
            end if end > now => false,
            _ => self.until.fetch_update(Ordering::SeqCst, Ordering::SeqCst, ended).is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    #[test]
    fn without_an_end_it_is_never_over() {
        let validity = Validity::forever();
        assert!(!validity.is_over(u64::MAX));
    }

    #[test]
    fn it_is_prolonged_while_it_lasts() {
        let (validity, now) = (Validity::forever(), boot_ns());
        validity.begin(now + HOUR_NS);
        assert!(validity.prolong(now + 2 * HOUR_NS));
        assert!(validity.prolong(now + HOUR_NS), "an answer that comes late takes nothing away");
        assert!(!validity.is_over(now + 2 * HOUR_NS - 1));
        assert_eq!(validity.left(now + HOUR_NS), Some(Duration::from_secs(3600)));
        assert!(validity.is_over(now + 2 * HOUR_NS));
    }

    #[test]
    fn once_over_only_a_new_membership_helps() {
        let (validity, now) = (Validity::forever(), boot_ns());
        validity.begin(now + HOUR_NS);
        // The engine's clock is ahead of the control thread's.
        assert!(validity.is_over(now + HOUR_NS));
        assert!(!validity.prolong(now + 2 * HOUR_NS));
        assert!(validity.is_over(now));
        validity.begin(now + HOUR_NS);
        assert!(!validity.is_over(now));
        validity.end();
        assert!(validity.is_over(now) && !validity.prolong(now + HOUR_NS));
        assert_eq!(validity.left(now), Some(Duration::ZERO));
    }

    #[test]
    fn no_time_stands_for_a_membership_without_an_end_or_one_that_is_over() {
        let validity = Validity::forever();
        validity.begin(u64::MAX);
        assert!(validity.is_over(u64::MAX));
        validity.begin(0);
        assert!(!validity.is_over(0));
    }
}
