//! Locks of ranges of files.
//!
//! Owns no state: the home has the locks, and ends the locks of a session that ends. Any thread. Invariants:
//! written bytes are committed before a range is unlocked, if they can be; a lock comes with the attributes
//! of that moment, so that the holder reads what others have written.

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
    /// Locks or unlocks a range of an open file. While others hold the range, the call tries again as long as
    /// `goes_on` returns true. Returns the attributes of the file at the moment of the lock.
    ///
    /// A lock is never given to a call that does not wait any more, since the home is asked again and again
    /// instead of answering later.
    ///
    /// # Errors
    /// `Again` if others held the range until the call gave up. `Io` if a lock of the same owner was lost
    /// when the session began anew. The reason why written bytes are not at the home; the range is unlocked
    /// nevertheless.
    pub fn lock(&self, inode: u64, range: LockRange, mut goes_on: impl FnMut() -> bool) -> Result<Entry> {
        let unlocks = range.kind == LockKind::Unlocked;
        let settled = if unlocks { self.0.settle(inode) } else { Ok(()) };
        let mut pause = SHORTEST_PAUSE;
        loop {
            // The lock belongs to the session that has the file open.
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

    /// Returns a lock of others that is in the way of a lock, if there is one.
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
    /// Locks or unlocks a range by the session that has begun anew `losses` times.
    fn lock_of(&self, losses: u64, inode: u64, range: LockRange) -> Result<(FileOutcome, Keep)> {
        let open = self.inode(inode);
        let refuse_lost = || open.as_ref().map_or(Ok(()), |open| open.held.refuse_lost(&range, losses));
        let unlocks = range.kind == LockKind::Unlocked;
        if unlocks {
            // Even if the home does not get the operation, the program is not to write by this lock any more.
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
