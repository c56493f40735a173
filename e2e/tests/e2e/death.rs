//! Tests of deaths: the living nodes go on, and no get hangs.

use std::thread;
use std::time::Duration;

use plasmon::{Error, ErrorKind, Object, ObjectId, Protocol};
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::support::{ClientProcess, MIB, descriptors, get, kind, own_memory, put, stop_a_fetch, try_get};

const BIG: usize = 256 * MIB;

/// Begins to get a big object on node 0 and kills the holder that serves it, in the middle. Returns the
/// result.
///
/// `prepare` puts an object of pattern 1 at its holder.
fn kill_the_holder(
    cluster: &mut Cluster,
    holders: &[usize],
    prepare: impl Fn(&Cluster) -> ObjectId,
) -> Result<Object, Error> {
    let standing = stop_a_fetch(cluster, holders, BIG, prepare);
    cluster.kill(standing.holder);
    standing.fetch.join().expect("no panic")
}

fn cluster(nodes: usize, protocol: Protocol) -> Cluster {
    let args = ["--protocol", protocol.name()];
    Cluster::builder().nodes(nodes).memory("320MiB").args(&args).start()
}

#[test]
fn the_only_holder_dies_in_the_middle_of_a_fetch() {
    the_only_holder_dies(Protocol::Auto);
}

#[test]
fn the_only_holder_dies_in_the_middle_of_a_fetch_through_a_socket() {
    the_only_holder_dies(Protocol::Socket);
}

fn the_only_holder_dies(protocol: Protocol) {
    let mut cluster = cluster(2, protocol);
    let bystander = put(&cluster.client(0), Pattern(2), MIB);

    let result = kill_the_holder(&mut cluster, &[1], |cluster| put(&cluster.client(1), Pattern(1), BIG));
    let error = result.expect_err("half an object is no object");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");

    // Nothing is left of the attempt, and no other node is disturbed.
    eventually("its memory is free", || cluster.status(0).memory.used < 2 * MIB as u64);
    Pattern(2).check(get(&cluster.client(0), bystander).data());
    let again = put(&cluster.client(0), Pattern(3), BIG);
    Pattern(3).check(get(&cluster.client(0), again).data());
}

#[test]
fn another_holder_serves_when_one_dies_in_the_middle_of_a_fetch() {
    another_holder_serves(Protocol::Auto);
}

#[test]
fn another_holder_serves_when_one_dies_in_the_middle_of_a_fetch_through_a_socket() {
    another_holder_serves(Protocol::Socket);
}

fn another_holder_serves(protocol: Protocol) {
    let mut cluster = cluster(3, protocol);
    let result = kill_the_holder(&mut cluster, &[1, 2], |cluster| {
        let id = put(&cluster.client(1), Pattern(1), BIG);
        Pattern(1).check(get(&cluster.client(2), id).data());
        eventually("both holders are at rest", || {
            [1, 2].iter().all(|&holder| cluster.status(holder).transfer.leases == 0)
        });
        id
    });
    let object = result.expect("the other holder serves");
    assert_eq!(object.data().len(), BIG);
    Pattern(1).check(object.data());
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
fn a_holder_that_is_known_to_be_dead_is_not_asked_again() {
    let mut cluster = Cluster::builder().nodes(3).start();
    // Small: where a large one was is read, not asked.
    let id = put(&cluster.client(1), Pattern(1), 1000);
    for node in [2, 0] {
        Pattern(1).check(get(&cluster.client(node), id).data());
    }
    let reader = cluster.client(2);
    reader.evict(u64::MAX).expect("evict");
    cluster.kill(1);
    eventually("the death is known", || cluster.status(2).cluster.members.len() == 2);
    // Shorter than a holder that lives is given for its answer.
    let result = reader.get(&[id], Some(Duration::from_millis(1900))).expect("get").remove(0);
    Pattern(1).check(result.expect("the other holder has it").data());
}

#[test]
fn what_is_lost_stays_lost_although_nodes_ask_where_they_once_had_it_from() {
    let mut cluster = Cluster::builder().nodes(4).start();
    let ids: Vec<_> = (0..40).map(|seed| put(&cluster.client(1), Pattern(seed), 100)).collect();
    let clients = [2, 3].map(|node| cluster.client(node));
    // The second has about half of them from the first.
    for client in &clients {
        ids.iter().for_each(|id| drop(get(client, *id)));
    }
    for client in &clients {
        client.evict(u64::MAX).expect("evict");
    }
    cluster.kill(1);
    for node in [0, 2, 3] {
        eventually("the death is known", || cluster.status(node).cluster.members.len() == 3);
    }
    for round in 0..2 {
        let results = clients[1].get(&ids, Some(Duration::from_secs(5))).expect("get");
        let kinds: Vec<_> = results.into_iter().map(kind).collect();
        assert!(kinds.iter().all(|kind| *kind == ErrorKind::Lost), "round {round}: {kinds:?}");
    }
}

#[test]
fn what_is_lost_can_be_deleted_where_its_keeper_came_later() {
    let mut cluster = Cluster::builder().nodes(3).start();
    let ids: Vec<_> = (0..40).map(|seed| put(&cluster.client(2), Pattern(seed), 100)).collect();
    let known = |node| cluster.status(node).cluster.directory_entries;
    eventually("all are published, at two keepers each", || (0..3).map(known).sum::<u64>() == 80);
    cluster.kill(2);
    for node in [0, 1] {
        eventually("the death is known", || cluster.status(node).cluster.members.len() == 2);
        assert!(cluster.status(node).cluster.directory_entries > 0);
    }
    // The new node is asked first for a third of the objects, and does not know that they are lost.
    cluster.start_again(2, &[]);
    eventually("it is a member", || (0..3).all(|node| cluster.status(node).cluster.members.len() == 3));
    cluster.client(0).delete(&ids).expect("delete");
    for node in 0..3 {
        eventually("it is forgotten", || cluster.status(node).cluster.directory_entries == 0);
    }
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
    let mut cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let id = put(&client, Pattern(1), MIB);
    let held = get(&client, id);

    let waiting = cluster.client(0);
    // For ever: only the end of the connection can end it.
    let thread = thread::spawn(move || waiting.get(&[ObjectId::random()], None).map(|_| ()));
    eventually("the get waits", || cluster.status(0).transfer.fetching == 1);
    cluster.kill(0);
    assert_eq!(kind(thread.join().expect("no panic")), ErrorKind::Disconnected);

    // Objects that were got can still be read: the memory lives as long as it is mapped.
    Pattern(1).check(held.data());
    drop(held);
    assert_eq!(kind(client.status()), ErrorKind::Disconnected);
    assert_eq!(kind(try_get(&client, id)), ErrorKind::Disconnected);
}

#[test]
fn nodes_go_on_without_their_coordinator() {
    let mut cluster = Cluster::builder().nodes(3).start();
    let own = put(&cluster.client(1), Pattern(1), MIB);
    cluster.kill(0);
    Pattern(1).check(get(&cluster.client(1), own).data());
    let new = put(&cluster.client(1), Pattern(2), MIB);
    Pattern(2).check(get(&cluster.client(1), new).data());
    // Whether what another node holds can still be found depends on where the directory had it: but no get
    // hangs.
    for id in [own, new] {
        let patience = Some(Duration::from_millis(500));
        match cluster.client(2).get(&[id], patience).expect("get").remove(0) {
            Ok(object) => assert_eq!(object.data().len(), MIB),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Lost), "{error}"),
        }
    }
}

#[test]
fn a_node_that_died_comes_back_as_a_new_one() {
    let mut cluster = Cluster::builder().nodes(2).start();
    let kept = put(&cluster.client(0), Pattern(1), MIB);
    let gone = put(&cluster.client(1), Pattern(2), MIB);
    let before = cluster.status(1);
    cluster.kill(1);
    eventually("the death is known", || cluster.status(0).cluster.members.len() == 1);

    let mut command = cluster.serve(1);
    command.args([
        "--listen",
        &format!("{}:0", cluster.address(1)),
        "--join",
        &cluster.listen(0).to_string(),
    ]);
    let _daemon = cluster.launch(1, command).expect("it starts");
    eventually("it is a member", || cluster.status(0).cluster.members.len() == 2);
    assert_ne!(cluster.status(1).node, before.node);
    Pattern(1).check(get(&cluster.client(1), kept).data());
    let new = put(&cluster.client(1), Pattern(3), MIB);
    Pattern(3).check(get(&cluster.client(0), new).data());
    // Objects that died with the node are known to be lost, or time out. No answer is wrong.
    let result = cluster.client(0).get(&[gone], Some(Duration::from_millis(300))).expect("get").remove(0);
    assert!(matches!(kind(result), ErrorKind::Lost | ErrorKind::TimedOut));
}

#[test]
fn a_keeper_that_hangs_hardly_slows_gets_of_what_others_hold() {
    let cluster = Cluster::builder().nodes(3).args(&["--lease", "30"]).start();
    let objects: Vec<_> = (0..300).map(|seed| put(&cluster.client(1), Pattern(seed), 2000)).collect();
    cluster.pause(2);
    // A third of them is asked for at the node that hangs, and waits for the other keeper: but not each time.
    for (seed, id) in objects.iter().enumerate() {
        Pattern(seed as u64).check(get(&cluster.client(0), *id).data());
    }
    assert_eq!(cluster.status(0).cluster.members.len(), 3, "all came before its lease was over");
    cluster.resume(2);
    Pattern(0).check(get(&cluster.client(2), objects[0]).data());
}

/// Brings objects of all sizes from every node to every other.
fn exchange(cluster: &Cluster) {
    let nodes = 0..cluster.nodes();
    eventually("every node knows every node", || {
        nodes.clone().all(|node| cluster.status(node).cluster.members.len() == nodes.len())
    });
    for (home, len) in nodes.clone().flat_map(|home| [1_000, 100_000, 3 * MIB].map(|len| (home, len))) {
        let client = cluster.client(home);
        let id = put(&client, Pattern(1), len);
        nodes.clone().for_each(|node| drop(get(&cluster.client(node), id)));
        client.delete(&[id]).expect("nobody is dead");
    }
}

#[test]
fn a_node_keeps_nothing_of_peers_that_died_and_came_back() {
    const DEATHS: usize = 5;
    let mut cluster = Cluster::builder().nodes(3).memory("64MiB").start();
    // Tables, connections and windows are made at first.
    exchange(&cluster);
    let has = |cluster: &Cluster| (descriptors(cluster, 0), own_memory(cluster, 0));
    let before = has(&cluster);
    for death in 0..DEATHS {
        let victim = 1 + death % 2;
        cluster.kill(victim);
        cluster.start_again(victim, &[]);
        exchange(&cluster);
    }
    // Nodes that connect to each other at the same moment may keep both connections, on each of two lanes.
    eventually("connections to dead nodes are closed", || has(&cluster).0 <= before.0 + 2 * 2 * 2);
    let now = has(&cluster).1;
    assert!(
        now < before.1 + 8 * MIB as u64,
        "it has {now} bytes after {DEATHS} deaths, and had {}",
        before.1
    );
}
