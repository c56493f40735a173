//! Locks of ranges of files.
//!
//! Owns no state: the home has the locks, and ends those of a session that ends. Any thread. Invariants: what
//! was written is committed before a range is unlocked; a lock is got with the attributes as they are then,
//! so that the holder reads what others have written.

use std::thread;
use std::time::Duration;

use super::session::unexpected;
use super::{Entry, Result, Volume};
use crate::wire::files::{Actor, Errno, FileOperation, FileOutcome, LockKind, LockRange};

/// Pauses between two attempts to get a lock: the first, and the longest.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

impl Volume {
    /// Locks or unlocks a range of a file that is open. While others hold the range, the call tries again as
    /// long as `goes_on` says. Returns the attributes of the file when it was locked.
    ///
    /// A lock is never given to a call that does not wait any more, since the home is asked again and again
    /// instead of answering later.
    ///
    /// # Errors
    /// `Again` if others hold the range, and still when the call gave up.
    pub fn lock(&self, inode: u64, range: LockRange, mut goes_on: impl FnMut() -> bool) -> Result<Entry> {
        if range.kind == LockKind::Unlocked {
            self.0.settle(inode)?;
        }
        let mut pause = SHORTEST_PAUSE;
        loop {
            let operation = FileOperation::Lock { inode, range, wait: false };
            match self.entry(&Actor::default(), operation) {
                Err(error) if error.errno() == Errno::Again && goes_on() => {}
                result => return result,
            }
            thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Lock of others that is in the way of one, if there is one.
    ///
    /// # Errors
    /// As [`Volume::lookup`].
    pub fn test_lock(&self, inode: u64, range: LockRange) -> Result<Option<LockRange>> {
        match self.0.ask(&Actor::default(), FileOperation::TestLock { inode, range })?.0 {
            FileOutcome::Locked(range) => Ok(range),
            _ => Err(unexpected()),
        }
    }
}
