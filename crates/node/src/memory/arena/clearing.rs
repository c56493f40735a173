//! Clearings: windows of segments that would make room if what lies in them went elsewhere.
//!
//! The arena proposes windows and withholds what is free in one while the engine moves objects out of it;
//! it knows sizes, not objects. Invariant: while a clearing is under way, nothing is allocated in its
//! segments, and what becomes free there is in `Withheld::runs`, or in slabs that are listed nowhere.

use std::ops::Range;

use super::{Arena, Zone};

/// Most windows that are proposed.
const PROPOSED: usize = 64;

/// A window of adjacent segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clearing {
    /// Its segments.
    pub segments: Range<u32>,
    /// Bytes that lie there, in whole pages.
    pub used: u64,
}

/// What is free in the window that is being cleared.
#[derive(Debug)]
pub(super) struct Withheld {
    segments: Range<u32>,
    bounds: Range<u64>,
    runs: Vec<(Zone, Range<u64>)>,
}

impl Withheld {
    pub(super) fn holds(&self, segment: usize) -> bool {
        self.segments.contains(&(segment as u32))
    }

    /// Takes what became free inside the window, and returns what lies outside.
    pub(super) fn keep(&mut self, zone: Zone, pages: Range<u64>) -> [Range<u64>; 2] {
        let (start, end) = (pages.start.max(self.bounds.start), pages.end.min(self.bounds.end));
        if start >= end {
            return [pages, 0..0];
        }
        self.runs.push((zone, start..end));
        [pages.start..start, end..pages.end]
    }
}

impl Arena {
    /// Windows that could hold `len` bytes as a whole, cheapest to clear first; none where that much is
    /// not free in all, or what would have to be moved has nowhere to go.
    pub fn clearings(&mut self, len: u64) -> Vec<Clearing> {
        self.drain_returned();
        let size = self.segment_size();
        let count = len.div_ceil(size).max(1) as usize;
        let used: Vec<u64> = self.segments.iter().map(|segment| segment.used).collect();
        let free = self.capacity() - used.iter().sum::<u64>();
        if len > free || count > used.len() {
            return Vec::new();
        }
        let mut clearings: Vec<_> = used
            .windows(count)
            .enumerate()
            .map(|(first, window)| Clearing {
                segments: first as u32..(first + count) as u32,
                used: window.iter().sum(),
            })
            // What is moved out must find room among what is free outside.
            .filter(|one| one.used > 0 && one.used <= free - (count as u64 * size - one.used))
            .collect();
        clearings.sort_by_key(|one| one.used);
        clearings.truncate(PROPOSED);
        clearings
    }

    /// From now on nothing is allocated in the window. One at a time.
    pub fn begin_clearing(&mut self, clearing: &Clearing) {
        self.drain_returned();
        let size = self.segment_size();
        let bounds = u64::from(clearing.segments.start) * size..u64::from(clearing.segments.end) * size;
        let mut runs = Vec::new();
        for (zone, state) in &mut self.zones {
            state.slabs.withhold(bounds.clone());
            runs.extend(state.runs.take_within(bounds.clone()).into_iter().map(|run| (*zone, run)));
        }
        self.withheld = Some(Withheld { segments: clearing.segments.clone(), bounds, runs });
    }

    /// What is free in the window can be had again.
    pub fn end_clearing(&mut self) {
        self.drain_returned();
        let Some(withheld) = self.withheld.take() else { return };
        for (zone, run) in withheld.runs {
            if let Some(state) = self.zones.get_mut(&zone) {
                state.runs.insert(run);
            }
        }
        self.zones.values_mut().for_each(|state| state.slabs.relist());
    }
}
