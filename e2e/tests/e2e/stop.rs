//! Stopping a node leaves nothing behind.

use std::collections::BTreeSet;
use std::fs;

use plasmon::{CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually};
use rustix::process::Signal;

use crate::support::{MIB, get, kind, put};

#[test]
fn sigterm_ends_a_node_cleanly() {
    ends_cleanly(Signal::TERM);
}

#[test]
fn sigint_ends_a_node_cleanly() {
    ends_cleanly(Signal::INT);
}

fn ends_cleanly(signal: Signal) {
    let shared_before = shared_memory();
    let mut cluster = Cluster::builder().nodes(2).start();
    // In the middle of life: sealed, pinned, unsealed, fetched.
    let clients = [cluster.client(0), cluster.client(1)];
    let id = put(&clients[0], Pattern(1), MIB);
    let held = get(&clients[1], id);
    let unsealed =
        clients[0].create(ObjectId::random(), 1000, b"", &CreateOptions::default()).expect("create");

    let pids = [0, 1].map(|node| cluster.daemon(node).pid());
    for pid in pids {
        let files = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the daemon lives");
        assert!(!files.contains("/dev/shm/"), "a file that would outlive a killed daemon:\n{files}");
    }
    // The one that joined first: the coordinator sees it leave.
    let status = cluster.terminate(1, signal);
    assert!(status.success(), "{status}:\n{}", cluster.log(1));
    eventually("the other node saw it leave", || cluster.status(0).cluster.members.len() == 1);
    let status = cluster.terminate(0, signal);
    assert!(status.success(), "{status}:\n{}", cluster.log(0));

    for node in 0..2 {
        let left: Vec<_> = fs::read_dir(cluster.node_folder(node)).expect("folder").flatten().collect();
        assert!(left.is_empty(), "node {node} left {left:?}");
    }
    // Other programs may use /dev/shm meanwhile.
    let ours =
        |name: &&String| name.contains("plasmon") || pids.iter().any(|pid| name.contains(&pid.to_string()));
    let shared_after = shared_memory();
    let left: Vec<_> = shared_after.difference(&shared_before).filter(ours).collect();
    assert!(left.is_empty(), "left in /dev/shm: {left:?}");

    drop(unsealed);
    assert_eq!(kind(clients[0].status()), ErrorKind::Disconnected);
    Pattern(1).check(held.data());
}

fn shared_memory() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
