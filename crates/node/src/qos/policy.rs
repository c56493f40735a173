//! The policy *priority* towards one peer: how much low work may move while high work is busy. A pure state
//! machine on the time and the events that it is told.
//!
//! The policy follows the software policy of LITE (S.-Y. Tsai and Y. Zhang, "LITE Kernel RDMA Support for
//! Datacenter Applications", SOSP 2017, section 6.2): low work is limited while high work is busy, is not
//! limited while high work is idle, and is limited further when the round trips of high work grow.
//!
//! Invariants: there is no limit while high work is idle, nor while the rate of the network is not known. A
//! limit is at least [`LEAST_SHARE`] of that rate.

use std::time::{Duration, Instant};

use super::rate::Rate;

/// Time after its last operation at which high work is idle.
const IDLE_AFTER: Duration = Duration::from_millis(20);
/// The span over which the use of high work is measured.
const METER_SPAN: Duration = Duration::from_millis(50);
/// Number of parts of [`METER_SPAN`], each of which has a count.
const METER_PARTS: usize = 10;
/// Share of the rate up to which the use of high work takes nothing from low work.
const NEGLIGIBLE_SHARE: f64 = 0.05;
/// Share of the rate left by high work that low work may use.
const LEFT_SHARE: f64 = 0.97;
/// Share of the rate that low work may use in any case.
const LEAST_SHARE: f64 = 0.02;
/// Factor by which round trips exceed the least one when they count as grown.
const GROWN_FACTOR: f64 = 1.5;
/// Share of its rate that low work keeps when round trips have grown.
const KEPT_SHARE: f64 = 0.7;
/// Share of the rate that low work gets back at a time.
const REGAINED_SHARE: f64 = 0.05;
/// The least time between two cuts, and between two steps back.
const PACE: Duration = Duration::from_millis(10);
/// Half of the span in which the least round trip is looked for.
const LEAST_EPOCH: Duration = Duration::from_secs(5);
/// Number of last round trips of which the shortest is compared: a single long one may be due to a busy
/// processor.
const RECENT_TRIPS: usize = 3;
/// Time by which a round trip has to exceed the least one before low work is limited further, in case the
/// least one was a stroke of luck.
const SHORT_TRIP: Duration = Duration::from_micros(50);
/// Length of a piece of low work while it is limited, as the seconds that the piece takes at the network's
/// rate.
const CHUNK_SPAN_S: f64 = 100e-6;

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To this node.
    In,
    /// From this node.
    Out,
}

/// Facts about the work of high class with one peer, and about the network.
#[derive(Debug, Default)]
pub(super) struct Policy {
    used: [Meter; 2],
    pub(super) rate: Rate,
    /// Time at which high work last did something.
    last: Option<Instant>,
    trips: Trips,
}

impl Policy {
    /// Notes that high work does something.
    pub(super) fn high(&mut self, now: Instant) {
        if !self.is_busy(now) {
            // Round trips of an earlier busy time say nothing about this one.
            self.trips.share = 1.0;
        }
        self.last = Some(now);
    }

    /// Notes that high work has moved bytes.
    pub(super) fn moved(&mut self, way: Way, bytes: u64, now: Instant) {
        self.used[way as usize].add(bytes, now);
    }

    /// Notes how long a short message of high class took there and back.
    pub(super) fn round_trip(&mut self, took: Duration, now: Instant) {
        self.trips.note(took, now);
    }

    /// Whether high work was seen lately.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) < IDLE_AFTER)
    }

    /// Number of bytes a second that low work may move; `None` for no limit.
    pub(super) fn limit(&self, way: Way, now: Instant) -> Option<f64> {
        let rate = self.rate.best().filter(|_| self.is_busy(now))?;
        let high = self.used[way as usize].per_second(now);
        let left = if high > NEGLIGIBLE_SHARE * rate { (rate - high) * LEFT_SHARE } else { rate };
        Some((left * self.trips.share).max(LEAST_SHARE * rate))
    }

    /// Number of bytes that low work moves at a time; `None` for no limit.
    pub(super) fn chunk(&self, now: Instant) -> Option<f64> {
        Some(self.rate.best().filter(|_| self.is_busy(now))? * CHUNK_SPAN_S)
    }
}

/// Counts the bytes that were moved in the last [`METER_SPAN`].
#[derive(Debug, Default)]
struct Meter {
    parts: [u64; METER_PARTS],
    /// Time at which the first of all parts began.
    first: Option<Instant>,
    /// Time at which the present part began, and its place.
    began: Option<Instant>,
    at: usize,
}

impl Meter {
    fn add(&mut self, bytes: u64, now: Instant) {
        let part = METER_SPAN / METER_PARTS as u32;
        self.first.get_or_insert(now);
        let began = *self.began.get_or_insert(now);
        let passed = now.saturating_duration_since(began).as_nanos() / part.as_nanos();
        for _ in 0..passed.min(METER_PARTS as u128) {
            self.at = (self.at + 1) % METER_PARTS;
            self.parts[self.at] = 0;
        }
        self.began = Some(match u32::try_from(passed) {
            Ok(passed) => began + part * passed,
            Err(_) => now,
        });
        self.parts[self.at] += bytes;
    }

    fn per_second(&self, now: Instant) -> f64 {
        let part = METER_SPAN / METER_PARTS as u32;
        let (Some(first), Some(began)) = (self.first, self.began) else { return 0.0 };
        let since = now.saturating_duration_since(began).as_nanos();
        let passed = (since / part.as_nanos()) as usize;
        // The oldest parts are over when newer ones have begun.
        let counted = METER_PARTS.saturating_sub(passed);
        let bytes: u64 =
            (0..counted).map(|back| self.parts[(self.at + METER_PARTS - back) % METER_PARTS]).sum();
        // The present part is not over yet, and the first ones may not have been.
        let span = METER_SPAN - part + Duration::from_nanos((since % part.as_nanos()) as u64);
        let span = span.min(now.saturating_duration_since(first).max(part));
        bytes as f64 / span.as_secs_f64()
    }
}

/// Round trips of high work, and the share of the rate that they leave to low work.
#[derive(Debug)]
struct Trips {
    /// The least round trip of the present span, and of the span before.
    least: [Option<Duration>; 2],
    epoch: Option<Instant>,
    recent: [Duration; RECENT_TRIPS],
    seen: usize,
    share: f64,
    changed: Option<Instant>,
}

impl Default for Trips {
    fn default() -> Self {
        let recent = [Duration::ZERO; RECENT_TRIPS];
        Self { least: [None; 2], epoch: None, recent, seen: 0, share: 1.0, changed: None }
    }
}

impl Trips {
    fn note(&mut self, took: Duration, now: Instant) {
        let epoch = *self.epoch.get_or_insert(now);
        if now.saturating_duration_since(epoch) >= LEAST_EPOCH {
            self.least = [None, self.least[0]];
            self.epoch = Some(now);
        }
        self.least[0] = Some(self.least[0].map_or(took, |least| least.min(took)));
        self.recent[self.seen % RECENT_TRIPS] = took;
        self.seen += 1;
        if self.changed.is_some_and(|at| now.saturating_duration_since(at) < PACE) {
            return;
        }
        self.changed = Some(now);
        self.share =
            if self.has_grown() { self.share * KEPT_SHARE } else { (self.share + REGAINED_SHARE).min(1.0) };
        self.share = self.share.max(LEAST_SHARE);
    }

    fn has_grown(&self) -> bool {
        let least = self.least.iter().flatten().min().copied().unwrap_or_default();
        let recent = self.recent.iter().min().copied().unwrap_or_default();
        self.seen >= RECENT_TRIPS && recent > least.mul_f64(GROWN_FACTOR).max(least + SHORT_TRIP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 125e6;
    const MS: Duration = Duration::from_millis(1);

    /// Makes a policy that knows the rate.
    fn policy(now: Instant) -> Policy {
        let mut policy = Policy::default();
        policy.rate.told(RATE, now);
        policy
    }

    /// Has high work use a share of the rate for `ms` milliseconds.
    fn busy(policy: &mut Policy, share: f64, from: Instant, ms: u32) -> Instant {
        for at in 0..ms {
            policy.high(from + MS * at);
            policy.moved(Way::In, (share * RATE / 1000.0) as u64, from + MS * at);
        }
        from + MS * ms
    }

    #[test]
    fn low_work_has_what_high_work_leaves() {
        let begin = Instant::now();
        let mut policy = policy(begin);
        assert_eq!(policy.limit(Way::In, begin), None);
        let now = busy(&mut policy, 0.4, begin, 100);
        let limit = policy.limit(Way::In, now - MS).expect("high work is busy");
        assert!((limit / RATE - 0.6 * 0.97).abs() < 0.02, "{}", limit / RATE);
        // The other direction is free.
        assert_eq!(policy.limit(Way::Out, now - MS), Some(RATE));
        assert_eq!(policy.chunk(now - MS), Some(12_500.0));
    }

    #[test]
    fn low_work_always_has_a_little() {
        let begin = Instant::now();
        let mut policy = policy(begin);
        let now = busy(&mut policy, 1.1, begin, 100);
        assert_eq!(policy.limit(Way::In, now - MS), Some(0.02 * RATE));
    }

    #[test]
    fn there_is_no_limit_when_high_work_is_idle_or_the_rate_is_not_known() {
        let begin = Instant::now();
        let mut policy = policy(begin);
        let last = busy(&mut policy, 0.9, begin, 60) - MS;
        assert!(policy.limit(Way::In, last + MS * 19).is_some());
        assert_eq!(policy.limit(Way::In, last + MS * 20), None);
        let mut unknown = Policy::default();
        unknown.high(begin);
        assert_eq!((unknown.limit(Way::In, begin), unknown.chunk(begin)), (None, None));
    }

    #[test]
    fn use_is_forgotten_after_its_span() {
        let begin = Instant::now();
        let mut policy = policy(begin);
        let last = busy(&mut policy, 0.9, begin, 60);
        policy.high(last + MS * 60);
        assert_eq!(policy.limit(Way::In, last + MS * 60), Some(RATE));
    }

    #[test]
    fn low_work_yields_when_round_trips_grow_and_comes_back() {
        let begin = Instant::now();
        let mut policy = policy(begin);
        let mut now = begin;
        let mut share = |policy: &mut Policy, us: u64, times: u32| {
            for _ in 0..times {
                now += PACE;
                policy.high(now);
                policy.round_trip(Duration::from_micros(us), now);
            }
            policy.limit(Way::In, now).expect("high work is busy") / RATE
        };
        assert!((share(&mut policy, 100, 10) - 1.0).abs() < 1e-9);
        // A single long round trip is ignored.
        assert!((share(&mut policy, 900, 1) - 1.0).abs() < 1e-9);
        assert!((share(&mut policy, 100, 3) - 1.0).abs() < 1e-9);
        let cut = share(&mut policy, 200, 4);
        assert!(
            (cut - 0.7 * 0.7).abs() < 1e-9,
            "the third was the first of which the least had grown: {cut}"
        );
        assert!((share(&mut policy, 200, 100) - LEAST_SHARE).abs() < 1e-9);
        assert!((share(&mut policy, 100, 10) - (LEAST_SHARE + 0.5)).abs() < 1e-9);
        assert!((share(&mut policy, 100, 100) - 1.0).abs() < 1e-9);
        // After a while the longer trips are the least of their span.
        share(&mut policy, 200, 1001);
        assert!((share(&mut policy, 200, 100) - 1.0).abs() < 1e-9);
    }
}
