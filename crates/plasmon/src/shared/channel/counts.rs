//! Counts of the gets that a client makes by itself, which it keeps in its own page set.
//!
//! | word of the page set | what |
//! |---|---|
//! | 64 to 447 | gets by the pins of slots 0 to 383, a word a slot |
//! | 448 | gets by the pins of all other slots |
//! | 449 to 463 | timed gets: how many took at most each of [`TIME_BOUNDS_NS`], and longer |
//! | 464 | nanoseconds that all timed gets took |
//!
//! Owns no state. Any thread. A slot belongs to one thread at a time, so its word is counted up without a
//! locked instruction, and no get is lost. One in [`TIMED_EVERY`] gets is timed. The engine adds the words up
//! for the node's report. Invariant: no value of a word makes the engine fail.

use crate::shared::words::{Ordering, Words};

/// Index of the word of slot 0.
const FIRST_SLOT_WORD: usize = 512 / 8;
/// Number of slots with a word of their own. Few programs hold more objects at a time.
const OWN_WORDS: usize = 384;
/// Index of the word of the other slots.
const OTHERS_WORD: usize = FIRST_SLOT_WORD + OWN_WORDS;
/// Index of the first word of timed gets.
const FIRST_TIME_WORD: usize = OTHERS_WORD + 1;
/// Index of the word with the time of all timed gets.
const TIME_WORD: usize = FIRST_TIME_WORD + TIME_BOUNDS_NS.len() + 1;
/// Number of gets of a slot for each timed get: the get after a multiple of this number is timed.
const TIMED_EVERY: u64 = 1024;

/// Upper bounds in nanoseconds of the classes of timed gets. One more class, of longer gets, has no bound.
pub const TIME_BOUNDS_NS: [u64; 14] = {
    let mut bounds = [128; 14];
    let mut at = 1;
    while at < bounds.len() {
        bounds[at] = 2 * bounds[at - 1];
        at += 1;
    }
    bounds
};

/// Counts of a client so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of gets that the client made without the daemon.
    pub gets: u64,
    /// Number of timed gets in each class of [`TIME_BOUNDS_NS`], and in the class of longer gets.
    pub timed: [u64; TIME_BOUNDS_NS.len() + 1],
    /// Number of nanoseconds that all timed gets took.
    pub time_ns: u64,
}

/// Counts a get by the pin of a slot. Returns whether the next get is to be timed.
#[inline]
pub(in crate::shared) fn count(words: &Words, slot: u32) -> bool {
    if (slot as usize) < OWN_WORDS {
        let word = words.at(FIRST_SLOT_WORD + slot as usize);
        // The slot's former owner stored its count before it gave the slot back.
        let count = word.load(Ordering::Relaxed).wrapping_add(1);
        word.store(count, Ordering::Relaxed);
        count.is_multiple_of(TIMED_EVERY)
    } else {
        words.at(OTHERS_WORD).fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// Counts the time of a get.
pub(in crate::shared) fn count_time(words: &Words, ns: u64) {
    let class = TIME_BOUNDS_NS.iter().position(|bound| ns <= *bound).unwrap_or(TIME_BOUNDS_NS.len());
    words.at(FIRST_TIME_WORD + class).fetch_add(1, Ordering::Relaxed);
    words.at(TIME_WORD).fetch_add(ns, Ordering::Relaxed);
}

/// Adds up the words of a client, for slots below `used`. The sum of gets saturates.
pub(in crate::shared) fn read(words: &Words, used: usize) -> Counts {
    let word = |at| words.at(at).load(Ordering::Relaxed);
    let own = (0..used.min(OWN_WORDS)).map(|slot| word(FIRST_SLOT_WORD + slot));
    let gets = own.chain([word(OTHERS_WORD)]).fold(0, u64::saturating_add);
    let mut timed = [0; TIME_BOUNDS_NS.len() + 1];
    for (class, count) in timed.iter_mut().enumerate() {
        *count = word(FIRST_TIME_WORD + class);
    }
    Counts { gets, timed, time_ns: word(TIME_WORD) }
}

/// Returns the words of a page set that the models need, for slots below `slots`.
#[cfg(all(test, loom))]
pub(in crate::shared) fn words_of(slots: usize) -> impl Iterator<Item = usize> {
    (FIRST_SLOT_WORD..FIRST_SLOT_WORD + slots).chain(OTHERS_WORD..=TIME_WORD)
}
