//! Placement of runs: which segments a zone takes when its own free runs are too short. It takes few
//! segments, and none from another zone while unassigned ones are sufficient.
//!
//! Pure functions over a picture of the arena. A *span* is a maximal contiguous range that the zone could
//! have as a whole: segments that it may take, and the zone's own free runs that touch them at either end.

use std::cmp::Reverse;
use std::ops::Range;

use super::pages::FreeRuns;

/// The state of a segment for the zone that needs memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The segment is the zone's own, and wholly free.
    Own,
    /// The segment belongs to no zone yet.
    Unassigned,
    /// The segment is another zone's, and wholly free: it can be replaced by a fresh one.
    Recyclable,
    /// The segment is not free.
    Taken,
}

impl Standing {
    /// The price of taking the segment: one recycling costs more than any number of unassigned segments.
    fn price(self) -> u64 {
        match self {
            Standing::Own | Standing::Taken => 0,
            Standing::Unassigned => 1,
            Standing::Recyclable => 1 << 32,
        }
    }
}

/// The arena as one zone sees it.
pub(super) struct View<'a> {
    pub(super) segment_size: u64,
    pub(super) standings: &'a [Standing],
    /// The zone's own free runs.
    pub(super) runs: &'a FreeRuns,
}

impl View<'_> {
    /// All spans, in order.
    fn spans(&self) -> impl Iterator<Item = Range<u64>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = next + self.standings[next..].iter().position(|s| *s != Standing::Taken)?;
            let rest = &self.standings[first..];
            next = first + rest.iter().position(|s| *s == Standing::Taken).unwrap_or(rest.len());
            let (start, end) = (first as u64 * self.segment_size, next as u64 * self.segment_size);
            let before = start.checked_sub(1).and_then(|at| self.runs.covering(at));
            let after = self.runs.covering(end);
            Some(before.map_or(start, |run| run.start)..after.map_or(end, |run| run.end))
        })
    }

    /// The start of the cheapest place for `len` bytes (of whole pages); of several, the first one's.
    pub(super) fn place(&self, len: u64) -> Option<u64> {
        let mut prices = vec![0u64];
        prices.extend(self.standings.iter().scan(0u64, |sum, standing| {
            *sum += standing.price();
            Some(*sum)
        }));
        let price = |start: u64| {
            let first = (start / self.segment_size) as usize;
            let last = ((start + len - 1) / self.segment_size) as usize;
            prices[last + 1] - prices[first]
        };
        let candidates = self.spans().flat_map(|span| {
            let first = span.start.div_ceil(self.segment_size);
            let bounds = (first..=span.end / self.segment_size).map(|segment| segment * self.segment_size);
            let ends_there = bounds.clone().filter_map(|bound| bound.checked_sub(len));
            let at_its_ends = [Some(span.start), span.end.checked_sub(len)].into_iter().flatten();
            at_its_ends
                .chain(bounds)
                .chain(ends_there)
                .filter(move |start| *start >= span.start && start + len <= span.end)
        });
        candidates.min_by_key(|start| (price(*start), *start))
    }

    /// Number of bytes of the longest contiguous run that the zone could have.
    pub(super) fn largest(&self) -> u64 {
        self.spans().map(|span| span.end - span.start).max().unwrap_or(0).max(self.runs.largest())
    }

    /// Returns the longest stretches that the zone could have, each as a whole, at most `most` of them: the
    /// longest first. They begin and end at multiples of `granule`.
    pub(super) fn longest(&self, most: usize, granule: u64) -> Vec<Range<u64>> {
        let spans: Vec<_> = self.spans().collect();
        let is_apart =
            |run: &Range<u64>| !spans.iter().any(|span| span.start <= run.start && run.start < span.end);
        let runs = self.runs.longest_first().filter(is_apart).take(most);
        let whole =
            |stretch: Range<u64>| stretch.start.next_multiple_of(granule)..stretch.end / granule * granule;
        let mut longest: Vec<_> =
            spans.iter().cloned().chain(runs).map(whole).filter(|stretch| !stretch.is_empty()).collect();
        longest.sort_by_key(|stretch| (Reverse(stretch.end - stretch.start), stretch.start));
        longest.truncate(most);
        longest
    }

    /// Number of bytes that the zone could have, in pieces.
    pub(super) fn total(&self) -> u64 {
        let others = [Standing::Unassigned, Standing::Recyclable];
        let count = self.standings.iter().filter(|standing| others.contains(standing)).count();
        count as u64 * self.segment_size + self.runs.total()
    }
}

#[cfg(test)]
mod tests {
    use super::Standing::{Own, Recyclable, Taken, Unassigned};
    use super::*;

    fn view<'a>(standings: &'a [Standing], runs: &'a FreeRuns) -> View<'a> {
        View { segment_size: 100, standings, runs }
    }

    #[test]
    fn unassigned_segments_come_first() {
        let runs = FreeRuns::default();
        let standings = [Recyclable, Taken, Unassigned, Unassigned, Unassigned];
        let view = view(&standings, &runs);
        assert_eq!(view.place(50), Some(200));
        assert_eq!(view.place(250), Some(200));
        assert_eq!(view.place(301), None);
        assert_eq!((view.largest(), view.total()), (300, 400));
    }

    #[test]
    fn few_segments_are_taken_by_using_free_ends() {
        let mut runs = FreeRuns::default();
        runs.insert(60..100);
        runs.insert(300..330);
        // Segments 0 and 3 are the zone's, partly used; 4 is not.
        let standings = [Taken, Unassigned, Unassigned, Taken, Unassigned];
        let view = view(&standings, &runs);
        assert_eq!(view.place(140), Some(60), "one new segment, after the free end of the first");
        assert_eq!(view.place(130), Some(60));
        assert_eq!(view.place(270), Some(60));
        assert_eq!(view.place(271), None);
        assert_eq!((view.largest(), view.total()), (270, 370));
    }

    #[test]
    fn recycling_is_the_last_resort_and_as_little_as_possible() {
        let mut runs = FreeRuns::default();
        runs.insert(200..300);
        let standings = [Recyclable, Unassigned, Own, Recyclable, Recyclable];
        let view = view(&standings, &runs);
        assert_eq!(view.place(200), Some(100));
        assert_eq!(view.place(250), Some(0), "one recycled at either end: the first place");
        assert_eq!(view.place(500), Some(0));
        assert_eq!(view.largest(), 500);
    }

    #[test]
    fn the_longest_stretches_are_spans_and_runs_apart_from_them() {
        let mut runs = FreeRuns::default();
        // The first touches segment 1, the second lies in segment 3, which is the zone's and free.
        [60..100, 300..400, 504..523, 530..539].into_iter().for_each(|run| runs.insert(run));
        let standings = [Taken, Unassigned, Taken, Own, Taken, Taken];
        let view = view(&standings, &runs);
        assert_eq!(view.longest(9, 1), [60..200, 300..400, 504..523, 530..539]);
        assert_eq!(view.longest(3, 1), [60..200, 300..400, 504..523]);
        assert_eq!(view.longest(9, 8), [64..200, 304..400, 504..520]);
        assert!(view.longest(0, 1).is_empty());
    }

    #[test]
    fn own_free_runs_count_even_apart_from_any_span() {
        let mut runs = FreeRuns::default();
        runs.insert(10..90);
        let standings = [Taken, Taken];
        let view = view(&standings, &runs);
        assert_eq!((view.largest(), view.total(), view.place(1)), (80, 80, None));
    }
}
