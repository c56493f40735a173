//! Names that operations, endpoints, peers and connections have in this crate.
//!
//! Owns plain values only; nothing here calls libfabric. Any thread may hold them. Invariants: an
//! [`EndpointId`] is never reused within its domain; a [`Peer`] names one connected peer for ever, because
//! its slot is reused under another generation.

use std::fmt;

/// Kind of an operation, as errors name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// A message to a peer.
    Send,
    /// A buffer posted for a message.
    Receive,
    /// A one-sided read of a peer's memory.
    Read,
    /// A one-sided write to a peer's memory.
    Write,
    /// A cut of a slice, or a copy to or from a slice.
    Slice,
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpKind::Send => "send",
            OpKind::Receive => "receive",
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Slice => "slice",
        })
    }
}

/// Number of an endpoint within its domain. Numbers are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EndpointId(pub(crate) u32);

/// Name of a peer that an endpoint has connected to. The name stays harmless when the peer is disconnected:
/// operations towards the peer then fail with [`FabricError::PeerGone`](crate::FabricError::PeerGone).
#[derive(Clone, Copy, Eq, Hash, PartialEq, Debug)]
pub struct Peer {
    pub(crate) endpoint: EndpointId,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Destination to which an operation is posted: an address, and the number of the connection to this address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// Entry of the endpoint's address vector.
    pub(crate) address: u64,
    /// Count of the connections to the peer that were replaced before this one.
    pub(crate) connection: u32,
}

impl Target {
    /// Target of receive buffers: a message from any peer.
    pub(crate) const ANYONE: Target = Target { address: u64::MAX, connection: 0 };
}
