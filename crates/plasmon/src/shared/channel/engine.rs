//! The engine's end of a channel. Engine thread only.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::thread::futex;

use super::entries::{Completion, Malformed, Submission};
use super::layout::{CLOSED, DATA, DATA_LEN, LEN, MAGIC};
use super::pins::{self, TableId};
use super::ring::{self, COMPLETIONS, ENTRIES, SUBMISSIONS};
use crate::shared::words::{Ordering, Words, fence};

/// The page set of one client. Counts of its own ends are kept here, where the client cannot write.
pub struct EngineChannel {
    words: Words,
    head: Cell<u64>,
    tail: Cell<u64>,
}

impl EngineChannel {
    /// A new page set, and the descriptor that the client is to have.
    ///
    /// # Errors
    /// When the system has no memory or no descriptors to give.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (words, file) = Words::for_writers("plasmon-channel", LEN)?;
        words.at(0).store(MAGIC, Ordering::Relaxed);
        Ok((Self { words, head: Cell::new(0), tail: Cell::new(0) }, file))
    }

    /// Tells the client that nobody looks at its pins any more.
    pub fn close(&self) {
        self.words.at(CLOSED).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether there is something to take.
    pub fn has_submissions(&self) -> bool {
        SUBMISSIONS.waiting(&self.words, self.head.get()) > 0
    }

    /// The next submission.
    ///
    /// # Errors
    /// When the ring holds nonsense: the client is not worth listening to.
    pub fn take(&self) -> Option<Result<Submission, Malformed>> {
        let head = self.head.get();
        match SUBMISSIONS.waiting(&self.words, head) {
            0 => None,
            waiting if waiting > ENTRIES => Some(Err(Malformed::Ends(waiting))),
            _ => {
                self.head.set(head.wrapping_add(1));
                Some(Submission::decode(SUBMISSIONS.take(&self.words, head)))
            }
        }
    }

    /// Copies what goes with a submission, from `at` in the data area on. The client may change it
    /// meanwhile: check the copy.
    ///
    /// # Errors
    /// When that reaches beyond the data area.
    pub fn payload(&self, at: u32, into: &mut [u8]) -> Result<(), Malformed> {
        let inside = (at as usize).checked_add(into.len()).is_some_and(|end| end <= DATA_LEN);
        if inside && self.words.copy_out(DATA + at as usize, into) { Ok(()) } else { Err(Malformed::Payload) }
    }

    /// Tells the client how a submission ended; `false` if it does not take what it is told.
    pub fn complete(&self, completion: &Completion) -> bool {
        let tail = self.tail.get();
        let put = COMPLETIONS.put(&self.words, tail, completion.encode());
        if put {
            self.tail.set(tail.wrapping_add(1));
        }
        put
    }

    /// Wakes the client, if it sleeps, to what it was told.
    pub fn wake(&self) {
        if ring::must_wake(&self.words) {
            let word = self.words.low_half(COMPLETIONS.tail());
            // It fails only for an address that is none.
            let _ = futex::wake(word, futex::Flags::empty(), u32::MAX);
        }
    }

    /// Says whether the engine looks at the ring without being rung, and whether there are cores to
    /// spare for a client that looks, too. After it was told `false`, look at
    /// [`EngineChannel::has_submissions`] once more.
    pub fn set_attention(&self, looks: bool, spare: bool) {
        let attention = if looks { ring::LOOKS } else { 0 } | if spare { ring::SPARE } else { 0 };
        ring::set_attention(&self.words, attention);
    }

    /// Shows what the client has pinned, after a SeqCst fence that follows the hiding.
    pub fn for_each_pin(&self, see: impl FnMut(TableId, u32)) {
        pins::for_each_pin(&self.words, see);
    }

    /// Whether the client has read an object since this was last asked.
    pub fn take_accessed(&self, table: TableId, entry: u32) -> bool {
        pins::take_touched(&self.words, table, entry)
    }
}
