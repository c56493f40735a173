//! Outcomes of operations on a volume. Owns no state. Any thread.

use bytes::Bytes;

use super::attributes::Attributes;
use super::operation::LockRange;
use super::volume::Section;
use super::{MAX_ENTRY_NAME_BYTES, MAX_FOLDERS, MAX_LISTED, MAX_SECTIONS};
use crate::wire::AtMost;

crate::wire::codes! {
    /// Reason why an operation failed, with the number that Linux has for the reason.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Errno: u16 else Io {
        /// EPERM: the user may not do that.
        1 NotPermitted,
        /// ENOENT: there is no such name.
        2 NotFound,
        /// EINTR: a signal ended the operation.
        4 Interrupted,
        /// EIO: bytes are lost, or the volume cannot be reached.
        5 Io,
        /// ENXIO: there is no such data.
        6 NoData,
        /// EBADF: the file is not open for that.
        9 NotOpen,
        /// EAGAIN: the operation would have to wait.
        11 Again,
        /// EACCES: the permissions do not allow it.
        13 NoAccess,
        /// EEXIST: the name is taken.
        17 Exists,
        /// EXDEV: the two are in different volumes.
        18 OtherVolume,
        /// ENOTDIR: it is no folder.
        20 NotFolder,
        /// EISDIR: it is a folder.
        21 IsFolder,
        /// EINVAL: an argument is out of range.
        22 Invalid,
        /// EFBIG: the file would be too long.
        27 TooLarge,
        /// ENOSPC: the volume, or the memory for names, is full.
        28 Full,
        /// EROFS: the volume is attached for reading.
        30 ReadOnly,
        /// EMLINK: the inode has too many links.
        31 TooManyLinks,
        /// ERANGE: the room for the answer is too small.
        34 OutOfRange,
        /// EDEADLK: the lock would wait for itself.
        35 Deadlock,
        /// ENAMETOOLONG: the name is too long.
        36 NameTooLong,
        /// ENOLCK: there are too many locks.
        37 TooManyLocks,
        /// ENOTEMPTY: the folder is not empty.
        39 NotEmpty,
        /// ELOOP: it is a symbolic link.
        40 IsLink,
        /// ENODATA: there is no such extended attribute.
        61 NoXattr,
        /// EOVERFLOW: a number is out of range.
        75 Overflow,
        /// EOPNOTSUPP: volumes do not have that.
        95 NotSupported,
        /// ESTALE: the inode is gone.
        116 Stale,
        /// EDQUOT: the user's quota is used up.
        122 OverQuota,
        /// E2BIG: there are too many extended attributes.
        7 TooMany,
    }
}

crate::wire::record! {
    /// Entry of a folder in a list.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Listed {
        /// Name of the entry.
        pub name: Bytes as AtMost<MAX_ENTRY_NAME_BYTES>,
        /// Number by which a list goes on behind this entry.
        pub cookie: u64,
        /// Attributes of the inode.
        pub attributes: Attributes,
    }
}

crate::wire::record! {
    /// Sections of a file, from an offset.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Extended {
        /// Sections, in the order of their offsets.
        pub sections: Vec<Section> as AtMost<MAX_SECTIONS>,
        /// Offset from which further sections are to be asked for. None if these sections are the last.
        pub next: Option<u64>,
    }
}

crate::wire::record! {
    /// Limits of a volume, and how much of them is used.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct VolumeUsage {
        /// Number of bytes that files may have in all.
        pub capacity: u64,
        /// Number of bytes that files have.
        pub used: u64,
        /// Number of bytes that may still be written.
        pub free: u64,
        /// Number of bytes that may still be written for files of the user who asks.
        pub available: u64,
        /// Largest number of inodes of the volume.
        pub most_inodes: u64,
        /// Number of inodes of the volume.
        pub inodes: u64,
    }
}

crate::wire::table! {
    /// Outcome of an operation.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum FileOutcome {
        /// The operation failed, and changed nothing.
        0 Failed(errno: Errno),
        /// The operation was carried out.
        1 Done,
        /// Attributes of the inode that the operation was about.
        2 Entry(attributes: Attributes),
        /// The inode is open.
        3 Opened {
            /// Attributes of the inode.
            attributes: Attributes,
            /// Whether the operation made it.
            created: bool,
            /// First sections of the file.
            map: Extended,
            /// Whether the open has the right to map the file, so that stores are seen by others.
            maps: bool,
        },
        /// Sections of a file.
        4 Map {
            /// Attributes of the inode.
            attributes: Attributes,
            /// Sections.
            map: Extended,
        },
        /// The bytes were appended.
        5 Appended {
            /// Offset of the first of them.
            offset: u64,
            /// Attributes of the inode.
            attributes: Attributes,
        },
        /// The bytes have no room in the map of the file: they are to be put into an object.
        6 NoRoomInline,
        /// A range was cloned.
        7 Cloned {
            /// Number of bytes: fewer if the source ends before.
            len: u64,
            /// Attributes of the inode that was changed.
            attributes: Attributes,
        },
        /// Entries of a folder.
        8 Entries {
            /// Entries, in the order of their cookies.
            entries: Vec<Listed> as AtMost<MAX_LISTED>,
            /// Whether these are the last.
            end: bool,
            /// Inode of the folder above. 0 for a folder that was removed.
            above: u64,
            /// Largest cookie of the list: names that are made later have larger ones.
            last: u64,
        },
        /// Target of a link, value of an extended attribute, or names of extended attributes.
        9 Bytes(bytes: Bytes),
        /// The lock that is in the way, if one is.
        10 Locked(range: Option<LockRange>),
        /// How full the volume is.
        11 Usage(usage: VolumeUsage),
        /// Credit was given.
        12 Reserved {
            /// Owner of the file, whose quota it is of.
            uid: u32,
            /// Number of bytes that were given.
            bytes: u64,
        },
    }
}

crate::wire::record! {
    /// Answer to an operation.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FileAnswer {
        /// Time in milliseconds, from when the operation was sent, for which attributes and names in the
        /// outcome may be kept without asking again.
        pub valid_ms: u32,
        /// Outcome of the operation.
        pub outcome: FileOutcome,
        /// Attributes of the folders in which the operation has changed names, and of folders that it has
        /// moved or removed. They may be kept for [`FOLDERS_MS`](super::FOLDERS_MS) from when the operation
        /// was sent. Empty if they may not be kept.
        pub folders: Vec<Attributes> as AtMost<MAX_FOLDERS>,
        /// Whether the volume has a capacity or quotas, so that writes need credit. None if the answer is not
        /// the home's.
        pub limited: Option<bool>,
    }
}

impl FileAnswer {
    /// Returns an answer with this outcome, of which nothing may be kept.
    pub fn of(outcome: FileOutcome) -> Self {
        Self { valid_ms: 0, outcome, folders: Vec::new(), limited: None }
    }
}
