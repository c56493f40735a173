//! The root of a table: one page of words.
//!
//! | word | what |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 1 | seed of the hash |
//! | 2 | version of the index in force |
//! | 3 | flags |
//! | 4 | until when the engine is taken to live, in milliseconds of the monotonic clock |
//! | 16..80 | versions of the arena's segments |

use std::time::Duration;

use crate::shared::words::{Ordering, Words};
use crate::wire::MAX_DESCRIPTORS;

/// "plasmon" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"plasmon\x01");
/// Bytes.
pub(super) const LEN: usize = 4096;
/// What is not in this table exists nowhere.
pub(super) const SOLO: u64 = 1;
/// Some object is not in the index, for want of room at its place.
pub(super) const INCOMPLETE: u64 = 2;

const SEED: usize = 1;
const INDEX: usize = 2;
const FLAGS: usize = 3;
const LIVES_UNTIL: usize = 4;
const SEGMENTS: usize = 16;

/// The monotonic clock, in milliseconds, as exact as is cheap.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// A root, written or read.
pub(super) struct Root(Words);

impl Root {
    /// Begins a table.
    pub(super) fn begin(words: Words, seed: u64) -> Self {
        words.at(SEED).store(seed, Ordering::Relaxed);
        words.at(0).store(MAGIC, Ordering::Release);
        Self(words)
    }

    /// What another process has begun; nothing if it is of another release.
    pub(super) fn of(words: Words) -> Option<Self> {
        (words.at(0).load(Ordering::Acquire) == MAGIC).then_some(Self(words))
    }

    pub(super) fn seed(&self) -> u64 {
        self.0.at(SEED).load(Ordering::Relaxed)
    }

    pub(super) fn index(&self) -> u32 {
        self.0.at(INDEX).load(Ordering::Acquire) as u32
    }

    /// Puts an index in force: it is complete.
    pub(super) fn set_index(&self, version: u32) {
        self.0.at(INDEX).store(u64::from(version), Ordering::Release);
    }

    pub(super) fn flags(&self) -> u64 {
        self.0.at(FLAGS).load(Ordering::Acquire)
    }

    pub(super) fn set_flag(&self, flag: u64, on: bool) {
        let flags = self.0.at(FLAGS).load(Ordering::Relaxed);
        self.0.at(FLAGS).store(if on { flags | flag } else { flags & !flag }, Ordering::Release);
    }

    /// The engine lives, and says so again within this time. From an empty span on nobody reads: not even
    /// within the millisecond in which that is said.
    pub(super) fn live_for(&self, span: Duration) {
        let until = if span.is_zero() { 0 } else { now() + span.as_millis() as u64 };
        self.0.at(LIVES_UNTIL).store(until, Ordering::Relaxed);
    }

    /// Whether the engine can be taken to live.
    #[inline]
    pub(super) fn lives(&self) -> bool {
        now() <= self.0.at(LIVES_UNTIL).load(Ordering::Relaxed)
    }

    /// The version of a segment of the arena; 0 for none.
    pub(super) fn segment(&self, segment: u32) -> u32 {
        match segment as usize {
            at if at < MAX_DESCRIPTORS => self.0.at(SEGMENTS + at).load(Ordering::Acquire) as u32,
            _ => 0,
        }
    }

    pub(super) fn set_segment(&self, segment: u32, version: u32) {
        if (segment as usize) < MAX_DESCRIPTORS {
            self.0.at(SEGMENTS + segment as usize).store(u64::from(version), Ordering::Release);
        }
    }
}
