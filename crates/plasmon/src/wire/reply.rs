//! Replies of the daemon: the table of replies, and the types of their fields. Owns no state. Any thread.

use bytes::{Bytes, BytesMut};

use super::files::{FileAnswer, Kept, MAX_STALE, NodeCheck, Stale, VolumeInfo};
use super::{
    AtMost, Each, Header, MAX_MEMBERS, MAX_NAME_BYTES, MAX_WAIT_IDS, SHOWN_METADATA_BYTES, Table, WireError,
    put_frame,
};
use crate::region::{RegionEvent, RegionInfo, Rights as RegionRights};
use crate::service::{MAX_FUNCTIONS, ServiceInfo};
use crate::shared::{PAYLOAD_LEN, VALUES};
use crate::sync::LockInfo;
use crate::{Error, NodeId, ObjectId, Rights, Version};

crate::wire::codes! {
    /// Access that a descriptor gives to a segment.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Access: u8 {
        /// Read-only mapping.
        0 Read,
        /// Read-write mapping, of a segment in which this user creates objects.
        1 Write,
    }
}

crate::wire::record! {
    /// Grant of a segment, for a descriptor that travels with the frame. Grants and descriptors have the same
    /// order.
    ///
    /// A version other than the mapped one replaces the mapped segment. No object of the older version is in
    /// use then.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Granted {
        /// Number of the segment in the arena.
        pub segment: u32,
        /// Version of the segment. It grows when the segment is replaced.
        pub version: u32,
        /// Access that the descriptor gives.
        pub access: Access,
    }
}

crate::wire::record! {
    /// Extent of an object in the arena: data at `offset`, directly followed by the metadata.
    ///
    /// Offsets count from the arena's start. The segment is `offset / segment_size`; an object may span the
    /// segments that follow.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Span {
        /// Offset of the first byte from the start of the arena, in bytes.
        pub offset: u64,
        /// Size of the data in bytes.
        pub data_len: u64,
        /// Size of the metadata in bytes.
        pub metadata_len: u32,
        /// XXH3 of data and metadata. 0 if no digest was made at the seal.
        pub digest: u64,
    }
}

crate::wire::record! {
    /// Place of a region in the arena, for a client that may map it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RegionPlace {
        /// Pieces of the arena that make up the region: the offset of the first byte from the start of the
        /// arena and the number of bytes of each. If there are several, they are whole pages, but for the
        /// end of the last, and all descriptors are writable.
        pub pieces: Vec<(u64, u64)>,
        /// Word in the client's slots that says whether the region may still be touched.
        pub word: u32,
        /// Whether the client may write to the region.
        pub writable: bool,
    }
}

crate::wire::table! {
    /// Place to which the data of a created object is to be written.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Placement {
        /// The frame that seals the object: the daemon writes the data.
        0 Inline,
        /// An extent of the arena: the client writes the data through a writable descriptor.
        1 Mapped(span: Span),
    }
}

crate::wire::codes! {
    /// Presence of an object in the cluster.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Presence: u8 {
        /// No node is known to hold the object.
        0 Absent,
        /// The object is sealed on this node.
        1 Here,
        /// The object is sealed on another node.
        2 Elsewhere,
    }
}

crate::wire::table! {
    /// Outcome of a deletion.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DeleteOutcome {
        /// No object of this id was known.
        0 Absent,
        /// The object is deleted everywhere.
        1 Deleted,
        /// The object is deleted and cannot be found any more, but is pinned. Its memory is freed with the
        /// last pin.
        2 Deferred,
        /// The object belongs to another user and was not deleted.
        3 NotAllowed {
            /// User id of the creator. `None` for a private object.
            creator: Option<u32>,
        },
    }
}

crate::wire::codes! {
    /// State of an object on a node, as `list` shows it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ObjectState: u8 {
        /// A client is writing the object.
        0 Unsealed,
        /// This node has the primary replica.
        1 Primary,
        /// This node has a cached replica, which is dropped when memory is needed.
        2 Cached,
        /// The object is deleted, and its memory is still pinned.
        3 Doomed,
        /// The object is on this node's disk and not in memory.
        4 Spilled,
        /// This node has a kept replica: another node has the primary.
        5 Kept,
    }
}

crate::wire::record! {
    /// Row of a list of objects.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ObjectInfo {
        /// Id of the object.
        pub id: ObjectId,
        /// Name behind the id, if the object was created with one.
        pub name: Option<String>,
        /// State of the object on the node.
        pub state: ObjectState,
        /// Rights of other users to the object.
        pub rights: Rights,
        /// Size of the data in bytes.
        pub data_len: u64,
        /// Size of the metadata in bytes.
        pub metadata_len: u32,
        /// Number of pins of clients and peers.
        pub pins: u32,
        /// Time since the object came to this node, in milliseconds: since its seal, or since the creation of
        /// an unsealed object.
        pub age_ms: u64,
        /// Time from the object's creation on this node to its seal, in whole seconds. 0 if the object was
        /// not created here.
        pub construction_s: u32,
        /// Version of the object. `None` if the object is not sealed.
        pub version: Option<Version>,
        /// Beginning of the metadata, which tells what the value is. Empty if the object is not in memory.
        pub beginning: Bytes as AtMost<SHOWN_METADATA_BYTES>,
    }
}

impl ObjectInfo {
    /// Returns a short description of the value in the object, from its metadata: `bytes`, `numpy float64
    /// (1000,)`, `arrow table`, `pickle dict`. `None` if the object is not written yet or is not in memory.
    pub fn kind(&self) -> Option<String> {
        let known =
            self.state != ObjectState::Unsealed && (self.metadata_len == 0 || !self.beginning.is_empty());
        known.then(|| crate::value::describe(&self.beginning))
    }
}

crate::wire::codes! {
    /// Domain of a table: the objects that it lists.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum TableDomain: u8 {
        /// Objects that all users may read.
        0 Shared,
        /// Private objects of the user who asks.
        1 Private,
    }
}

crate::wire::codes! {
    /// Kind of a part of a table, with the meaning of the part's number.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum TablePartKind: u8 {
        /// Root, which says which other parts are in force. Its number is 0.
        0 Root,
        /// Index from hash to entry. Its number is its version.
        1 Index,
        /// Chunk of entries. Its number is its position.
        2 Chunk,
    }
}

crate::wire::record! {
    /// Part of an object table, for a descriptor that travels with the frame. Parts and descriptors have the
    /// same order.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct TablePart {
        /// Domain of the table.
        pub domain: TableDomain,
        /// Kind of the part.
        pub kind: TablePartKind,
        /// Number of the part within its kind.
        pub number: u32,
    }
}

crate::wire::table! {
    /// Event of an object on a node.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Event {
        /// The object is sealed on this node from now on.
        1 Sealed {
            /// Id of the object.
            id: ObjectId,
            /// Name behind the id. Empty if there is none.
            name: Box<str> as AtMost<MAX_NAME_BYTES>,
            /// Size of the data in bytes.
            data_len: u64,
            /// Size of the metadata in bytes.
            metadata_len: u32,
        },
        /// The object is no longer on this node: it was deleted, or dropped to make room.
        2 Deleted {
            /// Id of the object.
            id: ObjectId,
            /// Name behind the id. Empty if there is none.
            name: Box<str> as AtMost<MAX_NAME_BYTES>,
        },
        /// Events are missing here, since the subscriber was too slow. In a subscription to the whole
        /// cluster, events may be missing since the node is out of reach, or has come.
        3 Gap {
            /// Number of missing events. 0 if nobody knows.
            missed: u64,
        },
        /// From now on another object has the id on this node. The former one may have been on other nodes
        /// alone.
        4 Replaced {
            /// Id of both objects.
            id: ObjectId,
            /// Name behind the id. Empty if there is none.
            name: Box<str> as AtMost<MAX_NAME_BYTES>,
            /// Size of the new object's data in bytes.
            data_len: u64,
            /// Size of the new object's metadata in bytes.
            metadata_len: u32,
        },
    }
}

crate::wire::table! {
    /// Reply of the daemon. Its opcode is its own, not that of the request.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Reply in replies -> Reply in self {
        /// Answers any request that failed as a whole.
        0 Failed {
            /// Reason of the failure.
            error: Error,
        },
        /// Answers `Hello`.
        1 Hello {
            /// Id of the node.
            node: NodeId,
            /// Size of a segment in bytes.
            segment_size: u64,
            /// Number of segments in the arena.
            segments: u32,
            /// Largest size in bytes of data and metadata that the daemon accepts in a frame.
            inline_max: u32,
            /// User id of the client as the daemon knows it.
            user: u32,
            /// Size of the store in bytes.
            capacity: u64,
        },
        /// Answers a request without a result: it was carried out.
        2 Done,
        /// Answers `Create`.
        3 Created {
            /// Place to which the data is to be written.
            placement: Placement,
            /// Grants for the descriptors with the frame.
            granted: Vec<Granted>,
        },
        /// Answers `Get`: one result an id, in order. The objects found are pinned.
        6 Got {
            /// Extents of the objects, or errors.
            objects: Vec<Result<Span, Error>>,
            /// Grants for the descriptors with the frame.
            granted: Vec<Granted>,
        },
        /// Answers `Contains`: one presence an id, in order.
        8 Contains(presence: Vec<Presence>),
        /// Answers `Delete`: one outcome an id, in order.
        9 Deleted(outcomes: Vec<DeleteOutcome>),
        /// Answers `List`, in one or more frames.
        10 List {
            /// Rows of the list.
            objects: Vec<ObjectInfo>,
            /// Whether another frame of the list follows.
            more: bool,
        },
        /// Answers `Status`: `plasmon::status::Status` as JSON.
        11 Status(json: String),
        /// Answers `Wait`: for each object, in order, whether it is on this node.
        13 Waited(here: Vec<bool> as AtMost<MAX_WAIT_IDS>),
        /// Answers `Evict`.
        14 Evicted {
            /// Number of bytes freed.
            bytes: u64,
        },
        /// Answers `Subscribe`, again and again.
        17 Events {
            /// The node of the objects.
            node: NodeId,
            /// Events, in their order.
            events: Vec<Event>,
        },
        /// Answers `Channel`: two descriptors, of the page set and the doorbell, and one for each part.
        18 Channel {
            /// Parts of the object tables.
            parts: Vec<TablePart>,
        },
        /// Answers `Tables`: a descriptor for each part.
        19 Tables {
            /// Parts of the object tables.
            parts: Vec<TablePart>,
        },
        /// Answers requests about transfers with a struct of `plasmon::transfer` as JSON, `Drain` with
        /// `plasmon::drain::DrainStatus`, and `Overview` with `plasmon::overview::Overview`.
        20 Report {
            /// Report as JSON.
            json: String,
        },
        /// Answers `Replace`, `SealOver` and `Version`.
        35 Replaced {
            /// Version of the object.
            version: u64,
        },
        /// Answers `Lend` and `Adopt`.
        24 Lent {
            /// Number of the memory on this connection.
            buffer: u64,
            /// Offset of lent memory from the start of the arena, in bytes.
            offset: u64,
            /// Largest size in bytes, including metadata, of an object made of the memory. 0 for adopted
            /// memory.
            capacity: u64,
            /// Grants for the descriptors with the frame.
            granted: Vec<Granted>,
        },
        /// Answers `GetInto`: the data is in the client's memory.
        27 Landed {
            /// Size of the data in bytes. None if the client has to get and copy the object, which is on this
            /// node or cannot be fetched by reads.
            data_len: Option<u64>,
        },
        /// Answers `Members`: the nodes of the cluster, that of the client first.
        41 Members(nodes: Vec<NodeId> as AtMost<MAX_MEMBERS>),
        /// Answers `Page`.
        42 Page {
            /// Rows of the page.
            objects: Vec<ObjectInfo>,
            /// Place at which the next page begins. None after the last page.
            next: Option<u64>,
            /// Time in microseconds since the node last dropped an object in whose place another node has a
            /// successor. None if it never has.
            succeeded_us: Option<u64>,
        },
        /// Answers `Slots`: a descriptor of the page set.
        45 Slots,
        /// Answers `Call`.
        46 Called {
            /// Values that the operation returns.
            values: Vec<u64> as AtMost<VALUES>,
            /// Bytes that the operation returns.
            payload: Bytes as AtMost<PAYLOAD_LEN>,
        },
        /// Answers `CreateRegion` and `MapRegion`.
        100 RegionMapped {
            /// Number of the handle on this connection.
            handle: u32,
            /// Size in bytes.
            len: u64,
            /// Node on which the region lives.
            home: NodeId,
            /// User to whom the region belongs.
            owner: u32,
            /// Rights of the handle.
            rights: RegionRights,
            /// Where the client may map the region. None if it may not, or if the region lives elsewhere.
            place: Option<RegionPlace>,
            /// Grants for the descriptors with the frame.
            granted: Vec<Granted>,
        },
        /// Answers `ListRegions`.
        101 Regions {
            /// Rows of the page.
            regions: Vec<RegionInfo>,
            /// Place at which the next page begins. None after the last page.
            next: Option<u64>,
        },
        /// Answers `DescribeRegion`.
        102 Region(info: RegionInfo),
        /// Answers `Serve`.
        110 Serving {
            /// Number of the port on this connection.
            port: u32,
        },
        /// Answers `FindService`.
        111 ServiceFound {
            /// Number of the handle on this connection.
            service: u32,
            /// User to whom the service belongs.
            owner: u32,
            /// Names of the functions, in the order of their numbers.
            functions: Vec<String> as Each<AtMost<MAX_NAME_BYTES>, MAX_FUNCTIONS>,
        },
        /// Answers `ListServices`.
        112 Services {
            /// Rows of the page.
            services: Vec<ServiceInfo>,
            /// Place at which the next page begins. None after the last page.
            next: Option<u64>,
        },
        /// Answers `WatchRegions`.
        120 RegionsWatched {
            /// Number that `FollowRegions` names on another connection.
            key: u64,
        },
        /// Answers `FollowRegions`, again and again.
        121 RegionEvents(events: Vec<RegionEvent>),
        /// Answers `OpenLock`.
        130 LockOpened {
            /// Number of the handle on this connection.
            lock: u32,
        },
        /// Answers `ListLocks`.
        132 Locks {
            /// Rows of the page.
            locks: Vec<LockInfo>,
            /// Place at which the next page begins. None after the last page.
            next: Option<u64>,
        },
        /// Answers `OpenLeases`: a descriptor of memory of 64-bit words, which the client may read. Each is
        /// the time until which a lease is valid, in nanoseconds of `CLOCK_BOOTTIME`, or 0 if it has ended.
        133 Leases {
            /// Number of words.
            words: u32,
        },
        /// Answers `OpenBarrier`.
        134 BarrierOpened {
            /// Number of the handle on this connection.
            barrier: u32,
        },
        /// Answers `AttachVolume`.
        150 VolumeAttached {
            /// Number of the attached volume on this connection.
            volume: u32,
            /// Number of the session, which is part of the ids of its objects.
            session: u32,
            /// Secret by which the session goes on after its connection was lost.
            secret: u64,
            /// Whether the session may act for any user.
            trusted: bool,
            /// Whether the session is new: if it was to go on and is new, opens and locks are gone.
            fresh: bool,
            /// Volume.
            info: VolumeInfo,
        },
        /// Answers `OnFile`.
        151 FileDone(answer: FileAnswer),
        /// Answers `WatchVolume`, again and again.
        152 VolumeStale {
            /// Number of the message, by which it is confirmed. 0 for the first one, which is not.
            number: u64,
            /// Parts of the volume that must not be kept any more.
            stale: Vec<Stale> as AtMost<MAX_STALE>,
        },
        /// Answers `Settle`.
        155 Settled {
            /// Node that has each object as its primary now, in the order of the request.
            nodes: Vec<NodeId>,
            /// Whether objects of a volume that has them on the node of its sessions are to be settled, since
            /// this node is short of memory or keeps no files.
            elsewhere: bool,
            /// Whether this node, or another that objects may lie on, has room for more. Looked at for a
            /// request without objects alone.
            room: bool,
        },
        /// Answers `CreateVolume` and `SetVolume`.
        156 Volume(info: VolumeInfo),
        /// Answers `Peek`.
        167 Peeked {
            /// Bytes of the range.
            bytes: Bytes,
        },
        /// Answers `CheckVolume`.
        168 VolumeChecked(checked: NodeCheck),
        /// Answers `LookAfter`.
        169 LookedAfter {
            /// Number of nodes that have each object, in the order of the request.
            kept: Vec<Kept>,
        },
        /// Answers `ListVolumes`.
        157 Volumes {
            /// Rows of the page.
            volumes: Vec<VolumeInfo>,
            /// Place at which the next page begins. None after the last page.
            next: Option<u64>,
        },
    }
    others Other
}

impl Reply {
    /// Appends the reply's frame to `out`.
    pub fn encode(&self, request: u64, out: &mut BytesMut) {
        put_frame(self, 0, request, self.descriptors(), out);
    }

    /// Reads the body of a reply.
    ///
    /// # Errors
    /// If the opcode is unknown, if the body is invalid, or if the body and the header differ in the number
    /// of descriptors.
    pub fn decode(header: &Header, body: Bytes) -> Result<Self, WireError> {
        let reply = Self::decode_body(header.opcode, body)?;
        if header.flags != 0 || reply.descriptors() != usize::from(header.descriptors) {
            return Err(WireError::Malformed("header of a reply"));
        }
        Ok(reply)
    }

    /// Number of descriptors that travel with the frame.
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Created { granted, .. }
            | Self::Got { granted, .. }
            | Self::Lent { granted, .. }
            | Self::RegionMapped { granted, .. } => granted.len(),
            Self::Channel { parts } => 2 + parts.len(),
            Self::Tables { parts } => parts.len(),
            Self::Slots | Self::Leases { .. } => 1,
            _ => 0,
        }
    }
}
