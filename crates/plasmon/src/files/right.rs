//! The right to map a file so that stores are seen by others, as a session has it.
//!
//! Owns the number of opens with the right, and whether a program may be about to end the last one. Any
//! thread. The home gives the right to one session at a time, since two kernels cannot keep one page. A
//! session that begins anew has lost it: others may have mapped the file since. Invariant: what is stored
//! through mappings is written only as long as the session has the right.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::volume::Shared;
use super::{Error, Result};
use crate::wire::files::Errno;

/// Longest wait for the end of an open of which a descriptor was closed. The kernel tells of the end at once,
/// but by another request.
const RELEASE_PATIENCE: Duration = Duration::from_millis(500);
/// Time between two looks whether the open has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Right of a session to map one file.
#[derive(Default)]
pub(super) struct Right(Mutex<Had>);

#[derive(Default)]
struct Had {
    /// Number of opens with the right.
    opens: u32,
    /// Number of times that the session had begun anew when it got the right.
    losses: u64,
    /// Whether a descriptor of the file was closed since others last waited for the right.
    is_closing: bool,
}

impl Right {
    /// Whether an open may ask for the right. It may not while opens are left that have lost theirs, because
    /// a store through a mapping does not tell by which open it was mapped.
    pub(super) fn may_be_asked(&self, losses: u64) -> bool {
        let had = self.0.lock();
        had.opens == 0 || had.losses == losses
    }

    /// Notes an open that has got the right by the session that had begun anew `losses` times.
    pub(super) fn begin(&self, losses: u64) {
        let mut had = self.0.lock();
        if had.opens == 0 {
            had.losses = losses;
        }
        had.opens += 1;
    }

    /// Notes the end of an open with the right. Returns whether the home still counts the open.
    pub(super) fn end(&self, losses: u64) -> bool {
        let mut had = self.0.lock();
        had.opens = had.opens.saturating_sub(1);
        had.losses == losses
    }

    /// Returns the number of opens for which the home gave the session the right.
    pub(super) fn opens(&self, losses: u64) -> u32 {
        let had = self.0.lock();
        if had.losses == losses { had.opens } else { 0 }
    }

    /// Refuses stores through mappings that were made with a right which the session has lost.
    pub(super) fn refuse_lost(&self, losses: u64) -> Result<()> {
        if self.may_be_asked(losses) {
            return Ok(());
        }
        let text = "the right to map the file went while this host's node was away: close the file";
        Err(Error::because(Errno::Io, text))
    }

    /// Notes that a program has closed a descriptor of the file.
    pub(super) fn note_close(&self) {
        self.0.lock().is_closing = true;
    }

    /// Whether the end of the last open may be about to be told.
    fn may_end(&self) -> bool {
        let had = self.0.lock();
        had.is_closing && had.opens > 0
    }

    /// Notes that the end of the last open did not come, so that nobody waits for it again.
    fn stays(&self) {
        self.0.lock().is_closing = false;
    }
}

impl Shared {
    /// Tells the home of all closes, because another session opens a file that this one may map. Waits for
    /// the end of an open of which a program has closed its descriptor.
    pub(super) fn give_right_back(&self, inode: u64) {
        if let Some(open) = self.inode(inode) {
            let until = Instant::now() + RELEASE_PATIENCE;
            while open.right.may_end() && Instant::now() < until && !self.is_over(LOOK_INTERVAL) {}
            open.right.stays();
        }
        self.tell_all_closes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_of_a_session_of_before_is_lost_until_all_its_opens_end() {
        let right = Right::default();
        assert!(right.may_be_asked(3));
        right.begin(3);
        right.begin(3);
        assert_eq!((right.opens(3), right.refuse_lost(3)), (2, Ok(())));
        assert_eq!((right.opens(4), right.may_be_asked(4)), (0, false));
        assert_eq!(right.refuse_lost(4).map_err(|error| error.errno()), Err(Errno::Io));
        assert!(!right.end(4), "the home of the next session does not know the open");
        assert!(right.refuse_lost(4).is_err(), "an open is left");
        assert!(!right.end(4));
        assert!(right.may_be_asked(4) && right.refuse_lost(4).is_ok());
        right.begin(4);
        assert!(right.end(4));
    }

    #[test]
    fn an_end_is_awaited_once_after_each_close() {
        let right = Right::default();
        right.note_close();
        assert!(!right.may_end(), "nobody has the right");
        right.begin(0);
        assert!(right.may_end());
        right.stays();
        assert!(!right.may_end());
        right.note_close();
        assert!(right.may_end());
        right.end(0);
        assert!(!right.may_end(), "it has ended");
    }
}
