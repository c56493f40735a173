//! The end-to-end harness: real `plasmon serve` daemons, and processes that use and abuse them.
//!
//! A [`Cluster`] is some daemons. As root each is a host: a network namespace with its own address,
//! joined to the others by a virtual switch. Otherwise, or with `PLASMON_E2E_NETNS=0`, they are
//! processes on loopback. Sockets, logs and everything else of a cluster lie in one temporary folder.
//! Dropping the cluster, also by a panic, ends its processes and removes namespaces and folder; the logs
//! are shown first when a test fails. What a killed run left behind is removed by the next.
//!
//! Nothing here sleeps to let something happen: [`eventually`] looks until it has.
#![forbid(unsafe_code)]

mod chance;
mod clocks;
mod cluster;
mod daemon;
mod etcd;
pub mod guest;
mod network;
mod pattern;
mod wait;

pub use chance::Chance;
pub use cluster::{Builder, Cluster};
pub use daemon::{Daemon, Refused, SECRET, SECRET_FILE, binary, secret_file};
pub use etcd::{Etcd, EtcdOptions};
pub use network::own_namespaces;
pub use pattern::Pattern;
pub use wait::{PATIENCE, eventually, until};
