//! The bytes of frames.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use plasmon::ErrorKind;
use plasmon::wire::body::{Reader, put_bytes, put_many, put_objects};
use plasmon::wire::{MAX_METADATA, MAX_NAME};

use super::*;

/// Longest error message, in characters.
const MAX_MESSAGE: usize = 1024;

impl Message {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Fetch { id, stage, avoid, wish } => {
                out.put_slice(id.as_bytes());
                out.put_u8(*stage as u8);
                out.put_u8(wish.protocol as u8);
                out.put_u32_le(wish.eager_max);
                put_nodes(out, avoid);
            }
            Self::Forget { id } | Self::Locate { id } => out.put_slice(id.as_bytes()),
            Self::Located { holders } => put_many(out, holders, |out, (node, role)| {
                out.put_slice(node.as_bytes());
                out.put_u8(role.code());
            }),
            Self::Renew { lease } => out.put_u64_le(*lease),
            Self::Eager { head, bytes } => {
                put_head(out, head);
                put_bytes(out, bytes);
            }
            Self::Offer { head, lease_ms, pieces, stamp, others } => {
                put_head(out, head);
                out.put_u32_le(*lease_ms);
                put_many(out, pieces, |out, piece| {
                    out.put_u32_le(piece.segment);
                    out.put_u32_le(piece.version);
                    out.put_u64_le(piece.offset);
                    out.put_u64_le(piece.len);
                });
                let Stamp { slot, value } = stamp.unwrap_or(Stamp::NONE);
                out.put_u32_le(slot);
                out.put_u64_le(value);
                put_nodes(out, others);
            }
            Self::Registered { head, lease_ms, regions } => {
                put_head(out, head);
                out.put_u32_le(*lease_ms);
                put_many(out, regions, |out, region| {
                    out.put_u64_le(region.base);
                    out.put_u64_le(region.key);
                    out.put_u64_le(region.len);
                });
            }
            Self::Stream { head, lease_ms } => {
                put_head(out, head);
                out.put_u32_le(*lease_ms);
            }
            Self::Dial { head, lease_ms, port, secret } => {
                put_head(out, head);
                out.put_u32_le(*lease_ms);
                out.put_u16_le(*port);
                out.put_u128_le(*secret);
            }
            Self::Ready { request } => out.put_u64_le(*request),
            Self::Probe { of, len } => {
                out.put_u64_le(*of);
                out.put_u64_le(*len);
            }
            Self::Part { request, at, bytes } => {
                out.put_u64_le(*request);
                out.put_u64_le(*at);
                put_bytes(out, bytes);
            }
            Self::Stamps { base, key, len } => {
                out.put_u64_le(*base);
                out.put_u64_le(*key);
                out.put_u64_le(*len);
            }
            Self::Renewed { lease_ms } => out.put_u32_le(*lease_ms),
            Self::Release { requests } => put_many(out, requests, |out, one| out.put_u64_le(*one)),
            Self::Publish { holdings } => put_many(out, holdings, |out, holding| {
                out.put_slice(holding.id.as_bytes());
                out.put_u8(holding.role.code());
                out.put_u16_le(holding.copies);
                out.put_u64_le(holding.life);
                out.put_u8(u8::from(holding.owner.is_some()));
                out.put_u32_le(holding.owner.unwrap_or_default());
            }),
            Self::Delete { ids } | Self::Query { ids } | Self::Promote { ids } | Self::Hold { ids } => {
                put_objects(out, ids);
            }
            Self::Held { lives } => put_many(out, lives, |out, life| out.put_u64_le(*life)),
            Self::Unpublish { deleted, ids } => {
                out.put_u8(u8::from(*deleted));
                put_objects(out, ids);
            }
            Self::Bury { lives } | Self::Drop { lives } => put_many(out, lives, |out, (id, life)| {
                out.put_slice(id.as_bytes());
                out.put_u64_le(*life);
            }),
            Self::Deleted { outcomes } => put_many(out, outcomes, |out, one| out.put_u8(*one as u8)),
            Self::Done | Self::Report => {}
            Self::Reported { json } => put_bytes(out, json),
            Self::Drain { step } => out.put_u8(*step as u8),
            Self::Found { known } => {
                put_many(out, known, |out, one| out.put_u8(u8::from(*one)));
            }
            Self::Segment { segment, version, base, key, len } => {
                out.put_u32_le(*segment);
                out.put_u32_le(*version);
                out.put_u64_le(*base);
                out.put_u64_le(*key);
                out.put_u64_le(*len);
            }
            Self::Credit { count } => out.put_u32_le(*count),
            Self::Claim { id, probe } => {
                out.put_slice(id.as_bytes());
                out.put_u8(u8::from(*probe));
            }
            Self::Claimed { verdict } => out.put_u8(*verdict as u8),
            Self::Unclaim { ids } | Self::Taken { ids } | Self::Affirm { ids } => put_objects(out, ids),
            Self::Acquire { order } => {
                let Order { id, life, role, copies, patient, from } = order;
                out.put_slice(id.as_bytes());
                out.put_u64_le(*life);
                out.put_u8(role.code());
                out.put_u16_le(*copies);
                out.put_u8(u8::from(*patient));
                put_nodes(out, from.as_slice());
            }
            Self::Migrate { id, to } => {
                out.put_slice(id.as_bytes());
                out.put_slice(to.as_bytes());
            }
            Self::Passed { request, bytes, state } => {
                out.put_u64_le(*request);
                out.put_u64_le(*bytes);
                out.put_u8(*state as u8);
            }
            Self::Refused { error } => {
                out.put_u16_le(error.kind() as u16);
                let cut: String = error.message().chars().take(MAX_MESSAGE).collect();
                put_bytes(out, cut.as_bytes());
            }
        }
    }

    fn get(opcode: u8, body: &mut Reader) -> Result<Self, WireError> {
        Ok(match opcode {
            1 => Self::Fetch {
                id: body.object()?,
                stage: Stage::from_wire(body.u8()?).ok_or(body.malformed())?,
                wish: Wish {
                    protocol: protocol(body.u8()?).ok_or(body.malformed())?,
                    eager_max: body.u32()?,
                },
                avoid: body.many(MAX_ENTRIES, Reader::node)?,
            },
            2 => Self::Forget { id: body.object()? },
            3 => Self::Eager { head: head(body)?, bytes: body.bytes(FRAME_MAX)? },
            4 => Self::Offer {
                head: head(body)?,
                lease_ms: body.u32()?,
                pieces: body.many(MAX_ENTRIES, |body| {
                    Ok(Location {
                        segment: body.u32()?,
                        version: body.u32()?,
                        offset: body.u64()?,
                        len: body.u64()?,
                    })
                })?,
                stamp: Some(Stamp { slot: body.u32()?, value: body.u64()? }).filter(|it| *it != Stamp::NONE),
                others: body.many(MAX_ENTRIES, Reader::node)?,
            },
            5 => Self::Renew { lease: body.u64()? },
            6 => Self::Renewed { lease_ms: body.u32()? },
            7 => Self::Release { requests: body.many(MAX_ENTRIES, Reader::u64)? },
            8 => Self::Publish {
                holdings: body.many(MAX_ENTRIES, |body| {
                    let id = body.object()?;
                    let role = Role::from_code(body.u8()?).ok_or(body.malformed())?;
                    let copies = body.u16()?;
                    let (life, private, tenant) = (body.u64()?, body.flag()?, body.u32()?);
                    Ok(Holding { id, role, copies, life, owner: private.then_some(tenant) })
                })?,
            },
            9 => Self::Unpublish { deleted: body.flag()?, ids: body.many(MAX_ENTRIES, Reader::object)? },
            10 => Self::Delete { ids: body.many(MAX_ENTRIES, Reader::object)? },
            11 => Self::Deleted {
                outcomes: body
                    .many(MAX_ENTRIES, |body| DeleteOutcome::from_wire(body.u8()?).ok_or(body.malformed()))?,
            },
            12 => Self::Drop { lives: body.many(MAX_ENTRIES, life)? },
            13 => Self::Query { ids: body.many(MAX_ENTRIES, Reader::object)? },
            14 => Self::Found { known: body.many(MAX_ENTRIES, Reader::flag)? },
            15 => Self::Segment {
                segment: body.u32()?,
                version: body.u32()?,
                base: body.u64()?,
                key: body.u64()?,
                len: body.u64()?,
            },
            16 => Self::Credit { count: body.u32()? },
            17 => {
                let kind = ErrorKind::from_wire(body.u16()?);
                let message = body.text(FRAME_MAX)?;
                Self::Refused { error: Error::new(kind, message) }
            }
            18 => Self::Done,
            19 => Self::Promote { ids: body.many(MAX_ENTRIES, Reader::object)? },
            20 => Self::Bury { lives: body.many(MAX_ENTRIES, life)? },
            21 => Self::Hold { ids: body.many(MAX_ENTRIES, Reader::object)? },
            22 => Self::Held { lives: body.many(MAX_ENTRIES, Reader::u64)? },
            23 => Self::Registered {
                head: head(body)?,
                lease_ms: body.u32()?,
                regions: body.many(MAX_ENTRIES, |body| {
                    Ok(RemoteRegion { base: body.u64()?, key: body.u64()?, len: body.u64()? })
                })?,
            },
            24 => Self::Stream { head: head(body)?, lease_ms: body.u32()? },
            25 => Self::Ready { request: body.u64()? },
            26 => Self::Part { request: body.u64()?, at: body.u64()?, bytes: body.bytes(FRAME_MAX)? },
            27 => Self::Stamps { base: body.u64()?, key: body.u64()?, len: body.u64()? },
            30 => Self::Locate { id: body.object()? },
            31 => Self::Located {
                holders: body.many(MAX_ENTRIES, |body| {
                    let node = body.node()?;
                    Ok((node, Role::from_code(body.u8()?).ok_or(body.malformed())?))
                })?,
            },
            28 => Self::Probe { of: body.u64()?, len: body.u64()? },
            29 => Self::Dial {
                head: head(body)?,
                lease_ms: body.u32()?,
                port: body.u16()?,
                secret: body.u128()?,
            },
            32 => Self::Claim { id: body.object()?, probe: body.flag()? },
            33 => Self::Claimed { verdict: Verdict::from_wire(body.u8()?).ok_or(body.malformed())? },
            34 => Self::Unclaim { ids: body.many(MAX_ENTRIES, Reader::object)? },
            35 => Self::Taken { ids: body.many(MAX_ENTRIES, Reader::object)? },
            36 => Self::Affirm { ids: body.many(MAX_ENTRIES, Reader::object)? },
            37 => Self::Acquire {
                order: Order {
                    id: body.object()?,
                    life: body.u64()?,
                    role: Role::from_code(body.u8()?).ok_or(body.malformed())?,
                    copies: body.u16()?,
                    patient: body.flag()?,
                    from: body.many(1, Reader::node)?.pop(),
                },
            },
            39 => Self::Migrate { id: body.object()?, to: body.node()? },
            38 => Self::Passed {
                request: body.u64()?,
                bytes: body.u64()?,
                state: Passing::from_wire(body.u8()?).ok_or(body.malformed())?,
            },
            40 => Self::Report,
            41 => Self::Reported { json: body.bytes(FRAME_MAX)? },
            42 => Self::Drain { step: DrainStep::from_wire(body.u8()?).ok_or(body.malformed())? },
            other => return Err(WireError::Opcode(other)),
        })
    }
}

impl Envelope {
    /// The frame's bytes. `token` proves to the receiver that the sender was let in.
    pub(crate) fn encode(&self, token: u64) -> BytesMut {
        let mut out = BytesMut::with_capacity(256);
        out.put_u8(VERSION);
        out.put_u8(self.message.opcode());
        out.put_u16_le(0);
        out.put_u32_le(0);
        out.put_u64_le(token);
        out.put_u64_le(self.request);
        out.put_slice(self.from.as_bytes());
        out.put_slice(self.reply_to.as_bytes());
        out.put_u64_le(self.incarnation);
        out.put_u64_le(self.epoch);
        out.put_u64_le(self.deadline_us);
        out.put_u32_le(self.tenant);
        out.put_u8(self.class);
        out.put_u8(0);
        out.put_u16_le(0);
        debug_assert_eq!(out.len(), HEADER_LEN);
        self.message.put(&mut out);
        let body_len = (out.len() - HEADER_LEN) as u32;
        out[4..8].copy_from_slice(&body_len.to_le_bytes());
        out
    }

    /// Has the first frame of a message return so many credits.
    pub(crate) fn set_credits(message: &mut BytesMut, credits: u16) {
        message[HEADER_LEN - 2..HEADER_LEN].copy_from_slice(&credits.to_le_bytes());
    }

    /// Takes the first frame off a message: the envelope, the token it carries and the credits it returns.
    pub(crate) fn decode_first(message: &mut Bytes) -> Result<(Self, u64, u16), FrameError> {
        let body_len = message.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let len = (body_len.ok_or(FrameError::Malformed)? as usize).saturating_add(HEADER_LEN);
        if message.len() < len {
            return Err(FrameError::Malformed);
        }
        let mut frame = message.split_to(len);
        let version = frame.get_u8();
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let (opcode, flags, body_len) = (frame.get_u8(), frame.get_u16_le(), frame.get_u32_le());
        let mut body = Reader::new(frame, "node frame");
        let (token, request) = (body.u64()?, body.u64()?);
        let (from, reply_to) = (body.node()?, body.node()?);
        let (incarnation, epoch, deadline_us) = (body.u64()?, body.u64()?, body.u64()?);
        let (tenant, class, reserved, credits) = (body.u32()?, body.u8()?, body.u8()?, body.u16()?);
        if flags != 0 || reserved != 0 || body_len as usize != body.remaining() {
            return Err(FrameError::Malformed);
        }
        let message = Message::get(opcode, &mut body)?;
        let envelope =
            Self { request, from, incarnation, reply_to, epoch, deadline_us, tenant, class, message };
        Ok(body.finish((envelope, token, credits))?)
    }
}
pub(super) fn head_len(head: &Head) -> usize {
    ObjectId::LEN + 8 + 4 + 1 + 8 + 4 + 8 + 2 + 8 + 4 + head.name.len()
}

fn put_head(out: &mut BytesMut, head: &Head) {
    out.put_slice(head.id.as_bytes());
    out.put_u64_le(head.life);
    out.put_u32_le(head.tenant);
    out.put_u8(u8::from(head.private));
    out.put_u64_le(head.data_len);
    out.put_u32_le(head.metadata_len);
    out.put_u64_le(head.digest);
    out.put_u16_le(head.copies);
    out.put_u64_le(head.expires);
    put_bytes(out, head.name.as_bytes());
}

fn head(body: &mut Reader) -> Result<Head, WireError> {
    let (id, life, tenant, private) = (body.object()?, body.u64()?, body.u32()?, body.flag()?);
    let (data_len, metadata_len, digest) = (body.u64()?, body.u32()?, body.u64()?);
    let (copies, expires) = (body.u16()?, body.u64()?);
    let name = body.text(MAX_NAME)?.into();
    let fits = metadata_len as usize <= MAX_METADATA && data_len.checked_add(metadata_len.into()).is_some();
    let head = Head { id, name, life, tenant, private, data_len, metadata_len, digest, copies, expires };
    if fits { Ok(head) } else { Err(body.malformed()) }
}

fn put_nodes(out: &mut BytesMut, nodes: &[NodeId]) {
    put_many(out, nodes, |out, node| out.put_slice(node.as_bytes()));
}

fn protocol(code: u8) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| *protocol as u8 == code)
}

fn life(body: &mut Reader) -> Result<(ObjectId, u64), WireError> {
    Ok((body.object()?, body.u64()?))
}
