//! Tests of the memory shared with clients: it cannot be used against the engine or against other clients.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use plasmon::wire::{Receiver, Reply, Request, TablePartKind};
use plasmon::{Client, CreateOptions, DeleteOutcome, Error, ErrorKind, ObjectId, Presence};
use plasmon_e2e::{Chance, Cluster, PATIENCE, Pattern, eventually};

use crate::support::{ClientProcess, LONG_LEASE, MIB, ask, get, kind, put};

/// Client that has its page set and the descriptors of the tables in its own hands.
struct Intruder {
    stream: UnixStream,
    receiver: Receiver,
    pages: File,
    bell: File,
    tables: Vec<(TablePartKind, File)>,
}

impl Intruder {
    fn connect(cluster: &Cluster) -> Self {
        let mut stream = UnixStream::connect(cluster.socket(0)).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut receiver = Receiver::default();
        ask(&mut stream, &mut receiver, &Request::Hello { name: "intruder".to_owned() });
        let (Reply::Channel { parts }, descriptors) = ask(&mut stream, &mut receiver, &Request::Channel)
        else {
            panic!("no channel")
        };
        let mut files = descriptors.into_iter().map(File::from);
        let (pages, bell) = (files.next().expect("pages"), files.next().expect("a bell"));
        let tables = parts.iter().map(|part| part.kind).zip(files).collect();
        Self { stream, receiver, pages, bell, tables }
    }

    /// Makes a request by the socket.
    fn ask(&mut self, request: &Request) -> Reply {
        ask(&mut self.stream, &mut self.receiver, request).0
    }
}

/// Offset of the tail of the submissions in a page set.
const SUBMISSIONS_TAIL: u64 = 64;
/// Offset of the tail of the completions.
const COMPLETIONS_TAIL: u64 = 192;
/// Offset of the head of the completions.
const COMPLETIONS_HEAD: u64 = 256;
/// Offset of the first submission.
const SUBMISSIONS: u64 = 4 << 10;
/// Offset of the first completion.
const COMPLETIONS: u64 = 20 << 10;
/// Offset of the data that goes with submissions.
const DATA: u64 = 100 << 10;
/// Bytes of the data that goes with submissions.
const DATA_LEN: u64 = 412 << 10;

impl Intruder {
    fn write(&self, at: u64, word: u64) {
        self.pages.write_all_at(&word.to_le_bytes(), at).expect("the page set can be written");
    }

    fn read(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.pages.read_exact_at(&mut word, at).expect("the page set can be read");
        u64::from_le_bytes(word)
    }

    /// Submits an entry about an object, and returns the outcome and the answer of its completion.
    fn submit(&mut self, operation: u64, id: ObjectId, payload: u32, data_len: u64) -> (u64, u64) {
        let tail = self.read(SUBMISSIONS_TAIL);
        let (first, rest) = id.as_bytes().split_at(16);
        let word = |at: usize| u64::from_le_bytes(first[at..at + 8].try_into().expect("eight bytes"));
        let last = u32::from_le_bytes(rest.try_into().expect("four bytes"));
        let entry =
            [operation, tail, word(0), word(8), u64::from(last) | u64::from(payload) << 32, data_len, 0, 0];
        let place = SUBMISSIONS + tail % 256 * 64;
        (place..).step_by(8).zip(entry).for_each(|(at, word)| self.write(at, word));
        self.write(SUBMISSIONS_TAIL, tail + 1);
        self.bell.write_all(&1u64.to_ne_bytes()).expect("the bell rings");
        eventually("the entry is answered", || self.read(COMPLETIONS_TAIL) == tail + 1);
        self.write(COMPLETIONS_HEAD, tail + 1);
        let answered = COMPLETIONS + tail % 256 * 64;
        (self.read(answered + 8), self.read(answered + 16))
    }

    /// Writes ids to the start of the data area.
    fn name(&self, ids: &[ObjectId]) -> u64 {
        let flat: Vec<u8> = ids.iter().flat_map(|id| *id.as_bytes()).collect();
        self.pages.write_all_at(&flat, DATA).expect("the page set can be written");
        flat.len() as u64
    }
}

impl Intruder {
    /// Outcome of an entry that waits for other nodes: done, or what is collected by the socket.
    fn submit_patiently(&mut self, operation: u64, id: ObjectId, data_len: u64) -> Result<(), ErrorKind> {
        match self.submit(operation | PATIENT, id, 0, data_len) {
            (DONE, _) => Ok(()),
            (COLLECT, number) => match self.ask(&Request::Collect { number }) {
                Reply::Done if operation == PUT => Ok(()),
                Reply::Created { .. } if operation == CREATE => Ok(()),
                Reply::Failed { error } => Err(error.kind()),
                other => panic!("{other:?}"),
            },
            (outcome, _) => panic!("outcome {outcome}"),
        }
    }

    /// Ids about which the ring says that another node decides.
    fn decided_elsewhere(&mut self, count: usize) -> Vec<ObjectId> {
        let mut ids = Vec::new();
        for number in 0.. {
            let id = ObjectId::from_name(&format!("elsewhere {number}"));
            match self.submit(CREATE, id, 0, 100).0 {
                DONE => assert_eq!(self.submit(ABORT, id, 0, 0).0, DONE),
                _ => ids.push(id),
            }
            if ids.len() == count {
                break;
            }
        }
        ids
    }
}

/// Operation of an entry that puts an object.
const PUT: u64 = 1;
/// Operation of an entry that creates an object.
const CREATE: u64 = 2;
/// Operation of an entry that seals an object.
const SEAL: u64 = 3;
/// Operation of an entry that aborts a creation.
const ABORT: u64 = 4;
/// Operation of an entry that deletes objects.
const DELETE: u64 = 5;
/// Bit of the operation of an entry that waits for other nodes.
const PATIENT: u64 = 1 << 12;
/// Outcome of an entry that is done.
const DONE: u64 = 1;
/// Outcome of an entry that was not carried out: the same request goes by the socket.
const ASK_BY_SOCKET: u64 = 2;
/// Outcome of an entry whose end is collected by the socket.
const COLLECT: u64 = 3;

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
        // A process of the same user may open files that the user owns; the seal still refuses the write.
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
fn entries_that_ask_for_too_much_change_nothing() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let ids: Vec<_> = (0..40).map(|seed| put(&client, Pattern(seed), 100)).collect();
    let (small, large) = (ObjectId::random(), ObjectId::random());
    let options = CreateOptions::default();
    let mut creations =
        [(small, 100), (large, MIB as u64)].map(|(id, len)| client.create(id, len, b"", &options).unwrap());
    creations.iter_mut().for_each(|creation| creation.as_mut_slice().fill(7));

    let mut intruder = Intruder::connect(&cluster);
    // Creations are their creator's.
    for id in [small, large, ObjectId::random()] {
        assert_eq!(intruder.submit(SEAL, id, 0, 0).0, ASK_BY_SOCKET);
        assert_eq!(intruder.submit(SEAL, id, 0, 100).0, ASK_BY_SOCKET);
        assert_eq!(intruder.submit(ABORT, id, 0, 0).0, ASK_BY_SOCKET);
    }
    // The engine reads neither too many ids, nor a part of one, nor ids beyond the data.
    let len = intruder.name(&ids[..33]);
    for (payload, len) in
        [(0, len), (0, 19), (0, u64::MAX), (0, 20 << 32), (DATA_LEN as u32 - 19, 20), (u32::MAX, 20)]
    {
        assert_eq!(
            intruder.submit(DELETE, ids[0], payload, len).0,
            ASK_BY_SOCKET,
            "{len} bytes at {payload}"
        );
        assert_eq!(intruder.submit(SEAL, small, payload, len).0, ASK_BY_SOCKET, "{len} bytes at {payload}");
    }
    for (id, seed) in ids.iter().zip(0..) {
        Pattern(seed).check(get(&client, *id).data());
    }
    // A well-formed entry is carried out: an object that is there, one that is not, and the first again.
    let len = intruder.name(&[ids[0], ObjectId::random(), ids[0]]);
    assert_eq!(intruder.submit(DELETE, ids[0], 0, len), (DONE, 1));
    assert!(client.get_here(&ids[0]).is_none());
    for creation in creations {
        let id = creation.id();
        creation.seal().expect("nobody else has ended it");
        assert!(get(&client, id).data().iter().all(|byte| *byte == 7));
    }
}

#[test]
fn the_ring_answers_what_other_nodes_decide() {
    let cluster = Cluster::builder().nodes(2).start();
    let clients = [cluster.client(0), cluster.client(1)];
    let mut intruder = Intruder::connect(&cluster);
    let ids = intruder.decided_elsewhere(30);
    for (id, len) in ids.iter().zip([100, 100, MIB as u64].into_iter().cycle()) {
        intruder.submit_patiently(CREATE, *id, len).expect("nobody else has it");
        assert_eq!(
            intruder.submit_patiently(CREATE, *id, len),
            Err(ErrorKind::Exists),
            "it is being created"
        );
        assert_eq!(kind(put_named(&clients[1], *id)), ErrorKind::Exists);
        assert_eq!(intruder.submit(ABORT, *id, 0, 0).0, DONE);
        eventually("its claim is withdrawn", || intruder.submit_patiently(PUT, *id, 100).is_ok());
        assert_eq!(intruder.submit_patiently(PUT, *id, 100), Err(ErrorKind::Exists));
        assert_eq!(clients[1].delete(&[*id]).expect("delete"), [DeleteOutcome::Deleted]);
        put_named(&clients[1], *id).expect("nobody else has it");
        assert_eq!(intruder.submit_patiently(CREATE, *id, len), Err(ErrorKind::Exists), "it exists");
    }
    for (round, there) in (0..).zip(ids.chunks(3)) {
        let here = put(&clients[0], Pattern(round), 100);
        let gone = [there[0], here, ObjectId::random(), there[1]];
        let outcomes = [DeleteOutcome::Deleted, DeleteOutcome::Deleted, DeleteOutcome::Absent];
        let len = intruder.name(&gone);
        assert_eq!(intruder.submit(DELETE, gone[0], 0, len).0, ASK_BY_SOCKET, "other nodes have to be asked");
        match intruder.submit(DELETE | PATIENT, gone[0], 0, len) {
            (DONE, codes) => assert_eq!(codes, 0b01_00_01_01),
            (COLLECT, number) => {
                let told = [&outcomes[..], &[DeleteOutcome::Deleted]].concat();
                assert_eq!(intruder.ask(&Request::Collect { number }), Reply::Deleted(told));
                let Reply::Failed { error } = intruder.ask(&Request::Collect { number }) else {
                    panic!("again")
                };
                assert_eq!(error.kind(), ErrorKind::Invalid, "it is told once");
            }
            other => panic!("{other:?}"),
        }
        for client in &clients {
            assert!(client.contains(&gone).expect("contains").iter().all(|one| *one == Presence::Absent));
        }
    }
}

fn put_named(client: &Client, id: ObjectId) -> Result<(), Error> {
    client.put(id, &[3; 100], b"", &CreateOptions::default())
}

/// Number of objects that the clients of the first node have made, and of those that they are creating.
fn made(cluster: &Cluster) -> (u64, u64) {
    let objects = cluster.status(0).objects;
    (objects.primary, objects.unsealed)
}

#[test]
fn puts_and_creations_that_wait_for_a_node_are_made_once_and_hold_up_nobody() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let client = cluster.client(0);
    let ids = Intruder::connect(&cluster).decided_elsewhere(12);
    cluster.pause(1);
    let options = CreateOptions::default();
    let (together, alone) = ids.split_at(4);
    thread::scope(|threads| {
        let client = &client;
        let lot: Vec<_> = together.iter().map(|id| (*id, &b"some"[..], &b""[..])).collect();
        let many = threads.spawn(move || client.put_many(&lot, &CreateOptions::default()));
        let making: Vec<_> = alone
            .iter()
            .zip([100, 3 * MIB].into_iter().cycle())
            .enumerate()
            .map(|(at, (id, len))| {
                let (options, bytes) = (&options, Pattern(at as u64).bytes(len));
                threads.spawn(move || {
                    if at % 4 < 2 {
                        return client.put(*id, &bytes, b"", options);
                    }
                    let mut creation = client.create(*id, len as u64, b"", options)?;
                    creation.as_mut_slice().copy_from_slice(&bytes);
                    creation.seal()
                })
            })
            .collect();
        for seed in 0..200 {
            let id = put(client, Pattern(seed), 1000);
            Pattern(seed).check(get(client, id).data());
        }
        assert!(
            !making.iter().any(|thread| thread.is_finished()),
            "nobody has said whether the ids are taken"
        );
        assert!(!many.is_finished());
        cluster.resume(1);
        for making in making {
            making.join().expect("it ends").expect("nobody else has the id");
        }
        for put in many.join().expect("it ends").expect("put") {
            put.expect("nobody else has the id");
        }
    });
    for (at, id) in (0..).zip(alone) {
        Pattern(at).check(get(&cluster.client(1), *id).data());
    }
    assert_eq!(made(&cluster), (200 + ids.len() as u64, 0));
}

#[test]
fn puts_and_creations_that_were_given_up_leave_nothing() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let (client, other) = (cluster.client(0), cluster.client(1));
    let ids = Intruder::connect(&cluster).decided_elsewhere(10);
    // One has descriptors to write large objects, the other not yet.
    put(&client, Pattern(1), 3 * MIB);
    let hasty = [client.clone(), cluster.client(0)].map(|one| one.within(Duration::from_millis(50)));
    let mut dying = Intruder::connect(&cluster);
    cluster.pause(1);
    let options = CreateOptions::default();
    for (hasty, ids) in hasty.iter().zip(ids.chunks(4)) {
        assert_eq!(kind(put_named(hasty, ids[0])), ErrorKind::TimedOut);
        for (id, len) in ids[1..].iter().zip([100, 3 * MIB as u64, 5 * MIB as u64]) {
            assert_eq!(kind(hasty.create(*id, len, b"", &options)), ErrorKind::TimedOut);
        }
        // The ring is of use meanwhile.
        let id = put(hasty, Pattern(2), 1000);
        Pattern(2).check(get(&client, id).data());
    }
    for (id, operation) in ids[8..].iter().zip([PUT, CREATE]) {
        assert_eq!(dying.submit(operation | PATIENT, *id, 0, 100).0, COLLECT);
    }
    let clients = cluster.status(0).clients;
    drop(dying);
    eventually("its connection ends", || cluster.status(0).clients < clients);
    cluster.resume(1);
    for id in &ids {
        eventually("the id is free", || put_named(&other, *id).is_ok());
    }
    assert_eq!(made(&cluster), (3, 0));
}

#[test]
fn a_deletion_that_waits_for_a_node_holds_up_none_of_its_clients_threads() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let client = cluster.client(0);
    let far: Vec<_> = (0..4).map(|seed| put(&cluster.client(1), Pattern(seed), 100)).collect();
    for (id, seed) in far.iter().zip(0..) {
        Pattern(seed).check(get(&client, *id).data());
    }
    cluster.pause(1);
    thread::scope(|threads| {
        let deleting: Vec<_> = far.iter().map(|id| threads.spawn(|| client.delete(&[*id]))).collect();
        for seed in 0..200 {
            let id = put(&client, Pattern(seed), 1000);
            Pattern(seed).check(get(&client, id).data());
        }
        assert!(!deleting.iter().any(|thread| thread.is_finished()), "the holder has not dropped it");
        cluster.resume(1);
        for deleting in deleting {
            assert_eq!(deleting.join().expect("it ends").expect("delete"), [DeleteOutcome::Deleted]);
        }
    });
}

#[test]
fn a_deletion_that_was_given_up_goes_on() {
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let client = cluster.client(0);
    let far = put(&cluster.client(1), Pattern(1), 100);
    cluster.pause(1);
    for _ in 0..3 {
        assert_eq!(
            kind(client.clone().within(Duration::from_millis(50)).delete(&[far])),
            ErrorKind::TimedOut
        );
        let id = put(&client, Pattern(2), 1000);
        Pattern(2).check(get(&client, id).data());
    }
    cluster.resume(1);
    eventually("the deletions go on", || client.contains(&[far]).expect("contains") == [Presence::Absent]);
}

#[test]
fn of_two_creators_of_an_id_one_is_refused() {
    let cluster = Cluster::builder().start();
    let (one, other) = (cluster.client(0), cluster.client(0));
    for len in [100, 2 * MIB as u64] {
        let (id, options) = (ObjectId::random(), CreateOptions::default());
        let mut creation = one.create(id, len, b"meta", &options).expect("the id is free");
        let taken = |client: &plasmon::Client| client.create(id, len, b"", &options).map(drop).unwrap_err();
        assert_eq!(taken(&other).kind(), ErrorKind::Exists);
        assert_eq!(taken(&one).kind(), ErrorKind::Exists);
        creation.as_mut_slice().fill(1);
        drop(creation);
        // The creation is aborted by the time that its creator makes the next one.
        one.create(id, len, b"", &options).expect("the id is free again").abort().expect("abort");
        let mut creation = other.create(id, len, b"", &options).expect("the id is free again");
        creation.as_mut_slice().fill(2);
        creation.seal().expect("seal");
        assert_eq!(taken(&one).kind(), ErrorKind::Exists);
        assert!(get(&one, id).data().iter().all(|byte| *byte == 2));
        assert_eq!(one.delete(&[id, id]).expect("delete"), [DeleteOutcome::Deleted, DeleteOutcome::Absent]);
    }
    eventually("nothing leaks", || cluster.status(0).memory.used == 0);
}

#[test]
fn a_client_that_dies_leaves_no_creation() {
    let cluster = Cluster::builder().start();
    let ids: Vec<_> = (0..4).map(|_| ObjectId::random().to_string()).collect();
    // The first large one comes by the socket, with the descriptors.
    let sizes = ["1000000", "3000000", "1000", "0"];
    let words: Vec<_> = ids.iter().zip(sizes).flat_map(|(id, size)| ["create", id, size]).collect();
    let creator = ClientProcess::start(&cluster, 0, &words);
    let status = cluster.status(0);
    assert_eq!(status.objects.unsealed, 4);
    assert!(status.memory.used > 4_000_000, "{} bytes", status.memory.used);
    creator.kill();
    eventually("everything returns", || {
        let status = cluster.status(0);
        (status.objects.unsealed, status.memory.used) == (0, 0)
    });
    let client = cluster.client(0);
    for (id, len) in ids.iter().zip([1, 100, MIB, 10]) {
        let id: ObjectId = id.parse().expect("it is one");
        client.put(id, &Pattern(1).bytes(len), b"", &CreateOptions::default()).expect("the id is free");
        Pattern(1).check(get(&client, id).data());
    }
}

#[test]
fn objects_that_are_held_are_deleted_through_the_ring_as_well() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let (small, large) = (put(&client, Pattern(1), 100), put(&client, Pattern(2), MIB));
    let held = [small, large].map(|id| get(&client, id));
    assert_eq!(client.delete(&[small, large]).expect("delete"), [DeleteOutcome::Deferred; 2]);
    held.iter().zip(1..).for_each(|(object, seed)| Pattern(seed).check(object.data()));
    drop(held);
    eventually("the memory returns with the last pin", || cluster.status(0).memory.used == 0);
    // More ids than an entry has.
    let ids: Vec<_> = (0..100).map(|seed| put(&client, Pattern(seed), 10)).collect();
    assert_eq!(client.delete(&ids).expect("delete"), [DeleteOutcome::Deleted; 100]);
    assert_eq!(client.delete(&ids[..32]).expect("delete"), [DeleteOutcome::Absent; 32]);
}

#[test]
fn owned_objects_and_those_with_an_end_go_through_the_ring() {
    let cluster = Cluster::builder().start();
    let (owner, other) = (cluster.client(0), cluster.client(0));
    let owned = CreateOptions { owned: true, ..CreateOptions::default() };
    let short = CreateOptions { ttl: Some(Duration::from_millis(1)), ..CreateOptions::default() };
    for options in [&owned, &short] {
        for len in [100, MIB] {
            owner.put(ObjectId::random(), &Pattern(1).bytes(len), b"", options).expect("put");
            let mut creation = owner.create(ObjectId::random(), len as u64, b"", options).expect("create");
            creation.as_mut_slice().fill(1);
            creation.seal().expect("seal");
        }
    }
    eventually("the time of half of them is over", || other.list().expect("list").len() == 4);
    drop(owner);
    eventually("the others end with their owner", || other.list().expect("list").is_empty());
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
            // The process has no more descriptors, or the queue is full for a moment.
            Err(_) => break,
        }
    }
    let id = ObjectId::random();
    client.put(id, b"data", b"", &CreateOptions::default()).expect("it is connected");
    assert_eq!(get(&client, id).data(), b"data");
    drop(crowd);
    eventually("they are forgotten", || cluster.status(0).clients < 10);
}
