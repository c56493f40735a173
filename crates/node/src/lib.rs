//! The Plasmon node daemon: it owns a host's memory, its network and the truth about its objects.
//!
//! [`Node::start`] binds and opens everything, [`Node::run`] is the life of the node. One thread,
//! the engine's, owns all state. The modules are rooms on floors; a room imports from the floors below it:
//!
//! | floor | rooms |
//! |---|---|
//! | 15 | [`engine`]: the loop, and the composition of all rooms |
//! | 14 | [`sessions`]: clients and what they ask |
//! | 13 | [`placement`]: copies, moves, a node that leaves, objects whose time is over |
//! | 12 | [`transfer`]: an object's way from one arena to another |
//! | 11 | [`directory`]: who knows where objects are, and who decides about them |
//! | 10 | [`service`]: what a subsystem is, and how frames, requests and events reach it |
//! | 9 | [`membership`]: who the members are, and which of them keeps which shard |
//! | 8 | [`control`]: the thread that joins the cluster, takes signals and serves metrics |
//! | 7 | [`store`]: the objects of this node and the room for them |
//! | 6 | [`net`]: frames between nodes and the fabrics that carry them |
//! | 5 | [`object`]: replicas, pins, the table |
//! | 4 | [`kernel`]: what every room shares: time, waking, tasks, numbers |
//! | 3 | [`config`]: the settings |
//! | 2 | [`spill`]: sealed objects on disk; [`numa`]: where on the host all this runs and lies |
//! | 1 | [`memory`]: the arena, its segments and who may write them |
//!
//! `docs/design.md` tells the same story along the life of one object.
#![deny(unsafe_code)]

mod config;
mod control;
mod directory;
mod engine;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod kernel;
mod membership;
#[allow(unsafe_code)]
pub mod memory;
mod net;
mod numa;
mod object;
mod placement;
mod service;
mod sessions;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod spill;
mod store;
mod transfer;

pub use config::{Config, DEFAULT_LEASE, DEFAULT_LISTEN, EtcdConfig, TlsConfig};
pub use control::ControlError;
pub use control::guard::GuardError;
pub use control::secret::SecretError;
pub use engine::{Node, NodeError};
pub use numa::{Numa, NumaError};
pub use service::Overlap;
pub use sessions::listener::ListenError;
