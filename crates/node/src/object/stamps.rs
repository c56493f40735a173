//! Stamps: words that peers read to see whether an object's bytes are still where they were told.
//!
//! Owns the words. Engine thread only; peers read the words one-sidedly. An object that is offered to a peer
//! gets a stamp: a value that no object had before, in one of [`SLOTS`] words. A peer that first reads the
//! bytes and then finds the value it was told in the word therefore has the right bytes. Slots are used in
//! turns. An object whose slot is given to another has no stamp any more, and has to be asked for. Invariant:
//! a word is cleared before the object's bytes may leave their place.

use std::rc::Rc;

use plasmon::ObjectId;

use crate::kernel::random::HashMap;
use crate::memory::BlockMemory;

/// Number of objects that have a stamp at a time.
const SLOTS: usize = 1 << 16;

plasmon::wire::record! {
    /// A word at the holder that says whether an object's bytes are still where they were.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Stamp {
        /// The position of the word, in words.
        pub(crate) slot: u32,
        /// The value of the word. It is never 0 while the object lies there, and is never used again.
        pub(crate) value: u64,
    }
}

pub(crate) struct Stamps {
    memory: Rc<BlockMemory>,
    owners: Vec<Option<ObjectId>>,
    slots: HashMap<ObjectId, u32>,
    next: u32,
    last: u64,
}

impl Stamps {
    pub(super) fn new() -> Self {
        Self {
            memory: Rc::new(BlockMemory::new(SLOTS * size_of::<u64>())),
            owners: vec![None; SLOTS],
            slots: HashMap::default(),
            next: 0,
            last: 0,
        }
    }

    /// The words, to be registered for peers to read.
    pub(crate) fn memory(&self) -> &Rc<BlockMemory> {
        &self.memory
    }

    /// Returns the stamp of an object whose bytes are in memory, or gives the object a new one.
    pub(crate) fn of(&mut self, id: ObjectId) -> Stamp {
        if let Some(slot) = self.slots.get(&id) {
            return Stamp { slot: *slot, value: self.memory.load(*slot as usize) };
        }
        let slot = self.next;
        self.next = (slot + 1) % SLOTS as u32;
        if let Some(former) = self.owners[slot as usize].replace(id) {
            self.slots.remove(&former);
        }
        self.slots.insert(id, slot);
        self.last += 1;
        self.memory.store(slot as usize, self.last);
        Stamp { slot, value: self.last }
    }

    /// Clears the stamp of an object whose bytes are about to leave their place.
    pub(super) fn revoke(&mut self, id: &ObjectId) {
        if let Some(slot) = self.slots.remove(id) {
            self.owners[slot as usize] = None;
            self.memory.store(slot as usize, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_ends_with_its_object_and_is_never_used_again() {
        let mut stamps = Stamps::new();
        let (one, other) = (ObjectId::random(), ObjectId::random());
        let first = stamps.of(one);
        assert_eq!(stamps.of(one), first);
        assert_ne!(stamps.of(other).slot, first.slot);
        stamps.revoke(&one);
        assert_eq!(stamps.memory().load(first.slot as usize), 0);
        let again = stamps.of(one);
        assert!(again.value > first.value);
    }

    #[test]
    fn the_oldest_stamp_gives_way() {
        let mut stamps = Stamps::new();
        let one = ObjectId::random();
        let first = stamps.of(one);
        for _ in 1..=SLOTS {
            stamps.of(ObjectId::random());
        }
        assert_ne!(stamps.memory().load(first.slot as usize), first.value);
        assert_ne!(stamps.of(one), first);
    }
}
