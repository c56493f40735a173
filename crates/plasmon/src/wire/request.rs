//! What a client asks: the table of requests, and the one request that may take several frames.

use bytes::{Bytes, BytesMut};

use super::reply::{Reply, replies};
use super::{
    AtMost, Each, FLAG_MORE, Header, MAX_IDS, MAX_METADATA, MAX_NAME, MAX_WAIT, Table, WireError, put_frame,
};
use crate::drain::DrainStep;
use crate::{NodeId, ObjectId, Rights};

crate::wire::record! {
    /// How an object is kept.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Terms {
        /// Its id was drawn at random for it: nobody need be asked whether it is taken.
        pub fresh: bool,
        /// How many nodes are to hold it; 0 and 1 for its own alone.
        pub copies: u16,
        /// Milliseconds until it is deleted everywhere; 0 for never.
        pub ttl_ms: u64,
    }
}

crate::wire::record! {
    /// What is said of an object before its data.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct NewObject {
        /// Its id.
        pub id: ObjectId,
        /// What other users may do with it. The domain of a private one is its creator's.
        pub rights: Rights,
        /// The name behind the id; empty when there is none.
        pub name: String as AtMost<MAX_NAME>,
        /// Its metadata.
        pub metadata: Bytes as AtMost<MAX_METADATA>,
        /// How it is kept.
        pub terms: Terms,
    }
}

crate::wire::table! {
    /// A request, which is answered unless its row names no reply.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Request in requests -> Reply in replies {
        /// First frame of a connection. `name` tells people which program this is.
        1 Hello {
            /// For logs and error messages.
            name: String as AtMost<MAX_NAME>,
        } -> Hello,
        /// Creates and seals an object of at most the daemon's `inline_max` bytes.
        2 Put {
            /// Which.
            object: NewObject,
            /// XXH3 of its data and metadata, 0 for none.
            digest: u64,
            /// Microseconds to wait for others to make room. What the node does to make room is waited for
            /// in any case.
            room_us: u64,
            /// Its data.
            data: Bytes,
        } -> Done,
        /// Reserves an object; the reply says where its data is to be written.
        3 Create {
            /// Which.
            object: NewObject,
            /// Bytes of data it will have.
            data_len: u64,
            /// Bytes of metadata that the creator writes behind the data itself: 0, or more than
            /// [`MAX_METADATA`], and then `object` has none.
            metadata_len: u32,
            /// Microseconds to wait for others to make room.
            room_us: u64,
        } -> Created,
        /// Makes a created object immutable and visible to all.
        4 Seal {
            /// Its id.
            id: ObjectId,
            /// XXH3 of its data and metadata, 0 for none.
            digest: u64,
            /// The data, all of it, where the reply to `Create` was `Inline`; else empty.
            data: Bytes,
        } -> Done,
        /// Gives a created object up.
        5 Abort {
            /// Its id.
            id: ObjectId,
        } -> Done,
        /// Waits until all objects are sealed, brings them here, and pins them for this client.
        6 Get {
            /// Microseconds to wait; `u64::MAX` waits for ever.
            timeout_us: u64,
            /// The objects.
            ids: Vec<ObjectId>,
        } -> Got,
        /// Takes back one pin of each. Pins go by place, not by id: an id that was deleted and created
        /// anew may be pinned in both its lives.
        7 Release {
            /// `Span::offset` of the objects, as `Got` told them; at most `MAX_IDS`.
            offsets: Vec<u64>,
        },
        /// Asks where objects are.
        8 Contains {
            /// The objects.
            ids: Vec<ObjectId>,
        } -> Contains,
        /// Removes objects from every node; pinned ones disappear with their last pin.
        9 Delete {
            /// The objects.
            ids: Vec<ObjectId>,
        } -> Deleted,
        /// The objects on this node.
        10 List -> List,
        /// The state of this node.
        11 Status -> Status,
        /// The client no longer waits for the reply to this request, which is answered as interrupted.
        12 Cancel {
            /// Its request id.
            request: u64,
        },
        /// Waits as `Get` does, until `count` of the objects are on this node, and pins nothing. For more
        /// than
        /// `MAX_IDS` objects it takes several frames.
        13 Wait {
            /// Microseconds to wait; `u64::MAX` waits for ever.
            timeout_us: u64,
            /// How many of them.
            count: u32,
            /// The objects, at most `MAX_WAIT`.
            ids: Vec<ObjectId>,
        } -> Waited,
        /// Takes least recently used objects out of memory that may be: cached replicas, those that are
        /// spilled, in cache mode all.
        14 Evict {
            /// Until so many bytes are free that were not.
            bytes: u64,
        } -> Evicted,
        /// Marks objects as used just now.
        15 Refresh {
            /// The objects.
            ids: Vec<ObjectId>,
        } -> Done,
        /// Changes what the daemon knows of this client; what is not given stays as it was.
        16 Options {
            /// Its name, which is not empty.
            name: Option<String> as Each<AtMost<MAX_NAME>>,
            /// Most bytes that objects created on this connection may take; 0 for no limit of its own.
            quota: Option<u64>,
        } -> Done,
        /// Events of this node's objects from now on, what is there first, until the connection ends: the
        /// last request on its connection.
        17 Subscribe -> Events,
        /// Shared memory for this client: a page set of its own and the object tables it may read.
        18 Channel -> Channel,
        /// The parts of the object tables that this client does not have yet.
        19 Tables -> Tables,
        /// How an object came to this node.
        20 Explain {
            /// Which.
            id: ObjectId,
        } -> Report,
        /// Which nodes hold an object.
        21 Locations {
            /// Which.
            id: ObjectId,
        } -> Report,
        /// Begins to bring objects to this node; answered at once.
        22 Prefetch {
            /// Microseconds to wait for those that do not exist yet.
            timeout_us: u64,
            /// The objects.
            ids: Vec<ObjectId>,
        } -> Done,
        /// Measures what is best towards another node, and puts it in force.
        23 Calibrate {
            /// Which.
            peer: NodeId,
        } -> Report,
        /// Asks for memory of the arena to write, for no object yet.
        24 Lend {
            /// Bytes.
            len: u64,
            /// What is put from it is private.
            private: bool,
            /// Microseconds to wait for others to make room.
            room_us: u64,
        } -> Lent,
        /// Offers memory of the client's own, whose descriptor travels with the frame.
        25 Adopt {
            /// Its bytes, all of the file's.
            len: u64,
        } -> Lent,
        /// Lent or adopted memory is not used any more.
        26 GiveBack {
            /// Its number.
            buffer: u64,
        },
        /// Brings an object's data into lent or adopted memory, and no replica to this node.
        27 GetInto {
            /// Microseconds to wait; `u64::MAX` waits for ever.
            timeout_us: u64,
            /// The object.
            id: ObjectId,
            /// The number of the memory.
            buffer: u64,
            /// Where in it the data is to begin.
            at: u64,
            /// Bytes that may be written there.
            room: u64,
        } -> Landed,
        /// Makes an object of lent memory: its first bytes, where they are.
        28 PutFrom {
            /// Which.
            object: NewObject,
            /// XXH3 of its data and metadata, 0 for none.
            digest: u64,
            /// The number of the memory.
            buffer: u64,
            /// Bytes of data.
            data_len: u64,
        } -> Done,
        /// Has so many nodes hold an object, and keep it.
        29 Replicate {
            /// Microseconds to wait; `u64::MAX` waits for ever.
            timeout_us: u64,
            /// Which.
            id: ObjectId,
            /// How many nodes, this one or not among them.
            copies: u16,
        } -> Report,
        /// Has another node be the one that an object belongs to.
        30 Migrate {
            /// Microseconds to wait; `u64::MAX` waits for ever.
            timeout_us: u64,
            /// Which.
            id: ObjectId,
            /// The node.
            node: NodeId,
        } -> Report,
        /// Brings an object to nodes, each passing on what it has.
        31 Broadcast {
            /// Microseconds to wait; `u64::MAX` waits for ever.
            timeout_us: u64,
            /// Which.
            id: ObjectId,
            /// The nodes, at most `MAX_IDS`; none for all.
            nodes: Vec<NodeId>,
        } -> Report,
        /// Brings an object to this node, and keeps it in memory there until `Unpin`, or this client's end.
        32 Pin {
            /// Microseconds to wait; `u64::MAX` waits for ever.
            timeout_us: u64,
            /// Which.
            id: ObjectId,
        } -> Done,
        /// Ends what `Pin` began, however often it was asked for.
        33 Unpin {
            /// Which.
            id: ObjectId,
        } -> Done,
        /// Has a node move what it keeps to others, and leave.
        34 Drain {
            /// The node.
            node: NodeId,
            /// What to do about it.
            step: DrainStep,
        } -> Report,
        /// The state of every node of the cluster, in short.
        40 Overview -> Report,
    }
    others Other
}

impl Request {
    /// Appends the request to `out`: one frame, unless it is a wait for many objects.
    pub fn encode(&self, request: u64, out: &mut BytesMut) {
        match self {
            Self::Wait { timeout_us, count, ids } if ids.len() > MAX_IDS => {
                let mut parts = ids.chunks(MAX_IDS).peekable();
                while let Some(ids) = parts.next() {
                    let part = Self::Wait { timeout_us: *timeout_us, count: *count, ids: ids.to_vec() };
                    let flags = if parts.peek().is_some() { FLAG_MORE } else { 0 };
                    put_frame(&part, flags, request, 0, out);
                }
            }
            _ => put_frame(self, 0, request, self.descriptors(), out),
        }
    }

    /// How many descriptors travel with the frame.
    pub fn descriptors(&self) -> usize {
        usize::from(matches!(self, Self::Adopt { .. }))
    }

    /// Whether there is an answer to it.
    pub fn is_answered(&self) -> bool {
        self.row().is_none_or(|row| !row.answers.is_empty())
    }
}

/// Puts requests together that come in several frames, one behind the other.
#[derive(Debug, Default)]
pub struct Gathering(Option<(u64, Vec<ObjectId>)>);

impl Gathering {
    /// Takes the next frame; gives the request that it ends.
    ///
    /// # Errors
    /// As [`Table::decode_body`]; also when a frame has flags that it should not have, another request comes
    /// between two frames of one, or they are for too many objects.
    pub fn take(&mut self, header: &Header, body: Bytes) -> Result<Option<Request>, WireError> {
        let more = match header.flags {
            0 => false,
            FLAG_MORE => true,
            _ => return Err(WireError::Malformed("flags of a request")),
        };
        let request = Request::decode_body(header.opcode, body)?;
        let (timeout_us, count, ids) = match (request, self.0.take()) {
            (request, None) if !more => return Ok(Some(request)),
            (Request::Wait { timeout_us, count, ids }, None) => (timeout_us, count, ids),
            (Request::Wait { timeout_us, count, ids }, Some((number, mut before)))
                if number == header.request && before.len() + ids.len() <= MAX_WAIT =>
            {
                before.extend(ids);
                (timeout_us, count, before)
            }
            _ => return Err(WireError::Malformed("request in several frames")),
        };
        if more {
            self.0 = Some((header.request, ids));
            return Ok(None);
        }
        Ok(Some(Request::Wait { timeout_us, count, ids }))
    }
}
