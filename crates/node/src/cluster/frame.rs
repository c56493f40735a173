//! Frames between nodes: what they say and how they look.
//!
//! A frame is an 88-byte header and a body, little-endian. A fabric message is one frame or several, at most
//! [`FRAME_MAX`] bytes so that it fits a block of the pool. `docs/design.md` draws the bytes.
//!
//! Peers are trusted to be Plasmon, their bytes are not: every field is checked on decode, and a
//! frame of another version, with an unknown opcode or flag, or that does not end where it should
//! is dropped and counted. Requests that a node cannot serve are answered with [`Message::Refused`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use plasmon::wire::body::{Reader, put_bytes, put_many, put_objects};
use plasmon::wire::{MAX_METADATA, MAX_NAME, WireError};
use plasmon::{DeleteOutcome, Error, ErrorKind, NodeId, ObjectId, Protocol};
use plasmon_fabric::RemoteRegion;

use super::members::Incarnation;
use crate::object::{Head, Replica, Role};

/// Version of the frames.
pub(crate) const VERSION: u8 = 3;
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
    /// `avoid`, or keeps it until there is one; a holder answers as `wish` says.
    Fetch { id: ObjectId, stage: Stage, avoid: Vec<NodeId>, wish: Wish },
    /// The asker of a `Fetch` no longer wants it.
    Forget { id: ObjectId },
    /// An object, whole.
    Eager { head: Head, bytes: Bytes },
    /// An object to be read where it lies, within `lease_ms` of the request's sending. Others hold it too. As
    /// long as the stamp is what it says, the bytes are there.
    Offer { head: Head, lease_ms: u32, pieces: Vec<Location>, stamp: Option<Stamp>, others: Vec<NodeId> },
    /// An object to be read through registrations made for this transfer.
    Registered { head: Head, lease_ms: u32, regions: Vec<RemoteRegion> },
    /// An object to be sent in pieces once the asker is `Ready`.
    Stream { head: Head, lease_ms: u32 },
    /// An object to be had through a socket at this port of the sender's address: whoever knows the secret may
    /// ask for it there, as long as the lease stands.
    Dial { head: Head, lease_ms: u32, port: u16, secret: u128 },
    /// There is memory for the object of that request of the sender's: send its pieces.
    Ready { request: u64 },
    /// Who holds this, as far as the tenant may know?
    Locate { id: ObjectId },
    /// Answer to `Locate`.
    Located { holders: Vec<(NodeId, Role)> },
    /// For measuring: lend memory of so many bytes; or, if `of` is the request of such a loan, send so many
    /// bytes of it inside a message.
    Probe { of: u64, len: u64 },
    /// A piece of an object, for that request of the receiver's.
    Part { request: u64, at: u64, bytes: Bytes },
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
    /// How are you?
    Report,
    /// Answer to `Report`: a [`plasmon::overview::Summary`] as JSON.
    Reported { json: Bytes },
    /// How to reach a segment of the sender's arena.
    Segment { segment: u32, version: u32, base: u64, key: u64, len: u64 },
    /// How to read the stamps of the sender's objects.
    Stamps { base: u64, key: u64, len: u64 },
    /// Frames of yours were received and their blocks posted again.
    Credit { count: u32 },
    /// May the sender create this id? Asked of the first keeper; with `probe` by that of the second, which only says.
    Claim { id: ObjectId, probe: bool },
    /// Answer to `Claim`.
    Claimed { verdict: Verdict },
    /// The sender does not create these any more.
    Unclaim { ids: Vec<ObjectId> },
    /// Another node was first with these, although the sender had granted them.
    Taken { ids: Vec<ObjectId> },
    /// Do you still create these? Answered by `Unclaim` for those that not.
    Affirm { ids: Vec<ObjectId> },
    /// Have that node be the one that the object belongs to. Asked of the first keeper.
    Migrate { id: ObjectId, to: NodeId },
    /// Hold this life of an object, in this role from now on: bring it from `from`, or else from wherever it is.
    Acquire { order: Order },
    /// Of the object that the receiver reads by that request of its own, so many bytes from the beginning have come to
    /// the sender.
    Passed { request: u64, bytes: u64, state: Passing },
    /// A request cannot be served, and why.
    Refused { error: Error },
}

/// What a keeper says to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The id is the asker's.
    Granted = 0,
    /// An object of this id is there.
    Exists = 1,
    /// Another node is creating it.
    Creating = 2,
    /// The sender is not the first keeper, as far as it knows: ask again with the next view.
    NotKeeper = 3,
}

impl Verdict {
    fn from_wire(code: u8) -> Option<Self> {
        [Self::Granted, Self::Exists, Self::Creating, Self::NotKeeper]
            .into_iter()
            .find(|one| *one as u8 == code)
    }
}

/// How far a node has come with an object that it passes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    /// More will come.
    Under = 0,
    /// All is there, and it is certainly the object.
    Sealed = 1,
    /// It gave up.
    Failed = 2,
}

impl Passing {
    fn from_wire(code: u8) -> Option<Self> {
        [Self::Under, Self::Sealed, Self::Failed].into_iter().find(|one| *one as u8 == code)
    }
}

/// What a node is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) id: ObjectId,
    /// Which life; another that is there does not count.
    pub(crate) life: u64,
    pub(crate) role: Role,
    /// How many nodes are to keep it.
    pub(crate) copies: u16,
    /// Nobody waits for it: it takes its turn.
    pub(crate) patient: bool,
    /// The node to read it from, which may be about to have it itself.
    pub(crate) from: Option<NodeId>,
}

/// How far a fetch has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// From the asker to the keeper.
    Asked = 0,
    /// From the keeper to a holder; `avoid` names others that hold the object.
    Forwarded = 1,
    /// From the asker to a holder it knows.
    Direct = 2,
    /// The same, to one that may be about to have it.
    Relayed = 3,
}

impl Stage {
    fn from_wire(code: u8) -> Option<Self> {
        [Self::Asked, Self::Forwarded, Self::Direct, Self::Relayed]
            .into_iter()
            .find(|stage| *stage as u8 == code)
    }
}

/// How the asker of a fetch wants the object to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) protocol: Protocol,
    /// With [`Protocol::Auto`]: inside a message up to so many bytes of data and metadata, if it fits.
    pub(crate) eager_max: u32,
}

/// A word at the holder that says whether an object's bytes are still where they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Where it is, in words.
    pub(crate) slot: u32,
    /// What it was. Never 0 while the object lies there, and never used again.
    pub(crate) value: u64,
}

impl Stamp {
    const NONE: Self = Self { slot: 0, value: 0 };
}

/// An object that a node holds, as it tells the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) id: ObjectId,
    pub(crate) role: Role,
    /// How many nodes are to keep it; 0 and 1 for one.
    pub(crate) copies: u16,
    /// Which life of the id.
    pub(crate) life: u64,
    /// The user whose private object it is.
    pub(crate) owner: Option<u32>,
}

impl Holding {
    /// Of this replica.
    pub(crate) fn of(replica: &Replica) -> Self {
        Self {
            id: replica.id(),
            role: replica.role(),
            copies: replica.copies(),
            life: replica.life,
            owner: replica.owner(),
        }
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
    /// Whether an encoded frame tells how memory is reached by the fabric that it goes over.
    pub(super) fn is_of_a_fabric(frame: &[u8]) -> bool {
        matches!(frame.get(1), Some(15 | 27))
    }

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
            Self::Registered { .. } => 23,
            Self::Stream { .. } => 24,
            Self::Ready { .. } => 25,
            Self::Part { .. } => 26,
            Self::Stamps { .. } => 27,
            Self::Probe { .. } => 28,
            Self::Locate { .. } => 30,
            Self::Located { .. } => 31,
            Self::Dial { .. } => 29,
            Self::Claim { .. } => 32,
            Self::Claimed { .. } => 33,
            Self::Unclaim { .. } => 34,
            Self::Taken { .. } => 35,
            Self::Affirm { .. } => 36,
            Self::Acquire { .. } => 37,
            Self::Passed { .. } => 38,
            Self::Migrate { .. } => 39,
            Self::Report => 40,
            Self::Reported { .. } => 41,
        }
    }

    /// Whether it answers a request, and so goes to whoever waits for it.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Eager { .. }
                | Self::Offer { .. }
                | Self::Registered { .. }
                | Self::Stream { .. }
                | Self::Dial { .. }
                | Self::Renewed { .. }
                | Self::Deleted { .. }
                | Self::Done
                | Self::Found { .. }
                | Self::Held { .. }
                | Self::Located { .. }
                | Self::Reported { .. }
                | Self::Claimed { .. }
                | Self::Refused { .. }
        )
    }

    /// Whether the holder keeps something for whoever this answers.
    pub(crate) fn comes_with_a_lease(&self) -> bool {
        matches!(self, Self::Offer { .. } | Self::Registered { .. } | Self::Stream { .. } | Self::Dial { .. })
    }

    /// Whether an object of this head travels whole inside a message.
    pub(crate) fn fits_eager(head: &Head) -> bool {
        let fixed = HEADER_LEN + head_len(head) + size_of::<u32>();
        head.len() <= FRAME_MAX.saturating_sub(fixed) as u64
    }

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

fn head_len(head: &Head) -> usize {
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

#[cfg(test)]
mod tests;
