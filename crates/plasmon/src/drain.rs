//! How far a node is that is drained: what it keeps for the cluster moves to other nodes, and then it leaves.

use serde::{Deserialize, Serialize};

crate::wire::codes! {
    /// What a node is to do about its drain.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DrainStep: u8 {
        /// Begin, unless it has.
        0 Begin,
        /// Say how far it is.
        1 Look,
        /// Stay, and take objects again. What has moved stays where it is.
        2 CallOff,
    }
}

/// How far it is. Sizes are bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainStatus {
    /// Whether it is drained at all.
    pub draining: bool,
    /// Objects that it still is the one to keep, or one of those.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that clients are still writing: they are waited for.
    pub unsealed: u64,
    /// Objects that other nodes keep instead, since it began.
    pub moved_objects: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Nothing is left: the node leaves.
    pub finished: bool,
    /// Why another node did not take what was offered to it last; empty if none refused.
    pub trouble: String,
}
