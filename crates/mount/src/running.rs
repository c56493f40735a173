//! Requests that are being carried out, and those of them that their program has given up.
//!
//! Owns a place for each worker: the request that it carries out, and which was interrupted. Any thread.
//! The kernel sends INTERRUPT for any signal. A request is given up only if its thread is to be killed,
//! since a program that gets a harmless signal expects its call to go on. Invariant: a worker looks at its
//! own place alone.

use std::cell::RefCell;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Bit of SIGKILL in the sets of signals that `/proc` shows.
const KILLED: u64 = 1 << 8;

thread_local! {
    /// Place of this thread, if it is a worker.
    static PLACE: RefCell<Option<Arc<Place>>> = const { RefCell::new(None) };
}

/// Request that a worker carries out.
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
}

impl Running {
    /// Makes a place for this thread.
    pub(crate) fn enter(&self) {
        let place = Arc::new(Place::default());
        self.places.lock().push(Arc::clone(&place));
        PLACE.with(|own| *own.borrow_mut() = Some(place));
    }

    /// Acts on an INTERRUPT of this request. Returns whether a worker carries it out.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let places = self.places.lock();
        let Some(place) = places.iter().find(|place| place.unique.load(Ordering::Acquire) == unique) else {
            return false;
        };
        place.interrupted.store(unique, Ordering::Release);
        true
    }
}

/// Carries out a request of a thread of a program as this worker's.
pub(crate) fn carry_out(unique: u64, thread: u32, run: impl FnOnce()) {
    let place = PLACE.with(|own| own.borrow().clone());
    if let Some(place) = &place {
        place.thread.store(thread, Ordering::Relaxed);
        place.unique.store(unique, Ordering::Release);
    }
    run();
    if let Some(place) = &place {
        place.unique.store(0, Ordering::Release);
    }
}

/// Whether the request that this thread carries out was given up. The kernel interrupts a request once, so
/// that a later signal is seen by looking again.
pub(crate) fn given_up() -> bool {
    PLACE.with(|own| own.borrow().as_ref().is_some_and(|place| place.is_given_up()))
}

impl Place {
    fn is_given_up(&self) -> bool {
        let unique = self.unique.load(Ordering::Acquire);
        unique != 0
            && self.interrupted.load(Ordering::Acquire) == unique
            && is_killed(self.thread.load(Ordering::Relaxed))
    }
}

/// Whether a thread is to be killed. A thread that is gone is.
fn is_killed(thread: u32) -> bool {
    fs::read_to_string(format!("/proc/{thread}/status")).map_or(true, |status| awaits_kill(&status))
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
        carry_out(7, own, || {
            assert!(!running.interrupt(8));
            assert!(running.interrupt(7));
            assert!(!given_up(), "this thread is not to be killed");
        });
        // No process has this number.
        carry_out(9, u32::MAX, || {
            assert!(running.interrupt(9));
            assert!(given_up());
        });
        carry_out(10, u32::MAX, || assert!(!given_up(), "the one before was interrupted"));
        assert!(!running.interrupt(10));
    }

    #[test]
    fn a_thread_that_is_killed_after_an_interruption_is_seen() {
        let running = Running::default();
        running.enter();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep runs");
        carry_out(7, child.id(), || {
            assert!(running.interrupt(7));
            assert!(!given_up(), "the signal was another one");
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
            assert!(given_up());
        });
    }
}
