//! The rate of the network towards one peer: what reads of this node have reached. A pure state machine on
//! the time and the events that it is told.
//!
//! A span of reads that follow each other without a pause tells a rate, and the largest rate of the last 10
//! to 20 s counts. Short spans tell nothing, since a few short reads do not fill the network. A rate that is
//! reached while low work is limited is a lower bound: it replaces no larger rate.

use std::time::{Duration, Instant};

/// Shortest span of reads that tells a rate.
const TELLING_SPAN: Duration = Duration::from_millis(4);
/// Least number of bytes of a span of reads that tells a rate.
const TELLING_BYTES: u64 = 512 << 10;
/// Time after which a span ends, and another begins.
const LONGEST_SPAN: Duration = Duration::from_millis(100);
/// Half of the span in which the largest rate is looked for.
const EPOCH: Duration = Duration::from_secs(10);

/// The largest rate of reads, in bytes a second.
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// Number of reads under way.
    under_way: u32,
    /// Time at which the present span of reads began, and the number of bytes that have come since.
    span: Option<(Instant, u64)>,
    /// The largest rate of the present epoch, and of the one before.
    best: [Option<f64>; 2],
    epoch: Option<Instant>,
}

impl Rate {
    /// Notes that a read begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.under_way += 1;
        self.span.get_or_insert((now, 0));
    }

    /// Notes that a read has ended, and how many bytes it has brought.
    pub(super) fn end(&mut self, bytes: u64, is_limited: bool, now: Instant) {
        self.under_way = self.under_way.saturating_sub(1);
        let Some((began, so_far)) = &mut self.span else { return };
        *so_far += bytes;
        let (took, bytes) = (now.saturating_duration_since(*began), *so_far);
        if self.under_way > 0 && took < LONGEST_SPAN {
            return;
        }
        self.span = (self.under_way > 0).then_some((now, 0));
        if took < TELLING_SPAN || bytes < TELLING_BYTES {
            return;
        }
        let rate = bytes as f64 / took.as_secs_f64();
        match is_limited {
            true if self.best().is_none_or(|best| rate > best) => self.best[0] = Some(rate),
            true => {}
            false => self.told(rate, now),
        }
    }

    /// Notes a rate that was reached.
    pub(super) fn told(&mut self, rate: f64, now: Instant) {
        let epoch = *self.epoch.get_or_insert(now);
        if now.saturating_duration_since(epoch) >= EPOCH {
            self.best = [None, self.best[0]];
            self.epoch = Some(now);
        }
        self.best[0] = Some(self.best[0].map_or(rate, |best| best.max(rate)));
    }

    /// The largest rate; `None` if none is known.
    pub(super) fn best(&self) -> Option<f64> {
        self.best.iter().flatten().copied().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const CHUNK_BYTES: u64 = 512 << 10;

    /// Reads `count` chunks, two at a time, of which one ends at each interval `every`. Returns the end time.
    fn reads(rate: &mut Rate, from: Instant, every: Duration, count: u32, is_limited: bool) -> Instant {
        rate.begin(from);
        for at in 1..=count {
            rate.begin(from + every * (at - 1));
            rate.end(CHUNK_BYTES, is_limited, from + every * at);
        }
        rate.end(0, is_limited, from + every * count);
        from + every * count
    }

    #[test]
    fn reads_one_after_the_other_tell_the_rate() {
        let (mut rate, begin) = (Rate::default(), Instant::now());
        reads(&mut rate, begin, MS * 4, 100, false);
        let expected = CHUNK_BYTES as f64 / 0.004;
        let best = rate.best().expect("it is known");
        assert!((best / expected - 1.0).abs() < 0.02, "{best}");
    }

    #[test]
    fn a_few_short_reads_tell_nothing() {
        let (mut rate, mut now) = (Rate::default(), Instant::now());
        for _ in 0..1000 {
            rate.begin(now);
            now += MS;
            rate.end(4096, false, now);
            now += MS;
        }
        assert_eq!(rate.best(), None);
    }

    #[test]
    fn the_largest_rate_lasts_for_a_while() {
        let (mut rate, begin) = (Rate::default(), Instant::now());
        let mut now = reads(&mut rate, begin, MS * 4, 100, false);
        let fast = rate.best().expect("it is known");
        while now < begin + Duration::from_secs(9) {
            now = reads(&mut rate, now, MS * 8, 100, false);
        }
        assert_eq!(rate.best(), Some(fast));
        while now < begin + Duration::from_secs(25) {
            now = reads(&mut rate, now, MS * 8, 100, false);
        }
        assert!(rate.best().expect("it is known") < 0.6 * fast);
    }

    #[test]
    fn what_is_reached_under_a_limit_lowers_nothing() {
        let (mut rate, begin) = (Rate::default(), Instant::now());
        let mut now = reads(&mut rate, begin, MS * 4, 100, false);
        let fast = rate.best();
        while now < begin + Duration::from_secs(60) {
            now = reads(&mut rate, now, MS * 8, 100, true);
        }
        assert_eq!(rate.best(), fast);
        reads(&mut rate, now, MS * 2, 100, true);
        assert!(rate.best() > fast);
    }
}
