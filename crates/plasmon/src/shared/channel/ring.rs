//! Rings of a channel and their wake-ups, as both sides see them.
//!
//! Owns no state. Any thread. Each ring has one writer of its tail and one writer of its head. Both words
//! count up without end. An entry is written before the tail (Release) and read after the tail (Acquire).
//! Invariant: the place of an entry is used again only after the head has passed the entry.
//!
//! A tail announces entries to the other side, by the rules of [`wakes`](crate::shared::wakes).

use super::entries::WORDS;
use crate::shared::wakes::{Asleep, Attention, Core};
use crate::shared::words::{Ordering, Words};

/// Number of entries in a ring: a power of two.
pub(in crate::shared) const ENTRIES: u64 = 256;

/// Place of the engine's attention to the rings.
pub(in crate::shared) const ATTENTION: Attention = Attention(320 / 8);
/// Place of the word that says whether the client sleeps.
pub(in crate::shared) const ASLEEP: Asleep = Asleep(384 / 8);
/// Place of the core on which the client last rang or waited.
pub(in crate::shared) const CORE: Core = Core(392 / 8);

/// Place of one of the two rings in the page set.
#[derive(Clone, Copy)]
pub(in crate::shared) struct Place {
    tail: usize,
    head: usize,
    first: usize,
}

/// Ring from the client to the engine.
pub(in crate::shared) const SUBMISSIONS: Place = Place { tail: 64 / 8, head: 128 / 8, first: (4 << 10) / 8 };
/// Ring from the engine to the client.
pub(in crate::shared) const COMPLETIONS: Place =
    Place { tail: 192 / 8, head: 256 / 8, first: (20 << 10) / 8 };

impl Place {
    /// Returns the index of the word that changes when an entry comes.
    pub(super) fn tail(&self) -> usize {
        self.tail
    }

    /// Writes an entry at `tail`, which is the writer's own count. Returns `false` if the other side has not
    /// made room, or if its count is invalid.
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

    /// Returns the number of entries from `head` on, which is the reader's own count.
    pub(in crate::shared) fn waiting(&self, words: &Words, head: u64) -> u64 {
        words.at(self.tail).load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Takes the entry at `head`, after [`Place::waiting`] has returned that there is one.
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
