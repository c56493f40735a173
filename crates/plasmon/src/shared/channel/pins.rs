//! Pins and access bits, by which a client holds and marks objects without asking the daemon.
//!
//! Owns the set of free slots of a client; pins and bits lie in the page set. Any thread. A pin is a word:
//! bit 63 is set, bit 32 has the table, the bits below have the number of the entry. The client stores the
//! pin, passes a SeqCst fence, and reads the entry's generation again. The engine hides the entry, passes a
//! SeqCst fence, and reads all pins. At least one of the two sees the other's store (Dekker's argument).
//! Invariant: an object never leaves while a valid pin holds it. Pins are hazard pointers (Michael, 2004)
//! between processes.

use crate::shared::free::Free;
use crate::shared::words::{AtomicU64, Ordering, Words, fence};

/// Index of the word of the first pin.
const FIRST_PIN_WORD: usize = (36 << 10) / 8;
/// Number of pins that a client can hold at a time without asking the daemon.
pub(in crate::shared) const SLOTS: usize = 4096;
/// Index of the word with the number of slots that were ever used.
const USED_SLOTS_WORD: usize = 448 / 8;
/// Index of the first word of the access bits.
const FIRST_ACCESS_WORD: usize = (68 << 10) / 8;
const ACCESS_BITS: u32 = 1 << 18;
const PINNED: u64 = 1 << 63;

/// One of the two object tables that a client can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TableId {
    /// Table of the objects that all users may read.
    Shared = 0,
    /// Table of the objects private to the client's user.
    Private = 1,
}

/// Place of a pin in a page set.
#[derive(Debug, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// Returns the number of the slot.
    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.0
    }

    /// Whether the slot is in the first half of all slots.
    pub fn is_in_first_half(&self) -> bool {
        (self.0 as usize) < SLOTS / 2
    }
}

#[cfg(all(test, loom))]
impl Slot {
    pub(in crate::shared) fn nth(slot: u32) -> Self {
        Self(slot)
    }
}

/// Set of free slots for pins, in the client's own memory.
#[derive(Default)]
pub(super) struct FreeSlots(Free<{ SLOTS / 64 }>);

impl FreeSlots {
    /// Takes the lowest free slot, so that the engine has few slots to look through.
    pub(super) fn take(&self) -> Option<Slot> {
        self.0.take().map(Slot)
    }

    /// Gives back a slot, which is empty.
    pub(super) fn give_back(&self, slot: Slot) {
        self.0.give_back(slot.0);
    }
}

/// Sets a pin. The pin holds only if the entry's generation is still the same after the call.
#[inline]
pub(in crate::shared) fn pin(words: &Words, slot: &Slot, table: TableId, entry: u32) {
    announce(words, slot, table, entry);
    fence(Ordering::SeqCst);
}

/// Stores a pin without the fence that [`pin`] passes afterwards.
#[inline]
pub(in crate::shared) fn announce(words: &Words, slot: &Slot, table: TableId, entry: u32) {
    let used = words.at(USED_SLOTS_WORD);
    if used.load(Ordering::Relaxed) <= u64::from(slot.0) {
        used.fetch_max(u64::from(slot.0) + 1, Ordering::Relaxed);
    }
    let pin = PINNED | (table as u64) << 32 | u64::from(entry);
    // Release: if the engine sees only this pin, all reads under the previous pin in the slot are over.
    words.at(FIRST_PIN_WORD + slot.0 as usize).store(pin, Ordering::Release);
}

/// Clears a pin. Release: all reads of the object are over before the engine sees the pin gone.
#[inline]
pub(in crate::shared) fn unpin(words: &Words, slot: &Slot) {
    words.at(FIRST_PIN_WORD + slot.0 as usize).store(0, Ordering::Release);
}

/// Returns the number of slots that may have been used, from the first on.
pub(super) fn used(words: &Words) -> usize {
    words.at(USED_SLOTS_WORD).load(Ordering::Relaxed).min(SLOTS as u64) as usize
}

/// Calls `see` for every pin. The engine hides entries and passes a SeqCst fence before the call.
pub(in crate::shared) fn for_each_pin(words: &Words, mut see: impl FnMut(TableId, u32)) {
    for at in FIRST_PIN_WORD..FIRST_PIN_WORD + used(words) {
        let pin = words.at(at).load(Ordering::Acquire);
        if pin & PINNED != 0 {
            see(if pin >> 32 & 1 == 0 { TableId::Shared } else { TableId::Private }, pin as u32);
        }
    }
}

/// Returns the word and the bit that note the access to an entry. Entries far apart may share a bit, because
/// recency is an estimate anyway.
fn access(words: &Words, table: TableId, entry: u32) -> (&AtomicU64, u64) {
    let bit = (entry ^ (table as u32) << 17) % ACCESS_BITS;
    (words.at(FIRST_ACCESS_WORD + bit as usize / 64), 1 << (bit % 64))
}

/// Notes that the object of an entry was read.
#[inline]
pub(in crate::shared) fn touch(words: &Words, table: TableId, entry: u32) {
    let (word, bit) = access(words, table, entry);
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Returns whether the object of an entry was read since the last call. The call clears the bit.
pub(in crate::shared) fn take_touched(words: &Words, table: TableId, entry: u32) -> bool {
    let (word, bit) = access(words, table, entry);
    let touched = word.load(Ordering::Relaxed) & bit != 0;
    if touched {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    touched
}
