//! Classes: what kind of traffic a frame or an operation is, and so which lane carries it.
//!
//! Plain values. Every fabric has an endpoint for messages and one or several for bulk, and every peer as
//! many connections: a lane is found by its class, and a bulk lane by the length of the operation as well.

use plasmon::wire::codes;

codes! {
    /// Class of a frame or of an operation.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Class: u8 {
        /// Messages, in order.
        0 Messages,
        /// One-sided operations, which would hold messages up.
        1 Bulk,
    }
}
