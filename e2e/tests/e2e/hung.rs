//! Tests of a stopped daemon: calls end by the client's own clock, and work again when the daemon continues.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plasmon::{Client, CreateOptions, DeleteOutcome, Error, ErrorKind, NodeId, ObjectId, Scratch};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, binary, eventually, until};

use crate::support::{LONG_LEASE, MIB, get, kind, put, try_get};

/// Time-out that a stopped daemon cannot meet.
const SOON: Duration = Duration::from_millis(50);

type Call = Box<dyn FnOnce(&Client) -> Result<(), Error> + Send>;

fn within() -> CreateOptions {
    CreateOptions { room: Some(SOON), ..CreateOptions::default() }
}

/// Runs code that may hang in a thread, and returns its result.
fn finish<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let _ = tell.send(work());
    });
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} outlives its time-out"))
}

fn nothing_is_left(cluster: &Cluster) {
    eventually("nothing is pinned or being created", || {
        let status = cluster.status(0);
        let pins: u64 = status.connections.iter().map(|client| client.pins).sum();
        (status.objects.unsealed, status.objects.pinned, status.objects.doomed, pins) == (0, 0, 0, 0)
    });
}

/// Calls that look for objects or order what becomes of them.
fn calls_for_objects(there: ObjectId, here: ObjectId) -> Vec<(&'static str, Call)> {
    vec![
        (
            "get",
            Box::new(move |client| {
                client.get(&[there], Some(SOON)).and_then(|mut got| got.remove(0)).map(drop)
            }),
        ),
        (
            "get of what is here",
            Box::new(move |client| {
                client.get(&[there], Some(Duration::ZERO)).and_then(|mut got| got.remove(0)).map(drop)
            }),
        ),
        ("wait", Box::new(move |client| client.wait(&[there], 1, Some(SOON), None).map(drop))),
        ("pin", Box::new(move |client| client.pin(there, Some(SOON)))),
        ("replicate", Box::new(move |client| client.replicate(here, 2, Some(SOON)).map(drop))),
        (
            "migrate",
            Box::new(move |client| client.migrate(there, NodeId::from_bytes([1; 16]), Some(SOON)).map(drop)),
        ),
        ("broadcast", Box::new(move |client| client.broadcast(there, &[], Some(SOON)).map(drop))),
    ]
}

/// Calls that make objects, or memory for them, or get an object into memory. `lent` and `given` is memory
/// that a client has borrowed.
fn calls_with_bytes(
    there: ObjectId,
    [small, large, created]: [ObjectId; 3],
    mut lent: (Scratch, Client),
    mut given: (Scratch, Client),
) -> Vec<(&'static str, Call)> {
    vec![
        ("small put", Box::new(move |client| client.put(small, &[1; 100], b"", &within()))),
        ("large put", Box::new(move |client| client.put(large, &[1; 3 * MIB], b"", &within()))),
        ("create", Box::new(move |client| client.create(created, 3 << 20, b"", &within()).map(drop))),
        ("buffer", Box::new(move |client| client.buffer(MIB, false, Some(SOON)).map(drop))),
        (
            "put_many",
            Box::new(move |client| {
                let objects =
                    [(ObjectId::random(), &[1; 100][..], &b""[..]), (ObjectId::random(), &[2; MIB], b"")];
                client.put_many(&objects, &within()).and_then(|results| results.into_iter().collect())
            }),
        ),
        ("get_into", Box::new(move |client| client.get_into(there, &mut vec![0; MIB], Some(SOON)).map(drop))),
        (
            "get_into lent memory",
            Box::new(move |_| {
                let (memory, client) = &mut lent;
                client.get_into(there, memory.as_mut_slice(), Some(SOON)).map(drop)
            }),
        ),
        (
            "put_from",
            Box::new(move |_| {
                let (memory, client) = &mut given;
                client.put_from(ObjectId::random(), memory, MIB, b"", &within()).map(drop)
            }),
        ),
    ]
}

/// Calls that ask the node, or all nodes, and the connection itself.
fn calls_of_the_node(there: ObjectId, node: NodeId, called: Client) -> Vec<(&'static str, Call)> {
    vec![
        ("contains", Box::new(move |client| client.clone().within(SOON).contains(&[there]).map(drop))),
        ("delete", Box::new(move |client| client.clone().within(SOON).delete(&[there; 1]).map(drop))),
        ("status", Box::new(move |client| client.clone().within(SOON).status().map(drop))),
        (
            "ping, by the socket that slots are asked for",
            Box::new(move |client| client.ping(node, SOON).map(drop)),
        ),
        ("ping, by slot", Box::new(move |_| called.ping(node, SOON).map(drop))),
        ("list", Box::new(move |client| client.clone().within(SOON).list().map(drop))),
        ("locations", Box::new(move |client| client.clone().within(SOON).locations(there).map(drop))),
        (
            "connect",
            Box::new(|client| Client::connect_with(client.socket(), "late", Some(SOON), None).map(drop)),
        ),
    ]
}

#[test]
fn no_call_outlives_its_time_out_and_nothing_is_left_of_it() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let there = put(&cluster.client(1), Pattern(1), MIB);
    let here = put(&cluster.client(0), Pattern(2), 100);
    let [small, large, created] = [ObjectId::random(); 3].map(|_| ObjectId::random());
    let [lent, given] = [(); 2].map(|()| {
        let client = cluster.client(0);
        (client.buffer(MIB, false, None).expect("there is room"), client)
    });
    let called = cluster.client(0);
    let node = called.node();
    called.ping(node, PATIENCE).expect("the node answers");
    let mut calls = calls_for_objects(there, here);
    calls.extend(calls_with_bytes(there, [small, large, created], lent, given));
    calls.extend(calls_of_the_node(there, node, called));
    let calls: Vec<_> = calls.into_iter().map(|(what, call)| (what, call, cluster.client(0))).collect();
    cluster.pause(0);
    let calling = |(what, call, client): (_, Call, Client)| {
        thread::spawn(move || {
            assert_eq!(kind(call(&client)), ErrorKind::TimedOut, "{what}");
            client
        })
    };
    let calls: Vec<_> = calls.into_iter().map(calling).collect();
    let clients: Vec<_> =
        finish("one of the calls", || calls.into_iter().map(thread::JoinHandle::join).collect());
    let clients: Vec<_> = clients.into_iter().map(|client| client.expect("it timed out")).collect();
    cluster.resume(0);

    // All of them are of use, and see the same.
    for (number, client) in clients.iter().enumerate() {
        let pattern = Pattern(number as u64);
        for len in [100, MIB] {
            Pattern(2).check(get(client, here).data());
            let id = put(client, pattern, len);
            pattern.check(get(client, id).data());
            // On a busy machine a keeper may need longer than the time-out.
            eventually("it puts in time", || {
                client.put(ObjectId::random(), &pattern.bytes(len), b"", &within()).is_ok()
            });
        }
    }
    nothing_is_left(&cluster);
    // An object whose data was not written yet was never created.
    for (id, len) in [(large, 3 * MIB), (created, 3 * MIB)] {
        eventually("the id is free", || {
            clients[0].put(id, &Pattern(3).bytes(len), b"", &CreateOptions::default()).is_ok()
        });
        Pattern(3).check(get(&clients[0], id).data());
    }
    let again = clients[0].put(small, &[1; 100], b"", &CreateOptions::default());
    assert!(again.is_ok() || kind(again) == ErrorKind::Exists, "what was asked for may have happened");
    assert_eq!(get(&clients[0], small).data(), [1; 100]);
    eventually("what was asked for has happened", || {
        clients[0].delete(&[there]).expect("delete") == [DeleteOutcome::Absent]
    });
}

#[test]
fn a_creation_of_the_ring_that_comes_too_late_is_aborted_by_whatever_its_client_asks_next() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let id = ObjectId::random();
    cluster.pause(0);
    let data = Pattern(1).bytes(3 * MIB);
    assert_eq!(kind(client.put(id, &data, b"", &within())), ErrorKind::TimedOut);
    cluster.resume(0);
    eventually("it is given up", || {
        let status = client.status().expect("it lives");
        status.objects.unsealed == 0 && status.memory.used == 0
    });
    client.put(id, &data, b"", &CreateOptions::default()).expect("its id is free");
    Pattern(1).check(get(&client, id).data());
}

#[test]
fn threads_of_one_client_have_clocks_of_their_own() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let (client, writer) = (cluster.client(0), cluster.client(1));
    let wanted = ObjectId::random();
    let patient = |what: &'static str, call: fn(&Client, ObjectId) -> Result<(), Error>| {
        let client = client.clone();
        thread::spawn(move || call(&client, wanted).unwrap_or_else(|error| panic!("{what}: {error}")))
    };
    // Patient and impatient threads read the socket at times. Threads that go leave it to those that stay.
    let getting: Vec<_> =
        (0..3).map(|_| patient("get", |client, id| try_get(client, id).map(drop))).collect();
    eventually("they wait", || cluster.status(0).transfer.fetching > 0);
    cluster.pause(0);
    let putting =
        patient("put", |client, _| client.put(ObjectId::random(), b"x", b"", &CreateOptions::default()));
    let mut impatient = Vec::new();
    for _ in 0..3 {
        let client = client.clone();
        impatient.push(thread::spawn(move || {
            // Calls end in time also while another thread has the rings.
            [
                client.get(&[ObjectId::random()], Some(SOON)).and_then(|mut got| got.remove(0)).map(drop),
                client.put(ObjectId::random(), b"y", b"", &within()),
            ]
        }));
    }
    finish("a call beside others", move || {
        for calls in impatient {
            calls
                .join()
                .expect("no panic")
                .into_iter()
                .for_each(|call| assert_eq!(kind(call), ErrorKind::TimedOut));
        }
    });
    assert!(!putting.is_finished() && getting.iter().all(|thread| !thread.is_finished()), "they have time");
    cluster.resume(0);
    writer.put(wanted, &Pattern(1).bytes(MIB), b"", &CreateOptions::default()).expect("put");
    finish("a call that was answered", move || {
        putting.join().expect("no panic");
        getting.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
    Pattern(1).check(get(&client, wanted).data());
    nothing_is_left(&cluster);
}

#[test]
fn a_daemon_that_reads_nothing_keeps_no_call_and_answers_all_rightly_later() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let client = cluster.client(0);
    let there = put(&cluster.client(1), Pattern(1), MIB);
    cluster.pause(0);
    // More than a socket takes.
    let ids: Vec<_> = (0..60_000).map(|_| ObjectId::random()).collect();
    let (full, own) = (client.clone(), cluster.client(1).node());
    assert_ne!(own, client.node());
    let late = ObjectId::random();
    finish("a call whose frame cannot be sent", move || {
        assert_eq!(kind(full.wait(&ids, 1, Some(SOON), None)), ErrorKind::TimedOut);
        for _ in 0..3 {
            assert_eq!(
                kind(full.get(&[there], Some(SOON)).and_then(|mut got| got.remove(0))),
                ErrorKind::TimedOut
            );
            assert_eq!(kind(full.create(late, 100, b"", &within())), ErrorKind::TimedOut);
        }
        drop(full);
    });
    cluster.resume(0);
    Pattern(1).check(get(&client, there).data());
    nothing_is_left(&cluster);
    eventually("nothing waits for the node", || cluster.status(0).transfer.fetching == 0);
    client.put(late, &[7; 100], b"", &CreateOptions::default()).expect("it was never made");
}

#[test]
fn commands_end_at_their_time_out() {
    let cluster = Cluster::builder().start();
    let id = put(&cluster.client(0), Pattern(1), 100).to_string();
    cluster.pause(0);
    let commands: [(&[&str], &str, &[&str]); 7] = [
        (&["get", &id], "0.2", &[]),
        (&["wait", &id], "0.2", &[]),
        (&["hash", &id], "0.2", &[]),
        (&["put", "-"], "0.2", &[]),
        (&["replicate", &id, "2"], "0.2", &[]),
        (&["lock", "name"], "0.2s", &["--", "true"]),
        (&["barrier", "name", "2"], "0.2s", &[]),
    ];
    let mut running = Vec::new();
    for (words, timeout, last) in commands {
        let mut command = Command::new(binary());
        command.args(words).args(["--timeout", timeout]).arg("--socket").arg(cluster.socket(0)).args(last);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        // The command may have ended without reading.
        let _ = child.stdin.take().expect("it is a pipe").write_all(b"data");
        running.push((words, child));
    }
    for (words, mut child) in running {
        let status = until(&format!("{words:?} ends"), || child.try_wait().expect("it is our child"));
        assert_eq!(status.code(), Some(4), "{words:?}");
        let mut said = String::new();
        child.stderr.take().expect("it is a pipe").read_to_string(&mut said).expect("it is text");
        assert!(!said.contains("10.0 s"), "{words:?} waited for another time than it was told: {said}");
    }
    cluster.resume(0);
}
