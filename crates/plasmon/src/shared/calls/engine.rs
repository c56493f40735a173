//! Engine's end of a client's slots.
//!
//! Owns the page set. Engine thread only. Invariants: no word that the client wrote is used unchecked; a slot
//! under way is not taken again before its result.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::thread::futex;

use super::entries::{CallRequest, CallResult};
use super::mapped::{self, PINS};
use super::slots::{self, ATTENTION, BIT_WORDS, CORE, SLOTS, Slot};
use super::{MAGIC, PAGE_SET_BYTES};
use crate::shared::words::{Ordering, Words};

/// Slots of one client.
pub struct EngineCalls {
    words: Words,
    /// Slots whose submitted bits were taken, and whose requests were not read yet.
    taken: [Cell<u64>; BIT_WORDS],
    /// Slots whose results are still to come.
    under_way: [Cell<u64>; BIT_WORDS],
    /// Sequence number of the last request in each slot, where the client cannot write it.
    seqs: Box<[Cell<u32>; SLOTS]>,
}

/// Error for a slot with contents that no client of this release writes. The engine ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misused {
    /// The slot was submitted again before its result.
    #[error("slot {0} was submitted twice")]
    Twice(u8),
    /// The request does not decode.
    #[error("the request in slot {0} is malformed")]
    Request(u8),
}

impl EngineCalls {
    /// Makes a page set. Returns it with the descriptor for the client.
    ///
    /// # Errors
    /// If the system has no memory or no descriptors.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (words, file) = Words::for_writers("plasmon-calls", PAGE_SET_BYTES)?;
        words.at(0).store(MAGIC, Ordering::Relaxed);
        let seqs = Box::new([const { Cell::new(0) }; SLOTS]);
        Ok((Self { words, taken: Default::default(), under_way: Default::default(), seqs }, file))
    }

    /// Whether there are requests that the client has submitted or given up and that were not taken yet.
    pub fn has_submissions(&self) -> bool {
        self.taken.iter().any(|taken| taken.get() != 0) || slots::any_bit(&self.words)
    }

    /// Takes the slots under way whose requests the client has given up, and wants results of soon. The
    /// caller calls [`EngineCalls::take`] afterwards, for requests that were given up and are not under way
    /// yet.
    pub fn take_given_up(&self) -> impl Iterator<Item = u8> {
        (0..BIT_WORDS).flat_map(|at| {
            let mut bits = slots::take_given_up(&self.words, at);
            std::iter::from_fn(move || {
                let slot = (bits != 0).then(|| (at * 64) as u8 + bits.trailing_zeros() as u8);
                bits &= bits.wrapping_sub(1);
                slot
            })
            .filter(|slot| {
                let (word, bit) = place(*slot);
                let seq = self.seqs[usize::from(*slot)].get();
                self.under_way[word].get() & bit != 0 && Slot(*slot).is_given_up(&self.words, seq)
            })
        })
    }

    /// Whether the client has given up the request in a slot under way.
    pub fn is_given_up(&self, slot: u8) -> bool {
        Slot(slot).is_given_up(&self.words, self.seqs[usize::from(slot)].get())
    }

    /// Sets whether the client may touch the region of a word below [`MAPPED_MAX`](super::MAPPED_MAX).
    pub fn let_touch(&self, region: u32, live: bool) {
        mapped::set(&self.words, region, live);
    }

    /// Whether a thread of the client touches the region of a word. Once this is `false` for a region that
    /// may not be touched any more, the client does not change the memory of the region.
    pub fn is_touched(&self, region: u32) -> bool {
        mapped::is_touched(&self.words, PINS, region)
    }

    /// Whether the client has a view of the region of a word.
    pub fn is_viewed(&self, region: u32) -> bool {
        mapped::is_viewed(&self.words, PINS, region)
    }

    /// Takes the next request, if there is one, with the number of its slot. Requests whose bits were taken
    /// together are read before any later bits are taken.
    ///
    /// # Errors
    /// If a slot holds contents that no client of this release writes.
    pub fn take(&self) -> Option<Result<(u8, CallRequest), Misused>> {
        let slot = self.next_taken().or_else(|| {
            for (at, taken) in self.taken.iter().enumerate() {
                taken.set(slots::take_submitted(&self.words, at));
            }
            self.next_taken()
        })?;
        let (word, bit) = place(slot);
        if self.under_way[word].get() & bit != 0 {
            return Some(Err(Misused::Twice(slot)));
        }
        Some(match Slot(slot).request(&self.words) {
            None => Err(Misused::Request(slot)),
            Some((seq, request)) => {
                self.under_way[word].set(self.under_way[word].get() | bit);
                self.seqs[usize::from(slot)].set(seq);
                Ok((slot, request))
            }
        })
    }

    /// Takes the lowest of the slots whose bits were taken.
    fn next_taken(&self) -> Option<u8> {
        let (at, taken) = self.taken.iter().enumerate().find(|(_, taken)| taken.get() != 0)?;
        let bits = taken.get();
        taken.set(bits & (bits - 1));
        Some((at * 64) as u8 + bits.trailing_zeros() as u8)
    }

    /// Writes the result of a request that was taken, and wakes the thread that waits for it if it sleeps.
    /// Nothing happens if the slot is not under way.
    pub fn answer(&self, slot: u8, result: &CallResult) {
        let (word, bit) = place(slot);
        let under_way = self.under_way[word].get();
        if under_way & bit == 0 {
            return;
        }
        self.under_way[word].set(under_way & !bit);
        let at = Slot(slot);
        at.answer(&self.words, self.seqs[usize::from(slot)].get(), result);
        if at.asleep().must_wake(&self.words) {
            // The call fails only for an invalid address.
            let _ = futex::wake(self.words.low_half(at.result_word()), futex::Flags::empty(), u32::MAX);
        }
    }

    /// Number of requests whose results are still to come.
    pub fn under_way(&self) -> u32 {
        self.under_way.iter().map(|bits| bits.get().count_ones()).sum()
    }

    /// Announces whether the engine looks at the slots without the bell, and whether a core is idle on which
    /// the client may spin. After `looks` is `false`, the caller checks [`EngineCalls::has_submissions`] once
    /// more.
    pub fn set_attention(&self, looks: bool, spare: bool) {
        ATTENTION.set(&self.words, looks, spare);
    }

    /// Whether a thread of the client last waited on this core, as the client says. An engine that spins on
    /// this core keeps the thread waiting.
    pub fn is_on_core(&self, core: usize) -> bool {
        CORE.is(&self.words, core)
    }
}

/// Returns the index of the word and the bit of a slot.
fn place(slot: u8) -> (usize, u64) {
    (usize::from(slot) / 64, 1 << (slot % 64))
}
