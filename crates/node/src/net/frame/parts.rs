//! Parts of frames: structs and numbers that occur in several frames, or in lists of frames. Owns no state.

use bytes::Bytes;
use plasmon::wire::{codes, record};
use plasmon::{NodeId, ObjectId, Protocol};

use crate::object::{Head, Ownership, Replica, Role};

record! {
    /// A piece of a holder's arena; it has no address and no key.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Location {
        pub(crate) segment: u32,
        /// The segment's version, which stands for its generation: a segment is replaced as a whole.
        pub(crate) version: u32,
        /// Offset in bytes from the segment's start.
        pub(crate) offset: u64,
        pub(crate) len: u64,
    }
}

codes! {
    /// Why a node does not hold a replica any more.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Withdrawal: u8 {
        /// The replica made room for others.
        0 Evicted,
        /// The object was deleted.
        1 Deleted,
        /// The replica made room; the node knows where else the object is, and may fetch it from there.
        2 Remembered,
    }
}

codes! {
    /// A keeper's answer to a claim.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Verdict: u8 {
        /// The asker may create the id.
        0 Granted,
        /// An object of this id exists.
        1 Exists,
        /// Another node is creating the id.
        2 Creating,
        /// The sender is not the first keeper, as far as it knows, or cannot decide yet: ask again.
        3 NotKeeper,
    }
}

codes! {
    /// The state of an object that a node passes on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Passing: u8 {
        /// More bytes will come.
        0 Under,
        /// All bytes are there, and they are certainly the object's.
        1 Sealed,
        /// The node gave up.
        2 Failed,
    }
}

record! {
    /// Bytes that the sender has written to a window of the receiver's, from slot `first` on; their last 16
    /// bytes are the mark.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct WindowPlace {
        pub(crate) window: u64,
        pub(crate) first: u32,
        pub(crate) mark: u128,
    }
}

record! {
    /// An order to a node to hold an object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Order {
        pub(crate) id: ObjectId,
        /// The life to hold; another life that is there does not count.
        pub(crate) life: u64,
        pub(crate) role: Role,
        /// Number of nodes that are to keep the object.
        pub(crate) copies: u16,
        /// Whether nobody waits for the order, so that it takes its turn.
        pub(crate) patient: bool,
        /// The node to read the object from, which may be about to have it itself.
        pub(crate) from: Option<NodeId>,
    }
}

codes! {
    /// The sender of a fetch to a holder.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Stage: u8 {
        /// A keeper sends the fetch, for the asker.
        0 Forwarded,
        /// The asker itself sends the fetch, since it knows the holder.
        1 Direct,
        /// The asker itself sends the fetch, to a node that may be about to have the object.
        2 Relayed,
    }
}

record! {
    /// A whole object in a message.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Whole {
        pub(crate) head: Head,
        pub(crate) bytes: Bytes,
    }
}

record! {
    /// How the asker of a fetch wants the object to come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Wish {
        pub(crate) protocol: Protocol,
        /// With [`Protocol::Auto`]: the number of bytes of data and metadata up to which the object comes in
        /// messages.
        pub(crate) eager_max: u32,
        /// With [`Protocol::Auto`]: the number of such bytes up to which an object that fits no message is
        /// written to the asker's window, if the holder knows one; 0 for none.
        pub(crate) push_max: u32,
    }
}

record! {
    /// A life of an object on a node.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Life {
        pub(crate) life: u64,
        /// The ownership of the object.
        pub(crate) ownership: Ownership,
        /// Number of nodes that are to keep the object.
        pub(crate) copies: u16,
    }
}

codes! {
    /// Kind of thing that an entry of the directory is about. An id is of one kind.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Kind: u8 {
        /// An object.
        0 Object,
        /// A name of another kind, of a region or a service: what is held is its deed.
        1 Deed,
    }
}

codes! {
    /// The role in which a node holds an object, and whether it is an heir.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Standing: u8 {
        0 Primary,
        1 Cached,
        2 Kept,
        /// The primary, because no other was left. If a primary comes back, the heir hands over to it.
        3 Heir,
    }
}

impl Standing {
    fn of(replica: &Replica) -> Self {
        match replica.role() {
            Role::Primary if replica.is_heir() => Self::Heir,
            Role::Primary => Self::Primary,
            Role::Cached => Self::Cached,
            Role::Kept => Self::Kept,
        }
    }

    pub(crate) fn role(self) -> Role {
        match self {
            Self::Primary | Self::Heir => Role::Primary,
            Self::Cached => Role::Cached,
            Self::Kept => Role::Kept,
        }
    }
}

record! {
    /// An object that a node holds, as the node tells the directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Holding {
        pub(crate) id: ObjectId,
        pub(crate) standing: Standing,
        /// Number of nodes that are to keep the object; 0 and 1 both mean one.
        pub(crate) copies: u16,
        /// The life of the id.
        pub(crate) life: u64,
        /// The ownership of the object.
        pub(crate) ownership: Ownership,
        /// Kind of thing that is held under the id.
        pub(crate) kind: Kind,
    }
}

impl Holding {
    /// Describes a replica of this node.
    pub(crate) fn of(replica: &Replica) -> Self {
        Self {
            id: replica.id(),
            standing: Standing::of(replica),
            copies: replica.copies(),
            life: replica.life,
            ownership: replica.ownership(),
            kind: if replica.is_deed() { Kind::Deed } else { Kind::Object },
        }
    }
}

record! {
    /// An object that has taken the place of another, the node that wrote it, and the others that keep it,
    /// with the incarnations in which they have it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Successor {
        pub(crate) holding: Holding,
        pub(crate) node: NodeId,
        pub(crate) others: Vec<(NodeId, u64)>,
    }
}

record! {
    /// A life of an object of which a node is to be the primary.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Heir {
        pub(crate) id: ObjectId,
        pub(crate) life: u64,
        /// Number of nodes that are to keep the object, as far as the directory remembers; 0 and 1 both
        /// mean one.
        pub(crate) copies: u16,
    }
}
