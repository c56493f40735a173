//! The rings and their bells, as both sides see them.
//!
//! Each ring has one writer of its tail and one of its head; both count up for ever. An entry is
//! written before the tail (Release) and read after it (Acquire), and used again after the head says so.
//!
//! No wake-up is lost, twice by Dekker's argument. *To the engine*: the client stores the tail, goes through
//! a SeqCst fence, and rings the bell unless `attention` says that the engine looks anyway; the engine,
//! before it sleeps, clears `attention`, goes through a SeqCst fence, and looks at the tail again. *To the
//! client*: it says that it sleeps, goes through a SeqCst fence, and looks at the tail again (the futex looks
//! once more); the engine stores the tail, goes through a SeqCst fence, and wakes the client if it sleeps.

use super::entries::WORDS;
use crate::shared::words::{Ordering, Words, fence};

/// Entries in a ring: a power of two.
pub(in crate::shared) const ENTRIES: u64 = 256;

/// Word that says what the engine looks at.
const ATTENTION: usize = 320 / 8;
/// Word that says that the client sleeps.
const ASLEEP: usize = 384 / 8;

/// The engine looks at the ring: no bell is needed.
pub(in crate::shared) const LOOKS: u64 = 1;
/// And there are cores to spare for a client that looks, too.
pub(super) const SPARE: u64 = 2;

/// One of the two rings: where it is in the page set.
#[derive(Clone, Copy)]
pub(in crate::shared) struct Place {
    tail: usize,
    head: usize,
    first: usize,
}

/// From the client to the engine.
pub(in crate::shared) const SUBMISSIONS: Place = Place { tail: 64 / 8, head: 128 / 8, first: (4 << 10) / 8 };
/// From the engine to the client.
pub(in crate::shared) const COMPLETIONS: Place =
    Place { tail: 192 / 8, head: 256 / 8, first: (20 << 10) / 8 };

impl Place {
    /// The word that changes when something comes.
    pub(super) fn tail(&self) -> usize {
        self.tail
    }

    /// Puts an entry in at `tail`, which is the writer's own count; `false` if the other side has not
    /// made room, or says nonsense.
    pub(in crate::shared) fn put(&self, words: &Words, tail: u64, entry: [u64; WORDS]) -> bool {
        let head = words.at(self.head).load(Ordering::Acquire);
        if tail.wrapping_sub(head) >= ENTRIES {
            return false;
        }
        let first = self.first + (tail % ENTRIES) as usize * WORDS;
        for (at, word) in entry.into_iter().enumerate() {
            words.at(first + at).store(word, Ordering::Relaxed);
        }
        words.at(self.tail).store(tail.wrapping_add(1), Ordering::Release);
        true
    }

    /// How many entries there are from `head` on, the reader's own count.
    pub(in crate::shared) fn waiting(&self, words: &Words, head: u64) -> u64 {
        words.at(self.tail).load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Takes the entry at `head`, which [`Place::waiting`] has found.
    pub(in crate::shared) fn take(&self, words: &Words, head: u64) -> [u64; WORDS] {
        let first = self.first + (head % ENTRIES) as usize * WORDS;
        let mut entry = [0; WORDS];
        for (at, word) in entry.iter_mut().enumerate() {
            *word = words.at(first + at).load(Ordering::Relaxed);
        }
        words.at(self.head).store(head.wrapping_add(1), Ordering::Release);
        entry
    }
}

/// The client has put entries in: must it ring the bell?
pub(in crate::shared) fn must_ring(words: &Words) -> bool {
    fence(Ordering::SeqCst);
    words.at(ATTENTION).load(Ordering::Relaxed) & LOOKS == 0
}

/// What the engine looks at, and whether cores are to spare.
pub(in crate::shared) fn attention(words: &Words) -> u64 {
    words.at(ATTENTION).load(Ordering::Relaxed)
}

/// The engine says what it looks at from now on. After it says that it does not look, and a SeqCst fence,
/// it looks once more.
pub(in crate::shared) fn set_attention(words: &Words, attention: u64) {
    words.at(ATTENTION).store(attention, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// The client is about to sleep, or awake again. It looks once more before it sleeps.
pub(in crate::shared) fn set_asleep(words: &Words, asleep: bool) {
    words.at(ASLEEP).store(asleep.into(), Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// The engine has put completions in: must it wake the client?
pub(in crate::shared) fn must_wake(words: &Words) -> bool {
    fence(Ordering::SeqCst);
    words.at(ASLEEP).load(Ordering::Relaxed) != 0
}
