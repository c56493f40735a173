//! The nodes of a cluster at one glance, as `plasmon status --cluster --json` prints them.
//!
//! It travels as JSON: a newer daemon may add fields, and an older client ignores them. One line of it has a
//! fixed size, whatever its node holds: that is what the nodes send each other.

use serde::{Deserialize, Serialize};

use crate::status::Status;

/// What a node says of the others and of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overview {
    /// Membership epoch.
    pub epoch: u64,
    /// "embedded", or where the coordinator is.
    pub coordinator: String,
    /// Whether the coordinator answers.
    pub coordinator_connected: bool,
    /// The members, this node first, then by where they listen.
    pub nodes: Vec<NodeOverview>,
    /// Members beyond those, which were not asked.
    pub left_out: u64,
}

/// A member, and what it answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeOverview {
    /// Node id, 32 hexadecimal digits.
    pub node: String,
    /// Host and port of its control connection.
    pub listen: String,
    /// Whether it is the node that was asked for the overview.
    pub this: bool,
    /// What it answered; nothing if it did not.
    pub summary: Option<Summary>,
    /// Why there is no answer; empty if there is one.
    pub failure: String,
}

/// A node in a few numbers. Sizes are bytes; counters grow from the node's start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Version of the daemon.
    pub version: String,
    /// Seconds since its start: rates go by this clock.
    pub uptime_seconds: f64,
    /// libfabric's name of the best provider it has.
    pub provider: String,
    /// Clients connected now.
    pub clients: u64,
    /// The arena.
    pub memory_bytes: u64,
    /// Of that, held by objects.
    pub memory_used_bytes: u64,
    /// Primary replicas.
    pub primary_objects: u64,
    /// Their bytes.
    pub primary_bytes: u64,
    /// Cached replicas.
    pub cached_objects: u64,
    /// Their bytes.
    pub cached_bytes: u64,
    /// Objects on disk, in memory as well or not.
    pub spilled_objects: u64,
    /// Their bytes.
    pub spilled_bytes: u64,
    /// Objects fetched from other nodes.
    pub fetched_objects: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Objects that other nodes asked for and were given.
    pub served_objects: u64,
    /// Their bytes.
    pub served_bytes: u64,
    /// Messages sent to other nodes.
    pub messages_sent: u64,
    /// Why it does not serve as it should; empty if it does.
    pub unfit: String,
}

impl From<&Status> for Summary {
    fn from(status: &Status) -> Self {
        let Status { memory, objects, spill, fabric, transfer, .. } = status;
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
            messages_sent: fabric.messages_sent,
            unfit: status.unfit.clone(),
        }
    }
}
