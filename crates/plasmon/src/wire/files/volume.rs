//! Volumes, and the sections of which their files are made.

use bytes::Bytes;

use super::MAX_INLINE;
use crate::digest::Digest;
use crate::wire::{AtMost, MAX_NAME};
use crate::{NodeId, ObjectId};

crate::wire::record! {
    /// Terms on which a volume is kept.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct VolumeTerms {
        /// Largest number of bytes of all files. 0 for as many as the nodes have room for.
        pub capacity: u64,
        /// Largest number of inodes. 0 for as many as the home has room for.
        pub inodes: u64,
        /// Largest number of bytes of the files of one user. 0 for no limit.
        pub user_quota: u64,
        /// Number of nodes that keep the bytes of a file, where its folder says nothing else. At least 1.
        pub copies: u16,
        /// Number of nodes that keep names, attributes and maps. At least 1.
        pub metadata_copies: u16,
    }
}

crate::wire::record! {
    /// Change of the terms of a volume. What is none stays.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct VolumeChange {
        /// Largest number of bytes of all files.
        pub capacity: Option<u64>,
        /// Largest number of inodes.
        pub inodes: Option<u64>,
        /// Largest number of bytes of the files of one user.
        pub user_quota: Option<u64>,
        /// Number of nodes that keep the bytes of a file.
        pub copies: Option<u16>,
    }
}

crate::wire::record! {
    /// Row of a list of volumes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct VolumeInfo {
        /// Name of the volume.
        pub name: String as AtMost<MAX_NAME>,
        /// Number of the volume.
        pub number: u32,
        /// User to whom the volume belongs.
        pub owner: u32,
        /// Node that decides about the volume.
        pub home: NodeId,
        /// Terms on which the volume is kept.
        pub terms: VolumeTerms,
        /// Number of bytes of all files.
        pub used: u64,
        /// Number of inodes.
        pub inodes: u64,
        /// Number of sessions.
        pub sessions: u32,
        /// Number of bytes of memory that names, attributes and maps take at the home.
        pub memory: u64,
        /// Time since the volume was created, in milliseconds.
        pub age_ms: u64,
    }
}

crate::wire::table! {
    /// Place of the bytes of a section.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Source {
        /// The bytes lie in an object.
        0 Object {
            /// Id of the object.
            id: ObjectId,
            /// Offset of the first byte in the object.
            at: u64,
            /// Size of the object in bytes.
            object_len: u64,
            /// Node that put the object: it may have moved since.
            node: NodeId,
        },
        /// The bytes lie here.
        1 Inline(bytes: Bytes as AtMost<MAX_INLINE>),
    }
}

crate::wire::record! {
    /// Range of a file, and where its bytes are. Where a file has no section there is a hole.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Section {
        /// Offset of the first byte in the file.
        pub offset: u64,
        /// Number of bytes.
        pub len: u64,
        /// Place of the bytes.
        pub source: Source,
    }
}

/// Id of an object with bytes of a file: volume (4 bytes), session (4), counter (6) and a mark that only
/// such ids bear (6), each little-endian. A session counts its objects, so no id is used twice and no node
/// has to be asked.
pub fn file_object(volume: u32, session: u32, counter: u64) -> ObjectId {
    let mut bytes = [0; ObjectId::LEN];
    bytes[..4].copy_from_slice(&volume.to_le_bytes());
    bytes[4..8].copy_from_slice(&session.to_le_bytes());
    bytes[8..14].copy_from_slice(&counter.to_le_bytes()[..6]);
    let mark = mark_of(&bytes[..14]);
    bytes[14..].copy_from_slice(&mark);
    ObjectId::from_bytes(bytes)
}

/// Volume, session and counter of the id of an object with bytes of a file. `None` for any other object.
pub fn parts_of(id: &ObjectId) -> Option<(u32, u32, u64)> {
    let bytes = id.as_bytes();
    if bytes[14..] != mark_of(&bytes[..14]) {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mut counter = [0; 8];
    counter[..6].copy_from_slice(&bytes[8..14]);
    Some((word(0), word(4), u64::from_le_bytes(counter)))
}

/// Mark behind the other bytes of an id.
fn mark_of(bytes: &[u8]) -> [u8; 6] {
    let mut digest = Digest::new();
    digest.add(b"plasmon file");
    digest.add(bytes);
    let [a, b, c, d, e, f, ..] = digest.value().to_le_bytes();
    [a, b, c, d, e, f]
}

/// Id under which the name of a volume is claimed and found. It is that of no object with a name.
pub fn volume_id(name: &str) -> ObjectId {
    ObjectId::of_kind("volume", name)
}
