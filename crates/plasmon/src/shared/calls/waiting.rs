//! Estimate of how long a thread spins for the result of a call before it yields its core.
//!
//! Owns the counts of one client's waits, and for each kind of call the time that such calls lately took. Any
//! thread. Invariant: counts are exact. Times are estimates, because concurrent updates may be lost.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Longest time for which a thread spins: about the cost of sleeping and waking.
const LONGEST_LOOK: Duration = Duration::from_micros(20);
/// Weight of earlier times in the average, as a power of two: 7 to 1 against the last time.
const WEIGHT_SHIFT: u32 = 3;

/// Number of a client's waits for results of calls, by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitStats {
    /// Number of waits whose result was there at once, or came while the thread spun.
    pub looked: u64,
    /// Number of waits whose result came after the thread had yielded its core to others.
    pub yielded: u64,
    /// Number of waits in which the thread slept.
    pub slept: u64,
}

/// Kind of a call. Calls of one kind take about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallKind {
    /// Number of the operation.
    pub(super) opcode: u8,
    /// Whether another node carries out the operation.
    pub(super) far: bool,
}

impl CallKind {
    fn index(self) -> usize {
        usize::from(self.far) << 8 | usize::from(self.opcode)
    }
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Looked,
    Yielded,
    Slept,
}

/// Waits of a client.
pub(super) struct Waits {
    counts: [AtomicU64; 3],
    /// Number of nanoseconds that calls of each kind lately took. 0 before the first call.
    lately: [AtomicU32; 512],
}

impl Default for Waits {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; 3], lately: [const { AtomicU32::new(0) }; 512] }
    }
}

impl Waits {
    /// Returns the time to spin for the result of a call of this kind: 0 if such results come later than the
    /// longest time to spin.
    pub(super) fn look(&self, kind: CallKind) -> Duration {
        let lately = Duration::from_nanos(self.lately[kind.index()].load(Relaxed).into());
        match lately {
            Duration::ZERO => LONGEST_LOOK,
            lately if lately > LONGEST_LOOK => Duration::ZERO,
            lately => (2 * lately).min(LONGEST_LOOK),
        }
    }

    /// Notes how a wait ended, and how long its call took.
    pub(super) fn note(&self, kind: CallKind, wait: Wait, took: Duration) {
        self.counts[wait as usize].fetch_add(1, Relaxed);
        // A long time is capped, so that after long calls a few short ones make threads spin again.
        let took = took.min(2 * LONGEST_LOOK).as_nanos() as u32;
        let lately = &self.lately[kind.index()];
        let average = match lately.load(Relaxed) {
            0 => took,
            before => before - (before >> WEIGHT_SHIFT) + (took >> WEIGHT_SHIFT),
        };
        lately.store(average.max(1), Relaxed);
    }

    pub(super) fn stats(&self) -> WaitStats {
        let [looked, yielded, slept] = [0, 1, 2].map(|at| self.counts[at].load(Relaxed));
        WaitStats { looked, yielded, slept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_looks_for_what_comes_soon() {
        let waits = Waits::default();
        let near = CallKind { opcode: 255, far: false };
        let take = |micros, times| {
            (0..times).for_each(|_| waits.note(near, Wait::Looked, Duration::from_micros(micros)));
        };
        assert_eq!(waits.look(near), LONGEST_LOOK, "nothing is known");
        take(3, 1);
        assert_eq!(waits.look(near), Duration::from_micros(6));
        take(15, 30);
        assert_eq!(waits.look(near), LONGEST_LOOK);
        take(1_000_000, 20);
        assert_eq!(waits.look(near), Duration::ZERO, "it would come later");
        take(3, 10);
        assert_ne!(waits.look(near), Duration::ZERO, "it comes soon again");
        take(1_000_000, 20);
        for other in [CallKind { far: true, ..near }, CallKind { opcode: 0, ..near }] {
            assert_eq!(waits.look(other), LONGEST_LOOK, "another kind of call");
        }
        assert_eq!(waits.stats(), WaitStats { looked: 81, yielded: 0, slept: 0 });
    }
}
