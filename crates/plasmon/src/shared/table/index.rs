//! Index of a table: open addressing over cache lines of eight words.
//!
//! Owns the words of one index. The engine thread writes, any thread of a client reads. A word is 0 (never
//! used), 1 (used before), or an entry's number + 2 with the high half of its hash. Invariant: an entry
//! stands in one of the first [`MAX_PROBE_LINES`] lines from where its hash points, before any word that was
//! never used, because words are filled in this order and no word returns to 0. An object whose lines are
//! full stays outside the index. So a user who chooses ids that share their lines keeps out, near these
//! lines, about as many objects of others as a few hundred of its own occupy.

use std::ops::{ControlFlow, Range};

use super::entry::words_of;
use crate::ObjectId;
use crate::shared::words::{Ordering, Words};

/// Number of words in a line.
pub(super) const LINE_WORDS: usize = 8;
/// Largest number of lines that a search looks at.
pub(super) const MAX_PROBE_LINES: usize = 32;
/// Number of words of the first index: one page of lines.
pub(super) const FIRST_WORDS: usize = 8192;

const NEVER: u64 = 0;
const FORMER: u64 = 1;

/// Returns the hash of an id in a table, by multiplication and folding as in wyhash (Wang Yi, 2019).
pub(super) fn hash(id: &ObjectId, seed: u64) -> u64 {
    let [first, second, third] = words_of(id);
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product as u64) ^ (product >> 64) as u64
    };
    let mixed = fold(first ^ seed ^ 0xa076_1d64_78bd_642f, second ^ 0xe703_7ed1_a0b4_28db);
    fold(mixed ^ 0x8ebc_6af0_9c88_c6e3, third ^ seed.rotate_left(32) ^ 0x5899_65cc_7537_4cc3)
}

/// Index of a table, for its writer or a reader.
pub(in crate::shared) struct Index {
    words: Words,
    lines: usize,
}

impl Index {
    /// Makes an index of `len` words, a power of two.
    pub(in crate::shared) fn new(words: Words, len: usize) -> Self {
        Self { words, lines: len / LINE_WORDS }
    }

    /// Returns the number of words in the index.
    pub(super) fn len(&self) -> usize {
        self.lines * LINE_WORDS
    }

    /// Asks the kernel for memory for these words, which are about to be written.
    pub(super) fn expect(&self, words: Range<usize>) {
        self.words.expect(words.start * 8..words.end * 8);
    }

    /// Visits the words where a hash may stand, in order, until `look` ends the search or the next word was
    /// never used.
    #[inline]
    fn probe<T>(&self, hash: u64, mut look: impl FnMut(usize, u64) -> ControlFlow<T>) -> Option<T> {
        for probe in 0..MAX_PROBE_LINES.min(self.lines) {
            let line = (hash as usize).wrapping_add(probe) & (self.lines - 1);
            for at in line * LINE_WORDS..(line + 1) * LINE_WORDS {
                let word = self.words.at(at).load(Ordering::Acquire);
                if let ControlFlow::Break(result) = look(at, word) {
                    return Some(result);
                }
                if word == NEVER {
                    return None;
                }
            }
        }
        None
    }

    /// Offers the entries that may have a hash to `take`, until it accepts one.
    #[inline]
    pub(in crate::shared) fn find<T>(&self, hash: u64, mut take: impl FnMut(u32) -> Option<T>) -> Option<T> {
        self.probe(hash, |_, word| match entry_of(word, hash).and_then(&mut take) {
            Some(taken) => ControlFlow::Break(taken),
            None => ControlFlow::Continue(()),
        })
    }

    /// Inserts an entry. Returns which kind of word the entry took, or `None` if there was no room.
    pub(in crate::shared) fn insert(&self, hash: u64, entry: u32) -> Option<Inserted> {
        let mut free = None;
        let there = self.probe(hash, |at, word| {
            if word == NEVER || word == FORMER {
                free.get_or_insert((at, word == NEVER));
            }
            if entry_of(word, hash) == Some(entry) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if there.is_some() {
            return Some(Inserted::There);
        }
        let (at, fresh) = free?;
        self.words.at(at).store(word_of(hash, entry), Ordering::Release);
        Some(if fresh { Inserted::Fresh } else { Inserted::Reused })
    }

    /// Removes an entry. Returns whether the entry was in the index.
    pub(in crate::shared) fn remove(&self, hash: u64, entry: u32) -> bool {
        let at = self.probe(hash, |at, word| match entry_of(word, hash) {
            Some(found) if found == entry => ControlFlow::Break(at),
            _ => ControlFlow::Continue(()),
        });
        at.is_some_and(|at| {
            self.words.at(at).store(FORMER, Ordering::Release);
            true
        })
    }

    /// Returns the entry in a word, whatever its hash, for moving to another index.
    pub(super) fn entry_at(&self, at: usize) -> Option<u32> {
        let word = self.words.at(at).load(Ordering::Relaxed);
        (word as u32 >= 2).then(|| word as u32 - 2)
    }
}

/// Result of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shared) enum Inserted {
    /// The entry was there already.
    There,
    /// The entry took a word that was never used.
    Fresh,
    /// The entry took a word that was used before.
    Reused,
}

fn word_of(hash: u64, entry: u32) -> u64 {
    (hash & !0xffff_ffff) | u64::from(entry + 2)
}

/// Returns the entry in a word, if the entry may have this hash.
#[inline]
fn entry_of(word: u64, hash: u64) -> Option<u32> {
    (word as u32 >= 2 && (word ^ hash) >> 32 == 0).then(|| word as u32 - 2)
}
