//! Providers: the fabrics that can be opened, and their properties.
//!
//! Owns nothing but the description of each [`Provider`]. A `Provider` stays on the thread that made it.
//! [`MemoryNetwork::provider`] is here, because a provider holds its network and the network does not know
//! the type. Invariant: the traits of a provider are found out once, when it is made, so that asking for a
//! trait costs an operation nothing.

use std::fmt;
use std::rc::Rc;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::error::FabricError;
use crate::libfabric::{Info, version};
use crate::memory_network::{self, MemoryNetwork};

/// Fabric that can be opened: a provider of libfabric on one of its interfaces, or a host of a
/// [`MemoryNetwork`].
#[derive(Clone)]
pub struct Provider {
    origin: Origin,
    traits: Traits,
    name: String,
    fabric: String,
    domain: String,
    reason: String,
}

/// Place where a provider comes from.
#[derive(Clone)]
pub(crate) enum Origin {
    /// Provider of libfabric, with libfabric's description of it.
    Libfabric(Rc<Info>),
    /// Host of a memory network, with the host's number.
    Memory(MemoryNetwork, u32),
}

/// Properties of a provider.
#[derive(Clone, Copy)]
struct Traits {
    protocol: (u32, u32),
    max_message: usize,
    inject_size: usize,
    rdma: bool,
    reads_in_order: bool,
    carries_immediates: bool,
    layered: bool,
    uses_local_regions: bool,
    must_read_to_the_end: bool,
    must_split_writes: bool,
    breaks_connections: bool,
    survives_cut_writes: bool,
}

impl Traits {
    /// Returns the properties of the provider of libfabric called `name`.
    fn of_libfabric(info: &Info, name: &str) -> Self {
        let (endpoint, domain) = (info.endpoint(), info.domain());
        let soft = ["tcp", "udp", "sockets", "net", "shm"];
        Traits {
            protocol: (endpoint.protocol, endpoint.protocol_version),
            max_message: endpoint.max_msg_size,
            inject_size: info.transmit().inject_size,
            rdma: !soft.iter().any(|soft| name.starts_with(soft)),
            reads_in_order: name.starts_with("tcp"),
            carries_immediates: domain.cq_data_size >= size_of::<u32>() && !name.starts_with("verbs"),
            layered: name.ends_with(";ofi_rxm"),
            uses_local_regions: info.uses_local_regions(),
            must_read_to_the_end: name.starts_with("tcp") && version() < (1, 18),
            must_split_writes: name == "tcp;ofi_rxm",
            breaks_connections: name == "verbs;ofi_rxm",
            survives_cut_writes: name == "tcp;ofi_rxm",
        }
    }

    /// Returns the properties of the hosts of memory networks.
    const fn of_memory() -> Self {
        Traits {
            protocol: memory_network::PROTOCOL,
            max_message: memory_network::MAX_MESSAGE_BYTES,
            inject_size: memory_network::EAGER_BYTES,
            rdma: false,
            reads_in_order: true,
            carries_immediates: true,
            layered: false,
            uses_local_regions: false,
            must_read_to_the_end: false,
            must_split_writes: false,
            breaks_connections: false,
            survives_cut_writes: true,
        }
    }
}

impl Provider {
    /// Makes a provider from libfabric's description of it.
    pub(crate) fn of_libfabric(info: Info, names: (String, String, String), reason: String) -> Self {
        let (name, fabric, domain) = names;
        let traits = Traits::of_libfabric(&info, &name);
        Provider { origin: Origin::Libfabric(Rc::new(info)), traits, name, fabric, domain, reason }
    }

    /// Makes the provider of the host `host` of `network`.
    fn of_memory(network: MemoryNetwork, host: u32) -> Self {
        let name = network.name().to_owned();
        Provider {
            origin: Origin::Memory(network, host),
            traits: Traits::of_memory(),
            fabric: name.clone(),
            name,
            domain: format!("host {host}"),
            reason: "a network in memory was asked for".to_owned(),
        }
    }

    /// Returns the name of the provider, such as `tcp;ofi_rxm` of libfabric, or `memory`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the network that the provider is on.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// Returns the name of the provider's device or interface.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the memory network that the provider is on. `None` for providers of libfabric.
    pub fn memory_network(&self) -> Option<&MemoryNetwork> {
        match &self.origin {
            Origin::Memory(network, _) => Some(network),
            Origin::Libfabric(_) => None,
        }
    }

    /// Returns the number of the wire protocol. Two nodes can only talk if their numbers are equal.
    pub fn protocol(&self) -> u32 {
        self.traits.protocol.0
    }

    /// Returns the version of the wire protocol. Two nodes can only talk if their versions are equal.
    pub fn protocol_version(&self) -> u32 {
        self.traits.protocol.1
    }

    /// Returns the reason why the provider was chosen, for logs and people.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the network card moves one-sided data without this host's processor.
    pub fn is_rdma(&self) -> bool {
        self.traits.rdma
    }

    /// Whether reads by one endpoint from one peer take effect in the order in which they were posted: a read
    /// sees memory as it is when the read before it is done, or later. A processor that serves reads takes
    /// them from a connection one by one. A network card may fetch several at a time.
    pub fn reads_in_order(&self) -> bool {
        self.traits.reads_in_order
    }

    /// Whether a write may carry an immediate value; see [`Endpoint::write`](crate::Endpoint::write).
    ///
    /// Writes over verbs may not: with a shared receive queue, libfabric (1.17 to 2.6 at least) takes the
    /// arrival of the value for the arrival of a message, and delivers whatever lay in the buffer.
    pub fn carries_immediates(&self) -> bool {
        self.traits.carries_immediates
    }

    /// Whether it is known that a host whose memory a peer writes to survives the death of the peer in the
    /// middle of a write without an immediate value. The conformance suite kills such writers.
    pub fn survives_cut_writes(&self) -> bool {
        self.traits.survives_cut_writes
    }

    /// Returns the length of the longest message or one-sided operation, in bytes.
    pub(crate) fn max_message(&self) -> usize {
        self.traits.max_message
    }

    /// Returns the length in bytes up to which a message is sent without the delay of a completion.
    pub(crate) fn inject_size(&self) -> usize {
        self.traits.inject_size
    }

    /// Whether messages go through ofi_rxm, which builds messages from connections and one-sided reads.
    pub(crate) fn is_layered(&self) -> bool {
        self.traits.layered
    }

    /// Whether operations of this process need the registration of the memory that they use.
    pub(crate) fn uses_local_regions(&self) -> bool {
        self.traits.uses_local_regions
    }

    /// Whether the provider crashes when a connection is closed during a read: see the module `closing`.
    pub(crate) fn must_read_to_the_end(&self) -> bool {
        self.traits.must_read_to_the_end
    }

    /// Whether a write with data must not carry its immediate value. The *target* of such a write crashes if
    /// it closes the connection with part of the data received: ofi_rxm (1.17 to 2.6 at least) takes the null
    /// context of the write for one of its own. An empty write cannot be received in part, so that the value
    /// follows the data in an empty write.
    pub(crate) fn must_split_writes(&self) -> bool {
        self.traits.must_split_writes
    }

    /// Whether a connection is useless after a failed operation and yet stays open. An RDMA device stops the
    /// queue pair for good, and ofi_rxm is not told (libfabric before 1.18.1; see its pull request 8858).
    pub(crate) fn breaks_connections(&self) -> bool {
        self.traits.breaks_connections
    }

    /// Returns the error of a libfabric function for which an RDMA device needs memory:
    /// [`FabricError::NoMemlock`] if the limit of locked memory may be the cause. `code` is the function's
    /// result.
    pub(crate) fn memory_error(&self, call: &str, code: i32) -> FabricError {
        match memlock_limit() {
            Some(limit) if code == -libc::ENOMEM && self.is_rdma() => {
                FabricError::NoMemlock { call: call.to_owned(), provider: self.name.clone(), limit }
            }
            _ => FabricError::call(call, code),
        }
    }

    /// Returns the place where the provider comes from.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl MemoryNetwork {
    /// Returns the provider of one host of the network. Hosts are told apart by their numbers. Opening a
    /// provider of a host twice gives two domains on the host, which share its partitions and its death.
    pub fn provider(&self, host: u32) -> Provider {
        Provider::of_memory(self.clone(), host)
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("fabric", &self.fabric)
            .field("domain", &self.domain)
            .field("reason", &self.reason)
            .finish()
    }
}

/// Returns the number of bytes that this process may lock. `None` if there is no limit.
fn memlock_limit() -> Option<u64> {
    let exempt = capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    getrlimit(Resource::Memlock).current.filter(|_| !exempt)
}
