//! Locks of ranges of files.
//!
//! Owns no state: the home has the locks, and ends those of a session that ends. Any thread. Invariants: what
//! was written is committed before a range is unlocked, if it can be; a lock is got with the attributes as
//! they are then, so that the holder reads what others have written.

use std::thread;
use std::time::Duration;

use super::session::{Answered, succeeded, unexpected};
use super::volume::Shared;
use super::watch::Keep;
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
    /// `Again` if others hold the range, and still when the call gave up. `Io` if a lock of the same owner
    /// went with a session of before. Why something that was written is not at the home: the range is
    /// unlocked nevertheless.
    pub fn lock(&self, inode: u64, range: LockRange, mut goes_on: impl FnMut() -> bool) -> Result<Entry> {
        let unlocks = range.kind == LockKind::Unlocked;
        let settled = if unlocks { self.0.settle(inode) } else { Ok(()) };
        let mut pause = SHORTEST_PAUSE;
        loop {
            // The lock is one of the session that has the file open.
            self.0.open_again();
            if !unlocks {
                self.0.tell_unlocks_of(inode, &range)?;
            }
            let losses = self.0.session.losses();
            match self.0.lock_of(losses, inode, range) {
                Err(error) if error.errno() == Errno::Again && goes_on() => {}
                Err(_) if losses != self.0.session.losses() => {}
                locked => return settled.and(self.entry_of(locked?)),
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

impl Shared {
    /// Locks or unlocks a range by the session that has begun anew so often.
    fn lock_of(&self, losses: u64, inode: u64, range: LockRange) -> Result<(FileOutcome, Keep)> {
        let open = self.inode(inode);
        let refuse_lost = || open.as_ref().map_or(Ok(()), |open| open.held.refuse_lost(&range, losses));
        let unlocks = range.kind == LockKind::Unlocked;
        if unlocks {
            // Whether the home hears of it or not, the program is not to write by this lock any more.
            open.iter().for_each(|open| open.held.note(&range, losses));
        }
        refuse_lost()?;
        let operation = FileOperation::Lock { inode, range, wait: false };
        let Answered { outcome, keep, .. } =
            self.session.ask_of(Some(losses), &Actor::default(), operation)?;
        let outcome = succeeded(outcome)?;
        if !unlocks {
            open.iter().for_each(|open| open.held.note(&range, losses));
        }
        Ok((outcome, keep))
    }
}
