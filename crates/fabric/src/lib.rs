//! A safe, small interface to networks: reliable-datagram endpoints, registered memory, messages and
//! one-sided reads and writes. The crate knows nothing of objects.
//!
//! # Transports
//! Below the public types are two transports. `libfabric` is for real networks; [`choose`] and [`candidates`]
//! find its providers. `memory_network` joins hosts of one process and one thread, deterministically by a
//! seed and with faults at will; [`MemoryNetwork::provider`] gives a host its provider. Both take operations
//! in order and report completions; all else is the same code for both: the table of operations, their
//! futures and queues, the peers, the checks and the statistics.
//!
//! # Threads
//! Everything belongs to one [`Domain`] and is `!Send`: the thread that opened the domain owns it. libfabric
//! is asked for *manual* progress, so nothing moves, not even a peer's one-sided read of our memory,
//! unless that thread calls [`Domain::poll`]. Between polls it may sleep on
//! [`Domain::wait_descriptor`], if [`Domain::try_wait`] says so and for no longer than
//! [`Domain::sleep_limit`].
//!
//! # Operations
//! An operation is posted (or queued, when the provider says "try again") the moment it is made. The caller
//! gets an [`Op`], a future that any executor can await; `poll` wakes it. The table of operations
//! owns the buffer, its owner and the provider's context until the provider is finished with them,
//! whether or not anyone still holds the future.
//!
//! # Invariants
//! - Memory is only ever addressed through a [`Region`], whose [`Memory`] outlives every operation
//!   and the registration. Closing an endpoint ends its operations before their buffers are released.
//! - Operations of one endpoint towards one peer are handed to the transport in the order in which
//!   they were made.
//! - Nothing received from a peer is used as an index, length or pointer without a check.
//!
//! # Order of the modules
//! A module imports only modules that stand below it in this table, so no files import each other in a
//! circle. A type names only types below it; one call goes up, from a dropped [`Region`] to its domain,
//! through a trait of `memory`.
//!
//! | module | what it does |
//! |---|---|
//! | `endpoint` | opens endpoints; makes and checks operations |
//! | `domain` | opens a provider, registers memory, polls |
//! | `link` | is an opened provider of either transport |
//! | `libfabric::{link, queue}` | opens providers, reads the completion queue |
//! | `completion` | finishes operations, makes events |
//! | `closing` | closes connections and endpoints, replaces broken connections |
//! | `posting` | hands operations to the transport, or queues them in order |
//! | `state` | holds counters, operations, endpoints and retired memory of a domain |
//! | `port` | is an endpoint of either transport |
//! | `libfabric::port`, `memory_network::{host, port}` | are the endpoints of each transport |
//! | `libfabric::search` | finds and chooses a provider |
//! | `provider` | describes a provider |
//! | `table` | owns the operations and their contexts until they are completed |
//! | `peer` | holds the peers of an endpoint and their queues |
//! | `operation` | defines operations and the futures that callers watch |
//! | `event` | defines what a poll reports besides finished operations |
//! | `memory` | defines registered memory and bounds-checked slices of it |
//! | `registration` | is a registration at either transport |
//! | `libfabric::{registration, info, environment}` | registers memory, describes providers |
//! | `memory_network::{registration, network, ...}` | is the network in memory |
//! | `libfabric::library` | loads libfabric |
//! | `libfabric::handle` | owns an object of libfabric, and closes it |
//! | `error` | defines the error type |
//! | `access` | defines rights of peers to a region |
//! | `names` | names operations, endpoints, peers and connections |
//! | `libfabric::ffi` | holds the generated bindings |

mod access;
mod closing;
mod completion;
mod domain;
mod endpoint;
mod error;
mod event;
mod libfabric;
mod link;
mod memory;
mod memory_network;
mod names;
mod operation;
mod peer;
mod port;
mod posting;
mod provider;
mod registration;
mod state;
mod table;

pub use access::{Access, RemoteRegion};
pub use domain::Domain;
pub use endpoint::Endpoint;
pub use error::FabricError;
pub use event::Event;
pub use libfabric::environment::{devices, link};
pub use libfabric::{Library, candidates, choose, library, load, second, version};
pub use memory::{Memory, Region, Slice};
pub use memory_network::{Faults, MemoryNetwork};
pub use names::{EndpointId, OpKind, Peer};
pub use operation::{Completion, Op};
pub use provider::Provider;
pub use state::Stats;
