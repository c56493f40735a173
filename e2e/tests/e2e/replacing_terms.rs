//! Tests of objects that are replaced while they have several replicas, lie on disk, have a time to live or
//! an owner, are watched, or are deleted at the same time.

use std::thread;
use std::time::{Duration, Instant};

use plasmon::{
    Client, CreateOptions, DeleteOutcome, ErrorKind, Event, Filter, ObjectId, ObjectState, Presence, Rights,
    Subscription, Version,
};
use plasmon_e2e::linear::{Action, Call, Value, violations};
use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Chance, Cluster, PATIENCE, Pattern, eventually};

use crate::replacing::{clients, number, write, write_with};
use crate::support::{MIB, get, put};

/// Nodes that keep an object, by their own lists.
fn keeping(clients: &[Client], id: ObjectId) -> usize {
    let kept = [ObjectState::Primary, ObjectState::Kept];
    let keeps = |client: &Client| {
        let rows = client.list().expect("the daemon lives");
        rows.iter().any(|row| row.id == id && kept.contains(&row.state))
    };
    clients.iter().filter(|client| keeps(client)).count()
}

#[test]
fn as_many_nodes_keep_the_new_object_as_kept_the_old_one_or_as_are_asked_for() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients = clients(&cluster);
    let copies = |replicas| CreateOptions { replicas, ..CreateOptions::default() };
    for (turn, len) in [1, 100_000, 3 * MIB].into_iter().enumerate() {
        let id = ObjectId::random();
        write_with(&clients[turn], id, 1, len, &copies(2), None).expect("it is a put");
        assert_eq!(keeping(&clients, id), 2);
        write(&clients[(turn + 1) % 3], id, 2, len, None).expect("replace");
        eventually("two keep it", || keeping(&clients, id) == 2);
        clients.iter().for_each(|client| assert_eq!(number(&get(client, id)), 2));
        write_with(&clients[(turn + 2) % 3], id, 3, len, &copies(3), None).expect("replace");
        assert_eq!(keeping(&clients, id), 3, "the call waits for them");
        clients.iter().for_each(|client| assert_eq!(number(&get(client, id)), 3));
        write_with(&clients[turn], id, 4, len, &copies(1), None).expect("replace");
        clients.iter().for_each(|client| assert_eq!(number(&get(client, id)), 4));
        eventually("one keeps it", || keeping(&clients, id) == 1);
    }
}

#[test]
fn nodes_that_an_object_was_brought_to_give_the_new_one() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients = clients(&cluster);
    let nodes: Vec<_> = clients.iter().map(Client::node).collect();
    for turn in 0..12 {
        let (id, len) = (ObjectId::random(), [1, 100_000, 3 * MIB][turn % 3]);
        let (writer, other) = (&clients[turn % 3], &clients[(turn + 1) % 3]);
        write(writer, id, 1, len, None).expect("it is a put");
        match turn % 4 {
            0 => drop(writer.broadcast(id, &[], Some(PATIENCE)).expect("broadcast")),
            1 => other.pin(id, Some(PATIENCE)).expect("pin"),
            2 => drop(writer.migrate(id, nodes[(turn + 1) % 3], Some(PATIENCE)).expect("migrate")),
            _ => clients.iter().for_each(|client| {
                client.prefetch(&[id], PATIENCE).expect("prefetch");
                assert_eq!(number(&get(client, id)), 1);
            }),
        }
        write(&clients[(turn + turn / 3) % 3], id, 2, len, None).expect("replace");
        clients.iter().for_each(|client| assert_eq!(number(&get(client, id)), 2, "turn {turn}"));
        let ways = [writer.broadcast(id, &[], Some(PATIENCE)), other.replicate(id, 2, Some(PATIENCE))];
        ways.into_iter().for_each(|way| drop(way.expect("the new one can be brought anywhere")));
        clients.iter().for_each(|client| assert_eq!(number(&get(client, id)), 2, "turn {turn}"));
    }
}

#[test]
fn an_object_on_disk_is_replaced_and_does_not_come_back() {
    for nodes in [1, 3] {
        let mut cluster = Cluster::builder().nodes(nodes).args(&["--spill-dir", "spill"]).start();
        let client = cluster.client(nodes - 1);
        let ids: Vec<_> = (0..10).map(|_| ObjectId::random()).collect();
        ids.iter().for_each(|id| _ = write(&client, *id, 1, 10 * MIB, None).expect("it is a put"));
        let rows = client.list().expect("list").into_iter();
        let spilled: Vec<_> =
            rows.filter(|row| row.state == ObjectState::Spilled).map(|row| row.id).collect();
        assert!(spilled.len() >= 3, "{} are on disk", spilled.len());
        for (turn, id) in spilled.iter().enumerate() {
            let len = [10, 10 * MIB][turn % 2];
            write(&cluster.client(turn % nodes), *id, 2, len, None).expect("replace");
            clients(&cluster).iter().for_each(|client| assert_eq!(number(&get(client, *id)), 2));
        }
        for id in &ids {
            let there = number(&get(&client, *id));
            assert_eq!(there, if spilled.contains(id) { 2 } else { 1 });
        }
        if nodes == 1 {
            cluster.kill(0);
            cluster.restart();
            let client = cluster.client(0);
            for id in &spilled {
                if let Ok(object) = client.get(&[*id], Some(Duration::ZERO)).expect("get").remove(0) {
                    assert_eq!(number(&object), 2, "what was replaced does not come back from disk");
                }
            }
        }
        cluster.client(0).delete(&ids).expect("delete");
        let status = |node: usize| cluster.status(node);
        for node in 0..nodes {
            eventually("nothing is left", || {
                status(node).memory.used == 0 && status(node).spill.objects == 0
            });
        }
    }
}

#[test]
fn the_new_object_has_its_own_time_to_live() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (clients, span) = (clients(&cluster), Duration::from_millis(500));
        let short = CreateOptions { ttl: Some(span), ..CreateOptions::default() };
        let (stays, ends) = (ObjectId::random(), ObjectId::random());
        write_with(&clients[0], stays, 1, 100, &short, None).expect("it is a put");
        write(&clients[nodes - 1], stays, 2, 100, None).expect("replace");
        write(&clients[0], ends, 1, 100, None).expect("it is a put");
        write_with(&clients[nodes - 1], ends, 2, 100, &short, None).expect("replace");
        for client in &clients {
            let gone = || client.get(&[ends], Some(Duration::ZERO)).expect("get").remove(0).is_err();
            eventually("it has ended", gone);
        }
        let_pass(2 * span, "the time to live of the former object has to be over");
        clients.iter().for_each(|client| assert_eq!(number(&get(client, stays)), 2));
    }
}

#[test]
fn the_new_object_ends_with_the_client_that_owns_it_and_not_with_the_former_one() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (all, owned) = (clients(&cluster), CreateOptions { owned: true, ..CreateOptions::default() });
        for len in [10, 100_000, 3 * MIB] {
            let ids = [0; 4].map(|_| ObjectId::random());
            let [stays, ends, again, bystander] = ids;
            let (first, second) = (cluster.client(0), cluster.client(nodes - 1));
            write_with(&first, stays, 1, len, &owned, None).expect("it is a put");
            write(&second, stays, 2, len, None).expect("replace");
            write(&first, ends, 1, len, None).expect("it is a put");
            write_with(&second, ends, 2, len, &owned, None).expect("replace");
            write_with(&second, again, 1, len, &owned, None).expect("it is a put");
            write_with(&second, again, 2, len, &owned, None).expect("replace");
            write_with(&first, bystander, 1, len, &owned, None).expect("it is a put");
            drop(first);
            let gone = |client: &Client, id| {
                let got = client.get(&[id], Some(Duration::ZERO)).expect("the daemon lives").remove(0);
                got.is_err_and(|error| error.kind() == ErrorKind::NotFound)
            };
            all.iter().for_each(|client| eventually("what it owned is gone", || gone(client, bystander)));
            for id in [stays, ends, again] {
                all.iter().for_each(|client| assert_eq!(number(&get(client, id)), 2));
            }
            drop(second);
            for id in [ends, again] {
                all.iter().for_each(|client| eventually("what it owned is gone", || gone(client, id)));
            }
            all.iter().for_each(|client| assert_eq!(number(&get(client, stays)), 2));
            all[0].delete(&[stays]).expect("delete");
        }
    }
}

/// The events about an object until another one is sealed.
fn heard(events: &mut Subscription, of: ObjectId, until: ObjectId) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        let (_, event) =
            events.next(Some(PATIENCE), None).expect("the daemon lives").expect("an event comes");
        match event {
            Event::Sealed { id, .. } if id == until => return told,
            Event::Sealed { id, data_len, .. } if id == of => told.push(format!("sealed {data_len}")),
            Event::Replaced { id, data_len, .. } if id == of => told.push(format!("replaced {data_len}")),
            Event::Deleted { id, .. } if id == of => told.push("deleted".to_owned()),
            _ => {}
        }
    }
}

#[test]
fn a_subscriber_hears_of_a_replacement_once_and_on_other_nodes_that_the_old_object_goes() {
    for (nodes, spread) in [(1, true), (3, true), (3, false)] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (clients, id) = (clients(&cluster), ObjectId::random());
        write(&clients[0], id, 0, 1, None).expect("it is a put");
        let holds = |node| spread || node == 0;
        let holders = clients.iter().enumerate().filter(|(node, _)| holds(*node));
        holders.for_each(|(_, client)| _ = get(client, id));
        let mut all: Vec<_> =
            clients.iter().map(|one| one.subscribe("watcher").expect("subscribe")).collect();
        let marks: Vec<_> = clients.iter().map(|client| put(client, Pattern(1), 1)).collect();
        for (node, (events, mark)) in all.iter_mut().zip(marks).enumerate() {
            let expected: &[_] = if holds(node) { &["sealed 1"] } else { &[] };
            assert_eq!(heard(events, id, mark), expected, "node {node}");
        }
        write(&clients[nodes - 1], id, 1, 2, None).expect("replace");
        for (node, (client, events)) in clients.iter().zip(&mut all).enumerate() {
            eventually("the old one is gone here", || {
                let rows = client.list().expect("list");
                rows.iter().all(|row| row.id != id || row.data_len == 2)
            });
            let told = heard(events, id, put(client, Pattern(1), 1));
            let expected: &[_] = match (node == nodes - 1, holds(node)) {
                (true, _) => &["replaced 2"],
                (false, true) => &["deleted"],
                (false, false) => &[],
            };
            assert_eq!(told, expected, "node {node}");
        }
    }
}

#[test]
fn those_who_see_the_new_object_alone_hear_that_it_is_sealed_and_others_that_the_old_one_is_gone() {
    for nodes in [1, 2] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (client, id) = (cluster.client(0), ObjectId::random());
        let private = CreateOptions { rights: Rights::Private, ..CreateOptions::default() };
        write(&client, id, 0, 1, None).expect("it is a put");
        let mut events = client.subscribe("watcher").expect("subscribe");
        assert_eq!(heard(&mut events, id, put(&client, Pattern(1), 1)), ["sealed 1"]);
        write_with(&client, id, 1, 2, &private, None).expect("replace");
        write(&client, id, 2, 3, None).expect("replace");
        let told = heard(&mut events, id, put(&client, Pattern(1), 1));
        assert_eq!(told, ["deleted", "sealed 2", "deleted", "sealed 3"]);
    }
}

#[test]
fn a_list_of_the_cluster_has_what_two_nodes_replace_meanwhile() {
    let cluster = Cluster::builder().nodes(3).start();
    let (clients, id) = (clients(&cluster), ObjectId::random());
    write(&clients[0], id, 0, 10, None).expect("it is a put");
    for turn in 0..200 {
        thread::scope(|scope| {
            for writer in [turn + 1, turn + 2] {
                let client = &clients[writer % 3];
                scope.spawn(move || write(client, id, 1, 10, None).expect("replace"));
            }
            let list = clients[turn % 3].list_cluster(&Filter::default()).expect("list");
            let ids: Vec<_> = list.objects.iter().map(|row| row.id).collect();
            assert_eq!((ids, list.missing), (vec![id], Vec::new()), "list {turn}");
        });
    }
}

#[test]
fn lists_and_explanations_have_the_version_of_each_object() {
    let cluster = Cluster::builder().nodes(2).start();
    let (clients, id) = (clients(&cluster), ObjectId::random());
    put(&clients[0], Pattern(1), 1);
    for turn in 0..4 {
        let version = write(&clients[turn % 2], id, turn as u64, 100, None).expect("replace");
        assert_eq!(number(&get(&clients[(turn + 1) % 2], id)), turn as u64);
        for client in &clients {
            let list = client.list_cluster(&Filter::default()).expect("list");
            let row = list.objects.iter().find(|row| row.id == id).expect("it is there");
            assert_eq!(row.version, Some(version), "turn {turn}");
            assert_eq!(client.explain(id).expect("explain").version, Some(version.to_string()));
            let (_, got) = client.get_versioned(&[id], None).expect("get").remove(0).expect("it is there");
            assert_eq!(got, version);
        }
    }
    let creation = clients[0].create(ObjectId::random(), 10, b"", &CreateOptions::default()).expect("create");
    let rows = clients[0].list().expect("list");
    let unsealed = rows.iter().find(|row| row.id == creation.id()).expect("it is there");
    assert_eq!((unsealed.state, unsealed.version), (ObjectState::Unsealed, None));
    assert_eq!(clients[0].explain(ObjectId::random()).expect("explain").version, None);
}

#[test]
fn a_scratch_replaces_an_object_and_is_given_up_only_if_it_does() {
    let cluster = Cluster::builder().nodes(2).start();
    let (clients, options) = (clients(&cluster), CreateOptions::default());
    for len in [10, MIB] {
        let id = ObjectId::random();
        let first = write(&clients[0], id, 1, 10, None).expect("it is a put");
        let second = write(&clients[0], id, 2, 10, None).expect("replace");
        let mut scratch = clients[1].buffer(len, false, None).expect("there is room");
        let (data, metadata) = (Pattern(3).bytes(len), 3u64.to_le_bytes());
        scratch.as_mut_slice().copy_from_slice(&data);
        let mut over = |expected| scratch.replace(id, len, &metadata, &options, expected);
        assert_eq!(over(Some(first)).expect_err("it is older").kind(), ErrorKind::Conflict);
        assert_ne!(over(Some(second)).expect("replace"), second);
        assert_eq!(over(None).expect_err("it was given up").kind(), ErrorKind::Invalid);
        for client in &clients {
            let object = get(client, id);
            assert_eq!((number(&object), object.data().len()), (3, len));
        }
    }
}

/// Client that makes drawn calls on one id, and notes what it was answered.
struct Worker {
    client: Client,
    node: usize,
    number: u32,
    chance: Chance,
    start: Instant,
    /// The last object that it was told of.
    known: Option<(Value, Version)>,
    calls: Vec<Call>,
}

fn name(value: Value) -> u64 {
    u64::from(value.writer) << 32 | u64::from(value.number)
}

fn value(name: u64) -> Value {
    Value { writer: (name >> 32) as u32, number: name as u32 }
}

impl Worker {
    fn work(mut self, id: ObjectId, times: u32) -> Vec<Call> {
        for turn in 1..=times {
            let begin = self.start.elapsed().as_nanos() as u64;
            let action = self.act(id, Value { writer: self.number, number: turn });
            let end = Some(self.start.elapsed().as_nanos() as u64);
            let (node, client) = (self.node, Some(self.number as usize));
            self.calls.push(Call { node, client, begin, end, action });
        }
        self.calls
    }

    fn act(&mut self, id: ObjectId, new: Value) -> Action {
        let len = *self.chance.pick(&[0, 10, 100_000]);
        match self.chance.below(12) {
            0..4 => {
                let version = write(&self.client, id, name(new), len, None).expect("replace");
                self.known = Some((new, version));
                Action::Wrote(new)
            }
            4..6 => match self.client.put(id, b"", &name(new).to_le_bytes(), &CreateOptions::default()) {
                Ok(()) => Action::Put(new),
                Err(error) if error.kind() == ErrorKind::Exists => Action::Refused,
                Err(error) => panic!("put: {:?}: {error}", error.kind()),
            },
            6..8 => {
                let deleted = self.client.delete(&[id]).expect("delete");
                Action::Deleted(deleted != [DeleteOutcome::Absent])
            }
            8..10 if self.known.is_some() => self.swap(id, new, len),
            10 => Action::Contains(self.client.contains(&[id]).expect("contains") != [Presence::Absent]),
            _ => match self.client.get_versioned(&[id], Some(Duration::ZERO)).expect("get").remove(0) {
                Ok((object, version)) => {
                    let value = value(u64::from_le_bytes(object.metadata().try_into().expect("a number")));
                    self.known = Some((value, version));
                    Action::Got(value)
                }
                Err(error) if error.kind() == ErrorKind::NotFound => Action::Contains(false),
                Err(error) => panic!("get: {:?}: {error}", error.kind()),
            },
        }
    }

    /// Compares and sets, with the last object that this client was told of.
    fn swap(&mut self, id: ObjectId, new: Value, len: usize) -> Action {
        let (from, version) = self.known.expect("the caller has seen it");
        match write(&self.client, id, name(new), len, Some(version)) {
            Ok(version) => {
                self.known = Some((new, version));
                Action::Swapped { from, to: new }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Action::Contains(false),
            Err(error) if error.kind() == ErrorKind::Conflict => Action::Contains(true),
            Err(error) => panic!("replace: {:?}: {error}", error.kind()),
        }
    }
}

#[test]
fn replacements_puts_and_deletions_of_one_object_have_one_order() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        for round in 0..12 {
            let (id, start) = (ObjectId::random(), Instant::now());
            let calls: Vec<_> = thread::scope(|scope| {
                let workers = (0..6).map(|number| {
                    let (node, chance) = (number % nodes, Chance::of_seed((100 * round + number) as u64));
                    let (client, number, known, calls) =
                        (cluster.client(node), number as u32, None, Vec::new());
                    let worker = Worker { client, node, number, chance, start, known, calls };
                    scope.spawn(move || worker.work(id, 25))
                });
                let workers: Vec<_> = workers.collect();
                workers.into_iter().flat_map(|one| one.join().expect("nothing is wrong")).collect()
            });
            if let Some(violation) = violations(&calls, 1).first() {
                panic!("{nodes} nodes, round {round}: {violation}");
            }
            cluster.client(0).delete(&[id]).expect("delete");
        }
        for node in 0..nodes {
            eventually("nothing is left", || cluster.status(node).memory.used == 0);
        }
    }
}
