//! Tests of joining: nodes find each other.

use std::collections::BTreeSet;
use std::io::{ErrorKind as IoError, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use plasmon_e2e::{Cluster, Pattern, eventually, own_namespaces, until};

use crate::support::{get, put};

#[test]
fn a_node_alone_is_its_own_cluster() {
    let cluster = Cluster::builder().start();
    let status = cluster.status(0);
    assert_eq!(status.pid, cluster.daemon(0).pid());
    assert_eq!(status.listen, cluster.daemon(0).listen());
    assert_eq!(status.cluster.members.len(), 1);
    assert!(status.cluster.members[0].this);
    assert!(!status.fabric.provider.is_empty() && !status.fabric.reason.is_empty(), "{:?}", status.fabric);
}

#[test]
fn two_nodes_agree_on_who_is_there() {
    agree(2);
}

#[test]
fn three_nodes_agree_on_who_is_there() {
    agree(3);
}

fn agree(nodes: usize) {
    let cluster = Cluster::builder().nodes(nodes).start();
    let reports: Vec<_> = (0..nodes).map(|node| cluster.status(node)).collect();
    let own: BTreeSet<_> =
        reports.iter().map(|report| (report.node.clone(), report.listen.clone())).collect();
    assert_eq!(own.len(), nodes, "nodes share an id or an address: {own:?}");
    for report in &reports {
        assert_eq!(report.cluster.epoch, reports[0].cluster.epoch);
        let seen = report.cluster.members.iter().map(|member| (member.node.clone(), member.listen.clone()));
        assert_eq!(seen.collect::<BTreeSet<_>>(), own);
        let this = report.cluster.members.iter().filter(|member| member.this).map(|member| &member.node);
        assert_eq!(this.collect::<Vec<_>>(), [&report.node]);
    }
}

#[test]
fn nodes_are_connected_before_anybody_wants_something() {
    const NODES: usize = 3;
    let cluster = Cluster::builder().nodes(NODES).start();
    eventually("all are connected, and each has read from each other", || {
        let reports: Vec<_> = (0..NODES).map(|node| cluster.status(node)).collect();
        let connected = reports.iter().flat_map(|report| &report.cluster.members).all(|it| it.connected);
        connected && reports.iter().all(|report| report.fabric.reads == NODES as u64 - 1)
    });
}

#[test]
fn a_node_that_joins_late_finds_what_was_there() {
    let mut cluster = Cluster::builder().nodes(2).start();
    let objects: Vec<_> = (0..20)
        .map(|number| {
            let len = 1000 * number as usize;
            (put(&cluster.client(number as usize % 2), Pattern(number), len), Pattern(number), len)
        })
        .collect();
    let late = cluster.add_node();
    let client = cluster.client(late);
    for (id, pattern, len) in objects {
        let object = get(&client, id);
        assert_eq!(object.data().len(), len);
        pattern.check(object.data());
    }
}

/// Whether the other end keeps open a connection on which it has sent nothing.
fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("it is connected");
    matches!(stream.read(&mut [0]), Err(error) if error.kind() == IoError::WouldBlock)
}

#[test]
fn a_host_that_takes_all_connections_and_says_nothing_keeps_no_node_from_joining() {
    const SILENT: usize = 300;
    if !own_namespaces() {
        eprintln!("All nodes have one address: not tested.");
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (taken, over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut silent = Vec::new();
            while !over.load(Ordering::Relaxed) {
                silent.retain_mut(is_open);
                while silent.len() < SILENT && !over.load(Ordering::Relaxed) {
                    silent.push(cluster.connect(0));
                    if silent.len() == SILENT {
                        taken.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
        until("all places are taken", || taken.load(Ordering::Relaxed).then_some(()));
        let mut command = cluster.serve_at(1, &cluster.node_folder(1).join("other.sock"));
        command.args(["--listen", &format!("{}:0", cluster.address(1))]);
        command.args(["--join", &cluster.listen(0).to_string()]);
        let joined = cluster.launch(1, command);
        over.store(true, Ordering::Relaxed);
        joined.unwrap_or_else(|refused| panic!("it did not join: {}", refused.log));
    });
}
