//! The bytes of requests.

use bytes::{BufMut, Bytes, BytesMut};

use super::*;
use crate::wire::body::{Reader, put_bytes, put_many, put_objects};
use crate::wire::{MAX_BODY, MAX_IDS, MAX_METADATA, MAX_NAME, put_frame};

impl Request {
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
            Self::Drain { node, step } => {
                out.put_slice(node.as_bytes());
                out.put_u8(*step as u8);
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
            opcode::DRAIN => {
                let mut body = Reader::new(body, "drain");
                let node = body.node()?;
                let step = DrainStep::from_wire(body.u8()?).ok_or(body.malformed())?;
                body.finish(Self::Drain { node, step })
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
