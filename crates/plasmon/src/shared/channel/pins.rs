//! Pins and access bits: what a client has of objects without asking.
//!
//! A pin is a word: bit 63, the table in bit 32, the number of the entry below. The client stores
//! it, goes through a SeqCst fence, and looks at the entry's generation again; the engine hides the
//! entry, goes through a SeqCst fence, and looks through the pins. One of the two sees the other
//! (Dekker's argument), so that never both a pin holds and its object leaves. This is hazard pointers
//! (Michael, 2004) between processes.

use crate::shared::words::{AtomicU64, Ordering, Words, fence};

/// Word of the first pin.
const FIRST: usize = (36 << 10) / 8;
/// How many pins a client can have at a time without asking.
pub(in crate::shared) const SLOTS: usize = 4096;
/// Word that says how many slots were ever used.
const USED: usize = 448 / 8;
/// Word of the first access bits, and how many bits.
const ACCESS: usize = (68 << 10) / 8;
const ACCESS_BITS: u32 = 1 << 18;
const PINNED: u64 = 1 << 63;

/// Which of the two tables that a client can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TableId {
    /// Everybody's objects.
    Shared = 0,
    /// Objects private to the client's user.
    Private = 1,
}

/// A pin's place.
#[derive(Debug, PartialEq, Eq)]
pub struct Slot(u32);

#[cfg(all(test, loom))]
impl Slot {
    pub(in crate::shared) fn nth(slot: u32) -> Self {
        Self(slot)
    }
}

/// The slots that are free, in the client's own memory.
pub(super) struct FreeSlots([std::sync::atomic::AtomicU64; SLOTS / 64]);

impl Default for FreeSlots {
    fn default() -> Self {
        Self([const { std::sync::atomic::AtomicU64::new(u64::MAX) }; SLOTS / 64])
    }
}

impl FreeSlots {
    /// The lowest that is free, so that the engine has few to look through.
    pub(super) fn take(&self) -> Option<Slot> {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        for (at, word) in self.0.iter().enumerate() {
            let mut free = word.load(Relaxed);
            while free != 0 {
                let bit = free & free.wrapping_neg();
                // Acquire: the former owner has emptied the slot before it gave it back.
                match word.compare_exchange_weak(free, free & !bit, Acquire, Relaxed) {
                    Ok(_) => return Some(Slot((at * 64) as u32 + bit.trailing_zeros())),
                    Err(now) => free = now,
                }
            }
        }
        None
    }

    pub(super) fn give_back(&self, slot: Slot) {
        let (word, bit) = (slot.0 as usize / 64, 1u64 << (slot.0 % 64));
        self.0[word].fetch_or(bit, std::sync::atomic::Ordering::Release);
    }
}

/// Sets a pin. Only if the entry's generation is still the same after this does it hold.
#[inline]
pub(in crate::shared) fn pin(words: &Words, slot: &Slot, table: TableId, entry: u32) {
    announce(words, slot, table, entry);
    fence(Ordering::SeqCst);
}

/// The first half of [`pin`].
#[inline]
pub(in crate::shared) fn announce(words: &Words, slot: &Slot, table: TableId, entry: u32) {
    let used = words.at(USED);
    if used.load(Ordering::Relaxed) <= u64::from(slot.0) {
        used.fetch_max(u64::from(slot.0) + 1, Ordering::Relaxed);
    }
    let pin = PINNED | (table as u64) << 32 | u64::from(entry);
    // Release: the reads under the pin that was here before are over, should the engine see this one only.
    words.at(FIRST + slot.0 as usize).store(pin, Ordering::Release);
}

/// Takes a pin back. Release: all reads of the object are over before the engine sees it gone.
#[inline]
pub(in crate::shared) fn unpin(words: &Words, slot: &Slot) {
    words.at(FIRST + slot.0 as usize).store(0, Ordering::Release);
}

/// Shows every pin; for the engine, after it hid what it wants and went through a SeqCst fence.
pub(in crate::shared) fn for_each_pin(words: &Words, mut see: impl FnMut(TableId, u32)) {
    let used = words.at(USED).load(Ordering::Relaxed).min(SLOTS as u64) as usize;
    for at in FIRST..FIRST + used {
        let pin = words.at(at).load(Ordering::Acquire);
        if pin & PINNED != 0 {
            see(if pin >> 32 & 1 == 0 { TableId::Shared } else { TableId::Private }, pin as u32);
        }
    }
}

/// The access bit of an entry. Entries far apart may share one: recency is a guess anyway.
fn access(words: &Words, table: TableId, entry: u32) -> (&AtomicU64, u64) {
    let bit = (entry ^ (table as u32) << 17) % ACCESS_BITS;
    (words.at(ACCESS + bit as usize / 64), 1 << (bit % 64))
}

/// Notes that an object was read.
#[inline]
pub(in crate::shared) fn touch(words: &Words, table: TableId, entry: u32) {
    let (word, bit) = access(words, table, entry);
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Whether an object was read since this was last asked.
pub(in crate::shared) fn take_touched(words: &Words, table: TableId, entry: u32) -> bool {
    let (word, bit) = access(words, table, entry);
    let touched = word.load(Ordering::Relaxed) & bit != 0;
    if touched {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    touched
}
