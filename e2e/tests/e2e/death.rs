//! Whatever dies: who lives goes on, and no get hangs.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plasmon::{ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, Pattern, eventually, until};

use crate::support::{ClientProcess, MIB, get, kind, put, try_get};

const BIG: usize = 256 * MIB;

/// Begins to get a big object on node 0 and stops the holder that serves it, so that the fetch stands in its
/// middle. Gives the stopped holder, or nothing when the fetch was over too soon.
fn stop_the_holder(cluster: &Cluster, holders: &[usize], finished: impl Fn() -> bool) -> Option<usize> {
    let serving = until("a holder serves, or all is over", || {
        let serving = holders.iter().copied().find(|&holder| cluster.status(holder).transfer.leases > 0);
        serving.map(Some).or(finished().then_some(None))
    })?;
    cluster.pause(serving);
    // Only what is in the sockets' buffers can still arrive.
    (cluster.status(0).transfer.rendezvous_fetched == 0).then_some(serving)
}

#[test]
fn the_only_holder_dies_in_the_middle_of_a_fetch() {
    let mut cluster = Cluster::builder().nodes(2).memory("320MiB").start();
    let id = put(&cluster.client(1), Pattern(1), BIG);
    let bystander = put(&cluster.client(0), Pattern(2), MIB);

    let client = cluster.client(0);
    let fetch = thread::spawn(move || try_get(&client, id).map(|object| object.data().len()));
    let holder = stop_the_holder(&cluster, &[1], || fetch.is_finished());
    assert_eq!(holder, Some(1), "256 MiB arrived before the holder could be stopped");
    cluster.kill(1);

    let error = fetch.join().expect("no panic").expect_err("half an object is no object");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");

    // Nothing is left of the attempt, and nobody else noticed.
    eventually("its memory is free", || {
        let status = cluster.status(0);
        status.objects.unsealed == 0 && status.memory.used < 2 * MIB as u64
    });
    Pattern(2).check(get(&cluster.client(0), bystander).data());
    let again = put(&cluster.client(0), Pattern(3), BIG);
    Pattern(3).check(get(&cluster.client(0), again).data());
}

#[test]
fn another_holder_serves_when_one_dies_in_the_middle_of_a_fetch() {
    let mut cluster = Cluster::builder().nodes(3).memory("320MiB").start();
    let id = put(&cluster.client(1), Pattern(1), BIG);
    Pattern(1).check(get(&cluster.client(2), id).data());
    eventually("both holders are at rest", || {
        [1, 2].iter().all(|&holder| cluster.status(holder).transfer.leases == 0)
    });

    let client = cluster.client(0);
    let fetch = thread::spawn(move || {
        let object = try_get(&client, id)?;
        Pattern(1).check(object.data());
        Ok::<_, plasmon::Error>(object.data().len())
    });
    let holder = stop_the_holder(&cluster, &[1, 2], || fetch.is_finished());
    cluster.kill(holder.expect("256 MiB arrived before the holder could be stopped"));
    assert_eq!(fetch.join().expect("the data is right"), Ok(BIG));
    assert!(cluster.status(0).transfer.fetch_failures >= 1);
}

#[test]
fn a_get_from_a_holder_that_hangs_ends_at_its_time_out() {
    let cluster = Cluster::builder().nodes(2).start();
    let ids = [10, 10 * MIB].map(|len| put(&cluster.client(1), Pattern(1), len));
    cluster.pause(1);
    for id in ids {
        let result = cluster.client(0).get(&[id], Some(Duration::from_millis(300))).expect("get").remove(0);
        // Lost, where the cluster has given the silent node up by then.
        assert!(matches!(kind(result), ErrorKind::TimedOut | ErrorKind::Lost));
    }
    cluster.resume(1);
}

#[test]
fn the_pins_and_creations_of_a_killed_client_go_with_it() {
    let cluster = Cluster::builder().nodes(2).start();
    let ids = [put(&cluster.client(0), Pattern(1), 8 * MIB), put(&cluster.client(1), Pattern(2), 8 * MIB)];
    let unsealed = [ObjectId::random(), ObjectId::random()];
    let size = (10 * MIB).to_string();
    let words = [
        ["pin", &ids[0].to_string()].map(str::to_owned).to_vec(),
        ["pin", &ids[1].to_string()].map(str::to_owned).to_vec(),
        ["create", &unsealed[0].to_string(), &size].map(str::to_owned).to_vec(),
        ["create", &unsealed[1].to_string(), &size].map(str::to_owned).to_vec(),
    ]
    .concat();
    let client = ClientProcess::start(&cluster, 0, &words.iter().map(String::as_str).collect::<Vec<_>>());

    let before = cluster.status(0);
    assert_eq!((before.objects.pinned, before.objects.unsealed), (2, 2));
    assert!(before.memory.used >= 36 * MIB as u64);
    // Deleted while pinned: it goes with its last pin.
    cluster.client(0).delete(&[ids[0]]).expect("delete");
    assert_eq!(cluster.status(0).objects.doomed, 1);

    client.kill();
    eventually("pins, creations and memory are free", || {
        let status = cluster.status(0);
        let objects = &status.objects;
        (objects.pinned, objects.unsealed, objects.doomed) == (0, 0, 0) && status.memory.used < 9 * MIB as u64
    });
    // The ids that were never sealed are free, and the object that lived is whole.
    for id in unsealed {
        crate::support::try_put(&cluster.client(0), id, Pattern(3), MIB).expect("the id is free");
    }
    Pattern(2).check(get(&cluster.client(0), ids[1]).data());
}

#[test]
fn clients_of_a_killed_daemon_learn_it_at_once() {
    let mut cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let id = put(&client, Pattern(1), MIB);
    let held = get(&client, id);

    let (sender, receiver) = mpsc::channel();
    let waiting = cluster.client(0);
    let thread = thread::spawn(move || {
        sender.send(()).expect("the test waits for it");
        // For ever: only the end of the connection can end it.
        waiting.get(&[ObjectId::random()], None).map(|_| ())
    });
    receiver.recv().expect("the thread runs");
    eventually("both clients are connected", || cluster.status(0).clients >= 2);
    cluster.kill(0);
    assert_eq!(kind(thread.join().expect("no panic")), ErrorKind::Disconnected);

    // What was got can still be read: the memory lives as long as it is mapped.
    Pattern(1).check(held.data());
    drop(held);
    assert_eq!(kind(client.status()), ErrorKind::Disconnected);
    assert_eq!(kind(try_get(&client, id)), ErrorKind::Disconnected);
}
