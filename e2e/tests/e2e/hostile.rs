//! Tests of attacks and mishaps that once harmed other clients or nodes.
//!
//! Each test repeats one that used to give a client wrong bytes, another user's objects or no service. The
//! tests write frames themselves where the library would not send such frames.

use std::fs::{self, Permissions};
use std::io::{ErrorKind as IoError, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use plasmon::wire::{Receiver, Reply, Request, send_with_descriptors};
use plasmon::{
    Client, CreateOptions, DeleteOutcome, Error, ErrorKind, Filter, Object, ObjectId, Presence, Rights,
};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, binary, eventually};
use rustix::process::geteuid;

use crate::raw::{Raw, frame, hello};
use crate::support::{MIB, NOBODY, as_nobody, client_of, get, kind, own_memory, put, try_put};

fn get_for_ever(id: ObjectId) -> Request {
    Request::Get { timeout_us: u64::MAX, verify: false, ids: vec![id] }
}

fn get_within(client: &Client, id: ObjectId, patience: Duration) -> Result<Object, Error> {
    client.get(&[id], Some(patience)).expect("the call succeeds").remove(0)
}

#[test]
fn a_request_id_used_again_ends_its_connection_and_reaches_nobody_else() {
    const NUMBER: u64 = 1;
    let cluster = Cluster::builder().nodes(2).start();
    let again = [
        get_for_ever(ObjectId::random()),
        Request::Status,
        Request::List { filter: Filter::default() },
        Request::Contains { ids: vec![ObjectId::random()] },
        Request::Delete { ids: vec![ObjectId::random()] },
    ];
    for (round, again) in again.iter().enumerate() {
        let [bait, wanted] = [ObjectId::random(), ObjectId::random()];
        let mut attacker = Raw::connect(&cluster, 0);
        attacker.send(NUMBER, &get_for_ever(bait));
        eventually("the get waits", || cluster.status(0).transfer.fetching == 1);
        attacker.send(NUMBER, again);
        let said = attacker.last_words();
        assert!(matches!(&said[..], [(NUMBER, error)] if error.kind() == ErrorKind::Invalid), "{said:?}");

        // Clients that connect next, and count their requests in the same way.
        let mut victims: Vec<_> = (0..3).map(|_| Raw::connect(&cluster, 0)).collect();
        for victim in &mut victims {
            victim.send(NUMBER, &get_for_ever(wanted));
        }
        eventually("only the victims' get waits", || cluster.status(0).transfer.fetching == 1);
        try_put(&cluster.client(round % 2), bait, Pattern(1), 1000).expect("put");
        try_put(&cluster.client(round % 2), wanted, Pattern(2), 2000).expect("put");
        for victim in &mut victims {
            victim.send(NUMBER + 1, &Request::Status);
            let replies = [victim.next(), victim.next()].map(|reply| reply.expect("it did nothing wrong"));
            let got = replies.iter().find_map(|reply| match reply {
                (NUMBER, Reply::Got { objects, .. }) => objects[0].as_ref().ok(),
                _ => None,
            });
            assert_eq!(got.map(|span| span.data_len), Some(2000), "another object than the one asked for");
            assert!(replies.iter().any(|reply| matches!(reply, (2, Reply::Status(_)))), "{replies:?}");
        }
    }
}

#[test]
fn a_waiting_get_does_not_survive_its_client() {
    let cluster = Cluster::builder().nodes(2).start();
    for node in 0..2 {
        let mut client = Raw::connect(&cluster, node);
        for number in 1..=100 {
            client.send(number, &get_for_ever(ObjectId::random()));
        }
        eventually("the gets wait", || cluster.status(node).transfer.fetching == 100);
        drop(client);
        eventually("the gets have gone with their client", || cluster.status(node).transfer.fetching == 0);
    }
}

#[test]
fn another_user_neither_sees_nor_deletes_a_private_object() {
    if !geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
        return;
    }
    let cluster = Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start();
    let private = CreateOptions { rights: Rights::Private, ..CreateOptions::default() };
    // Root is a user like any other here.
    for (owner, stranger) in [(0, NOBODY), (NOBODY, 0)] {
        let [owners, strangers] =
            [owner, stranger].map(|user| [0, 1].map(|node| client_of(user, &cluster, node)));
        for (home, len) in [(0, 100), (1, 20_000), (0, 3 * MIB), (1, 3 * MIB)] {
            let (id, data) = (ObjectId::random(), Pattern(len as u64).bytes(len));
            owners[home].put(id, &data, b"", &private).expect("put");
            // Once while one node holds it, and once while both do.
            for cached in [false, true] {
                if cached {
                    assert!(get(&owners[1 - home], id).data() == data);
                }
                for client in &owners {
                    eventually("its owner finds it", || {
                        client.contains(&[id]).expect("contains") != [Presence::Absent]
                    });
                }
                for client in &strangers {
                    assert_eq!(client.contains(&[id]).expect("contains"), [Presence::Absent]);
                    for patience in [Duration::ZERO, Duration::from_millis(100)] {
                        let refusal = kind(get_within(client, id, patience));
                        let refused = [ErrorKind::NotAllowed, ErrorKind::NotFound, ErrorKind::TimedOut];
                        assert!(refused.contains(&refusal), "{refusal:?}");
                    }
                    assert!(client.list().expect("list").iter().all(|row| row.id != id));
                    assert_eq!(
                        client.delete(&[id]).expect("delete"),
                        [DeleteOutcome::NotAllowed { creator: None }]
                    );
                }
            }
            for client in &owners {
                assert!(get(client, id).data() == data, "it is still there, and whole");
            }
            assert_eq!(owners[1 - home].delete(&[id]).expect("delete"), [DeleteOutcome::Deleted]);
        }
    }
}

#[test]
fn the_command_of_another_user_does_not_remove_a_private_object() {
    if !geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
        return;
    }
    let cluster = Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start();
    let id = ObjectId::from_name("secret");
    let private = CreateOptions {
        name: Some("secret".to_owned()),
        rights: Rights::Private,
        ..CreateOptions::default()
    };
    let clients = [0, 1].map(|node| cluster.client(node));
    clients[0].put(id, b"mine", b"", &private).expect("put");
    assert_eq!(get(&clients[1], id).data(), b"mine");
    for node in 0..2 {
        let mut command = as_nobody(&cluster, &[&binary()]);
        let output = command.args(["rm", "secret", "--socket"]).arg(cluster.socket(node)).output();
        let output = output.expect("plasmon runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("secret") && message.contains("private"), "{message}");
    }
    for client in &clients {
        assert_eq!(get(client, id).data(), b"mine");
    }
}

#[test]
fn an_id_created_anew_while_its_former_object_is_fetched_is_the_new_object_everywhere() {
    deleted_and_created_anew(|cluster, clients, home, id, new| {
        // The deletion finds the reader with some of the old bytes, and is over before the new object is
        // made.
        cluster.pause(2);
        let mut deleting = Raw::connect(cluster, home);
        deleting.send(1, &Request::Delete { ids: vec![id] });
        cluster.resume(2);
        assert!(matches!(deleting.next(), Some((1, Reply::Deleted(_)))), "a deletion is answered");
        let put = || clients[1 - home].put(id, new, b"", &CreateOptions::default());
        // A replica that had just come there goes a moment later.
        eventually("the id is free", || put().inspect_err(exists).is_ok());
    });
}

#[test]
fn an_object_created_anew_outlives_the_deletion_of_its_former_life() {
    deleted_and_created_anew(|cluster, clients, home, id, new| {
        // Another client makes the new object as soon as it is let, perhaps before the deletion is over.
        cluster.pause(2);
        let mut deleting = Raw::connect(cluster, home);
        deleting.send(1, &Request::Delete { ids: vec![id] });
        // The put asks no node whether the id is taken, because it would wait for the silent node.
        let fresh = CreateOptions { fresh: true, ..CreateOptions::default() };
        let put = || clients[home].put(id, new, b"", &fresh);
        let early = (0..20).any(|_| put().inspect_err(exists).is_ok());
        cluster.resume(2);
        eventually("the id is free", || early || put().inspect_err(exists).is_ok());
        // If the silent node is the object's first keeper, the deletion fails because that node did not
        // answer.
        let answer = deleting.next();
        assert!(
            matches!(answer, Some((1, Reply::Deleted(_) | Reply::Failed { .. }))),
            "a deletion is answered"
        );
    });
}

fn exists(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
}

/// Makes `anew` delete an object at its home, 0 or 1, while node 2 fetches it, and create another under its
/// id, many times. All clients must see the new object then, except those that hold the old one.
fn deleted_and_created_anew(anew: impl Fn(&Cluster, &[Client; 3], usize, ObjectId, &[u8])) {
    const ROUNDS: usize = 16;
    let cluster = Cluster::builder().nodes(3).start();
    let clients = [0, 1, 2].map(|node| cluster.client(node));
    // Every object has a length and bytes of its own, and nothing in common with another at any place.
    let all = Pattern(1).bytes(9 * MIB);
    let object = |number: usize| &all[64 * number..][..4 * MIB + 120_001 * number];
    for round in 0..ROUNDS {
        let (id, old, new) = (ObjectId::random(), object(2 * round), object(2 * round + 1));
        let home = round % 2;
        clients[home].put(id, old, b"", &CreateOptions::default()).expect("put");
        let held = get(&clients[home], id);
        if round % 4 >= 2 {
            drop(get(&clients[1 - home], id));
        }
        thread::scope(|scope| {
            let reader = cluster.client(2);
            let reader = scope.spawn(move || {
                let read = get(&reader, id);
                let known = read.data() == old || read.data() == new;
                assert!(known, "round {round}: {} bytes of neither object", read.data().len());
            });
            eventually("the fetch begins, or is over", || {
                clients[2].status().expect("status").transfer.fetching > 0 || reader.is_finished()
            });
            anew(&cluster, &clients, home, id, new);
        });
        let seen = |client: &Client| {
            let seen = get_within(client, id, Duration::from_secs(10));
            let lost = |error| panic!("round {round}: the new object cannot be found at {client:?}: {error}");
            seen.unwrap_or_else(lost).data() == new
        };
        // The last orders to drop replicas of the old one travel behind the answers.
        for client in &clients {
            eventually("a get gives the new object", || seen(client));
        }
        // Nothing that is still under way brings it back.
        assert!(clients.iter().all(seen), "round {round}: the old object came back");
        assert!(held.data() == old, "round {round}: an object changed under the hands of its holder");
        drop(held);
        clients[2].delete(&[id]).expect("delete");
    }
}

#[test]
fn a_client_that_lists_for_ever_and_reads_nothing_takes_little_memory() {
    const OBJECTS: usize = 2000;
    const QUESTIONS: usize = 4000;
    const BOUND: u64 = 64 * MIB as u64;
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    for number in 0..OBJECTS {
        let name = format!("{number:0>100}");
        let options = CreateOptions { name: Some(name), ..CreateOptions::default() };
        client.put(ObjectId::random(), b"", b"", &options).expect("put");
    }
    let before = own_memory(&cluster, 0);
    let grown = || own_memory(&cluster, 0).saturating_sub(before);

    let mut glutton = Raw::connect(&cluster, 0);
    glutton.stream.set_nonblocking(true).expect("it is connected");
    let question = frame(1, &Request::List { filter: Filter::default() });
    let questions = question.repeat(QUESTIONS);
    let (mut sent, mut calls) = (0, 0);
    while sent < questions.len() && calls < 100 {
        // A request that is not accepted now may be accepted a moment later, after requests of others.
        match glutton.stream.write(&questions[sent..]) {
            Ok(len) => sent += len,
            Err(error) if error.kind() == IoError::WouldBlock => calls += 1,
            Err(error) => panic!("the daemon ended the connection: {error}"),
        }
        client.status().expect("others are served");
        assert!(grown() < BOUND, "{} bytes while it asks", grown());
    }
    let asked = sent / question.len();
    assert!(asked >= 2000, "the daemon took only {asked} questions: this tests nothing");

    // Others are served meanwhile, and whatever the daemon does in these turns is bounded.
    for number in 0..100 {
        let id = put(&client, Pattern(number), 1000);
        Pattern(number).check(get(&cluster.client(0), id).data());
        assert!(grown() < BOUND, "{} bytes for {asked} questions", grown());
    }
    // A client that reads at last gets the answers.
    glutton.stream.set_nonblocking(false).expect("it is connected");
    for _ in 0..20 {
        let mut rows = 0;
        loop {
            let Some((1, Reply::List { objects, more })) = glutton.next() else {
                panic!("a list is answered by a list");
            };
            rows += objects.len();
            if !more {
                break;
            }
        }
        assert!(rows >= OBJECTS, "a list of {rows}");
        assert!(grown() < BOUND, "{} bytes while it reads", grown());
    }
}

#[test]
fn a_get_of_twenty_thousand_objects_that_nobody_makes_ends_and_stops_nobody() {
    let cluster = Cluster::builder().nodes(2).start();
    let ids: Vec<_> = (0..20_000).map(|_| ObjectId::random()).collect();
    let bystanders = [0, 1].map(|node| cluster.client(node));
    thread::scope(|scope| {
        let getting = scope.spawn(|| cluster.client(0).get(&ids, Some(Duration::from_secs(2))));
        let mut calls = 0;
        eventually("the get ends while others call", || {
            let id = put(&bystanders[0], Pattern(calls), 1000);
            Pattern(calls).check(get(&bystanders[1], id).data());
            // A keeper may answer late on a busy machine.
            let deleted = bystanders[1].delete(&[id]).map_err(|error| error.kind()).err();
            assert!(matches!(deleted, None | Some(ErrorKind::OutcomeUnknown)), "{deleted:?}");
            calls += 1;
            getting.is_finished()
        });
        assert!(calls > 0, "nobody was served meanwhile");
        let results = getting.join().expect("no panic").expect("the call itself succeeds");
        assert_eq!(results.len(), ids.len());
        assert!(results.into_iter().all(|result| kind(result) == ErrorKind::TimedOut));
    });
    for node in 0..2 {
        eventually("nothing waits any more", || cluster.status(node).transfer.fetching == 0);
    }
}

#[test]
fn a_deletion_is_carried_out_although_its_client_has_gone() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients = [0, 1, 2].map(|node| cluster.client(node));
    for asked_at in 0..3 {
        for polite in [true, false] {
            let ids: Vec<_> =
                (0..10).map(|seed| put(&clients[seed % 3], Pattern(1), 40_000 * seed)).collect();
            // Some have replicas, some have not.
            ids.iter().step_by(2).for_each(|id| drop(get(&clients[1], *id)));
            for client in &clients {
                eventually("all are known everywhere", || {
                    !client.contains(&ids).expect("contains").contains(&Presence::Absent)
                });
            }
            let delete = Request::Delete { ids: ids.clone() };
            if polite {
                Raw::connect(&cluster, asked_at).send(1, &delete);
            } else {
                let mut stream = UnixStream::connect(cluster.socket(asked_at)).expect("the daemon listens");
                let frames = [frame(0, &hello()), frame(1, &delete)].concat();
                stream.write_all(&frames).expect("the daemon reads");
            }
            for (node, client) in clients.iter().enumerate() {
                eventually("nobody knows them any more", || {
                    client.contains(&ids).expect("contains").iter().all(|known| *known == Presence::Absent)
                });
                eventually("their memory is free", || cluster.status(node).memory.used == 0);
            }
        }
    }
}

#[test]
fn descriptors_of_a_client_end_its_connection_and_are_closed() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let held = get(&client, put(&client, Pattern(1), MIB));
    let open = || {
        let folder = format!("/proc/{}/fd", cluster.daemon(0).pid());
        fs::read_dir(folder).expect("the daemon lives").count()
    };
    let before = open();
    let file = fs::File::open("/dev/null").expect("it is always there");
    for count in [1, 2, 64] {
        let descriptors: Vec<BorrowedFd<'_>> = vec![file.as_fd(); count];
        for announced in [0, count as u16] {
            for greeted in [false, true] {
                let attackers = (0..20).map(|_| {
                    let attacker = if greeted {
                        Raw::connect(&cluster, 0)
                    } else {
                        let stream = UnixStream::connect(cluster.socket(0)).expect("the daemon listens");
                        Raw { stream, receiver: Receiver::default() }
                    };
                    attacker.stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
                    let mut bytes = frame(1, &if greeted { Request::Status } else { hello() });
                    bytes[18..20].copy_from_slice(&announced.to_le_bytes());
                    send_with_descriptors(&attacker.stream, &bytes, &descriptors).expect("the daemon reads");
                    attacker
                });
                for attacker in attackers.collect::<Vec<_>>() {
                    attacker.last_words();
                }
                eventually("the daemon has no descriptor more than before", || open() <= before);
            }
        }
    }
    Pattern(1).check(held.data());
    client.status().expect("others were not disturbed");
}

#[test]
fn a_node_that_was_paused_does_not_take_what_others_hold_for_lost() {
    let cluster = Cluster::builder().nodes(2).memory("192MiB").args(&["--lease", "1"]).start();
    let holder = cluster.client(0);
    for round in 0..3 {
        // One large object, which may be half here, some small ones, and one that is made during the pause.
        let late = ObjectId::random();
        let lens = [24 * MIB, 3 * MIB, 100_000, 20_000, 100, 0];
        let mut wanted: Vec<_> = lens.map(|len| (put(&holder, Pattern(round), len), len)).to_vec();
        wanted.push((late, 5 * MIB));
        let gets: Vec<_> = wanted
            .iter()
            .map(|(id, len)| {
                let (client, id, len) = (cluster.client(1), *id, *len);
                let getting = thread::spawn(move || get_within(&client, id, Duration::from_secs(20)));
                (getting, id, len)
            })
            .collect();
        eventually("the gets have begun", || {
            let transfer = cluster.status(1).transfer;
            transfer.fetching > 0 && transfer.fetching + transfer.rendezvous_fetched > 1
        });
        cluster.pause(1);
        eventually("it was away for longer than a lease", || cluster.status(0).cluster.members.len() == 1);
        try_put(&holder, late, Pattern(round), 5 * MIB).expect("put");
        cluster.resume(1);
        for (getting, id, len) in gets {
            match getting.join().expect("no panic") {
                Ok(object) => {
                    assert_eq!(object.data().len(), len);
                    Pattern(round).check(object.data());
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{len} bytes: {error}"),
            }
            assert_eq!(get(&cluster.client(1), id).data().len(), len);
        }
        eventually("it is a member again", || {
            (0..2).all(|node| cluster.status(node).cluster.members.len() == 2)
        });
        let ids: Vec<_> = wanted.iter().map(|(id, _)| *id).collect();
        holder.delete(&ids).expect("delete");
    }
}

/// Gets an object into a file with the command.
fn command_get(cluster: &Cluster, name: &str, to: &Path) {
    let mut command = Command::new(binary());
    command.args(["get", name, "-o"]).arg(to).arg("--socket").arg(cluster.socket(0));
    let output = command.output().expect("plasmon runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_get_through_a_link_writes_its_target_and_leaves_the_link() {
    let cluster = Cluster::builder().start();
    let data = Pattern(1).bytes(MIB);
    cluster.client(0).put(ObjectId::from_name("it"), &data, b"", &CreateOptions::default()).expect("put");
    let at = |name: &str| cluster.folder().join(name);
    fs::create_dir(at("elsewhere")).expect("the folder is ours");
    let (target, link, link_to_link) = (at("elsewhere/target"), at("link"), at("elsewhere/link-to-link"));
    symlink("elsewhere/target", &link).expect("the folder is ours");
    symlink("../link", &link_to_link).expect("the folder is ours");
    for mode in [0o600, 0o640, 0o755] {
        for to in [&link, &link_to_link, &target] {
            fs::write(&target, b"before").expect("the folder is ours");
            fs::set_permissions(&target, Permissions::from_mode(mode)).expect("the file is ours");
            command_get(&cluster, "it", to);
            assert!(fs::read(&target).expect("it is there") == data, "{}", to.display());
            let now = fs::symlink_metadata(&target).expect("it is there");
            assert!(now.is_file(), "the target is a file still");
            assert_eq!(now.permissions().mode() & 0o7777, mode, "{}", to.display());
            assert_eq!(fs::read_link(&link).expect("a link"), Path::new("elsewhere/target"));
            assert_eq!(fs::read_link(&link_to_link).expect("a link"), Path::new("../link"));
        }
    }
    let left: Vec<_> = fs::read_dir(at("elsewhere")).expect("it is there").collect();
    assert_eq!(left.len(), 2, "nothing is left beside the target: {left:?}");
}

#[test]
fn a_get_through_a_link_to_nothing_makes_what_it_names() {
    let cluster = Cluster::builder().start();
    cluster.client(0).put(ObjectId::from_name("it"), b"data", b"", &CreateOptions::default()).expect("put");
    let (target, link) = (cluster.folder().join("target"), cluster.folder().join("link"));
    symlink("target", &link).expect("the folder is ours");
    command_get(&cluster, "it", &link);
    assert_eq!(fs::read_link(&link).expect("the link is still one"), Path::new("target"));
    assert_eq!(fs::read(&target).expect("it was made"), b"data");
}

#[test]
fn every_node_knows_of_every_object_that_died_with_its_only_holder() {
    const OBJECTS: usize = 50;
    let mut cluster = Cluster::builder().nodes(3).start();
    let holder = cluster.client(2);
    let ids: Vec<_> = (0..OBJECTS).map(|seed| put(&holder, Pattern(seed as u64), 1000 * seed)).collect();
    let clients = [0, 1].map(|node| cluster.client(node));
    for client in &clients {
        eventually("all are known", || {
            client.contains(&ids).expect("contains").iter().all(|known| *known == Presence::Elsewhere)
        });
    }
    cluster.kill(2);
    for node in 0..2 {
        eventually("the death is known", || cluster.status(node).cluster.members.len() == 2);
    }
    for (node, client) in clients.iter().enumerate() {
        let results = client.get(&ids, Some(Duration::from_secs(30))).expect("the call itself succeeds");
        let kinds: Vec<_> = results.into_iter().map(kind).collect();
        let lost = kinds.iter().filter(|kind| **kind == ErrorKind::Lost).count();
        assert_eq!(lost, OBJECTS, "node {node}: {kinds:?}");
    }
    // Ids of lost objects are free for others.
    try_put(&clients[0], ids[0], Pattern(9), 1000).expect("put");
    Pattern(9).check(get(&clients[1], ids[0]).data());
}
