//! The Plasmon node daemon: it owns a host's memory, its network and the state of its objects.
//!
//! [`Node::start`] binds and opens everything, [`Node::run`] runs the node until it stops. One thread, the
//! engine's, owns all state. The modules are rooms on floors; a room imports from the floors below it:
//!
//! | floor | rooms |
//! |---|---|
//! | 18 | [`engine`]: the loop, and the composition of all rooms |
//! | 17 | [`files`]: volumes of files; [`sync`]: locks and barriers |
//! | 16 | [`call`]: functions that processes run for others |
//! | 15 | [`region`]: named memory that processes of many hosts read and write |
//! | 14 | [`guard`]: the leases that clients see; [`sessions`]: clients and their requests |
//! | 13 | [`placement`]: replication, moves, drains, objects whose time is over |
//! | 12 | [`transfer`]: an object's way from one arena to another |
//! | 11 | [`directory`]: which nodes hold which objects, and which keeper decides about each |
//! | 10 | [`service`]: the trait of a subsystem, and the way of frames, requests and events to it |
//! | 9 | [`membership`]: the members, and the keepers of shards |
//! | 8 | [`control`]: the thread that joins the cluster, takes signals and serves metrics |
//! | 7 | [`store`]: the objects of this node and the room for them |
//! | 6 | [`net`]: frames between nodes and the fabrics that carry them |
//! | 5 | [`object`]: replicas, pins, the table; [`qos`]: which work goes before which towards other nodes |
//! | 4 | [`kernel`]: the parts that every room shares: time, waking, tasks, numbers |
//! | 3 | [`config`]: the settings |
//! | 2 | [`spill`]: sealed objects on disk; [`numa`]: the CPUs and the memory node of the daemon |
//! | 1 | [`memory`]: the arena, its segments and their writers |
//!
//! `docs/design.md` follows one object through the rooms.
#![deny(unsafe_code)]

mod call;
mod config;
mod control;
mod directory;
mod engine;
mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guard;
mod kernel;
mod membership;
#[allow(unsafe_code)]
pub mod memory;
mod net;
mod numa;
mod object;
mod placement;
mod qos;
mod region;
mod service;
mod sessions;
#[doc(hidden)]
pub mod simulation;
pub mod spill;
mod store;
mod sync;
mod transfer;

pub use config::{Config, DEFAULT_LEASE, EtcdConfig, Grants, PushBy, Qos, TlsConfig, Users};
pub use control::ControlError;
pub use control::guard::GuardError;
pub use control::secret::SecretError;
pub use engine::{Node, NodeError};
pub use numa::{Numa, NumaError};
pub use plasmon_fabric::Library;
pub use service::Overlap;
pub use sessions::listener::ListenError;
