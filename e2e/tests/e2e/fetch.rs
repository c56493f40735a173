//! Tests of fetches: objects are brought from their holders.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use plasmon::status::{Status, TransferStatus};
use plasmon::{Client, CreateOptions, DeleteOutcome, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};

use crate::support::{LONG_LEASE, MIB, get, kind, put, try_get, try_put};

/// Times that a holder is stopped in the middle of what it gives.
const STOPS: usize = 10;

/// Number and bytes of objects fetched from other nodes, by any protocol.
fn fetched(status: &Status) -> (u64, u64) {
    let TransferStatus {
        eager_fetched,
        eager_fetched_bytes,
        pushed_fetched,
        pushed_fetched_bytes,
        rendezvous_fetched,
        rendezvous_fetched_bytes,
        ..
    } = status.transfer;
    let bytes = eager_fetched_bytes + pushed_fetched_bytes + rendezvous_fetched_bytes;
    (eager_fetched + pushed_fetched + rendezvous_fetched, bytes)
}

#[test]
fn a_remote_get_brings_every_byte_once() {
    let cluster = Cluster::builder().nodes(2).memory("192MiB").start();
    let (holder, reader) = (cluster.client(0), cluster.client(1));
    let mut expected = (0, 0);
    for len in [0, 1, 4095, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, MIB, 64 * MIB + 7] {
        let pattern = Pattern(len as u64);
        let id = put(&holder, pattern, len);

        let first = get(&reader, id);
        assert_eq!(first.data().len(), len);
        pattern.check(first.data());
        expected = (expected.0 + 1, expected.1 + len as u64);
        let after_first = cluster.status(1);
        assert_eq!(fetched(&after_first), expected, "get of {len} bytes");

        // The second is the same memory, and nothing moved.
        let second = get(&reader, id);
        assert_eq!(second.data().as_ptr_range(), first.data().as_ptr_range());
        let after_second = cluster.status(1);
        assert_eq!(fetched(&after_second), expected, "second get of {len} bytes");
        assert_eq!(after_second.transfer.cpu_copied_bytes, after_first.transfer.cpu_copied_bytes);

        drop((first, second));
        holder.delete(&[id]).expect("delete");
    }
}

#[test]
fn metadata_travels_with_the_data() {
    let cluster = Cluster::builder().nodes(2).start();
    for (number, len) in [0, 100, MIB].into_iter().enumerate() {
        let (id, data, metadata) =
            (ObjectId::random(), Pattern(1).bytes(len), Pattern(2).bytes(1000 * number));
        cluster.client(0).put(id, &data, &metadata, &CreateOptions::default()).expect("put");
        let object = get(&cluster.client(1), id);
        assert!(object.data() == data && object.metadata() == metadata, "{len} bytes");
    }
}

#[test]
fn a_get_waits_for_a_seal_on_another_node() {
    let cluster = Cluster::builder().nodes(3).start();
    for (number, len) in [10, 5 * MIB].into_iter().enumerate() {
        // Created before or after the get begins: it is the seal that counts.
        for created_first in [true, false] {
            let (id, pattern) = (ObjectId::random(), Pattern(number as u64));
            let writer = cluster.client(1);
            let create = || writer.create(id, len as u64, b"", &CreateOptions::default()).expect("create");
            let early = created_first.then(create);
            thread::scope(|scope| {
                let waiting = scope.spawn(|| get(&cluster.client(2), id).data().to_vec());
                eventually("the get waits", || cluster.status(2).transfer.fetching == 1);
                let mut creation = early.unwrap_or_else(create);
                pattern.fill(creation.as_mut_slice());
                assert!(!waiting.is_finished(), "a get returned before the seal");
                creation.seal().expect("seal");
                let data = waiting.join().expect("the get succeeds");
                assert_eq!(data.len(), len);
                pattern.check(&data);
            });
        }
    }
}

#[test]
fn a_get_of_what_nobody_makes_ends_at_its_time_out() {
    let cluster = Cluster::builder().nodes(2).start();
    for node in 0..2 {
        let client = cluster.client(node);
        let get = |timeout: Duration| {
            kind(client.get(&[ObjectId::random()], Some(timeout)).expect("get").remove(0))
        };
        // However short: that it is over before the node looks makes no other error of it.
        for micros in [1, 2, 20, 50_000] {
            assert_eq!(get(Duration::from_micros(micros)), ErrorKind::TimedOut, "within {micros} us");
        }
        // A get that does not wait is told that the object is not there.
        assert_eq!(get(Duration::ZERO), ErrorKind::NotFound);
    }
}

#[test]
fn three_nodes_get_one_object_at_the_same_time() {
    const CLIENTS: usize = 4;
    let cluster = Cluster::builder().nodes(4).memory("128MiB").start();
    for (round, len) in [3000, 40 * MIB + 1].into_iter().enumerate() {
        let pattern = Pattern(len as u64);
        let start = Barrier::new(3 * CLIENTS);
        let id = put(&cluster.client(0), pattern, len);
        thread::scope(|scope| {
            for number in 0..3 * CLIENTS {
                let (cluster, start) = (&cluster, &start);
                let client = cluster.client(1 + number % 3);
                scope.spawn(move || {
                    start.wait();
                    let object = get(&client, id);
                    assert_eq!(object.data().len(), len);
                    pattern.check(object.data());
                });
            }
        });
        for node in 1..=3 {
            let count = fetched(&cluster.status(node)).0;
            assert_eq!(
                count,
                round as u64 + 1,
                "node {node}: four clients who want the same share one fetch"
            );
        }
    }
}

#[test]
fn many_objects_cross_in_both_directions() {
    const OBJECTS: u64 = 200;
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let len = |number: u64| (number * number * 13 % 700_000) as usize;
    thread::scope(|scope| {
        let ids: Vec<_> = (0..2 * OBJECTS).map(|_| ObjectId::random()).collect();
        for node in 0..2 {
            let (cluster, ids) = (&cluster, ids.clone());
            let (mine, theirs) = (node as u64 * OBJECTS, (1 - node as u64) * OBJECTS);
            let writer_ids = ids.clone();
            scope.spawn(move || {
                let client = cluster.client(node);
                for number in mine..mine + OBJECTS {
                    try_put(&client, writer_ids[number as usize], Pattern(number), len(number)).expect("put");
                }
            });
            scope.spawn(move || {
                let wanted = &ids[theirs as usize..(theirs + OBJECTS) as usize];
                let objects = cluster.client(node).get(wanted, Some(PATIENCE)).expect("get");
                for (number, object) in (theirs..).zip(objects) {
                    let object = object.expect("every object arrives");
                    assert_eq!(object.data().len(), len(number));
                    Pattern(number).check(object.data());
                }
            });
        }
    });
}

#[test]
fn a_deleted_object_is_gone_everywhere() {
    let cluster = Cluster::builder().nodes(2).start();
    let (here, there) = (cluster.client(0), cluster.client(1));
    let id = put(&here, Pattern(1), MIB);
    drop(get(&there, id));
    here.delete(&[id]).expect("delete");
    for client in [&here, &there] {
        cannot_be_found(client, id);
    }
    for node in 0..2 {
        eventually("its memory is free", || cluster.status(node).memory.used == 0);
    }
}

#[test]
fn a_deleted_object_stays_with_those_who_hold_it() {
    let cluster = Cluster::builder().nodes(2).start();
    let (here, there) = (cluster.client(0), cluster.client(1));
    let id = put(&here, Pattern(1), MIB);
    let (held_here, held_there) = (get(&here, id), get(&there, id));
    here.delete(&[id]).expect("delete");
    for client in [&here, &there] {
        cannot_be_found(client, id);
    }
    // Memory of a deleted object is not given to others while the object is held.
    for client in [&here, &there] {
        let other = put(client, Pattern(9), 30 * MIB);
        Pattern(9).check(get(client, other).data());
    }
    Pattern(1).check(held_here.data());
    Pattern(1).check(held_there.data());
    drop((held_here, held_there));
    // The id is free for another object.
    eventually("the id is free again", || try_put(&here, id, Pattern(2), 10).is_ok());
    Pattern(2).check(try_get(&here, id).expect("get").data());
}

/// Waits until an object cannot be found: its deletion reaches the other nodes after the reply.
fn cannot_be_found(client: &Client, id: ObjectId) {
    eventually("it cannot be found any more", || {
        let result = client.get(&[id], Some(Duration::ZERO)).expect("get").remove(0);
        result.is_err_and(|error| matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::NotFound))
    });
}

#[test]
fn a_stopped_holder_holds_up_no_other_holders_objects() {
    const LEN: usize = 4 * MIB;
    // A stopped node stays a member, so that attempts at it end late.
    let cluster = Cluster::builder().nodes(3).memory("320MiB").args(&LONG_LEASE).start();
    let reader = cluster.client(0);
    let put_some = |node, count| -> Vec<ObjectId> {
        let client = cluster.client(node);
        (0..count).map(|number| put(&client, Pattern(number), LEN)).collect()
    };
    let get_all = |ids: &[ObjectId]| {
        for (number, id) in ids.iter().enumerate() {
            Pattern(number as u64).check(get(&reader, *id).data());
        }
    };
    for _ in 0..STOPS {
        // More objects than are read from one holder at a time.
        let (wanted, others) = (put_some(1, 32), put_some(2, 4));
        let before = cluster.status(0).transfer;
        reader.prefetch(&wanted, PATIENCE).expect("prefetch");
        eventually("objects wait for their holder", || {
            let now = cluster.status(0).transfer;
            now.queued > 0 || now.rendezvous_fetched == before.rendezvous_fetched + wanted.len() as u64
        });
        cluster.pause(1);
        get_all(&others);
        let after = cluster.status(0).transfer;
        cluster.resume(1);
        get_all(&wanted);
        // No attempt at the stopped node had ended when the other node's objects had come.
        if after.queued > 0 && after.fetch_failures == before.fetch_failures {
            return;
        }
        reader.delete(&[wanted, others].concat()).expect("delete");
    }
    panic!("the others' objects waited for those of the stopped node, {STOPS} times");
}

#[test]
fn more_objects_than_there_is_room_for_come_one_after_the_other() {
    const LEN: usize = 10 * MIB;
    // More objects are read from two holders at a time than the store has room for.
    let cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    let wanted = [1, 2].map(|node| {
        let client = cluster.client(node);
        (0..11).map(|number| put(&client, Pattern(number), LEN)).collect::<Vec<_>>()
    });
    let wanted = wanted.concat();
    cluster.client(0).prefetch(&wanted, PATIENCE).expect("prefetch");
    eventually("all have come", || cluster.status(0).transfer.rendezvous_fetched == wanted.len() as u64);
}

#[test]
fn short_objects_that_are_coming_ahead_come_once() {
    let cluster = Cluster::builder().nodes(2).start();
    let (writer, reader) = (cluster.client(0), cluster.client(1));
    for round in 0..20 {
        let ids: Vec<_> = (0..32).map(|seed| put(&writer, Pattern(round * 32 + seed), 1000)).collect();
        reader.prefetch(&ids, PATIENCE).expect("prefetch");
        // Gets after the prefetch ask for one object, or for several.
        let (one, several) = ids.split_at(4);
        let got = one.iter().map(|id| get(&reader, *id)).collect::<Vec<_>>();
        let rest = reader.get(several, Some(PATIENCE)).expect("get");
        for (seed, object) in (0..).zip(got.into_iter().map(Ok).chain(rest)) {
            Pattern(round * 32 + seed).check(object.expect("it exists").data());
        }
    }
    eventually("nothing is on its way", || cluster.status(1).transfer.fetching == 0);
    // A batch that waits for 50 ms in vain is given up, and its objects are asked for one by one.
    let came = cluster.status(1).transfer.eager_fetched;
    assert!((20 * 32..20 * 33).contains(&came), "{came} objects came");
}

#[test]
fn objects_that_come_together_stay_as_long_as_they_are_held() {
    let cluster = Cluster::builder().nodes(2).start();
    let (writer, reader) = (cluster.client(0), cluster.client(1));
    let ids: Vec<_> = (0..100).map(|seed| put(&writer, Pattern(seed), 1000)).collect();
    let held: Vec<_> = reader.get(&ids, Some(PATIENCE)).expect("get");
    let held: Vec<_> = held.into_iter().map(|object| object.expect("it exists")).collect();
    let pinned = || cluster.status(1).objects.pinned;
    assert_eq!(pinned(), 100);
    let outcomes = writer.delete(&ids).expect("delete");
    assert!(!outcomes.contains(&DeleteOutcome::Absent), "{outcomes:?}");
    for (seed, id) in (0..).zip(&ids) {
        let options = CreateOptions::default();
        writer.put(*id, &Pattern(1000 + seed).bytes(1000), b"", &options).expect("the id is free");
    }
    for (seed, object) in (0..).zip(&held) {
        Pattern(seed).check(object.data());
    }
    for (seed, object) in (0..).zip(reader.get(&ids, Some(PATIENCE)).expect("get")) {
        Pattern(1000 + seed).check(object.expect("it exists").data());
    }
    drop(held);
    eventually("nothing holds them", || (cluster.status(1).objects.doomed, pinned()) == (0, 0));
}
