//! Permissions: checks of what a user may do to an inode. Owns no state. Any thread.
//!
//! Sessions of root and of the node's own user act for other users, and leave checks to the kernel of their
//! host if they say so when they attach. Invariant: for all other sessions the checks here are those of
//! POSIX.

use plasmon::wire::files::Errno;

use super::state::Head;
use crate::object::ROOT;

/// Permission to read.
pub(super) const READ: u16 = 4;
/// Permission to write.
pub(super) const WRITE: u16 = 2;
/// Permission to execute a file, or to look names up in a folder.
pub(super) const SEARCH: u16 = 1;
/// Bit of a folder from which only the owners of a file and of the folder take the file's name.
const STICKY: u16 = 0o1000;
/// Bit by which a program gets the group of its file. An inode that is made in a folder with this bit gets
/// the folder's group.
pub(super) const SET_GROUP: u16 = 0o2000;

/// Whether sessions of a user may act for other users: sessions of root and of the node's own user.
pub(super) fn is_trusted(user: u32) -> bool {
    user == ROOT || user == rustix::process::geteuid().as_raw()
}

/// A user who acts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: &'a [u32],
    /// Whether permissions are checked here.
    pub(super) checked: bool,
}

impl Who<'_> {
    fn is_free(&self) -> bool {
        !self.checked || self.uid == 0
    }

    /// Whether the user is a member of a group.
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

    /// Refuses a user who may not take a name away from a folder. From a sticky folder, only the owners of
    /// the folder and of the inode may.
    ///
    /// # Errors
    /// `NoAccess`, or `NotPermitted`.
    pub(super) fn ensure_may_take(&self, folder: &Head, taken: &Head) -> Result<(), Errno> {
        self.ensure_may(folder, WRITE | SEARCH)?;
        let stuck = folder.mode & STICKY != 0 && self.uid != folder.uid && self.uid != taken.uid;
        if stuck && !self.is_free() { Err(Errno::NotPermitted) } else { Ok(()) }
    }
}

/// Returns the mode of an inode after another user than root has written bytes, or after a change of its
/// owner.
pub(super) fn without_privileges(head: &Head) -> u16 {
    head.kind.without_privileges(head.mode.into()) as u16
}
