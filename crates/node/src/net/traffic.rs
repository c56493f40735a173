//! Traffic: what kind of operation goes to a peer, and so which lane carries it.
//!
//! Plain values. Every fabric has an endpoint for messages and one or several for bulk, and every peer as
//! many connections: a lane is found by the kind of traffic, and a bulk lane by the length and the class of
//! the operation as well.

/// Kind of an operation towards a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Messages, in order.
    Messages,
    /// One-sided operations, which would hold messages up.
    Bulk,
}
