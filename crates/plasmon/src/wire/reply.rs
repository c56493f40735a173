//! What the daemon answers.

mod codec;

use super::opcode;
use crate::{Error, NodeId, ObjectId};

/// What a descriptor lets its holder do with a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Access {
    /// Map it read-only.
    Read = 0,
    /// Map it read-write: segments in which this user creates objects.
    Write = 1,
}

/// Announces a descriptor that travels with the frame, in the same order.
///
/// A version other than the one mapped replaces it: nothing of the older one is in use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Segment number.
    pub segment: u32,
    /// Grows when the segment is replaced by a new one.
    pub version: u32,
    /// What it is good for.
    pub access: Access,
}

/// Where an object lies in the arena: data at `offset`, metadata right behind it.
///
/// Offsets count from the arena's start; the segment is `offset / segment_size`, and an object may
/// run on into the segments that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First byte, from the start of the arena.
    pub offset: u64,
    /// Bytes of data.
    pub data_len: u64,
    /// Bytes of metadata, which follow the data.
    pub metadata_len: u32,
    /// XXH3 of data and metadata, 0 where none was made at the seal.
    pub digest: u64,
}

/// Where a created object's data is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Into the frame that seals it: the daemon writes it.
    Inline,
    /// Into the arena, through a writable descriptor.
    Mapped(Span),
}

/// Whether an object is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Presence {
    /// Not known.
    Absent = 0,
    /// Sealed, on this node.
    Here = 1,
    /// Sealed, on another node.
    Elsewhere = 2,
}

/// What became of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DeleteOutcome {
    /// Nothing of this id was known.
    Absent = 0,
    /// It is gone from this node, and the others were told.
    Deleted = 1,
    /// It is pinned: it cannot be found any more, and its memory goes with the last pin.
    Deferred = 2,
    /// It is another user's private object: it stays.
    NotAllowed = 3,
}

impl DeleteOutcome {
    /// The outcome behind a number of the wire.
    pub fn from_wire(code: u8) -> Option<Self> {
        [Self::Absent, Self::Deleted, Self::Deferred, Self::NotAllowed]
            .into_iter()
            .find(|one| *one as u8 == code)
    }
}

/// The life of an object, as `list` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ObjectState {
    /// Being written.
    Unsealed = 0,
    /// The replica its creator made.
    Primary = 1,
    /// A replica fetched from another node, dropped when room is needed.
    Cached = 2,
    /// Deleted, still pinned.
    Doomed = 3,
    /// On disk, and not in memory.
    Spilled = 4,
    /// One of several replicas that are kept, made on this node for another's primary.
    Kept = 5,
}

/// A row of `list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its id.
    pub id: ObjectId,
    /// The name behind the id, if it was created with one.
    pub name: Option<String>,
    /// Its state.
    pub state: ObjectState,
    /// Only the creating user sees it.
    pub private: bool,
    /// Bytes of data.
    pub data_len: u64,
    /// Bytes of metadata.
    pub metadata_len: u32,
    /// Pins of clients and peers.
    pub pins: u32,
    /// Milliseconds since it was created on this node.
    pub age_ms: u64,
}

/// Whose objects a table lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TableDomain {
    /// Everybody's.
    Shared = 0,
    /// Those private to the user who asks.
    Private = 1,
}

/// Which part of a table; its number: the version of an index, the place of a chunk, 0 for a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TablePartKind {
    /// What says which parts are in force.
    Root = 0,
    /// From hash to entry.
    Index = 1,
    /// Entries.
    Chunk = 2,
}

/// Announces the descriptor of a part of an object table, in the order of the descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TablePart {
    /// Which table.
    pub domain: TableDomain,
    /// Which kind of part.
    pub kind: TablePartKind,
    /// Which of its kind.
    pub number: u32,
}

/// What happened to an object on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It is sealed here from now on.
    Sealed {
        /// Which.
        id: ObjectId,
        /// Bytes of data.
        data_len: u64,
        /// Bytes of metadata.
        metadata_len: u32,
    },
    /// It is no longer here: deleted, or dropped to make room.
    Deleted {
        /// Which.
        id: ObjectId,
    },
    /// The subscriber was too slow: events are missing here.
    Gap {
        /// How many.
        missed: u64,
    },
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To `Hello`.
    Hello {
        /// The node.
        node: NodeId,
        /// Bytes in a segment.
        segment_size: u64,
        /// Segments in the arena.
        segments: u32,
        /// Largest data + metadata that the daemon takes inline.
        inline_max: u32,
    },
    /// To `Put`, `Seal`, `Abort`: done.
    Done {
        /// The opcode of the request.
        opcode: u8,
    },
    /// To `Create`.
    Created {
        /// Where to write.
        placement: Placement,
        /// Descriptors with the frame.
        granted: Vec<Granted>,
    },
    /// To `Get`: one result an id, in order. Found objects are pinned.
    Got {
        /// Results.
        objects: Vec<Result<Span, Error>>,
        /// Descriptors with the frame.
        granted: Vec<Granted>,
    },
    /// To `Contains`: one an id, in order.
    Contains(Vec<Presence>),
    /// To `Delete`: one an id, in order.
    Deleted(Vec<DeleteOutcome>),
    /// To `List`; `more` says that another such reply follows.
    List {
        /// Rows.
        objects: Vec<ObjectInfo>,
        /// Another reply follows.
        more: bool,
    },
    /// To `Status`: [`crate::status::Status`] as JSON.
    Status(String),
    /// To `Explain`, `Locations` and `Calibrate`: what [`crate::transfer`] has for it, as JSON; to `Overview`:
    /// [`crate::overview::Overview`].
    Report {
        /// Of the request.
        opcode: u8,
        /// The report.
        json: String,
    },
    /// To `Wait`: whether each is on this node, in order.
    Waited(Vec<bool>),
    /// To `Evict`.
    Evicted {
        /// Bytes that became free.
        bytes: u64,
    },
    /// To `Subscribe`, again and again.
    Events(Vec<Event>),
    /// To `Channel`: two descriptors, the page set and the doorbell, and one for each part.
    Channel {
        /// Of the tables.
        parts: Vec<TablePart>,
    },
    /// To `Tables`: a descriptor for each part.
    Tables {
        /// Of the tables.
        parts: Vec<TablePart>,
    },
    /// To `Lend` and `Adopt`.
    Lent {
        /// Its number, for this connection.
        buffer: u64,
        /// Where lent memory begins, from the start of the arena.
        offset: u64,
        /// Bytes that an object made of it may have, metadata included; 0 for adopted memory.
        capacity: u64,
        /// Descriptors with the frame.
        granted: Vec<Granted>,
    },
    /// To `GetInto`: the data is there.
    Landed {
        /// Bytes of it; nothing if it is to be got and copied: it is on this node, or does not come by reads.
        data_len: Option<u64>,
    },
    /// To any request that failed as a whole.
    Failed {
        /// Why.
        error: Error,
    },
}

impl Reply {
    /// To `Put`.
    pub const PUT_DONE: Self = Self::Done { opcode: opcode::PUT };
    /// To `Seal`.
    pub const SEALED: Self = Self::Done { opcode: opcode::SEAL };
    /// To `Abort`.
    pub const ABORTED: Self = Self::Done { opcode: opcode::ABORT };
    /// To `Refresh`.
    pub const REFRESHED: Self = Self::Done { opcode: opcode::REFRESH };
    /// To `Options`.
    pub const OPTIONS_SET: Self = Self::Done { opcode: opcode::OPTIONS };
    /// To `Prefetch`.
    pub const PREFETCHING: Self = Self::Done { opcode: opcode::PREFETCH };

    /// To `PutFrom`.
    pub const PUT_FROM_DONE: Self = Self::Done { opcode: opcode::PUT_FROM };

    /// To `Pin`.
    pub const PINNED: Self = Self::Done { opcode: opcode::PIN };
    /// To `Unpin`.
    pub const UNPINNED: Self = Self::Done { opcode: opcode::UNPIN };

    /// To `Replicate`.
    pub fn replicated(json: String) -> Self {
        Self::Report { opcode: opcode::REPLICATE, json }
    }

    /// To `Migrate`.
    pub fn migrated(json: String) -> Self {
        Self::Report { opcode: opcode::MIGRATE, json }
    }

    /// To `Drain`.
    pub fn drain(json: String) -> Self {
        Self::Report { opcode: opcode::DRAIN, json }
    }

    /// To `Broadcast`.
    pub fn broadcast(json: String) -> Self {
        Self::Report { opcode: opcode::BROADCAST, json }
    }

    /// To `Explain`.
    pub fn explained(json: String) -> Self {
        Self::Report { opcode: opcode::EXPLAIN, json }
    }

    /// To `Locations`.
    pub fn located(json: String) -> Self {
        Self::Report { opcode: opcode::LOCATIONS, json }
    }

    /// To `Calibrate`.
    pub fn calibrated(json: String) -> Self {
        Self::Report { opcode: opcode::CALIBRATE, json }
    }

    /// To `Overview`.
    pub fn overview(json: String) -> Self {
        Self::Report { opcode: opcode::OVERVIEW, json }
    }

    /// How many descriptors travel with the frame.
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Created { granted, .. } | Self::Got { granted, .. } | Self::Lent { granted, .. } => {
                granted.len()
            }
            Self::Channel { parts } => 2 + parts.len(),
            Self::Tables { parts } => parts.len(),
            _ => 0,
        }
    }

    fn more(&self) -> bool {
        matches!(self, Self::List { more: true, .. } | Self::Events(_))
    }

    fn opcode(&self) -> u8 {
        match self {
            Self::Hello { .. } => opcode::HELLO,
            Self::Done { opcode } => *opcode,
            Self::Failed { .. } => 0,
            Self::Created { .. } => opcode::CREATE,
            Self::Got { .. } => opcode::GET,
            Self::Contains(_) => opcode::CONTAINS,
            Self::Deleted(_) => opcode::DELETE,
            Self::List { .. } => opcode::LIST,
            Self::Status(_) => opcode::STATUS,
            Self::Report { opcode, .. } => *opcode,
            Self::Waited(_) => opcode::WAIT,
            Self::Evicted { .. } => opcode::EVICT,
            Self::Events(_) => opcode::SUBSCRIBE,
            Self::Channel { .. } => opcode::CHANNEL,
            Self::Tables { .. } => opcode::TABLES,
            Self::Lent { .. } => opcode::LEND,
            Self::Landed { .. } => opcode::GET_INTO,
        }
    }
}
