//! Root of a table: one page of words.
//!
//! | word | what |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 1 | seed of the hash |
//! | 2 | version of the index in force |
//! | 3 | flags |
//! | 4 | until when the engine is taken to live, in milliseconds of the monotonic clock |
//! | 5 | number of removals so far |
//! | 16..80 | versions of the arena's segments |
//!
//! Owns the page. The engine thread writes, any thread of a client reads. Invariant: an index is complete
//! before it is in force. A removal is counted before its entry goes out of the index.

use std::time::Duration;

use crate::shared::words::{Ordering, Words, fence};
use crate::wire::MAX_DESCRIPTORS;

/// First word of a root: "plasmon" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"plasmon\x01");
/// Size of a root in bytes.
pub(super) const ROOT_BYTES: usize = 4096;
/// Flag of a table of the only node: an object that is not in the table exists nowhere.
pub(super) const SOLO: u64 = 1;
/// Flag of a table with an object for which the index had no room.
pub(super) const INCOMPLETE: u64 = 2;

const SEED_WORD: usize = 1;
const INDEX_WORD: usize = 2;
const FLAGS_WORD: usize = 3;
const LIVES_UNTIL_WORD: usize = 4;
const REMOVALS_WORD: usize = 5;
const FIRST_SEGMENT_WORD: usize = 16;

/// Returns the time of the coarse monotonic clock in milliseconds, which is cheap to read.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Root of a table, for its writer or a reader.
pub(in crate::shared) struct Root(Words);

impl Root {
    /// Makes the root of a new table.
    pub(in crate::shared) fn begin(words: Words, seed: u64) -> Self {
        words.at(SEED_WORD).store(seed, Ordering::Relaxed);
        words.at(0).store(MAGIC, Ordering::Release);
        Self(words)
    }

    /// Returns the root that another process made. `None` if the root is of another release.
    pub(super) fn of(words: Words) -> Option<Self> {
        (words.at(0).load(Ordering::Acquire) == MAGIC).then_some(Self(words))
    }

    pub(super) fn seed(&self) -> u64 {
        self.0.at(SEED_WORD).load(Ordering::Relaxed)
    }

    pub(super) fn index(&self) -> u32 {
        self.0.at(INDEX_WORD).load(Ordering::Acquire) as u32
    }

    /// Puts a complete index in force.
    pub(super) fn set_index(&self, version: u32) {
        self.0.at(INDEX_WORD).store(u64::from(version), Ordering::Release);
    }

    pub(super) fn flags(&self) -> u64 {
        self.0.at(FLAGS_WORD).load(Ordering::Acquire)
    }

    pub(super) fn set_flag(&self, flag: u64, on: bool) {
        let flags = self.0.at(FLAGS_WORD).load(Ordering::Relaxed);
        self.0.at(FLAGS_WORD).store(if on { flags | flag } else { flags & !flag }, Ordering::Release);
    }

    /// Announces that the engine lives and will announce it again within `span`. After an empty span no
    /// reader trusts the table any more, not even within the same millisecond.
    pub(super) fn live_for(&self, span: Duration) {
        let until = if span.is_zero() { 0 } else { now() + span.as_millis() as u64 };
        self.0.at(LIVES_UNTIL_WORD).store(until, Ordering::Relaxed);
    }

    /// Whether the engine may be taken to live.
    #[inline]
    pub(super) fn lives(&self) -> bool {
        now() <= self.0.at(LIVES_UNTIL_WORD).load(Ordering::Relaxed)
    }

    /// Counts the removal of an entry, which goes out of the index next.
    pub(in crate::shared) fn count_removal(&self) {
        let removals = self.0.at(REMOVALS_WORD).load(Ordering::Relaxed);
        self.0.at(REMOVALS_WORD).store(removals.wrapping_add(1), Ordering::Release);
    }

    /// Returns the number of removals so far. What was entered before the last of them is found by a search
    /// that begins now, unless it is removed.
    #[inline]
    pub(in crate::shared) fn removals(&self) -> u64 {
        self.0.at(REMOVALS_WORD).load(Ordering::Acquire)
    }

    /// Whether no search that began after there were so many removals, and is over, has missed an entry that
    /// was removed.
    #[inline]
    pub(in crate::shared) fn still_has(&self, removals: u64) -> bool {
        fence(Ordering::Acquire);
        self.0.at(REMOVALS_WORD).load(Ordering::Relaxed) == removals
    }

    /// Returns the version of a segment of the arena. 0 for none.
    pub(super) fn segment(&self, segment: u32) -> u32 {
        match segment as usize {
            at if at < MAX_DESCRIPTORS => self.0.at(FIRST_SEGMENT_WORD + at).load(Ordering::Acquire) as u32,
            _ => 0,
        }
    }

    pub(super) fn set_segment(&self, segment: u32, version: u32) {
        if (segment as usize) < MAX_DESCRIPTORS {
            self.0.at(FIRST_SEGMENT_WORD + segment as usize).store(u64::from(version), Ordering::Release);
        }
    }
}
