//! Checks of the cluster when all faults are repaired and the workers rest, and at the end of the run.

use std::collections::BTreeMap;
use std::fs;
use std::thread;

use plasmon::{Client, CreateOptions, Error, ErrorKind, ObjectId, ObjectState, Presence};
use plasmon_e2e::wait::patiently;
use plasmon_e2e::{Chance, Cluster, PATIENCE, eventually, until};

use super::calls;
use super::deaths::{has, left};
use super::life::Life;
use super::model::{Record, State};
use super::names::named;
use super::schedule::{NAMES, NODES};
use super::watcher::Watch;
use super::worker::Ground;
use super::{barriers, locks, regions};
use crate::support::MIB;

/// Descriptors and memory of each daemon before the first fault.
pub(super) struct Before(Vec<(usize, u64)>);

impl Before {
    pub(super) fn of(cluster: &Cluster) -> Self {
        Self((0..NODES).map(|node| has(cluster, node)).collect())
    }
}

/// Waits until every node knows every other node in its present run.
pub(super) fn complete(cluster: &Cluster) {
    let nodes = cluster.nodes();
    let ids: Vec<_> = (0..nodes).map(|node| cluster.status(node).node).collect();
    let knows_all = |node: usize| {
        let status = cluster.status(node);
        let members: Vec<_> = status.cluster.members.into_iter().map(|member| member.node).collect();
        let all = members.len() == nodes && ids.iter().all(|id| members.contains(id));
        if all { Ok(()) } else { Err(format!("node {node}: epoch {}, {members:?}", status.cluster.epoch)) }
    };
    let all_know_all = patiently(PATIENCE, || {
        let seen: Vec<_> = (0..nodes).filter_map(|node| knows_all(node).err()).collect();
        if seen.is_empty() { Ok(()) } else { Err(seen) }
    });
    if let Err(seen) = all_know_all {
        panic!("the nodes {ids:?} never became one cluster again: {seen:#?}");
    }
}

/// Compares every object with the model.
pub(super) fn look(ground: &Ground, cluster: &Cluster, watch: &Watch, chance: &mut Chance) {
    complete(cluster);
    let clients: Vec<_> = (0..NODES).map(|node| cluster.client(node)).collect();
    let records = ground.model.records();
    let (must, others): (Vec<_>, Vec<_>) = records.iter().partition(|record| ground.model.must(record));
    ground.note(&format!("CALM: {} must be readable, {} may not be", must.len(), others.len()));
    let settled: Vec<_> = must.iter().copied().filter(|record| record.is_settled()).collect();
    for record in &must {
        readable(ground, &clients[chance.below(NODES)], record);
        eventually(&format!("the watcher of its home hears of {record:?}"), || {
            watch.heard(record) || !ground.model.lives(record.home)
        });
    }
    as_many_as_wished(ground, cluster, &clients, &settled);
    waiters_are_woken(&clients, chance);

    // Objects that may exist or not are deleted, so that the state of all is certain again.
    let unsure = others.iter().copied().chain(must.iter().copied().filter(|record| !record.is_settled()));
    let unsure: Vec<_> =
        unsure.filter(|record| !matches!(record.state, State::Never | State::Gone)).collect();
    for record in &unsure {
        ground.model.begin_delete(record.key);
        delete(&clients[chance.below(NODES)], &[record.id]);
    }
    for record in &unsure {
        gone(&clients, record.id, &format!("{record:?}"));
        ground.model.is_gone(record.key);
    }
    for record in others.iter().filter(|record| record.state == State::Gone) {
        gone(&clients[chance.below(NODES)..][..1], record.id, &format!("{record:?}"));
    }
    // In the next round, names begin with nothing.
    let checked = ground.histories.check();
    ground.note(&format!("CALM: {checked} calls on names are those of registers"));
    delete(&clients[0], &(0..NAMES).map(|name| named(name).0).collect::<Vec<_>>());
    for name in 0..NAMES {
        gone(&clients, named(name).0, &format!("name {name}"));
    }
    let there = regions::look(&ground.regions, &clients);
    ground.note(&format!("CALM: {there} regions are there; adds and lives: {:?}", ground.regions.adds()));
    locks::look(&ground.locks, &clients);
    ground.note(&format!("CALM: locks are free, after {} guards", ground.locks.given()));
    barriers::look(&clients);
    ground.note(&format!("CALM: barriers let pass, after {} passages", ground.barriers.passed()));
    let well = calls::look(&ground.calls_made, &clients);
    ground.note(&format!("CALM: {well} calls of functions ended well"));
    for node in 0..NODES {
        eventually("no lease is left", || cluster.status(node).transfer.leases == 0);
    }
    ground.note("CALM: all is as it should be");
}

/// Reads the whole of an object that exists for certain, by a client of any node.
fn readable(ground: &Ground, client: &Client, record: &Record) {
    let got = patiently(PATIENCE, || {
        match client.get(&[record.id], Some(PATIENCE)).expect("the daemon lives").remove(0) {
            // A client is told so until the holder, which was taken for dead, has published the object again.
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            // An object on disk has no room while memory of calls is kept for a node that was expelled.
            Err(error) if error.kind() == ErrorKind::Full => Err(error),
            other => Ok(other),
        }
    });
    match got {
        Ok(Ok(object)) => {
            let life = Life::of(&object);
            assert!(record.lives.admit(&record.lives, life), "{life:?} of {record:?}");
            ground.model.was_told(record, life);
            if object.digest().is_some() {
                object.verify().expect("its digest is that of its bytes");
            }
        }
        Ok(Err(error)) | Err(error) => {
            let lines: Vec<_> = error.lines().collect();
            let status = client.status();
            panic!("{:?}: {lines:#?}; it should be there: {record:?}; {status:?}", error.kind())
        }
    }
}

/// Waits until every object is kept by as many nodes as it should be, or by all nodes.
fn as_many_as_wished(ground: &Ground, cluster: &Cluster, clients: &[Client], records: &[&Record]) {
    let wished = |record: &Record| record.copies.map_or(1, |copies| usize::from(copies).min(NODES));
    let keeping = [ObjectState::Primary, ObjectState::Kept, ObjectState::Spilled];
    let all_are_kept = patiently(PATIENCE, || {
        let mut kept: BTreeMap<ObjectId, Vec<usize>> = BTreeMap::new();
        for (node, client) in clients.iter().enumerate() {
            for row in client.list().expect("the daemon lives") {
                if keeping.contains(&row.state) {
                    kept.entry(row.id).or_default().push(node);
                }
            }
        }
        let too_few = |record: &Record| kept.get(&record.id).is_none_or(|nodes| nodes.len() < wished(record));
        match records.iter().find(|record| too_few(record)) {
            Some(record) => Err((*record, kept.remove(&record.id))),
            None => Ok(kept),
        }
    });
    let kept = all_are_kept.unwrap_or_else(|(record, nodes)| {
        let copies: Vec<_> = (0..NODES).map(|node| cluster.status(node).cluster.copies).collect();
        let located = clients[0].locations(record.id);
        ground.note(&format!("CALM: {record:?} is at {located:?}"));
        panic!("kept by nodes {nodes:?}: {record:?}; it is at {located:?}, and the nodes say {copies:#?}");
    });
    for record in records.iter().filter(|record| record.copies.is_some()) {
        ground.model.is_kept_by(record.key, &kept[&record.id]);
    }
}

/// Deletes objects. On a busy machine a node may not be able to answer in time.
fn delete(client: &Client, ids: &[ObjectId]) {
    eventually("a deletion reaches those who keep the directory", || {
        let deleted = client.delete(ids);
        let kind = deleted.as_ref().map_err(Error::kind).err();
        assert!(
            matches!(
                kind,
                None | Some(ErrorKind::Disconnected | ErrorKind::TimedOut | ErrorKind::OutcomeUnknown)
            ),
            "{deleted:?}"
        );
        deleted.is_ok()
    });
}

/// Checks that no node holds an object or knows one that does.
fn gone(clients: &[Client], id: ObjectId, what: &str) {
    until(&format!("it was deleted, and is still there: {what}"), || {
        let is_gone = |client: &Client| {
            let presence = client.contains(&[id]).map(|told| told[0]);
            if matches!(presence, Ok(Presence::Here | Presence::Elsewhere)) {
                // A node that was away may have brought it back: an object lives again with its holder.
                delete(client, &[id]);
            }
            // A keeper that does not answer in time says nothing about the object.
            presence.is_ok_and(|presence| presence == Presence::Absent)
        };
        clients.iter().all(is_gone).then_some(())
    });
}

/// Checks that waits on one node are woken by puts on another.
fn waiters_are_woken(clients: &[Client], chance: &mut Chance) {
    for (node, client) in clients.iter().enumerate() {
        let (id, life) = (ObjectId::random(), Life { seed: chance.word(), len: chance.below(MIB) });
        let waiting = {
            let client = client.clone();
            thread::spawn(move || {
                client.get(&[id], Some(PATIENCE))?.remove(0).map(|object| Life::of(&object))
            })
        };
        let home = &clients[(node + 1 + chance.below(NODES - 1)) % NODES];
        home.put(id, &life.data(), &life.metadata(), &CreateOptions::default()).expect("there is room");
        let got = waiting.join().expect("a waiter found something wrong");
        assert_eq!(got.expect("it is woken"), life);
        delete(home, &[id]);
    }
}

/// Deletes all objects, and checks that nothing is left of them.
pub(super) fn nothing_is_left(ground: &Ground, cluster: &Cluster, before: &Before) {
    let mut ids: Vec<_> = ground.model.records().iter().map(|record| record.id).collect();
    ids.extend((0..NAMES).map(|name| named(name).0));
    let client = cluster.client(0);
    regions::free_all(&client);
    let all_is_gone = patiently(PATIENCE, || {
        for ids in ids.chunks(256) {
            delete(&client, ids);
        }
        let left = (0..NODES).find_map(|node| {
            let status = cluster.status(node);
            let spilled = (status.spill.objects > 0).then(|| format!("{:?}", status.spill));
            left(cluster, node).or(spilled)
        });
        left.map_or(Ok(()), Err)
    });
    all_is_gone.unwrap_or_else(|left| panic!("{left}"));
    // Two nodes that connect to each other at the same moment may keep both connections, on each of two
    // lanes; and one of the lanes may not have been used before.
    let crossed = 2 * 2 * (NODES - 1);
    for (node, (descriptors, own)) in before.0.iter().enumerate() {
        let most = descriptors + crossed;
        let few = || if has(cluster, node).0 > most { Err(()) } else { Ok(()) };
        if patiently(PATIENCE, few).is_err() {
            panic!("node {node} had {descriptors}: {:#?}", open(cluster, node));
        }
        let now = has(cluster, node).1;
        assert!(now < own + 32 * MIB as u64, "node {node} has {now} bytes instead of {own}");
    }
}

/// Open files of a daemon, with the number of descriptors of each.
fn open(cluster: &Cluster, node: usize) -> BTreeMap<String, usize> {
    let mut open = BTreeMap::new();
    let folder = format!("/proc/{}/fd", cluster.status(node).pid);
    for entry in fs::read_dir(folder).expect("it lives") {
        let Ok(link) = fs::read_link(entry.expect("it lives").path()) else { continue };
        let link = link.to_string_lossy().into_owned();
        // Sockets are told apart by their number only.
        let kind = link.split_once(":[").map_or(link.as_str(), |(kind, _)| kind).to_owned();
        *open.entry(kind).or_default() += 1;
    }
    open
}
