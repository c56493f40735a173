//! Client's end of its slots, for any number of threads of one process.
//!
//! Owns the mapping, the list of free slots, and the set of abandoned slots. Any thread. Invariant: a slot is
//! on the list, or one thread has it, or it is abandoned until its result has come.

use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::Timespec;
use rustix::thread::{futex, sched_getcpu};

use super::entries::{CallRequest, CallResult};
use super::mapped::{self, PINS};
use super::slots::{ATTENTION, BIT_WORDS, CORE, Slot};
use super::waiting::{CallKind, Wait, WaitStats, Waits};
use super::{MAGIC, PAGE_SET_BYTES};
use crate::shared::channel::Unanswered;
use crate::shared::free::Free;
use crate::shared::words::{Ordering, Words};

/// Time that a thread sleeps before it checks whether to go on waiting.
const ALIVE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Number of checks of a result between two reads of the clock.
const LOOKS_PER_CLOCK_READ: u32 = 64;
/// Number of times that a thread yields its core before it sleeps. Many threads on few cores find their
/// results meanwhile, and need no wake-up by the engine.
const YIELDS_BEFORE_SLEEP: u32 = 4;

/// Slots that the daemon made for this client.
pub struct ClientCalls {
    words: Words,
    bell: OwnedFd,
    free: Free<BIT_WORDS>,
    /// Pins that no thread has.
    pins: Free<{ PINS / 64 }>,
    /// Slots whose threads gave up waiting. Such a slot is free when its result has come.
    abandoned: [AtomicU64; BIT_WORDS],
    /// Number of threads that wait for a free slot, asleep on `freed`.
    short: AtomicU32,
    lock: Mutex<()>,
    freed: Condvar,
    waits: Waits,
}

impl ClientCalls {
    /// Maps a page set. `bell` is the bell of the client's channel.
    ///
    /// # Errors
    /// If the page set is not one of this release, or if it cannot be mapped.
    pub fn new(pages: &OwnedFd, bell: OwnedFd) -> io::Result<Self> {
        let words = Words::open(pages, true)?;
        if words.len() != PAGE_SET_BYTES || words.at(0).load(Ordering::Relaxed) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the slots of this release"));
        }
        Ok(Self {
            words,
            bell,
            free: Free::default(),
            pins: Free::default(),
            abandoned: Default::default(),
            short: AtomicU32::new(0),
            lock: Mutex::default(),
            freed: Condvar::new(),
            waits: Waits::default(),
        })
    }

    /// Submits a request in a free slot. If there is no free slot, the thread waits for one. Meanwhile the
    /// thread calls `alive` every 50 ms, and gives up when `alive` returns `false`. The call under way holds
    /// `calls`, a reference or a smart pointer.
    ///
    /// # Errors
    /// [`Unanswered`] if the thread gave up. Nothing was submitted.
    pub fn submit<C: Deref<Target = Self>>(
        calls: C,
        request: &CallRequest,
        Manner { far, goes_on }: Manner,
        alive: &mut impl FnMut() -> bool,
    ) -> Result<CallUnderWay<C>, Unanswered> {
        let slot = match calls.take() {
            Some(slot) => slot,
            None => calls.wait_for_slot(alive)?,
        };
        let began = Instant::now();
        CORE.set(&calls.words, sched_getcpu());
        let seq = slot.seq(&calls.words).wrapping_add(1);
        slot.submit(&calls.words, seq, request);
        let rang = calls.ring();
        let kind = CallKind { opcode: request.opcode, far };
        Ok(CallUnderWay { calls, slot, seq, kind, goes_on, began, rang, ended: false })
    }

    /// Rings the bell if the engine does not look at the slots. Returns whether the bell was rung.
    fn ring(&self) -> bool {
        let must_ring = ATTENTION.must_ring(&self.words);
        if must_ring {
            // The write fails only if the count is full. The engine is then being woken already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
        must_ring
    }

    /// Lets `act` touch the region of a word, if the engine says that the region may be touched. Otherwise,
    /// or if too many threads of this client touch regions, returns `None`.
    #[inline]
    pub fn touch<T>(&self, region: u32, act: impl FnOnce() -> T) -> Option<T> {
        let pin = self.pins.take()?;
        let touched = mapped::touch(&self.words, pin, region, act);
        self.pins.give_back(pin);
        touched
    }

    /// Begins a view of the region of a word, if the engine says that the region may be touched. Returns the
    /// number of the view. Otherwise, or if this client has too many views, returns `None`.
    pub fn begin_view(&self, region: u32) -> Option<u32> {
        let pin = self.pins.take()?;
        if mapped::begin_view(&self.words, pin, region) {
            return Some(pin);
        }
        self.pins.give_back(pin);
        None
    }

    /// Ends the view with this number.
    pub fn end_view(&self, view: u32) {
        mapped::end_view(&self.words, view);
        self.pins.give_back(view);
    }

    /// Returns the number of waits so far, by how they ended.
    pub fn stats(&self) -> WaitStats {
        self.waits.stats()
    }

    /// Takes a free slot.
    fn take(&self) -> Option<Slot> {
        self.regain();
        self.free.take().map(|slot| Slot(slot as u8))
    }

    /// Frees the abandoned slots whose results have come.
    fn regain(&self) {
        for (at, word) in self.abandoned.iter().enumerate() {
            let mut bits = word.load(Ordering::Acquire);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits &= !bit;
                let slot = Slot((at * 64) as u8 + bit.trailing_zeros() as u8);
                // The thread that clears the bit gives the slot back.
                if slot.is_answered(&self.words, slot.seq(&self.words))
                    && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
                {
                    self.give_back(slot);
                }
            }
        }
    }

    /// Waits for a free slot.
    fn wait_for_slot(&self, alive: &mut impl FnMut() -> bool) -> Result<Slot, Unanswered> {
        let mut lock = self.lock.lock();
        self.short.fetch_add(1, Ordering::Relaxed);
        // From now on, a thread that gives a slot back sees this wait, or this thread sees the slot.
        fence(Ordering::SeqCst);
        let slot = loop {
            // The lock is held from here until the thread sleeps: no notice comes in between.
            if let Some(slot) = self.free.take() {
                break Ok(Slot(slot as u8));
            }
            let late = self.freed.wait_for(&mut lock, ALIVE_CHECK_INTERVAL).timed_out();
            // Both calls below may give slots back, which needs the lock.
            if late
                && !MutexGuard::unlocked(&mut lock, || {
                    self.regain();
                    alive()
                })
            {
                break Err(Unanswered);
            }
        };
        self.short.fetch_sub(1, Ordering::Relaxed);
        slot
    }

    /// Puts a slot back on the list, and tells a thread that waits for one.
    fn give_back(&self, slot: Slot) {
        self.free.give_back(slot.0.into());
        fence(Ordering::SeqCst);
        if self.short.load(Ordering::Relaxed) > 0 {
            let _lock = self.lock.lock();
            self.freed.notify_one();
        }
    }
}

/// Properties of a call that its request does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manner {
    /// Whether another node carries out the operation.
    pub far: bool,
    /// Whether the operation goes on when its call is given up. Otherwise the engine ends the operation.
    pub goes_on: bool,
}

/// Call whose result has not been read yet. Dropping the value gives the call up: the operation goes on or is
/// ended, as its [`Manner`] says, and the slot is free again when the result has come.
pub struct CallUnderWay<C: Deref<Target = ClientCalls>> {
    calls: C,
    slot: Slot,
    seq: u32,
    kind: CallKind,
    goes_on: bool,
    began: Instant,
    /// Whether the engine had to be woken.
    rang: bool,
    ended: bool,
}

impl<C: Deref<Target = ClientCalls>> CallUnderWay<C> {
    /// Waits for the result. If the engine is awake and a core is idle, the thread first spins for as long
    /// as such calls lately took. Then the thread yields its core a few times, and then it sleeps. Every 50
    /// ms and after signals the thread calls `alive`, and gives up when `alive` returns `false`.
    ///
    /// # Errors
    /// [`Unanswered`] if the thread gave up. The operation may still be carried out.
    pub fn wait(self, alive: &mut impl FnMut() -> bool) -> Result<CallResult, Unanswered> {
        self.wait_napping(ALIVE_CHECK_INTERVAL, alive)
    }

    pub(super) fn wait_napping(
        mut self,
        nap: Duration,
        alive: &mut impl FnMut() -> bool,
    ) -> Result<CallResult, Unanswered> {
        if self.comes_napping(nap, alive) { Ok(self.take()) } else { Err(Unanswered) }
    }

    /// Waits for the result as [`CallUnderWay::wait`] does. Returns whether the result has come. If not, the
    /// caller may wait again.
    pub fn comes(&mut self, alive: &mut impl FnMut() -> bool) -> bool {
        self.comes_napping(ALIVE_CHECK_INTERVAL, alive)
    }

    /// Waits for the result as [`CallUnderWay::comes`] does, but calls `alive` after each `nap`. A longer nap
    /// makes a long wait cost less.
    pub fn comes_napping(&mut self, nap: Duration, alive: &mut impl FnMut() -> bool) -> bool {
        let calls = &*self.calls;
        // The engine that was woken may be put on this core, so this thread does not spin.
        let spare = !self.rang && ATTENTION.is_spare(&calls.words);
        let look = if spare { calls.waits.look(self.kind) } else { Duration::ZERO };
        let wait = if self.has_come() || self.look(look) {
            Wait::Looked
        } else if self.give_way() {
            Wait::Yielded
        } else if self.sleep(nap, alive) {
            Wait::Slept
        } else {
            return false;
        };
        calls.waits.note(self.kind, wait, self.began.elapsed());
        true
    }

    /// Has the engine end the operation, if the operation still waits for something. The result comes in any
    /// case. It is an error of the kind `Interrupted` if the operation was ended or had not begun.
    pub fn end_early(&self) {
        self.slot.give_up(&self.calls.words, self.seq);
        self.calls.ring();
    }

    /// Takes the result, which has come.
    pub fn take(mut self) -> CallResult {
        let result = self.slot.result(&self.calls.words);
        self.ended = true;
        self.calls.give_back(self.slot);
        result
    }

    /// Whether the result has come, so that [`CallUnderWay::wait`] returns at once.
    pub fn has_come(&self) -> bool {
        self.slot.is_answered(&self.calls.words, self.seq)
    }

    /// Spins for at most `span`. Returns whether the result came.
    fn look(&self, span: Duration) -> bool {
        if span.is_zero() {
            return false;
        }
        let started = Instant::now();
        loop {
            for _ in 0..LOOKS_PER_CLOCK_READ {
                if self.has_come() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if started.elapsed() >= span {
                return false;
            }
        }
    }

    /// Yields this core a few times, to the engine or to other threads. Returns whether the result came.
    fn give_way(&self) -> bool {
        (0..YIELDS_BEFORE_SLEEP).any(|_| {
            thread::yield_now();
            self.has_come()
        })
    }

    /// Sleeps until the result comes. Returns `false` if `alive` returned `false` before.
    fn sleep(&self, nap: Duration, alive: &mut impl FnMut() -> bool) -> bool {
        let words = &self.calls.words;
        let nap = Timespec::try_from(nap).ok();
        let before = self.seq.wrapping_sub(1);
        self.slot.asleep().set(words, true);
        let mut awake = true;
        while !self.has_come() {
            // If the result came meanwhile, the kernel sees that the word has changed and does not sleep.
            let word = words.low_half(self.slot.result_word());
            let slept = futex::wait(word, futex::Flags::empty(), before, nap.as_ref());
            if slept.is_err() && !self.has_come() {
                awake = alive();
                if !awake {
                    break;
                }
            }
        }
        self.slot.asleep().set(words, false);
        awake
    }
}

impl<C: Deref<Target = ClientCalls>> Drop for CallUnderWay<C> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if !self.goes_on && !self.has_come() {
            self.end_early();
        }
        // Once the bit is set, another thread may take the slot.
        let bit = 1 << (self.slot.0 % 64);
        self.calls.abandoned[usize::from(self.slot.0) / 64].fetch_or(bit, Ordering::Release);
    }
}
