//! The free runs of one zone: the stretches of its segments that no extent covers.
//!
//! Plain data of the arena, engine thread only. Invariants: runs do not overlap or touch (they are merged,
//! across segment bounds too), none is empty, and both indexes hold the same runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Free runs by place and by length. Offsets and lengths are bytes of the arena.
#[derive(Debug, Default)]
pub(super) struct FreeRuns {
    /// The ends of the runs by their starts.
    by_start: BTreeMap<u64, u64>,
    /// The runs as (length, start).
    by_len: BTreeSet<(u64, u64)>,
    total: u64,
}

impl FreeRuns {
    /// Number of bytes of all runs.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Number of bytes of the longest run.
    pub(super) fn largest(&self) -> u64 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    /// The run in which a byte lies.
    pub(super) fn covering(&self, at: u64) -> Option<Range<u64>> {
        let (start, end) = self.by_start.range(..=at).next_back()?;
        (at < *end).then_some(*start..*end)
    }

    /// The start of the shortest run that holds `len` bytes; of several, the first one's.
    pub(super) fn best_fit(&self, len: u64) -> Option<u64> {
        self.by_len.range((len, 0)..).next().map(|(_, start)| *start)
    }

    /// The runs, the longest first.
    pub(super) fn longest_first(&self) -> impl Iterator<Item = Range<u64>> {
        self.by_len.iter().rev().map(|(len, start)| *start..start + len)
    }

    /// Adds a stretch that was not free, and merges it with its neighbours.
    pub(super) fn insert(&mut self, stretch: Range<u64>) {
        self.total += stretch.end - stretch.start;
        let Range { mut start, mut end } = stretch;
        if let Some(before) = start.checked_sub(1).and_then(|at| self.covering(at)) {
            self.unlink(&before);
            start = before.start;
        }
        if let Some(after) = self.covering(end) {
            self.unlink(&after);
            end = after.end;
        }
        self.link(start..end);
    }

    /// Removes a stretch; `false`, without a change, unless all of it is free.
    pub(super) fn remove(&mut self, stretch: Range<u64>) -> bool {
        let Some(run) = self.covering(stretch.start).filter(|run| stretch.end <= run.end) else {
            return false;
        };
        self.unlink(&run);
        self.link(run.start..stretch.start);
        self.link(stretch.end..run.end);
        self.total -= stretch.end - stretch.start;
        true
    }

    /// Removes and returns all runs, or parts of runs, within bounds.
    pub(super) fn take_within(&mut self, bounds: Range<u64>) -> Vec<Range<u64>> {
        let first = self.covering(bounds.start).map_or(bounds.start, |run| run.start);
        let runs = self.by_start.range(first..bounds.end);
        let within = runs.map(|(start, end)| *start.max(&bounds.start)..*end.min(&bounds.end));
        let within: Vec<_> = within.filter(|run| !run.is_empty()).collect();
        for run in &within {
            self.remove(run.clone());
        }
        within
    }

    fn link(&mut self, run: Range<u64>) {
        if !run.is_empty() {
            self.by_start.insert(run.start, run.end);
            self.by_len.insert((run.end - run.start, run.start));
        }
    }

    fn unlink(&mut self, run: &Range<u64>) {
        self.by_start.remove(&run.start);
        self.by_len.remove(&(run.end - run.start, run.start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge() {
        let mut runs = FreeRuns::default();
        runs.insert(0..4);
        runs.insert(8..12);
        assert_eq!((runs.largest(), runs.total()), (4, 8));
        runs.insert(4..8);
        assert_eq!((runs.largest(), runs.total()), (12, 12));
        assert_eq!(runs.covering(11), Some(0..12));
        assert_eq!(runs.covering(12), None);
    }

    #[test]
    fn the_shortest_sufficient_run_is_taken() {
        let mut runs = FreeRuns::default();
        runs.insert(0..100);
        runs.insert(200..230);
        runs.insert(300..330);
        assert_eq!(runs.best_fit(25), Some(200));
        assert_eq!(runs.best_fit(31), Some(0));
        assert_eq!(runs.best_fit(101), None);
    }

    #[test]
    fn only_free_stretches_can_be_removed() {
        let mut runs = FreeRuns::default();
        runs.insert(0..100);
        assert!(runs.remove(40..60));
        assert!(!runs.remove(30..50) && !runs.remove(40..60) && !runs.remove(90..101));
        assert_eq!((runs.covering(10), runs.covering(60)), (Some(0..40), Some(60..100)));
        assert_eq!(runs.total(), 80);
        runs.insert(40..60);
        assert_eq!(runs.covering(0), Some(0..100));
    }
}
