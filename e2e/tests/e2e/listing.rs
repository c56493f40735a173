//! Tests of lists of large stores.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use plasmon::wire::{Reply, Request};
use plasmon::{Client, CreateOptions, Filter, ObjectId, ObjectState};
use plasmon_e2e::Cluster;

use crate::raw::Raw;
use crate::support::{MIB, get, own_memory};

/// Puts `count` small objects.
fn put_many(client: &Client, count: usize) -> Vec<ObjectId> {
    let ids: Vec<_> = (0..count).map(|_| ObjectId::random()).collect();
    for some in ids.chunks(1000) {
        let puts: Vec<_> = some.iter().map(|id| (*id, &b"x"[..], &b""[..])).collect();
        for result in client.put_many(&puts, &CreateOptions::default()).expect("the daemon lives") {
            result.expect("it fits");
        }
    }
    ids
}

#[test]
fn what_stays_is_listed_once_whatever_comes_and_goes() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let stays: HashSet<_> = put_many(&client, 30_000).into_iter().collect();
    let held = get(&client, *stays.iter().next().expect("there are some"));
    let creation = client.create(ObjectId::random(), 10, b"", &CreateOptions::default()).expect("create");
    let deleted = get(&client, put_many(&client, 1)[0]);
    client.delete(&[deleted.id()]).expect("delete");

    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let client = cluster.client(0);
            while !over.load(Ordering::Relaxed) {
                client.delete(&put_many(&client, 100)).expect("delete");
            }
        });
        for _ in 0..20 {
            let rows = client.list().expect("list");
            let listed: HashSet<_> = rows.iter().map(|row| row.id).collect();
            assert_eq!(listed.len(), rows.len(), "something is there twice");
            assert!(stays.is_subset(&listed), "something is missing");
            assert!(rows.is_sorted_by_key(|row| std::cmp::Reverse(row.age_ms)));
            let of = |id| rows.iter().find(|row| row.id == id).map(|row| (row.state, row.pins));
            assert_eq!(of(held.id()), Some((ObjectState::Primary, 1)));
            assert_eq!(of(deleted.id()), Some((ObjectState::Doomed, 1)));
            assert_eq!(of(creation.id()), Some((ObjectState::Unsealed, 0)));
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_listing_that_is_not_read_takes_little_memory() {
    const OBJECTS: usize = 250_000;
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let ids = put_many(&client, OBJECTS);
    let before = own_memory(&cluster, 0);
    let mut idle = Raw::connect(&cluster, 0);
    idle.send(1, &Request::List { filter: Filter::default() });
    // Some 70 bytes each would wait for it.
    for _ in 0..100 {
        client.delete(&put_many(&client, 10)).expect("delete");
        let grown = own_memory(&cluster, 0).saturating_sub(before);
        assert!(grown < 12 * MIB as u64, "{grown} bytes");
    }
    // Meanwhile it may ask for other things, but not for the same twice.
    idle.send(2, &Request::Refresh { ids: vec![ids[0]] });
    let (mut rows, mut asked) = (HashSet::new(), 1);
    loop {
        match idle.next() {
            Some((1, Reply::List { objects, more })) => {
                rows.extend(objects.iter().map(|row| row.id));
                if !more {
                    break;
                }
            }
            Some((2, Reply::Done)) => asked -= 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(ids.iter().all(|id| rows.contains(id)));
    assert_eq!(asked, 0);
}
