//! A safe, small wrapper of libfabric: reliable-datagram endpoints, registered memory, messages and
//! one-sided reads and writes. The crate knows nothing of objects.
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
//! - Operations of one endpoint towards one peer are handed to the provider in the order in which
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
//! | `completion` | reads the completion queue: finishes operations, makes events |
//! | `closing` | closes connections and endpoints, replaces broken connections |
//! | `posting` | hands operations to the provider, or queues them in order |
//! | `state` | holds counters, operations, endpoints and retired memory of a domain |
//! | `table` | owns the operations and their contexts until they are completed |
//! | `peer` | holds the peers of an endpoint and their queues |
//! | `operation` | defines operations and the futures that callers watch |
//! | `event` | defines what a poll reports besides finished operations |
//! | `memory` | defines registered memory and bounds-checked slices of it |
//! | `provider` | finds and chooses a provider |
//! | `handle` | owns an object of libfabric, and closes it |
//! | `error` | defines the error type |
//! | `names` | names operations, endpoints, peers and connections |
//! | `environment` | sets libfabric's parameters, lists RDMA devices |
//! | `ffi` | holds the generated bindings |

mod closing;
mod completion;
mod domain;
mod endpoint;
mod environment;
mod error;
mod event;
mod ffi;
mod handle;
mod memory;
mod names;
mod operation;
mod peer;
mod posting;
mod provider;
mod state;
mod table;

pub use domain::Domain;
pub use endpoint::Endpoint;
pub use environment::{devices, link};
pub use error::FabricError;
pub use event::Event;
pub use memory::{Access, Memory, Region, RemoteRegion, Slice};
pub use names::{EndpointId, OpKind, Peer};
pub use operation::Op;
pub use provider::{Provider, candidates, choose, second, version};
pub use state::Stats;
