//! How long a thread looks for the result of a call before it lets others have its core.
//!
//! Owns the counts of one client's waits, and for each kind of call how long it lately took. Any thread.
//! All of it is a guess: counts are exact, times may miss one another's updates.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Longest time that a thread looks: about what sleeping and waking cost.
const LONGEST_LOOK: Duration = Duration::from_micros(20);
/// Weight of the times before the last one in the average, as a power of two: 7 to 1.
const WEIGHT_SHIFT: u32 = 3;

/// Number of a client's waits for results of calls, by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitStats {
    /// Waits whose result was there at once, or while the thread looked.
    pub looked: u64,
    /// Waits whose result came after the thread had yielded its core to others.
    pub yielded: u64,
    /// Waits that ended with a sleep.
    pub slept: u64,
}

/// Kind of a call: calls of one kind take about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallKind {
    /// Number of the operation.
    pub(super) opcode: u8,
    /// Whether another node carries it out.
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
    /// Nanoseconds that calls of each kind lately took; 0 before the first.
    lately: [AtomicU32; 512],
}

impl Default for Waits {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; 3], lately: [const { AtomicU32::new(0) }; 512] }
    }
}

impl Waits {
    /// How long to look for the result of such a call. Not at all if it would come later than that.
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
        // A call that took long says no more than that looking was in vain. So a few short ones count again.
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
