//! Failures to commit bytes of a file, and which opens were told of them.
//!
//! Owns the last failure of an open file. The thread that has the file locked. Each open of the file is told
//! a failure once, by its next sync, as Linux does (`errseq_t`). A close of a descriptor is told as well.
//! That does not count, because programs close inherited descriptors and ignore errors. A later open is told
//! the failure if no sync was told it before. Invariant: a failure that was noted is told by the first sync
//! that follows, whichever open it is of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::inode::Inode;
use super::volume::Shared;
use super::{Error, Result, Volume};

/// Failures of a file.
#[derive(Default)]
pub(super) struct Failures {
    count: u64,
    last: Option<Error>,
    /// Whether a sync was told the last failure.
    told: bool,
}

/// Failures of which an open was told. Clones stand for the same open.
#[derive(Debug, Clone, Default)]
pub struct Seen(Arc<AtomicU64>);

impl Failures {
    /// Notes a failure.
    pub(super) fn note(&mut self, error: Error) {
        self.count += 1;
        self.last = Some(error);
        self.told = false;
    }

    /// Returns the failures that count as told for an open that begins now.
    pub(super) fn seen(&self) -> Seen {
        let unseen = u64::from(!self.told);
        Seen(Arc::new(AtomicU64::new(self.count.saturating_sub(unseen))))
    }

    /// Returns the last failure, unless this open was told of it. The failure still counts as not told.
    pub(super) fn look(&self, seen: &Seen) -> Option<Error> {
        self.last.clone().filter(|_| seen.0.load(Ordering::Relaxed) != self.count)
    }

    /// Returns the last failure, unless this open was told of it, and counts the failure as told.
    pub(super) fn tell(&mut self, seen: &Seen) -> Option<Error> {
        if seen.0.swap(self.count, Ordering::Relaxed) == self.count {
            return None;
        }
        self.told = true;
        self.last.clone()
    }
}

impl Volume {
    /// Commits as [`Volume::flush`] does, when a program closes a descriptor. A failure that this call
    /// returns still counts as not told.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub fn flush_and_look(&self, inode: u64, seen: &Seen) -> Result<()> {
        let Some(open) = self.0.inode(inode) else { return Ok(()) };
        open.right.note_close();
        self.0.commit_and_look(inode, &open, seen)
    }

    /// Ends one open of an inode as [`Volume::close`] does, for callers whose programs see no failure. `maps`
    /// says whether the open had the right to map the file.
    ///
    /// # Errors
    /// As [`Volume::flush_and_look`].
    pub fn release(&self, inode: u64, seen: &Seen, maps: bool) -> Result<()> {
        let flushed = self.0.inode(inode).map_or(Ok(()), |open| self.0.commit_and_look(inode, &open, seen));
        self.0.close(inode, maps);
        flushed
    }
}

impl Shared {
    /// Commits waiting bytes of a file, and returns a failure of which the open was not told.
    fn commit_and_look(&self, inode: u64, open: &Inode, seen: &Seen) -> Result<()> {
        let mut state = self.lock(open)?;
        let committed = self.commit(inode, &mut state);
        state.failures.look(seen).map_or(committed, Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::files::Errno;

    #[test]
    fn each_open_is_told_a_failure_once() {
        let mut failures = Failures::default();
        let [first, second] = [failures.seen(), failures.seen()];
        assert_eq!(failures.tell(&first), None);
        assert_eq!(failures.look(&first), None);
        failures.note(Error::new(Errno::Io));
        assert_eq!(failures.look(&first), Some(Error::new(Errno::Io)));
        assert_eq!(failures.tell(&first.clone()), Some(Error::new(Errno::Io)), "a look does not count");
        assert_eq!((failures.look(&first), failures.tell(&first)), (None, None), "it was told");
        assert_eq!(failures.tell(&failures.seen()), None, "the open is younger");
        assert_eq!(failures.tell(&second), Some(Error::new(Errno::Io)));
        failures.note(Error::new(Errno::NotFound));
        assert_eq!(failures.tell(&first), Some(Error::new(Errno::NotFound)));
    }

    #[test]
    fn a_failure_that_nobody_was_told_of_is_told_to_the_next_open() {
        let mut failures = Failures::default();
        failures.note(Error::new(Errno::Io));
        let later = failures.seen();
        assert_eq!(failures.tell(&later), Some(Error::new(Errno::Io)));
        assert_eq!(failures.tell(&later), None);
    }
}
