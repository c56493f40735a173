//! Settling of the first bytes of a file that wait for a commit, while its writer goes on.
//!
//! Owns the outcome. Any thread. A thread of the background settles objects without the lock of the file.
//! The thread that has the file locked takes the outcome, and waits for it if need be. If no thread of the
//! background had time yet, that thread settles the objects itself, so it does not wait for other files.
//! Invariants: the background does not wait for the lock before its outcome is told or after the outcome was
//! taken, since the taker may wait for other threads of the background; one thread at a time settles
//! sections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Error, Result};
use crate::wire::files::{Errno, Section};

/// Time between two checks whether the outcome was taken.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Objects that are being settled.
pub(super) struct Ahead {
    begun: Instant,
    /// Whether the writer has taken the outcome, or does not want it any more.
    taken: AtomicBool,
    stage: Mutex<Stage>,
    ended: Condvar,
}

enum Stage {
    /// No thread has begun to settle the objects.
    Waits,
    Runs,
    /// The settling has ended. The outcome is `None` once it was taken, or is not wanted any more.
    Over(Option<Result<Vec<Section>>>),
}

impl Ahead {
    pub(super) fn begin() -> Arc<Self> {
        let (taken, stage) = (AtomicBool::new(false), Mutex::new(Stage::Waits));
        Arc::new(Self { begun: Instant::now(), taken, stage, ended: Condvar::new() })
    }

    /// Begins to settle the objects by this thread. Returns `false` if this thread is not to settle them.
    pub(super) fn run(&self) -> bool {
        let mut stage = self.stage.lock();
        let waits = matches!(&*stage, Stage::Waits) && !self.taken.load(Ordering::Acquire);
        if waits {
            *stage = Stage::Runs;
        }
        waits
    }

    /// Returns the time when the settling was asked for.
    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    /// Notes that the writer has taken the outcome, or does not want it any more.
    pub(super) fn let_go(&self) {
        self.taken.store(true, Ordering::Release);
    }

    /// Locks the state of the file, which the writer may have locked. `None` if the outcome was taken.
    pub(super) fn lock<'a, T>(&self, writer: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        loop {
            let locked = writer.try_lock_for(LOOK_INTERVAL);
            if self.taken.load(Ordering::Acquire) {
                return None;
            }
            if locked.is_some() {
                return locked;
            }
        }
    }

    /// Waits for the sections with the nodes on which their objects lie, and takes the sections. `None` if no
    /// thread has begun to settle the objects; none will begin afterwards.
    ///
    /// # Errors
    /// The reason why the objects are not settled.
    pub(super) fn wait(&self) -> Option<Result<Vec<Section>>> {
        let mut stage = self.stage.lock();
        while matches!(&*stage, Stage::Runs) {
            self.ended.wait(&mut stage);
        }
        match std::mem::replace(&mut *stage, Stage::Over(None)) {
            Stage::Over(outcome) => outcome,
            Stage::Waits | Stage::Runs => None,
        }
    }
}

/// Guard that ends the settling, also by a panic, so that the writer does not wait for ever.
pub(super) struct Settling {
    ahead: Arc<Ahead>,
    outcome: Result<Vec<Section>>,
}

impl Settling {
    pub(super) fn new(ahead: &Arc<Ahead>) -> Self {
        let none = Error::because(Errno::Io, "the bytes were not brought to their place");
        Self { ahead: Arc::clone(ahead), outcome: Err(none) }
    }

    /// Tells the outcome.
    pub(super) fn end(mut self, outcome: Result<Vec<Section>>) {
        self.outcome = outcome;
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Ok(Vec::new()));
        *self.ahead.stage.lock() = Stage::Over(Some(outcome));
        self.ahead.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_does_not_wait_for_a_thread_that_has_ended() {
        let ahead = Ahead::begin();
        assert!(ahead.run(), "nobody has settled it");
        drop(Settling::new(&ahead));
        let failed = ahead.wait().expect("a thread had begun");
        assert_eq!(failed.expect_err("nothing was settled").errno(), Errno::Io);
        Settling::new(&ahead).end(Ok(Vec::new()));
        assert_eq!(ahead.wait(), Some(Ok(Vec::new())));
    }

    #[test]
    fn a_writer_does_not_wait_for_a_thread_that_has_not_begun() {
        let ahead = Ahead::begin();
        let settling = Settling::new(&ahead);
        assert_eq!(ahead.wait(), None, "the writer does it itself");
        assert!(!ahead.run(), "it is done already");
        drop(settling);
    }

    #[test]
    fn nobody_waits_for_a_writer_that_has_taken_the_outcome() {
        let (ahead, writer) = (Ahead::begin(), Mutex::new(7));
        assert_eq!(ahead.lock(&writer).as_deref(), Some(&7));
        let _held = writer.lock();
        ahead.let_go();
        assert!(ahead.lock(&writer).is_none());
    }
}
