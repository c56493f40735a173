//! Counts of gets and puts, for reports: those that clients make by themselves, and those that the engine
//! serves.
//!
//! Owns the sums. Engine thread only. A client can write any counts. So what is added for one client never
//! shrinks, grows by no more than a client can do in the time, and concerns the node's sums only.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use plasmon::shared::{Counts, TIME_BOUNDS_NS};
use plasmon::status::{CallsStatus, TimedGets};

/// Maximum number of gets, and of nanoseconds of timed gets, that count for one client in a second: more than
/// all threads of a large host can make.
const MAX_A_SECOND: u64 = 4_000_000_000;

/// The counts of this node.
#[derive(Default)]
pub(crate) struct Counting {
    /// The gets that all clients made by themselves, those of former clients included.
    by_clients: RefCell<Counts>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    puts: Cell<u64>,
    put_bytes: Cell<u64>,
}

/// Counts of a client as they were seen last, and when that was.
pub(super) struct Seen {
    counts: Counts,
    at: Instant,
}

impl Seen {
    pub(super) fn since(at: Instant) -> Self {
        Self { counts: Counts::default(), at }
    }
}

impl Counting {
    /// Counts objects that the engine was asked for: those that were in memory here, and the others.
    pub(super) fn count_gets(&self, hits: usize, misses: usize) {
        self.hits.set(self.hits.get() + hits as u64);
        self.misses.set(self.misses.get() + misses as u64);
    }

    /// Counts an object that a client has made.
    pub(super) fn count_put(&self, bytes: u64) {
        self.puts.set(self.puts.get() + 1);
        self.put_bytes.set(self.put_bytes.get().saturating_add(bytes));
    }

    /// Adds what a client has counted since it was last looked at.
    pub(super) fn add(&self, seen: &mut Seen, counts: Counts, now: Instant) {
        let most = most_within(now.saturating_duration_since(seen.at));
        seen.at = now;
        let mut sums = self.by_clients.borrow_mut();
        let grow = |sum: &mut u64, before: &mut u64, count: u64| {
            *sum = sum.saturating_add(count.saturating_sub(*before).min(most));
            *before = count.max(*before);
        };
        grow(&mut sums.gets, &mut seen.counts.gets, counts.gets);
        grow(&mut sums.time_ns, &mut seen.counts.time_ns, counts.time_ns);
        let sums = sums.timed.iter_mut();
        for ((sum, before), count) in sums.zip(&mut seen.counts.timed).zip(counts.timed) {
            grow(sum, before, count);
        }
    }

    /// The sums for a report.
    pub(super) fn status(&self) -> CallsStatus {
        let sums = self.by_clients.borrow();
        let bounds = TIME_BOUNDS_NS.iter().copied().chain([u64::MAX]);
        CallsStatus {
            get_hits: sums.gets.saturating_add(self.hits.get()),
            get_misses: self.misses.get(),
            puts: self.puts.get(),
            put_bytes: self.put_bytes.get(),
            timed_gets: bounds.zip(sums.timed).map(|(most_ns, gets)| TimedGets { most_ns, gets }).collect(),
            timed_gets_ns: sums.time_ns,
        }
    }
}

/// Maximum that one client can have counted within a time. A second is added, because looks may follow each
/// other closely.
fn most_within(time: Duration) -> u64 {
    time.as_secs().saturating_add(2).saturating_mul(MAX_A_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_scribbles_spoils_what_it_could_count_anyway() {
        let (counting, now) = (Counting::default(), Instant::now());
        let counts = |gets| Counts { gets, ..Counts::default() };
        let (mut honest, mut wild) = (Seen::since(now), Seen::since(now));
        counting.add(&mut honest, counts(7), now);
        assert_eq!(counting.status().get_hits, 7);
        // Its sum neither overflows nor shrinks, and others are counted on.
        counting.add(&mut wild, counts(u64::MAX), now);
        let spoilt = counting.status().get_hits;
        assert!((7..=7 + 2 * MAX_A_SECOND).contains(&spoilt), "{spoilt}");
        for gets in [0, 5, u64::MAX] {
            counting.add(&mut wild, counts(gets), now);
        }
        counting.add(&mut honest, counts(9), now);
        assert_eq!(counting.status().get_hits, spoilt + 2);
    }

    #[test]
    fn requests_and_clients_are_added_up() {
        let (counting, now) = (Counting::default(), Instant::now());
        counting.count_gets(3, 2);
        counting.count_put(100);
        let mut timed = Counts { gets: 4, time_ns: 900, ..Counts::default() };
        timed.timed[2] = 1;
        counting.add(&mut Seen::since(now), timed, now);
        let status = counting.status();
        assert_eq!((status.get_hits, status.get_misses, status.puts, status.put_bytes), (7, 2, 1, 100));
        assert_eq!(status.timed_gets[2], TimedGets { most_ns: 512, gets: 1 });
        assert_eq!(status.timed_gets_ns, 900);
    }
}
