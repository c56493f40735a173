//! Rings of a channel and their wake-ups, as both sides see them.
//!
//! Each ring has one writer of its tail and one of its head. Both count up without end. An entry is written
//! before the tail (Release) and read after it (Acquire). Its place is used again after the head has passed
//! it.
//!
//! No wake-up is lost, by Dekker's argument in both directions. *To the engine*: the client stores the tail,
//! passes a SeqCst fence, and rings the bell unless `attention` says that the engine looks anyway. Before the
//! engine sleeps it clears `attention`, passes a SeqCst fence, and looks at the tail again. *To the client*:
//! the client notes that it sleeps, passes a SeqCst fence, and looks at the tail again (the futex looks once
//! more). The engine stores the tail, passes a SeqCst fence, and wakes the client if it sleeps.

use super::entries::WORDS;
use crate::shared::words::{Ordering, Words, fence};

/// Number of entries in a ring: a power of two.
pub(in crate::shared) const ENTRIES: u64 = 256;

/// Index of the word with the engine's attention.
const ATTENTION_WORD: usize = 320 / 8;
/// Index of the word that says whether the client sleeps.
const ASLEEP_WORD: usize = 384 / 8;

/// Index of the word with the core from which the client last rang or looked, and one: 0 is unknown.
const CORE_WORD: usize = 392 / 8;

/// Bit of the attention: the engine looks at the ring, so that no bell is needed.
pub(in crate::shared) const LOOKS: u64 = 1;
/// Bit of the attention: a core is idle, so that the client may spin.
pub(super) const SPARE: u64 = 2;

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
    /// Index of the word that changes when an entry comes.
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

    /// Number of entries from `head` on, which is the reader's own count.
    pub(in crate::shared) fn waiting(&self, words: &Words, head: u64) -> u64 {
        words.at(self.tail).load(Ordering::Acquire).wrapping_sub(head)
    }

    /// Takes the entry at `head`. [`Place::waiting`] has said that there is one.
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

/// Whether the client must ring the bell after it has written entries.
pub(in crate::shared) fn must_ring(words: &Words) -> bool {
    fence(Ordering::SeqCst);
    words.at(ATTENTION_WORD).load(Ordering::Relaxed) & LOOKS == 0
}

/// Attention of the engine: the bits [`LOOKS`] and [`SPARE`].
pub(in crate::shared) fn attention(words: &Words) -> u64 {
    words.at(ATTENTION_WORD).load(Ordering::Relaxed)
}

/// Sets the attention of the engine. When the engine stops looking, it looks once more after the fence.
pub(in crate::shared) fn set_attention(words: &Words, attention: u64) {
    words.at(ATTENTION_WORD).store(attention, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Notes whether the client is about to sleep. The client looks once more before it sleeps.
pub(in crate::shared) fn set_asleep(words: &Words, asleep: bool) {
    words.at(ASLEEP_WORD).store(asleep.into(), Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Notes the core on which the client is about to wait. It is a guess, since the client may be moved at any
/// time.
#[cfg(not(loom))]
pub(super) fn set_core(words: &Words, core: usize) {
    let (word, noted) = (words.at(CORE_WORD), core as u64 + 1);
    if word.load(Ordering::Relaxed) != noted {
        word.store(noted, Ordering::Relaxed);
    }
}

/// Whether the client last waited on this core, as it says.
#[cfg(not(loom))]
pub(super) fn is_on_core(words: &Words, core: usize) -> bool {
    words.at(CORE_WORD).load(Ordering::Relaxed) == core as u64 + 1
}

/// Whether the engine must wake the client after it has written completions.
pub(in crate::shared) fn must_wake(words: &Words) -> bool {
    fence(Ordering::SeqCst);
    words.at(ASLEEP_WORD).load(Ordering::Relaxed) != 0
}
