//! Frames between nodes: what they say and how they look.
//!
//! A frame is one fabric message: an 88-byte header and a body, little-endian, at most
//! [`FRAME_MAX`] bytes so that it fits a block of the pool. `docs/design.md` draws the bytes.
//!
//! Peers are trusted to be Plasmon, their bytes are not: every field is checked on decode, and a
//! frame of another version, with an unknown opcode or flag, or that does not end where it should
//! is dropped and counted. Requests that a node cannot serve are answered with [`Message::Refused`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use plasmon::wire::body::{Reader, put_bytes, put_many, put_objects};
use plasmon::wire::{MAX_METADATA, MAX_NAME, WireError};
use plasmon::{DeleteOutcome, Error, ErrorKind, NodeId, ObjectId};

use super::members::Incarnation;
use crate::object::{Head, Replica, Role};

/// Version of the frames.
pub(crate) const VERSION: u8 = 1;
/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 88;
/// Largest frame: what libfabric's rxm moves in one piece, less its own header.
pub(crate) const FRAME_MAX: usize = 16 << 10;
/// Longest error message, in characters.
const MAX_MESSAGE: usize = 1024;
/// Most entries in one frame that lists ids.
pub(crate) const MAX_ENTRIES: usize = 256;

/// Who asks, for whom, and where the answer goes. Forwarding keeps `request`, `reply_to`, `tenant`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// Joins an answer to its request; drawn by `reply_to`.
    pub(crate) request: u64,
    /// The node that sent this frame.
    pub(crate) from: NodeId,
    /// Its incarnation.
    pub(crate) incarnation: Incarnation,
    /// The node that waits for the answer.
    pub(crate) reply_to: NodeId,
    /// Membership epoch of the sender.
    pub(crate) epoch: u64,
    /// Microseconds the asker still waits; `u64::MAX` when it does not say.
    pub(crate) deadline_us: u64,
    /// The user on whose behalf.
    pub(crate) tenant: u32,
    /// Quality-of-service class; 0 until there are others.
    pub(crate) class: u8,
    /// What is said.
    pub(crate) message: Message,
}

/// A piece of a holder's arena: never an address or a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) segment: u32,
    /// The segment's version, which stands for its generation: a segment is replaced whole.
    pub(crate) version: u32,
    /// From the segment's start.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// What a node says to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// Bring this object to `reply_to`. A directory node forwards it to a holder that is not among
    /// `except`, or keeps it until there is one; a holder answers `Eager` or `Offer`.
    Fetch { id: ObjectId, forwarded: bool, except: Vec<NodeId> },
    /// The asker of a `Fetch` no longer wants it.
    Forget { id: ObjectId },
    /// An object, whole.
    Eager { head: Head, bytes: Bytes },
    /// An object to be read where it lies, within `lease_ms` of the request's sending.
    Offer { head: Head, lease_ms: u32, pieces: Vec<Location> },
    /// Extends the lease that came with the offer to this request of the sender's.
    Renew { lease: u64 },
    /// The lease was extended.
    Renewed { lease_ms: u32 },
    /// The leases behind these requests are no longer needed.
    Release { requests: Vec<u64> },
    /// The sender holds these.
    Publish { holdings: Vec<Holding> },
    /// The sender does not hold these any more: by a deletion, or only to make room.
    Unpublish { deleted: bool, ids: Vec<ObjectId> },
    /// Remove these everywhere, for the tenant.
    Delete { ids: Vec<ObjectId> },
    /// What became of those; every holder has let go.
    Deleted { outcomes: Vec<DeleteOutcome> },
    /// To the second keeper: these lives have ended.
    Bury { lives: Vec<(ObjectId, u64)> },
    /// Drop your replicas of these lives.
    Drop { lives: Vec<(ObjectId, u64)> },
    /// Which lives of these do you hold, that the tenant may see?
    Hold { ids: Vec<ObjectId> },
    /// These; 0 where there is none.
    Held { lives: Vec<u64> },
    /// The order was carried out: to `Drop` and `Bury`.
    Done,
    /// No primary of these is left: yours take that role.
    Promote { ids: Vec<ObjectId> },
    /// Are these anywhere?
    Query { ids: Vec<ObjectId> },
    /// Answer to `Query`.
    Found { known: Vec<bool> },
    /// How to reach a segment of the sender's arena.
    Segment { segment: u32, version: u32, base: u64, key: u64, len: u64 },
    /// Frames of yours were received and their blocks posted again.
    Credit { count: u32 },
    /// A request cannot be served, and why.
    Refused { error: Error },
}

/// An object that a node holds, as it tells the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) id: ObjectId,
    pub(crate) role: Role,
    /// Which life of the id.
    pub(crate) life: u64,
    /// The user whose private object it is.
    pub(crate) owner: Option<u32>,
}

impl Holding {
    /// Of this replica.
    pub(crate) fn of(replica: &Replica) -> Self {
        let Head { id, life, tenant, private, .. } = replica.head;
        Self { id, role: replica.role(), life, owner: private.then_some(tenant) }
    }

    pub(crate) fn visible_to(&self, tenant: u32) -> bool {
        self.owner.is_none_or(|owner| owner == tenant)
    }
}

/// A frame that does not decode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("version {0} of the node protocol, this node speaks {VERSION}")]
    Version(u8),
    #[error("malformed frame")]
    Malformed,
    #[error(transparent)]
    Body(#[from] WireError),
}

impl Message {
    fn opcode(&self) -> u8 {
        match self {
            Self::Fetch { .. } => 1,
            Self::Forget { .. } => 2,
            Self::Eager { .. } => 3,
            Self::Offer { .. } => 4,
            Self::Renew { .. } => 5,
            Self::Renewed { .. } => 6,
            Self::Release { .. } => 7,
            Self::Publish { .. } => 8,
            Self::Unpublish { .. } => 9,
            Self::Delete { .. } => 10,
            Self::Deleted { .. } => 11,
            Self::Drop { .. } => 12,
            Self::Query { .. } => 13,
            Self::Found { .. } => 14,
            Self::Segment { .. } => 15,
            Self::Credit { .. } => 16,
            Self::Refused { .. } => 17,
            Self::Done => 18,
            Self::Promote { .. } => 19,
            Self::Bury { .. } => 20,
            Self::Hold { .. } => 21,
            Self::Held { .. } => 22,
        }
    }

    /// Whether it answers a request, and so goes to whoever waits for it.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Eager { .. }
                | Self::Offer { .. }
                | Self::Renewed { .. }
                | Self::Deleted { .. }
                | Self::Done
                | Self::Found { .. }
                | Self::Held { .. }
                | Self::Refused { .. }
        )
    }

    /// Whether an object of this head travels whole inside a message.
    pub(crate) fn fits_eager(head: &Head) -> bool {
        let fixed = HEADER_LEN + head_len(head) + size_of::<u32>();
        head.len() <= FRAME_MAX.saturating_sub(fixed) as u64
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Fetch { id, forwarded, except } => {
                out.put_slice(id.as_bytes());
                out.put_u8(u8::from(*forwarded));
                put_many(out, except, |out, node| out.put_slice(node.as_bytes()));
            }
            Self::Forget { id } => out.put_slice(id.as_bytes()),
            Self::Renew { lease } => out.put_u64_le(*lease),
            Self::Eager { head, bytes } => {
                put_head(out, head);
                put_bytes(out, bytes);
            }
            Self::Offer { head, lease_ms, pieces } => {
                put_head(out, head);
                out.put_u32_le(*lease_ms);
                put_many(out, pieces, |out, piece| {
                    out.put_u32_le(piece.segment);
                    out.put_u32_le(piece.version);
                    out.put_u64_le(piece.offset);
                    out.put_u64_le(piece.len);
                });
            }
            Self::Renewed { lease_ms } => out.put_u32_le(*lease_ms),
            Self::Release { requests } => put_many(out, requests, |out, one| out.put_u64_le(*one)),
            Self::Publish { holdings } => put_many(out, holdings, |out, holding| {
                out.put_slice(holding.id.as_bytes());
                out.put_u8(u8::from(holding.role == Role::Cached));
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
            Self::Done => {}
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
                forwarded: body.flag()?,
                except: body.many(MAX_ENTRIES, Reader::node)?,
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
            },
            5 => Self::Renew { lease: body.u64()? },
            6 => Self::Renewed { lease_ms: body.u32()? },
            7 => Self::Release { requests: body.many(MAX_ENTRIES, Reader::u64)? },
            8 => Self::Publish {
                holdings: body.many(MAX_ENTRIES, |body| {
                    let id = body.object()?;
                    let role = if body.flag()? { Role::Cached } else { Role::Primary };
                    let (life, private, tenant) = (body.u64()?, body.flag()?, body.u32()?);
                    Ok(Holding { id, role, life, owner: private.then_some(tenant) })
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
            other => return Err(WireError::Opcode(other)),
        })
    }
}

impl Envelope {
    /// The frame's bytes. `token` proves to the receiver that the sender was let in; `credits` are
    /// those the sender returns with it.
    pub(crate) fn encode(&self, token: u64, credits: u16) -> BytesMut {
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
        out.put_u16_le(credits);
        debug_assert_eq!(out.len(), HEADER_LEN);
        self.message.put(&mut out);
        let body_len = (out.len() - HEADER_LEN) as u32;
        out[4..8].copy_from_slice(&body_len.to_le_bytes());
        out
    }

    /// Reads a frame: the envelope, the token it carries and the credits it returns.
    pub(crate) fn decode(mut frame: Bytes) -> Result<(Self, u64, u16), FrameError> {
        if frame.len() < HEADER_LEN {
            return Err(FrameError::Malformed);
        }
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

fn head_len(head: &Head) -> usize {
    ObjectId::LEN + 8 + 4 + 1 + 8 + 4 + 8 + 4 + head.name.len()
}

fn put_head(out: &mut BytesMut, head: &Head) {
    out.put_slice(head.id.as_bytes());
    out.put_u64_le(head.life);
    out.put_u32_le(head.tenant);
    out.put_u8(u8::from(head.private));
    out.put_u64_le(head.data_len);
    out.put_u32_le(head.metadata_len);
    out.put_u64_le(head.digest);
    put_bytes(out, head.name.as_bytes());
}

fn head(body: &mut Reader) -> Result<Head, WireError> {
    let (id, life, tenant, private) = (body.object()?, body.u64()?, body.u32()?, body.flag()?);
    let (data_len, metadata_len, digest) = (body.u64()?, body.u32()?, body.u64()?);
    let name = body.text(MAX_NAME)?.into();
    let fits = metadata_len as usize <= MAX_METADATA && data_len.checked_add(metadata_len.into()).is_some();
    let head = Head { id, name, life, tenant, private, data_len, metadata_len, digest };
    if fits { Ok(head) } else { Err(body.malformed()) }
}

fn life(body: &mut Reader) -> Result<(ObjectId, u64), WireError> {
    Ok((body.object()?, body.u64()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id() -> impl Strategy<Value = ObjectId> {
        any::<[u8; 20]>().prop_map(ObjectId::from_bytes)
    }

    fn node() -> impl Strategy<Value = NodeId> {
        any::<[u8; 16]>().prop_map(NodeId::from_bytes)
    }

    fn head() -> impl Strategy<Value = Head> {
        (id(), "[a-z]{0,30}", any::<u64>(), any::<u32>(), any::<bool>(), 0u64..1 << 40, 0u32..65_000)
            .prop_map(|(id, name, life, tenant, private, data_len, metadata_len)| Head {
                id,
                name: name.into(),
                life,
                tenant,
                private,
                data_len,
                metadata_len,
                digest: life.rotate_left(7),
            })
    }

    fn ids() -> impl Strategy<Value = Vec<ObjectId>> {
        prop::collection::vec(id(), 0..5)
    }

    fn flags() -> impl Strategy<Value = Vec<bool>> {
        prop::collection::vec(any::<bool>(), 0..5)
    }

    fn message() -> impl Strategy<Value = Message> {
        let piece = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>())
            .prop_map(|(segment, version, offset, len)| Location { segment, version, offset, len });
        let holding = (id(), any::<bool>(), any::<u64>(), any::<Option<u32>>()).prop_map(
            |(id, cached, life, owner)| Holding {
                id,
                role: if cached { Role::Cached } else { Role::Primary },
                life,
                owner,
            },
        );
        let lives = || prop::collection::vec((id(), any::<u64>()), 0..5);
        let outcome = (0u8..4).prop_map(|code| DeleteOutcome::from_wire(code).expect("a code in use"));
        prop_oneof![
            (id(), any::<bool>(), prop::collection::vec(node(), 0..4))
                .prop_map(|(id, forwarded, except)| Message::Fetch { id, forwarded, except }),
            id().prop_map(|id| Message::Forget { id }),
            (head(), prop::collection::vec(any::<u8>(), 0..300))
                .prop_map(|(head, bytes)| Message::Eager { head, bytes: bytes.into() }),
            (head(), any::<u32>(), prop::collection::vec(piece, 0..4))
                .prop_map(|(head, lease_ms, pieces)| Message::Offer { head, lease_ms, pieces }),
            any::<u64>().prop_map(|lease| Message::Renew { lease }),
            any::<u32>().prop_map(|lease_ms| Message::Renewed { lease_ms }),
            prop::collection::vec(any::<u64>(), 0..5).prop_map(|requests| Message::Release { requests }),
            prop::collection::vec(holding, 0..5).prop_map(|holdings| Message::Publish { holdings }),
            (any::<bool>(), ids()).prop_map(|(deleted, ids)| Message::Unpublish { deleted, ids }),
            ids().prop_map(|ids| Message::Delete { ids }),
            lives().prop_map(|lives| Message::Bury { lives }),
            Just(Message::Done),
            ids().prop_map(|ids| Message::Promote { ids }),
            ids().prop_map(|ids| Message::Hold { ids }),
            prop::collection::vec(any::<u64>(), 0..5).prop_map(|lives| Message::Held { lives }),
            prop::collection::vec(outcome, 0..5).prop_map(|outcomes| Message::Deleted { outcomes }),
            lives().prop_map(|lives| Message::Drop { lives }),
            ids().prop_map(|ids| Message::Query { ids }),
            flags().prop_map(|known| Message::Found { known }),
            (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
                |(segment, version, base, key, len)| Message::Segment { segment, version, base, key, len }
            ),
            any::<u32>().prop_map(|count| Message::Credit { count }),
            "[a-z ]{0,40}".prop_map(|text| Message::Refused { error: Error::new(ErrorKind::Lost, text) }),
        ]
    }

    fn envelope() -> impl Strategy<Value = Envelope> {
        (any::<u64>(), node(), any::<u64>(), node(), any::<u64>(), any::<u64>(), any::<u32>(), message())
            .prop_map(|(request, from, incarnation, reply_to, epoch, deadline_us, tenant, message)| {
                Envelope {
                    request,
                    from,
                    incarnation,
                    reply_to,
                    epoch,
                    deadline_us,
                    tenant,
                    class: 0,
                    message,
                }
            })
    }

    proptest! {
        #[test]
        fn frames_survive_the_wire(envelope in envelope(), token in any::<u64>(), credits in any::<u16>()) {
            let frame = envelope.encode(token, credits).freeze();
            prop_assert_eq!(Envelope::decode(frame), Ok((envelope, token, credits)));
        }

        #[test]
        fn a_cut_or_padded_frame_is_refused(envelope in envelope(), cut in 1usize..100) {
            let mut frame = envelope.encode(1, 0);
            frame.put_u8(0);
            prop_assert!(Envelope::decode(frame.clone().freeze()).is_err());
            frame.truncate((frame.len() - 1).saturating_sub(cut));
            prop_assert!(Envelope::decode(frame.freeze()).is_err());
        }

        #[test]
        fn damaged_frames_never_panic(
            envelope in envelope(), at in any::<prop::sample::Index>(), value in any::<u8>(),
        ) {
            let mut frame = envelope.encode(1, 0);
            let at = at.index(frame.len());
            frame[at] = value;
            let _ = Envelope::decode(frame.freeze());
        }

        #[test]
        fn what_fits_eager_fits_a_frame(mut head in head(), spare in 0usize..2) {
            head.metadata_len = 0;
            head.data_len = (FRAME_MAX - HEADER_LEN - head_len(&head) - 4 + spare) as u64;
            let fits = Message::fits_eager(&head);
            let bytes = vec![0; head.data_len as usize].into();
            let envelope = Envelope {
                request: 0, from: NodeId::random(), incarnation: 0, reply_to: NodeId::random(), epoch: 0,
                deadline_us: 0, tenant: 0, class: 0, message: Message::Eager { head, bytes },
            };
            prop_assert_eq!(envelope.encode(0, 0).len() <= FRAME_MAX, fits);
        }
    }
}
