//! Tests of misses: a get that does not wait learns from the keeper of an id whether its object exists.

use std::time::Duration;

use plasmon::{Client, CreateOptions, Error, ErrorKind, Object, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::support::{MIB, get, here, kind, put, try_put};

/// Gets one object if it is in the cluster.
fn seek(client: &Client, id: ObjectId) -> Result<Object, Error> {
    client.get(&[id], Some(Duration::ZERO)).expect("the daemon lives").remove(0)
}

#[test]
fn what_exists_is_brought_and_what_does_not_is_a_miss() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients = [0, 1, 2].map(|node| cluster.client(node));
    // The ids are so many that every node is the keeper of some.
    for number in 0..30 {
        let id = ObjectId::random();
        let (writer, len) = (&clients[number % 3], [10, 100_000, MIB][number / 3 % 3]);
        for client in &clients {
            let error = seek(client, id).expect_err("nobody has put it");
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.message().contains("is not in the cluster"), "{error}");
        }
        // Others know of it the moment that it is put: the keeper asks the node that claimed the id.
        try_put(writer, id, Pattern(number as u64), len).expect("put");
        for client in clients.iter().rev() {
            Pattern(number as u64).check(seek(client, id).expect("it was put").data());
        }
        clients[(number + 1) % 3].delete(&[id]).expect("delete");
        clients.iter().for_each(|client| assert_eq!(kind(seek(client, id)), ErrorKind::NotFound));
    }
}

#[test]
fn what_is_being_created_is_a_miss_until_its_seal() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients = [0, 1, 2].map(|node| cluster.client(node));
    for number in 0..12 {
        let id = ObjectId::random();
        let mut creation =
            clients[number % 3].create(id, MIB as u64, b"", &CreateOptions::default()).expect("create");
        Pattern(1).fill(creation.as_mut_slice());
        clients.iter().for_each(|client| assert_eq!(kind(seek(client, id)), ErrorKind::NotFound));
        creation.seal().expect("seal");
        clients.iter().for_each(|client| Pattern(1).check(seek(client, id).expect("it is sealed").data()));
    }
}

#[test]
fn a_keeper_that_is_silent_makes_no_miss() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let ids: Vec<_> = (0..64).map(|_| ObjectId::random()).collect();
    let absent = |id: &ObjectId| kind(seek(&client, *id)) == ErrorKind::NotFound;
    eventually("both answer", || ids.iter().all(absent));
    // A keeper that has just become one asks the other node, too.
    eventually("this node answers for itself alone", || {
        cluster.pause(1);
        let answers = client.get(&ids, Some(Duration::ZERO)).expect("the daemon lives");
        cluster.resume(1);
        let kinds: Vec<_> = answers.into_iter().map(kind).collect();
        let count = |kind| kinds.iter().filter(|one| **one == kind).count();
        let (known, unknown) = (count(ErrorKind::NotFound), count(ErrorKind::TimedOut));
        assert!(unknown > 0 && known + unknown == ids.len(), "{kinds:?}");
        known > 0
    });
    eventually("both answer again", || ids.iter().all(absent));
}

#[test]
fn this_node_alone_and_the_whole_cluster_are_told_apart() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let there = put(&cluster.client(1), Pattern(1), MIB);
    drop(get(&cluster.client(1), there));
    let error = client.get_local(&[there]).expect("get").remove(0).expect_err("it is on the other node");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("is not on this node"), "{error}");
    Pattern(1).check(seek(&client, there).expect("it is in the cluster").data());
    Pattern(1).check(here(&client, there).expect("it was brought").data());

    let nothing = ObjectId::random();
    assert_eq!(kind(client.pin(nothing, Some(Duration::ZERO))), ErrorKind::NotFound);
    let mut buffer = client.buffer(MIB, false, None).expect("buffer");
    let into = client.get_into(nothing, buffer.as_mut_slice(), Some(Duration::ZERO));
    assert_eq!(kind(into), ErrorKind::NotFound);
    let other = put(&cluster.client(1), Pattern(2), MIB);
    drop(get(&cluster.client(1), other));
    assert_eq!(client.get_into(other, buffer.as_mut_slice(), Some(Duration::ZERO)), Ok(MIB));
    Pattern(2).check(buffer.as_slice());
    client.pin(other, Some(Duration::ZERO)).expect("it exists");
    assert!(here(&client, other).is_some());
}

#[test]
fn a_get_with_a_time_out_tells_at_its_end_what_is_not_there() {
    for nodes in 1..=2 {
        let cluster = Cluster::builder().nodes(nodes).start();
        let client = cluster.client(0);
        let there = put(&cluster.client(nodes - 1), Pattern(1), 100);
        let wanted = [there, ObjectId::random()];
        for timeout in [Duration::ZERO, Duration::from_millis(100)] {
            let found = client.get_existing(&wanted, Some(timeout)).expect("get");
            let [Ok(Some(object)), Ok(None)] = &found[..] else { panic!("{found:?}") };
            Pattern(1).check(object.data());
        }
    }
}
