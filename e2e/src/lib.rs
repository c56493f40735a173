//! The end-to-end harness: real `plasmon serve` daemons, and processes that use and abuse them.
//!
//! A [`Cluster`] is a number of daemons. As root each daemon is a host: a network namespace with its own
//! address, joined to the others by a virtual switch. Otherwise, or with `PLASMON_E2E_NETNS=0`, the daemons
//! are processes on loopback. Sockets, logs and all other files of a cluster lie in one temporary folder.
//! Dropping the cluster, also by a panic, ends its processes and removes namespaces and folder. When a test
//! fails, the logs are shown first. The next run removes the remains of a run that was killed.
//!
//! The harness never sleeps to let something happen: [`eventually`] looks until a condition holds.
#![forbid(unsafe_code)]

mod chance;
mod clocks;
mod cluster;
mod daemon;
mod etcd;
pub mod guest;
mod hang;
pub use plasmon_linear as linear;
mod network;
mod pattern;
pub mod wait;

pub use chance::Chance;
pub use cluster::{Builder, Cluster};
pub use daemon::{Daemon, Refused, SECRET, SECRET_FILE, binary, secret_file};
pub use etcd::{Etcd, EtcdOptions};
pub use network::own_namespaces;
pub use pattern::Pattern;
pub use wait::{PATIENCE, eventually, until};
