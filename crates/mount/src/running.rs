//! Requests that are being carried out, and whether their programs have given them up.
//!
//! Owns a place for each worker, which has the request that the worker carries out and the request that was
//! interrupted last; and the numbers of requests that were interrupted before they were known. Any thread.
//! The kernel sends INTERRUPT for any signal. A request is given up only if its thread is to be killed, since
//! a program that gets a harmless signal expects its call to go on. Invariants: a worker looks at its own
//! place alone; an interruption of a request that another thread reads at the same time is not lost.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{fs, io};

use parking_lot::Mutex;
use rustix::io::Errno;

/// Largest number of interruptions of unknown requests that are remembered. Most such requests have been
/// answered already.
const MAX_EARLY: usize = 256;
/// Bit of SIGKILL in the sets of signals that `/proc` shows.
const KILLED: u64 = 1 << 8;

thread_local! {
    /// Place of this thread, if it is a worker, or waits for a lock.
    static PLACE: RefCell<Option<Arc<Place>>> = const { RefCell::new(None) };
}

/// Place of a thread: the request that it carries out, and whether this request was interrupted.
#[derive(Default)]
struct Place {
    /// Number of the request; 0 if there is none.
    unique: AtomicU64,
    thread: AtomicU32,
    /// Number of the request that was interrupted last.
    interrupted: AtomicU64,
}

/// Requests that the workers of a mount carry out.
#[derive(Default)]
pub(crate) struct Running {
    places: Mutex<Vec<Arc<Place>>>,
    /// Numbers of requests that were interrupted before they were known, the latest at the end.
    early: Mutex<VecDeque<u64>>,
}

/// Guard that clears the place of a thread when its request ends, also by a panic.
struct Leaves(Arc<Place>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.unique.store(0, Ordering::Release);
    }
}

impl Running {
    /// Makes a place for this thread.
    pub(crate) fn enter(&self) {
        let place = Arc::new(Place::default());
        self.places.lock().push(Arc::clone(&place));
        PLACE.with(|own| *own.borrow_mut() = Some(place));
    }

    /// Acts on an INTERRUPT of a request. If no worker carries the request out, the interruption is
    /// remembered, because the request may be on its way to a worker.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut early = self.early.lock();
        let places = self.places.lock();
        if let Some(place) = places.iter().find(|place| place.unique.load(Ordering::Acquire) == unique) {
            return place.interrupted.store(unique, Ordering::Release);
        }
        if early.len() == MAX_EARLY {
            early.pop_front();
        }
        early.push_back(unique);
    }

    /// Returns whether a request was interrupted before it was known, and forgets the interruption.
    pub(crate) fn take_early(&self, unique: u64) -> bool {
        let mut early = self.early.lock();
        let at = early.iter().position(|one| *one == unique);
        at.and_then(|at| early.remove(at)).is_some()
    }

    /// Carries out a request on this worker by `run`. `thread` is the thread of the program that asks,
    /// `interrupted` whether an INTERRUPT came already.
    pub(crate) fn carry_out(&self, (unique, thread): (u64, u32), interrupted: bool, run: impl FnOnce()) {
        let place = PLACE.with(|own| own.borrow().clone());
        if let Some(place) = &place {
            place.thread.store(thread, Ordering::Relaxed);
            place.unique.store(unique, Ordering::Release);
            // An interruption from now on finds the place; one from before was remembered.
            if interrupted | self.take_early(unique) {
                place.interrupted.store(unique, Ordering::Release);
            }
        }
        let _leaves = place.map(Leaves);
        run();
    }
}

/// Whether the request that this thread carries out was given up. The kernel interrupts a request only once,
/// so a caller that waits looks again to see a later SIGKILL.
pub(crate) fn given_up() -> bool {
    PLACE.with(|own| own.borrow().as_ref().is_some_and(|place| place.is_given_up()))
}

/// Whether a signal came to the program whose request this thread carries out.
pub(crate) fn was_interrupted() -> bool {
    PLACE.with(|own| own.borrow().as_ref().is_some_and(|place| place.was_interrupted()))
}

/// Wait of a program for a lock, which has a thread of its own. Clones stand for the same wait.
#[derive(Clone)]
pub(crate) struct Wait(Arc<Place>);

impl Wait {
    /// Returns the wait of the request `unique`, which the thread `thread` of a program has made.
    pub(crate) fn of(unique: u64, thread: u32) -> Self {
        let place = Place { unique: unique.into(), thread: thread.into(), ..Place::default() };
        Self(Arc::new(place))
    }

    /// Ends the wait.
    pub(crate) fn end(&self) {
        self.0.interrupted.store(self.0.unique.load(Ordering::Acquire), Ordering::Release);
    }

    /// Whether the wait is to end.
    pub(crate) fn is_over(&self) -> bool {
        self.0.was_interrupted()
    }

    /// Makes this thread the thread of the wait until the thread ends.
    pub(crate) fn enter(&self) {
        PLACE.with(|own| *own.borrow_mut() = Some(Arc::clone(&self.0)));
    }
}

impl Place {
    fn was_interrupted(&self) -> bool {
        let unique = self.unique.load(Ordering::Acquire);
        unique != 0 && self.interrupted.load(Ordering::Acquire) == unique
    }

    fn is_given_up(&self) -> bool {
        self.was_interrupted() && is_killed(self.thread.load(Ordering::Relaxed))
    }
}

/// Whether a thread is to be killed. True for a thread that is gone, false for 0 (an unknown thread).
pub(crate) fn is_killed(thread: u32) -> bool {
    let is_gone = |error: io::Error| {
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
    };
    let status = fs::read_to_string(format!("/proc/{thread}/status"));
    thread != 0 && status.map_or_else(is_gone, |status| awaits_kill(&status))
}

/// Whether SIGKILL is among the pending signals of a thread with this status.
fn awaits_kill(status: &str) -> bool {
    let sets = status.lines().filter_map(|line| {
        let (key, set) = line.split_once(':')?;
        matches!(key, "SigPnd" | "ShdPnd").then(|| u64::from_str_radix(set.trim(), 16).unwrap_or(0))
    });
    sets.fold(0, |all, set| all | set) & KILLED != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pending_kill_is_seen() {
        let status = |own: &str, shared: &str| format!("Name:\tcp\nSigPnd:\t{own}\nShdPnd:\t{shared}\n");
        assert!(awaits_kill(&status("0000000000000100", "0000000000000000")));
        assert!(awaits_kill(&status("0000000000000000", "0000000000000102")));
        assert!(!awaits_kill(&status("0000000000000002", "0000000000400000")));
        assert!(!awaits_kill("nonsense"));
    }

    #[test]
    fn only_the_request_of_a_dying_thread_is_given_up() {
        let running = Running::default();
        running.enter();
        let own = std::process::id();
        running.carry_out((7, own), false, || {
            running.interrupt(8);
            running.interrupt(7);
            assert!(!given_up(), "this thread is not to be killed");
        });
        // No process has this number.
        running.carry_out((9, u32::MAX), false, || {
            running.interrupt(9);
            assert!(given_up());
        });
        running.carry_out((10, u32::MAX), false, || assert!(!given_up(), "the one before was interrupted"));
        running.carry_out((11, u32::MAX), true, || assert!(given_up(), "it was interrupted as it waited"));
    }

    #[test]
    fn an_interruption_may_overtake_its_request() {
        let running = Running::default();
        running.enter();
        (0..MAX_EARLY as u64 + 2).for_each(|unique| running.interrupt(100 + unique));
        assert!(!running.take_early(100) && !running.take_early(101), "too many came since");
        assert!(running.take_early(102) && !running.take_early(102), "it is told once");
        running.carry_out((103, u32::MAX), false, || assert!(given_up()));
    }

    #[test]
    fn a_thread_that_is_killed_after_an_interruption_is_seen() {
        let running = Running::default();
        running.enter();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep runs");
        running.carry_out((7, child.id()), false, || {
            running.interrupt(7);
            assert!(!given_up(), "the signal was another one");
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
            assert!(given_up());
        });
    }
}
