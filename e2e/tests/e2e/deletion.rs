//! Tests of deletions: what holds after one has returned, and its answer if the outcome is unknown.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use plasmon::{Client, CreateOptions, DeleteOutcome, Error, ErrorKind, ObjectId, ObjectState, Presence};
use plasmon_e2e::{Cluster, EtcdOptions, PATIENCE, Pattern, eventually, until};

use crate::support::{MIB, get, here, kind, put, try_put};

/// Number of ids: enough that every node is the first keeper of some, and the second of others.
const IDS: u64 = 24;

/// Whether no node has any of these objects.
fn absent(client: &Client, ids: &[ObjectId]) -> bool {
    let presence = client.contains(ids).expect("contains");
    presence.iter().all(|one| *one == Presence::Absent)
}

#[test]
fn what_was_deleted_is_free_for_another_node_at_once() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients: Vec<_> = (0..3).map(|node| cluster.client(node)).collect();
    for seed in 0..IDS {
        let (id, writer) = (ObjectId::random(), seed as usize % 3);
        let sizes = [0, 4095, MIB];
        for round in 0..6 {
            let pattern = Pattern(100 * seed + round as u64);
            let (writes, reads) = (&clients[(writer + round) % 3], &clients[(writer + round + 1) % 3]);
            try_put(writes, id, pattern, sizes[round % 3]).expect("the id is free");
            pattern.check(get(reads, id).data());
            let deletes = &clients[(writer + round + 2) % 3];
            assert_ne!(deletes.delete(&[id]).expect("delete"), [DeleteOutcome::Absent]);
            for client in &clients {
                assert!(here(client, id).is_none() && absent(client, &[id]), "round {round}");
            }
        }
        assert_eq!(clients[writer].delete(&[id]).expect("delete"), [DeleteOutcome::Absent]);
    }
}

#[test]
fn a_deletion_does_not_return_before_a_node_that_hangs_is_no_member() {
    let cluster = Cluster::builder().nodes(3).args(&["--lease", "1"]).start();
    let id = put(&cluster.client(1), Pattern(1), MIB);
    Pattern(1).check(get(&cluster.client(2), id).data());
    cluster.pause(2);
    assert_ne!(cluster.client(0).delete(&[id]).expect("it has left by then"), [DeleteOutcome::Absent]);
    assert_eq!(cluster.status(0).cluster.members.len(), 2);
    cluster.resume(2);
    eventually("it has heard of it", || here(&cluster.client(2), id).is_none());
}

#[test]
fn a_deletion_that_a_member_does_not_confirm_has_an_unknown_outcome() {
    let mut cluster = Cluster::builder().nodes(3).args(&["--lease", "1"]).start();
    let ids: Vec<_> = (0..IDS).map(|seed| put(&cluster.client(2), Pattern(seed), 100)).collect();
    ids.iter().for_each(|id| _ = get(&cluster.client(1), *id));
    // Without its coordinator no node learns of further deaths.
    cluster.kill(0);
    eventually("the others go on", || cluster.status(1).cluster.members.len() == 2);
    let hung = cluster.status(2).node;
    cluster.pause(2);
    let client = cluster.client(1);
    let error = client.delete(&ids).expect_err("one that holds them says nothing");
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.message().contains(&hung), "{error}");
    cluster.resume(2);
    eventually("it goes on when the node answers", || {
        let gone = client.delete(&ids).is_ok();
        gone && absent(&client, &ids)
    });
}

#[test]
fn what_a_restarted_node_finds_on_its_disk_and_was_deleted_meanwhile_stays_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let spill = ["--spill-dir", folder.path().to_str().expect("UTF-8")];
    let mut cluster = Cluster::builder()
        .nodes(2)
        .memory("32MiB")
        .etcd(EtcdOptions::default())
        .args(&["--lease", "2"])
        .start();
    let node = cluster.add_node_with(&spill);
    let client = cluster.client(node);
    let ids: Vec<_> = (0..12).map(|seed| put(&client, Pattern(seed), 4 * MIB)).collect();
    eventually("some are on disk", || cluster.status(node).spill.objects > 0);
    cluster.kill(node);
    eventually("it is no member", || cluster.status(0).cluster.members.len() == 2);
    let gone = cluster.client(0).delete(&ids).expect("they are lost");
    assert!(gone.iter().all(|outcome| *outcome == DeleteOutcome::Absent), "{gone:?}");
    cluster.start_again(node, &spill);
    let client = cluster.client(node);
    for id in ids {
        let error = client.get(&[id], Some(Duration::from_secs(1))).expect("get").remove(0).map(drop);
        assert!(matches!(kind(error), ErrorKind::TimedOut | ErrorKind::NotFound));
    }
    // Other objects of the node can be got.
    let id = until("it serves", || {
        let options = CreateOptions { fresh: true, ..CreateOptions::default() };
        let id = ObjectId::random();
        client.put(id, b"new", b"", &options).ok().map(|()| id)
    });
    assert_eq!(get(&cluster.client(0), id).data(), b"new");
}

/// Deletes objects in another thread as soon as they are there, each id that `work` is about to make, and
/// does something `afterwards`. Returns what `work` gave.
fn beside_deletions<T>(
    client: &Client,
    afterwards: impl Fn(usize, ObjectId) + Sync,
    work: impl FnOnce(&dyn Fn(ObjectId)) -> T,
) -> T {
    let (announce, announced) = channel::<ObjectId>();
    thread::scope(|scope| {
        let afterwards = &afterwards;
        scope.spawn(move || {
            for (number, id) in announced.into_iter().enumerate() {
                eventually("it is there", || !absent(client, &[id]));
                assert_ne!(client.delete(&[id]).expect("delete"), [DeleteOutcome::Absent]);
                afterwards(number, id);
            }
        });
        let worked = work(&|id| announce.send(id).expect("the other thread goes on"));
        drop(announce);
        worked
    })
}

/// Puts an object in one of five ways.
fn put_somehow(
    client: &Client,
    way: usize,
    id: ObjectId,
    data: &[u8],
    options: &CreateOptions,
) -> Result<(), Error> {
    match way % 5 {
        0 => client.put(id, &data[..100], b"", options),
        1 => client.put(id, data, b"", options),
        2 => client.put_many(&[(id, &data[..100], b"")], options)?.remove(0),
        3 => {
            let mut creation = client.create(id, data.len() as u64, b"", options)?;
            creation.as_mut_slice().copy_from_slice(data);
            creation.seal()
        }
        _ => {
            let mut scratch = client.buffer(data.len(), false, Some(PATIENCE))?;
            scratch.as_mut_slice().copy_from_slice(data);
            client.put_from(id, &mut scratch, data.len(), b"", options).map(drop)
        }
    }
}

#[test]
fn a_put_that_several_nodes_keep_has_succeeded_if_the_object_is_deleted_meanwhile() {
    let cluster = Cluster::builder().nodes(3).start();
    let (client, data) = (cluster.client(0), Pattern(1).bytes(MIB));
    let others: Vec<_> = (1..3).map(|node| cluster.client(node)).collect();
    // Every other id is put anew, on another node and to be kept by that node alone.
    let anew = |number: usize, id| {
        if number.is_multiple_of(2) {
            others[1].put(id, b"anew", b"", &CreateOptions::default()).expect("the id is free");
        }
    };
    let ids: Vec<_> = (0..40).map(|_| ObjectId::random()).collect();
    beside_deletions(&others[0], anew, |announce| {
        for (number, id) in ids.iter().enumerate() {
            announce(*id);
            let options = CreateOptions { replicas: 2 + number as u16 % 2, ..CreateOptions::default() };
            put_somehow(&client, number, *id, &data, &options)
                .unwrap_or_else(|error| panic!("way {}: {:?}: {error}", number % 5, error.kind()));
        }
    });
    for (number, id) in ids.iter().enumerate() {
        let keeping = |node| {
            let rows = cluster.client(node).list().expect("list");
            let kept = [ObjectState::Primary, ObjectState::Kept];
            rows.iter().any(|row| row.id == *id && kept.contains(&row.state))
        };
        let keeping: Vec<_> = (0..3).filter(|node| keeping(*node)).collect();
        let wanted: &[usize] = if number.is_multiple_of(2) { &[2] } else { &[] };
        assert_eq!(keeping, wanted, "object {number}: nobody else wanted it kept");
    }
}

#[test]
fn calls_on_where_an_object_is_say_that_it_is_gone_if_it_is_deleted_meanwhile() {
    let cluster = Cluster::builder().nodes(3).start();
    let (client, data) = (cluster.client(0), Pattern(1).bytes(MIB));
    let nodes: Vec<_> = (0..3).map(|node| cluster.client(node).node()).collect();
    let call = |number: usize, id| match number % 4 {
        0 => client.replicate(id, 2, Some(PATIENCE)),
        1 => client.replicate(id, 3, Some(PATIENCE)),
        2 => client.migrate(id, nodes[1 + number / 4 % 2], Some(PATIENCE)),
        _ => client.broadcast(id, &[], Some(PATIENCE)),
    };
    beside_deletions(
        &cluster.client(1),
        |_, _| (),
        |announce| {
            for number in 0..64 {
                let (id, len) = (ObjectId::random(), [100, MIB][number / 4 % 2]);
                client.put(id, &data[..len], b"", &CreateOptions::default()).expect("put");
                announce(id);
                match call(number, id) {
                    Ok(spread) => {
                        for one in &spread.failed {
                            let said = one.reason.contains("no node holds") || one.reason.contains("deleted");
                            assert!(said, "call {}: {}", number % 4, one.reason);
                        }
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NotFound, "call {}: {error}", number % 4)
                    }
                }
            }
        },
    );
}
