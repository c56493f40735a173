//! Tests of regions that move: nothing that was written or added is lost, and who dies in between takes no
//! more with it than it has to.

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::region::{Region, RegionOptions, Rights};
use plasmon::{Client, CreateOptions, ErrorKind, NodeId, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, binary, eventually};

use crate::commands::json;
use crate::support::{ClientProcess, LONG_LEASE, MIB, kind};

/// Size in bytes of the regions.
const LEN: usize = 3 * MIB + 5;
/// Offset of the word that everybody adds to.
const COUNTER: u64 = 0;
/// Offset of the word that a client waits for.
const WAITED_FOR: u64 = 8;
/// Offset of the pattern.
const PATTERN: u64 = 16;
/// Longest time for a move.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Makes a region with a pattern on the node of a client.
fn make(client: &Client, name: &str) -> Region {
    let region = client.create_region(name, LEN as u64, &RegionOptions::default()).expect("there is room");
    region.write(PATTERN, &Pattern(1).bytes(LEN - PATTERN as usize)).expect("write");
    region
}

fn check(region: &Region) {
    let mut found = vec![0; LEN - PATTERN as usize];
    region.read(PATTERN, &mut found).expect("read");
    assert!(found == Pattern(1).bytes(found.len()), "the bytes of {}", region.name());
}

fn ids(clients: &[Client]) -> Vec<NodeId> {
    clients.iter().map(Client::node).collect()
}

#[test]
fn a_region_moves_while_everybody_uses_it() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients: Vec<_> = (0..3).map(|node| cluster.client(node)).collect();
    let nodes = ids(&clients);
    let region = make(&clients[0], "r");
    assert!(region.is_mapped());
    let regions: Vec<_> = clients
        .iter()
        .map(|client| client.map_region("r", Rights::ALL, None).expect("it is there"))
        .collect();
    let over = AtomicBool::new(false);
    let added: u64 = thread::scope(|scope| {
        let adders: Vec<_> = regions
            .iter()
            .map(|region| {
                let over = &over;
                scope.spawn(move || {
                    let mut added = 0;
                    while !over.load(Ordering::Relaxed) {
                        region.fetch_add(COUNTER, 1).expect("nobody dies");
                        added += 1;
                    }
                    added
                })
            })
            .collect();
        let waiter = scope.spawn(|| regions[2].wait(WAITED_FOR, 0, PATIENCE));
        for to in [1, 2, 0, 2, 1, 0] {
            regions[to].move_to(nodes[to], TIMEOUT).expect("there is room");
            assert_eq!(regions[1].info().expect("it is there").home, nodes[to]);
            regions.iter().for_each(check);
        }
        regions[1].write(WAITED_FOR, &7_u64.to_le_bytes()).expect("write");
        assert_eq!(waiter.join().expect("it returns").expect("the word has changed"), 7);
        over.store(true, Ordering::Relaxed);
        adders.into_iter().map(|adder| adder.join().expect("all adds end well")).sum()
    });
    assert!(added > 0);
    for region in regions.iter().chain([&region]) {
        assert_eq!(region.fetch_add(COUNTER, 0).expect("it is there"), added);
    }
    clients[2].map_region("r", Rights::ALL, None).expect("it is there").free().expect("free");
    assert_eq!(kind(region.fetch_add(COUNTER, 1)), ErrorKind::Freed);
    drop((region, regions));
    eventually("no memory is left", || (0..3).all(|node| cluster.status(node).regions.bytes == 0));
}

#[test]
fn memory_of_a_former_home_is_free_although_clients_have_it_mapped() {
    let cluster = Cluster::builder().nodes(2).start();
    let (client, other) = (cluster.client(0), cluster.client(1));
    let nodes = [client.node(), other.node()];
    let region = make(&client, "r");
    let same = client.map_region("r", Rights::ALL, None).expect("it is there");
    let far = other.map_region("r", Rights::ALL, None).expect("it is there");
    assert!(region.is_mapped() && same.is_mapped());
    let bytes = |node: usize| cluster.status(node).regions.bytes;
    for round in 0..3 {
        region.move_to(nodes[1], TIMEOUT).expect("there is room");
        eventually(&format!("node 0 has its memory again, round {round}"), || bytes(0) == 0);
        // Others have the memory.
        let next =
            client.create_region("next", LEN as u64, &RegionOptions::default()).expect("there is room");
        next.write(0, &Pattern(2).bytes(LEN)).expect("write");
        same.move_to(nodes[0], TIMEOUT).expect("there is room");
        eventually(&format!("node 1 has its memory again, round {round}"), || bytes(1) == 0);
        // When the region has stood still, its clients do not touch what it had before.
        let id = far.snapshot(ObjectId::random(), &CreateOptions::default()).expect("there is room");
        for (number, region) in (0..).zip([&region, &same, &far]) {
            assert_eq!(region.fetch_add(COUNTER, 1), Ok(3 * round + number));
            region.write(PATTERN, &Pattern(1).bytes(LEN - PATTERN as usize)).expect("write");
            check(region);
        }
        let mut found = vec![0; LEN];
        next.read(0, &mut found).expect("read");
        Pattern(2).check(&found);
        next.free().expect("free");
        client.delete(&[id]).expect("delete");
    }
    // A client that maps the region anew has it mapped at its new home.
    let again = client.map_region("r", Rights::ALL, None).expect("it is there");
    assert!(again.is_mapped());
    assert_eq!(again.fetch_add(COUNTER, 0), Ok(9));
    check(&again);
}

#[test]
fn a_view_keeps_a_region_where_it_is() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let to = cluster.client(1).node();
    let region = make(&client, "r");
    let view = region.view().expect("it is mapped");
    assert_eq!(kind(region.move_to(to, TIMEOUT)), ErrorKind::Busy);
    assert_eq!((view.len(), region.fetch_add(COUNTER, 1)), (LEN, Ok(0)));
    drop(view);
    region.move_to(to, TIMEOUT).expect("nobody looks at it any more");
    assert_eq!((region.home(), region.is_mapped()), (to, false));
    assert_eq!(region.fetch_add(COUNTER, 1), Ok(1));
    assert_eq!(kind(region.view()), ErrorKind::NotHere);
    check(&region);
}

#[test]
fn what_cannot_be_moved_stays() {
    let cluster = Cluster::builder().nodes(2).memory("64MiB").start();
    let (client, other) = (cluster.client(0), cluster.client(1));
    let region = make(&client, "r");
    assert_eq!(kind(region.move_to(NodeId::random(), TIMEOUT)), ErrorKind::NotFound);
    region.move_to(client.node(), TIMEOUT).expect("it is there");
    let all = RegionOptions::default();
    let _full = other.create_region("full", 31 << 20, &all).expect("there is room");
    assert_eq!(kind(region.move_to(other.node(), TIMEOUT)), ErrorKind::Full);
    let ephemeral = RegionOptions { ephemeral: true, ..all };
    let ephemeral = client.create_region("e", 8, &ephemeral).expect("there is room");
    assert_eq!(kind(ephemeral.move_to(other.node(), TIMEOUT)), ErrorKind::Invalid);
    assert_eq!(region.fetch_add(COUNTER, 1), Ok(0));
    check(&region);
    assert_eq!(region.home(), client.node());
}

#[test]
fn a_node_that_stands_still_keeps_no_region_frozen() {
    let cluster = Cluster::builder().nodes(3).start();
    let client = cluster.client(0);
    let region = make(&client, "r");
    let far = cluster.client(2).map_region("r", Rights::READ, None).expect("it is there");
    check(&far);
    cluster.pause(2);
    // The region stays until the stopped node has gone, or the move is refused.
    let moved = region.move_to(cluster.client(1).node(), TIMEOUT);
    assert!(
        moved.as_ref().is_ok_and(|()| cluster.status(0).cluster.members.len() == 2)
            || moved.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy)
    );
    assert_eq!(region.fetch_add(COUNTER, 1), Ok(0));
    cluster.resume(2);
    eventually("it can be moved", || region.move_to(cluster.client(1).node(), TIMEOUT).is_ok());
    eventually("it can be read", || far.read(PATTERN, &mut [0; 8]).is_ok());
    check(&far);
}

#[test]
fn who_dies_amid_a_move_takes_the_region_or_leaves_it() {
    let mut cluster = Cluster::builder().nodes(3).memory("256MiB").start();
    let clients: Vec<_> = (0..3).map(|node| cluster.client(node)).collect();
    let nodes = ids(&clients);
    let region = clients[0].create_region("r", 100 << 20, &RegionOptions::default()).expect("there is room");
    let far = clients[2].map_region("r", Rights::ALL, None).expect("it is there");
    far.fetch_add(COUNTER, 5).expect("add");
    let moved = thread::scope(|scope| {
        let mover = scope.spawn(|| region.move_to(nodes[1], TIMEOUT));
        eventually("the target takes it", || cluster.status(1).regions.bytes > 0 || mover.is_finished());
        cluster.kill(1);
        mover.join().expect("it returns")
    });
    eventually("it is there, or lost", || match far.fetch_add(COUNTER, 0) {
        Ok(value) => {
            assert_eq!((value, moved.is_err()), (5, true));
            true
        }
        Err(error) => {
            let is_gone = matches!(error.kind(), ErrorKind::Lost | ErrorKind::Freed);
            assert!(is_gone || error.kind() == ErrorKind::OutcomeUnknown, "{error:?}");
            is_gone
        }
    });
}

/// Size in bytes of a region that takes a while to move.
const LONG: u64 = 100 << 20;

/// Three nodes, each with a client that has the same region. It lives on the first, and its counter is 5.
fn long_region(args: &[&str]) -> (Cluster, Vec<Client>, Vec<Region>) {
    let cluster = Cluster::builder().nodes(3).memory("256MiB").args(args).start();
    let clients: Vec<_> = (0..3).map(|node| cluster.client(node)).collect();
    let made = clients[0].create_region("r", LONG, &RegionOptions::default()).expect("there is room");
    made.fetch_add(COUNTER, 5).expect("add");
    made.write(LONG - 100, &[3; 100]).expect("write");
    let map = |client: &Client| client.map_region("r", Rights::ALL, None).expect("it is there");
    let regions = clients.iter().map(map).collect();
    (cluster, clients, regions)
}

/// Has a client move the region to the second node, and does something while that takes it.
fn amid_a_move(
    cluster: &mut Cluster,
    mover: &Region,
    to: NodeId,
    timeout: Duration,
    act: impl FnOnce(&mut Cluster),
) -> Result<(), plasmon::Error> {
    thread::scope(|scope| {
        let moving = scope.spawn(move || mover.move_to(to, timeout));
        eventually("the target takes it", || cluster.status(1).regions.bytes > 0 || moving.is_finished());
        act(cluster);
        moving.join().expect("it returns")
    })
}

fn is_whole(region: &Region) -> bool {
    let mut end = [0; 100];
    region.fetch_add(COUNTER, 0) == Ok(5) && region.read(LONG - 100, &mut end).is_ok() && end == [3; 100]
}

#[test]
fn a_move_survives_a_node_that_maps_the_region_and_ends_with_its_home() {
    for victim in [0, 2] {
        let (mut cluster, clients, regions) = long_region(&[]);
        let nodes = ids(&clients);
        let moved = amid_a_move(&mut cluster, &regions[1], nodes[1], TIMEOUT, |cluster| cluster.kill(victim));
        let after = &regions[1];
        if victim == 2 || moved.is_ok() {
            assert!(moved.is_ok() || kind(moved) == ErrorKind::Busy);
            eventually("it is there", || is_whole(after));
        } else {
            // The new home may have adopted the region all the same.
            let is_lost = |error: plasmon::Error| {
                matches!(error.kind(), ErrorKind::Lost | ErrorKind::Freed | ErrorKind::NotFound)
            };
            eventually("it is there, or lost", || {
                is_whole(after) || after.fetch_add(COUNTER, 0).is_err_and(is_lost)
            });
        }
        let gone = after.fetch_add(COUNTER, 0).is_err();
        drop(regions);
        if gone {
            eventually("no memory is left", || cluster.status(1).regions.bytes == 0);
        }
    }
}

#[test]
fn a_client_that_dies_amid_a_move_takes_nothing_with_it() {
    let (mut cluster, clients, regions) = long_region(&[]);
    let to = ids(&clients)[1];
    // One adds in memory that it has mapped, and one has asked for the move.
    let adder = ClientProcess::start(&cluster, 0, &["add-on", "r"]);
    let mut mover = cluster.command(2, &binary());
    mover.args(["region", "move", "r", &to.to_string(), "--socket"]).arg(cluster.socket(2));
    let mut mover = mover.spawn().expect("plasmon runs");
    let has_ended = |mover: &mut Child| mover.try_wait().expect("it is our child").is_some();
    eventually("the target takes it", || cluster.status(1).regions.bytes > 0 || has_ended(&mut mover));
    adder.kill();
    mover.kill().expect("it is our child");
    mover.wait().expect("it is our child");
    eventually("it moves all the same", || regions[2].info().is_ok_and(|info| info.home == to));
    let count = regions[0].fetch_add(COUNTER, 1).expect("it is there");
    assert!(count > 5, "the other client has added");
    let mut end = [0; 100];
    for region in &regions {
        assert_eq!(region.fetch_add(COUNTER, 0), Ok(count + 1));
        region.read(LONG - 100, &mut end).expect("read");
        assert_eq!(end, [3; 100]);
    }
    eventually("its former home has nothing of it", || {
        let regions = cluster.status(0).regions;
        (regions.bytes, regions.regions, regions.handles) == (0, 0, 1)
    });
    cluster.kill(0);
    assert_eq!(regions[1].fetch_add(COUNTER, 0), Ok(count + 1));
}

#[test]
fn who_stands_still_amid_a_move_leaves_the_region_in_one_place() {
    let brief = Duration::from_secs(3);
    for victim in 0..3 {
        // Nobody is taken for dead.
        let (mut cluster, clients, regions) = long_region(&LONG_LEASE);
        let nodes = ids(&clients);
        let mover = if victim == 2 { &regions[0] } else { &regions[2] };
        let moved = amid_a_move(&mut cluster, mover, nodes[1], brief, |cluster| cluster.pause(victim));
        let fits = [ErrorKind::TimedOut, ErrorKind::OutcomeUnknown, ErrorKind::Busy];
        if let Err(error) = &moved {
            assert!(fits.contains(&error.kind()), "{error:?}");
        }
        if victim == 2 {
            eventually("it goes on without that node", || is_whole(&regions[0]));
        }
        cluster.resume(victim);
        for region in &regions {
            eventually("all find it", || is_whole(region));
        }
        let homes = || (0..3).map(|node| cluster.status(node).regions.regions).sum::<u64>();
        assert_eq!(homes(), 1, "homes of it");
        mover.move_to(nodes[2], TIMEOUT).expect("all of them answer");
        assert!(regions.iter().all(is_whole));
        assert_eq!(homes(), 1, "homes of it");
    }
}

#[test]
fn a_drain_moves_regions() {
    let mut cluster = Cluster::builder().nodes(3).start();
    let (client, drained) = (cluster.client(0), cluster.client(1).node());
    let far = RegionOptions { node: Some(drained), ..RegionOptions::default() };
    let region = client.create_region("r", LEN as u64, &far).expect("there is room");
    region.write(PATTERN, &Pattern(1).bytes(LEN - PATTERN as usize)).expect("write");
    region.fetch_add(COUNTER, 3).expect("add");
    let report = json(&cluster, 0, &["drain", &drained.to_string()]);
    assert_eq!(report["finished"], true);
    assert!(cluster.wait(1).success());
    assert_eq!(region.fetch_add(COUNTER, 1), Ok(3));
    check(&region);
    assert_ne!(region.info().expect("it is there").home, drained);
}
