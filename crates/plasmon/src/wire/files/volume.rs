//! Volumes, and the sections of which their files are made. Owns no state. Any thread.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use super::{MAX_FOLLOWERS, MAX_INLINE_BYTES, MAX_PLACE_NODES, MAX_SETTLED};
use crate::digest::Digest;
use crate::wire::{AtMost, MAX_NAME_BYTES, WireError};
use crate::{NodeId, ObjectId};

crate::wire::table! {
    /// Place where the objects of bytes written from now on are to lie. No place is a node in cache mode.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    pub enum Place {
        /// Node of the writing session, while a tenth of its memory is free or holds cached replicas. Else
        /// as `Spread`.
        0 Local,
        /// Nodes with much free memory.
        1 Spread,
        /// Nodes of this list that are members.
        2 Nodes(nodes: Vec<NodeId> as AtMost<MAX_PLACE_NODES>),
    }
}

#[allow(clippy::derivable_impls, reason = "a table has no attributes of its rows")]
impl Default for Place {
    fn default() -> Self {
        Self::Local
    }
}

impl Place {
    /// Whether a list of nodes has 1 to [`MAX_PLACE_NODES`] entries. Other places are always valid.
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Nodes(nodes) => (1..=MAX_PLACE_NODES).contains(&nodes.len()),
            Self::Local | Self::Spread => true,
        }
    }
}

/// Text of a place: `local`, `spread`, or ids of nodes with commas between.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Spread => f.write_str("spread"),
            Self::Nodes(nodes) => {
                let ids: Vec<_> = nodes.iter().map(ToString::to_string).collect();
                f.write_str(&ids.join(","))
            }
        }
    }
}

impl FromStr for Place {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Self, WireError> {
        let malformed = || WireError::Malformed("place of the bytes of files");
        let place = match text {
            "local" => Self::Local,
            "spread" => Self::Spread,
            ids => {
                let nodes = ids.split(',').map(|id| id.trim().parse().map_err(|_| malformed()));
                Self::Nodes(nodes.collect::<Result<_, _>>()?)
            }
        };
        Some(place).filter(Self::is_valid).ok_or_else(malformed)
    }
}

crate::wire::record! {
    /// Terms on which a volume is kept.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct VolumeTerms {
        /// Largest number of bytes of all files. 0 for as many as the nodes have room for.
        pub capacity: u64,
        /// Largest number of inodes. 0 for as many as the home has room for.
        pub inodes: u64,
        /// Largest number of bytes of the files of one user. 0 for no limit.
        pub user_quota: u64,
        /// Number of nodes that keep the bytes of a file, unless its folder says something else. At least 1.
        pub copies: u16,
        /// Number of nodes that keep names, attributes and maps. 0 means two, or one if there is one node.
        pub metadata_copies: u16,
        /// Place of the bytes of files, unless their folders say something else.
        pub place: Place,
        /// Whether users other than the owner may attach. The home checks the modes of the files they use.
        pub shared: bool,
        /// Whether any number of sessions have the right to map a file at a time.
        pub shared_maps: bool,
    }
}

impl VolumeTerms {
    /// Whether there is a limit of the bytes of files.
    pub fn are_limited(&self) -> bool {
        self.capacity > 0 || self.user_quota > 0
    }
}

crate::wire::record! {
    /// Change of the terms of a volume. A field that is none leaves its term as it is.
    #[derive(Debug, Clone, Default, PartialEq, Eq)]
    pub struct VolumeChange {
        /// Largest number of bytes of all files. 0 for as many as the nodes have room for.
        pub capacity: Option<u64>,
        /// Largest number of inodes. 0 for as many as the home has room for.
        pub inodes: Option<u64>,
        /// Largest number of bytes of the files of one user. 0 for no limit.
        pub user_quota: Option<u64>,
        /// Number of nodes that keep the bytes of a file.
        pub copies: Option<u16>,
        /// Number of nodes that keep names, attributes and maps. 0 means two, or one if there is one node.
        pub metadata_copies: Option<u16>,
        /// Place of the bytes of files that are written from now on.
        pub place: Option<Place>,
        /// Whether users other than the owner may attach from now on.
        pub shared: Option<bool>,
        /// Whether any number of sessions get the right to map a file from now on.
        pub shared_maps: Option<bool>,
    }
}

crate::wire::codes! {
    /// Whether a node decides about a volume.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum VolumeState: u8 {
        /// The home decides about the volume.
        0 Served,
        /// The home is gone, and a mirror takes its place.
        1 Waits,
        /// Home and mirrors are gone.
        2 Lost,
    }
}

crate::wire::record! {
    /// Row of a list of volumes.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct VolumeInfo {
        /// Name of the volume.
        pub name: String as AtMost<MAX_NAME_BYTES>,
        /// Number of the volume.
        pub number: u32,
        /// User to whom the volume belongs.
        pub owner: u32,
        /// Node that decides about the volume.
        pub home: NodeId,
        /// Nodes that have confirmed everything that the home has answered.
        pub mirrors: Vec<NodeId> as AtMost<MAX_FOLLOWERS>,
        /// Nodes that are about to become mirrors.
        pub joining: Vec<NodeId> as AtMost<MAX_FOLLOWERS>,
        /// Whether a node decides about the volume. If none does, the fields below are not known.
        pub state: VolumeState,
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

crate::wire::record! {
    /// Sums of a volume: as the home keeps them up to date, and as found by adding up all inodes.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct UsageCheck {
        /// Number of bytes of all files that the home keeps up to date.
        pub used: u64,
        /// Number of bytes of all files found by adding up all inodes.
        pub counted: u64,
        /// Number of users whose bytes differ between both sums.
        pub wrong_users: u64,
        /// Number of objects whose numbers of references differ between both sums.
        pub wrong_objects: u64,
    }
}

impl UsageCheck {
    /// Whether all sums agree.
    pub fn is_right(&self) -> bool {
        self.used == self.counted && self.wrong_users == 0 && self.wrong_objects == 0
    }
}

crate::wire::record! {
    /// How reads of an attached volume were served.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct FileReads {
        /// Number of the attached volume on its connection.
        pub volume: u32,
        /// Number of reads of objects that were in the memory of the node.
        pub here: u64,
        /// Number of reads for which whole objects were brought.
        pub brought: u64,
        /// Number of bytes that programs have read.
        pub bytes: u64,
    }
}

crate::wire::record! {
    /// Objects that a client has put for an attached volume, and where they are to lie.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Settling {
        /// Number of the attached volume on its connection.
        pub volume: u32,
        /// Ids of the objects.
        pub ids: Vec<ObjectId> as AtMost<MAX_SETTLED>,
        /// Place of the objects.
        pub place: Place,
        /// Number of nodes that are to keep each of the objects.
        pub copies: u16,
    }
}

crate::wire::record! {
    /// Range of an object of another node, of an attached volume.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Peeking {
        /// Number of the attached volume on its connection.
        pub volume: u32,
        /// Id of the object.
        pub id: ObjectId,
        /// Node that is asked first.
        pub node: NodeId,
        /// Offset of the range, in bytes.
        pub at: u64,
        /// Number of bytes, at most `MAX_PEEK_BYTES`.
        pub len: u32,
    }
}

crate::wire::record! {
    /// Number of nodes that have an object.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Kept {
        /// Number of nodes that keep the object.
        pub kept: u16,
        /// Number of further nodes that have the object and may drop it.
        pub cached: u16,
        /// Whether all nodes that had the object have gone.
        pub lost: bool,
    }
}

crate::wire::record! {
    /// Replicas and objects of a volume on one node.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct NodeCheck {
        /// Number of replicas of the volume's objects that the node keeps.
        pub replicas: u64,
        /// Number of bytes of the replicas.
        pub bytes: u64,
        /// Number of replicas of objects that no file has or will have.
        pub left: u64,
        /// Number of bytes of the replicas of objects that no file has or will have.
        pub left_bytes: u64,
        /// Sums of the home. None if the node is not the home, or if the volume changed all the while.
        pub usage: Option<UsageCheck>,
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
            /// Node that had the primary of the object when the section was committed. The object may have
            /// moved since.
            node: NodeId,
        },
        /// The bytes lie in the map of the file itself.
        1 Inline(bytes: Bytes as AtMost<MAX_INLINE_BYTES>),
    }
}

crate::wire::record! {
    /// Range of a file, and where its bytes are. Where a file has no section there is a hole.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Section {
        /// Offset of the first byte in the file.
        pub offset: u64,
        /// Number of bytes of the section.
        pub len: u64,
        /// Place of the bytes of the section.
        pub source: Source,
    }
}

/// Returns the id of an object with bytes of a file: a mark that only such ids bear (6 bytes), volume (4),
/// session (4) and counter (6). The numbers are little-endian. A session counts its objects, so no id is used
/// twice and no node has to be asked. The mark is a hash, so the ids of a volume spread over all nodes.
pub fn file_object(volume: u32, session: u32, counter: u64) -> ObjectId {
    let mut bytes = [0; ObjectId::LEN];
    bytes[6..10].copy_from_slice(&volume.to_le_bytes());
    bytes[10..14].copy_from_slice(&session.to_le_bytes());
    bytes[14..].copy_from_slice(&counter.to_le_bytes()[..6]);
    let mark = mark_of(&bytes[6..]);
    bytes[..6].copy_from_slice(&mark);
    ObjectId::from_bytes(bytes)
}

/// Returns volume, session and counter of the id of an object with bytes of a file. `None` for other ids.
pub fn parts_of(id: &ObjectId) -> Option<(u32, u32, u64)> {
    let bytes = id.as_bytes();
    if bytes[..6] != mark_of(&bytes[6..]) {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mut counter = [0; 8];
    counter[..6].copy_from_slice(&bytes[14..]);
    Some((word(6), word(10), u64::from_le_bytes(counter)))
}

/// Returns the mark that stands before these bytes of an id.
fn mark_of(bytes: &[u8]) -> [u8; 6] {
    let mut digest = Digest::new();
    digest.add(b"plasmon file");
    digest.add(bytes);
    let [a, b, c, d, e, f, ..] = digest.value().to_le_bytes();
    [a, b, c, d, e, f]
}

/// Returns the id of the name of a volume in the record of the cluster. No object's name has this id.
pub fn volume_id(name: &str) -> ObjectId {
    ObjectId::of_kind("volume", name)
}
