//! Locks that a session has of one file, and whether they were lost when the session began anew.
//!
//! Owns the ranges of the locks, each with the number of times that the session had begun anew when it got
//! the lock. Any thread. A session that begins anew has lost its locks: others may have got them since, and
//! changed the file. Invariant: until the owner of a lost lock has unlocked it, or closed the file, no byte
//! of the file is read or written here, as with NFS.

use std::slice;

use parking_lot::Mutex;

use super::inode::Inode;
use super::volume::Shared;
use super::{Error, Result};
use crate::wire::files::{Errno, FileOperation, LockKind, LockRange};

/// Locks of a file.
#[derive(Default)]
pub(super) struct Held(Mutex<Vec<HeldRange>>);

/// Lock of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeldRange {
    owner: u64,
    flock: bool,
    start: u64,
    /// Offset of the last byte of the range.
    end: u64,
    /// Number of times that the session had begun anew when it got the lock.
    losses: u64,
}

impl Held {
    /// Notes that a range was locked or unlocked by the session that had begun anew `losses` times.
    pub(super) fn note(&self, range: &LockRange, losses: u64) {
        let &LockRange { owner, flock, start, end, kind, .. } = range;
        let mut ranges = self.0.lock();
        let parts = ranges.drain(..).flat_map(|held| held.without(range)).collect();
        *ranges = parts;
        if kind != LockKind::Unlocked {
            ranges.push(HeldRange { owner, flock, start, end, losses });
        }
    }

    /// Returns the number of times that the session with the locks had begun anew. `None` if there are no
    /// locks.
    ///
    /// # Errors
    /// `Io` if a lock was lost: the session had not begun anew `losses` times when it got the lock.
    pub(super) fn session(&self, losses: impl FnOnce() -> u64) -> Result<Option<u64>> {
        let ranges = self.0.lock();
        if ranges.is_empty() {
            return Ok(None);
        }
        let losses = losses();
        if ranges.iter().any(|held| held.losses != losses) { Err(lost()) } else { Ok(Some(losses)) }
    }

    /// Whether an owner has a lock, by `flock` or by `fcntl`.
    pub(super) fn has(&self, owner: u64, flock: bool) -> bool {
        self.0.lock().iter().any(|held| (held.owner, held.flock) == (owner, flock))
    }

    /// Refuses a lock if its owner has a lost lock of the file.
    pub(super) fn refuse_lost(&self, range: &LockRange, losses: u64) -> Result<()> {
        let is_lost = |held: &HeldRange| held.is_of(range) && held.losses != losses;
        if self.0.lock().iter().any(is_lost) { Err(lost()) } else { Ok(()) }
    }
}

impl HeldRange {
    fn is_of(&self, range: &LockRange) -> bool {
        (self.owner, self.flock) == (range.owner, range.flock)
    }

    /// Returns the parts of a lock that are left when its owner locks or unlocks a range, at most two.
    fn without(self, range: &LockRange) -> impl Iterator<Item = Self> + use<> {
        let apart = !self.is_of(range) || range.end < self.start || self.end < range.start;
        let before = range.start.checked_sub(1).filter(|end| !apart && self.start <= *end);
        let behind = range.end.checked_add(1).filter(|start| !apart && *start <= self.end);
        let before = before.map(|end| Self { end, ..self });
        apart.then_some(self).into_iter().chain(before).chain(behind.map(|start| Self { start, ..self }))
    }
}

impl Shared {
    /// Refuses a file of which a lock was lost. If the file is locked, returns which session has to carry
    /// out an operation on its bytes: the number of times that this session had begun anew.
    pub(super) fn session_of(&self, open: &Inode) -> Result<Option<u64>> {
        open.held.session(|| self.session.losses())
    }

    /// Acts as [`Shared::session_of`] for the files whose bytes an operation changes or copies.
    pub(super) fn session_for(&self, operation: &FileOperation) -> Result<Option<u64>> {
        use FileOperation::{Append, Clone, Open, Punch, SetAttributes};
        let inodes = match operation {
            SetAttributes { inode, set } if set.size.is_some() => slice::from_ref(inode),
            Open { inode, truncate: true, .. } | Punch { inode, .. } | Append { inode, .. } => {
                slice::from_ref(inode)
            }
            Clone { source, inode, .. } => &[*source, *inode],
            _ => &[],
        };
        let mut of = None;
        for open in inodes.iter().filter_map(|inode| self.inode(*inode)) {
            of = self.session_of(&open)?.or(of);
        }
        Ok(of)
    }
}

fn lost() -> Error {
    let text = "a lock of the file went while this host's node was away: unlock it, or close the file";
    Error::because(Errno::Io, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: (u64, u64) = (0, u64::MAX);

    fn range(owner: u64, kind: LockKind, (start, end): (u64, u64)) -> LockRange {
        LockRange { owner, pid: 7, start, end, kind, flock: false }
    }

    #[test]
    fn a_lock_of_a_session_of_before_is_lost_until_it_is_unlocked() {
        let held = Held::default();
        assert_eq!(held.session(|| unreachable!("nothing is locked")), Ok(None));
        held.note(&range(1, LockKind::Shared, (0, 9)), 4);
        held.note(&range(2, LockKind::Exclusive, (20, 29)), 4);
        assert_eq!(held.session(|| 4), Ok(Some(4)));
        assert_eq!(held.session(|| 5).map_err(|error| error.errno()), Err(Errno::Io));
        let [first, second, third] = [1, 2, 3].map(|owner| range(owner, LockKind::Shared, ALL));
        assert!(held.refuse_lost(&first, 5).is_err() && held.refuse_lost(&second, 5).is_err());
        assert_eq!(held.refuse_lost(&third, 5), Ok(()), "it has no lock");
        assert_eq!(held.refuse_lost(&LockRange { flock: true, ..first }, 5), Ok(()));
        assert!(held.has(1, false) && !held.has(1, true) && !held.has(9, false));
        held.note(&range(1, LockKind::Unlocked, ALL), 5);
        assert!(!held.has(1, false));
        assert!(held.session(|| 5).is_err(), "the other one is lost as well");
        held.note(&range(2, LockKind::Unlocked, (20, 29)), 5);
        assert_eq!(held.session(|| 5), Ok(None));
    }

    #[test]
    fn locks_of_one_owner_do_not_overlap() {
        let held = Held::default();
        let parts = || -> Vec<_> { held.0.lock().iter().map(|held| (held.start, held.end)).collect() };
        held.note(&range(1, LockKind::Exclusive, ALL), 0);
        held.note(&range(1, LockKind::Shared, (10, 19)), 0);
        assert_eq!(parts(), [(0, 9), (20, u64::MAX), (10, 19)]);
        held.note(&range(1, LockKind::Unlocked, (5, 25)), 0);
        assert_eq!(parts(), [(0, 4), (26, u64::MAX)]);
        held.note(&range(2, LockKind::Unlocked, ALL), 0);
        assert_eq!(parts().len(), 2, "another owner has none");
        held.note(&range(1, LockKind::Unlocked, (0, 4)), 0);
        held.note(&range(1, LockKind::Unlocked, (26, u64::MAX)), 0);
        assert_eq!(parts(), []);
    }
}
