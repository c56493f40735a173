//! Patchwork: one extent in several places of the arena, for lengths that have no room in one.
//!
//! Owns no state; it changes the arena. Engine thread only. Invariants: the places are of whole pages, which
//! a mapping can have as a whole. They are taken all at once or not at all. The caller bounds their number:
//! each is a mapping of this process and of those that map the extent, and the kernel allows a process some
//! ten thousands of them (vm.max_map_count).

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use super::Arena;
use crate::memory::error::{AllocError, SegmentError};
use crate::memory::extent::{Extent, Home, Patches};
use crate::memory::mapping::Reservation;
use crate::memory::zone::Zone;

/// Maximum number of free stretches among which places are chosen: the longest ones.
const MOST_LOOKED_AT: usize = 4096;

impl Arena {
    /// Takes `len` bytes for a zone in at most `most` places, the longest that there are, and maps them side
    /// by side. As with [`Arena::allocate`], this may assign or recycle segments.
    ///
    /// # Errors
    /// The errors of [`Arena::allocate`]. Nothing is taken then.
    pub fn allocate_in_places(&mut self, zone: Zone, len: u64, most: usize) -> Result<Extent, AllocError> {
        let granule = self.pages_for(zone.writer).granule();
        let Some(taken) = len.checked_next_multiple_of(granule).filter(|taken| *taken > 0) else {
            return Err(AllocError::TooLarge { len, capacity: self.capacity() });
        };
        self.ensure_free(taken)?;
        let (longest, total) =
            self.with_view(Some(zone), |view| (view.longest(MOST_LOOKED_AT, granule), view.total()));
        let largest = longest.first().map_or(0, |first| first.end - first.start);
        let full = AllocError::Full { len, free_total: total, largest_run: largest };
        let places = choose(&longest, taken, most).ok_or(full)?;
        // Extents that were made are freed if a later one, or the mapping, fails.
        let mut extents = Vec::with_capacity(places.len());
        for place in places {
            self.claim_all(zone, place.clone())?;
            self.take_pages(zone, place.clone());
            extents.push(self.count(zone, place.clone(), place.end - place.start));
        }
        let range = self.map_side_by_side(&extents, taken)?;
        let home = Home {
            range: Arc::new(range),
            segment_size: self.segment_size(),
            returned: RefCell::default(),
            trimmed: Cell::default(),
            patches: Some(Patches::new(extents)),
        };
        Ok(Rc::new(home).extent(0, len))
    }

    /// Maps extents side by side in addresses of their own. The pages are on the memory nodes on which they
    /// are in the arena.
    fn map_side_by_side(&self, extents: &[Extent], len: u64) -> Result<Reservation, SegmentError> {
        let mut at = 0;
        let failed = |segment| move |source| SegmentError { segment, action: "map a part of", source };
        let first = extents.first().and_then(|extent| extent.segments().next()).unwrap_or(0);
        // The arena has room for it, so its length fits.
        let range = Reservation::new(len as usize, None).map_err(failed(first))?;
        for piece in extents.iter().flat_map(|extent| extent.pieces()) {
            // A segment with an extent in it has its file.
            if let Some(file) = &self.segments[piece.segment as usize].file {
                let file = file.read_write().as_fd();
                range.map_part(at, piece.len as usize, file, piece.offset).map_err(failed(piece.segment))?;
            }
            at += piece.len as usize;
        }
        Ok(range)
    }
}

/// Chooses stretches for `bytes` bytes, the longest first: as few as possible, and as the last one the
/// shortest that holds the rest. `None` if `most` stretches are too short.
fn choose(longest: &[Range<u64>], bytes: u64, most: usize) -> Option<Vec<Range<u64>>> {
    let mut left = bytes;
    let mut chosen = Vec::new();
    for (at, stretch) in longest.iter().enumerate().take(most) {
        let len = stretch.end - stretch.start;
        if len < left {
            chosen.push(stretch.clone());
            left -= len;
            continue;
        }
        let fits = |other: &&Range<u64>| other.end - other.start >= left;
        let last = longest[at..].iter().rev().find(fits).unwrap_or(stretch);
        chosen.push(last.start..last.start + left);
        return Some(chosen);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PAGE_BYTES as PAGE;
    use crate::memory::config::{ArenaConfig, HugePages};

    #[test]
    fn parts_have_the_pieces_of_their_bytes() {
        let config = ArenaConfig {
            capacity: 32 * PAGE,
            segment_size: Some(16 * PAGE),
            huge_pages: HugePages::Never,
            prefault: false,
            near: None,
            huge_allowance: None,
        };
        let mut arena = Arena::new(&config).expect("there is memory for a small arena");
        let pages: Vec<_> = (0..32).map(|_| arena.allocate(Zone::ENGINE, PAGE).expect("a page")).collect();
        let _kept: Vec<_> = pages.into_iter().step_by(2).collect();
        let whole = arena.allocate_in_places(Zone::ENGINE, 5 * PAGE, 9).expect("there is room");
        let pieces: Vec<_> = whole.pieces().collect();
        assert_eq!(pieces.len(), 5);
        for (at, len) in [(0, 1), (PAGE - 1, 2), (PAGE, PAGE), (PAGE + 1, 3 * PAGE), (5 * PAGE - 1, 1)] {
            let part: Vec<_> = whole.part(at, len).expect("it lies within").pieces().collect();
            assert_eq!(part.iter().map(|piece| piece.len).sum::<u64>(), len);
            let first = &pieces[(at / PAGE) as usize];
            assert_eq!((part[0].segment, part[0].offset), (first.segment, first.offset + at % PAGE));
            assert_eq!(part.len() as u64, (at + len - 1) / PAGE - at / PAGE + 1);
        }
        let none = whole.part(5 * PAGE, 0).expect("the end").pieces().map(|piece| piece.len);
        assert_eq!(none.collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn few_stretches_are_chosen() {
        let longest = [0..9, 10..15, 20..23, 30..32];
        let chosen = |bytes| choose(&longest, bytes, 4);
        let starts = |bytes| -> Vec<u64> { chosen(bytes).into_iter().flatten().map(|it| it.start).collect() };
        assert_eq!((starts(2), starts(9)), (vec![30], vec![0]));
        assert_eq!(chosen(12), Some(vec![0..9, 20..23]));
        assert_eq!(chosen(19), Some(vec![0..9, 10..15, 20..23, 30..32]));
        assert_eq!([chosen(20), choose(&[], 1, 9), choose(&longest, 19, 3)], [None, None, None]);
        assert_eq!(choose(&longest, 12, 2), Some(vec![0..9, 20..23]));
    }
}
