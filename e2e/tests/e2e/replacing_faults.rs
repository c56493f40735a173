//! Tests of nodes and programs that are killed or stopped while objects are replaced, each aimed at the part
//! that it has in that: the first or the second keeper, the node of the writer, the program that writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::{Client, CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, eventually, until};
use rustix::process::Signal;

use crate::coordinators::{By, for_both};
use crate::replacing::{Watched, clients, number, write, write_with};
use crate::replacing_deaths::{Ends, TURNS, read_on, replace_on};
use crate::support::{ClientProcess, LONG_LEASE, MIB, get, keepers};

for_both!(
    the_first_keeper_is_killed,
    the_first_keeper_is_stopped,
    the_second_keeper_is_killed,
    the_second_keeper_is_stopped,
    the_node_of_the_writer_is_killed,
    the_node_of_the_writer_is_stopped,
);

/// Number of nodes of a cluster in which one is struck: two others keep the objects then.
const NODES: usize = 4;
/// The node that is struck. It has no coordinator.
const VICTIM: usize = 3;
/// Number of objects that are replaced.
const OBJECTS: usize = 6;

/// Part of the node that is struck.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    First,
    Second,
    Writer,
}

/// What happens to the node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blow {
    Kill,
    Stop,
}

fn the_first_keeper_is_killed(by: By) {
    strike(by, Part::First, Blow::Kill);
}

fn the_first_keeper_is_stopped(by: By) {
    strike(by, Part::First, Blow::Stop);
}

fn the_second_keeper_is_killed(by: By) {
    strike(by, Part::Second, Blow::Kill);
}

fn the_second_keeper_is_stopped(by: By) {
    strike(by, Part::Second, Blow::Stop);
}

fn the_node_of_the_writer_is_killed(by: By) {
    strike(by, Part::Writer, Blow::Kill);
}

fn the_node_of_the_writer_is_stopped(by: By) {
    strike(by, Part::Writer, Blow::Stop);
}

/// An id of which a node has a part, and no other.
fn id_for(cluster: &Cluster, part: Part, node: usize) -> ObjectId {
    let nodes: Vec<_> = (0..cluster.nodes()).map(|node| cluster.status(node).node).collect();
    let is_it = |id: &ObjectId| {
        let is_there = keepers(nodes.iter().cloned(), id).map(|keeper| keeper == nodes[node]);
        is_there == [part == Part::First, part == Part::Second]
    };
    std::iter::repeat_with(ObjectId::random).find(is_it).expect("there are many ids")
}

/// Number of members that a node knows.
fn members(cluster: &Cluster, node: usize) -> usize {
    cluster.status(node).cluster.members.len()
}

/// Kills or stops a node that has a part in every replacement, while clients of the others read the objects.
fn strike(by: By, part: Part, blow: Blow) {
    let mut cluster = by.cluster(NODES).start();
    let at = clients(&cluster);
    let all: Vec<_> = (0..OBJECTS).map(|_| Watched::new(id_for(&cluster, part, VICTIM), 0)).collect();
    all.iter().for_each(|one| _ = write(&at[1], one.id, 0, 100, None).expect("it is a put"));
    let writer = if part == Part::Writer { VICTIM } else { 2 };
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let _ends = Ends(&over);
        for reader in &at[..VICTIM] {
            let (all, over) = (&all, &over);
            scope.spawn(move || read_on(reader, all, part == Part::Writer, over));
        }
        let replacing = scope.spawn(|| replace_on(&at[writer], &all, &done, &over));
        let goes_on = || {
            let before = done.load(Ordering::SeqCst);
            eventually("objects are replaced", || {
                done.load(Ordering::SeqCst) > before + TURNS || replacing.is_finished()
            });
        };
        goes_on();
        match blow {
            Blow::Kill => cluster.kill(VICTIM),
            Blow::Stop => cluster.pause(VICTIM),
        }
        eventually("it is no member any more", || members(&cluster, 0) == NODES - 1);
        if part != Part::Writer {
            goes_on();
        }
        if blow == Blow::Stop {
            cluster.resume(VICTIM);
            eventually("it is a member again", || members(&cluster, 0) == NODES);
            goes_on();
        }
        // A node that etcd does not take for a member refuses its clients.
        assert!(part == Part::Writer || !replacing.is_finished());
    });
    let last = if blow == Blow::Kill { VICTIM } else { NODES };
    for watched in &all {
        let (least, lost) = (watched.told(), part == Part::Writer && blow == Blow::Kill);
        for client in &at[..VICTIM] {
            match client.get(&[watched.id], Some(PATIENCE)).expect("the daemon lives").remove(0) {
                Ok(object) => watched.tell(least, number(&object), "get"),
                Err(error) => assert_eq!((error.kind(), lost), (ErrorKind::Lost, true), "{error}"),
            }
        }
        write(&at[0], watched.id, 1_000_000, 100, None).expect("replace");
        at[..VICTIM].iter().for_each(|client| assert_eq!(number(&get(client, watched.id)), 1_000_000));
        for client in &at[VICTIM..last] {
            until("the node that was stopped gives what the others give", || {
                let got = client.get(&[watched.id], Some(PATIENCE)).expect("the daemon lives").remove(0);
                got.ok().filter(|object| number(object) == 1_000_000)
            });
        }
    }
}

#[test]
fn who_has_no_time_left_when_the_first_keeper_dies_loses_neither_object() {
    const WRITERS: usize = 16;
    let mut cluster = By::Node.cluster(NODES).start();
    let at = clients(&cluster);
    let ids = [(); WRITERS].map(|()| id_for(&cluster, Part::First, VICTIM));
    ids.iter().for_each(|id| _ = write(&at[1], *id, 0, 100, None).expect("it is a put"));
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let write_on = |id, client: Client| {
        let options = CreateOptions { room: Some(Duration::from_millis(100)), ..CreateOptions::default() };
        let mut ended = (0, 0);
        for next in (1..).take_while(|_| !over.load(Ordering::SeqCst)) {
            match write_with(&client, id, next, 100, &options, None) {
                Ok(_) => ended = (next, next),
                // Another object than the last one may be there.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => ended.1 = next,
                Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
            }
            done.fetch_add(1, Ordering::SeqCst);
        }
        ended
    };
    let written = thread::scope(|scope| {
        let _ends = Ends(&over);
        let writers: Vec<_> = ids
            .iter()
            .map(|id| {
                let (client, write_on) = (cluster.client(2), &write_on);
                scope.spawn(move || write_on(*id, client))
            })
            .collect();
        let goes_on = |times: u64| {
            let before = done.load(Ordering::SeqCst);
            eventually("objects are replaced", || done.load(Ordering::SeqCst) > before + times);
        };
        goes_on(20 * WRITERS as u64);
        cluster.kill(VICTIM);
        eventually("it is no member any more", || members(&cluster, 0) == NODES - 1);
        goes_on(20 * WRITERS as u64);
        over.store(true, Ordering::SeqCst);
        writers.into_iter().map(|one| one.join().expect("nothing is wrong")).collect::<Vec<_>>()
    });
    for (id, (least, most)) in ids.into_iter().zip(written) {
        for client in &at[..VICTIM] {
            let there = number(&get(client, id));
            assert!((least..=most).contains(&there), "{there} is not of {least} to {most}");
        }
    }
}

/// Whether a node has the memory of one object of a MiB at most, and nothing is being written there.
fn has_one(cluster: &Cluster, node: usize) -> bool {
    let status = cluster.status(node);
    status.objects.unsealed == 0 && status.objects.doomed == 0 && status.memory.used < 2 * MIB as u64
}

#[test]
fn a_program_that_dies_between_create_and_seal_leaves_the_old_object() {
    for nodes in [1, 3] {
        let cluster = Cluster::builder().nodes(nodes).start();
        let (at, id) = (clients(&cluster), ObjectId::random());
        write(&at[0], id, 1, MIB, None).expect("it is a put");
        for (turn, len) in (2..).zip(["100", "1000000", "20000000"]) {
            let node = turn as usize % nodes;
            let [dying, stopped] =
                [(); 2].map(|()| ClientProcess::start(&cluster, node, &["over", &id.to_string(), len]));
            assert_eq!(cluster.status(node).objects.unsealed, 2);
            stopped.signal(Signal::STOP);
            dying.kill();
            eventually("what it wrote is gone", || cluster.status(node).objects.unsealed == 1);
            at.iter().for_each(|client| assert_eq!(number(&get(client, id)), turn - 1));
            // Others replace the object, whatever a program that stands still may write some time.
            write(&at[(node + 1) % nodes], id, turn, MIB, None).expect("replace");
            at.iter().for_each(|client| assert_eq!(number(&get(client, id)), turn));
            stopped.kill();
            eventually("nothing else is left", || (0..nodes).all(|node| has_one(&cluster, node)));
        }
    }
}

#[test]
fn what_was_sealed_is_replaced_although_its_program_dies() {
    let cluster = Cluster::builder().nodes(3).args(&LONG_LEASE).start();
    let (at, node) = (clients(&cluster), cluster.status(2).node);
    let nodes: Vec<_> = (0..3).map(|node| cluster.status(node).node).collect();
    let is_foreign = |id: &ObjectId| !keepers(nodes.iter().cloned(), id).contains(&node);
    for _ in 0..3 {
        let id = std::iter::repeat_with(ObjectId::random).find(is_foreign).expect("there are many ids");
        write(&at[0], id, 1, MIB, None).expect("it is a put");
        at.iter().for_each(|client| assert_eq!(number(&get(client, id)), 1));
        // A holder that stands still keeps the replacement from ending.
        cluster.pause(2);
        let len = (4 * MIB).to_string();
        let writer = ClientProcess::start(&cluster, 1, &["replace", &id.to_string(), &len, "2"]);
        eventually("the new object was sealed", || {
            let status = cluster.status(1);
            status.memory.used > 5 * MIB as u64 && status.objects.unsealed == 0
        });
        let pid = writer.pid();
        writer.kill();
        let is_there = || cluster.status(1).connections.iter().any(|client| client.pid == pid);
        eventually("its client has gone", || !is_there());
        cluster.resume(2);
        eventually("it is replaced", || number(&get(&at[0], id)) == 2);
        at.iter().for_each(|client| assert_eq!(number(&get(client, id)), 2));
        at[0].delete(&[id]).expect("delete");
        for node in 0..3 {
            eventually("its memory is free", || cluster.status(node).memory.used == 0);
        }
    }
}

/// Reads an object in a loop: it is always there and whole.
fn read_whole(client: &Client, id: ObjectId, over: &AtomicBool) {
    while !over.load(Ordering::SeqCst) {
        number(&get(client, id));
    }
}

#[test]
fn programs_that_replace_may_be_stopped_and_killed_at_any_moment() {
    const TIMES: usize = 12;
    let cluster = Cluster::builder().nodes(3).start();
    let (at, id, over) = (clients(&cluster), ObjectId::random(), AtomicBool::new(false));
    write(&at[0], id, 0, MIB, None).expect("it is a put");
    thread::scope(|scope| {
        let _ends = Ends(&over);
        at.iter().for_each(|client| _ = scope.spawn(|| read_whole(client, id, &over)));
        for turn in 0..TIMES {
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let (number, len) = ((1 + (2 * turn + writer)) << 32, [70, MIB][writer]);
                    let orders = ["replace", &id.to_string(), &len.to_string(), &number.to_string()];
                    ClientProcess::start(&cluster, (turn + writer) % 3, &orders)
                })
                .collect();
            for writer in writers {
                let seen = |number: u64| number >> 32 > 2 * turn as u64;
                eventually("one of them replaces", || seen(number(&get(&at[turn % 3], id))));
                writer.signal(Signal::STOP);
                let next = u64::from(u32::MAX) + turn as u64;
                write(&at[(turn + 1) % 3], id, next, MIB, None).expect("a program that stands still");
                writer.signal(Signal::CONT);
                writer.kill();
            }
        }
    });
    let last = number(&get(&at[0], id));
    at.iter().for_each(|client| assert_eq!(number(&get(client, id)), last));
    eventually("nothing else is left", || (0..3).all(|node| has_one(&cluster, node)));
}
