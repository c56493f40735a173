//! Tests of the memory shared with clients: it cannot be used against the engine or against other clients.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use plasmon::wire::{Header, Receiver, Reply, Request, TablePartKind};
use plasmon::{CreateOptions, ObjectId};
use plasmon_e2e::{Chance, Cluster, PATIENCE, Pattern, eventually};

use crate::support::{ClientProcess, MIB, get, put};

/// Client that has its page set and the descriptors of the tables in its own hands.
struct Intruder {
    _stream: UnixStream,
    pages: File,
    bell: File,
    tables: Vec<(TablePartKind, File)>,
}

impl Intruder {
    fn connect(cluster: &Cluster) -> Self {
        let mut stream = UnixStream::connect(cluster.socket(0)).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut receiver = Receiver::default();
        let mut ask = |request: Request| -> (Reply, Vec<OwnedFd>) {
            let mut out = BytesMut::new();
            request.encode(1, &mut out);
            stream.write_all(&out).expect("the daemon reads");
            loop {
                let frame = Header::take_frame(&mut receiver.buffer).expect("the daemon's frames are whole");
                if let Some((header, body)) = frame {
                    let descriptors = receiver.take_descriptors(header.descriptors.into());
                    return (Reply::decode(&header, body).expect("they make sense"), descriptors);
                }
                assert_ne!(receiver.receive(&stream).expect("the daemon answers"), 0, "it hung up");
            }
        };
        ask(Request::Hello { name: "intruder".to_owned() });
        let (Reply::Channel { parts }, descriptors) = ask(Request::Channel) else { panic!("no channel") };
        let mut files = descriptors.into_iter().map(File::from);
        let (pages, bell) = (files.next().expect("pages"), files.next().expect("a bell"));
        let tables = parts.iter().map(|part| part.kind).zip(files).collect();
        Self { _stream: stream, pages, bell, tables }
    }
}

/// Length of the random attack: a minute if tests may take long (`make test-all`).
fn torment() -> Duration {
    Duration::from_secs(if std::env::var_os("PLASMON_E2E_LONG").is_some() { 60 } else { 8 })
}

#[test]
fn nobody_writes_an_object_table() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let id = put(&client, Pattern(1), 1000);
    let intruder = Intruder::connect(&cluster);
    assert!(intruder.tables.len() >= 4, "{} parts", intruder.tables.len());
    for (kind, file) in &intruder.tables {
        assert!(file.write_at(&[0xff; 64], 0).is_err(), "{kind:?} was written");
        assert!(file.set_len(0).is_err(), "{kind:?} was cut");
        // The same user may open what it owns; the seal still refuses the write.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        let _ = file.set_permissions(PermissionsExt::from_mode(0o600));
        if let Ok(again) = File::options().write(true).open(path) {
            assert!(again.write_at(&[0xff; 64], 0).is_err(), "{kind:?} was written when opened again");
        }
    }
    Pattern(1).check(get(&client, id).data());
}

#[test]
fn garbage_in_a_page_set_hurts_nobody_else() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let held = get(&client, put(&client, Pattern(1), 5 * MIB));
    let mut chance = Chance::of_seed(1);
    let until = Instant::now() + torment();
    let mut rounds = 0u64;
    while Instant::now() < until {
        let mut intruder = Intruder::connect(&cluster);
        for _ in 0..50 {
            // Mostly the header and the rings, where it matters most.
            let size = *chance.pick(&[512, 512 << 10]);
            for _ in 0..200 {
                let at = chance.below(size / 8) as u64 * 8;
                let word = match chance.below(4) {
                    0 => 0,
                    1 => chance.below(300) as u64,
                    2 => (1 << 63) | chance.below(4) as u64,
                    _ => chance.word(),
                };
                let _ = intruder.pages.write_at(&word.to_le_bytes(), at);
            }
            let _ = intruder.bell.write(&1u64.to_ne_bytes());
        }
        rounds += 1;
        let id = put(&client, Pattern(rounds), 100);
        Pattern(rounds).check(get(&client, id).data());
        client.delete(&[id]).expect("delete");
    }
    Pattern(1).check(held.data());
    drop(held);
    let used = || cluster.status(0).memory.used;
    client
        .delete(&client.list().expect("list").iter().map(|row| row.id).collect::<Vec<_>>())
        .expect("delete");
    eventually("nothing leaks", || used() == 0);
    assert!(rounds > 10, "only {rounds} rounds");
}

#[test]
fn clients_that_are_killed_at_any_moment_leave_the_store_sound() {
    let cluster = Cluster::builder().args(&["--cache"]).start();
    let client = cluster.client(0);
    let kept: Vec<_> = (0..4).map(|seed| get(&client, put(&client, Pattern(seed), MIB))).collect();
    let until = Instant::now() + torment();
    let mut chance = Chance::of_seed(2);
    let mut killed = 0u64;
    while Instant::now() < until {
        let churning: Vec<_> = (0..2)
            .map(|one| ClientProcess::start(&cluster, 0, &["churn", &(killed * 1000 + one).to_string()]))
            .collect();
        let nap = Instant::now() + chance.span(Duration::from_millis(50));
        while Instant::now() < nap {
            let id = put(&client, Pattern(killed), 3000);
            // The others may have driven it out already: this is a cache.
            if let Ok(object) = client.get(&[id], Some(Duration::ZERO)).expect("get").remove(0) {
                Pattern(killed).check(object.data());
            }
            client.delete(&[id]).expect("delete");
        }
        churning.into_iter().for_each(ClientProcess::kill);
        killed += 2;
    }
    for (seed, object) in (0..).zip(&kept) {
        Pattern(seed).check(object.data());
    }
    drop(kept);
    // All objects can leave memory, because no client has pins any more.
    let ids = |client: &plasmon::Client| -> Vec<ObjectId> {
        client.list().expect("list").iter().map(|row| row.id).collect()
    };
    eventually("nothing leaks", || {
        client.delete(&ids(&client)).expect("delete");
        cluster.status(0).memory.used == 0
    });
    let status = cluster.status(0);
    assert_eq!((status.objects.unsealed, status.objects.doomed), (0, 0), "{:?}", status.objects);
    assert!(killed >= 10, "only {killed} were killed");
}

#[test]
fn ten_thousand_connections_are_served_or_refused() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let mut crowd = Vec::new();
    for _ in 0..10_000 {
        match UnixStream::connect(cluster.socket(0)) {
            Ok(stream) => crowd.push(stream),
            // This process has no more descriptors, or the queue is full for a moment.
            Err(_) => break,
        }
    }
    let id = ObjectId::random();
    client.put(id, b"data", b"", &CreateOptions::default()).expect("it is connected");
    assert_eq!(get(&client, id).data(), b"data");
    drop(crowd);
    eventually("they are forgotten", || cluster.status(0).clients < 10);
}
