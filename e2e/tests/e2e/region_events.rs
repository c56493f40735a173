//! Tests of the events of regions: a client hears what happens to those to which it has handles, near and
//! far, and nothing that does not concern it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use plasmon::region::{Principal, RegionEvent, RegionEvents, RegionOptions, Rights};
use plasmon::{Client, ErrorKind, NodeId};
use plasmon_e2e::{Cluster, PATIENCE, binary, eventually};
use rustix::process::geteuid;
use serde_json::Value;

use crate::support::{NOBODY, client_of, connected_as, kind};

/// Longest time for a move.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A user who has nothing to do with the cluster.
const SOMEBODY: u32 = 70_009;

fn next(events: &mut RegionEvents) -> RegionEvent {
    events.next_within(Some(PATIENCE), None).expect("the daemon lives").expect("an event comes")
}

/// Checks that there is no event that a call has caused before.
fn silent(events: &mut RegionEvents) {
    let event = events.next_within(Some(Duration::from_millis(100)), None);
    assert_eq!(event, Ok(None));
}

fn own() -> u32 {
    geteuid().as_raw()
}

fn moved(home: NodeId) -> RegionEvent {
    RegionEvent::Moved { region: "r".into(), owner: own(), home }
}

fn freed() -> RegionEvent {
    RegionEvent::Freed { region: "r".into(), owner: own() }
}

fn granted(user: Option<u32>, rights: Rights) -> RegionEvent {
    RegionEvent::Granted { region: "r".into(), owner: own(), user, rights }
}

fn revoked(user: Option<u32>, rights: Rights) -> RegionEvent {
    RegionEvent::Revoked { region: "r".into(), owner: own(), user, rights }
}

fn make(client: &Client) -> plasmon::Region {
    client.create_region("r", 64, &RegionOptions::default()).expect("there is room")
}

#[test]
fn what_happens_to_a_region_is_told_near_and_far() {
    let cluster = Cluster::builder().nodes(3).start();
    let clients: Vec<_> = (0..3).map(|node| cluster.client(node)).collect();
    let regions: Vec<_> = (0..3)
        .map(|node| match node {
            0 => make(&clients[0]),
            _ => clients[node].map_region("r", Rights::ALL, None).expect("it is there"),
        })
        .collect();
    // Several handles to a region give one event.
    let _further = clients[2].map_region("r", Rights::READ, None).expect("it is there");
    let mut events: Vec<_> =
        clients.iter().map(|client| client.region_events().expect("there is room")).collect();
    let mut told =
        |expected: RegionEvent| events.iter_mut().for_each(|events| assert_eq!(next(events), expected));
    let user = Principal::User(SOMEBODY);
    let mut home = 0;
    for to in [0, 1, 2, 0] {
        if to != home {
            regions[to].move_to(clients[to].node(), TIMEOUT).expect("there is room");
            told(moved(clients[to].node()));
            home = to;
            // All handles have found the region at its new home, so that they hear what happens there.
            eventually("all nodes map it again", || {
                let info = regions[to].info().expect("it is there");
                (info.nodes, info.handles) == (2, if to == 2 { 2 } else { 1 })
            });
            regions.iter().for_each(|region| drop(region.info().expect("it is there")));
        }
        regions[1].grant(user, Rights::READ).expect("grant");
        told(granted(Some(SOMEBODY), Rights::READ));
        regions[2].grant(Principal::Everyone, Rights::READ_WRITE).expect("grant");
        told(granted(None, Rights::READ_WRITE));
        // A user to whom rights are revoked keeps those that everybody has. A change of nothing is not told.
        regions[0].grant(user, Rights::READ).expect("grant");
        regions[0].revoke(user).expect("revoke");
        told(revoked(Some(SOMEBODY), Rights::READ_WRITE));
        regions[0].revoke(user).expect("revoke");
        regions[1].revoke(Principal::Everyone).expect("revoke");
        told(revoked(None, Rights::NONE));
    }
    clients[1].map_region("r", Rights::ALL, None).expect("it is there").free().expect("free");
    told(freed());
    // Another region of the name is made, and concerns those alone who map it.
    let again = make(&clients[1]);
    again.grant(user, Rights::READ).expect("grant");
    assert_eq!(next(&mut events[1]), granted(Some(SOMEBODY), Rights::READ));
    events.iter_mut().for_each(silent);
}

#[test]
fn a_region_is_lost_with_its_home() {
    let mut cluster = Cluster::builder().nodes(3).start();
    let (client, other) = (cluster.client(0), cluster.client(2));
    let options = RegionOptions { node: Some(cluster.client(1).node()), ..RegionOptions::default() };
    let region = client.create_region("r", 64, &options).expect("there is room");
    let same = other.map_region("r", Rights::READ, None).expect("it is there");
    let (mut events, mut others) =
        (client.region_events().expect("there is room"), other.region_events().expect("there is room"));
    cluster.kill(1);
    let lost = RegionEvent::Lost { region: "r".into(), owner: own() };
    assert_eq!([next(&mut events), next(&mut others)], [lost.clone(), lost.clone()]);
    assert_eq!(kind(region.read(0, &mut [0; 8])), ErrorKind::Lost);
    // A question for events now tells what has become of the handle.
    assert_eq!(next(&mut other.region_events().expect("there is room")), lost);
    drop(same);
    silent(&mut other.region_events().expect("there is room"));
}

#[test]
fn a_region_that_has_ended_or_moved_before_is_told() {
    let cluster = Cluster::builder().nodes(2).start();
    let (near, far) = (cluster.client(0), cluster.client(1));
    let region = make(&near);
    let same = far.map_region("r", Rights::ALL, None).expect("it is there");
    region.move_to(far.node(), TIMEOUT).expect("there is room");
    let [mut events, mut others] = [&near, &far].map(|client| client.region_events().expect("there is room"));
    assert_eq!([next(&mut events), next(&mut others)], [moved(far.node()), moved(far.node())]);
    same.free().expect("free");
    assert_eq!([next(&mut events), next(&mut others)], [freed(), freed()]);
    assert_eq!(next(&mut near.region_events().expect("there is room")), freed());
    drop(region);
    silent(&mut near.region_events().expect("there is room"));
}

#[test]
fn rights_of_others_are_told_to_masters_alone() {
    if !geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
        return;
    }
    let cluster = Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start();
    let owner = client_of(NOBODY, &cluster, 0);
    let region = owner.create_region("r", 64, &RegionOptions::default()).expect("there is room");
    let (reader, master) = (Principal::User(NOBODY - 1), Principal::User(NOBODY - 2));
    region.grant(reader, Rights::READ).expect("grant");
    region.grant(master, Rights::ALL).expect("grant");
    for node in 0..2 {
        // Events come by a connection of the same user.
        let others = [NOBODY - 1, NOBODY - 2].map(|user| {
            connected_as(user, &cluster, node, |client| {
                let region = client.map_region_of(Some(NOBODY), "r", Rights::READ, None);
                (client.region_events().expect("there is room"), region.expect("it may be read"))
            })
        });
        let [(mut readers, _reads), (mut masters, _masters)] = others;
        let change = |user, rights, is_grant| {
            let (region, owner) = ("r".into(), NOBODY);
            match is_grant {
                true => RegionEvent::Granted { region, owner, user, rights },
                false => RegionEvent::Revoked { region, owner, user, rights },
            }
        };
        region.grant(Principal::User(SOMEBODY), Rights::READ).expect("grant");
        assert_eq!(next(&mut masters), change(Some(SOMEBODY), Rights::READ, true));
        region.grant(Principal::Everyone, Rights::READ).expect("grant");
        for events in [&mut readers, &mut masters] {
            assert_eq!(next(events), change(None, Rights::READ, true));
        }
        region.revoke(Principal::User(SOMEBODY)).expect("revoke");
        region.revoke(Principal::Everyone).expect("revoke");
        assert_eq!(next(&mut masters), change(Some(SOMEBODY), Rights::READ, false));
        for events in [&mut readers, &mut masters] {
            assert_eq!(next(events), change(None, Rights::NONE, false));
        }
        // A user that is no master any more hears that, and nothing of others.
        region.revoke(master).expect("revoke");
        region.revoke(reader).expect("revoke");
        assert_eq!(next(&mut masters), change(Some(NOBODY - 2), Rights::NONE, false));
        assert_eq!(next(&mut readers), change(Some(NOBODY - 1), Rights::NONE, false));
        [&mut readers, &mut masters].into_iter().for_each(silent);
        region.grant(reader, Rights::READ).expect("grant");
        region.grant(master, Rights::ALL).expect("grant");
        assert_eq!(next(&mut masters), change(Some(NOBODY - 2), Rights::ALL, true));
        assert_eq!(next(&mut readers), change(Some(NOBODY - 1), Rights::READ, true));
        [&mut readers, &mut masters].into_iter().for_each(silent);
    }
}

#[test]
fn events_end_with_the_client_or_with_those_who_hear_them() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let region = make(&client);
    let heard = || cluster.status(0).connections.iter().filter(|one| one.name == "events of regions").count();
    let mut all: Vec<_> = (0..16).map(|_| client.region_events().expect("there is room")).collect();
    assert_eq!(kind(client.region_events()), ErrorKind::Busy);
    all.truncate(3);
    eventually("the others have gone", || heard() == 3);
    // The region is used on, whoever hears of it.
    region.grant(Principal::Everyone, Rights::READ).expect("grant");
    all.iter_mut().for_each(|events| assert_eq!(next(events), granted(None, Rights::READ)));
    assert_eq!(region.fetch_add(0, 1), Ok(0));
    drop((region, client));
    for events in &mut all {
        let ended = events.next_within(Some(PATIENCE), None);
        assert_eq!(kind(ended), ErrorKind::Disconnected);
    }
    assert!(all[0].next().is_some_and(|event| event.is_err()));
    assert!(all[0].next().is_none(), "an iterator ends after an error");
    drop(all);
    eventually("all have gone", || heard() == 0);
}

#[test]
fn the_command_prints_events() {
    let cluster = Cluster::builder().nodes(2).start();
    let (client, to) = (cluster.client(0), cluster.client(1).node());
    let region = make(&client);
    let _other = client.create_region("other", 8, &RegionOptions::default()).expect("there is room");
    let spawn = |node: usize, args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["region", "events"]).args(args).arg("--socket").arg(cluster.socket(node));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("plasmon runs");
        let lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        (child, lines.map(|line| line.expect("it is text")))
    };
    let (mut all, mut all_lines) = spawn(0, &["--json"]);
    let (mut one, mut one_lines) = spawn(1, &["r"]);
    // The handles of the commands: to both regions at home, and to one from the other node. That node has the
    // mapping, which the home counts, before it has the handle, from which on the command is told of events.
    eventually("both commands watch", || {
        let infos = client.regions().expect("a list");
        let handles: Vec<_> = infos.iter().map(|info| (info.handles, info.nodes)).collect();
        handles == [(2, 0), (2, 1)] && cluster.status(1).regions.handles == 1
    });
    region.grant(Principal::User(SOMEBODY), Rights::READ_WRITE).expect("grant");
    region.move_to(to, TIMEOUT).expect("there is room");
    region.free().expect("free");
    let rows: Vec<Value> =
        all_lines.by_ref().take(3).map(|line| serde_json::from_str(&line).expect("it is JSON")).collect();
    assert_eq!(
        rows.iter().map(|row| row["event"].as_str()).collect::<Vec<_>>(),
        [Some("granted"), Some("moved"), Some("freed")]
    );
    assert_eq!((&rows[0]["user"], &rows[0]["rights"]), (&Value::from(SOMEBODY), &Value::from("rw")));
    assert_eq!(rows[1]["home"], to.to_string());
    let lines: Vec<_> = one_lines.by_ref().take(3).collect();
    assert_eq!(lines[0], format!("granted  r  user {SOMEBODY} has rw"));
    assert_eq!(lines[1..], [format!("moved    r  to node {to}"), "freed    r".to_owned()]);
    for child in [&mut all, &mut one] {
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }
}
