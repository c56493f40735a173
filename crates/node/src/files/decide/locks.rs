//! Decisions about locks of ranges of files. Owns no state. Any thread.

use plasmon::wire::files::{Errno, FileKind, FileOutcome, LockKind, LockRange};

use super::{Asking, Decided, Decision, Say};
use crate::files::change::Change;
use crate::files::ranges::in_the_way;
use crate::files::state::{Held, LOCK_BYTES};

/// Maximum number of locks of an inode.
const MAX_LOCKS: usize = 1 << 14;

impl Asking<'_> {
    fn wanted(&self, number: u64, range: LockRange) -> Result<Held, Errno> {
        let inode = self.inode(number)?;
        if inode.head.kind == FileKind::Symlink || range.start > range.end {
            return Err(Errno::Invalid);
        }
        // A lock ends when the session ends, so a session that has not opened the file gets none.
        if !self.session.opens.contains_key(&number) && range.kind != LockKind::Unlocked {
            return Err(Errno::NotOpen);
        }
        Ok(Held { session: self.number, range })
    }

    fn held(&self, number: u64) -> &[Held] {
        self.state.locks.get(&number).map_or(&[], |held| held)
    }
}

/// Locks or unlocks a range.
///
/// # Errors
/// `Again` if other owners have locks that exclude this one.
pub(super) fn lock(asking: &Asking<'_>, number: u64, range: LockRange) -> Decided {
    let wanted = asking.wanted(number, range)?;
    let held = asking.held(number);
    if in_the_way(held, &wanted).is_some() {
        return Err(Errno::Again);
    }
    if held.len() >= MAX_LOCKS && range.kind != LockKind::Unlocked {
        return Err(Errno::TooManyLocks);
    }
    if range.kind != LockKind::Unlocked {
        // The lock may cut another one in two.
        asking.ensure_memory(2 * LOCK_BYTES).map_err(|_| Errno::TooManyLocks)?;
    }
    let changes = vec![Change::Lock { inode: number, session: asking.number, range }];
    Ok(Decision { changes, say: Say::Entry(number) })
}

/// Returns a lock that excludes the wanted one, if there is one.
pub(super) fn test(asking: &Asking<'_>, number: u64, range: LockRange) -> Decided {
    let wanted = asking.wanted(number, range)?;
    let found = in_the_way(asking.held(number), &wanted).map(|held| held.range);
    Ok(Decision::tells(FileOutcome::Locked(found)))
}
