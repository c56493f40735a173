//! Classes: what kind of traffic a frame or an operation is, and so which lane carries it.
//!
//! Plain values. Every fabric has an endpoint a class, and every peer a connection a class: a lane is found
//! by its class and by nothing else.

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

impl Class {
    /// Every class, in the order of the numbers.
    pub(crate) const EACH: [Self; 2] = [Self::Messages, Self::Bulk];

    /// Place of the class in a list of one thing a class.
    pub(crate) fn place(self) -> usize {
        self as usize
    }
}
