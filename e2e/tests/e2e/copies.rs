//! Tests of kept replicas, moves, pins and times to live: where objects are when nodes die.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::{Client, CreateOptions, ErrorKind, NodeId, ObjectId, ObjectState, Rights};
use plasmon_e2e::{Chance, Cluster, EtcdOptions, PATIENCE, Pattern, eventually, until};

use crate::support::{LONG_LEASE, MIB, get, here, kind, put, try_get, try_put};

/// Puts an object that `copies` nodes are to keep.
fn put_copies(client: &Client, copies: u16, pattern: Pattern, len: usize) -> ObjectId {
    let id = ObjectId::random();
    let options = CreateOptions { replicas: copies, ..CreateOptions::default() };
    client.put(id, &pattern.bytes(len), b"", &options).unwrap_or_else(|error| panic!("put: {error}"));
    id
}

/// Nodes that list an object in one of these states.
fn holding(cluster: &Cluster, nodes: &[usize], id: ObjectId, states: &[ObjectState]) -> Vec<usize> {
    let holds = |node: &&usize| {
        let rows = cluster.client(**node).list().expect("list");
        rows.iter().any(|row| row.id == id && states.contains(&row.state))
    };
    nodes.iter().filter(holds).copied().collect()
}

const KEEPING: [ObjectState; 2] = [ObjectState::Primary, ObjectState::Kept];

fn node_id(cluster: &Cluster, node: usize) -> NodeId {
    cluster.client(node).node()
}

fn members(cluster: &Cluster, nodes: &[usize], count: usize) {
    for node in nodes {
        eventually("the death is known", || cluster.status(*node).cluster.members.len() == count);
    }
}

#[test]
fn a_put_returns_when_so_many_nodes_keep_the_object() {
    let cluster = Cluster::builder().nodes(4).start();
    for (seed, len) in [(1, 100), (2, 3 * MIB)] {
        let id = put_copies(&cluster.client(0), 3, Pattern(seed), len);
        let all = [0, 1, 2, 3];
        let keeping = holding(&cluster, &all, id, &KEEPING);
        assert_eq!(keeping.len(), 3, "{len} bytes");
        assert_eq!(holding(&cluster, &all, id, &[ObjectState::Primary]), [0]);
        for node in all {
            cluster.client(node).evict(u64::MAX).expect("evict");
        }
        assert_eq!(holding(&cluster, &all, id, &KEEPING), keeping, "what is kept is not evicted");
        for node in keeping {
            let object = here(&cluster.client(node), id).expect("it is here");
            Pattern(seed).check(object.data());
        }
    }
    // Created in place, it is the seal that waits.
    let id = ObjectId::random();
    let options = CreateOptions { replicas: 2, ..CreateOptions::default() };
    let mut creation = cluster.client(1).create(id, MIB as u64, b"", &options).expect("create");
    Pattern(3).fill(creation.as_mut_slice());
    creation.seal().expect("seal");
    assert_eq!(holding(&cluster, &[0, 1, 2, 3], id, &KEEPING).len(), 2);
}

#[test]
fn too_few_nodes_are_told_and_a_later_one_takes_it() {
    let mut cluster = Cluster::builder().nodes(2).start();
    let (client, id) = (cluster.client(0), ObjectId::random());
    let options = CreateOptions { replicas: 3, ..CreateOptions::default() };
    let error = client.put(id, &Pattern(1).bytes(MIB), b"", &options).expect_err("there are two nodes");
    assert_eq!(error.kind(), ErrorKind::TooFew, "{error}");
    assert!(error.message().contains("kept by 2 of 3"), "{error}");
    Pattern(1).check(get(&client, id).data());
    let third = cluster.add_node();
    eventually("the third takes it", || holding(&cluster, &[third], id, &KEEPING) == [third]);
    assert_eq!(cluster.status(0).cluster.copies.failed, 0);
}

#[test]
fn a_node_without_room_is_passed_over() {
    let cluster = Cluster::builder().nodes(3).start();
    let id = put(&cluster.client(0), Pattern(1), 30 * MIB);
    put(&cluster.client(1), Pattern(2), 50 * MIB);
    let spread = cluster.client(0).replicate(id, 2, Some(PATIENCE)).expect("one of the two has room");
    assert_eq!(holding(&cluster, &[0, 1, 2], id, &KEEPING), [0, 2]);
    assert_eq!(spread.holders.len(), 2);
    let error = cluster.client(0).replicate(id, 3, Some(PATIENCE)).expect_err("one is full");
    assert_eq!(error.kind(), ErrorKind::TooFew);
    assert!(error.message().contains("full"), "{error}");
    assert!(error.message().contains(&node_id(&cluster, 1).to_string()), "{error}");
    Pattern(1).check(get(&cluster.client(2), id).data());
}

#[test]
fn replicas_become_more_and_fewer() {
    let cluster = Cluster::builder().nodes(4).start();
    let (all, id) = ([0, 1, 2, 3], put(&cluster.client(1), Pattern(1), MIB));
    // From a node that does not have it.
    cluster.client(3).replicate(id, 4, Some(PATIENCE)).expect("replicate");
    assert_eq!(holding(&cluster, &all, id, &KEEPING), all);
    cluster.client(0).replicate(id, 2, Some(PATIENCE)).expect("replicate");
    assert_eq!(holding(&cluster, &all, id, &KEEPING).len(), 2);
    assert_eq!(holding(&cluster, &all, id, &[ObjectState::Primary]), [1]);
    for node in all {
        cluster.client(node).evict(u64::MAX).expect("evict");
    }
    eventually("two are left", || cluster.client(0).locations(id).expect("locations").len() == 2);
    assert_eq!(kind(cluster.client(0).replicate(id, 0, None)), ErrorKind::Invalid);
    assert_eq!(kind(cluster.client(0).replicate(ObjectId::random(), 2, None)), ErrorKind::NotFound);
}

#[test]
fn objects_come_back_to_their_number_whoever_dies() {
    let mut cluster = Cluster::builder().nodes(5).start();
    let puts: Vec<_> = (0..30)
        .map(|seed| put_copies(&cluster.client(1 + seed % 4), 2, Pattern(seed as u64), 50_000))
        .collect();
    let mut alive = vec![0, 1, 2, 3, 4];
    // Keepers of shards, keepers of replicas and primaries alike; all but the coordinator.
    for dead in [1, 3] {
        cluster.kill(dead);
        alive.retain(|node| *node != dead);
        members(&cluster, &alive, alive.len());
        eventually("all have two again", || {
            puts.iter().all(|id| holding(&cluster, &alive, *id, &KEEPING).len() >= 2)
        });
        eventually("all have one primary", || {
            puts.iter().all(|id| holding(&cluster, &alive, *id, &[ObjectState::Primary]).len() == 1)
        });
        for (seed, id) in puts.iter().enumerate() {
            Pattern(seed as u64).check(get(&cluster.client(alive[seed % alive.len()]), *id).data());
        }
    }
    let restored: u64 = alive.iter().map(|node| cluster.status(*node).cluster.copies.restored).sum();
    assert!(restored > 0);
    for node in alive {
        eventually("nothing is left to do", || {
            let copies = cluster.status(node).cluster.copies;
            (copies.short, copies.restoring) == (0, 0)
        });
    }
}

#[test]
fn a_holder_that_dies_while_it_is_replicated_leaves_the_others_enough() {
    let mut cluster = Cluster::builder().nodes(4).memory("320MiB").start();
    let len = 200 * MIB;
    let id = put(&cluster.client(1), Pattern(1), len);
    cluster.client(1).replicate(id, 2, Some(PATIENCE)).expect("replicate");
    let second = holding(&cluster, &[0, 2, 3], id, &[ObjectState::Kept])[0];
    let client = cluster.client(0);
    let replicating = thread::spawn(move || client.replicate(id, 4, Some(PATIENCE)));
    let others: Vec<_> = [0, 2, 3].into_iter().filter(|node| *node != second).collect();
    eventually("it is on its way", || {
        replicating.is_finished() || others.iter().any(|node| cluster.status(*node).memory.used >= len as u64)
    });
    cluster.kill(1);
    // The dead one is missing, or it had done its part before.
    if let Err(error) = replicating.join().expect("no panic") {
        assert_eq!(error.kind(), ErrorKind::TooFew, "{error}");
    }
    eventually("all who live keep it", || holding(&cluster, &[0, 2, 3], id, &KEEPING).len() == 3);
    for node in [0, 2, 3] {
        Pattern(1).check(get(&cluster.client(node), id).data());
    }
}

#[test]
fn the_only_holder_dies_while_it_is_replicated() {
    let mut cluster = Cluster::builder().nodes(3).memory("320MiB").start();
    let len = 200 * MIB;
    let id = put(&cluster.client(1), Pattern(1), len);
    let client = cluster.client(0);
    let replicating = thread::spawn(move || client.replicate(id, 3, Some(PATIENCE)));
    eventually("it is on its way", || {
        replicating.is_finished() || [0, 2].iter().any(|node| cluster.status(*node).memory.used >= len as u64)
    });
    let finished = replicating.is_finished();
    cluster.kill(1);
    let outcome = replicating.join().expect("no panic");
    members(&cluster, &[0, 2], 2);
    match outcome {
        Ok(_) => {}
        Err(error) => assert!(matches!(error.kind(), ErrorKind::TooFew | ErrorKind::Lost), "{error}"),
    }
    // Whole where it is, and gone where it is not: nothing in between.
    match try_get(&cluster.client(0), id) {
        Ok(object) => Pattern(1).check(object.data()),
        Err(error) => {
            assert!(!finished);
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            for node in [0, 2] {
                eventually("its memory is free", || cluster.status(node).memory.used < len as u64);
            }
        }
    }
}

#[test]
fn an_object_moves_and_who_reads_it_does_not_notice() {
    let cluster = Cluster::builder().nodes(3).start();
    let id = put(&cluster.client(0), Pattern(1), 20 * MIB);
    let held = get(&cluster.client(0), id);
    let moving = cluster.client(1);
    let reader = cluster.client(1);
    let to = node_id(&cluster, 2);
    let reading = thread::spawn(move || {
        for _ in 0..20 {
            reader.evict(u64::MAX).expect("evict");
            Pattern(1).check(get(&reader, id).data());
        }
    });
    moving.migrate(id, to, Some(PATIENCE)).expect("migrate");
    reading.join().expect("every get found it");
    assert_eq!(holding(&cluster, &[0, 1, 2], id, &[ObjectState::Primary]), [2]);
    Pattern(1).check(held.data());
    assert_eq!(cluster.status(0).objects.doomed, 1);
    drop(held);
    eventually("its memory is free", || cluster.status(0).memory.used < 20 * MIB as u64);

    // To where it is; to a node that is none; and one that has no room.
    moving.migrate(id, to, Some(PATIENCE)).expect("it is there");
    assert_eq!(kind(moving.migrate(id, NodeId::random(), None)), ErrorKind::Invalid);
    put(&cluster.client(0), Pattern(2), 50 * MIB);
    assert_eq!(kind(moving.migrate(id, node_id(&cluster, 0), Some(PATIENCE))), ErrorKind::Full);
    assert_eq!(holding(&cluster, &[0, 1, 2], id, &[ObjectState::Primary]), [2]);
}

#[test]
fn a_move_to_a_node_that_keeps_the_object_costs_no_copy() {
    let mut cluster = Cluster::builder().nodes(4).start();
    let all = [0, 1, 2, 3];
    let options = [
        CreateOptions { replicas: 2, ..CreateOptions::default() },
        CreateOptions { replicas: 2, rights: Rights::Private, ..CreateOptions::default() },
        CreateOptions { replicas: 2, ttl: Some(Duration::from_secs(3600)), ..CreateOptions::default() },
        CreateOptions { replicas: 4, ..CreateOptions::default() },
    ];
    let mut puts = Vec::new();
    for seed in 0..24 {
        let (id, options) = (ObjectId::random(), &options[seed % options.len()]);
        cluster.client(1).put(id, &Pattern(seed as u64).bytes(30_000), b"", options).expect("put");
        let kept = holding(&cluster, &all, id, &[ObjectState::Kept]);
        // The node that dies is not the coordinator's.
        let to = kept.into_iter().find(|node| *node != 0);
        puts.extend(to.map(|to| (seed as u64, id, usize::from(options.replicas), to)));
    }
    assert!(!puts.is_empty());
    for (seed, id, copies, to) in &puts {
        cluster.client(0).migrate(*id, node_id(&cluster, *to), Some(PATIENCE)).expect("migrate");
        assert_eq!(holding(&cluster, &all, *id, &[ObjectState::Primary]), [*to], "seed {seed}");
        assert_eq!(holding(&cluster, &all, *id, &KEEPING).len(), *copies, "seed {seed}");
    }
    let mut alive = all.to_vec();
    for dead in [2, 3] {
        cluster.kill(dead);
        alive.retain(|node| *node != dead);
        members(&cluster, &alive, alive.len());
        for (seed, id, copies, _) in &puts {
            eventually("as many keep it as were wished for", || {
                holding(&cluster, &alive, *id, &KEEPING).len() == (*copies).min(alive.len())
            });
            Pattern(*seed).check(get(&cluster.client(0), *id).data());
        }
    }
}

#[test]
fn how_many_are_to_keep_an_object_moves_with_it() {
    let mut cluster = Cluster::builder().nodes(5).start();
    let all = [0, 1, 2, 3, 4];
    let id = put(&cluster.client(1), Pattern(1), MIB);
    for node in [2, 3, 4] {
        Pattern(1).check(get(&cluster.client(node), id).data());
    }
    eventually("all are known", || cluster.client(0).locations(id).expect("locations").len() == 4);
    cluster.client(0).replicate(id, 2, Some(PATIENCE)).expect("replicate");
    // The node cached the object before two were to keep it.
    let to = holding(&cluster, &all, id, &[ObjectState::Cached])[0];
    cluster.client(0).migrate(id, node_id(&cluster, to), Some(PATIENCE)).expect("migrate");
    let keeping = holding(&cluster, &all, id, &KEEPING);
    assert_eq!((keeping.len(), keeping.contains(&1)), (2, false), "{keeping:?}");
    let other = keeping.into_iter().find(|node| *node != to).expect("there are two");
    cluster.kill(other);
    let alive: Vec<_> = all.into_iter().filter(|node| *node != other).collect();
    members(&cluster, &alive, alive.len());
    eventually("another takes its place", || holding(&cluster, &alive, id, &KEEPING).len() == 2);
    // Fewer are wished now, and that moves as well.
    cluster.client(0).replicate(id, 1, Some(PATIENCE)).expect("replicate");
    let free = alive.into_iter().find(|node| holding(&cluster, &[*node], id, &KEEPING).is_empty());
    let free = free.expect("only one keeps it");
    cluster.client(0).migrate(id, node_id(&cluster, free), Some(PATIENCE)).expect("migrate");
    assert_eq!(holding(&cluster, &[free], id, &KEEPING), [free]);
    for node in [0, free] {
        eventually("nothing is missing", || cluster.status(node).cluster.copies.short == 0);
    }
}

#[test]
fn an_object_that_is_kept_for_another_node_counts_against_no_quota() {
    let cluster = Cluster::builder().nodes(2).args(&["--user-quota", "16MiB"]).start();
    let client = cluster.client(1);
    let id = put_copies(&client, 2, Pattern(1), 10 * MIB);
    assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(2), 10 * MIB)), ErrorKind::Full);
    client.migrate(id, node_id(&cluster, 0), Some(PATIENCE)).expect("migrate");
    assert_eq!(holding(&cluster, &[0, 1], id, &KEEPING), [0, 1]);
    put(&client, Pattern(2), 10 * MIB);
    client.delete(&[id]).expect("delete");
    assert_eq!(
        kind(try_put(&client, ObjectId::random(), Pattern(3), 10 * MIB)),
        ErrorKind::Full,
        "once is enough"
    );
}

#[test]
fn what_comes_back_from_disk_is_to_be_kept_by_as_many_as_before() {
    const KEEPING: [ObjectState; 3] = [ObjectState::Primary, ObjectState::Kept, ObjectState::Spilled];
    let folder = tempfile::tempdir().expect("a folder");
    let spill = ["--spill-dir", folder.path().to_str().expect("UTF-8")];
    let lease = ["--lease", "2"];
    let mut cluster =
        Cluster::builder().nodes(3).memory("32MiB").etcd(EtcdOptions::default()).args(&lease).start();
    let node = cluster.add_node_with(&spill);
    let client = cluster.client(node);
    let ids: Vec<_> = (0..9).map(|seed| put(&client, Pattern(seed), 4 * MIB)).collect();
    let is_on_disk = |id: &&ObjectId| !holding(&cluster, &[node], **id, &[ObjectState::Spilled]).is_empty();
    let id = *until("one is on disk", || ids.iter().find(is_on_disk));
    // Its file does not say this number.
    client.replicate(id, 2, Some(PATIENCE)).expect("others have room");
    cluster.kill(node);
    cluster.start_again(node, &spill);
    let all = [0, 1, 2, node];
    eventually("two nodes keep it, one of them as the primary", || {
        let places = cluster.client(0).locations(id).expect("locations");
        let primaries = places.iter().filter(|place| place.role == "primary").count();
        holding(&cluster, &all, id, &KEEPING).len() == 2 && primaries == 1
    });
    let keeping = holding(&cluster, &all, id, &KEEPING);
    // Most likely one of them is the node that is back, before another has taken its place.
    let other = *keeping.iter().find(|one| **one != node).expect("there are two");
    cluster.kill(other);
    let left: Vec<_> = all.into_iter().filter(|one| *one != other).collect();
    eventually("two nodes keep it again", || holding(&cluster, &left, id, &KEEPING).len() >= 2);
}

#[test]
fn what_is_on_disk_changes_places_too() {
    let cluster = Cluster::builder().nodes(3).args(&["--spill-dir", "spill"]).start();
    let spilled = |id| {
        let of = |node: usize| holding(&cluster, &[node], id, &[ObjectState::Spilled]).len();
        (0..3).map(of).sum::<usize>()
    };
    let id = put_copies(&cluster.client(0), 3, Pattern(1), 10 * MIB);
    let mut full = 0..;
    eventually("it is on disk everywhere", || {
        for node in 0..3 {
            if holding(&cluster, &[node], id, &[ObjectState::Spilled]).is_empty() {
                put(&cluster.client(node), Pattern(full.next().expect("endless")), 10 * MIB);
                cluster.client(node).evict(u64::MAX).expect("evict");
            }
        }
        spilled(id) == 3
    });
    cluster.client(0).migrate(id, node_id(&cluster, 2), Some(PATIENCE)).expect("migrate");
    assert_eq!(spilled(id), 3, "nobody had to read it");
    for node in 0..3 {
        Pattern(1).check(get(&cluster.client(node), id).data());
    }
    assert_eq!(holding(&cluster, &[0, 1, 2], id, &[ObjectState::Primary]), [2]);
    assert_eq!(holding(&cluster, &[0, 1, 2], id, &KEEPING).len(), 3);
}

#[test]
fn deaths_one_at_a_time_cost_nothing_whatever_is_moved() {
    let mut cluster = Cluster::builder().nodes(5).start();
    let all: Vec<_> = (0..5).collect();
    let options = CreateOptions { replicas: 2, ..CreateOptions::default() };
    let ids: Vec<_> = (0..30).map(|_| ObjectId::random()).collect();
    for (seed, id) in ids.iter().enumerate() {
        let bytes = Pattern(seed as u64).bytes(20_000);
        cluster.client(seed % 5).put(*id, &bytes, b"", &options).expect("put");
    }
    for (round, dead) in [1, 3, 4].into_iter().enumerate() {
        eventually("as many keep each as were wished for", || {
            ids.iter().all(|id| holding(&cluster, &all, *id, &KEEPING).len() >= 2)
        });
        let nodes: Vec<_> = all.iter().map(|node| node_id(&cluster, *node)).collect();
        let (over, moved) = (AtomicBool::new(false), AtomicUsize::new(0));
        let move_about = &|mover: usize, client: Client| {
            let mut chance = Chance::of_seed((round * 2 + mover) as u64);
            while !over.load(Ordering::Relaxed) {
                let (id, to) = (ids[chance.below(ids.len())], nodes[chance.below(nodes.len())]);
                match client.migrate(id, to, Some(PATIENCE)) {
                    Ok(_) => _ = moved.fetch_add(1, Ordering::Relaxed),
                    // The object is being moved; or the node dies or is dead; or a keeper is late to list it.
                    Err(error) => assert!(
                        matches!(
                            error.kind(),
                            ErrorKind::Busy
                                | ErrorKind::Disconnected
                                | ErrorKind::Invalid
                                | ErrorKind::TimedOut
                        ),
                        "{:?}: {error}",
                        error.kind()
                    ),
                }
            }
        };
        thread::scope(|scope| {
            let clients = [cluster.client(0), cluster.client(2)];
            let movers = clients.into_iter().enumerate();
            let movers: Vec<_> =
                movers.map(|(mover, client)| scope.spawn(move || move_about(mover, client))).collect();
            let go_on = || {
                let before = moved.load(Ordering::Relaxed);
                eventually("objects are moved", || {
                    moved.load(Ordering::Relaxed) > before + 20 || movers.iter().any(|one| one.is_finished())
                });
            };
            go_on();
            cluster.kill(dead);
            members(&cluster, &[0, 2], 4);
            go_on();
            over.store(true, Ordering::Relaxed);
            movers.into_iter().for_each(|mover| mover.join().expect("no panic"));
        });
        for (seed, id) in ids.iter().enumerate() {
            Pattern(seed as u64).check(get(&cluster.client(0), *id).data());
        }
        cluster.start_again(dead, &[]);
        members(&cluster, &all, 5);
    }
}

#[test]
fn what_two_want_to_move_to_different_nodes_is_not_lost() {
    let cluster = Cluster::builder().nodes(3).start();
    let nodes = [0, 1, 2].map(|node| node_id(&cluster, node));
    let id = put(&cluster.client(0), Pattern(1), MIB);
    let movers: Vec<_> = (0..3)
        .map(|mover| {
            let client = cluster.client(mover);
            thread::spawn(move || {
                for round in 0..20 {
                    match client.migrate(id, nodes[(mover + round) % 3], Some(PATIENCE)) {
                        Ok(_) => {}
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
                    }
                }
            })
        })
        .collect();
    movers.into_iter().for_each(|mover| mover.join().expect("no panic"));
    assert!(!holding(&cluster, &[0, 1, 2], id, &[ObjectState::Primary]).is_empty());
    for node in 0..3 {
        Pattern(1).check(get(&cluster.client(node), id).data());
    }
}

#[test]
fn objects_end_with_their_time_everywhere() {
    let cluster = Cluster::builder().nodes(3).start();
    let (id, forever) = (ObjectId::random(), put(&cluster.client(0), Pattern(2), 100));
    let ttl = Some(Duration::from_secs(2));
    let options = CreateOptions { ttl, replicas: 2, ..CreateOptions::default() };
    cluster.client(0).put(id, &Pattern(1).bytes(MIB), b"", &options).expect("put");
    for node in 0..3 {
        Pattern(1).check(get(&cluster.client(node), id).data());
    }
    for node in 0..3 {
        eventually("it is gone", || {
            holding(&cluster, &[node], id, &[KEEPING[0], KEEPING[1], ObjectState::Cached]).is_empty()
        });
        assert_eq!(
            kind(cluster.client(node).get(&[id], Some(Duration::ZERO)).expect("get").remove(0)),
            ErrorKind::NotFound
        );
    }
    assert_eq!(cluster.status(0).cluster.copies.expired, 1);
    // The id of an expired object is free again, and the other objects live.
    cluster.client(1).put(id, b"again", b"", &CreateOptions::default()).expect("the id is free");
    Pattern(2).check(get(&cluster.client(2), forever).data());
}

#[test]
fn an_object_ends_with_its_time_although_its_node_is_dead() {
    let mut cluster = Cluster::builder().nodes(3).start();
    let id = ObjectId::random();
    let options = CreateOptions { ttl: Some(Duration::from_secs(6)), ..CreateOptions::default() };
    cluster.client(1).put(id, &Pattern(1).bytes(MIB), b"", &options).expect("put");
    Pattern(1).check(get(&cluster.client(2), id).data());
    cluster.kill(1);
    members(&cluster, &[0, 2], 2);
    eventually("the other takes the role", || holding(&cluster, &[2], id, &[ObjectState::Primary]) == [2]);
    eventually("it is gone", || cluster.client(2).list().expect("list").iter().all(|row| row.id != id));
}

#[test]
fn what_is_pinned_stays_in_memory_until_its_client_says_otherwise_or_goes() {
    let cluster = Cluster::builder().nodes(2).args(&["--spill-dir", "spill"]).start();
    let far = put(&cluster.client(1), Pattern(1), 20 * MIB);
    let near = put(&cluster.client(0), Pattern(2), 10 * MIB);
    let client = cluster.client(0);
    for id in [far, near, near] {
        client.pin(id, Some(PATIENCE)).expect("pin");
    }
    let fill = || {
        for seed in 0..4 {
            put(&cluster.client(0), Pattern(10 + seed), 10 * MIB);
        }
        cluster.client(0).evict(u64::MAX).expect("evict");
    };
    fill();
    for (id, seed) in [(far, 1), (near, 2)] {
        Pattern(seed).check(here(&cluster.client(0), id).expect("it is pinned").data());
    }
    assert_eq!(cluster.status(0).objects.pinned, 2);
    // Once, however often it was pinned.
    client.unpin(near).expect("unpin");
    client.unpin(near).expect("what is not pinned stays as it is");
    assert_eq!(cluster.status(0).objects.pinned, 1);
    eventually("it is spilled", || {
        fill();
        holding(&cluster, &[0], near, &[ObjectState::Spilled]) == [0]
    });
    Pattern(2).check(get(&cluster.client(0), near).data());
    drop(client);
    eventually("its pins are gone", || cluster.status(0).objects.pinned == 0);
    cluster.client(0).evict(u64::MAX).expect("evict");
    assert!(here(&cluster.client(0), far).is_none());
    assert_eq!(
        kind(cluster.client(0).pin(ObjectId::random(), Some(Duration::from_millis(50)))),
        ErrorKind::TimedOut
    );
}

#[test]
fn a_deletion_is_at_once_for_all_and_memory_goes_with_the_last_pin() {
    let cluster = Cluster::builder().nodes(3).start();
    let len = 10 * MIB;
    let id = put_copies(&cluster.client(0), 2, Pattern(1), len);
    let clients = [0, 1, 2].map(|node| cluster.client(node));
    let held: Vec<_> = clients.iter().map(|client| get(client, id)).collect();
    clients[1].pin(id, Some(PATIENCE)).expect("pin");
    clients[2].delete(&[id]).expect("delete");
    for (node, client) in clients.iter().enumerate() {
        assert!(here(client, id).is_none(), "node {node}");
        let result = client.get(&[id], Some(Duration::ZERO)).expect("get").remove(0);
        assert_eq!(kind(result), ErrorKind::NotFound, "node {node}");
        assert_eq!(cluster.status(node).objects.doomed, 1, "node {node}");
        assert!(cluster.status(node).memory.used >= len as u64);
    }
    held.iter().for_each(|object| Pattern(1).check(object.data()));
    drop(held);
    for node in [0, 2] {
        eventually("its memory is free", || cluster.status(node).memory.used < len as u64);
    }
    assert_eq!(cluster.status(1).objects.doomed, 1, "one is pinned still");
    // A new life of the id has nothing to do with it.
    clients[0].put(id, b"anew", b"", &CreateOptions::default()).expect("the id is free");
    assert_eq!(get(&clients[1], id).data(), b"anew");
    clients[1].unpin(id).expect("unpin");
    eventually("its memory is free", || cluster.status(1).memory.used < len as u64);
    assert_eq!(get(&clients[1], id).data(), b"anew");
}

#[test]
fn those_who_wait_for_what_is_lost_learn_it_at_once() {
    let mut cluster = Cluster::builder().nodes(3).memory("320MiB").args(&LONG_LEASE).start();
    let ids: Vec<_> = (0..10).map(|seed| put(&cluster.client(1), Pattern(seed), 100)).collect();
    cluster.pause(1);
    let client = cluster.client(2);
    let asked = ids.clone();
    let waiting = thread::spawn(move || client.get(&asked, Some(PATIENCE)).expect("get"));
    eventually("they wait", || cluster.status(2).transfer.fetching == 10);
    cluster.kill(1);
    for (id, result) in ids.iter().zip(waiting.join().expect("no panic")) {
        let error = result.expect_err("its only node is dead");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.message().contains(&id.to_string()), "{error}");
    }
}
