//! Tests of drains: other nodes keep the objects before the node leaves, and readers are not disturbed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::drain::DrainStep;
use plasmon::{Client, CreateOptions, ErrorKind, NodeId, ObjectId, ObjectState, Rights};
use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Cluster, EtcdOptions, PATIENCE, Pattern, eventually};

use crate::commands::{failure, json};
use crate::support::{LONG_LEASE, MIB, get, here, kind, put, try_put};

fn keepers(cluster: &Cluster, nodes: &[usize], id: ObjectId) -> usize {
    let keeps = |node: &&usize| {
        let rows = cluster.client(**node).list().expect("list");
        let keeping = [ObjectState::Primary, ObjectState::Kept, ObjectState::Spilled];
        rows.iter().any(|row| row.id == id && keeping.contains(&row.state))
    };
    nodes.iter().filter(keeps).count()
}

fn put_with(client: &Client, pattern: Pattern, len: usize, options: CreateOptions) -> ObjectId {
    let id = ObjectId::random();
    client.put(id, &pattern.bytes(len), b"", &options).unwrap_or_else(|error| panic!("put: {error}"));
    id
}

fn left(cluster: &Cluster, client: &Client, node: NodeId) -> bool {
    let members = client.status().expect("status").cluster.members;
    assert!(members.len() <= cluster.nodes());
    members.iter().all(|member| member.node != node.to_string())
}

#[test]
fn everything_is_elsewhere_before_the_node_leaves() {
    let mut cluster = Cluster::builder().nodes(3).args(&["--spill-dir", "spill"]).start();
    let (drained, node) = (cluster.client(1), cluster.client(1).node());
    let mut objects: Vec<(ObjectId, u64, usize)> = Vec::new();
    for seed in 0..300 {
        objects.push((put(&drained, Pattern(seed), 2000), seed, 2000));
    }
    // More than memory holds: some are on disk.
    for seed in 300..310 {
        objects.push((put(&drained, Pattern(seed), 9 * MIB), seed, 9 * MIB));
    }
    let private = CreateOptions { rights: Rights::Private, ..CreateOptions::default() };
    objects.push((put_with(&drained, Pattern(310), 5000, private), 310, 5000));
    let twice = CreateOptions { replicas: 2, ..CreateOptions::default() };
    let double: Vec<_> =
        (311..321).map(|seed| put_with(&drained, Pattern(seed), 3000, twice.clone())).collect();
    let other: Vec<_> =
        (321..331).map(|seed| put_with(&cluster.client(2), Pattern(seed), 3000, twice.clone())).collect();
    objects.extend(double.iter().chain(&other).zip(311..).map(|(id, seed)| (*id, seed, 3000)));
    let held = get(&drained, objects[0].0);
    drop(drained);

    let over = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        let readers = [0, 2].map(|from| {
            let (cluster, objects, over) = (&cluster, &objects, &over);
            scope.spawn(move || {
                let client = cluster.client(from);
                let mut rounds = 0;
                while !over.load(Ordering::Relaxed) || rounds == 0 {
                    for (id, seed, len) in objects {
                        let object = get(&client, *id);
                        assert_eq!(object.data().len(), *len);
                        Pattern(*seed).check(object.data());
                    }
                    client.evict(u64::MAX).expect("evict");
                    rounds += 1;
                }
            })
        });
        let report = json(&cluster, 0, &["drain", &node.to_string()]);
        over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().expect("every get found it"));
        report
    });
    assert_eq!(
        (&report["finished"], &report["objects"], &report["bytes"]),
        (&true.into(), &0.into(), &0.into())
    );
    assert!(report["moved_objects"].as_u64() >= Some(321), "{report}");
    assert!(cluster.wait(1).success(), "it ends as one that was told to");
    assert!(left(&cluster, &cluster.client(0), node));
    for (id, seed, _) in &objects {
        Pattern(*seed).check(get(&cluster.client(0), *id).data());
        assert!(keepers(&cluster, &[0, 2], *id) >= 1, "seed {seed}");
    }
    for id in double.iter().chain(&other) {
        eventually("as many keep it as are to", || keepers(&cluster, &[0, 2], *id) == 2);
    }
    // The mapping of a held object outlives the node.
    Pattern(0).check(held.data());
    // No object that has gone elsewhere comes back from the disk of the node.
    cluster.start_again(1, &[]);
    assert_eq!(cluster.client(1).list().expect("list"), []);
    assert_eq!(cluster.status(1).spill.objects, 0);
}

#[test]
fn every_node_is_asked_until_one_has_room() {
    let mut cluster = Cluster::builder().nodes(7).start();
    let (client, node) = (cluster.client(1), cluster.client(1).node());
    let objects: Vec<_> = (0..6).map(|seed| put(&client, Pattern(seed), 9 * MIB)).collect();
    for full in [0, 2, 3, 4, 5] {
        put(&cluster.client(full), Pattern(100), 60 * MIB);
    }
    json(&cluster, 0, &["drain", &node.to_string()]);
    assert!(cluster.wait(1).success());
    for (seed, id) in objects.iter().enumerate() {
        Pattern(seed as u64).check(here(&cluster.client(6), *id).expect("it has room").data());
    }
}

#[test]
fn the_last_copy_is_waited_for_although_it_may_be_dropped() {
    let mut cluster = Cluster::builder().nodes(4).start();
    let objects: Vec<_> = (0..20).map(|seed| put(&cluster.client(1), Pattern(seed), 20_000)).collect();
    for (seed, id) in objects.iter().enumerate() {
        Pattern(seed as u64).check(get(&cluster.client(2), *id).data());
    }
    for id in &objects {
        eventually("both are known", || cluster.client(0).locations(*id).expect("locations").len() == 2);
    }
    let node = cluster.client(2).node();
    cluster.kill(1);
    json(&cluster, 0, &["drain", &node.to_string()]);
    assert!(cluster.wait(2).success());
    for (seed, id) in objects.iter().enumerate() {
        Pattern(seed as u64).check(get(&cluster.client(3), *id).data());
    }
}

#[test]
fn what_nobody_has_room_for_keeps_the_node() {
    let mut cluster = Cluster::builder().nodes(2).start();
    let (client, node) = (cluster.client(1), cluster.client(1).node());
    let filling = put(&cluster.client(0), Pattern(1), 50 * MIB);
    let (large, small) = (put(&client, Pattern(2), 30 * MIB), put(&client, Pattern(3), MIB));

    eventually("all that there is room for has moved, and the reason is told why the rest has not", || {
        let (code, message) = failure(&cluster, 0, &["drain", &node.to_string(), "--timeout", "1"]);
        assert_eq!(code, 4, "{message}");
        assert!(message.contains("is not drained yet"), "{message}");
        // The reason is that of a round, and what the next has met first comes a moment later.
        message.contains("1 objects (30.0 MiB) left") && message.contains("the store is full")
    });
    eventually("the small one has moved", || here(&client, small).is_none());

    // The draining node takes nothing new. Objects that it holds can be read, and through it those of others.
    assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(4), MIB)), ErrorKind::Disconnected);
    assert_eq!(
        kind(client.put(ObjectId::random(), b"x", b"", &CreateOptions::default())),
        ErrorKind::Disconnected
    );
    assert_eq!(kind(cluster.client(0).migrate(filling, node, Some(PATIENCE))), ErrorKind::Disconnected);
    for (id, seed) in [(large, 2), (small, 3)] {
        Pattern(seed).check(get(&client, id).data());
    }
    assert!(client.status().expect("status").unfit.contains("drained"));

    json(&cluster, 1, &["drain", "--call-off"]);
    assert_eq!(client.status().expect("status").unfit, "");
    let kept = put(&client, Pattern(5), MIB);
    let_pass(Duration::from_millis(1500), "a drain that went on would have looked several times");
    assert!(here(&client, kept).is_some(), "it was called off");

    client.drain(node, DrainStep::Begin).expect("it can be drained");
    client.delete(&[filling]).expect("delete");
    eventually("there is room", || left(&cluster, &cluster.client(0), node));
    assert!(cluster.wait(1).success());
    for (id, seed) in [(large, 2), (small, 3), (kept, 5)] {
        Pattern(seed).check(here(&cluster.client(0), id).expect("it is here").data());
    }
}

#[test]
fn what_is_being_written_is_waited_for() {
    let cluster = Cluster::builder().nodes(2).start();
    let (client, node) = (cluster.client(1), cluster.client(1).node());
    let (id, given_up) = (ObjectId::random(), ObjectId::random());
    let options = CreateOptions::default();
    let mut creation = client.create(id, 3 * MIB as u64, b"", &options).expect("create");
    let other = client.create(given_up, MIB as u64, b"", &options).expect("create");
    client.drain(node, DrainStep::Begin).expect("it can be drained");
    let_pass(Duration::from_millis(1500), "a drain that did not wait for writers would be over");
    let status = client.drain(node, DrainStep::Look).expect("it is here");
    assert_eq!((status.unsealed, status.finished), (2, false), "{status:?}");
    Pattern(1).fill(creation.as_mut_slice());
    creation.seal().expect("what was begun can be sealed");
    drop(other);
    eventually("it leaves", || left(&cluster, &cluster.client(0), node));
    Pattern(1).check(here(&cluster.client(0), id).expect("it has moved").data());
}

#[test]
fn what_is_to_replace_an_object_is_waited_for() {
    let cluster = Cluster::builder().nodes(3).args(&LONG_LEASE).start();
    let (client, node) = (cluster.client(1), cluster.client(1).node());
    let options = CreateOptions { replace: true, ..CreateOptions::default() };
    let ids = [(); 3].map(|()| put(&cluster.client(2), Pattern(1), 100));
    let begun = ids.map(|id| client.create(id, 3 * MIB as u64, b"", &options).expect("create"));
    client.drain(node, DrainStep::Begin).expect("it can be drained");
    let waits_for = |unsealed: u64| {
        let_pass(Duration::from_millis(1500), "a drain that did not wait for writers would be over");
        let status = client.drain(node, DrainStep::Look).expect("it is here");
        assert_eq!((status.unsealed, status.finished), (unsealed, false), "{status:?}");
    };
    waits_for(3);
    let [mut first, mut second, given_up] = begun;
    Pattern(2).fill(first.as_mut_slice());
    Pattern(3).fill(second.as_mut_slice());
    // The holder of what they replace does not answer.
    cluster.pause(2);
    let sealing = [first, second].map(|creation| thread::spawn(|| creation.replace(None)));
    drop(given_up);
    waits_for(2);
    cluster.resume(2);
    for sealed in sealing {
        sealed.join().expect("no panic").expect("what was begun can be sealed");
    }
    eventually("it leaves", || left(&cluster, &cluster.client(0), node));
    for (id, pattern) in ids.into_iter().zip([2, 3, 1]) {
        Pattern(pattern).check(get(&cluster.client(0), id).data());
    }
}

#[test]
fn some_nodes_cannot_be_drained() {
    let cluster = Cluster::builder().nodes(2).start();
    let first = cluster.client(0).node();
    let (code, message) = failure(&cluster, 1, &["drain", &first.to_string()]);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("coordinator") && message.contains("etcd://"), "{message}");
    assert_eq!(failure(&cluster, 1, &["drain", "nowhere"]).0, 1);
    assert_eq!(kind(cluster.client(0).drain(NodeId::random(), DrainStep::Look)), ErrorKind::Disconnected);
    // A node that is not drained has no drain to call off.
    json(&cluster, 1, &["drain", "--call-off"]);

    let alone = Cluster::builder().start();
    let (code, message) = failure(&alone, 0, &["drain"]);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("no other node"), "{message}");
}

#[test]
fn a_death_amid_a_drain_costs_nothing_that_is_kept_twice() {
    let mut cluster = Cluster::builder().nodes(4).etcd(EtcdOptions::default()).start();
    let twice = CreateOptions { replicas: 2, ..CreateOptions::default() };
    let objects: Vec<_> =
        (0..200).map(|seed| put_with(&cluster.client(0), Pattern(seed), 200_000, twice.clone())).collect();
    // The one that is drained may be any with this coordinator.
    let node = cluster.client(0).node();
    cluster.client(1).drain(node, DrainStep::Begin).expect("it can be drained");
    eventually("it has begun", || match cluster.client(1).drain(node, DrainStep::Look) {
        Ok(status) => status.moved_objects > 10,
        Err(_) => true,
    });
    cluster.kill(3);
    eventually("it leaves all the same", || left(&cluster, &cluster.client(1), node));
    assert!(cluster.wait(0).success());
    for (seed, id) in objects.iter().enumerate() {
        for node in [1, 2] {
            Pattern(seed as u64).check(get(&cluster.client(node), *id).data());
        }
        eventually("both keep it", || keepers(&cluster, &[1, 2], *id) == 2);
    }
}
