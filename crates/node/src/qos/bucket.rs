//! A token bucket: how much may go at a rate that changes. A pure state machine on the time that it is told.
//!
//! Invariant: in any span go at most as many bytes as the rates of the span gave, [`BURST`] of the present
//! rate, and the last piece, which goes whole once it may begin.

use std::time::{Duration, Instant};

/// Largest content of a bucket, as a span of its rate. The timers of an engine are no finer than that.
const BURST: Duration = Duration::from_millis(2);

/// Bytes that may go.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    /// Number of bytes that may go. It is negative after a piece went that was larger than the level.
    level: f64,
    at: Option<Instant>,
}

impl Bucket {
    /// Returns the time at which something may go at `rate` bytes a second; `None` if it may go now.
    pub(super) fn ready(&mut self, rate: f64, now: Instant) -> Option<Instant> {
        let most = rate * BURST.as_secs_f64();
        let since = self.at.map_or(BURST, |at| now.saturating_duration_since(at));
        self.level = (self.level + rate * since.as_secs_f64()).min(most);
        self.at = Some(now);
        if self.level > 0.0 {
            return None;
        }
        // At that time the level is above 0, by one byte.
        Some(now + Duration::from_secs_f64((1.0 - self.level) / rate.max(1.0)))
    }

    /// Notes that a piece of `bytes` bytes goes.
    pub(super) fn take(&mut self, bytes: u64) {
        self.level -= bytes as f64;
    }

    /// Forgets the pieces that went, since there was no limit meanwhile.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_at_the_rate_that_is_given() {
        let (mut bucket, begin) = (Bucket::default(), Instant::now());
        let (rate, bytes) = (1_000_000.0, 1000);
        let (mut now, mut gone) = (begin, 0);
        while now < begin + Duration::from_secs(1) {
            match bucket.ready(rate, now) {
                None => {
                    bucket.take(bytes);
                    gone += bytes;
                }
                Some(due) => {
                    assert!(due > now);
                    now = due;
                }
            }
        }
        assert!((1_000_000..1_000_000 + 4 * bytes).contains(&gone), "{gone} bytes");
    }

    #[test]
    fn what_was_not_used_is_kept_for_a_moment_only() {
        let (mut bucket, begin) = (Bucket::default(), Instant::now());
        let (rate, later) = (1_000_000.0, begin + Duration::from_secs(3600));
        assert_eq!((bucket.ready(rate, begin), bucket.ready(rate, later)), (None, None));
        bucket.take(2000);
        assert!(bucket.ready(rate, later).is_some(), "2 ms of the rate are 2,000 bytes");
    }

    #[test]
    fn more_than_there_is_goes_whole_and_is_waited_for_afterwards() {
        let (mut bucket, now) = (Bucket::default(), Instant::now());
        assert_eq!(bucket.ready(1e6, now), None);
        bucket.take(102_000);
        let due = bucket.ready(1e6, now).expect("it owes 100,000 bytes");
        assert!((99..=101).contains(&(due - now).as_millis()));
        // With a higher rate it is earlier.
        assert!(bucket.ready(1e7, now).expect("it still owes them") < now + Duration::from_millis(11));
        bucket.reset();
        assert_eq!(bucket.ready(1e6, now), None);
    }
}
