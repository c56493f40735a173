//! Clearings: windows of segments that would make room if their extents went elsewhere.
//!
//! Engine thread only. The arena proposes windows, and withholds the free bytes of one window while the
//! engine moves objects out of it; the arena knows sizes, not objects. Invariant: while a clearing is under
//! way, nothing is allocated in its segments, and bytes that become free there are in `Withheld::runs`, or in
//! slabs that are listed nowhere.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Arena, Zone};
use crate::memory::Run;
use crate::memory::slabs::footprint;
use crate::memory::zone::{Domain, Writer};

/// Maximum number of windows that are proposed.
const MAX_WINDOWS_PROPOSED: usize = 64;

/// A window of adjacent segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clearing {
    /// The segments of the window.
    pub segments: Range<u32>,
    /// Number of bytes to move: those that extents take in the window.
    pub used: u64,
}

/// The free bytes of the window that is being cleared.
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

    /// Takes a stretch that became free inside the window; returns the parts outside the window.
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
    /// Returns windows that could hold `len` bytes as a whole, for any zone, cheapest to clear first. There
    /// are none if fewer bytes are free in all, or if the objects to be moved certainly have nowhere to go.
    pub fn clearings(&mut self, len: u64) -> Vec<Clearing> {
        self.drain_returned();
        let count = len.div_ceil(self.segment_size()).max(1) as usize;
        let live: Vec<u64> = self.segments.iter().map(|segment| segment.live).collect();
        let free = self.segment_size() * live.len() as u64 - live.iter().sum::<u64>();
        // If the limit is reached, moving objects is of no use.
        if len > free.min(self.limit.saturating_sub(self.bytes)) || count > live.len() {
            return Vec::new();
        }
        let clearing = |(first, window): (usize, &[u64])| Clearing {
            segments: first as u32..(first + count) as u32,
            used: window.iter().sum(),
        };
        let mut clearings: Vec<_> = live.windows(count).enumerate().map(clearing).collect();
        clearings.retain(|one| one.used > 0 && self.could_move(&one.segments));
        clearings.sort_by_key(|one| one.used);
        clearings.truncate(MAX_WINDOWS_PROPOSED);
        clearings
    }

    /// Whether there is room outside a window for its extents. Extents in a zone that a user writes go to
    /// that zone again, or else to the engine's zone of its domain, or to empty segments.
    fn could_move(&self, window: &Range<u32>) -> bool {
        let size = self.segment_size();
        let mut empty = 0;
        // For each zone, the number of bytes that must move, and the number that its segments outside could
        // take.
        let mut zones: BTreeMap<Zone, (u64, u64)> = BTreeMap::new();
        for (index, segment) in self.segments.iter().enumerate() {
            let inside = window.contains(&(index as u32));
            match segment.zone {
                _ if segment.used == 0 => empty += u64::from(!inside),
                Some(zone) if inside => zones.entry(zone).or_default().0 += segment.live,
                Some(zone) => zones.entry(zone).or_default().1 += size - segment.live,
                None => {}
            }
        }
        let mut needs: BTreeMap<Domain, (u64, u64)> = BTreeMap::new();
        for (Zone { domain, writer }, (moved, free)) in zones {
            let need = needs.entry(domain).or_default();
            match writer {
                Writer::Engine => (need.0, need.1) = (need.0 + moved, free),
                Writer::Uid(_) => need.0 += moved.saturating_sub(free),
            }
        }
        needs.values().map(|(moved, free)| moved.saturating_sub(*free).div_ceil(size)).sum::<u64>() <= empty
    }

    /// Number of bytes in use of each segment.
    pub(crate) fn live(&mut self) -> Vec<u64> {
        self.drain_returned();
        self.segments.iter().map(|segment| segment.live).collect()
    }

    /// Calls `each` with every segment in which an extent lies, and the number of its bytes that the extent
    /// takes.
    pub(crate) fn taken_by(&self, run: &Run, mut each: impl FnMut(u32, u64)) {
        let size = self.segment_size();
        for place in run.places() {
            let end = place.start + footprint(place.end - place.start);
            for segment in place.start / size..end.div_ceil(size) {
                let part = end.min((segment + 1) * size) - place.start.max(segment * size);
                each(segment as u32, part);
            }
        }
    }

    /// Begins a clearing, of which there is one at a time. Nothing is allocated in the window from now on.
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

    /// Ends the clearing: the free bytes of the window can be allocated again.
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
