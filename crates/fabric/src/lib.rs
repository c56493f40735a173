//! A safe, small wrapper of libfabric: reliable-datagram endpoints, registered memory, messages and
//! one-sided reads and writes. It knows nothing of objects.
//!
//! # Threads
//! Everything hangs off one [`Domain`] and is `!Send`: the thread that opened it owns it. libfabric
//! is asked for *manual* progress, so nothing moves, not even a peer's one-sided read of our memory,
//! unless that thread calls [`Domain::poll`]. Between polls it may sleep on
//! [`Domain::wait_descriptor`], if [`Domain::try_wait`] says so and for no longer than
//! [`Domain::sleep_limit`].
//!
//! # Operations
//! An operation is posted (or queued, when the provider says "try again") the moment it is made and
//! returns an [`Op`], a future that any executor can await; `poll` wakes it. The table of operations
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
//! # Reading order
//! [`provider`](Provider) chooses, [`domain`](Domain) drives, [`endpoint`](Endpoint) posts,
//! `posting` queues and
//! retries, `operation` remembers, `completion` translates what libfabric
//! reports, `closing` ends things.

mod closing;
mod completion;
mod domain;
mod endpoint;
mod environment;
mod error;
mod event;
mod ffi;
mod memory;
mod operation;
mod peer;
mod posting;
mod provider;

pub use domain::{Domain, Stats};
pub use endpoint::{Endpoint, EndpointId};
pub use environment::{devices, link};
pub use error::FabricError;
pub use event::Event;
pub use memory::{Access, Memory, Region, RemoteRegion, Slice};
pub use operation::{Op, OpKind};
pub use peer::Peer;
pub use provider::{Provider, candidates, choose, second};

/// The version of the libfabric found at run time: (major, minor).
pub fn version() -> (u32, u32) {
    // SAFETY: takes no arguments and only reads a constant.
    let version = unsafe { ffi::fi_version() };
    (version >> 16, version & 0xffff)
}
