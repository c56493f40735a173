//! Operations on a volume, which its home carries out. Owns no state. Any thread.

use bytes::Bytes;

use super::attributes::{SetAttributes, Time};
use super::volume::Section;
use super::{
    MAX_CLOSED, MAX_GROUPS, MAX_INLINE_BYTES, MAX_SECTIONS, MAX_SENT_NAME_BYTES, MAX_TARGET_BYTES,
    MAX_XATTR_BYTES,
};
use crate::wire::AtMost;

crate::wire::record! {
    /// User on whose behalf an operation is made. Of a session that is not trusted, the actor is always the
    /// session's own user.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Actor {
        /// User id.
        pub uid: u32,
        /// Group id.
        pub gid: u32,
        /// Further groups of the user.
        pub groups: Vec<u32> as AtMost<MAX_GROUPS>,
    }
}

crate::wire::record! {
    /// Operation with its number.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FileAsked {
        /// Number of the operation in its session. Not 0, and used for no other operation.
        pub number: u64,
        /// Number below which the session has all outcomes. The home forgets these outcomes.
        pub answered: u64,
        /// User on whose behalf the operation is made.
        pub actor: Actor,
        /// Operation that is to be carried out.
        pub operation: FileOperation,
    }
}

crate::wire::codes! {
    /// Kind of a lock of a range of a file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum LockKind: u8 {
        /// Others may lock the range in the same way.
        0 Shared,
        /// Nobody else may lock the range.
        1 Exclusive,
        /// The range is not locked any more.
        2 Unlocked,
    }
}

crate::wire::record! {
    /// Range of a lock, and who holds it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LockRange {
        /// Number by which the session tells owners of locks apart.
        pub owner: u64,
        /// Process id of the owner, for others who test for locks.
        pub pid: u32,
        /// Offset of the first byte of the range.
        pub start: u64,
        /// Offset of the last byte of the range.
        pub end: u64,
        /// Kind of the lock.
        pub kind: LockKind,
        /// Whether the lock is one of `flock`, which has no range and is independent of locks of `fcntl`.
        pub flock: bool,
    }
}

crate::wire::table! {
    /// Bytes that are appended to a file.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Written {
        /// The bytes of sections one behind the other. Their offsets count from where they come to lie.
        0 Sections(sections: Vec<Section> as AtMost<MAX_SECTIONS>),
        /// These bytes.
        1 Bytes(bytes: Bytes as AtMost<MAX_INLINE_BYTES>),
    }
}

crate::wire::table! {
    /// Operation on a volume.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum FileOperation {
        /// Looks a name up. The outcome is `Entry`. `.` and `..` are found as well.
        1 Lookup {
            /// Inode of the folder.
            folder: u64,
            /// Name of the entry.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
        },
        /// Asks for attributes. The outcome is `Entry`.
        2 GetAttributes {
            /// Number of the inode.
            inode: u64,
        },
        /// Sets attributes. The outcome is `Entry`.
        3 SetAttributes {
            /// Number of the inode.
            inode: u64,
            /// Attributes that are set.
            set: SetAttributes,
        },
        /// Makes a file and opens it, or opens the one that has the name. The outcome is `Opened`.
        4 Create {
            /// Inode of the folder.
            folder: u64,
            /// Name of the file. It is empty for a file without a name, as O_TMPFILE makes it.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
            /// Permissions.
            mode: u32,
            /// Whether the operation fails if the name is taken.
            exclusive: bool,
            /// Whether the right to map the file is asked for, as by an open to read and write.
            maps: bool,
        },
        /// Makes a folder. The outcome is `Entry`.
        5 MakeFolder {
            /// Inode of the folder in which it is made.
            folder: u64,
            /// Name of the new folder.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
            /// Permissions.
            mode: u32,
        },
        /// Makes a file, pipe, socket or device without opening it. The outcome is `Entry`.
        6 MakeNode {
            /// Inode of the folder.
            folder: u64,
            /// Name of the new inode.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
            /// Kind and permissions, as `st_mode` has them.
            mode: u32,
            /// Number of the device.
            device: u32,
        },
        /// Makes a symbolic link. The outcome is `Entry`.
        7 MakeSymlink {
            /// Inode of the folder.
            folder: u64,
            /// Name of the link.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
            /// Target of the link.
            target: Bytes as AtMost<MAX_TARGET_BYTES>,
        },
        /// Asks for the target of a symbolic link. The outcome is `Bytes`.
        8 ReadLink {
            /// Number of the inode.
            inode: u64,
        },
        /// Makes a hard link. The outcome is `Entry`.
        9 Link {
            /// Number of the inode.
            inode: u64,
            /// Inode of the folder.
            folder: u64,
            /// Name of the link.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
        },
        /// Takes a name from an inode that is no folder. The outcome is `Done`.
        10 Unlink {
            /// Inode of the folder.
            folder: u64,
            /// Name of the entry.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
        },
        /// Removes an empty folder. The outcome is `Done`.
        11 RemoveFolder {
            /// Inode of the folder in which it is.
            folder: u64,
            /// Name of the removed folder.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
        },
        /// Gives an inode another name, in one step. The outcome is `Done`.
        12 Rename {
            /// Inode of the folder.
            folder: u64,
            /// Name of the entry.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
            /// Inode of the folder of the new name.
            to_folder: u64,
            /// New name.
            to_name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
            /// Whether the operation fails if the new name is taken.
            no_replace: bool,
            /// Whether the two names are exchanged.
            exchange: bool,
            /// Whether a device of the number 0 takes the old name.
            whiteout: bool,
        },
        /// Asks for entries of a folder, `.` and `..` not among them. The outcome is `Entries`.
        13 List {
            /// Inode of the folder.
            folder: u64,
            /// Cookie behind which the page begins: 0, or that of the last entry that is known.
            after: u64,
            /// Largest cookie of the list, as its first page told it. None for the first page.
            upto: Option<u64>,
            /// Largest number of entries.
            most: u32,
        },
        /// Opens an inode, so that it stays when its last link goes. The outcome is `Opened`.
        14 Open {
            /// Number of the inode.
            inode: u64,
            /// Whether it is to be read.
            read: bool,
            /// Whether it is to be written.
            write: bool,
            /// Whether the file is cut to no bytes.
            truncate: bool,
            /// Whether the right to map the file is asked for.
            maps: bool,
        },
        /// Ends opens. The outcome is `Done`.
        15 Closed {
            /// Opens that end: the number of the inode, and whether the open had the right to map the file.
            opens: Vec<(u64, bool)> as AtMost<MAX_CLOSED>,
        },
        /// Asks for the sections of a file. The outcome is `Map`.
        16 Map {
            /// Number of the inode.
            inode: u64,
            /// Offset from which sections are wanted. The first may begin before it.
            from: u64,
        },
        /// Puts sections over what a file has there. A commit makes a file longer, never shorter. The
        /// outcome is `Entry`, or `NoRoomInline`.
        17 Commit {
            /// Number of the inode.
            inode: u64,
            /// Sections, in any order. Later ones lie over earlier ones.
            sections: Vec<Section> as AtMost<MAX_SECTIONS>,
            /// Time of the last write. None for the time of the home.
            modified: Option<Time>,
            /// Whether setuid and setgid bits go.
            drops_privileges: bool,
            /// Number of bytes of the session's credit that the commit uses up.
            credit: u64,
            /// The user for whose files that credit was given.
            credit_of: u32,
        },
        /// Puts bytes behind the end of a file, wherever that is. The outcome is `Appended`, or
        /// `NoRoomInline`.
        18 Append {
            /// Number of the inode.
            inode: u64,
            /// Bytes.
            written: Written,
            /// Whether setuid and setgid bits go.
            drops_privileges: bool,
            /// Number of bytes of the session's credit that the operation uses up.
            credit: u64,
            /// The user for whose files that credit was given.
            credit_of: u32,
        },
        /// Copies a range of a file without its bytes: both have the same objects. The outcome is `Cloned`.
        19 Clone {
            /// Number of the inode that is read.
            source: u64,
            /// Offset of the first byte there.
            source_offset: u64,
            /// Number of the inode that is changed.
            inode: u64,
            /// Offset of the first byte there.
            offset: u64,
            /// Number of bytes.
            len: u64,
        },
        /// Makes a hole. The outcome is `Entry`.
        20 Punch {
            /// Number of the inode.
            inode: u64,
            /// Offset of the first byte.
            offset: u64,
            /// Number of bytes.
            len: u64,
            /// Whether a file that ends before becomes longer.
            extend: bool,
        },
        /// Asks for an extended attribute. The outcome is `Bytes`.
        21 GetXattr {
            /// Number of the inode.
            inode: u64,
            /// Name of the attribute.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
        },
        /// Sets an extended attribute. The outcome is `Done`.
        22 SetXattr {
            /// Number of the inode.
            inode: u64,
            /// Name of the attribute.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
            /// Value of the attribute.
            value: Bytes as AtMost<MAX_XATTR_BYTES>,
            /// Whether the operation fails if the attribute is there.
            create: bool,
            /// Whether the operation fails if the attribute is not there.
            replace: bool,
        },
        /// Asks for the names of extended attributes. The outcome is `Bytes`: each name with a zero behind.
        23 ListXattrs {
            /// Number of the inode.
            inode: u64,
        },
        /// Removes an extended attribute. The outcome is `Done`.
        24 RemoveXattr {
            /// Number of the inode.
            inode: u64,
            /// Name of the attribute.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
        },
        /// Locks or unlocks a range of a file that the session has open. The outcome is `Entry`; it is the
        /// errno `Again` if others hold the range and the operation does not wait. A session that gives up
        /// an operation that waits unlocks the range afterwards.
        25 Lock {
            /// Number of the inode.
            inode: u64,
            /// Range and owner.
            range: LockRange,
            /// Whether to wait until the range is free.
            wait: bool,
        },
        /// Asks who would keep the actor from locking a range. The outcome is `Locked`.
        26 TestLock {
            /// Number of the inode.
            inode: u64,
            /// Range and owner.
            range: LockRange,
        },
        /// Asks how full the volume is. The outcome is `Usage`.
        27 Usage,
        /// Replaces the sections of a range by one with the same bytes, in an object. It fails with `Stale`
        /// if the file has other sections there. The outcome is `Entry`.
        28 Tidy {
            /// Number of the inode.
            inode: u64,
            /// [`Fingerprint`](super::Fingerprint) of the sections that lie in the range or reach into it, at
            /// most [`MAX_TIDIED`](super::MAX_TIDIED).
            replaces: u64,
            /// The one section.
            section: Section,
        },
        /// Says that the session commits no object any more whose counter is lower and that no file has. The
        /// outcome is `Done`.
        29 Discard {
            /// Counter.
            below: u64,
        },
        /// Asks for credit: room of the volume, and of the quota of a file's owner, that nobody else is given
        /// until commits use it up. The outcome is `Reserved`. It is the errno `Full` or `OverQuota` if there
        /// is no room, and nothing is given then.
        30 Reserve {
            /// Number of the inode that is to be written.
            inode: u64,
            /// Number of bytes that are needed, at most [`MAX_RESERVED_BYTES`](super::MAX_RESERVED_BYTES).
            /// More are given if there is much room.
            bytes: u64,
            /// Whether the errno is to be `Again` if there will be room when other sessions give back what
            /// they hold.
            patient: bool,
        },
        /// Gives credit back. The outcome is `Done`.
        31 GiveBack {
            /// Owner of the files for which it was given.
            uid: u32,
            /// Number of bytes.
            bytes: u64,
        },
        /// Asks for inodes without a name that are open somewhere. The outcome is `Entries` without names,
        /// whose cookies are the numbers of the inodes. Root, and sessions that say themselves for whom they
        /// act, are told of them.
        32 ListUnnamed {
            /// Number of the inode behind which the page begins: 0, or the last one that is known.
            after: u64,
        },
        /// Looks a name up, with the entries of the folder that were made after it. The outcome is `Entries`,
        /// of which the first has the name.
        33 LookAhead {
            /// Inode of the folder.
            folder: u64,
            /// Name of the entry.
            name: Bytes as AtMost<MAX_SENT_NAME_BYTES>,
            /// Largest number of entries.
            most: u32,
        },
        /// Has what is kept of removed files go at once, because a node has no memory for bytes. The outcome
        /// is `Done` if objects are being deleted, or else the errno `NotFound`.
        34 MakeRoom,
    }
}

impl FileOperation {
    /// Returns whether the operation may change something, and must not be done twice.
    pub fn changes(&self) -> bool {
        !matches!(
            self,
            Self::Lookup { .. }
                | Self::LookAhead { .. }
                | Self::GetAttributes { .. }
                | Self::ReadLink { .. }
                | Self::List { .. }
                | Self::ListUnnamed { .. }
                | Self::Map { .. }
                | Self::GetXattr { .. }
                | Self::ListXattrs { .. }
                | Self::TestLock { .. }
                | Self::Usage
        )
    }

    /// Returns the inodes that the operation names, without the inodes whose opens it ends.
    pub fn inodes(&self) -> [Option<u64>; 2] {
        match self {
            Self::Lookup { folder, .. }
            | Self::LookAhead { folder, .. }
            | Self::Create { folder, .. }
            | Self::MakeFolder { folder, .. }
            | Self::MakeNode { folder, .. }
            | Self::MakeSymlink { folder, .. }
            | Self::Unlink { folder, .. }
            | Self::RemoveFolder { folder, .. }
            | Self::List { folder, .. } => [Some(*folder), None],
            Self::Link { inode, folder, .. } => [Some(*inode), Some(*folder)],
            Self::Rename { folder, to_folder, .. } => [Some(*folder), Some(*to_folder)],
            Self::Clone { source, inode, .. } => [Some(*source), Some(*inode)],
            Self::GetAttributes { inode }
            | Self::SetAttributes { inode, .. }
            | Self::ReadLink { inode }
            | Self::Open { inode, .. }
            | Self::Map { inode, .. }
            | Self::Commit { inode, .. }
            | Self::Append { inode, .. }
            | Self::Punch { inode, .. }
            | Self::GetXattr { inode, .. }
            | Self::SetXattr { inode, .. }
            | Self::ListXattrs { inode }
            | Self::RemoveXattr { inode, .. }
            | Self::Lock { inode, .. }
            | Self::TestLock { inode, .. }
            | Self::Tidy { inode, .. }
            | Self::Reserve { inode, .. } => [Some(*inode), None],
            Self::Closed { .. }
            | Self::Usage
            | Self::Discard { .. }
            | Self::GiveBack { .. }
            | Self::MakeRoom
            | Self::ListUnnamed { .. } => [None, None],
        }
    }

    /// Returns the names that the operation may change, each with its folder.
    pub fn names(&self) -> [Option<(u64, &[u8])>; 2] {
        match self {
            Self::Create { folder, name, .. }
            | Self::MakeFolder { folder, name, .. }
            | Self::MakeNode { folder, name, .. }
            | Self::MakeSymlink { folder, name, .. }
            | Self::Link { folder, name, .. }
            | Self::Unlink { folder, name }
            | Self::RemoveFolder { folder, name } => [Some((*folder, name)), None],
            Self::Rename { folder, name, to_folder, to_name, .. } => {
                [Some((*folder, name)), Some((*to_folder, to_name))]
            }
            _ => [None, None],
        }
    }

    /// Returns the inodes whose attributes or names the operation may change. The operation may also change
    /// the inodes of the names in these folders.
    pub fn alters(&self) -> [Option<u64>; 2] {
        match self {
            Self::Open { truncate: false, .. } | Self::Lock { .. } | Self::Reserve { .. } => [None, None],
            operation if operation.changes() => operation.inodes(),
            _ => [None, None],
        }
    }
}
