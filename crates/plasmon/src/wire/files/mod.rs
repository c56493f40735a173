//! Files between a session, its node and the home of its volume: operations, outcomes and their parts.
//!
//! Owns no state. Any thread. A *session* is what one mount, or one attached client, is to the home of a
//! volume. A session numbers its operations. An operation that changes something and is sent again under its
//! number is done once, and gives the first outcome. With each operation the session says below which number
//! it has read all outcomes, and the home forgets these outcomes.
//!
//! A client sends operations in two ways. `Request::OnFile` carries any operation. A [slot](FilesCall)
//! carries an operation whose encoding fits its payload. An outcome that is too long for the slot is asked
//! for again by `OnFile`, under the number of the operation.

mod attributes;
mod fingerprint;
mod operation;
mod outcome;
mod stale;
mod volume;

use bytes::{Bytes, BytesMut};

use super::body::Reader;
use super::words::Payload;
use super::{Wire, WireError};

pub use attributes::{Attributes, Change, FileKind, SetAttributes, Time};
pub use fingerprint::Fingerprint;
pub use operation::{Actor, FileAsked, FileOperation, LockKind, LockRange, Written};
pub use outcome::{Errno, Extended, FileAnswer, FileOutcome, Listed, VolumeUsage};
pub use stale::Stale;
pub use volume::{
    FileReads, Kept, NodeCheck, Peeking, Place, Section, Settling, Source, UsageCheck, VolumeChange,
    VolumeInfo, VolumeState, VolumeTerms, file_object, parts_of, volume_id,
};

/// Inode of the root folder of every volume.
pub const ROOT_INODE: u64 = 1;
/// Longest name of an entry of a folder, in bytes.
pub const MAX_ENTRY_NAME_BYTES: usize = 255;
/// Longest name in an operation, in bytes. The home refuses a name longer than [`MAX_ENTRY_NAME_BYTES`].
pub const MAX_SENT_NAME_BYTES: usize = 1024;
/// Longest target of a symbolic link, in bytes.
pub const MAX_TARGET_BYTES: usize = 4095;
/// Largest number of bytes that lie in the map of a file itself.
pub const MAX_INLINE_BYTES: usize = 4096;
/// Longest value of an extended attribute, in bytes.
pub const MAX_XATTR_BYTES: usize = 8 << 10;
/// Largest number of sections in one operation or outcome.
pub const MAX_SECTIONS: usize = 96;
/// Largest number of sections that one section replaces.
pub const MAX_TIDIED: usize = 2048;
/// Largest number of entries in one outcome.
pub const MAX_LISTED: usize = 512;
/// Largest number of inodes that one operation closes.
pub const MAX_CLOSED: usize = 512;
/// Extended attribute that says where bytes of a file, or of what is made in a folder, are to lie.
pub const PLACE_XATTR: &str = "user.plasmon.place";
/// Largest number of nodes that a place names.
pub const MAX_PLACE_NODES: usize = 16;
/// Largest number of mirrors of a volume, and of nodes that are about to become mirrors.
pub const MAX_FOLLOWERS: usize = 8;
/// Largest number of objects that one request brings to their places.
pub const MAX_SETTLED: usize = 256;
/// Largest number of inodes of which one request tells how often they are open.
pub const MAX_TOLD_OPENS: usize = 4096;
/// Largest number of bytes of an object that are read without bringing the object.
pub const MAX_PEEK_BYTES: usize = 64 << 10;
/// Largest number of folders of which an answer tells attributes.
pub const MAX_FOLDERS: usize = 4;
/// Time in milliseconds for which attributes of folders that come with an answer may be kept.
pub const FOLDERS_MS: u32 = 1_000;
/// Largest number of parts of one message about what others have changed.
pub const MAX_STALE: usize = 32;
/// Largest number of groups of an actor.
pub const MAX_GROUPS: usize = 64;
/// Largest offset in a file, in bytes: no file is longer.
pub const MAX_FILE_BYTES: u64 = i64::MAX as u64;
/// Largest number of hard links of an inode.
pub const MAX_LINKS: u32 = 65_000;
/// Largest number of bytes of credit that a session asks for at once, or is given ahead of need.
pub const MAX_RESERVED_BYTES: u64 = 64 << 20;
/// Largest number of bytes of one page of a list in an outcome, without the page's last item.
pub const PAGE_BYTES: usize = 8 << 10;

crate::wire::call_table! {
    /// Call by slot about files.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum FilesCall in 150..=150 {
        /// Carries out an operation whose encoding fits the slot.
        150 OnFile {
            /// Number of the attached volume on the connection.
            volume: u32,
            /// Operation with its number.
            asked: FileAsked as Payload,
        } -> FileAnswered,
    }
}

crate::wire::call_result! {
    /// Result of an operation on a file. The payload is the encoded [`FileAnswer`], unless the answer is too
    /// long for a slot.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FileAnswered {
        /// Whether the answer is too long for a slot.
        pub too_long: bool,
    }
    with bytes
}

/// Encodes a value as in a frame or a slot.
pub fn encoded<T: Wire>(value: &T) -> BytesMut {
    let mut out = BytesMut::new();
    T::put(value, &mut out);
    out
}

/// Reads a value from bytes that hold this value alone. `what` names the bytes in errors.
///
/// # Errors
/// If the bytes are no such value, or if bytes are left.
pub fn decoded<T: Wire>(bytes: Bytes, what: &'static str) -> Result<T, WireError> {
    let mut body = Reader::new(bytes, what);
    let value = T::take(&mut body)?;
    body.finish(value)
}

#[cfg(test)]
mod tests;
