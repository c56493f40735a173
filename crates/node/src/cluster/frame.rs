//! Frames between nodes: what they say and how they look.
//!
//! A frame is an 88-byte header and a body, little-endian. A fabric message is one frame or several, at most
//! [`FRAME_MAX`] bytes so that it fits a block of the pool. `docs/design.md` draws the bytes.
//!
//! Peers are trusted to be Plasmon, their bytes are not: every field is checked on decode, and a
//! frame of another version, with an unknown opcode or flag, or that does not end where it should
//! is dropped and counted. Requests that a node cannot serve are answered with [`Message::Refused`].

mod codec;

use bytes::Bytes;
use plasmon::drain::DrainStep;
use plasmon::wire::WireError;
use plasmon::{DeleteOutcome, Error, NodeId, ObjectId, Protocol};
use plasmon_fabric::RemoteRegion;

use self::codec::head_len;
use super::members::Incarnation;
use crate::object::{Head, Replica, Role};

/// Version of the frames.
pub(crate) const VERSION: u8 = 3;
/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 88;
/// Largest frame: what libfabric's rxm moves in one piece, less its own header.
pub(crate) const FRAME_MAX: usize = 16 << 10;
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
    /// Move away what you keep, say how far you are, or stop doing so.
    Drain { step: DrainStep },
    /// Answer to `Report`: a [`plasmon::overview::Summary`] as JSON; to `Drain`: a [`plasmon::drain::DrainStatus`].
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
            Self::Drain { .. } => 42,
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
}

#[cfg(test)]
mod tests;
