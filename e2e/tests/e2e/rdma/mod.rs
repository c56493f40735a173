//! Tests of Plasmon on an RDMA device: verbs, one-sided reads that no CPU serves, and their failures.
//!
//! These tests run in a guest, which `make test-rdma` boots (see `plasmon_e2e::guest`): [`alone`] and the
//! modules beside it in one, with all nodes on one device; [`pair`], [`pair_calls`] and [`link`] in two that
//! are joined by a cable; [`mixed`] in two of which one has no device.

mod alone;
mod doctor;
mod half;
mod limits;
mod link;
mod mixed;
mod pair;
mod pair_calls;
mod protocols;
mod regions;

use std::env;
use std::fs;
use std::process::Command;

use plasmon_e2e::{Cluster, binary};
use serde_json::Value;

use crate::support::MIB;

/// Sizes in bytes for every way that an object can take: inside a message, in one read, in several.
const SIZES: [usize; 6] = [0, 1, 4095, 64 << 10, MIB + 1, 4 * MIB];

/// Name of the provider that the nodes have to use.
const VERBS: &str = "verbs;ofi_rxm";
/// Name of the provider that they use if that is impossible.
const TCP: &str = "tcp;ofi_rxm";

/// Folder of the kernel for the device that `e2e/guest/init` makes.
const DEVICE: &str = "/sys/class/infiniband/rxe0";

/// Starts nodes on the RDMA device.
fn cluster(nodes: usize) -> Cluster {
    cluster_with(nodes, &[])
}

/// Starts nodes on the RDMA device, with further arguments.
fn cluster_with(nodes: usize, args: &[&str]) -> Cluster {
    assert!(env::var_os("PLASMON_GUEST").is_some(), "this takes an RDMA device: make test-rdma");
    let cluster = Cluster::builder().nodes(nodes).memory("96MiB").args(args).start();
    for node in 0..nodes {
        let status = command(&cluster, node, &["status", "--json"]);
        let status: Value = serde_json::from_slice(&status).expect("it prints JSON");
        assert_eq!(status["fabric"]["provider"], VERBS, "node {node}: {status:#}");
    }
    cluster
}

/// Runs `plasmon` on a node and returns its output.
fn command(cluster: &Cluster, node: usize, words: &[&str]) -> Vec<u8> {
    let mut command = Command::new(binary());
    command.args(words).arg("--socket").arg(cluster.socket(node)).current_dir(cluster.folder());
    let output = command.output().expect("plasmon runs");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Whether tests may take long (`make test-all`).
fn long() -> bool {
    env::var_os("PLASMON_E2E_LONG").is_some()
}

/// Number of packets that the device has sent.
fn packets() -> u64 {
    let path = format!("{DEVICE}/ports/1/hw_counters/sent_pkts");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.trim().parse().expect("it is a number")
}
