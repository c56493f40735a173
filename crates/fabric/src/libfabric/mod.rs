//! The transport over libfabric: real networks, of this host and between hosts.
//!
//! Owns the open objects of libfabric. Engine thread only. Invariants: nothing outside of this folder calls
//! libfabric except `error`, for its texts, and nothing knows its types except `table`, for its contexts; a
//! context that a provider reports is one of the table of operations of the same domain.

pub(crate) mod environment;
pub(crate) mod ffi;
mod handle;
mod info;
mod library;
mod link;
mod port;
mod queue;
mod registration;
mod search;

pub(crate) use info::Info;
pub(crate) use library::describe;
pub use library::{Library, library, load, version};
pub(crate) use link::Link;
pub(crate) use port::Port;
pub(crate) use registration::Registration;
pub use search::{candidates, choose, second};
