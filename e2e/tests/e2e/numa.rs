//! Tests of memory nodes (NUMA): where a node runs and keeps its memory.
//!
//! Most of them need a host with two memory nodes, whose network card is at the second: `make test-rdma`
//! boots one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use plasmon::region::RegionOptions;
use plasmon_e2e::{Cluster, Pattern, Refused, binary, eventually};
use serde_json::Value;

use crate::region_pieces::{LEN, comb};
use crate::support::{MIB, get, put};

const NODES: &str = "/sys/devices/system/node";

/// Number of memory nodes of this host. A kernel without NUMA has one.
fn memory_nodes() -> usize {
    let names = fs::read_dir(NODES).into_iter().flatten().flatten();
    let numbers =
        names.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse::<u32>().ok());
    numbers.count().max(1)
}

#[test]
fn a_memory_node_that_is_not_there_is_refused_and_the_others_named() {
    let cluster = Cluster::builder().start();
    let socket = cluster.folder().join("other.sock");
    let mut command = Command::new(binary());
    command.args(["serve", "--json", "--exit-with-parent", "--memory", "16MiB", "--numa", "77"]);
    command.args(["--listen", "127.0.0.1:0"]).arg("--socket").arg(&socket);
    let Err(Refused { status, log }) = cluster.launch(0, command) else { panic!("it serves") };
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("no memory node 77") && log.contains("it has 0"), "{log}");
    assert!(!socket.exists(), "it left its socket");
}

#[test]
fn a_host_with_one_memory_node_needs_no_binding() {
    if memory_nodes() > 1 {
        eprintln!("this host has several memory nodes");
        return;
    }
    for choice in ["auto", "0", "off"] {
        let cluster = Cluster::builder().args(&["--numa", choice]).start();
        let numa = cluster.status(0).numa;
        assert_eq!((numa.nodes, numa.node, numa.elsewhere), (1, None, 0), "{choice}");
        let expected = if choice == "off" { "--numa off" } else { "the host has one memory node" };
        assert_eq!(numa.reason, expected);
        Pattern(1).check(get(&cluster.client(0), put(&cluster.client(0), Pattern(1), MIB)).data());
    }
}

/// Memory nodes that hold pages of a process's segments.
fn pages_on(pid: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/numa_maps")).expect("this kernel knows memory nodes");
    let segments = maps.lines().filter(|line| line.contains("memfd:plasmon-segment"));
    let words = segments.flat_map(|line| line.split(' '));
    let on =
        words.filter_map(|word| word.strip_prefix('N')?.split_once('=').map(|(node, _)| node.to_owned()));
    on.collect()
}

/// CPUs that each thread of a process may use, by the thread's name.
fn cpus_of_threads(pid: u32) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let thread = |path: &Path| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim().to_owned())
        };
        Some((value("Name:")?, value("Cpus_allowed_list:")?))
    };
    tasks.filter_map(|task| thread(&task.path())).collect()
}

fn assert_two_nodes() {
    assert_eq!(memory_nodes(), 2, "this takes a guest with two memory nodes: make test-rdma");
}

#[test]
#[ignore = "needs a guest with two memory nodes: make test-rdma"]
fn threads_and_memory_go_to_the_card() {
    assert_two_nodes();
    for provider in ["tcp", "verbs"] {
        let cluster = Cluster::builder()
            .memory("256MiB")
            .prefault()
            .args(&["--provider", provider, "--spill-dir", "spill", "--numa", "auto"])
            .start();
        let status = cluster.status(0);
        assert_eq!(
            (status.numa.nodes, status.numa.node, status.numa.card),
            (2, Some(1), Some(1)),
            "{provider}"
        );
        assert_eq!(status.numa.cpus, "1");
        eventually("all memory is there", || {
            let memory = cluster.status(0).memory;
            memory.prefaulted == memory.capacity
        });
        assert_eq!(cluster.status(0).numa.elsewhere, 0);
        assert_eq!(pages_on(status.pid), BTreeSet::from(["1".to_owned()]));
        let threads = cpus_of_threads(status.pid);
        assert!(threads.iter().any(|(name, _)| name == "plasmon-control"), "{threads:?}");
        assert!(threads.iter().any(|(name, _)| name == "plasmon-spill"), "{threads:?}");
        for (name, cpus) in &threads {
            // The thread `plasmon-parent` only waits for the end of the parent.
            assert!(cpus == "1" || name == "plasmon-parent", "{threads:?}");
        }
    }
}

#[test]
#[ignore = "needs a guest with two memory nodes: make test-rdma"]
fn what_a_client_touches_first_lies_there_too() {
    assert_two_nodes();
    let cluster = Cluster::builder().memory("256MiB").args(&["--no-huge-pages", "--numa", "1"]).start();
    fs::write(cluster.folder().join("in"), Pattern(3).bytes(32 * MIB)).expect("the folder is ours");
    let mut client = Command::new("taskset");
    client.args(["-c", "0"]).arg(binary()).args(["put", "in", "--name", "far"]);
    client.arg("--socket").arg(cluster.socket(0)).current_dir(cluster.folder());
    assert!(client.output().expect("taskset is there").status.success());
    assert_eq!(pages_on(cluster.status(0).pid), BTreeSet::from(["1".to_owned()]));
}

#[test]
#[ignore = "needs a guest with two memory nodes: make test-rdma"]
fn the_pieces_of_a_region_lie_there_too() {
    assert_two_nodes();
    let args = ["--no-huge-pages", "--numa", "1"];
    let cluster = Cluster::builder().memory("64MiB").args(&args).start();
    let client = cluster.client(0);
    let teeth = comb(&client);
    let region = client.create_region("r", LEN as u64, &RegionOptions::default()).expect("there is room");
    region.write(0, &Pattern(3).bytes(LEN)).expect("write");
    assert!(region.is_mapped());
    assert!(region.info().expect("it is there").pieces >= 32);
    assert_eq!(pages_on(cluster.status(0).pid), BTreeSet::from(["1".to_owned()]));
    drop(teeth);
}

#[test]
#[ignore = "needs a guest with two memory nodes: make test-rdma"]
fn a_node_away_from_its_card_is_told_so() {
    assert_two_nodes();
    let doctor = |cluster: &Cluster| {
        let mut command = Command::new(binary());
        command.args(["doctor", "--json"]).arg("--socket").arg(cluster.socket(0));
        let report: Value =
            serde_json::from_slice(&command.output().expect("it runs").stdout).expect("it prints JSON");
        let findings = report["findings"].as_array().expect("it is a list").clone();
        findings.into_iter().find(|finding| finding["topic"] == "numa").expect("it looks at it")
    };
    for (choice, node, severity) in [("0", Some(0), "advice"), ("off", None, "advice"), ("1", Some(1), "ok")]
    {
        let cluster = Cluster::builder().args(&["--provider", "tcp", "--numa", choice]).start();
        assert_eq!(cluster.status(0).numa.node, node);
        let finding = doctor(&cluster);
        assert_eq!(finding["severity"], severity, "{choice}: {finding:#}");
        let found = finding["found"].as_str().expect("it is text");
        assert!(found.contains("node0 (CPUs 0;") && found.contains("is at node1"), "{found}");
    }
}

#[test]
#[ignore = "needs a guest with two memory nodes: make test-rdma"]
fn an_arena_that_is_larger_than_its_memory_node_is_had_and_told() {
    assert_two_nodes();
    // The arena has 1,200 MiB of the 2 GiB of two memory nodes.
    let cluster = Cluster::builder().memory("1200MiB").prefault().args(&["--provider", "tcp"]).start();
    eventually("all memory is there", || {
        let memory = cluster.status(0).memory;
        memory.prefaulted == memory.capacity
    });
    let numa = cluster.status(0).numa;
    assert_eq!(numa.node, Some(1));
    assert!(numa.elsewhere >= 100 * MIB as u64, "{numa:?}");
    assert!(cluster.log(0).contains("a part of the arena lies on others"), "{}", cluster.log(0));
}

#[test]
#[ignore = "needs a guest with two memory nodes: make test-rdma"]
fn a_process_that_may_not_run_there_says_so() {
    assert_two_nodes();
    let cluster = Cluster::builder().start();
    let confined = |numa: &str| {
        let serve = cluster.serve(0);
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(serve.get_program()).args(serve.get_args());
        let socket = cluster.folder().join(format!("confined-{numa}.sock"));
        let at = command.get_args().position(|word| word == "--socket").expect("it has one");
        let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut command = Command::new("taskset");
        command.args(&words[..=at]).arg(socket).args(&words[at + 2..]);
        command.args(["--listen", &format!("{}:0", cluster.address(0)), "--numa", numa]);
        cluster.launch(0, command)
    };
    let Err(Refused { log, .. }) = confined("1") else { panic!("it serves") };
    assert!(log.contains("may use CPUs 0, and memory node 1 has 1"), "{log}");
    // Without being told to, it does with what it may use, and says so.
    let daemon = confined("auto").expect("it serves");
    assert!(daemon.log().contains("transfers will cross"), "{}", daemon.log());
}
