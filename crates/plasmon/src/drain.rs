//! Drain of a node: its steps and its progress. A draining node moves the objects that it keeps to other
//! nodes, and then leaves the cluster.
//!
//! Owns no state. Any thread.

use serde::{Deserialize, Serialize};

crate::wire::codes! {
    /// Order to a node about its drain.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DrainStep: u8 {
        /// Begin the drain, if it has not begun.
        0 Begin,
        /// Report the progress of the drain.
        1 Look,
        /// Call the drain off and accept objects again. Objects that have moved stay where they are.
        2 CallOff,
    }
}

/// Progress of a node's drain. Sizes are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainStatus {
    /// Whether the node is being drained.
    pub draining: bool,
    /// Number of objects that the node still keeps.
    pub objects: u64,
    /// Size in bytes of the objects that the node still keeps.
    pub bytes: u64,
    /// Number of objects that clients are still writing. The drain waits for them.
    pub unsealed: u64,
    /// Number of objects that other nodes have taken over since the drain began.
    pub moved_objects: u64,
    /// Size in bytes of the objects that other nodes have taken over since the drain began.
    pub moved_bytes: u64,
    /// Whether the drain is complete. The node then leaves the cluster.
    pub finished: bool,
    /// Reason why another node last refused an object. Empty if none refused.
    pub trouble: String,
    /// Number of objects that the node still keeps and cannot move, since their bytes are not those that were
    /// sealed. Such objects have to be deleted.
    pub damaged: u64,
    /// Reasons why the first few damaged objects cannot be moved. Each reason names its object.
    pub damage: Vec<String>,
    /// Number of regions that live on the node.
    pub regions: u64,
    /// Number of regions that stayed when the regions were last offered to another node. A region stays, for
    /// example, if it is ephemeral, if a process has a view of the region, or if there is no room for it.
    pub regions_refused: u64,
    /// Names of the first few regions that live on the node. Only root and the user that the node runs as get
    /// them.
    pub region_names: Vec<String>,
    /// Number of volumes of files whose home or mirror the node is, until another node takes its place.
    pub volumes: u64,
    /// Number of volumes of which this node is the home and that no other node could take at the last
    /// attempt.
    pub volumes_refused: u64,
    /// Names of the first few of the node's volumes. Only root and the user that the node runs as get them.
    pub volume_names: Vec<String>,
}

impl DrainStatus {
    /// Whether nothing is left but damaged objects, and regions and volumes that no other node takes, so that
    /// the drain does not end.
    pub fn is_stuck(&self) -> bool {
        let stay = self.damaged + self.regions + self.volumes;
        let offered = self.damaged == self.objects
            && self.regions_refused >= self.regions
            && self.volumes_refused >= self.volumes;
        stay > 0 && offered && self.unsealed == 0
    }
}
