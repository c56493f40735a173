//! Locks that end when programs close files.
//!
//! Owns the unlocks that the home has not answered. Any thread. A close tells the home, and waits as long as
//! any call. If the home has not answered by then, or the program is killed, the thread of the session asks
//! the operation again under its number. Invariants: an unlock is carried out once; an owner gets no lock of
//! a file before the home was told all earlier unlocks of this owner, which would end the new lock as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::credit::may_be_done;
use super::session::Lasting;
use super::volume::Shared;
use super::{Result, Volume};
use crate::wire::files::{FileOperation, LockKind, LockRange};

/// Largest number of unlocks that are not answered. If there are more, the oldest unlock is dropped, and its
/// locks end with the session.
const MAX_UNLOCKS: usize = 1 << 12;

/// Unlocks that the home has not answered, in their order.
#[derive(Default)]
pub(super) struct Unlocks(Mutex<Vec<Arc<Unlock>>>);

/// Unlock of a whole file.
struct Unlock {
    lasting: Lasting,
    inode: u64,
    owner: u64,
    flock: bool,
    /// Whether the close has ended, and has left the unlock to the thread of the session.
    is_left: AtomicBool,
}

impl Volume {
    /// Ends all locks that an owner has of a file, of `flock` or of `fcntl`, when the owner closes the file.
    /// If the home does not answer in time, it is asked again later.
    pub fn end_locks(&self, inode: u64, owner: u64, flock: bool) {
        // The error is ignored, since flushes tell what cannot be committed. The lock ends nevertheless.
        let _ = self.0.settle(inode);
        self.0.open_again();
        self.0.end_locks(inode, owner, flock);
    }
}

impl Shared {
    fn end_locks(&self, inode: u64, owner: u64, flock: bool) {
        let range = LockRange { owner, pid: 0, start: 0, end: u64::MAX, kind: LockKind::Unlocked, flock };
        let losses = self.session.losses();
        if let Some(open) = self.inode(inode) {
            open.held.note(&range, losses);
        }
        let operation = FileOperation::Lock { inode, range, wait: false };
        let lasting = self.session.begin_lasting(losses, operation);
        let unlock = Arc::new(Unlock { lasting, inode, owner, flock, is_left: AtomicBool::new(false) });
        // The unlock is noted before the home is told, because a lock that comes meanwhile waits for it.
        let oldest = self.unlocks.push(Arc::clone(&unlock));
        oldest.iter().for_each(|oldest| self.session.end_lasting(&oldest.lasting));
        if self.tell_unlock(&unlock).is_err() {
            unlock.is_left.store(true, Ordering::Release);
        }
    }

    /// Tells the home of unlocks for which no close waits any more.
    pub(super) fn tell_unlocks(&self) {
        let left = self.unlocks.some(|unlock| unlock.is_left.load(Ordering::Acquire));
        // If the home does not answer one unlock, the others are not tried now.
        let _ = left.iter().try_for_each(|unlock| self.tell_unlock(unlock));
    }

    /// Tells the home of all unlocks of an owner that is about to lock the file.
    pub(super) fn tell_unlocks_of(&self, inode: u64, range: &LockRange) -> Result<()> {
        let is_of =
            |unlock: &Unlock| (unlock.inode, unlock.owner, unlock.flock) == (inode, range.owner, range.flock);
        self.unlocks.some(is_of).iter().try_for_each(|unlock| self.tell_unlock(unlock))
    }

    /// Tells the home of an unlock.
    ///
    /// # Errors
    /// `Io` or `Interrupted` if the unlock is to be told again.
    fn tell_unlock(&self, unlock: &Arc<Unlock>) -> Result<()> {
        let answered = self.session.ask_lasting(&unlock.lasting);
        // Locks end with their session, and a removed file has no locks.
        let is_lost = self.session.losses() != unlock.lasting.losses();
        if let Err(error) = answered
            && may_be_done(&error)
            && !is_lost
        {
            return Err(error);
        }
        self.unlocks.remove(unlock);
        self.session.end_lasting(&unlock.lasting);
        Ok(())
    }
}

impl Unlocks {
    /// Adds an unlock. Returns the oldest one if there are too many.
    fn push(&self, unlock: Arc<Unlock>) -> Option<Arc<Unlock>> {
        let mut all = self.0.lock();
        let oldest = (all.len() == MAX_UNLOCKS).then(|| all.remove(0));
        all.push(unlock);
        oldest
    }

    fn some(&self, is_meant: impl Fn(&Unlock) -> bool) -> Vec<Arc<Unlock>> {
        self.0.lock().iter().filter(|unlock| is_meant(unlock)).cloned().collect()
    }

    fn remove(&self, unlock: &Arc<Unlock>) {
        self.0.lock().retain(|other| !Arc::ptr_eq(other, unlock));
    }
}
