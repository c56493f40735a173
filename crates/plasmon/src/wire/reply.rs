//! What the daemon answers: the table of replies, and what they are made of.

use bytes::{Bytes, BytesMut};

use super::{AtMost, Header, MAX_WAIT, Table, WireError, put_frame};
use crate::{Error, NodeId, ObjectId, Rights};

crate::wire::codes! {
    /// What a descriptor lets its holder do with a segment.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Access: u8 {
        /// Map it read-only.
        0 Read,
        /// Map it read-write: segments in which this user creates objects.
        1 Write,
    }
}

crate::wire::record! {
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
}

crate::wire::record! {
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
}

crate::wire::table! {
    /// Where a created object's data is to be written.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Placement {
        /// Into the frame that seals it: the daemon writes it.
        0 Inline,
        /// Into the arena, through a writable descriptor.
        1 Mapped(span: Span),
    }
}

crate::wire::codes! {
    /// Whether an object is there.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Presence: u8 {
        /// Not known.
        0 Absent,
        /// Sealed, on this node.
        1 Here,
        /// Sealed, on another node.
        2 Elsewhere,
    }
}

crate::wire::table! {
    /// What became of a deletion.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DeleteOutcome {
        /// Nothing of this id was known.
        0 Absent,
        /// It is gone from this node, and the others were told.
        1 Deleted,
        /// It is pinned: it cannot be found any more, and its memory goes with the last pin.
        2 Deferred,
        /// It is another user's: it stays.
        3 NotAllowed {
            /// That user; not told of a private object.
            creator: Option<u32>,
        },
    }
}

crate::wire::codes! {
    /// The life of an object, as `list` tells it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ObjectState: u8 {
        /// Being written.
        0 Unsealed,
        /// The replica its creator made.
        1 Primary,
        /// A replica fetched from another node, dropped when room is needed.
        2 Cached,
        /// Deleted, still pinned.
        3 Doomed,
        /// On disk, and not in memory.
        4 Spilled,
        /// One of several replicas that are kept, made on this node for another's primary.
        5 Kept,
    }
}

crate::wire::record! {
    /// A row of `list`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ObjectInfo {
        /// Its id.
        pub id: ObjectId,
        /// The name behind the id, if it was created with one.
        pub name: Option<String>,
        /// Its state.
        pub state: ObjectState,
        /// What users other than its creator may do with it.
        pub rights: Rights,
        /// Bytes of data.
        pub data_len: u64,
        /// Bytes of metadata.
        pub metadata_len: u32,
        /// Pins of clients and peers.
        pub pins: u32,
        /// Milliseconds since it came to this node: since its seal, or while it is unsealed since its
        /// creation.
        pub age_ms: u64,
        /// Whole seconds from its creation on this node to its seal; 0 where it was not created here.
        pub construction_s: u32,
    }
}

crate::wire::codes! {
    /// Whose objects a table lists.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum TableDomain: u8 {
        /// Everybody's.
        0 Shared,
        /// Those private to the user who asks.
        1 Private,
    }
}

crate::wire::codes! {
    /// Which part of a table; its number: the version of an index, the place of a chunk, 0 for a root.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum TablePartKind: u8 {
        /// What says which parts are in force.
        0 Root,
        /// From hash to entry.
        1 Index,
        /// Entries.
        2 Chunk,
    }
}

crate::wire::record! {
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
}

crate::wire::table! {
    /// What happened to an object on a node.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Event {
        /// It is sealed here from now on.
        1 Sealed {
            /// Which.
            id: ObjectId,
            /// Bytes of data.
            data_len: u64,
            /// Bytes of metadata.
            metadata_len: u32,
        },
        /// It is no longer here: deleted, or dropped to make room.
        2 Deleted {
            /// Which.
            id: ObjectId,
        },
        /// The subscriber was too slow: events are missing here.
        3 Gap {
            /// How many.
            missed: u64,
        },
    }
}

crate::wire::table! {
    /// A reply. Its number is its own, not that of the request.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Reply in replies -> Reply in self {
        /// To any request that failed as a whole.
        0 Failed {
            /// Why.
            error: Error,
        },
        /// To `Hello`.
        1 Hello {
            /// The node.
            node: NodeId,
            /// Bytes in a segment.
            segment_size: u64,
            /// Segments in the arena.
            segments: u32,
            /// Largest data + metadata that the daemon takes inline.
            inline_max: u32,
            /// The user that the client is to the daemon.
            user: u32,
            /// Bytes that objects may have together.
            capacity: u64,
        },
        /// It was done: to requests that ask for nothing but that.
        2 Done,
        /// To `Create`.
        3 Created {
            /// Where to write.
            placement: Placement,
            /// Descriptors with the frame.
            granted: Vec<Granted>,
        },
        /// To `Get`: one result an id, in order. Found objects are pinned.
        6 Got {
            /// Results.
            objects: Vec<Result<Span, Error>>,
            /// Descriptors with the frame.
            granted: Vec<Granted>,
        },
        /// To `Contains`: one an id, in order.
        8 Contains(presence: Vec<Presence>),
        /// To `Delete`: one an id, in order.
        9 Deleted(outcomes: Vec<DeleteOutcome>),
        /// To `List`.
        10 List {
            /// Rows.
            objects: Vec<ObjectInfo>,
            /// Another such reply follows.
            more: bool,
        },
        /// To `Status`: `plasmon::status::Status` as JSON.
        11 Status(json: String),
        /// To `Wait`: whether each is on this node, in order.
        13 Waited(here: Vec<bool> as AtMost<MAX_WAIT>),
        /// To `Evict`.
        14 Evicted {
            /// Bytes that became free.
            bytes: u64,
        },
        /// To `Subscribe`, again and again.
        17 Events(events: Vec<Event>),
        /// To `Channel`: two descriptors, the page set and the doorbell, and one for each part.
        18 Channel {
            /// Of the tables.
            parts: Vec<TablePart>,
        },
        /// To `Tables`: a descriptor for each part.
        19 Tables {
            /// Of the tables.
            parts: Vec<TablePart>,
        },
        /// To requests about transfers: a struct of `plasmon::transfer` as JSON; to `Drain`:
        /// `plasmon::drain::DrainStatus`; to `Overview`: `plasmon::overview::Overview`.
        20 Report {
            /// The report.
            json: String,
        },
        /// To `Lend` and `Adopt`.
        24 Lent {
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
        27 Landed {
            /// Bytes of it; nothing if it is to be got and copied: it is on this node, or does not come by
            /// reads.
            data_len: Option<u64>,
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
    /// When the opcode is unknown, the body is not one of its kind, or names more or fewer descriptors than
    /// came.
    pub fn decode(header: &Header, body: Bytes) -> Result<Self, WireError> {
        let reply = Self::decode_body(header.opcode, body)?;
        if header.flags != 0 || reply.descriptors() != usize::from(header.descriptors) {
            return Err(WireError::Malformed("header of a reply"));
        }
        Ok(reply)
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
}
