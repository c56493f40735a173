//! Status report of a node, as `plasmon status --json` prints it.
//!
//! The report travels as JSON. A newer daemon may add fields, and an older client ignores them. Owns no
//! state. Any thread.

mod files;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use files::{FileKinds, FilesStatus};

/// Status report of a node. Sizes are in bytes. Counters start at 0 when the node starts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Node id, 32 hexadecimal digits.
    pub node: String,
    /// Incarnation of the node: a number that grows at every start.
    pub incarnation: u64,
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Time since the daemon started, in seconds.
    pub uptime_seconds: f64,
    /// Path of the node's unix socket.
    pub socket: String,
    /// Host and port of the node's control connection.
    pub listen: String,
    /// Name of the host.
    pub host: String,
    /// Reason why the node does not serve as it should, such as a coordinator that does not answer. Empty if
    /// the node is healthy.
    pub unfit: String,
    /// Number of clients that are connected now.
    pub clients: u64,
    /// Memory of the node's arena.
    pub memory: MemoryStatus,
    /// Memory node (NUMA) of the host that the node is bound to.
    pub numa: NumaStatus,
    /// Objects on the node.
    pub objects: ObjectsStatus,
    /// Gets and puts of the node's clients.
    pub calls: CallsStatus,
    /// Calls of the node's clients by slot.
    pub slots: SlotsStatus,
    /// Regions that live on the node.
    pub regions: RegionsStatus,
    /// Services, and calls of their functions.
    pub functions: FunctionsStatus,
    /// Locks and barriers.
    pub locks: LocksStatus,
    /// Volumes of files.
    pub files: FilesStatus,
    /// Objects that the node has written to disk.
    pub spill: SpillStatus,
    /// Clients of the node, at most 1,000 of them.
    pub connections: Vec<ConnectionStatus>,
    /// Network of the node.
    pub fabric: FabricStatus,
    /// Objects moved between this node and others.
    pub transfer: TransferStatus,
    /// Work by its class.
    pub classes: ClassesStatus,
    /// Cluster as the node sees it.
    pub cluster: ClusterStatus,
    /// Counters of services that have no other part in the report, by name, such as `echo.answers`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, u64>,
}

/// Work of a node by its class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassesStatus {
    /// Way in which classes are kept apart when they use the network: "off", "separate" or "priority".
    pub qos: String,
    /// Smallest number of bytes a second to which work of low class is limited now towards any node. 0 if it
    /// is not limited.
    pub low_limit: u64,
    /// Work of high class.
    pub high: ClassStatus,
    /// Work of normal class.
    pub normal: ClassStatus,
    /// Work of low class.
    pub low: ClassStatus,
}

/// Work of one class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassStatus {
    /// Number of requests of this node's clients so far.
    pub operations: u64,
    /// Bytes sent to other nodes in frames so far.
    pub sent_bytes: u64,
    /// Bytes read from other nodes, or received in frames, so far.
    pub received_bytes: u64,
    /// Number of reads that waited for their turn so far.
    pub waits: u64,
    /// Time that reads waited so far, in seconds.
    pub waited_seconds: f64,
}

/// Memory of a node's arena. Sizes are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    /// Size of the arena in bytes.
    pub capacity: u64,
    /// Bytes of the arena that objects occupy.
    pub used: u64,
    /// Bytes of the arena that are free.
    pub free: u64,
    /// Size in bytes of the largest object that fits without eviction.
    pub largest_free: u64,
    /// Bytes of the arena that are pre-faulted so far.
    pub prefaulted: u64,
    /// Kind of pages that the arena is made of: "huge" for the host's pool of huge pages, else "base".
    pub pages: String,
    /// Bytes of the arena in huge pages, from the pool or transparent.
    pub huge: u64,
    /// Size of a segment in bytes.
    pub segment_size: u64,
    /// Number of segments in the arena.
    pub segments: u32,
    /// Size in bytes of the object tables that clients map.
    pub tables: u64,
    /// Number of creations that wait for room.
    pub waiting: u64,
    /// Bytes of objects that were moved to join free memory.
    pub compacted_bytes: u64,
}

/// Memory node (NUMA) of the host that a node is bound to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumaStatus {
    /// Number of memory nodes of the host.
    pub nodes: u32,
    /// Memory node that threads and memory are bound to. `None` if they are not bound.
    pub node: Option<u32>,
    /// Memory node of the network interface, if it is known.
    pub card: Option<u32>,
    /// CPUs that threads may use, as in "0-3,8". Empty if threads are not bound.
    pub cpus: String,
    /// Reason for the binding, or for its absence.
    pub reason: String,
    /// Pre-faulted bytes of the arena that lie on other memory nodes nevertheless.
    pub elsewhere: u64,
}

/// Objects that a node has written to disk. All fields are empty without a spill directory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpillStatus {
    /// Path of the spill directory.
    pub directory: String,
    /// Number of objects on disk, including those that are in memory too.
    pub objects: u64,
    /// Size in bytes of the objects on disk.
    pub bytes: u64,
    /// Number of spill files.
    pub files: u64,
    /// Bytes of disk that the spill files occupy.
    pub disk_bytes: u64,
    /// Bytes written to spill files.
    pub written_bytes: u64,
    /// Bytes read back from spill files.
    pub restored_bytes: u64,
    /// Number of writes to and reads from spill files that failed.
    pub failures: u64,
    /// Number of damaged records that were found at the start and do not tell which object they belong to.
    /// Such an object is unknown. An object whose damaged record tells its id fails with `Damaged` when it is
    /// read.
    pub unreadable: u64,
    /// Reason why the last write to disk failed. Empty if it succeeded.
    pub failing: String,
}

/// Connection of a client to a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionStatus {
    /// Name that the client gave itself.
    pub name: String,
    /// Process id of the client.
    pub pid: u32,
    /// User id of the client.
    pub uid: u32,
    /// Number of pins that the client holds. An object that it pinned twice counts twice.
    pub pins: u64,
    /// Size in bytes of the objects that the client has created, in memory or on disk.
    pub bytes: u64,
    /// Limit of `bytes`. 0 if the client has no limit of its own.
    pub quota: u64,
}

/// Objects on a node, by the role of the node's replica and by state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectsStatus {
    /// Number of sealed primary replicas.
    pub primary: u64,
    /// Size in bytes of the sealed primary replicas.
    pub primary_bytes: u64,
    /// Number of sealed kept replicas.
    pub kept: u64,
    /// Size in bytes of the sealed kept replicas.
    pub kept_bytes: u64,
    /// Number of sealed cached replicas.
    pub cached: u64,
    /// Size in bytes of the sealed cached replicas.
    pub cached_bytes: u64,
    /// Number of objects that clients are creating.
    pub unsealed: u64,
    /// Number of objects with at least one pin.
    pub pinned: u64,
    /// Size in bytes of the objects with at least one pin.
    pub pinned_bytes: u64,
    /// Number of deleted objects whose memory is still pinned.
    pub doomed: u64,
    /// Size in bytes of the deleted objects whose memory is still pinned.
    pub doomed_bytes: u64,
    /// Number of objects that were evicted from memory to make room.
    pub evicted: u64,
}

/// Gets and puts of a node's clients, including clients that have gone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallsStatus {
    /// Number of objects that a get found in the node's memory.
    pub get_hits: u64,
    /// Number of objects that a get did not find in the node's memory: it waited, fetched or failed.
    pub get_misses: u64,
    /// Number of objects that clients have made.
    pub puts: u64,
    /// Size in bytes of the objects that clients have made.
    pub put_bytes: u64,
    /// Numbers of the gets that clients made without the daemon, by their time. Clients time one such get in
    /// 1,024.
    pub timed_gets: Vec<TimedGets>,
    /// Time in nanoseconds that all of `timed_gets` took.
    pub timed_gets_ns: u64,
}

/// Calls of a node's clients by slot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotsStatus {
    /// Number of clients that have slots now.
    pub clients: u64,
    /// Number of calls whose results are still to come.
    pub under_way: u64,
    /// Number of calls so far, including the calls of clients that have gone.
    pub calls: u64,
}

/// Regions that live on a node, and the operations that it carried out on them. What processes do to regions
/// that they have mapped is not counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegionsStatus {
    /// Number of regions.
    pub regions: u64,
    /// Bytes of memory that regions take, including regions that were freed and are still in use.
    pub bytes: u64,
    /// Limit of `bytes`.
    pub limit: u64,
    /// Largest number of regions of one user.
    pub user_limit: u64,
    /// Number of regions that lie in several pieces of memory.
    pub in_pieces: u64,
    /// Number of regions that their owners' processes were to map and cannot, because no memory that they may
    /// map was free.
    pub crowded_out: u64,
    /// Number of reads so far.
    pub reads: u64,
    /// Number of writes so far.
    pub writes: u64,
    /// Number of atomic operations so far.
    pub atomics: u64,
    /// Number of times that bytes were filled with a value so far.
    pub fills: u64,
    /// Number of waits for a change so far.
    pub waits: u64,
    /// Number of notices so far that a word was changed in mapped memory.
    pub notifies: u64,
    /// Number of calls that wait for a change now.
    pub waiting: u64,
    /// Number of handles that clients of the node have now, to regions of this node and of others.
    pub handles: u64,
    /// Number of mappings of other nodes' regions that the node has now.
    pub mappings: u64,
}

impl RegionsStatus {
    /// Number of operations on regions so far, of all kinds.
    pub fn operations(&self) -> u64 {
        self.reads + self.writes + self.atomics + self.fills + self.waits + self.notifies
    }
}

/// Services of a node: the names that the node keeps, the calls that its processes serve, and the calls of
/// its clients.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FunctionsStatus {
    /// Number of names of services that the node keeps.
    pub names: u64,
    /// Number of ports at which processes of the node serve.
    pub ports: u64,
    /// Number of calls that wait at the ports now.
    pub waiting: u64,
    /// Number of calls that threads of the node's servers have now.
    pub running: u64,
    /// Number of calls of the node's clients that are under way at other nodes now.
    pub under_way: u64,
    /// Number of calls of functions that the node's clients began so far.
    pub begun: u64,
    /// Number of calls that the node's processes replied to so far.
    pub served: u64,
    /// Number of calls so far that failed in processes of the node, or whose process died.
    pub failed: u64,
    /// Number of calls and replies so far whose bytes other nodes have written to windows of this one.
    pub bodies_written: u64,
    /// Number of calls and replies so far whose bytes this node has read at other nodes.
    pub bodies_read: u64,
}

/// Locks and barriers of a node: those about which the node decides, and what its clients hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocksStatus {
    /// Number of locks about which the node decides, and that are held or waited for.
    pub names: u64,
    /// Number of locks about which the node decides whose last holder died or lost them, and that nobody
    /// wants.
    pub abandoned: u64,
    /// Number of guards that clients of the node have now.
    pub held: u64,
    /// Number of calls of the node's clients that wait for a lock now.
    pub waiting: u64,
    /// Number of guards that clients of the node were given so far.
    pub granted: u64,
    /// Number of guards of the node's clients so far that ended before they were unlocked: their lease was
    /// over, or their process died.
    pub lost: u64,
    /// Number of barriers about which the node decides.
    pub barriers: u64,
    /// Number of calls of the node's clients that wait at a barrier now.
    pub arrived: u64,
}

/// Timed gets of one class of times.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimedGets {
    /// Longest time of the class in nanoseconds. The last class has the largest number there is.
    pub most_ns: u64,
    /// Number of gets in the class.
    pub gets: u64,
}

/// Network of a node: its fabric, registered memory and operations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricStatus {
    /// libfabric's name of the node's best provider. [`MemberStatus::provider`] has the one used towards a
    /// member.
    pub provider: String,
    /// Network interface or RDMA device that the provider uses.
    pub interface: String,
    /// Reason why the provider was chosen.
    pub reason: String,
    /// Link state of the RDMA device: for example "ACTIVE" or "DOWN", or "GONE" after the device was removed.
    /// Empty without an RDMA device.
    pub link: String,
    /// Version of libfabric.
    pub libfabric: String,
    /// Path of libfabric's file.
    pub library: String,
    /// Number of registrations of memory made.
    pub registrations: u64,
    /// Number of regions of memory that are registered now.
    pub regions: u64,
    /// Bytes of memory that are registered now.
    pub registered_bytes: u64,
    /// Number of connections to each other node for one-sided reads.
    pub bulk_lanes: u64,
    /// Number of messages sent to other nodes: requests, answers, notices and small objects.
    pub messages_sent: u64,
    /// Number of messages received from other nodes.
    pub messages_received: u64,
    /// Number of messages that were sent again, since they may have been lost.
    pub messages_repeated: u64,
    /// Number of one-sided reads that this node made. Reads of this node's memory by others are not counted,
    /// because no CPU takes part in them.
    pub reads: u64,
    /// Number of operations that completed. Each completion takes this node's CPU.
    pub completions: u64,
    /// Number of operations under way now.
    pub in_flight: u64,
    /// Pools of registered blocks for messages, smallest blocks first.
    pub pools: Vec<PoolStatus>,
}

/// Pool of registered blocks of one size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolStatus {
    /// libfabric's name of the provider that the blocks are registered with.
    pub provider: String,
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// Number of blocks in the pool.
    pub blocks: u64,
    /// Number of blocks that are permanently taken for receiving.
    pub kept: u64,
    /// Number of blocks that operations use now.
    pub lent: u64,
    /// Number of times that a block was given to an operation.
    pub lent_ever: u64,
}

/// Objects moved between a node and others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferStatus {
    /// Number of objects fetched in messages.
    pub eager_fetched: u64,
    /// Size in bytes (data and metadata) of the objects fetched in messages.
    pub eager_fetched_bytes: u64,
    /// Number of objects that other nodes wrote to memory of this one.
    pub pushed_fetched: u64,
    /// Size in bytes (data and metadata) of the objects that other nodes wrote to memory of this one.
    pub pushed_fetched_bytes: u64,
    /// Number of objects fetched by one-sided reads.
    pub rendezvous_fetched: u64,
    /// Size in bytes (data and metadata) of the objects fetched by one-sided reads.
    pub rendezvous_fetched_bytes: u64,
    /// Number of objects sent in messages.
    pub eager_served: u64,
    /// Number of objects offered for one-sided reads.
    pub rendezvous_served: u64,
    /// Number of fetches under way now, including those that wait for their object to be created.
    pub fetching: u64,
    /// Number of fetches that wait for a place at their holder: a node reads few objects from one holder at a
    /// time.
    pub queued: u64,
    /// Number of failed attempts to fetch from a holder. Each was repeated at another holder or reported.
    pub fetch_failures: u64,
    /// Number of objects that were compared with the digest of their seal when they came.
    pub compared: u64,
    /// Number of objects that came with other bytes than were sealed. Each was asked for at another holder or
    /// reported.
    pub damaged: u64,
    /// Number of leases: pins that readers on other nodes hold now.
    pub leases: u64,
    /// Number of frames dropped because of a wrong token, incarnation or form, or because nobody waits for
    /// the part of an object that they carry. Data connections closed for such reasons count too.
    pub frames_dropped: u64,
    /// Bytes of objects that this daemon's CPU copied, including local puts of small objects.
    pub cpu_copied_bytes: u64,
    /// Objects moved, by the name of the [`UsedProtocol`](crate::UsedProtocol).
    pub protocols: BTreeMap<String, ProtocolStatus>,
    /// Memory of clients that is registered with the fabric.
    pub registrations: RegistrationStatus,
}

/// Registration cache of a node: memory that its clients registered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegistrationStatus {
    /// Number of regions that are registered now.
    pub regions: u64,
    /// Bytes of memory that are registered now.
    pub bytes: u64,
    /// Number of transfers whose memory was registered already.
    pub hits: u64,
    /// Number of transfers whose memory had to be registered.
    pub misses: u64,
    /// Number of registrations that were ended to make room for others.
    pub evicted: u64,
}

/// Objects that one protocol moved between a node and others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProtocolStatus {
    /// Number of objects fetched.
    pub fetched: u64,
    /// Size in bytes of the objects fetched.
    pub fetched_bytes: u64,
    /// Number of objects that this node sent or offered on request. Reads that peers make without a request
    /// are not counted.
    pub served: u64,
    /// Size in bytes of the objects that this node sent or offered on request.
    pub served_bytes: u64,
    /// Bytes that this node's CPU copied for the protocol, as sender and as receiver: in user space, or in
    /// system calls with "socket".
    pub copied_bytes: u64,
    /// Number of registrations of memory made for the protocol, as sender and as receiver.
    pub registrations: u64,
    /// Number of one-sided reads made for the protocol.
    pub reads: u64,
}

/// Cluster as one node sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// Epoch of the node's view of the members.
    pub epoch: u64,
    /// Coordinator of the cluster: "embedded" if this node runs it, else its address or the URL of etcd.
    pub coordinator: String,
    /// Kind of the coordinator: "embedded" in a node, or "etcd".
    pub coordinator_kind: String,
    /// Host and port of every server of the coordinator.
    pub coordinator_endpoints: Vec<String>,
    /// Whether the coordinator answers.
    pub coordinator_connected: bool,
    /// Number of times that the coordinator stopped answering.
    pub coordinator_losses: u64,
    /// Whether the node has lost its membership. A fenced node does not serve other nodes.
    pub fenced: bool,
    /// Number of times that the node was fenced.
    pub fencings: u64,
    /// Whether the node is telling new keepers of the directory which objects it holds.
    pub healing: bool,
    /// Members of the cluster in this epoch, including this node.
    pub members: Vec<MemberStatus>,
    /// Number of objects in the directory shards that this node keeps. Lost objects count as long as they are
    /// remembered.
    pub directory_entries: u64,
    /// Replicas that several nodes keep, and the restoring of lost ones.
    pub copies: CopiesStatus,
}

/// Objects that several nodes keep, and the restoring of their replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CopiesStatus {
    /// Number of objects in this node's directory shards that have fewer replicas than asked for, although
    /// enough nodes exist.
    pub short: u64,
    /// Number of replicas that this node ordered to restore objects to their number of replicas.
    pub ordered: u64,
    /// Number of ordered replicas that were made.
    pub restored: u64,
    /// Number of ordered replicas that could not be made. They are tried again.
    pub failed: u64,
    /// Number of replicas that this node is making now by orders that nobody waits for.
    pub restoring: u64,
    /// Size in bytes of the replicas that this node made to restore objects.
    pub restored_bytes: u64,
    /// Number of objects deleted because their time to live was over.
    pub expired: u64,
    /// Number of ids that this node has claimed for objects that are being created on it.
    pub claims: u64,
}

/// Member of a cluster, as another member sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberStatus {
    /// Node id, 32 hexadecimal digits.
    pub node: String,
    /// Incarnation of the member: a number that grows at every start.
    pub incarnation: u64,
    /// Host and port of the member's control connection.
    pub listen: String,
    /// Whether the member is the node that made this report.
    pub this: bool,
    /// Whether the fabric connection to the member is in use.
    pub connected: bool,
    /// libfabric's name of the provider that reaches the member.
    pub provider: String,
    /// Reason why no better provider is used. Empty if it is the best that either node has.
    pub reason: String,
    /// Whether this node has cut the member off, because the member sent many invalid frames. Nothing is sent
    /// to it or accepted from it.
    pub cut_off: bool,
}
