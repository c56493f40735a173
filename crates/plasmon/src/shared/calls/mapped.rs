//! Regions that a client has mapped: whether each may be touched, and which are being touched.
//!
//! Owns no state. Any thread. The engine says in a word of each mapped region whether the client may touch
//! the memory. A thread that touches the memory says so in a pin, as with [objects](crate::shared::table):
//!
//! | a thread touches | the engine takes away |
//! |---|---|
//! | 1. stores its pin (Release) | 1. makes the word other than [`LIVE`] (Relaxed) |
//! | 2. SeqCst fence | 2. SeqCst fence |
//! | 3. the word is [`LIVE`]? then the thread touches | 3. no pin on the word? then no thread touches |
//! | 4. clears its pin (Release) | (Acquire: what was written under a cleared pin is seen) |
//!
//! At least one of the two sees the other. So after step 3 of the engine, this client does not change the
//! memory any more. A thread takes a pin from a list of the process and keeps it until the pin is cleared.
//! The engine reads only pins of this client here, so a client that writes nonsense harms only itself.

use crate::shared::words::{Ordering, Words, fence};

/// Largest number of regions that a client maps at a time.
#[cfg(not(loom))]
pub const MAPPED_MAX: u32 = 1 << 16;
/// Largest number of threads of a client that touch regions at a time.
#[cfg(not(loom))]
pub(super) const PINS: usize = 4096;

/// Index of the first pin.
const FIRST_PIN: usize = (384 << 10) / 8;
/// Index of the first word of a region.
const FIRST_STATE: usize = (512 << 10) / 8;
/// Bit of a pin that stands for a view.
const VIEW: u64 = 1 << 63;
/// Value of the word of a region that may be touched.
const LIVE: u64 = 1;

/// Lets `act` touch a region under a pin of this thread, if the engine says that the region may be touched.
#[inline]
pub(super) fn touch<T>(words: &Words, pin: u32, region: u32, act: impl FnOnce() -> T) -> Option<T> {
    let pin = words.at(FIRST_PIN + pin as usize);
    pin.store(u64::from(region) + 1, Ordering::Release);
    fence(Ordering::SeqCst);
    let live = words.at(FIRST_STATE + region as usize).load(Ordering::Relaxed) == LIVE;
    let touched = live.then(act);
    pin.store(0, Ordering::Release);
    touched
}

/// Stores a pin for a view of a region, if the engine says that the region may be touched. The pin stays
/// until [`end_view`] clears it, and does not count as a touch.
pub(super) fn begin_view(words: &Words, pin: u32, region: u32) -> bool {
    let pin = words.at(FIRST_PIN + pin as usize);
    pin.store(VIEW | (u64::from(region) + 1), Ordering::Release);
    fence(Ordering::SeqCst);
    let live = words.at(FIRST_STATE + region as usize).load(Ordering::Relaxed) == LIVE;
    if !live {
        pin.store(0, Ordering::Release);
    }
    live
}

/// Clears the pin of a view.
pub(super) fn end_view(words: &Words, pin: u32) {
    words.at(FIRST_PIN + pin as usize).store(0, Ordering::Release);
}

/// Sets whether a region may be touched. Code after this call sees the pin of every thread that saw the
/// former value.
pub(super) fn set(words: &Words, region: u32, live: bool) {
    let state = words.at(FIRST_STATE + region as usize);
    // Relaxed: a thread learns of the region by a reply, and sees what was written before the reply.
    state.store(if live { LIVE } else { 0 }, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Whether a thread touches a region. Only the first `pins` pins are looked at.
pub(super) fn is_touched(words: &Words, pins: usize, region: u32) -> bool {
    is_pinned(words, pins, u64::from(region) + 1)
}

/// Whether there is a view of a region. Only the first `pins` pins are looked at.
#[cfg(not(loom))]
pub(super) fn is_viewed(words: &Words, pins: usize, region: u32) -> bool {
    is_pinned(words, pins, VIEW | (u64::from(region) + 1))
}

fn is_pinned(words: &Words, pins: usize, pin: u64) -> bool {
    (0..pins).any(|at| words.at(FIRST_PIN + at).load(Ordering::Acquire) == pin)
}

/// Returns the words that a model needs, for `pins` pins and one region.
#[cfg(all(test, loom))]
pub(super) fn words_of(pins: usize) -> impl Iterator<Item = usize> {
    (FIRST_PIN..FIRST_PIN + pins).chain([FIRST_STATE])
}
