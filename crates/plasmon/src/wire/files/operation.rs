//! Operations on a volume, which its home carries out.

use bytes::Bytes;

use super::attributes::{SetAttributes, Time};
use super::volume::Section;
use super::{MAX_CLOSED, MAX_GROUPS, MAX_INLINE, MAX_SECTIONS, MAX_SENT_NAME, MAX_TARGET, MAX_XATTR};
use crate::wire::AtMost;

crate::wire::record! {
    /// User on whose behalf an operation is made. Of a session that is not trusted it is the session's own
    /// user, whatever this says.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct Actor {
        /// User id.
        pub uid: u32,
        /// Group id.
        pub gid: u32,
        /// Further groups.
        pub groups: Vec<u32> as AtMost<MAX_GROUPS>,
    }
}

crate::wire::record! {
    /// Operation with its number.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FileAsked {
        /// Number of the operation in its session, which is not 0 and is not used for another operation.
        pub number: u64,
        /// Number below which the session has all outcomes. The home forgets them.
        pub answered: u64,
        /// User on whose behalf it is made.
        pub actor: Actor,
        /// Operation.
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
        /// Process of the owner, for others who ask.
        pub pid: u32,
        /// Offset of the first byte.
        pub start: u64,
        /// Offset of the last byte.
        pub end: u64,
        /// Kind of the lock.
        pub kind: LockKind,
        /// Whether it is a lock of `flock`, which knows no ranges and no locks of `fcntl`.
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
        1 Bytes(bytes: Bytes as AtMost<MAX_INLINE>),
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
            name: Bytes as AtMost<MAX_SENT_NAME>,
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
            name: Bytes as AtMost<MAX_SENT_NAME>,
            /// Permissions.
            mode: u32,
            /// Whether the operation fails if the name is taken.
            exclusive: bool,
            /// Whether a file that has the name is cut to no bytes.
            truncate: bool,
        },
        /// Makes a folder. The outcome is `Entry`.
        5 MakeFolder {
            /// Inode of the folder in which it is made.
            folder: u64,
            /// Name of the new folder.
            name: Bytes as AtMost<MAX_SENT_NAME>,
            /// Permissions.
            mode: u32,
        },
        /// Makes a file, pipe, socket or device without opening it. The outcome is `Entry`.
        6 MakeNode {
            /// Inode of the folder.
            folder: u64,
            /// Name of the new inode.
            name: Bytes as AtMost<MAX_SENT_NAME>,
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
            name: Bytes as AtMost<MAX_SENT_NAME>,
            /// Target of the link.
            target: Bytes as AtMost<MAX_TARGET>,
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
            name: Bytes as AtMost<MAX_SENT_NAME>,
        },
        /// Takes a name from an inode that is no folder. The outcome is `Done`.
        10 Unlink {
            /// Inode of the folder.
            folder: u64,
            /// Name of the entry.
            name: Bytes as AtMost<MAX_SENT_NAME>,
        },
        /// Removes an empty folder. The outcome is `Done`.
        11 RemoveFolder {
            /// Inode of the folder in which it is.
            folder: u64,
            /// Name of the removed folder.
            name: Bytes as AtMost<MAX_SENT_NAME>,
        },
        /// Gives an inode another name, in one step. The outcome is `Done`.
        12 Rename {
            /// Inode of the folder.
            folder: u64,
            /// Name of the entry.
            name: Bytes as AtMost<MAX_SENT_NAME>,
            /// Inode of the folder of the new name.
            to_folder: u64,
            /// New name.
            to_name: Bytes as AtMost<MAX_SENT_NAME>,
            /// Whether the operation fails if the new name is taken.
            no_replace: bool,
            /// Whether the two names are exchanged.
            exchange: bool,
        },
        /// Asks for entries of a folder, `.` and `..` not among them. The outcome is `Entries`.
        13 List {
            /// Inode of the folder.
            folder: u64,
            /// Cookie behind which the page begins: 0, or that of the last entry that is known.
            after: u64,
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
        },
        /// Ends opens, each as many times as it stands in the list. The outcome is `Done`.
        15 Closed {
            /// Numbers of the inodes.
            inodes: Vec<u64> as AtMost<MAX_CLOSED>,
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
            name: Bytes as AtMost<MAX_SENT_NAME>,
        },
        /// Sets an extended attribute. The outcome is `Done`.
        22 SetXattr {
            /// Number of the inode.
            inode: u64,
            /// Name of the attribute.
            name: Bytes as AtMost<MAX_SENT_NAME>,
            /// Value of the attribute.
            value: Bytes as AtMost<MAX_XATTR>,
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
            name: Bytes as AtMost<MAX_SENT_NAME>,
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
        /// Replaces the sections of a range by others with the same bytes. It fails with `Stale` if the file
        /// has changed. The outcome is `Entry`.
        28 Tidy {
            /// Number of the inode.
            inode: u64,
            /// Version of the attributes that the bytes belong to.
            version: u64,
            /// Sections.
            sections: Vec<Section> as AtMost<MAX_SECTIONS>,
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
            /// Number of bytes that are needed, at most [`MAX_RESERVED`](super::MAX_RESERVED). More are given
            /// if there is much room.
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
    }
}

impl FileOperation {
    /// Whether the operation may change something, so that it must not be done twice.
    pub fn changes(&self) -> bool {
        !matches!(
            self,
            Self::Lookup { .. }
                | Self::GetAttributes { .. }
                | Self::ReadLink { .. }
                | Self::List { .. }
                | Self::Map { .. }
                | Self::GetXattr { .. }
                | Self::ListXattrs { .. }
                | Self::TestLock { .. }
                | Self::Usage
        )
    }
}
