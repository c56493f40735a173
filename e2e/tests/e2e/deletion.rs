//! Tests of deletions: what holds after one has returned, and its answer if the outcome is unknown.

use std::time::Duration;

use plasmon::{Client, CreateOptions, DeleteOutcome, ErrorKind, ObjectId, Presence};
use plasmon_e2e::{Cluster, EtcdOptions, Pattern, eventually, until};

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
