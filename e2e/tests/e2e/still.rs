//! Tests of moves beside a node that stands still: it holds up the objects that it has to do with, and no
//! others.

use plasmon::drain::DrainStep;
use plasmon::{Client, CreateOptions, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::support::{LONG_LEASE, get, put};

/// Number of objects: many more than a node has moved at a time.
const OBJECTS: u64 = 2000;

fn put_twice(client: &Client, pattern: Pattern) -> ObjectId {
    let (id, options) = (ObjectId::random(), CreateOptions { replicas: 2, ..CreateOptions::default() });
    client.put(id, &pattern.bytes(2000), b"", &options).unwrap_or_else(|error| panic!("put: {error}"));
    id
}

/// Number of replicas that these nodes have had made in place of lost ones.
fn restored(cluster: &Cluster, nodes: &[usize]) -> u64 {
    nodes.iter().map(|node| cluster.status(*node).cluster.copies.restored).sum()
}

#[test]
fn a_drain_goes_on_beside_a_node_that_stands_still() {
    let mut cluster = Cluster::builder().nodes(4).args(&LONG_LEASE).start();
    let drained = cluster.client(1).node();
    let objects: Vec<_> = (0..OBJECTS).map(|seed| put(&cluster.client(1), Pattern(seed), 2000)).collect();
    let client = cluster.client(0);
    cluster.pause(3);
    client.drain(drained, DrainStep::Begin).expect("it can be drained");
    // The stopped node is a keeper of every second object, and the others can be taken by other nodes.
    eventually("what it has nothing to do with moves", || {
        client.drain(drained, DrainStep::Look).expect("it is here").moved_objects >= OBJECTS * 3 / 10
    });
    assert_eq!(client.status().expect("status").cluster.members.len(), 4, "it is a member");
    cluster.resume(3);
    assert!(cluster.wait(1).success(), "it leaves when all have moved");
    for (id, seed) in objects.iter().zip(0..) {
        Pattern(seed).check(get(&client, *id).data());
    }
}

#[test]
fn replicas_are_made_beside_a_holder_that_stands_still() {
    let mut cluster = Cluster::builder().nodes(5).args(&LONG_LEASE).start();
    let objects: Vec<_> =
        (0..OBJECTS).map(|seed| put_twice(&cluster.client(1 + seed as usize % 2), Pattern(seed))).collect();
    let others = [0, 1, 3];
    assert_eq!(restored(&cluster, &others), 0);
    cluster.pause(2);
    cluster.kill(4);
    // A quarter of the objects was kept there. Half of these are the stopped node's. Of the other half it
    // keeps the shards of a quarter, and is the first to take a third.
    eventually("replicas of the other holder's objects are made", || {
        restored(&cluster, &others) >= OBJECTS / 25
    });
    assert_eq!(cluster.status(0).cluster.members.len(), 4, "the stopped node is a member");
    cluster.resume(2);
    eventually("all come back to their number", || {
        [0, 1, 2, 3].iter().all(|node| cluster.status(*node).cluster.copies.short == 0)
    });
    for (id, seed) in objects.iter().zip(0..) {
        Pattern(seed).check(get(&cluster.client(0), *id).data());
    }
}
