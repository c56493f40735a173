//! Decisions on hosts that are trees of files, and a real binding on this one.

use std::os::unix::fs::symlink;
use std::thread;

use super::*;

fn host(nodes: &[(&str, &str)]) -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    let online: Vec<_> = nodes.iter().map(|(number, _)| *number).collect();
    write(sys.path(), "devices/system/node/online", &online.join(","));
    for (number, cpus) in nodes {
        write(sys.path(), &format!("devices/system/node/node{number}/cpulist"), cpus);
    }
    sys
}

fn write(sys: &Path, path: &str, text: &str) {
    let path = sys.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

/// A link as the kernel makes them: relative, from a folder below `class/<kind>`.
fn link(sys: &Path, from: &str, device: &str) {
    let from = sys.join(from);
    fs::create_dir_all(from.parent().unwrap()).unwrap();
    symlink(sys.join(device), from).unwrap();
}

fn decided(choice: Numa, sys: &Path, interface: &str) -> Result<(Option<u32>, String), String> {
    let topology = Topology::read(sys);
    let decision = decide(choice, &topology, interface, card_node(sys, interface));
    decision.map(|(node, reason)| (node.map(|node| node.number), reason)).map_err(|error| error.to_string())
}

#[test]
fn one_memory_node_is_nothing_to_bind_to() {
    let sys = host(&[("0", "0-1")]);
    write(sys.path(), "class/net/eth0/device/numa_node", "0");
    for choice in [Numa::Auto, Numa::Node(0)] {
        let (node, reason) = decided(choice, sys.path(), "eth0").unwrap();
        assert_eq!(node, None);
        assert!(reason.contains("one memory node"), "{reason}");
    }
    let error = decided(Numa::Node(1), sys.path(), "eth0").unwrap_err();
    assert!(error.contains("no memory node 1") && error.contains("0 (CPUs 0-1)"), "{error}");
    // A kernel that was built without NUMA.
    let bare = tempfile::tempdir().unwrap();
    assert_eq!(decided(Numa::Auto, bare.path(), "eth0").unwrap().0, None);
}

#[test]
fn the_card_decides_where_there_are_two() {
    let sys = host(&[("0", "0-3,8-11"), ("1", "4-7,12-15")]);
    let sys = sys.path();
    write(sys, "class/net/near/device/numa_node", "0");
    write(sys, "class/net/far/device/numa_node", "1");
    write(sys, "class/net/silent/device/numa_node", "-1");
    write(sys, "class/net/gone/device/numa_node", "3");
    write(sys, "class/infiniband/mlx5_0/device/numa_node", "1");
    fs::create_dir_all(sys.join("class/net/lo")).unwrap();
    let auto = |interface| decided(Numa::Auto, sys, interface).unwrap();
    assert_eq!(auto("near"), (Some(0), "near is there".to_owned()));
    assert_eq!(auto("far").0, Some(1));
    assert_eq!(auto("mlx5_0").0, Some(1));
    assert_eq!(auto("mlx5_0-xrc").0, Some(1));
    for silent in ["silent", "gone", "lo", "nothing"] {
        let (node, reason) = auto(silent);
        assert!(node.is_none() && reason.contains(silent), "{silent}: {reason}");
    }
    assert_eq!(decided(Numa::Node(0), sys, "far").unwrap().0, Some(0));
    assert_eq!(decided(Numa::Off, sys, "far").unwrap().0, None);
    let error = decided(Numa::Node(7), sys, "far").unwrap_err();
    assert!(error.contains("0 (CPUs 0-3,8-11), 1 (CPUs 4-7,12-15)"), "{error}");
}

#[test]
fn what_lies_below_a_card_is_asked() {
    let sys = host(&[("0", "0"), ("1", "1"), ("2", "")]);
    let sys = sys.path();
    // A virtio card, whose PCI device tells.
    write(sys, "devices/pci0/0000:00:03.0/numa_node", "1");
    fs::create_dir_all(sys.join("devices/pci0/0000:00:03.0/virtio0/net/eth0")).unwrap();
    symlink("../../../virtio0", sys.join("devices/pci0/0000:00:03.0/virtio0/net/eth0/device")).unwrap();
    link(sys, "class/net/eth0", "devices/pci0/0000:00:03.0/virtio0/net/eth0");
    assert_eq!(card_node(sys, "eth0"), Some(1));
    // RDMA in software, on top of it.
    write(sys, "class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "eth0");
    assert_eq!(card_node(sys, "rxe0"), Some(1));
    write(sys, "class/infiniband/rxe1/ports/1/gid_attrs/ndevs/0", "");
    assert_eq!(card_node(sys, "rxe1"), None);
    // A bond of the virtio card alone, one with another card at the same memory node, one with a card
    // elsewhere.
    write(sys, "class/net/same/device/numa_node", "1");
    write(sys, "class/net/other/device/numa_node", "0");
    for (bond, below, node) in [
        ("bond0", ["eth0"].as_slice(), Some(1)),
        ("bond1", &["eth0", "same"], Some(1)),
        ("bond2", &["eth0", "other"], None),
    ] {
        for card in below {
            link(sys, &format!("class/net/{bond}/lower_{card}"), &format!("class/net/{card}"));
        }
        assert_eq!(card_node(sys, bond), node, "{bond}");
    }
}

#[test]
fn lists_are_read_and_written() {
    for text in ["", "0", "0-3", "0-3,8,10-11"] {
        assert_eq!(list(&numbers(text).unwrap()), text);
    }
    assert_eq!(numbers("3-1"), Some(Vec::new()));
    for text in ["a", "0-99999999999", "1,b"] {
        assert_eq!(numbers(text), None, "{text}");
    }
}

/// Runs on a thread of its own, because a binding lasts as long as the thread that was bound.
#[test]
fn a_thread_is_bound_to_the_cpus_of_a_node() {
    let bound = thread::spawn(|| {
        let usable = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| usable.is_set(*cpu)).unwrap();
        let own = MemoryNode { number: 0, cpus: vec![first] };
        let cpus = match apply(&own) {
            Ok(cpus) => cpus,
            // A container that does not allow the binding says so, and what to do.
            Err(error) => return assert!(error.to_string().contains("--numa off"), "{error}"),
        };
        assert_eq!(cpus, first.to_string());
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        // A thread that a bound thread starts inherits the CPUs.
        let inherited = thread::spawn(|| sched_getaffinity(None).unwrap().count()).join().unwrap();
        assert_eq!(inherited, 1);
        let far = MemoryNode { number: 0, cpus: vec![first + 1] };
        let error = apply(&far).unwrap_err().to_string();
        assert!(error.contains(&format!("may use CPUs {first}")) && error.contains("--numa off"), "{error}");
        let nowhere = MemoryNode { number: 1023, cpus: Vec::new() };
        assert!(matches!(apply(&nowhere), Err(NumaError::Refused { node: 1023, .. })));
    });
    bound.join().unwrap();
}
