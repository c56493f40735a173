//! What a client asks.

use bytes::{BufMut, Bytes, BytesMut};

use super::body::{Reader, put_bytes, put_many, put_objects};
use super::{
    FLAG_MORE, Header, MAX_BODY, MAX_IDS, MAX_METADATA, MAX_NAME, MAX_WAIT, WireError, opcode, put_frame,
};
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

    /// Appends the request to `out`: one frame, unless it is a wait for many objects.
    pub fn encode(&self, request: u64, out: &mut BytesMut) {
        if let Self::Wait { timeout_us, count, ids } = self {
            let mut left = ids.chunks(MAX_IDS).peekable();
            while let Some(ids) = left.next().filter(|_| left.peek().is_some()) {
                let part = Self::Wait { timeout_us: *timeout_us, count: *count, ids: ids.to_vec() };
                part.put(request, FLAG_MORE, out);
            }
        }
        self.put(request, 0, out);
    }

    /// Appends one frame; of a wait the one that ends it.
    fn put(&self, request: u64, flags: u16, out: &mut BytesMut) {
        let descriptors = self.descriptors() as u16;
        let header = Header { opcode: self.opcode(), flags, body_len: 0, request, error: 0, descriptors };
        put_frame(out, header, |out| match self {
            Self::Hello { name } => put_bytes(out, name.as_bytes()),
            Self::Put { object, digest, room_us, data } => {
                put_new(out, object);
                out.put_u64_le(*digest);
                out.put_u64_le(*room_us);
                put_bytes(out, data);
            }
            Self::Create { object, data_len, room_us } => {
                put_new(out, object);
                out.put_u64_le(*data_len);
                out.put_u64_le(*room_us);
            }
            Self::Seal { id, digest, data } => {
                out.put_slice(id.as_bytes());
                out.put_u64_le(*digest);
                put_bytes(out, data);
            }
            Self::Abort { id } => out.put_slice(id.as_bytes()),
            Self::Get { timeout_us, ids } => {
                out.put_u64_le(*timeout_us);
                put_objects(out, ids);
            }
            Self::Release { offsets } => put_many(out, offsets, |out, offset| out.put_u64_le(*offset)),
            Self::Contains { ids } | Self::Delete { ids } | Self::Refresh { ids } => put_objects(out, ids),
            Self::Calibrate { peer } => out.put_slice(peer.as_bytes()),
            Self::Explain { id } | Self::Locations { id } => out.put_slice(id.as_bytes()),
            Self::Prefetch { timeout_us, ids } => {
                out.put_u64_le(*timeout_us);
                put_objects(out, ids);
            }
            Self::List | Self::Status | Self::Overview | Self::Subscribe | Self::Channel | Self::Tables => {}
            Self::Cancel { request } => out.put_u64_le(*request),
            Self::Wait { timeout_us, count, ids } => {
                out.put_u64_le(*timeout_us);
                out.put_u32_le(*count);
                put_objects(out, ids.chunks(MAX_IDS).next_back().unwrap_or_default());
            }
            Self::Evict { bytes } => out.put_u64_le(*bytes),
            Self::Lend { len, private, room_us } => {
                out.put_u64_le(*len);
                out.put_u8(u8::from(*private));
                out.put_u64_le(*room_us);
            }
            Self::Adopt { len } => out.put_u64_le(*len),
            Self::GiveBack { buffer } => out.put_u64_le(*buffer),
            Self::GetInto { timeout_us, id, buffer, at, room } => {
                out.put_u64_le(*timeout_us);
                out.put_slice(id.as_bytes());
                [*buffer, *at, *room].into_iter().for_each(|word| out.put_u64_le(word));
            }
            Self::PutFrom { object, digest, buffer, data_len } => {
                put_new(out, object);
                [*digest, *buffer, *data_len].into_iter().for_each(|word| out.put_u64_le(word));
            }
            Self::Replicate { timeout_us, id, copies } => {
                out.put_u64_le(*timeout_us);
                out.put_slice(id.as_bytes());
                out.put_u16_le(*copies);
            }
            Self::Migrate { timeout_us, id, node } => {
                out.put_u64_le(*timeout_us);
                out.put_slice(id.as_bytes());
                out.put_slice(node.as_bytes());
            }
            Self::Broadcast { timeout_us, id, nodes } => {
                out.put_u64_le(*timeout_us);
                out.put_slice(id.as_bytes());
                put_many(out, nodes, |out, node| out.put_slice(node.as_bytes()));
            }
            Self::Pin { timeout_us, id } => {
                out.put_u64_le(*timeout_us);
                out.put_slice(id.as_bytes());
            }
            Self::Unpin { id } => out.put_slice(id.as_bytes()),
            Self::Options { name, quota } => {
                put_bytes(out, name.as_deref().unwrap_or_default().as_bytes());
                // As good as no limit, but for the number that says that there is none given.
                out.put_u64_le(quota.map_or(u64::MAX, |quota| quota.min(u64::MAX - 1)));
            }
        });
    }

    /// Reads the body of a request that is one frame.
    ///
    /// # Errors
    /// When the opcode is unknown or the body is not one of its kind.
    pub fn decode(header: &Header, body: Bytes) -> Result<Self, WireError> {
        match header.opcode {
            opcode::HELLO => {
                let mut body = Reader::new(body, "hello");
                let name = body.text(MAX_NAME)?;
                body.finish(Self::Hello { name })
            }
            opcode::PUT => {
                let mut body = Reader::new(body, "put");
                let object = new_object(&mut body)?;
                let (digest, room_us, data) = (body.u64()?, body.u64()?, body.bytes(MAX_BODY)?);
                body.finish(Self::Put { object, digest, room_us, data })
            }
            opcode::CREATE => {
                let mut body = Reader::new(body, "create");
                let (object, data_len, room_us) = (new_object(&mut body)?, body.u64()?, body.u64()?);
                body.finish(Self::Create { object, data_len, room_us })
            }
            opcode::SEAL => {
                let mut body = Reader::new(body, "seal");
                let (id, digest, data) = (body.object()?, body.u64()?, body.bytes(MAX_BODY)?);
                body.finish(Self::Seal { id, digest, data })
            }
            opcode::ABORT => {
                let mut body = Reader::new(body, "abort");
                let id = body.object()?;
                body.finish(Self::Abort { id })
            }
            opcode::GET => {
                let mut body = Reader::new(body, "get");
                let (timeout_us, ids) = (body.u64()?, body.objects()?);
                body.finish(Self::Get { timeout_us, ids })
            }
            opcode::RELEASE => {
                let mut body = Reader::new(body, "release");
                let offsets = body.many(MAX_IDS, Reader::u64)?;
                body.finish(Self::Release { offsets })
            }
            opcode::CONTAINS => ids(body, "contains", |ids| Self::Contains { ids }),
            opcode::DELETE => ids(body, "delete", |ids| Self::Delete { ids }),
            opcode::LIST => Reader::new(body, "list").finish(Self::List),
            opcode::STATUS => Reader::new(body, "status").finish(Self::Status),
            opcode::OVERVIEW => Reader::new(body, "overview").finish(Self::Overview),
            opcode::CANCEL => {
                let mut body = Reader::new(body, "cancel");
                let request = body.u64()?;
                body.finish(Self::Cancel { request })
            }
            opcode::WAIT => {
                let mut body = Reader::new(body, "wait");
                let (timeout_us, count, ids) = (body.u64()?, body.u32()?, body.objects()?);
                body.finish(Self::Wait { timeout_us, count, ids })
            }
            opcode::EVICT => {
                let mut body = Reader::new(body, "evict");
                let bytes = body.u64()?;
                body.finish(Self::Evict { bytes })
            }
            opcode::REFRESH => ids(body, "refresh", |ids| Self::Refresh { ids }),
            opcode::OPTIONS => {
                let mut body = Reader::new(body, "options");
                let (name, quota) = (body.text(MAX_NAME)?, body.u64()?);
                let name = Some(name).filter(|name| !name.is_empty());
                body.finish(Self::Options { name, quota: Some(quota).filter(|quota| *quota != u64::MAX) })
            }
            opcode::SUBSCRIBE => Reader::new(body, "subscribe").finish(Self::Subscribe),
            opcode::CHANNEL => Reader::new(body, "channel").finish(Self::Channel),
            opcode::TABLES => Reader::new(body, "tables").finish(Self::Tables),
            opcode::EXPLAIN => {
                let mut body = Reader::new(body, "explain");
                let id = body.object()?;
                body.finish(Self::Explain { id })
            }
            opcode::LOCATIONS => {
                let mut body = Reader::new(body, "locations");
                let id = body.object()?;
                body.finish(Self::Locations { id })
            }
            opcode::PREFETCH => {
                let mut body = Reader::new(body, "prefetch");
                let timeout_us = body.u64()?;
                let ids = body.many(MAX_IDS, Reader::object)?;
                body.finish(Self::Prefetch { timeout_us, ids })
            }
            opcode::CALIBRATE => {
                let mut body = Reader::new(body, "calibrate");
                let peer = body.node()?;
                body.finish(Self::Calibrate { peer })
            }
            opcode::LEND => {
                let mut body = Reader::new(body, "lend");
                let (len, private, room_us) = (body.u64()?, body.flag()?, body.u64()?);
                body.finish(Self::Lend { len, private, room_us })
            }
            opcode::ADOPT => {
                let mut body = Reader::new(body, "adopt");
                let len = body.u64()?;
                body.finish(Self::Adopt { len })
            }
            opcode::GIVE_BACK => {
                let mut body = Reader::new(body, "give back");
                let buffer = body.u64()?;
                body.finish(Self::GiveBack { buffer })
            }
            opcode::GET_INTO => {
                let mut body = Reader::new(body, "get into");
                let (timeout_us, id) = (body.u64()?, body.object()?);
                let (buffer, at, room) = (body.u64()?, body.u64()?, body.u64()?);
                body.finish(Self::GetInto { timeout_us, id, buffer, at, room })
            }
            opcode::PUT_FROM => {
                let mut body = Reader::new(body, "put from");
                let object = new_object(&mut body)?;
                let (digest, buffer, data_len) = (body.u64()?, body.u64()?, body.u64()?);
                body.finish(Self::PutFrom { object, digest, buffer, data_len })
            }
            opcode::REPLICATE => {
                let mut body = Reader::new(body, "replicate");
                let (timeout_us, id, copies) = (body.u64()?, body.object()?, body.u16()?);
                body.finish(Self::Replicate { timeout_us, id, copies })
            }
            opcode::MIGRATE => {
                let mut body = Reader::new(body, "migrate");
                let (timeout_us, id, node) = (body.u64()?, body.object()?, body.node()?);
                body.finish(Self::Migrate { timeout_us, id, node })
            }
            opcode::BROADCAST => {
                let mut body = Reader::new(body, "broadcast");
                let (timeout_us, id) = (body.u64()?, body.object()?);
                let nodes = body.many(MAX_IDS, Reader::node)?;
                body.finish(Self::Broadcast { timeout_us, id, nodes })
            }
            opcode::PIN => {
                let mut body = Reader::new(body, "pin");
                let (timeout_us, id) = (body.u64()?, body.object()?);
                body.finish(Self::Pin { timeout_us, id })
            }
            opcode::UNPIN => {
                let mut body = Reader::new(body, "unpin");
                let id = body.object()?;
                body.finish(Self::Unpin { id })
            }
            other => Err(WireError::Opcode(other)),
        }
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

fn put_new(out: &mut BytesMut, object: &NewObject) {
    out.put_slice(object.id.as_bytes());
    let Terms { fresh, copies, ttl_ms } = object.terms;
    out.put_u16_le(u16::from(object.private) | u16::from(fresh) << 1);
    out.put_u16_le(copies);
    out.put_u64_le(ttl_ms);
    put_bytes(out, object.name.as_bytes());
    put_bytes(out, &object.metadata);
}

fn new_object(body: &mut Reader) -> Result<NewObject, WireError> {
    let id = body.object()?;
    let flags = body.u16()?;
    // Flags that this side does not know are refused, not ignored.
    if flags > 3 {
        return Err(body.malformed());
    }
    let terms = Terms { fresh: flags & 2 != 0, copies: body.u16()?, ttl_ms: body.u64()? };
    let private = flags & 1 != 0;
    Ok(NewObject { id, private, name: body.text(MAX_NAME)?, metadata: body.bytes(MAX_METADATA)?, terms })
}

fn ids(
    body: Bytes,
    what: &'static str,
    make: impl FnOnce(Vec<ObjectId>) -> Request,
) -> Result<Request, WireError> {
    let mut body = Reader::new(body, what);
    let ids = body.objects()?;
    body.finish(make(ids))
}
