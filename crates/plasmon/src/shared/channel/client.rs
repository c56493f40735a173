//! The client's end of a channel, for any number of threads of one process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::Timespec;
use rustix::thread::futex;

use super::entries::{Completion, Operation, Outcome, Submission};
use super::layout::{CLOSED, DATA, DATA_LEN, LEN, MAGIC};
use super::pins::{self, FreeSlots, Slot, TableId};
use super::ring::{self, COMPLETIONS, ENTRIES, SUBMISSIONS};
use crate::ObjectId;
use crate::shared::words::{Ordering, Words};

/// How long a client sleeps before it looks whether the daemon lives.
const NAP: Duration = Duration::from_millis(50);
/// Looks at the ring between two looks at the clock.
const LOOKS: u32 = 64;
/// How often a client yields its core before it sleeps, where it may not look: many clients on few cores
/// find their completions so without the engine having to wake each, half as many puts again a second.
const YIELDS: u32 = 4;

/// A page set that the daemon made for this client.
pub struct ClientChannel {
    words: Words,
    bell: OwnedFd,
    free: FreeSlots,
    ring: Mutex<Ends>,
    /// Whoever has the rings asks whether to go on waiting. Foreign code may answer, and want them, too.
    asking: AtomicBool,
    /// Somebody gave up waiting, and what comes of it has not been seen to.
    abandoned: AtomicBool,
}

/// Counts of the client's ends, and what of the data area is in use.
#[derive(Default)]
struct Ends {
    tail: u64,
    head: u64,
    data: usize,
    /// What is under way is not waited for: nothing is used again before all of it is done.
    abandoned: bool,
    /// Creations under way, by token.
    creating: Vec<(u64, ObjectId)>,
    /// Creations that were made when nobody waited for them any more.
    strays: Vec<ObjectId>,
}

impl ClientChannel {
    /// Maps a page set.
    ///
    /// # Errors
    /// When it is not one of this release, or cannot be mapped.
    pub fn new(pages: &OwnedFd, bell: OwnedFd) -> io::Result<Self> {
        let words = Words::open(pages, true)?;
        if words.len() != LEN || words.at(0).load(Ordering::Relaxed) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a channel of this release"));
        }
        Ok(Self {
            words,
            bell,
            free: FreeSlots::default(),
            ring: Mutex::default(),
            asking: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        })
    }

    /// Pins an entry. Only if its generation is still what it was, after this, does the pin hold.
    /// Nothing when all slots are in use.
    #[inline]
    pub fn pin(&self, table: TableId, entry: u32) -> Option<Slot> {
        let slot = self.free.take()?;
        pins::pin(&self.words, &slot, table, entry);
        Some(slot)
    }

    /// Whether the engine has let go of this client: no pin holds any more. To be asked after a pin was set.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.words.at(CLOSED).load(Ordering::Relaxed) != 0
    }

    /// Takes a pin back.
    #[inline]
    pub fn unpin(&self, slot: Slot) {
        pins::unpin(&self.words, &slot);
        self.free.give_back(slot);
    }

    /// Notes that an object was read.
    #[inline]
    pub fn touch(&self, table: TableId, entry: u32) {
        pins::touch(&self.words, table, entry);
    }

    /// The rings, for this thread alone; nothing while the daemon has yet to answer what somebody has given
    /// up waiting for, or may give up now, and until [`ClientChannel::strays`] were taken. A daemon that
    /// answers nobody must not keep this thread, either.
    pub fn ring(&self) -> Option<Ring<'_>> {
        if self.asking.load(Ordering::Relaxed) {
            return None;
        }
        let mut ends = self.ring.try_lock_for(NAP)?;
        let of_use = ends.catch_up(&self.words) && ends.strays.is_empty();
        of_use.then_some(Ring { channel: self, ends })
    }

    /// Creations that were made when nobody waited for them any more: they are to be aborted.
    pub fn strays(&self) -> Vec<ObjectId> {
        if !self.abandoned.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let Some(mut ends) = self.ring.try_lock() else { return Vec::new() };
        if !ends.catch_up(&self.words) {
            return Vec::new();
        }
        self.abandoned.store(false, Ordering::Relaxed);
        std::mem::take(&mut ends.strays)
    }
}

impl Ends {
    /// Takes what came for those who did not wait for it; `false` if more is to come.
    fn catch_up(&mut self, words: &Words) -> bool {
        if !self.abandoned {
            return true;
        }
        if COMPLETIONS.waiting(words, self.head) < self.tail.wrapping_sub(self.head) {
            return false;
        }
        while self.head != self.tail {
            let late = Completion::decode(COMPLETIONS.take(words, self.head));
            self.head = self.head.wrapping_add(1);
            let made = self.creating.iter().find(|(token, _)| *token == late.token);
            self.strays.extend(made.filter(|_| late.outcome == Outcome::Done).map(|(_, id)| *id));
        }
        self.begin_anew();
        true
    }

    /// Nothing is under way.
    fn begin_anew(&mut self) {
        self.data = 0;
        self.abandoned = false;
        self.creating.clear();
    }
}

/// The rings of a channel, in the hands of one thread.
pub struct Ring<'a> {
    channel: &'a ClientChannel,
    ends: MutexGuard<'a, Ends>,
}

impl Ring<'_> {
    /// Submits an entry whose bytes are these, one after the other; `false` if there is no room before
    /// [`Ring::finish`].
    pub fn submit(&mut self, submission: Submission, parts: &[&[u8]]) -> bool {
        let words = &self.channel.words;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        // Whole cache lines, so that what two entries carry shares none.
        let end = self.ends.data + len.next_multiple_of(64);
        // The engine takes entries while others are put in: it must have room for all completions.
        if end > DATA_LEN || self.ends.tail.wrapping_sub(self.ends.head) >= ENTRIES {
            return false;
        }
        let payload = self.ends.data as u32;
        let mut at = DATA + self.ends.data;
        for part in parts {
            words.copy_in(at, part);
            at += part.len();
        }
        let entry = Submission { payload, ..submission }.encode();
        if !SUBMISSIONS.put(words, self.ends.tail, entry) {
            return false;
        }
        self.ends.tail = self.ends.tail.wrapping_add(1);
        self.ends.data = end;
        if submission.operation == Operation::Create {
            self.ends.creating.push((submission.token, submission.id));
        }
        true
    }

    /// Waits for the completions of all that was submitted: looks for `spin` if the engine is awake and there
    /// are cores to spare, yields its core a few times if not, then sleeps. Gives up once `alive` says so,
    /// which is asked every 50 ms and after signals; the rings are of no use then until the daemon has
    /// answered.
    ///
    /// # Errors
    /// When it gave up. What was submitted may have happened.
    pub fn finish(
        self,
        spin: Duration,
        alive: impl FnMut() -> bool,
        done: impl FnMut(Completion),
    ) -> Result<(), Unanswered> {
        self.finish_napping(NAP, spin, alive, done)
    }

    pub(super) fn finish_napping(
        mut self,
        nap: Duration,
        spin: Duration,
        mut alive: impl FnMut() -> bool,
        mut done: impl FnMut(Completion),
    ) -> Result<(), Unanswered> {
        let words = &self.channel.words;
        let rang = ring::must_ring(words);
        if rang {
            // It fails only when the count is full, and then the engine is being woken already.
            let _ = rustix::io::write(&self.channel.bell, &1u64.to_ne_bytes());
        }
        // An engine that was woken may be put on this very core: it is to have it.
        let spare = !rang && ring::attention(words) & ring::SPARE != 0;
        let spin = if spare { spin } else { Duration::ZERO };
        while self.ends.head != self.ends.tail {
            let came = COMPLETIONS.waiting(words, self.ends.head) > 0
                || if spin.is_zero() { self.give_way() } else { self.look(spin) };
            if !came && !self.sleep(nap, &mut alive) {
                return Err(Unanswered);
            }
            if COMPLETIONS.waiting(words, self.ends.head) > 0 {
                done(Completion::decode(COMPLETIONS.take(words, self.ends.head)));
                self.ends.head = self.ends.head.wrapping_add(1);
            }
        }
        self.ends.begin_anew();
        Ok(())
    }

    /// Looks for a while; says whether something came.
    fn look(&self, spin: Duration) -> bool {
        let words = &self.channel.words;
        let started = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if COMPLETIONS.waiting(words, self.ends.head) > 0 {
                    return true;
                }
                std::hint::spin_loop();
            }
            if started.elapsed() >= spin {
                return false;
            }
        }
    }

    /// Lets others have this core for a while, the engine or those it has yet to serve; says whether
    /// something came meanwhile.
    fn give_way(&self) -> bool {
        (0..YIELDS).any(|_| {
            thread::yield_now();
            COMPLETIONS.waiting(&self.channel.words, self.ends.head) > 0
        })
    }

    /// Sleeps until something comes; `false` once the daemon is gone.
    fn sleep(&self, nap: Duration, alive: &mut impl FnMut() -> bool) -> bool {
        let words = &self.channel.words;
        let nap = Timespec::try_from(nap).ok();
        ring::set_asleep(words, true);
        let mut awake = true;
        while COMPLETIONS.waiting(words, self.ends.head) == 0 {
            // What came in between, the kernel sees: then the word is not this any more.
            let slept = futex::wait(
                words.low_half(COMPLETIONS.tail()),
                futex::Flags::empty(),
                self.ends.head as u32,
                nap.as_ref(),
            );
            if slept.is_err() && COMPLETIONS.waiting(words, self.ends.head) == 0 {
                self.channel.asking.store(true, Ordering::Relaxed);
                awake = alive();
                self.channel.asking.store(false, Ordering::Relaxed);
                if !awake {
                    break;
                }
            }
        }
        ring::set_asleep(words, false);
        awake
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        // Whoever came next would take the completions of what was not waited for.
        if self.ends.head != self.ends.tail {
            self.ends.abandoned = true;
            self.channel.abandoned.store(true, Ordering::Relaxed);
        }
    }
}

/// The daemon did not answer in the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered;
