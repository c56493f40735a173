//! What frames say, in parts: structs and numbers that several frames, or lists in them, are made of.

use plasmon::wire::{codes, record};
use plasmon::{NodeId, ObjectId, Protocol};

use crate::object::{Ownership, Replica, Role};

record! {
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
}

codes! {
    /// Why a node does not hold a replica any more.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Withdrawal: u8 {
        /// To make room.
        0 Evicted,
        /// The object was deleted.
        1 Deleted,
        /// To make room; the node knows where else the object is, and may fetch it from there.
        2 Remembered,
    }
}

codes! {
    /// What a keeper says to a claim.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Verdict: u8 {
        /// The id is the asker's.
        0 Granted,
        /// An object of this id is there.
        1 Exists,
        /// Another node is creating it.
        2 Creating,
        /// The sender is not the first keeper, as far as it knows, or cannot say yet: ask again.
        3 NotKeeper,
    }
}

codes! {
    /// How far a node has come with an object that it passes on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Passing: u8 {
        /// More will come.
        0 Under,
        /// All is there, and it is certainly the object.
        1 Sealed,
        /// It gave up.
        2 Failed,
    }
}

record! {
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
}

codes! {
    /// Who sends a fetch to a holder.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Stage: u8 {
        /// A keeper, for the asker.
        0 Forwarded,
        /// The asker itself, which knows the holder.
        1 Direct,
        /// The asker itself, to one that may be about to have the object.
        2 Relayed,
    }
}

record! {
    /// How the asker of a fetch wants the object to come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Wish {
        pub(crate) protocol: Protocol,
        /// With [`Protocol::Auto`]: inside a message up to so many bytes of data and metadata, if it fits.
        pub(crate) eager_max: u32,
    }
}

record! {
    /// A life of an object on a node.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Life {
        pub(crate) life: u64,
        /// Whose it is.
        pub(crate) ownership: Ownership,
    }
}

record! {
    /// An object that a node holds, as it tells the directory.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Holding {
        pub(crate) id: ObjectId,
        pub(crate) role: Role,
        /// How many nodes are to keep it; 0 and 1 for one.
        pub(crate) copies: u16,
        /// Which life of the id.
        pub(crate) life: u64,
        /// Whose it is.
        pub(crate) ownership: Ownership,
    }
}

impl Holding {
    /// Of this replica.
    pub(crate) fn of(replica: &Replica) -> Self {
        Self {
            id: replica.id(),
            role: replica.role(),
            copies: replica.copies(),
            life: replica.life,
            ownership: replica.ownership(),
        }
    }
}

record! {
    /// A life of an object that a node is to be the primary of.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Heir {
        pub(crate) id: ObjectId,
        pub(crate) life: u64,
        /// How many nodes are to keep it, as far as the directory remembers; 0 and 1 for one.
        pub(crate) copies: u16,
    }
}
