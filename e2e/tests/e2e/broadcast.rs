//! Tests of broadcasts: an object is brought to many nodes at the same time.

use std::thread;

use plasmon::{CreateOptions, ErrorKind, NodeId, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};

use crate::support::{MIB, get, here, kind, put};

const BIG: usize = 160 * MIB;

#[test]
fn every_node_has_it_then() {
    let cluster = Cluster::builder().nodes(5).start();
    for (seed, len) in [(1, 10), (2, 100_000), (3, 40 * MIB + 5)] {
        let id = put(&cluster.client(2), Pattern(seed), len);
        // Asked of a node that has it, and of one that has not.
        let spread =
            cluster.client(2 * (seed as usize % 2)).broadcast(id, &[], Some(PATIENCE)).expect("broadcast");
        assert_eq!((spread.holders.len(), spread.failed.len()), (5, 0), "{len} bytes");
        for node in 0..5 {
            let object =
                here(&cluster.client(node), id).unwrap_or_else(|| panic!("node {node}, {len} bytes"));
            Pattern(seed).check(object.data());
        }
        cluster.client(0).delete(&[id]).expect("delete");
    }
    let relayed: u64 = (0..5)
        .filter_map(|node| {
            cluster.status(node).transfer.protocols.get("relayed-read").map(|count| count.fetched)
        })
        .sum();
    assert!(relayed >= 4, "{relayed}");
}

#[test]
fn some_nodes_have_it_then() {
    let cluster = Cluster::builder().nodes(4).start();
    let nodes = [0, 1, 2, 3].map(|node| cluster.client(node).node());
    let id = put(&cluster.client(0), Pattern(1), 8 * MIB);
    let client = cluster.client(0);
    let spread = client.broadcast(id, &[nodes[1], nodes[3]], Some(PATIENCE)).expect("broadcast");
    let mut holders = spread.holders;
    holders.sort();
    let mut wanted = vec![nodes[1].to_string(), nodes[3].to_string()];
    wanted.sort();
    assert_eq!(holders, wanted);
    assert!(here(&cluster.client(2), id).is_none());
    assert_eq!(kind(client.broadcast(id, &[NodeId::random()], None)), ErrorKind::Invalid);
    assert_eq!(kind(client.broadcast(ObjectId::random(), &[], None)), ErrorKind::NotFound);
    // A node that is full does not have it, and the others do.
    put(&cluster.client(2), Pattern(2), 60 * MIB);
    let spread = client.broadcast(id, &[], Some(PATIENCE)).expect("broadcast");
    assert_eq!(spread.holders.len(), 3);
    assert_eq!(spread.failed.len(), 1);
    assert_eq!(spread.failed[0].node, nodes[2].to_string());
    assert!(spread.failed[0].reason.contains("full"), "{}", spread.failed[0].reason);
}

#[test]
fn gets_join_a_broadcast() {
    let cluster = Cluster::builder().nodes(4).memory("320MiB").start();
    let id = put(&cluster.client(0), Pattern(1), BIG);
    let getting: Vec<_> = (1..4)
        .map(|node| {
            let client = cluster.client(node);
            thread::spawn(move || Pattern(1).check(get(&client, id).data()))
        })
        .collect();
    let spread = cluster.client(0).broadcast(id, &[], Some(PATIENCE)).expect("broadcast");
    assert_eq!(spread.holders.len(), 4, "{spread:?}");
    getting.into_iter().for_each(|one| one.join().expect("all bytes are right"));
}

/// Broadcasts a big object of node 0 and kills a node in the middle: the one at `place` among the others,
/// which pass the object on in this order. Returns whether the broadcast was in the middle then.
fn kill_in_the_middle(place: usize) -> bool {
    let mut cluster = Cluster::builder().nodes(5).memory("256MiB").start();
    let mut row: Vec<_> = (1..5).collect();
    row.sort_by_key(|node| cluster.client(*node).node());
    let (victim, id) = (row[place], put(&cluster.client(0), Pattern(1), BIG));
    let client = cluster.client(0);
    let broadcasting = thread::spawn(move || client.broadcast(id, &[], Some(PATIENCE)));
    eventually("it has memory for it", || {
        broadcasting.is_finished() || cluster.status(victim).memory.used >= BIG as u64
    });
    cluster.kill(victim);
    let spread = broadcasting.join().expect("no panic").expect("broadcast");
    let survivors: Vec<_> = row.into_iter().filter(|node| *node != victim).collect();
    for node in &survivors {
        let object = here(&cluster.client(*node), id).unwrap_or_else(|| panic!("node {node}: {spread:?}"));
        Pattern(1).check(object.data());
    }
    for node in survivors {
        eventually("nothing is left of it", || {
            let status = cluster.status(node);
            status.transfer.fetching == 0 && status.memory.used < 2 * BIG as u64
        });
    }
    spread.failed.len() == 1
}

#[test]
fn an_inner_node_dies_in_the_middle() {
    assert!((0..5).any(|_| kill_in_the_middle(1)), "it was never in the middle");
}

#[test]
fn the_first_node_dies_in_the_middle() {
    assert!((0..5).any(|_| kill_in_the_middle(0)), "it was never in the middle");
}

#[test]
fn the_source_dies_in_the_middle() {
    let mut cluster = Cluster::builder().nodes(4).memory("256MiB").start();
    let id = put(&cluster.client(1), Pattern(1), BIG);
    let client = cluster.client(0);
    let broadcasting = thread::spawn(move || client.broadcast(id, &[], Some(PATIENCE)));
    eventually("it is on its way", || {
        broadcasting.is_finished()
            || [0, 2, 3].iter().any(|node| cluster.status(*node).memory.used >= BIG as u64)
    });
    cluster.kill(1);
    let spread = broadcasting.join().expect("no panic");
    for node in [0, 2, 3] {
        eventually("the death is known", || cluster.status(node).cluster.members.len() == 3);
    }
    // A node that has the object has all of it.
    let mut holders = 0;
    for node in [0, 2, 3] {
        if let Some(object) = here(&cluster.client(node), id) {
            Pattern(1).check(object.data());
            holders += 1;
        }
    }
    if let Ok(spread) = spread {
        assert!(holders >= spread.holders.len().saturating_sub(1), "{spread:?}");
    }
    cluster.client(0).delete(&[id]).expect("delete");
    for node in [0, 2, 3] {
        eventually("its memory is free", || cluster.status(node).memory.used < BIG as u64);
    }
    // The cluster goes on.
    let name = CreateOptions { name: Some("after".into()), ..CreateOptions::default() };
    cluster.client(2).put(ObjectId::from_name("after"), b"all", b"", &name).expect("put");
    assert_eq!(get(&cluster.client(3), ObjectId::from_name("after")).data(), b"all");
}
