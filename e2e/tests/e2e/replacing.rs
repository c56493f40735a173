//! Tests of objects that take the place of others: every node gives the old one, and from one moment on the
//! new one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::region::region_id;
use plasmon::service::{ServeOptions, service_id};
use plasmon::{
    Client, CreateOptions, DeleteOutcome, Error, ErrorKind, Object, ObjectId, Presence, RegionOptions,
    Rights, Version,
};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};
use rustix::process::geteuid;

use crate::support::{LONG_LEASE, MIB, NOBODY, client_of, get, here, kind, put, try_get};

/// Sizes in bytes: nothing, one byte, of one page, of one read, and written in place.
const SIZES: [usize; 5] = [0, 1, 4095, 64 << 10, 3 * MIB];

/// Puts an object that has a number in the place of what has its id.
pub(crate) fn write(
    client: &Client,
    id: ObjectId,
    number: u64,
    len: usize,
    expected: Option<Version>,
) -> Result<Version, Error> {
    write_with(client, id, number, len, &CreateOptions::default(), expected)
}

pub(crate) fn write_with(
    client: &Client,
    id: ObjectId,
    number: u64,
    len: usize,
    options: &CreateOptions,
    expected: Option<Version>,
) -> Result<Version, Error> {
    client.replace(id, &Pattern(number).bytes(len), &number.to_le_bytes(), options, expected)
}

/// Number of an object that [`write`] made. All its bytes are checked.
pub(crate) fn number(object: &Object) -> u64 {
    let number = u64::from_le_bytes(object.metadata().try_into().expect("a number is its metadata"));
    Pattern(number).check(object.data());
    number
}

/// Number and version of what a client gets.
fn versioned(client: &Client, id: ObjectId) -> (u64, Version) {
    let got = client.get_versioned(&[id], Some(PATIENCE)).expect("the daemon lives").remove(0);
    let (object, version) = got.unwrap_or_else(|error| panic!("get: {:?}: {error}", error.kind()));
    (number(&object), version)
}

/// Checks that every node gives this number, and that no node says anything else of the object.
fn all_give(clients: &[Client], id: ObjectId, wanted: u64) {
    for (node, client) in clients.iter().enumerate() {
        assert_eq!(number(&get(client, id)), wanted, "node {node}");
        assert_ne!(client.contains(&[id]).expect("contains"), [Presence::Absent], "node {node}");
    }
}

/// A client at every node.
pub(crate) fn clients(cluster: &Cluster) -> Vec<Client> {
    (0..cluster.nodes()).map(|node| cluster.client(node)).collect()
}

/// What readers know of an object that a writer replaces by objects of rising numbers.
pub(crate) struct Watched {
    pub(crate) id: ObjectId,
    /// The largest number that a call of the writer or of a reader has told.
    told: AtomicU64,
}

impl Watched {
    pub(crate) fn new(id: ObjectId, first: u64) -> Self {
        Self { id, told: AtomicU64::new(first) }
    }

    /// The number that has to be there at least.
    pub(crate) fn told(&self) -> u64 {
        self.told.load(Ordering::SeqCst)
    }

    /// Notes that a number has been told, by a call that began when `least` had been told.
    pub(crate) fn tell(&self, least: u64, number: u64, what: &str) {
        assert!(number >= least, "{what}: {number} of object {} after {least}", self.id);
        self.told.fetch_max(number, Ordering::SeqCst);
    }

    /// Looks in one of several ways.
    fn look(&self, client: &Client, turn: usize) {
        let (id, least) = (self.id, self.told());
        match turn % 5 {
            0 | 1 => self.tell(least, number(&get(client, id)), "get"),
            2 => self.tell(least, versioned(client, id).0, "get with its version"),
            3 => {
                let found = client.get_existing(&[id], Some(PATIENCE)).expect("the daemon lives").remove(0);
                let object = found.expect("it can be got").expect("it exists all the time");
                self.tell(least, number(&object), "get of what exists");
            }
            _ => assert_ne!(client.contains(&[id]).expect("contains"), [Presence::Absent]),
        }
    }
}

/// Replaces an object 200 times beside readers at all nodes.
fn is_never_none_and_never_older(nodes: usize, sizes: &[usize]) {
    const TIMES: u64 = 200;
    let cluster = Cluster::builder().nodes(nodes).memory("256MiB").start();
    let (clients, id, over) = (clients(&cluster), ObjectId::random(), AtomicBool::new(false));
    write(&clients[0], id, 0, sizes[0], None).expect("it is a put");
    let watched = Watched::new(id, 0);
    thread::scope(|scope| {
        for client in &clients {
            let (watched, over) = (&watched, &over);
            scope.spawn(move || {
                let looks = (0..).take_while(|_| !over.load(Ordering::Relaxed));
                looks.for_each(|turn| watched.look(client, turn));
            });
        }
        let written = scope.spawn(|| {
            for turn in 1..=TIMES {
                let (least, writer) = (watched.told(), &clients[turn as usize / 20 % nodes]);
                write(writer, id, turn, sizes[turn as usize % sizes.len()], None).expect("replace");
                watched.tell(least, turn, "replace");
                all_give(&clients, id, turn);
            }
        });
        let written = written.join();
        over.store(true, Ordering::Relaxed);
        written.expect("the writer found nothing wrong");
    });
    assert_ne!(clients[0].delete(&[id]).expect("delete"), [DeleteOutcome::Absent]);
    for node in 0..nodes {
        eventually("its memory is free", || cluster.status(node).memory.used == 0);
    }
}

#[test]
fn readers_on_one_node_see_one_object_after_the_other() {
    is_never_none_and_never_older(1, &SIZES);
}

#[test]
fn readers_on_all_nodes_see_one_small_object_after_the_other() {
    is_never_none_and_never_older(3, &SIZES[..3]);
}

#[test]
fn readers_on_all_nodes_see_one_object_of_any_size_after_the_other() {
    is_never_none_and_never_older(3, &SIZES);
}

#[test]
fn who_has_the_old_object_pinned_keeps_it_until_the_pin_is_gone() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (clients, id) = (clients(&cluster), ObjectId::random());
        write(&clients[0], id, 1, MIB, None).expect("it is a put");
        let held: Vec<_> = clients.iter().map(|client| get(client, id)).collect();
        write(clients.last().expect("there is one"), id, 2, 2 * MIB, None).expect("replace");
        all_give(&clients, id, 2);
        for node in 0..nodes {
            eventually("the old one is doomed", || cluster.status(node).objects.doomed == 1);
            assert!(cluster.status(node).memory.used >= 3 * MIB as u64, "both are in memory");
        }
        for object in &held {
            assert_eq!((number(object), object.data().len()), (1, MIB));
        }
        drop(held);
        for node in 0..nodes {
            eventually("the old one is gone", || {
                let status = cluster.status(node);
                status.objects.doomed == 0 && status.memory.used < 3 * MIB as u64
            });
        }
        all_give(&clients, id, 2);
    }
}

#[test]
fn an_object_is_replaced_only_in_the_version_that_is_expected() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let clients = clients(&cluster);
        for turn in 0..4 * SIZES.len() {
            let (id, len) = (ObjectId::random(), SIZES[turn % SIZES.len()]);
            let client = |at: usize| &clients[(turn + at) % nodes];
            let strange = write(client(0), ObjectId::random(), 9, len, None).expect("it is a put");
            assert_eq!(kind(write(client(1), id, 1, len, Some(strange))), ErrorKind::NotFound);
            let first = write(client(0), id, 1, len, None).expect("it is a put");
            let refused = client(1).put(id, b"x", b"", &CreateOptions::default());
            assert_eq!(kind(refused), ErrorKind::Exists);
            let second = write(client(1), id, 2, len, Some(first)).expect("it is expected");
            assert_ne!(first, second);
            for wrong in [first, strange] {
                for writer in &clients {
                    let error = write(writer, id, 3, len, Some(wrong)).expect_err("it is not there");
                    assert_eq!(
                        (error.kind(), error.version()),
                        (ErrorKind::Conflict, Some(second)),
                        "{error}"
                    );
                    assert_eq!(error.id(), Some(id));
                }
            }
            clients.iter().for_each(|client| assert_eq!(versioned(client, id), (2, second)));
            client(2).delete(&[id]).expect("delete");
            assert_eq!(kind(write(client(0), id, 4, len, Some(second))), ErrorKind::NotFound);
            let again = write(client(0), id, 4, len, None).expect("it is a put");
            assert!(![first, second, strange].contains(&again));
            all_give(&clients, id, 4);
            client(0).delete(&[id]).expect("delete");
        }
        for node in 0..nodes {
            let left =
                || cluster.status(node).objects.doomed == 0 && cluster.status(node).objects.unsealed == 0;
            eventually("refused objects have gone", left);
        }
    }
}

#[test]
fn whatever_puts_with_the_option_replaces() {
    let cluster = Cluster::builder().nodes(1).start();
    let (client, id) = (cluster.client(0), ObjectId::random());
    let options = CreateOptions { replace: true, ..CreateOptions::default() };
    for (round, len) in [100, 3 * MIB].into_iter().enumerate() {
        let bytes = |number: u64| Pattern(number + 10 * round as u64).bytes(len);
        let is_there = |number| assert!(get(&client, id).data() == bytes(number), "number {number}, {len} B");
        client.put(id, &bytes(1), &[], &options).expect("put");
        is_there(1);
        let put = client.put_many(&[(id, &bytes(2), &[])], &options).expect("put_many");
        assert_eq!(put, [Ok(())]);
        is_there(2);
        let mut creation = client.create(id, len as u64, &[], &options).expect("create");
        creation.as_mut_slice().copy_from_slice(&bytes(3));
        creation.seal().expect("seal");
        is_there(3);
        let mut scratch = client.buffer(len, true, None).expect("buffer");
        scratch.as_mut_slice().copy_from_slice(&bytes(4));
        client.put_from(id, &mut scratch, len, &[], &options).expect("put_from");
        is_there(4);
    }
}

#[test]
fn each_of_many_objects_is_got_with_its_own_version() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let clients = clients(&cluster);
        let ids: Vec<_> = (0..20).map(|_| ObjectId::random()).collect();
        let put = |(turn, id): (usize, &ObjectId)| {
            write(&clients[turn % nodes], *id, 0, 1, None).expect("it is a put");
            write(&clients[turn / 2 % nodes], *id, turn as u64, SIZES[turn % 3], None).expect("replace")
        };
        let versions: Vec<_> = ids.iter().enumerate().map(put).collect();
        for client in &clients {
            let all = client.get_versioned(&ids, Some(PATIENCE)).expect("the daemon lives");
            for (turn, (got, wanted)) in all.into_iter().zip(&versions).enumerate() {
                let (object, version) = got.expect("it is there");
                assert_eq!((number(&object), version), (turn as u64, *wanted));
            }
        }
    }
}

#[test]
fn writers_that_compare_and_set_lose_no_increment() {
    const WRITERS: usize = 8;
    const TIMES: u64 = 20;
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (clients, id) = (clients(&cluster), ObjectId::random());
        let first = write(&clients[0], id, 0, 100, None).expect("it is a put");
        let mut steps = thread::scope(|scope| {
            let increment = |client: &Client, turn: u64| loop {
                let (from, before) = versioned(client, id);
                let len = SIZES[(turn as usize) % 4];
                match write(client, id, from + 1, len, Some(before)) {
                    Ok(after) => return (from + 1, before, after),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
                }
            };
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let client = cluster.client(writer % nodes);
                    scope.spawn(move || (0..TIMES).map(|turn| increment(&client, turn)).collect::<Vec<_>>())
                })
                .collect();
            let steps = writers.into_iter().flat_map(|writer| writer.join().expect("nothing is wrong"));
            steps.collect::<Vec<_>>()
        });
        steps.sort_by_key(|(number, ..)| *number);
        let numbers: Vec<_> = steps.iter().map(|(number, ..)| *number).collect();
        assert_eq!(numbers, (1..=WRITERS as u64 * TIMES).collect::<Vec<_>>(), "each number is there once");
        let last = steps.iter().fold(first, |there, (_, before, after)| {
            assert_eq!(there, *before, "the versions have one order");
            *after
        });
        clients.iter().for_each(|client| assert_eq!(versioned(client, id), (WRITERS as u64 * TIMES, last)));
    }
}

#[test]
fn who_may_not_delete_an_object_may_not_replace_it() {
    if !geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
        return;
    }
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).args(&["--socket-mode", "0666"]).start();
        let all = clients(&cluster);
        let others: Vec<_> = (0..nodes).map(|node| client_of(NOBODY, &cluster, node)).collect();
        for (rights, allowed) in [(Rights::Read, false), (Rights::Private, false), (Rights::ReadWrite, true)]
        {
            for (turn, len) in SIZES.into_iter().enumerate() {
                let (id, options) =
                    (ObjectId::random(), CreateOptions { rights, ..CreateOptions::default() });
                let is = write_with(&all[turn % nodes], id, 1, len, &options, None).expect("it is a put");
                for (other, expected) in others.iter().zip([None, Some(is), None]) {
                    match write(other, id, 2, len, expected) {
                        Ok(_) if allowed => break,
                        result => assert_eq!(kind(result), ErrorKind::NotAllowed, "{rights:?}, {len}"),
                    }
                }
                all_give(&all, id, if allowed { 2 } else { 1 });
                let error = write(&others[0], id, 3, len, Some(Version::from_number(7))).expect_err("no");
                match rights {
                    Rights::ReadWrite => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
                    Rights::Private => assert_eq!(error.kind(), ErrorKind::NotAllowed, "{error}"),
                    // Who may read it may know its version.
                    _ => assert!(
                        matches!(error.kind(), ErrorKind::NotAllowed | ErrorKind::Conflict),
                        "{error}"
                    ),
                }
            }
        }
    }
}

#[test]
fn the_name_of_a_region_or_a_service_is_not_replaced() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let clients = clients(&cluster);
        let region = clients[0].create_region("r", 64, &RegionOptions::default()).expect("there is room");
        let _server = clients[0].serve("s", &["f"], &ServeOptions::default()).expect("it is free");
        for client in &clients {
            client.map_region("r", plasmon::region::Rights::READ, None).expect("it is found");
            client.service("s", Some(PATIENCE)).expect("it is found");
        }
        for id in [region_id("r"), service_id("s")] {
            for client in &clients {
                for len in SIZES {
                    assert_eq!(kind(write(client, id, 1, len, None)), ErrorKind::Exists, "{len}");
                }
            }
        }
        region.write(0, b"here").expect("it is there still");
        clients
            .last()
            .expect("there is one")
            .map_region("r", plasmon::region::Rights::READ, None)
            .expect("it is found");
        clients[0].service("s", None).expect("it is found");
    }
}

#[test]
fn what_does_not_fit_leaves_the_old_object() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (clients, id) = (clients(&cluster), ObjectId::random());
        let first = write(&clients[0], id, 1, 40 * MIB, None).expect("it is a put");
        for expected in [None, Some(first)] {
            let replaces = CreateOptions { replace: true, ..CreateOptions::default() };
            let large = clients[0].create(id, 65 * MIB as u64, b"", &replaces);
            assert_eq!(kind(large), ErrorKind::TooLarge);
            assert_eq!(kind(write(&clients[0], id, 2, 40 * MIB, expected)), ErrorKind::Full);
            assert_eq!(versioned(&clients[0], id), (1, first));
        }
        assert_eq!(number(&get(&clients[nodes - 1], id)), 1);
        // One that fits takes its place, and the memory is free.
        write(&clients[0], id, 3, 10 * MIB, Some(first)).expect("both fit");
        all_give(&clients, id, 3);
        eventually("its memory is free", || cluster.status(0).memory.used < 11 * MIB as u64);
    }
}

#[test]
fn both_objects_count_for_the_quota_while_both_are_there() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).args(&["--client-quota", "10MiB"]).start();
        let (clients, id) = (clients(&cluster), ObjectId::random());
        let mut is = write(&clients[0], id, 0, 4 * MIB, None).expect("it is a put");
        for number in 1..20 {
            let wrong = write(&clients[0], id, 99, 4 * MIB, Some(Version::from_number(7)));
            assert_eq!(kind(wrong), ErrorKind::Conflict);
            is = write(&clients[0], id, number, 4 * MIB, Some(is)).expect("nothing is left of the former");
        }
        assert_eq!(kind(write(&clients[0], id, 99, 7 * MIB, None)), ErrorKind::Full);
        all_give(&clients, id, 19);
        // What another client replaces counts for that one.
        write(&cluster.client(nodes - 1), id, 20, 4 * MIB, Some(is)).expect("it has its own quota");
        eventually("nothing counts any more", || {
            let options = CreateOptions::default();
            clients[0].create(ObjectId::random(), 10 * MIB as u64, b"", &options).is_ok()
        });
    }
}

#[test]
fn a_creation_that_is_given_up_leaves_the_old_object() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (clients, id) = (clients(&cluster), ObjectId::random());
        let replaces = CreateOptions { replace: true, ..CreateOptions::default() };
        let first = write(&clients[0], id, 1, MIB, None).expect("it is a put");
        for (len, node) in [(100, 0), (20 * MIB as u64, nodes - 1)] {
            let create = |client: &Client| client.create(id, len, b"", &replaces).expect("both fit");
            let begun = create(&clients[node]);
            assert_eq!(kind(clients[node].create(id, len, b"", &replaces)), ErrorKind::Exists);
            // Another client may write one too.
            create(&cluster.client(node)).abort().expect("abort");
            all_give(&clients, id, 1);
            drop(begun);
            drop(create(&cluster.client(node)));
        }
        for node in 0..nodes {
            eventually("nothing is left of them", || cluster.status(node).memory.used < 2 * MIB as u64);
        }
        // One that is sealed in the usual way takes the place, whatever is there.
        let mut creation = clients[0].create(id, 100, &2_u64.to_le_bytes(), &replaces).expect("it fits");
        Pattern(2).fill(creation.as_mut_slice());
        creation.seal().expect("seal");
        assert_eq!(kind(write(&clients[0], id, 3, 1, Some(first))), ErrorKind::Conflict);
        let mut creation = clients[0].create(id, 5, &3_u64.to_le_bytes(), &replaces).expect("it fits");
        Pattern(3).fill(creation.as_mut_slice());
        assert_eq!(kind(creation.replace(Some(first))), ErrorKind::Conflict);
        let plain =
            clients[0].create(ObjectId::random(), 5, b"", &CreateOptions::default()).expect("it fits");
        assert_eq!(kind(plain.replace(None)), ErrorKind::NotFound);
        all_give(&clients, id, 2);
    }
}

#[test]
fn a_replacement_that_a_holder_does_not_confirm_in_time_leaves_the_old_object() {
    let cluster = Cluster::builder().nodes(3).args(&LONG_LEASE).start();
    let (clients, ids) = (clients(&cluster), [0; 8].map(|_| ObjectId::random()));
    for id in ids {
        write(&clients[0], id, 1, 100, None).expect("it is a put");
        assert_eq!(number(&get(&clients[2], id)), 1);
    }
    cluster.pause(2);
    let short = CreateOptions { room: Some(Duration::from_millis(200)), ..CreateOptions::default() };
    let ended = ids.map(|id| {
        let error = write_with(&clients[1], id, 2, 100, &short, None).expect_err("a node says nothing");
        // If the silent node is the one that decides, nobody knows.
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::OutcomeUnknown), "{error}");
        error.kind()
    });
    cluster.resume(2);
    for (id, ended) in ids.into_iter().zip(ended) {
        let there = number(&try_get(&clients[1], id).expect("one is there"));
        assert!(ended == ErrorKind::OutcomeUnknown || there == 1, "after a time-out the old object stays");
        if ended == ErrorKind::TimedOut {
            all_give(&clients, id, 1);
        }
        write(&clients[2], id, 3, 100, None).expect("the nodes answer");
        all_give(&clients, id, 3);
        assert!(here(&clients[2], id).is_some());
    }
    let id = put(&clients[0], Pattern(1), 10);
    assert_eq!(get(&clients[1], id).data().len(), 10);
}
