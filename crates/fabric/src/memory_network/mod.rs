//! The transport in memory: hosts of one process whose network is a schedule of deliveries.
//!
//! Owns all hosts of a [`MemoryNetwork`], on the one thread that made it. Nothing here reads a clock, draws
//! from the system or iterates in a random order, so that events follow from the seed and from the
//! calls alone. Invariants: memory is copied in [`MemoryNetwork::advance`] and when something is closed, cut
//! or posted, never between; a buffer is touched only while its operation is in the table of its domain, a
//! region only while it is registered.
//!
//! # Order of the modules
//! | module | what it does |
//! |---|---|
//! | `host` | opens domains and endpoints, and hands out reports |
//! | `port` | hands operations of an endpoint to the network |
//! | `registration` | registers memory |
//! | `network` | is the network as its owner sees it: time, partitions, cuts, deaths |
//! | `breaking` | breaks connections, closes endpoints, heals partitions |
//! | `delivery` | delivers events that are due |
//! | `wires` | holds all that is under way, and the schedule |
//! | `faults` | holds the faults that are asked for, and draws from the seed |

mod breaking;
mod delivery;
mod faults;
mod host;
mod network;
mod port;
mod registration;
mod wires;

pub use faults::Faults;
pub(crate) use host::Link;
pub use network::MemoryNetwork;
pub(crate) use port::{Port, address_fault};
pub(crate) use registration::Registration;
pub(crate) use wires::Report;

/// Name of the provider of a memory network that was made without a name.
const NAME: &str = "memory";
/// Number and version of the wire protocol.
pub(crate) const PROTOCOL: (u32, u32) = (0x706c_6d6e, 1);
/// Length in bytes of the longest message or one-sided operation.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 30;
/// Length in bytes of the longest message whose send may be completed before the message has arrived.
pub(crate) const EAGER_BYTES: usize = 16 << 10;
