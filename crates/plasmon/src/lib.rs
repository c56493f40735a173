//! The client of a Plasmon node: what an application links.
//!
//! [`Client`] talks to the node daemon of its host over a unix socket and maps the daemon's memory,
//! so that an object is read where it lies. The crate holds no network code and does not link
//! libfabric; the daemon (`plasmon-node`) depends on it for the names both sides share: ids, errors,
//! the state report and the frames of the [`wire`].
#![deny(unsafe_code)]

// The models are of what it shares with the daemon.
#[cfg(not(loom))]
mod client;
pub mod drain;
mod error;
mod id;
pub mod overview;
mod rights;
pub mod shared;
pub mod status;
pub mod text;
mod timeout;
pub mod transfer;
pub mod wire;

#[cfg(not(loom))]
pub use client::{
    Client, CreateOptions, Creation, CreationMemory, Object, Pending, Scratch, Socket, Subscription, Turn,
};
pub use error::{Error, ErrorKind, Result};
pub use id::{NodeId, ObjectId, ParseIdError};
pub use rights::{Rights, not_allowed};
pub use timeout::timeout;
pub use transfer::{Protocol, Spread, Unreached};
pub use wire::{DeleteOutcome, Event, ObjectInfo, ObjectState, Presence};
