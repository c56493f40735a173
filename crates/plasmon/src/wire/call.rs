//! Calls by slot: their numbers, and what their arguments and values are.
//!
//! Owns no state. The numbers are in the ranges of requests: 1 to 99 are of objects and the cluster. How a
//! call travels is in [`shared`](crate::shared).

use crate::NodeId;

/// Asks for a sign of life of a node. The first value of the result is the time in nanoseconds from asking
/// the other node until its answer. It is 0 for the node of the client itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping {
    /// Id of the node.
    pub node: NodeId,
}

impl Ping {
    /// Number of the call.
    pub const OPCODE: u8 = 80;

    /// Arguments of the call: the halves of the id.
    pub fn arguments(self) -> [u64; 6] {
        let (halves, _) = self.node.as_bytes().as_chunks();
        [u64::from_le_bytes(halves[0]), u64::from_le_bytes(halves[1]), 0, 0, 0, 0]
    }

    /// Call with these arguments.
    pub fn of_arguments([first, second, ..]: [u64; 6]) -> Self {
        let mut bytes = [0; NodeId::LEN];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        Self { node: NodeId::from_bytes(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_of_the_node() {
        let node = NodeId::random();
        assert_eq!(Ping::of_arguments(Ping { node }.arguments()), Ping { node });
    }
}
