//! The Plasmon node daemon: it owns a host's memory, its network and the truth about its objects.
//!
//! [`Node::start`] binds and opens everything, [`Node::run`] is the life of the node. One thread,
//! the engine's, owns all state; read its modules in this order:
//!
//! - [`engine`]: the loop, time, client channels and what clients may ask;
//! - [`object`]: replicas, pins, the table;
//! - [`memory`]: the arena, its segments and who may write them;
//! - [`numa`]: where on the host all this runs and lies;
//! - [`spill`]: sealed objects on disk while memory is short;
//! - [`transfer`]: an object's way from one arena to another;
//! - [`cluster`]: frames between nodes, the directory, membership;
//! - [`monitor`]: metrics and health, over HTTP.
//!
//! `docs/design.md` tells the same story along the life of one object.
#![deny(unsafe_code)]

mod cluster;
mod config;
mod engine;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod index;
#[allow(unsafe_code)]
pub mod memory;
mod monitor;
mod numa;
mod object;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod spill;
mod transfer;

pub use cluster::{ControlError, GuardError, SecretError};
pub use config::{Config, DEFAULT_LEASE, DEFAULT_LISTEN, EtcdConfig, TlsConfig};
pub use engine::{ListenError, Node, NodeError};
pub use numa::{Numa, NumaError};
