//! Client library of a Plasmon node. Applications link this crate. Any number of threads may use a client at
//! a time, and a call blocks the thread that makes it and no other.
//!
//! [`Client`] talks to the node daemon of its host over a unix socket and maps the daemon's memory, so that
//! objects are read in place. The crate holds no network code and does not link libfabric. The daemon
//! (`plasmon-node`) depends on this crate for the types that both sides share: ids, errors, the status report
//! and the frames of the [`wire`].
//!
//! ```no_run
//! let client = plasmon::Client::connect(plasmon::Socket::find())?;
//! let id = plasmon::ObjectId::from_name("greeting");
//! client.put(id, b"hello", &[], &plasmon::CreateOptions::default())?;
//! let object = client.get(&[id], None)?.remove(0)?;
//! assert_eq!(object.data(), b"hello");
//! # Ok::<(), plasmon::Error>(())
//! ```
#![deny(unsafe_code)]

// The loom models test the memory that client and daemon share (`shared`). They are built without `client`
// and `files`.
mod class;
#[cfg(not(loom))]
mod client;
pub mod digest;
pub mod drain;
mod error;
#[cfg(not(loom))]
pub mod files;
mod filter;
mod id;
pub mod overview;
pub mod region;
mod rights;
pub mod service;
pub mod shared;
pub mod status;
pub mod sync;
pub mod text;
mod timeout;
pub mod transfer;
mod value;
mod version;
pub mod wire;

pub use class::Class;
#[cfg(not(loom))]
pub use client::{
    Client, ClusterList, CreateOptions, Creation, CreationMemory, Object, Pending, Pinged, Scratch, Socket,
    Subscription, Turn, find_among, find_nodes,
};
pub use error::{Error, ErrorKind, Result};
pub use filter::{Filter, Prepared};
pub use id::{NodeId, ObjectId, ParseIdError};
pub use region::{Principal, RegionEvent, RegionInfo, RegionOptions, RegionState};
#[cfg(not(loom))]
pub use region::{Region, RegionEvents};
pub use rights::{Rights, not_allowed};
#[cfg(not(loom))]
pub use service::{Server, Service};
#[cfg(not(loom))]
pub use shared::WaitStats;
#[cfg(not(loom))]
pub use sync::{Barrier, Guard, Lock};
pub use timeout::timeout;
pub use transfer::{Protocol, Spread, Unreached, UsedProtocol, Verify};
pub use version::Version;
pub use wire::{DeleteOutcome, Event, ObjectInfo, ObjectState, Presence};

/// The Rust code of the README, which is compiled as a test of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
