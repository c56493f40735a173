//! Tests of claims: of several clients that create one id or name at the same time, one succeeds.

use std::sync::{Arc, Barrier};
use std::thread;

use plasmon::{Client, CreateOptions, Error, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::support::{ClientProcess, LONG_LEASE, MIB, get, kind, put, try_put};

/// Puts an object of one name by all clients at the same moment, each with a pattern of its own. Returns the
/// results.
fn race(clients: &[Client], name: &str, len: usize) -> Vec<Result<(), Error>> {
    let start = Arc::new(Barrier::new(clients.len()));
    let put = |(seed, client): (usize, &Client)| {
        let (client, name, start) = (client.clone(), name.to_owned(), Arc::clone(&start));
        let (id, data) = (ObjectId::from_name(&name), Pattern(seed as u64).bytes(len));
        let options = CreateOptions { name: Some(name), ..CreateOptions::default() };
        thread::spawn(move || {
            start.wait();
            client.put(id, &data, b"", &options)
        })
    };
    let putting: Vec<_> = clients.iter().enumerate().map(put).collect();
    putting.into_iter().map(|one| one.join().expect("no panic")).collect()
}

#[test]
fn of_many_who_put_one_name_one_gets_it() {
    let cluster = Cluster::builder().nodes(3).start();
    // Two of each node, so that those of one node compete as well.
    let clients: Vec<_> = (0..6).map(|number| cluster.client(number % 3)).collect();
    for round in 0..60 {
        let (name, len) = (format!("name-{round}"), [10, 100_000, MIB][round % 3]);
        let outcomes = race(&clients, &name, len);
        let winners: Vec<_> = (0..6).filter(|number| outcomes[*number].is_ok()).collect();
        let [winner] = winners[..] else { panic!("round {round}: {outcomes:?}") };
        for error in outcomes.into_iter().filter_map(Result::err) {
            assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
        }
        for client in &clients {
            Pattern(winner as u64).check(get(client, ObjectId::from_name(&name)).data());
        }
        clients[0].delete(&[ObjectId::from_name(&name)]).expect("delete");
    }
    for node in 0..3 {
        eventually("no claim is left", || cluster.status(node).cluster.copies.claims == 0);
    }
}

#[test]
fn an_id_is_taken_from_its_creation_on_until_that_is_given_up() {
    let cluster = Cluster::builder().nodes(3).start();
    let options = CreateOptions::default();
    for _ in 0..10 {
        let id = ObjectId::random();
        let creation = cluster.client(0).create(id, MIB as u64, b"", &options).expect("create");
        for node in [1, 2] {
            assert_eq!(kind(try_put(&cluster.client(node), id, Pattern(1), MIB)), ErrorKind::Exists);
        }
        creation.abort().expect("abort");
        try_put(&cluster.client(1), id, Pattern(2), MIB).expect("it was given up");
        Pattern(2).check(get(&cluster.client(0), id).data());
    }
    // By the death of its client as well.
    let id = ObjectId::random();
    let words = ["create", &id.to_string(), "1000000"];
    let creator = ClientProcess::start(&cluster, 2, &words);
    assert_eq!(kind(try_put(&cluster.client(1), id, Pattern(1), 100)), ErrorKind::Exists);
    creator.kill();
    eventually("it was given up", || try_put(&cluster.client(1), id, Pattern(3), 100).is_ok());
}

#[test]
fn a_claim_outlives_its_keeper() {
    let mut cluster = Cluster::builder().nodes(4).start();
    let options = CreateOptions::default();
    let creator = cluster.client(1);
    let creations: Vec<_> =
        (0..60).map(|_| creator.create(ObjectId::random(), 1000, b"", &options).expect("create")).collect();
    // The killed node is the keeper of a quarter of the claims.
    cluster.kill(3);
    let rival = cluster.client(2);
    for (at, mut creation) in creations.into_iter().enumerate() {
        let id = creation.id();
        let taken = try_put(&rival, id, Pattern(1), 1000);
        Pattern(2).fill(creation.as_mut_slice());
        let sealed = creation.seal();
        match (taken, sealed) {
            (Err(error), Ok(())) | (Ok(()), Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::Exists, "{error}")
            }
            both => panic!("{at}: {both:?}"),
        }
    }
    for node in [0, 1, 2] {
        eventually("the death is known", || cluster.status(node).cluster.members.len() == 3);
        eventually("no claim is left", || cluster.status(node).cluster.copies.claims == 0);
    }
}

#[test]
fn a_keeper_that_hangs_is_waited_for_but_random_ids_need_none() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let client = cluster.client(0);
    cluster.pause(1);
    let fresh = CreateOptions { fresh: true, ..CreateOptions::default() };
    for _ in 0..50 {
        client.put(ObjectId::random(), b"quick", b"", &fresh).expect("nobody is asked");
    }
    // Some of these are kept by the node that hangs.
    let putting: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            thread::spawn(move || client.put(ObjectId::random(), b"slow", b"", &CreateOptions::default()))
        })
        .collect();
    eventually("some wait", || cluster.status(0).cluster.copies.claims > 0);
    cluster.resume(1);
    for one in putting {
        one.join().expect("no panic").expect("it answers in the end");
    }
}

#[test]
fn an_id_that_was_not_drawn_for_an_object_makes_no_second_one() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let fresh = CreateOptions { fresh: true, ..CreateOptions::default() };
    let id = put(&client, Pattern(1), 1000);
    let used = cluster.status(0).memory.used;
    for size in [10, MIB] {
        assert_eq!(kind(client.put(id, &vec![0; size], b"", &fresh)), ErrorKind::Exists);
        assert_eq!(kind(client.create(id, size as u64, b"", &fresh).map(drop)), ErrorKind::Exists);
    }
    assert_eq!(cluster.status(0).memory.used, used, "what was reserved is given back");
    Pattern(1).check(get(&client, id).data());
}

#[test]
fn what_was_created_alone_is_claimed_when_others_come() {
    // The one that comes may be asked before it is told what was created: several times, to meet that.
    for _ in 0..4 {
        let mut cluster = Cluster::builder().start();
        let options = CreateOptions::default();
        let client = cluster.client(0);
        let create = |_| client.create(ObjectId::random(), 1000, b"", &options).expect("create");
        let creations: Vec<_> = (0..20).map(create).collect();
        let other = cluster.add_node();
        for mut creation in creations {
            let id = creation.id();
            assert_eq!(kind(try_put(&cluster.client(other), id, Pattern(1), 1000)), ErrorKind::Exists);
            Pattern(2).fill(creation.as_mut_slice());
            creation.seal().expect("it was first");
            Pattern(2).check(get(&cluster.client(other), id).data());
        }
    }
}
