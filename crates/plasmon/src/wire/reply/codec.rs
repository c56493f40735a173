//! The bytes of replies.

use bytes::{BufMut, Bytes, BytesMut};

use super::*;
use crate::ErrorKind;
use crate::wire::body::{Reader, put_bytes, put_many};
use crate::wire::{
    FLAG_MORE, Header, MAX_BODY, MAX_DESCRIPTORS, MAX_IDS, MAX_NAME, MAX_WAIT, WireError, put_frame,
};

/// Longest error message that travels: `MAX_IDS` of them fit in a frame.
const MAX_MESSAGE: usize = 900;

impl Reply {
    /// Appends the reply's frame to `out`.
    pub fn encode(&self, request: u64, out: &mut BytesMut) {
        let header = Header {
            opcode: self.opcode(),
            flags: if self.more() { FLAG_MORE } else { 0 },
            body_len: 0,
            request,
            error: if let Self::Failed { error, .. } = self { error.kind() as u16 } else { 0 },
            descriptors: self.descriptors() as u16,
        };
        put_frame(out, header, |out| match self {
            Self::Hello { node, segment_size, segments, inline_max } => {
                out.put_slice(node.as_bytes());
                out.put_u64_le(*segment_size);
                out.put_u32_le(*segments);
                out.put_u32_le(*inline_max);
            }
            Self::Done { .. } => {}
            Self::Created { placement, granted } => {
                put_granted(out, granted);
                match placement {
                    Placement::Inline => out.put_u8(0),
                    Placement::Mapped(span) => {
                        out.put_u8(1);
                        put_span(out, span);
                    }
                }
            }
            Self::Got { objects, granted } => {
                put_granted(out, granted);
                put_many(out, objects, |out, object| match object {
                    Ok(span) => {
                        out.put_u16_le(0);
                        put_span(out, span);
                    }
                    Err(error) => {
                        out.put_u16_le(error.kind() as u16);
                        put_message(out, error);
                    }
                });
            }
            Self::Contains(presence) => put_many(out, presence, |out, one| out.put_u8(*one as u8)),
            Self::Deleted(outcomes) => put_many(out, outcomes, |out, one| out.put_u8(*one as u8)),
            Self::List { objects, .. } => put_many(out, objects, put_info),
            Self::Status(json) | Self::Report { json, .. } => put_bytes(out, json.as_bytes()),
            Self::Waited(here) => put_many(out, here, |out, one| out.put_u8(u8::from(*one))),
            Self::Evicted { bytes } => out.put_u64_le(*bytes),
            Self::Events(events) => put_many(out, events, put_event),
            Self::Channel { parts } | Self::Tables { parts } => put_many(out, parts, put_part),
            Self::Lent { buffer, offset, capacity, granted } => {
                put_granted(out, granted);
                [*buffer, *offset, *capacity].into_iter().for_each(|word| out.put_u64_le(word));
            }
            Self::Landed { data_len } => {
                out.put_u8(u8::from(data_len.is_some()));
                out.put_u64_le(data_len.unwrap_or_default());
            }
            Self::Failed { error, .. } => put_message(out, error),
        });
    }

    /// Reads the body of a reply.
    ///
    /// # Errors
    /// When the opcode is unknown or the body is not one of its kind.
    pub fn decode(header: &Header, body: Bytes) -> Result<Self, WireError> {
        if header.error != 0 {
            let mut body = Reader::new(body, "error");
            let error = Error::new(ErrorKind::from_wire(header.error), body.text(MAX_MESSAGE)?);
            return body.finish(Self::Failed { error });
        }
        match header.opcode {
            opcode::HELLO => {
                let mut body = Reader::new(body, "reply to hello");
                let reply = Self::Hello {
                    node: body.node()?,
                    segment_size: body.u64()?,
                    segments: body.u32()?,
                    inline_max: body.u32()?,
                };
                body.finish(reply)
            }
            opcode::PUT
            | opcode::SEAL
            | opcode::ABORT
            | opcode::REFRESH
            | opcode::OPTIONS
            | opcode::PREFETCH
            | opcode::PUT_FROM
            | opcode::PIN
            | opcode::UNPIN => Reader::new(body, "confirmation").finish(Self::Done { opcode: header.opcode }),
            opcode::CREATE => {
                let mut body = Reader::new(body, "reply to create");
                let granted = granted(&mut body, header)?;
                let placement = match body.u8()? {
                    0 => Placement::Inline,
                    1 => Placement::Mapped(span(&mut body)?),
                    _ => return Err(body.malformed()),
                };
                body.finish(Self::Created { placement, granted })
            }
            opcode::GET => {
                let mut body = Reader::new(body, "reply to get");
                let granted = granted(&mut body, header)?;
                let objects = body.many(MAX_IDS, |body| match body.u16()? {
                    0 => span(body).map(Ok),
                    kind => Ok(Err(Error::new(ErrorKind::from_wire(kind), body.text(MAX_MESSAGE)?))),
                })?;
                body.finish(Self::Got { objects, granted })
            }
            opcode::CONTAINS => {
                let mut body = Reader::new(body, "reply to contains");
                let presence = body.many(MAX_IDS, |body| match body.u8()? {
                    0 => Ok(Presence::Absent),
                    1 => Ok(Presence::Here),
                    2 => Ok(Presence::Elsewhere),
                    _ => Err(body.malformed()),
                })?;
                body.finish(Self::Contains(presence))
            }
            opcode::DELETE => {
                let mut body = Reader::new(body, "reply to delete");
                let outcomes =
                    body.many(MAX_IDS, |body| DeleteOutcome::from_wire(body.u8()?).ok_or(body.malformed()))?;
                body.finish(Self::Deleted(outcomes))
            }
            opcode::LIST => {
                let mut body = Reader::new(body, "reply to list");
                let objects = body.many(MAX_IDS, info)?;
                body.finish(Self::List { objects, more: header.flags & FLAG_MORE != 0 })
            }
            opcode::STATUS => {
                let mut body = Reader::new(body, "reply to status");
                let json = body.text(MAX_BODY)?;
                body.finish(Self::Status(json))
            }
            opcode::EXPLAIN
            | opcode::LOCATIONS
            | opcode::CALIBRATE
            | opcode::REPLICATE
            | opcode::MIGRATE
            | opcode::BROADCAST
            | opcode::DRAIN
            | opcode::OVERVIEW => {
                let mut body = Reader::new(body, "report");
                let json = body.text(MAX_BODY)?;
                body.finish(Self::Report { opcode: header.opcode, json })
            }
            opcode::WAIT => {
                let mut body = Reader::new(body, "reply to wait");
                let here = body.many(MAX_WAIT, |body| Ok(body.u8()? != 0))?;
                body.finish(Self::Waited(here))
            }
            opcode::EVICT => {
                let mut body = Reader::new(body, "reply to evict");
                let bytes = body.u64()?;
                body.finish(Self::Evicted { bytes })
            }
            opcode::SUBSCRIBE => {
                let mut body = Reader::new(body, "events");
                let events = body.many(MAX_IDS, event)?;
                body.finish(Self::Events(events))
            }
            opcode::CHANNEL => {
                let mut body = Reader::new(body, "reply to channel");
                let parts = parts(&mut body, header, 2)?;
                body.finish(Self::Channel { parts })
            }
            opcode::TABLES => {
                let mut body = Reader::new(body, "reply to tables");
                let parts = parts(&mut body, header, 0)?;
                body.finish(Self::Tables { parts })
            }
            opcode::LEND => {
                let mut body = Reader::new(body, "reply to lend");
                let granted = granted(&mut body, header)?;
                let (buffer, offset, capacity) = (body.u64()?, body.u64()?, body.u64()?);
                body.finish(Self::Lent { buffer, offset, capacity, granted })
            }
            opcode::GET_INTO => {
                let mut body = Reader::new(body, "reply to get into");
                let (landed, data_len) = (body.flag()?, body.u64()?);
                body.finish(Self::Landed { data_len: landed.then_some(data_len) })
            }
            other => Err(WireError::Opcode(other)),
        }
    }
}

fn put_message(out: &mut BytesMut, error: &Error) {
    let mut end = error.message().len().min(MAX_MESSAGE);
    while !error.message().is_char_boundary(end) {
        end -= 1;
    }
    put_bytes(out, &error.message().as_bytes()[..end]);
}

fn put_span(out: &mut BytesMut, span: &Span) {
    out.put_u64_le(span.offset);
    out.put_u64_le(span.data_len);
    out.put_u32_le(span.metadata_len);
    out.put_u64_le(span.digest);
}

fn span(body: &mut Reader) -> Result<Span, WireError> {
    Ok(Span { offset: body.u64()?, data_len: body.u64()?, metadata_len: body.u32()?, digest: body.u64()? })
}

fn put_event(out: &mut BytesMut, event: &Event) {
    match event {
        Event::Sealed { id, data_len, metadata_len } => {
            out.put_u8(1);
            out.put_slice(id.as_bytes());
            out.put_u64_le(*data_len);
            out.put_u32_le(*metadata_len);
        }
        Event::Deleted { id } => {
            out.put_u8(2);
            out.put_slice(id.as_bytes());
        }
        Event::Gap { missed } => {
            out.put_u8(3);
            out.put_u64_le(*missed);
        }
    }
}

fn event(body: &mut Reader) -> Result<Event, WireError> {
    match body.u8()? {
        1 => Ok(Event::Sealed { id: body.object()?, data_len: body.u64()?, metadata_len: body.u32()? }),
        2 => Ok(Event::Deleted { id: body.object()? }),
        3 => Ok(Event::Gap { missed: body.u64()? }),
        _ => Err(body.malformed()),
    }
}

fn put_part(out: &mut BytesMut, part: &TablePart) {
    out.put_u8(part.domain as u8);
    out.put_u8(part.kind as u8);
    out.put_u32_le(part.number);
}

/// Parts of tables, each with a descriptor; `others` come before theirs.
fn parts(body: &mut Reader, header: &Header, others: usize) -> Result<Vec<TablePart>, WireError> {
    let parts = body.many(MAX_DESCRIPTORS, |body| {
        Ok(TablePart {
            domain: match body.u8()? {
                0 => TableDomain::Shared,
                1 => TableDomain::Private,
                _ => return Err(body.malformed()),
            },
            kind: match body.u8()? {
                0 => TablePartKind::Root,
                1 => TablePartKind::Index,
                2 => TablePartKind::Chunk,
                _ => return Err(body.malformed()),
            },
            number: body.u32()?,
        })
    })?;
    if parts.len() + others == header.descriptors as usize { Ok(parts) } else { Err(body.malformed()) }
}

fn put_granted(out: &mut BytesMut, granted: &[Granted]) {
    put_many(out, granted, |out, one| {
        out.put_u32_le(one.segment);
        out.put_u32_le(one.version);
        out.put_u8(one.access as u8);
    });
}

fn granted(body: &mut Reader, header: &Header) -> Result<Vec<Granted>, WireError> {
    let granted = body.many(MAX_DESCRIPTORS, |body| {
        Ok(Granted {
            segment: body.u32()?,
            version: body.u32()?,
            access: match body.u8()? {
                0 => Access::Read,
                1 => Access::Write,
                _ => return Err(body.malformed()),
            },
        })
    })?;
    if granted.len() == header.descriptors as usize { Ok(granted) } else { Err(body.malformed()) }
}

fn put_info(out: &mut BytesMut, info: &ObjectInfo) {
    out.put_slice(info.id.as_bytes());
    out.put_u8(info.state as u8);
    out.put_u8(u8::from(info.private));
    out.put_u64_le(info.data_len);
    out.put_u32_le(info.metadata_len);
    out.put_u32_le(info.pins);
    out.put_u64_le(info.age_ms);
    put_bytes(out, info.name.as_deref().unwrap_or_default().as_bytes());
}

fn info(body: &mut Reader) -> Result<ObjectInfo, WireError> {
    Ok(ObjectInfo {
        id: body.object()?,
        state: match body.u8()? {
            0 => ObjectState::Unsealed,
            1 => ObjectState::Primary,
            2 => ObjectState::Cached,
            3 => ObjectState::Doomed,
            4 => ObjectState::Spilled,
            5 => ObjectState::Kept,
            _ => return Err(body.malformed()),
        },
        private: body.u8()? != 0,
        data_len: body.u64()?,
        metadata_len: body.u32()?,
        pins: body.u32()?,
        age_ms: body.u64()?,
        name: Some(body.text(MAX_NAME)?).filter(|name| !name.is_empty()),
    })
}
