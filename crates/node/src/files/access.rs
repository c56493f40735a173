//! Permissions: who may do what to an inode. Pure.
//!
//! A session of root, or of the node's own user, that acts for others leaves the permissions of files to the
//! kernel of its host, if it says so. For all others they are looked at here, as POSIX has them.

use plasmon::wire::files::Errno;

use super::state::Head;
use crate::object::ROOT;

/// Permission to read.
pub(super) const READ: u16 = 4;
/// Permission to write.
pub(super) const WRITE: u16 = 2;
/// Permission to execute a file, or to look names up in a folder.
pub(super) const SEARCH: u16 = 1;
/// The sticky bit.
const STICKY: u16 = 0o1000;
/// The bit by which a program gets the group of its file, and what is made in a folder the folder's.
pub(super) const SET_GROUP: u16 = 0o2000;

/// Whether sessions of a user say themselves for whom they act: root's, and those of the node's own user.
pub(super) fn is_trusted(user: u32) -> bool {
    user == ROOT || user == rustix::process::geteuid().as_raw()
}

/// A user who acts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: &'a [u32],
    /// Whether permissions are looked at.
    pub(super) checked: bool,
}

impl Who<'_> {
    fn is_free(&self) -> bool {
        !self.checked || self.uid == 0
    }

    /// Whether the user is of a group.
    pub(super) fn is_of(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Refuses a user who lacks one of these permissions.
    ///
    /// # Errors
    /// `NoAccess`.
    pub(super) fn ensure_may(&self, head: &Head, wanted: u16) -> Result<(), Errno> {
        let shift = match () {
            () if self.uid == head.uid => 6,
            () if self.is_of(head.gid) => 3,
            () => 0,
        };
        let granted = head.mode >> shift & 7;
        if self.is_free() || granted & wanted == wanted { Ok(()) } else { Err(Errno::NoAccess) }
    }

    /// Refuses a user to whom an inode does not belong.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub(super) fn ensure_owns(&self, head: &Head) -> Result<(), Errno> {
        if self.is_free() || self.uid == head.uid { Ok(()) } else { Err(Errno::NotPermitted) }
    }

    /// Refuses a user who is not root.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub(super) fn ensure_root(&self) -> Result<(), Errno> {
        if self.is_free() { Ok(()) } else { Err(Errno::NotPermitted) }
    }

    /// Refuses a user who may not take a name away from a folder: of a sticky one, only its owner and the
    /// inode's may.
    ///
    /// # Errors
    /// `NoAccess`, or `NotPermitted`.
    pub(super) fn ensure_may_take(&self, folder: &Head, taken: &Head) -> Result<(), Errno> {
        self.ensure_may(folder, WRITE | SEARCH)?;
        let stuck = folder.mode & STICKY != 0 && self.uid != folder.uid && self.uid != taken.uid;
        if stuck && !self.is_free() { Err(Errno::NotPermitted) } else { Ok(()) }
    }
}

/// Mode of an inode of which another user than root has written bytes, or which got another owner.
pub(super) fn without_privileges(head: &Head) -> u16 {
    head.kind.without_privileges(head.mode.into()) as u16
}
