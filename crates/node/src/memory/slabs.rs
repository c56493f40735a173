//! Slabs: small extents are equal slots of slabs, one size class for each slab.
//!
//! Plain data of the arena, engine thread only. Invariants: a slot is 64-byte aligned; a slab lies in one
//! segment; it is listed as partial while it has a free slot and is not withheld; a slab without any used
//! slot does not exist, and its pages are free again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::PAGE_BYTES;

/// Length of a slab in bytes, where that much is free and the segment reaches so far.
pub(super) const SLAB_BYTES: u64 = 64 << 10;

/// Lengths of slots in bytes: every cache line up to 512 bytes, then four steps for each doubling.
const CLASSES: [u64; 19] =
    [64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584];

/// A size class of small extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class(usize);

impl Class {
    /// The class for `len` bytes; `None` if whole pages serve them better.
    pub(super) fn of(len: u64) -> Option<Class> {
        let index = CLASSES.partition_point(|slot| *slot < len);
        (index < CLASSES.len()).then_some(Class(index))
    }

    /// Length of the class's slots in bytes.
    pub(super) fn slot(self) -> u64 {
        CLASSES[self.0]
    }
}

/// Number of bytes that an extent of `len` bytes takes from the arena.
pub(super) fn footprint(len: u64) -> u64 {
    Class::of(len).map_or_else(|| len.next_multiple_of(PAGE_BYTES), Class::slot)
}

/// The slabs of one zone.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    by_start: BTreeMap<u64, Slab>,
    /// The slabs with free slots, by class. The first is used first, so that later ones become empty.
    partial: [BTreeSet<u64>; CLASSES.len()],
    /// The segments whose slabs are listed nowhere: nothing is taken from them.
    withheld: Range<u64>,
}

#[derive(Debug)]
struct Slab {
    class: Class,
    end: u64,
    slots: u32,
    used: u32,
    /// One bit for each slot, set while it is free.
    free: Vec<u64>,
}

impl Slabs {
    /// Makes a slab of a class from a free stretch of pages, and takes its first slot, which is at its
    /// start.
    pub(super) fn add(&mut self, class: Class, stretch: Range<u64>) {
        // A slab has at most its length in slots of 64 bytes: 1024.
        let slots = ((stretch.end - stretch.start) / class.slot()) as u32;
        let mut free = vec![0u64; slots.div_ceil(64) as usize];
        for slot in 1..slots {
            free[(slot / 64) as usize] |= 1 << (slot % 64);
        }
        let slab = Slab { class, end: stretch.end, slots, used: 1, free };
        if !slab.is_full() {
            self.partial[class.0].insert(stretch.start);
        }
        self.by_start.insert(stretch.start, slab);
    }

    /// Takes a free slot and returns its start.
    pub(super) fn take(&mut self, class: Class) -> Option<u64> {
        let start = *self.partial[class.0].first()?;
        let slab = self.by_start.get_mut(&start)?;
        let word = slab.free.iter().position(|word| *word != 0)?;
        let bit = slab.free[word].trailing_zeros();
        slab.free[word] &= !(1 << bit);
        slab.used += 1;
        if slab.is_full() {
            self.partial[class.0].remove(&start);
        }
        Some(start + (word as u64 * 64 + u64::from(bit)) * class.slot())
    }

    /// Withholds the slabs in these segments: nothing is taken from them until [`Slabs::relist`].
    pub(super) fn withhold(&mut self, segments: Range<u64>) {
        for (start, slab) in self.by_start.range(segments.clone()) {
            self.partial[slab.class.0].remove(start);
        }
        self.withheld = segments;
    }

    /// Makes the slots of all slabs available again.
    pub(super) fn relist(&mut self) {
        for (start, slab) in self.by_start.range(std::mem::take(&mut self.withheld)) {
            if !slab.is_full() {
                self.partial[slab.class.0].insert(*start);
            }
        }
    }

    /// Frees a slot. If its slab is empty then, forgets the slab and returns the slab's pages.
    pub(super) fn give_back(&mut self, at: u64) -> Option<Range<u64>> {
        let (&start, slab) = self.by_start.range_mut(..=at).next_back()?;
        let class = slab.class;
        if slab.is_full() && !self.withheld.contains(&start) {
            self.partial[class.0].insert(start);
        }
        let slot = (at - start) / class.slot();
        slab.free[(slot / 64) as usize] |= 1 << (slot % 64);
        slab.used -= 1;
        if slab.used > 0 {
            return None;
        }
        let end = slab.end;
        self.partial[class.0].remove(&start);
        self.by_start.remove(&start);
        Some(start..end)
    }
}

impl Slab {
    fn is_full(&self) -> bool {
        self.used == self.slots
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    #[test]
    fn classes_waste_little_and_never_fall_short() {
        for len in 0..=3584u64 {
            let slot = Class::of(len).unwrap().slot();
            assert!(slot >= len.max(64) && slot.is_multiple_of(64));
            assert!(slot - len <= (len / 4).max(64), "{len} bytes in a slot of {slot}");
        }
        assert_eq!(Class::of(3585), None);
        assert_eq!((footprint(0), footprint(3585), footprint(4097)), (64, 4096, 8192));
    }

    #[test]
    fn a_slab_is_used_up_and_returned_whole() {
        let class = Class::of(2560).unwrap();
        let mut slabs = Slabs::default();
        assert_eq!(slabs.take(class), None);
        slabs.add(class, SLAB_BYTES..2 * SLAB_BYTES);
        let slots: Vec<u64> = iter::once(SLAB_BYTES).chain(iter::from_fn(|| slabs.take(class))).collect();
        let expected: Vec<u64> = (0..SLAB_BYTES / 2560).map(|slot| SLAB_BYTES + slot * 2560).collect();
        assert_eq!(slots, expected);
        let (last, others) = slots.split_last().unwrap();
        for slot in others {
            assert_eq!(slabs.give_back(*slot), None);
        }
        assert_eq!(slabs.take(class), Some(SLAB_BYTES), "a slot that came back is used again");
        assert_eq!(slabs.give_back(SLAB_BYTES), None);
        assert_eq!(slabs.give_back(*last), Some(SLAB_BYTES..2 * SLAB_BYTES));
        assert_eq!(slabs.take(class), None);
    }
}
