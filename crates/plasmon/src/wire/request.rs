//! What a client asks.

use bytes::{BufMut, Bytes, BytesMut};

use super::body::{Reader, put_bytes, put_many, put_objects};
use super::{Header, MAX_BODY, MAX_IDS, MAX_METADATA, MAX_NAME, WireError, opcode, put_frame};
use crate::ObjectId;

/// How an object is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CreateFlags {
    /// Only the creating user may see the object (its domain is private).
    pub private: bool,
}

impl CreateFlags {
    fn bits(self) -> u16 {
        u16::from(self.private)
    }

    fn from_bits(bits: u16) -> Option<Self> {
        (bits <= 1).then_some(Self { private: bits == 1 })
    }
}

/// A request. All but `Release` and `Cancel` are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// First frame of a connection. `name` tells people which program this is.
    Hello {
        /// For logs and error messages.
        name: String,
    },
    /// Creates and seals an object of at most the daemon's `inline_max` bytes.
    Put {
        /// Its id.
        id: ObjectId,
        /// How.
        flags: CreateFlags,
        /// The name behind the id; empty when there is none.
        name: String,
        /// Its metadata.
        metadata: Bytes,
        /// Its data.
        data: Bytes,
    },
    /// Reserves an object; the reply says where its data is to be written.
    Create {
        /// Its id.
        id: ObjectId,
        /// How.
        flags: CreateFlags,
        /// The name behind the id; empty when there is none.
        name: String,
        /// Its metadata.
        metadata: Bytes,
        /// Bytes of data it will have.
        data_len: u64,
    },
    /// Makes a created object immutable and visible to all.
    Seal {
        /// Its id.
        id: ObjectId,
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
        }
    }

    /// Appends the request's frame to `out`.
    pub fn encode(&self, request: u64, out: &mut BytesMut) {
        let header =
            Header { opcode: self.opcode(), flags: 0, body_len: 0, request, error: 0, descriptors: 0 };
        put_frame(out, header, |out| match self {
            Self::Hello { name } => put_bytes(out, name.as_bytes()),
            Self::Put { id, flags, name, metadata, data } => {
                put_creation(out, id, *flags, name, metadata);
                put_bytes(out, data);
            }
            Self::Create { id, flags, name, metadata, data_len } => {
                put_creation(out, id, *flags, name, metadata);
                out.put_u64_le(*data_len);
            }
            Self::Seal { id, data } => {
                out.put_slice(id.as_bytes());
                put_bytes(out, data);
            }
            Self::Abort { id } => out.put_slice(id.as_bytes()),
            Self::Get { timeout_us, ids } => {
                out.put_u64_le(*timeout_us);
                put_objects(out, ids);
            }
            Self::Release { offsets } => put_many(out, offsets, |out, offset| out.put_u64_le(*offset)),
            Self::Contains { ids } | Self::Delete { ids } => put_objects(out, ids),
            Self::List | Self::Status => {}
            Self::Cancel { request } => out.put_u64_le(*request),
        });
    }

    /// Reads the body of a request.
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
                let (id, flags, name, metadata) = creation(&mut body)?;
                let data = body.bytes(MAX_BODY)?;
                body.finish(Self::Put { id, flags, name, metadata, data })
            }
            opcode::CREATE => {
                let mut body = Reader::new(body, "create");
                let (id, flags, name, metadata) = creation(&mut body)?;
                let data_len = body.u64()?;
                body.finish(Self::Create { id, flags, name, metadata, data_len })
            }
            opcode::SEAL => {
                let mut body = Reader::new(body, "seal");
                let (id, data) = (body.object()?, body.bytes(MAX_BODY)?);
                body.finish(Self::Seal { id, data })
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
            opcode::CANCEL => {
                let mut body = Reader::new(body, "cancel");
                let request = body.u64()?;
                body.finish(Self::Cancel { request })
            }
            other => Err(WireError::Opcode(other)),
        }
    }
}

fn put_creation(out: &mut BytesMut, id: &ObjectId, flags: CreateFlags, name: &str, metadata: &[u8]) {
    out.put_slice(id.as_bytes());
    out.put_u16_le(flags.bits());
    put_bytes(out, name.as_bytes());
    put_bytes(out, metadata);
}

fn creation(body: &mut Reader) -> Result<(ObjectId, CreateFlags, String, Bytes), WireError> {
    let id = body.object()?;
    let flags = CreateFlags::from_bits(body.u16()?).ok_or(body.malformed())?;
    Ok((id, flags, body.text(MAX_NAME)?, body.bytes(MAX_METADATA)?))
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
