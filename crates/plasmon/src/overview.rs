//! Overview of the nodes of a cluster, as `plasmon status --cluster --json` prints it.
//!
//! The overview travels as JSON. A newer daemon may add fields, and an older client ignores them. The
//! [`Summary`] of a node has a bounded size, whatever the node holds. Nodes send their summaries to each
//! other. Owns no state. Any thread.

use serde::{Deserialize, Serialize};

use crate::status::Status;

/// Overview of a cluster, as one of its nodes sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overview {
    /// Epoch of the node's view of the members.
    pub epoch: u64,
    /// Coordinator of the cluster: "embedded" or its address.
    pub coordinator: String,
    /// Whether the coordinator answers.
    pub coordinator_connected: bool,
    /// Members of the cluster: the node that answers first, the others ordered by their control addresses.
    pub nodes: Vec<NodeOverview>,
    /// Number of further members, which were not asked.
    pub left_out: u64,
}

/// Member of a cluster with its answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeOverview {
    /// Node id, 32 hexadecimal digits.
    pub node: String,
    /// Host and port of the member's control connection.
    pub listen: String,
    /// Whether the member is the node that was asked for the overview.
    pub this: bool,
    /// Summary that the member answered. `None` if it did not answer.
    pub summary: Option<Summary>,
    /// Reason why the member did not answer. Empty if it did.
    pub failure: String,
}

/// Summary of a node. Sizes are in bytes. Counters start at 0 when the node starts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Version of the daemon.
    pub version: String,
    /// Time since the daemon started, in seconds. Rates are computed with this clock.
    pub uptime_seconds: f64,
    /// libfabric's name of the node's best provider.
    pub provider: String,
    /// Number of clients that are connected now.
    pub clients: u64,
    /// Size of the arena in bytes.
    pub memory_bytes: u64,
    /// Bytes of the arena that objects occupy.
    pub memory_used_bytes: u64,
    /// Number of primary replicas.
    pub primary_objects: u64,
    /// Size in bytes of the primary replicas.
    pub primary_bytes: u64,
    /// Number of cached replicas.
    pub cached_objects: u64,
    /// Size in bytes of the cached replicas.
    pub cached_bytes: u64,
    /// Number of objects on disk, including those that are in memory too.
    pub spilled_objects: u64,
    /// Size in bytes of the objects on disk.
    pub spilled_bytes: u64,
    /// Number of objects fetched from other nodes.
    pub fetched_objects: u64,
    /// Size in bytes of the objects fetched from other nodes.
    pub fetched_bytes: u64,
    /// Number of objects that this node sent or offered to other nodes on request.
    pub served_objects: u64,
    /// Size in bytes of the objects that this node sent or offered to other nodes on request.
    pub served_bytes: u64,
    /// Number of regions that live on the node.
    pub regions: u64,
    /// Bytes of memory that regions take.
    pub region_bytes: u64,
    /// Number of regions that lie in several pieces of memory.
    pub regions_in_pieces: u64,
    /// Number of regions that their owners' processes were to map and cannot, because no memory that they may
    /// map was free.
    pub regions_crowded_out: u64,
    /// Number of operations on regions that the node carried out. What processes do to mapped regions is not
    /// counted.
    pub region_operations: u64,
    /// Number of calls of functions that the node's processes replied to.
    pub calls_served: u64,
    /// Number of requests of the node's clients for work of class high.
    pub high_requests: u64,
    /// Number of requests of the node's clients for work of class low.
    pub low_requests: u64,
    /// Number of messages sent to other nodes.
    pub messages_sent: u64,
    /// Reason why the node does not serve as it should. Empty if the node is healthy.
    pub unfit: String,
}

impl From<&Status> for Summary {
    fn from(status: &Status) -> Self {
        let Status { memory, objects, spill, fabric, transfer, regions, functions, classes, .. } = status;
        let protocols = || transfer.protocols.values();
        Self {
            version: status.version.clone(),
            uptime_seconds: status.uptime_seconds,
            provider: fabric.provider.clone(),
            clients: status.clients,
            memory_bytes: memory.capacity,
            memory_used_bytes: memory.used,
            primary_objects: objects.primary,
            primary_bytes: objects.primary_bytes,
            cached_objects: objects.cached,
            cached_bytes: objects.cached_bytes,
            spilled_objects: spill.objects,
            spilled_bytes: spill.bytes,
            fetched_objects: protocols().map(|protocol| protocol.fetched).sum(),
            fetched_bytes: protocols().map(|protocol| protocol.fetched_bytes).sum(),
            served_objects: protocols().map(|protocol| protocol.served).sum(),
            served_bytes: protocols().map(|protocol| protocol.served_bytes).sum(),
            regions: regions.regions,
            region_bytes: regions.bytes,
            regions_in_pieces: regions.in_pieces,
            regions_crowded_out: regions.crowded_out,
            region_operations: regions.operations(),
            calls_served: functions.served,
            high_requests: classes.high.operations,
            low_requests: classes.low.operations,
            messages_sent: fabric.messages_sent,
            unfit: status.unfit.clone(),
        }
    }
}
