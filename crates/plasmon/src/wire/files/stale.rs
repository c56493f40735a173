//! Parts of a volume that sessions may have kept, and must not keep any more. Owns no state. Any thread.

use bytes::Bytes;

use super::MAX_ENTRY_NAME_BYTES;
use crate::wire::AtMost;

crate::wire::table! {
    /// Part of a volume that others have changed.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    pub enum Stale {
        /// Attributes of an inode.
        1 Attributes {
            /// Number of the inode.
            inode: u64,
        },
        /// The inode of a name, or that there is none.
        2 Name {
            /// Inode of the folder.
            folder: u64,
            /// Name of the entry.
            name: Bytes as AtMost<MAX_ENTRY_NAME_BYTES>,
            /// Whether it is the name of a folder, which a program may have as its own.
            is_folder: bool,
        },
        /// Bytes of a file, and its attributes.
        3 Bytes {
            /// Number of the inode.
            inode: u64,
            /// Offset of the first byte.
            start: u64,
            /// Offset behind the last byte, at most `MAX_FILE_BYTES`.
            end: u64,
        },
        /// Bytes of a file that wait to be committed, as another session is about to cut the file.
        4 Waiting {
            /// Number of the inode.
            inode: u64,
        },
        /// The right to map a file, as another session opens the file to read and write: closes are to be
        /// told.
        5 Mapped {
            /// Number of the inode.
            inode: u64,
        },
    }
}
