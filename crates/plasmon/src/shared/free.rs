//! Set of free slots of a page set, which the threads of a client take and give back.
//!
//! Owns the set, in the client's own memory. Any thread. Invariant: a slot that was taken is not given to
//! another thread until the slot is given back.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Set of free slots among `WORDS` times 64 slots, with a bit for each slot.
pub(super) struct Free<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Default for Free<WORDS> {
    fn default() -> Self {
        Self([const { AtomicU64::new(u64::MAX) }; WORDS])
    }
}

impl<const WORDS: usize> Free<WORDS> {
    /// Takes the lowest free slot.
    pub(super) fn take(&self) -> Option<u32> {
        for (at, word) in self.0.iter().enumerate() {
            let mut free = word.load(Relaxed);
            while free != 0 {
                let bit = free & free.wrapping_neg();
                // Acquire: the former owner was done with the slot before it gave the slot back.
                match word.compare_exchange_weak(free, free & !bit, Acquire, Relaxed) {
                    Ok(_) => return Some((at * 64) as u32 + bit.trailing_zeros()),
                    Err(now) => free = now,
                }
            }
        }
        None
    }

    /// Gives back a slot.
    pub(super) fn give_back(&self, slot: u32) {
        self.0[slot as usize / 64].fetch_or(1 << (slot % 64), Release);
    }
}
