//! Attributes of inodes, as operations and outcomes carry them. Owns no state. Any thread.

use super::volume::Place;

crate::wire::codes! {
    /// Kind of an inode.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum FileKind: u8 {
        /// File with bytes.
        1 File,
        /// Folder.
        2 Folder,
        /// Symbolic link.
        3 Symlink,
        /// Named pipe.
        4 Pipe,
        /// Socket.
        5 Socket,
        /// Character device.
        6 Character,
        /// Block device.
        7 Block,
    }
}

impl FileKind {
    /// Returns the bits of `st_mode` that stand for the kind.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Folder => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Pipe => 0o010_000,
            Self::Socket => 0o140_000,
            Self::Character => 0o020_000,
            Self::Block => 0o060_000,
        }
    }

    /// Returns the kind that the bits of an `st_mode` stand for. Kind bits of 0 stand for a file, as in
    /// `mknod`.
    pub fn of_mode(mode: u32) -> Option<Self> {
        match mode & 0o170_000 {
            0 => Some(Self::File),
            bits => Self::ALL.iter().copied().find(|kind| kind.mode_bits() == bits),
        }
    }
}

/// Bits of modes by which a program gets the user and the group of its file.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Permission of the group to execute a file.
const GROUP_EXECUTES: u32 = 0o010;

impl FileKind {
    /// Returns the mode that an inode gets when another user than root writes bytes, or the owner changes.
    pub fn without_privileges(self, mode: u32) -> u32 {
        match self {
            Self::Folder => mode,
            // Without the permission to execute for its group, the bit is no privilege.
            _ if mode & GROUP_EXECUTES == 0 => mode & !SET_USER,
            _ => mode & !(SET_USER | SET_GROUP),
        }
    }
}

crate::wire::record! {
    /// Time of an inode.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct Time {
        /// Number of seconds since 1970 began, UTC.
        pub seconds: i64,
        /// Number of nanoseconds of the second, below 1,000,000,000.
        pub nanos: u32,
    }
}

crate::wire::record! {
    /// Attributes of an inode.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Attributes {
        /// Number of the inode.
        pub inode: u64,
        /// Kind of the inode.
        pub kind: FileKind,
        /// Permissions: the lower 12 bits of `st_mode`.
        pub mode: u32,
        /// Number of hard links.
        pub links: u32,
        /// User to whom the inode belongs.
        pub uid: u32,
        /// Group to which the inode belongs.
        pub gid: u32,
        /// Number of the device, of a character or block device.
        pub device: u32,
        /// Size of the file in bytes.
        pub size: u64,
        /// Number of bytes that sections of the file hold.
        pub used: u64,
        /// Time of the last access. Reads do not set this time.
        pub accessed: Time,
        /// Time of the last change of the contents.
        pub modified: Time,
        /// Time of the last change of contents or attributes.
        pub changed: Time,
        /// Number that grows with each change of contents or attributes.
        pub version: u64,
        /// Number of nodes that are to keep bytes written from now on.
        pub copies: u16,
        /// Place of bytes written from now on.
        pub place: Place,
    }
}

crate::wire::table! {
    /// Change of a time.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Change {
        /// The time stays.
        0 Keep,
        /// The time becomes that of the home.
        1 Now,
        /// The time becomes this one.
        2 To(time: Time),
    }
}

crate::wire::record! {
    /// Attributes that are set. A field that is none leaves its attribute as it is.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SetAttributes {
        /// Permissions that the inode is to have.
        pub mode: Option<u32>,
        /// User to whom the inode is to belong.
        pub uid: Option<u32>,
        /// Group to which the inode is to belong.
        pub gid: Option<u32>,
        /// Size in bytes that the file is to have. The file is cut, or becomes longer by a hole.
        pub size: Option<u64>,
        /// Time of the last access.
        pub accessed: Change,
        /// Time of the last change of the contents.
        pub modified: Change,
        /// Whether setuid and setgid bits go, as they do when another user than root writes.
        pub drops_privileges: bool,
    }
}

impl Default for SetAttributes {
    fn default() -> Self {
        Self {
            mode: None,
            uid: None,
            gid: None,
            size: None,
            accessed: Change::Keep,
            modified: Change::Keep,
            drops_privileges: false,
        }
    }
}
