//! Words by which a client and the engine agree who has to wake whom.
//!
//! Owns no state: each value here is the place of a word in a page set. Any thread. Invariant: no wake-up is
//! lost, by Dekker's argument in both directions. An announcement is a tail, a submitted bit or a result.
//!
//! *To the engine*: the client announces, passes a SeqCst fence, and rings the bell unless the attention says
//! that the engine looks anyway. Before the engine sleeps it clears the attention, passes a SeqCst fence, and
//! looks again. *To the client*: the client notes that it sleeps, passes a SeqCst fence, and looks again (the
//! futex looks once more). The engine announces, passes a SeqCst fence, and wakes the client if it sleeps.

use super::words::{Ordering, Words, fence};

/// Bit of the attention: the engine looks, and needs no bell.
pub(in crate::shared) const LOOKS: u64 = 1;
/// Bit of the attention: a core is idle, and the client may spin.
pub(in crate::shared) const SPARE: u64 = 2;

/// Index of the word with the engine's attention: the bits [`LOOKS`] and [`SPARE`].
#[derive(Clone, Copy)]
pub(in crate::shared) struct Attention(pub(in crate::shared) usize);

impl Attention {
    /// Whether the client must ring the bell after it has announced something.
    pub(in crate::shared) fn must_ring(self, words: &Words) -> bool {
        fence(Ordering::SeqCst);
        words.at(self.0).load(Ordering::Relaxed) & LOOKS == 0
    }

    /// Whether the engine says that a core is idle.
    pub(in crate::shared) fn is_spare(self, words: &Words) -> bool {
        words.at(self.0).load(Ordering::Relaxed) & SPARE != 0
    }

    /// Announces whether the engine looks, and whether a core is idle. An engine that stops looking looks
    /// once more after the call.
    pub(in crate::shared) fn set(self, words: &Words, looks: bool, spare: bool) {
        let attention = if looks { LOOKS } else { 0 } | if spare { SPARE } else { 0 };
        words.at(self.0).store(attention, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Index of the word that says whether a client sleeps.
#[derive(Clone, Copy)]
pub(in crate::shared) struct Asleep(pub(in crate::shared) usize);

impl Asleep {
    /// Notes whether the client is about to sleep. The client looks once more before it sleeps.
    pub(in crate::shared) fn set(self, words: &Words, asleep: bool) {
        words.at(self.0).store(asleep.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the engine must wake the client after it has announced something.
    pub(in crate::shared) fn must_wake(self, words: &Words) -> bool {
        fence(Ordering::SeqCst);
        words.at(self.0).load(Ordering::Relaxed) != 0
    }
}

/// Index of the word with one more than the core on which the client last rang or waited. 0 is unknown.
#[derive(Clone, Copy)]
pub(in crate::shared) struct Core(pub(in crate::shared) usize);

#[cfg(not(loom))]
impl Core {
    /// Notes the core on which the client is about to wait. The core is a guess, since the client may be
    /// moved at any time.
    pub(in crate::shared) fn set(self, words: &Words, core: usize) {
        let (word, noted) = (words.at(self.0), core as u64 + 1);
        if word.load(Ordering::Relaxed) != noted {
            word.store(noted, Ordering::Relaxed);
        }
    }

    /// Whether the client last waited on this core, as it says.
    pub(in crate::shared) fn is(self, words: &Words, core: usize) -> bool {
        words.at(self.0).load(Ordering::Relaxed) == core as u64 + 1
    }
}
