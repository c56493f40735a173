//! The state report of a node, as `plasmon status --json` prints it.
//!
//! It travels as JSON: a newer daemon may add fields, and an older client ignores them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Everything a node says of itself. Sizes are bytes; counters grow from the node's start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Node id, 32 hexadecimal digits.
    pub node: String,
    /// Grows at every start of the node.
    pub incarnation: u64,
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_seconds: f64,
    /// Path of the unix socket.
    pub socket: String,
    /// Host and port of the control connection.
    pub listen: String,
    /// Why it does not serve as it should, such as a coordinator that does not answer; empty if it does.
    pub unfit: String,
    /// Clients connected now.
    pub clients: u64,
    /// The arena.
    pub memory: MemoryStatus,
    /// Where on the host it runs.
    pub numa: NumaStatus,
    /// What it holds.
    pub objects: ObjectsStatus,
    /// What it has put on disk.
    pub spill: SpillStatus,
    /// The clients, at most 1,000 of them.
    pub connections: Vec<ConnectionStatus>,
    /// The network.
    pub fabric: FabricStatus,
    /// What was moved between nodes.
    pub transfer: TransferStatus,
    /// The other nodes.
    pub cluster: ClusterStatus,
    /// Counters of services that have no other part in the report, by name, such as `echo.answers`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, u64>,
}

/// The arena of a node, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// All of it.
    pub capacity: u64,
    /// Held by objects.
    pub used: u64,
    /// Not held by anything.
    pub free: u64,
    /// The largest object that fits without dropping anything.
    pub largest_free: u64,
    /// Pre-faulted so far.
    pub prefaulted: u64,
    /// Where it comes from: "huge" for the host's pool of huge pages, else "base".
    pub pages: String,
    /// In huge pages, of the pool or transparent ones.
    pub huge: u64,
    /// Bytes in a segment.
    pub segment_size: u64,
    /// Number of segments.
    pub segments: u32,
    /// Bytes of the object tables that clients map.
    pub tables: u64,
    /// Objects that wait for room.
    pub waiting: u64,
    /// Bytes of objects moved to put free memory together.
    pub compacted_bytes: u64,
}

/// The memory node (NUMA) that a node is bound to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumaStatus {
    /// Memory nodes of the host.
    pub nodes: u32,
    /// The one that threads and memory are bound to; nothing if they are not.
    pub node: Option<u32>,
    /// The one that its network interface is at, if that is known.
    pub card: Option<u32>,
    /// The CPUs that threads may use, as in "0-3,8"; empty if they are not bound.
    pub cpus: String,
    /// Why it is bound there, or why it is not bound.
    pub reason: String,
    /// Bytes of the arena that lie on other memory nodes all the same, as far as they are pre-faulted.
    pub elsewhere: u64,
}

/// What a node has put on disk. Without a spill directory all is empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpillStatus {
    /// The directory.
    pub directory: String,
    /// Objects that are on disk, in memory as well or not.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files.
    pub files: u64,
    /// Bytes the files take on disk.
    pub disk_bytes: u64,
    /// Bytes written so far.
    pub written_bytes: u64,
    /// Bytes read back so far.
    pub restored_bytes: u64,
    /// Writes and reads that failed.
    pub failures: u64,
    /// Damaged places found at the start of which nobody can tell whose objects they were. Such an object is
    /// unknown; one whose record tells who it is is *damaged* for whoever gets it.
    pub unreadable: u64,
    /// Why objects cannot be written to disk, as of the last attempt; empty if they can.
    pub failing: String,
}

/// A client of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionStatus {
    /// What it calls itself.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Objects it has pinned; one that it has pinned twice counts twice.
    pub pins: u64,
    /// Bytes of the objects it has created, in memory or on disk.
    pub bytes: u64,
    /// Most that may be; 0 for no limit of its own.
    pub quota: u64,
}

/// Objects on a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectsStatus {
    /// Primary replicas, sealed.
    pub primary: u64,
    /// Their bytes.
    pub primary_bytes: u64,
    /// Replicas kept here as one of several, sealed.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Cached replicas, sealed.
    pub cached: u64,
    /// Their bytes.
    pub cached_bytes: u64,
    /// Being created by clients.
    pub unsealed: u64,
    /// Objects with at least one pin.
    pub pinned: u64,
    /// Deleted and waiting for their last pin.
    pub doomed: u64,
    /// Objects taken out of memory to make room.
    pub evicted: u64,
}

/// The network of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricStatus {
    /// libfabric's name of the best provider there is; see [`MemberStatus`] for what is used towards whom.
    pub provider: String,
    /// The network interface or RDMA device it uses.
    pub interface: String,
    /// Why it was chosen.
    pub reason: String,
    /// The link of the RDMA device, such as "ACTIVE", "DOWN", or "GONE" for a device that was removed; empty
    /// without one.
    pub link: String,
    /// libfabric's version.
    pub libfabric: String,
    /// Registrations of memory made so far.
    pub registrations: u64,
    /// Regions of memory registered now.
    pub regions: u64,
    /// Bytes registered now.
    pub registered_bytes: u64,
    /// Messages sent to other nodes; what asks, answers and tells, and small objects.
    pub messages_sent: u64,
    /// Messages received from them.
    pub messages_received: u64,
    /// One-sided reads made. Those that others make here are nowhere counted: no processor sees them.
    pub reads: u64,
    /// Operations that came to their end, each of which took this node's CPU.
    pub completions: u64,
    /// Operations under way now.
    pub in_flight: u64,
    /// Registered blocks for messages, smallest first.
    pub pools: Vec<PoolStatus>,
}

/// Registered blocks of one size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolStatus {
    /// libfabric's name of the provider that they are registered with.
    pub provider: String,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks there are.
    pub blocks: u64,
    /// Of these, taken for good, to receive.
    pub kept: u64,
    /// Of these, lent to an operation now.
    pub lent: u64,
    /// How often one was lent.
    pub lent_ever: u64,
}

/// What a node moved from and to others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferStatus {
    /// Objects fetched whose data came inside a message.
    pub eager_fetched: u64,
    /// Their bytes (data and metadata).
    pub eager_fetched_bytes: u64,
    /// Objects fetched by one-sided reads.
    pub rendezvous_fetched: u64,
    /// Their bytes (data and metadata).
    pub rendezvous_fetched_bytes: u64,
    /// Objects sent inside a message.
    pub eager_served: u64,
    /// Objects offered to one-sided reads.
    pub rendezvous_served: u64,
    /// Fetches under way now, those that wait for their object to be created included.
    pub fetching: u64,
    /// Attempts at a holder that failed; each was tried again elsewhere or reported.
    pub fetch_failures: u64,
    /// Objects pinned for peers now.
    pub leases: u64,
    /// Frames thrown away: of a wrong token, incarnation or form, or parts of objects that nobody waits for;
    /// and data connections closed for such things.
    pub frames_dropped: u64,
    /// Bytes of objects copied by this daemon's CPU, local puts of small objects included.
    pub cpu_copied_bytes: u64,
    /// By what moved the bytes: "eager", "read", "read-first", "striped-read", "relayed-read", "send",
    /// "read-register", "socket".
    pub protocols: BTreeMap<String, ProtocolStatus>,
    /// Memory of clients that the fabric knows.
    pub registrations: RegistrationStatus,
}

/// The registration cache of a node: memory that its clients registered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegistrationStatus {
    /// Registered now.
    pub regions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Transfers that found their memory registered.
    pub hits: u64,
    /// Transfers for which it was registered.
    pub misses: u64,
    /// Registrations that were ended for others.
    pub evicted: u64,
}

/// What a protocol moved from and to other nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProtocolStatus {
    /// Objects fetched.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Objects that this node was asked for and answered. What peers read without asking is not among them.
    pub served: u64,
    /// Their bytes.
    pub served_bytes: u64,
    /// Bytes that this node's CPU copied for it, on either side: in user space, or in system calls with
    /// "socket".
    pub copied_bytes: u64,
    /// Registrations of memory made for it, on either side.
    pub registrations: u64,
    /// One-sided reads made for it.
    pub reads: u64,
}

/// The cluster as a node sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// Membership epoch.
    pub epoch: u64,
    /// "embedded" where it is in this node, else the address of the coordinator or the URL of etcd.
    pub coordinator: String,
    /// "embedded" in a node, or "etcd".
    pub coordinator_kind: String,
    /// Host and port of every server it may be asked at.
    pub coordinator_endpoints: Vec<String>,
    /// Whether the coordinator answers.
    pub coordinator_connected: bool,
    /// How often it did not any more.
    pub coordinator_losses: u64,
    /// Whether this node is no member at the moment, and so serves no other node.
    pub fenced: bool,
    /// How often that came about.
    pub fencings: u64,
    /// Whether keepers of the directory are being told what is here.
    pub healing: bool,
    /// The nodes of this epoch, this one included.
    pub members: Vec<MemberStatus>,
    /// Objects this node's directory shards know.
    pub directory_entries: u64,
    /// Replicas that are kept, and how lost ones come back.
    pub copies: CopiesStatus,
}

/// Objects of which several replicas are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CopiesStatus {
    /// Objects of this node's directory shards that fewer nodes hold than are to, as far as they can.
    pub short: u64,
    /// Replicas ordered by this node to bring objects back to their number, so far.
    pub ordered: u64,
    /// Of these, made.
    pub restored: u64,
    /// Of these, that could not be made; they are tried again.
    pub failed: u64,
    /// Replicas being made on this node now for that purpose.
    pub restoring: u64,
    /// Bytes of replicas made on this node for that purpose, so far.
    pub restored_bytes: u64,
    /// Objects deleted because their time was over, so far.
    pub expired: u64,
    /// Ids claimed for objects that are being created here.
    pub claims: u64,
}

/// A node of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberStatus {
    /// Node id, 32 hexadecimal digits.
    pub node: String,
    /// Grows at every start of the node.
    pub incarnation: u64,
    /// Host and port of its control connection.
    pub listen: String,
    /// Whether it is the node that answers.
    pub this: bool,
    /// Whether the fabric connection to it is in use.
    pub connected: bool,
    /// libfabric's name of the provider by which it is reached.
    pub provider: String,
    /// Why that is not a better one; empty if it is the best that either node has.
    pub reason: String,
    /// Whether nothing is sent to it or taken from it, because it sent many frames that no node sends.
    pub cut_off: bool,
}
