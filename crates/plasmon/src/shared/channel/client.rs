//! Client's end of a channel, for any number of threads of one process.
//!
//! Owns the mapping, the free slots of pins, and the client's counts of the rings. Any thread. Invariants:
//! one thread at a time has the rings; after a thread has given up, nothing in the rings is used again
//! before all of its entries are complete.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::Timespec;
use rustix::thread::{futex, sched_getcpu};

use super::counts;
use super::entries::{Completion, Operation, Outcome, Submission};
use super::layout::{CLOSED_WORD, DATA_LEN, DATA_OFFSET_BYTES, GIVEN_UP_WORD, MAGIC, PAGE_SET_BYTES};
use super::pins::{self, FreeSlots, Slot, TableId};
use super::ring::{ASLEEP, ATTENTION, COMPLETIONS, CORE, ENTRIES, SUBMISSIONS};
use crate::ObjectId;
use crate::shared::words::{Ordering, Words};

/// Time that a client sleeps, or waits for the rings, before it checks whether the daemon lives.
const ALIVE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Number of checks of the ring between two reads of the clock.
const LOOKS_PER_CLOCK_READ: u32 = 64;
/// Number of times that a client yields its core before it sleeps. Many clients on few cores find their
/// completions meanwhile, and need no wake-up by the engine. That makes one and a half times as many puts a
/// second.
const YIELDS_BEFORE_SLEEP: u32 = 4;
/// Number of uses of the rings, after two threads have wanted them at once, in which no thread waits in the
/// rings for other nodes. Other threads would have to wait as well, while sockets carry any number of
/// requests.
const CROWDED_USES: u32 = 64;

/// Client's end of the page set that the daemon made for this client.
pub struct ClientChannel {
    words: Words,
    bell: OwnedFd,
    free: FreeSlots,
    ring: Mutex<Ends>,
    /// Whether the thread that has the rings is calling `alive`. The call may run foreign code, which may
    /// need the rings, too.
    asking: AtomicBool,
    /// Whether the next get is to be timed.
    time_next: AtomicBool,
    /// Whether a thread gave up waiting and its completions have not been taken yet.
    abandoned: AtomicBool,
    /// Number of further uses of the rings in which no thread waits for other nodes.
    crowded: AtomicU32,
}

/// Entry that was completed in the ring after the thread that wanted it had given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stray {
    /// Creation of the object with this id, which is to be aborted.
    Creation(ObjectId),
    /// Number of an outcome, which is to be collected so that the daemon can forget it; and the id if the
    /// entry was a creation, which is to be aborted if the object was created.
    Outcome(u64, Option<ObjectId>),
}

/// Client's counts of its ends of the rings, and the used part of the data area.
#[derive(Default)]
struct Ends {
    tail: u64,
    head: u64,
    data: usize,
    /// Whether a thread gave up waiting for the entries under way. The rings are not used again before all of
    /// these entries are complete.
    abandoned: bool,
    /// Creations under way: token and id.
    creating: Vec<(u64, ObjectId)>,
    /// Entries that were completed after their threads had given up.
    strays: Vec<Stray>,
}

impl ClientChannel {
    /// Maps a page set.
    ///
    /// # Errors
    /// If the page set is not one of this release, or if it cannot be mapped.
    pub fn new(pages: &OwnedFd, bell: OwnedFd) -> io::Result<Self> {
        let words = Words::open(pages, true)?;
        if words.len() != PAGE_SET_BYTES || words.at(0).load(Ordering::Relaxed) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a channel of this release"));
        }
        Ok(Self {
            words,
            bell,
            free: FreeSlots::default(),
            ring: Mutex::default(),
            asking: AtomicBool::new(false),
            time_next: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            crowded: AtomicU32::new(0),
        })
    }

    /// Returns a descriptor of the bell that wakes the engine.
    ///
    /// # Errors
    /// If this process can have no more descriptors.
    pub fn bell(&self) -> io::Result<OwnedFd> {
        self.bell.try_clone()
    }

    /// Pins an entry. The pin holds only if the entry's generation is the same after the call as before.
    /// `None` if all slots are in use.
    #[inline]
    pub fn pin(&self, table: TableId, entry: u32) -> Option<Slot> {
        let slot = self.free.take()?;
        pins::pin(&self.words, &slot, table, entry);
        Some(slot)
    }

    /// Whether the engine has stopped looking at this client's pins, so that no pin holds. The caller asks
    /// this after a pin was set.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.words.at(CLOSED_WORD).load(Ordering::Relaxed) != 0
    }

    /// Clears a pin, and gives its slot back.
    #[inline]
    pub fn unpin(&self, slot: Slot) {
        pins::unpin(&self.words, &slot);
        self.free.give_back(slot);
    }

    /// Begins a get. Returns the time if this get is to be timed.
    #[inline]
    pub fn begin_get(&self) -> Option<Instant> {
        if self.time_next.load(Ordering::Relaxed) && self.time_next.swap(false, Ordering::Relaxed) {
            Some(Instant::now())
        } else {
            None
        }
    }

    /// Counts a get that ends with this pin, and its time if the get is timed.
    #[inline]
    pub fn end_get(&self, slot: &Slot, began: Option<Instant>) {
        if let Some(began) = began {
            let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            counts::count_time(&self.words, ns);
        }
        if counts::count(&self.words, slot.number()) {
            self.time_next.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that the object of an entry was read.
    #[inline]
    pub fn touch(&self, table: TableId, entry: u32) {
        pins::touch(&self.words, table, entry);
    }

    /// Takes the rings for this thread alone. `None` while a thread has given up waiting, or may give up
    /// now, and the daemon has not answered; also until [`ClientChannel::strays`] were taken. So a daemon
    /// that does not answer does not block this thread.
    pub fn ring(&self) -> Option<Ring<'_>> {
        if self.asking.load(Ordering::Relaxed) {
            return None;
        }
        let mut ends = match self.ring.try_lock() {
            Some(ends) => ends,
            None => {
                self.crowded.store(CROWDED_USES, Ordering::Relaxed);
                self.ring.try_lock_for(ALIVE_CHECK_INTERVAL)?
            }
        };
        let of_use = ends.catch_up(&self.words) && ends.strays.is_empty();
        let crowded = self.crowded.load(Ordering::Relaxed);
        if crowded > 0 {
            // A count that another thread has set meanwhile is lost, and is set again soon.
            self.crowded.store(crowded - 1, Ordering::Relaxed);
        }
        of_use.then_some(Ring { channel: self, ends, patient: crowded == 0 })
    }

    /// Takes the entries that were completed after their threads had given up. The caller aborts or collects
    /// them.
    pub fn strays(&self) -> Vec<Stray> {
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
    /// Takes the completions for which no thread waits. Returns `false` if more completions are to come.
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
            let made = self.creating.iter().find(|(token, _)| *token == late.token).map(|(_, id)| *id);
            self.strays.extend(match late.outcome {
                Outcome::Done => made.map(Stray::Creation),
                Outcome::Collect => Some(Stray::Outcome(late.answer, made)),
                Outcome::AskBySocket => None,
            });
        }
        self.begin_anew();
        true
    }

    /// Resets the rings after all entries are complete.
    fn begin_anew(&mut self) {
        self.data = 0;
        self.abandoned = false;
        self.creating.clear();
    }
}

/// Rings of a channel, held by one thread.
pub struct Ring<'a> {
    channel: &'a ClientChannel,
    ends: MutexGuard<'a, Ends>,
    /// Whether this thread may wait in the rings for other nodes.
    patient: bool,
}

impl Ring<'_> {
    /// Submits an entry with the payload `parts`. Returns `false` if there is no room before
    /// [`Ring::finish`]. The entry is not patient if other threads have wanted the rings lately.
    pub fn submit(&mut self, submission: Submission, parts: &[&[u8]]) -> bool {
        let words = &self.channel.words;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        // The payload takes whole cache lines, so that two entries share no line.
        let end = self.ends.data + len.next_multiple_of(64);
        // The engine takes entries while others are written, and must have room for all completions.
        if end > DATA_LEN || self.ends.tail.wrapping_sub(self.ends.head) >= ENTRIES {
            return false;
        }
        let payload = self.ends.data as u32;
        let mut at = DATA_OFFSET_BYTES + self.ends.data;
        for part in parts {
            words.copy_in(at, part);
            at += part.len();
        }
        let patient = submission.patient && self.patient;
        let entry = Submission { payload, patient, ..submission }.encode();
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

    /// Waits for the completions of all submissions. The thread spins for `spin` if the engine is awake and
    /// a core is idle, otherwise yields its core a few times, and then sleeps. Every 50 ms and after signals
    /// the thread calls `alive`, and gives up when `alive` returns `false`. Then the rings cannot be used
    /// again until the daemon has answered.
    ///
    /// # Errors
    /// [`Unanswered`] if the thread gave up. The submissions may still be carried out.
    pub fn finish(
        self,
        spin: Duration,
        alive: impl FnMut() -> bool,
        done: impl FnMut(Completion),
    ) -> Result<(), Unanswered> {
        self.finish_napping(ALIVE_CHECK_INTERVAL, spin, alive, done)
    }

    pub(super) fn finish_napping(
        mut self,
        nap: Duration,
        spin: Duration,
        mut alive: impl FnMut() -> bool,
        mut done: impl FnMut(Completion),
    ) -> Result<(), Unanswered> {
        let words = &self.channel.words;
        CORE.set(words, sched_getcpu());
        let rang = ATTENTION.must_ring(words);
        if rang {
            // The write fails only if the count is full. The engine is then being woken already.
            let _ = rustix::io::write(&self.channel.bell, &1u64.to_ne_bytes());
        }
        // The engine that was woken may be put on this core, so this thread does not spin.
        let spare = !rang && ATTENTION.is_spare(words);
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

    /// Spins for at most `spin`. Returns whether a completion came.
    fn look(&self, spin: Duration) -> bool {
        let words = &self.channel.words;
        let started = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_CLOCK_READ {
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

    /// Yields this core a few times, to the engine or to other clients. Returns whether a completion came.
    fn give_way(&self) -> bool {
        (0..YIELDS_BEFORE_SLEEP).any(|_| {
            thread::yield_now();
            COMPLETIONS.waiting(&self.channel.words, self.ends.head) > 0
        })
    }

    /// Sleeps until a completion comes. Returns `false` if `alive` returned `false` before.
    fn sleep(&self, nap: Duration, alive: &mut impl FnMut() -> bool) -> bool {
        let words = &self.channel.words;
        let nap = Timespec::try_from(nap).ok();
        ASLEEP.set(words, true);
        let mut awake = true;
        while COMPLETIONS.waiting(words, self.ends.head) == 0 {
            // If a completion came meanwhile, the kernel sees that the word has changed and does not sleep.
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
        ASLEEP.set(words, false);
        awake
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        // The next thread would otherwise take completions of entries that this thread did not wait for.
        if self.ends.head != self.ends.tail {
            // Entries that the engine has not begun are not carried out any more.
            self.channel.words.at(GIVEN_UP_WORD).store(self.ends.tail, Ordering::Relaxed);
            self.ends.abandoned = true;
            self.channel.abandoned.store(true, Ordering::Relaxed);
        }
    }
}

/// Error of submissions that the daemon did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered;
