//! What a client asks.

mod codec;

use bytes::Bytes;

use super::{FLAG_MORE, Header, MAX_WAIT, WireError, opcode};
use crate::drain::DrainStep;
use crate::{NodeId, ObjectId};

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

/// What is said of an object before its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// Its id.
    pub id: ObjectId,
    /// Only the creating user may see the object (its domain is private).
    pub private: bool,
    /// The name behind the id; empty when there is none.
    pub name: String,
    /// Its metadata.
    pub metadata: Bytes,
    /// How it is kept.
    pub terms: Terms,
}

/// A request. All but `Release`, `GiveBack` and `Cancel` are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// First frame of a connection. `name` tells people which program this is.
    Hello {
        /// For logs and error messages.
        name: String,
    },
    /// Creates and seals an object of at most the daemon's `inline_max` bytes.
    Put {
        /// Which.
        object: NewObject,
        /// XXH3 of its data and metadata, 0 for none.
        digest: u64,
        /// Microseconds to wait for others to make room. What the node does to make room is waited for
        /// in any case.
        room_us: u64,
        /// Its data.
        data: Bytes,
    },
    /// Reserves an object; the reply says where its data is to be written.
    Create {
        /// Which.
        object: NewObject,
        /// Bytes of data it will have.
        data_len: u64,
        /// As in `Put`.
        room_us: u64,
    },
    /// Makes a created object immutable and visible to all.
    Seal {
        /// Its id.
        id: ObjectId,
        /// XXH3 of its data and metadata, 0 for none.
        digest: u64,
        /// The data, all of it, where the reply to `Create` was `Inline`; else empty.
        data: Bytes,
    },
    /// Gives a created object up.
    Abort {
        /// Its id.
        id: ObjectId,
    },
    /// Waits until all objects are sealed, brings them here, and pins them for this client.
    Get {
        /// Microseconds to wait; `u64::MAX` waits for ever.
        timeout_us: u64,
        /// The objects.
        ids: Vec<ObjectId>,
    },
    /// Takes back one pin of each. Pins go by place, not by id: an id that was deleted and created
    /// anew may be pinned in both its lives.
    Release {
        /// `Span::offset` of the objects, as `Got` told them; at most `MAX_IDS`.
        offsets: Vec<u64>,
    },
    /// Asks where objects are.
    Contains {
        /// The objects.
        ids: Vec<ObjectId>,
    },
    /// Removes objects from every node; pinned ones disappear with their last pin.
    Delete {
        /// The objects.
        ids: Vec<ObjectId>,
    },
    /// The objects on this node.
    List,
    /// The state of this node.
    Status,
    /// The client no longer waits for the reply to this request.
    Cancel {
        /// Its request id.
        request: u64,
    },
    /// Waits as `Get` does, until `count` of the objects are on this node, and pins nothing. For more than
    /// `MAX_IDS` objects it takes several frames.
    Wait {
        /// Microseconds to wait; `u64::MAX` waits for ever.
        timeout_us: u64,
        /// How many of them.
        count: u32,
        /// The objects, at most `MAX_WAIT`.
        ids: Vec<ObjectId>,
    },
    /// Takes least recently used objects out of memory that may be: cached replicas, those that are
    /// spilled, in cache mode all.
    Evict {
        /// Until so many bytes are free that were not.
        bytes: u64,
    },
    /// Marks objects as used just now.
    Refresh {
        /// The objects.
        ids: Vec<ObjectId>,
    },
    /// Changes what the daemon knows of this client; what is not given stays as it was.
    Options {
        /// Its name, which is not empty.
        name: Option<String>,
        /// Most bytes that objects created on this connection may take; 0 for no limit of its own.
        quota: Option<u64>,
    },
    /// Events of this node's objects from now on, what is there first, until the connection ends: the
    /// last request on its connection.
    Subscribe,
    /// Shared memory for this client: a page set of its own and the object tables it may read.
    Channel,
    /// The parts of the object tables that this client does not have yet.
    Tables,
    /// How an object came to this node.
    Explain {
        /// Which.
        id: ObjectId,
    },
    /// Which nodes hold an object.
    Locations {
        /// Which.
        id: ObjectId,
    },
    /// Begins to bring objects to this node; answered at once.
    Prefetch {
        /// Microseconds to wait for those that do not exist yet.
        timeout_us: u64,
        /// The objects.
        ids: Vec<ObjectId>,
    },
    /// Measures what is best towards another node, and puts it in force.
    Calibrate {
        /// Which.
        peer: NodeId,
    },
    /// The state of every node of the cluster, in short.
    Overview,
    /// Asks for memory of the arena to write, for no object yet.
    Lend {
        /// Bytes.
        len: u64,
        /// What is put from it is private.
        private: bool,
        /// As in `Put`.
        room_us: u64,
    },
    /// Offers memory of the client's own, whose descriptor travels with the frame.
    Adopt {
        /// Its bytes, all of the file's.
        len: u64,
    },
    /// Lent or adopted memory is not used any more.
    GiveBack {
        /// Its number.
        buffer: u64,
    },
    /// Brings an object's data into lent or adopted memory, and no replica to this node.
    GetInto {
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
    },
    /// Makes an object of lent memory: its first bytes, where they are.
    PutFrom {
        /// Which.
        object: NewObject,
        /// XXH3 of its data and metadata, 0 for none.
        digest: u64,
        /// The number of the memory.
        buffer: u64,
        /// Bytes of data.
        data_len: u64,
    },
    /// Has so many nodes hold an object, and keep it.
    Replicate {
        /// Microseconds to wait; `u64::MAX` waits for ever.
        timeout_us: u64,
        /// Which.
        id: ObjectId,
        /// How many nodes, this one or not among them.
        copies: u16,
    },
    /// Has another node be the one that an object belongs to.
    Migrate {
        /// As in `Replicate`.
        timeout_us: u64,
        /// Which.
        id: ObjectId,
        /// The node.
        node: NodeId,
    },
    /// Has a node move what it keeps to others, and leave.
    Drain {
        /// The node.
        node: NodeId,
        /// What to do about it.
        step: DrainStep,
    },
    /// Brings an object to nodes, each passing on what it has.
    Broadcast {
        /// As in `Replicate`.
        timeout_us: u64,
        /// Which.
        id: ObjectId,
        /// The nodes, at most `MAX_IDS`; none for all.
        nodes: Vec<NodeId>,
    },
    /// Brings an object to this node, and keeps it in memory there until `Unpin`, or this client's end.
    Pin {
        /// As in `Replicate`.
        timeout_us: u64,
        /// Which.
        id: ObjectId,
    },
    /// Ends what `Pin` began, however often it was asked for.
    Unpin {
        /// Which.
        id: ObjectId,
    },
}

impl Request {
    fn opcode(&self) -> u8 {
        match self {
            Self::Hello { .. } => opcode::HELLO,
            Self::Put { .. } => opcode::PUT,
            Self::Create { .. } => opcode::CREATE,
            Self::Seal { .. } => opcode::SEAL,
            Self::Abort { .. } => opcode::ABORT,
            Self::Get { .. } => opcode::GET,
            Self::Release { .. } => opcode::RELEASE,
            Self::Contains { .. } => opcode::CONTAINS,
            Self::Delete { .. } => opcode::DELETE,
            Self::List => opcode::LIST,
            Self::Status => opcode::STATUS,
            Self::Cancel { .. } => opcode::CANCEL,
            Self::Wait { .. } => opcode::WAIT,
            Self::Evict { .. } => opcode::EVICT,
            Self::Refresh { .. } => opcode::REFRESH,
            Self::Options { .. } => opcode::OPTIONS,
            Self::Subscribe => opcode::SUBSCRIBE,
            Self::Channel => opcode::CHANNEL,
            Self::Tables => opcode::TABLES,
            Self::Explain { .. } => opcode::EXPLAIN,
            Self::Locations { .. } => opcode::LOCATIONS,
            Self::Prefetch { .. } => opcode::PREFETCH,
            Self::Calibrate { .. } => opcode::CALIBRATE,
            Self::Overview => opcode::OVERVIEW,
            Self::Lend { .. } => opcode::LEND,
            Self::Adopt { .. } => opcode::ADOPT,
            Self::GiveBack { .. } => opcode::GIVE_BACK,
            Self::GetInto { .. } => opcode::GET_INTO,
            Self::PutFrom { .. } => opcode::PUT_FROM,
            Self::Replicate { .. } => opcode::REPLICATE,
            Self::Migrate { .. } => opcode::MIGRATE,
            Self::Drain { .. } => opcode::DRAIN,
            Self::Broadcast { .. } => opcode::BROADCAST,
            Self::Pin { .. } => opcode::PIN,
            Self::Unpin { .. } => opcode::UNPIN,
        }
    }

    /// How many descriptors travel with the frame.
    pub fn descriptors(&self) -> usize {
        usize::from(matches!(self, Self::Adopt { .. }))
    }

    /// Whether there is an answer to it.
    pub fn is_answered(&self) -> bool {
        !matches!(self, Self::Release { .. } | Self::GiveBack { .. } | Self::Cancel { .. })
    }
}

/// Puts requests together that come in several frames, one behind the other.
#[derive(Debug, Default)]
pub struct Gathering(Option<(u64, Vec<ObjectId>)>);

impl Gathering {
    /// Takes the next frame; gives the request that it ends.
    ///
    /// # Errors
    /// As [`Request::decode`]; also when a frame has flags that it should not have, another request comes
    /// between two frames of one, or they are for too many objects.
    pub fn take(&mut self, header: &Header, body: Bytes) -> Result<Option<Request>, WireError> {
        let more = match header.flags {
            0 => false,
            FLAG_MORE => true,
            _ => return Err(WireError::Malformed("flags of a request")),
        };
        let request = Request::decode(header, body)?;
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
