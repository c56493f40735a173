//! Engine's end of a channel.
//!
//! Owns the page set of a client. Engine thread only. Invariant: no word that the client wrote is used
//! unchecked.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::thread::futex;

use super::counts::{self, Counts};
use super::entries::{Completion, Malformed, Submission};
use super::layout::{CLOSED_WORD, DATA_LEN, DATA_OFFSET_BYTES, GIVEN_UP_WORD, MAGIC, PAGE_SET_BYTES};
use super::pins::{self, TableId};
use super::ring::{ASLEEP, ATTENTION, COMPLETIONS, CORE, ENTRIES, SUBMISSIONS};
use crate::shared::words::{Ordering, Words, fence};

/// Engine's end of the page set of one client. The engine's counts of its ends of the rings are in this
/// value, where the client cannot write them.
pub struct EngineChannel {
    words: Words,
    head: Cell<u64>,
    tail: Cell<u64>,
}

impl EngineChannel {
    /// Makes a page set. Returns it with the descriptor for the client.
    ///
    /// # Errors
    /// If the system has no memory or no descriptors.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (words, file) = Words::for_writers("plasmon-channel", PAGE_SET_BYTES)?;
        words.at(0).store(MAGIC, Ordering::Relaxed);
        Ok((Self { words, head: Cell::new(0), tail: Cell::new(0) }, file))
    }

    /// Tells the client that the engine does not look at the client's pins any more.
    pub fn close(&self) {
        self.words.at(CLOSED_WORD).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the client has submitted entries that were not taken yet.
    pub fn has_submissions(&self) -> bool {
        SUBMISSIONS.waiting(&self.words, self.head.get()) > 0
    }

    /// Takes the next submission, if there is one.
    ///
    /// # Errors
    /// If the ring holds an invalid entry. The caller then ends the client's connection.
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

    /// Returns the place of the submission that was taken last among all submissions of this client.
    pub fn last_taken(&self) -> u64 {
        self.head.get().wrapping_sub(1)
    }

    /// Whether the client says that it has given up waiting for the submission at this place. An operation
    /// that has not begun is then better left undone.
    pub fn was_given_up(&self, place: u64) -> bool {
        let given_up = self.words.at(GIVEN_UP_WORD).load(Ordering::Relaxed);
        // Counts wrap, and a client that gives up has at most a ring of entries under way.
        (1..=ENTRIES).contains(&given_up.wrapping_sub(place))
    }

    /// Copies the payload of a submission, from the offset `at` in the data area on. The client may change
    /// the payload meanwhile, so the caller checks the copy.
    ///
    /// # Errors
    /// If the payload reaches beyond the data area.
    pub fn payload(&self, at: u32, into: &mut [u8]) -> Result<(), Malformed> {
        let inside = (at as usize).checked_add(into.len()).is_some_and(|end| end <= DATA_LEN);
        if inside && self.words.copy_out(DATA_OFFSET_BYTES + at as usize, into) {
            Ok(())
        } else {
            Err(Malformed::Payload)
        }
    }

    /// Tells the client how a submission ended. Returns `false` if the client's ring has no room.
    pub fn complete(&self, completion: &Completion) -> bool {
        let tail = self.tail.get();
        let put = COMPLETIONS.put(&self.words, tail, completion.encode());
        if put {
            self.tail.set(tail.wrapping_add(1));
        }
        put
    }

    /// Wakes the client for its completions, if the client sleeps.
    pub fn wake(&self) {
        if ASLEEP.must_wake(&self.words) {
            let word = self.words.low_half(COMPLETIONS.tail());
            // The call fails only for an invalid address.
            let _ = futex::wake(word, futex::Flags::empty(), u32::MAX);
        }
    }

    /// Announces whether the engine looks at the ring without the bell, and whether a core is idle on which
    /// the client may spin. After `looks` is `false`, the caller checks [`EngineChannel::has_submissions`]
    /// once more.
    pub fn set_attention(&self, looks: bool, spare: bool) {
        ATTENTION.set(&self.words, looks, spare);
    }

    /// Whether the client last waited on this core, as the client says. An engine that spins on this core
    /// keeps the client waiting.
    pub fn is_on_core(&self, core: usize) -> bool {
        CORE.is(&self.words, core)
    }

    /// Calls `see` for every pin of the client. The caller has hidden entries and passed a SeqCst fence
    /// before.
    pub fn for_each_pin(&self, see: impl FnMut(TableId, u32)) {
        pins::for_each_pin(&self.words, see);
    }

    /// Returns the counts of gets that the client says it has made.
    pub fn counts(&self) -> Counts {
        counts::read(&self.words, pins::used(&self.words))
    }

    /// Returns whether the client has read the object of an entry since the last call. The call clears the
    /// access bit.
    pub fn take_accessed(&self, table: TableId, entry: u32) -> bool {
        pins::take_touched(&self.words, table, entry)
    }
}
