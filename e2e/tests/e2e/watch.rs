//! Tests of subscriptions: a subscriber gets all events, or the number of events that it missed.

use std::collections::HashSet;
use std::time::Duration;

use plasmon::{CreateOptions, ErrorKind, Event, NodeId, ObjectId, Rights, Subscription};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, until};
use rustix::process::geteuid;

use crate::support::{MIB, NOBODY, client_of, connected_as, get, kind, put, try_put};

#[test]
fn a_subscriber_hears_what_is_there_and_what_happens() {
    let cluster = Cluster::builder().nodes(2).start();
    let (here, there) = (cluster.client(0), cluster.client(1));
    let before: HashSet<_> = (0..3).map(|seed| put(&here, Pattern(seed), 1000)).collect();
    let mut events = here.subscribe("watcher").expect("subscribe");
    let mut next = || events.next(Some(PATIENCE), None).expect("the daemon lives").expect("an event comes").1;
    let mut seen = HashSet::new();
    for _ in 0..3 {
        let Event::Sealed { id, data_len, metadata_len, .. } = next() else { panic!("not a seal") };
        assert_eq!((data_len, metadata_len), (1000, 0));
        seen.insert(id);
    }
    assert_eq!(seen, before);

    let new = put(&here, Pattern(9), 5);
    assert_eq!(next(), Event::Sealed { id: new, name: "".into(), data_len: 5, metadata_len: 0 });
    here.delete(&[new]).expect("delete");
    assert_eq!(next(), Event::Deleted { id: new, name: "".into() });
    // A replica is news, and so is its end.
    let remote = put(&there, Pattern(1), MIB);
    drop(get(&here, remote));
    assert_eq!(next(), Event::Sealed { id: remote, name: "".into(), data_len: MIB as u64, metadata_len: 0 });
    there.delete(&[remote]).expect("delete");
    assert_eq!(next(), Event::Deleted { id: remote, name: "".into() });
    // Names are told wherever the object comes.
    let named = ObjectId::from_name("part-1");
    let options = CreateOptions { name: Some("part-1".into()), ..CreateOptions::default() };
    there.put(named, b"x", b"", &options).expect("put");
    drop(get(&here, named));
    assert_eq!(next(), Event::Sealed { id: named, name: "part-1".into(), data_len: 1, metadata_len: 0 });
    there.delete(&[named]).expect("delete");
    assert_eq!(next(), Event::Deleted { id: named, name: "part-1".into() });
    assert_eq!(events.next(Some(Duration::from_millis(50)), None).expect("the daemon lives"), None);
}

#[test]
fn a_subscriber_that_does_not_read_is_told_how_much_it_missed() {
    const OBJECTS: usize = 400_000;
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let mut events = client.subscribe("idle").expect("subscribe");
    for _ in 0..OBJECTS / 1000 {
        let ids: Vec<_> = (0..1000).map(|_| ObjectId::random()).collect();
        let puts: Vec<_> = ids.iter().map(|id| (*id, &b"x"[..], &b""[..])).collect();
        for result in client.put_many(&puts, &CreateOptions::default()).expect("the daemon lives") {
            result.expect("it fits");
        }
        client.delete(&ids).expect("delete");
    }
    // Everything that happened was told, or counted.
    let (mut told, mut missed) = (0, 0);
    while told + missed < 2 * OBJECTS {
        match events.next(Some(PATIENCE), None).expect("the daemon lives").expect("an event comes").1 {
            Event::Gap { missed: more } => missed += more as usize,
            _ => told += 1,
        }
    }
    assert_eq!(told + missed, 2 * OBJECTS);
    assert!(told > 65_536 && missed > 0, "{told} told, {missed} missed");
    // From there on it hears everything again.
    let id = put(&client, Pattern(1), 1);
    assert_eq!(
        events.next(Some(PATIENCE), None).expect("the daemon lives"),
        Some((client.node(), Event::Sealed { id, name: "".into(), data_len: 1, metadata_len: 0 }))
    );
}

/// Reads events of the whole cluster until one is as wanted.
fn heard(events: &mut Subscription, wanted: impl Fn(NodeId, &Event) -> bool) -> Vec<(NodeId, Event)> {
    let mut told = Vec::new();
    loop {
        let event = events.next(Some(PATIENCE), None).expect("the daemon lives");
        let (node, event) = event.unwrap_or_else(|| panic!("the event comes, after {told:?}"));
        let found = wanted(node, &event);
        told.push((node, event));
        if found {
            return told;
        }
    }
}

fn is_seal(event: &Event, of: ObjectId) -> bool {
    matches!(event, Event::Sealed { id, .. } if *id == of)
}

#[test]
fn a_subscriber_to_the_cluster_hears_all_nodes() {
    const MANY: usize = 1000;
    let cluster = Cluster::builder().nodes(3).start();
    let clients: Vec<_> = (0..3).map(|node| cluster.client(node)).collect();
    // More than a frame between nodes has room for, with long names.
    let name = |n: usize| format!("{n:0>255}");
    let mut expected = HashSet::new();
    for (at, client) in clients.iter().enumerate() {
        for n in 0..MANY {
            let name = name(at * MANY + n);
            let id = ObjectId::from_name(&name);
            let options = CreateOptions { name: Some(name.clone()), ..CreateOptions::default() };
            client.put(id, b"x", b"", &options).expect("put");
            expected.insert((client.node(), id, name));
        }
    }
    let mut events = clients[0].subscribe_cluster("watcher").expect("subscribe");
    while !expected.is_empty() {
        let event = events.next(Some(PATIENCE), None).expect("the daemon lives").expect("an event comes");
        let (node, Event::Sealed { id, name, .. }) = event else { panic!("not a seal: {event:?}") };
        assert!(expected.remove(&(node, id, name.into())), "{id} of {node} comes once");
    }
    // The events of one node come in order.
    let far = &clients[2];
    let ids: Vec<_> = (0..100).map(|seed| put(far, Pattern(seed), 10)).collect();
    for id in &ids {
        far.delete(&[*id]).expect("delete");
    }
    for (at, id) in ids.iter().chain(&ids).enumerate() {
        let event = events.next(Some(PATIENCE), None).expect("the daemon lives").expect("an event comes");
        let name = "".into();
        let wanted = match at < ids.len() {
            true => Event::Sealed { id: *id, name, data_len: 10, metadata_len: 0 },
            false => Event::Deleted { id: *id, name },
        };
        assert_eq!(event, (far.node(), wanted));
    }
}

#[test]
fn a_node_that_dies_and_comes_back_gives_gaps() {
    let mut cluster = Cluster::builder().nodes(3).start();
    let here = cluster.client(0);
    let mut events = here.subscribe_cluster("watcher").expect("subscribe");
    let (near, far) = (cluster.client(1), cluster.client(2));
    let lost = put(&far, Pattern(1), 10);
    let lost_from = far.node();
    heard(&mut events, |node, event| node == lost_from && is_seal(event, lost));
    cluster.kill(2);
    let gap = |event: &Event| matches!(event, Event::Gap { missed: 0 });
    heard(&mut events, |node, event| node == lost_from && gap(event));
    // The others are heard meanwhile.
    let other = put(&near, Pattern(2), 10);
    let told = heard(&mut events, |node, event| node == near.node() && is_seal(event, other));
    assert!(told.iter().all(|(node, event)| !gap(event) || *node == lost_from), "{told:?}");
    cluster.start_again(2, &[]);
    let far = cluster.client(2);
    let new = put(&far, Pattern(3), 10);
    let told = heard(&mut events, |node, event| node == far.node() && is_seal(event, new));
    assert!(told.iter().any(|(node, event)| *node == far.node() && gap(event)), "{told:?}");
    assert!(told.iter().all(|(node, _)| *node == far.node()), "{told:?}");
}

#[test]
fn a_subscriber_to_the_cluster_hears_nothing_of_others_private_objects() {
    if !geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
        return;
    }
    let cluster = Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start();
    let private = CreateOptions { rights: Rights::Private, ..CreateOptions::default() };
    for (owner, stranger) in [(0, NOBODY), (NOBODY, 0)] {
        let far = client_of(owner, &cluster, 1);
        let subscription_of = |user| {
            connected_as(user, &cluster, 0, |client| client.subscribe_cluster("watcher").expect("subscribe"))
        };
        let [mut owners, mut strangers] = [owner, stranger].map(subscription_of);
        let put_secret = || {
            let id = ObjectId::random();
            far.put(id, b"mine", b"", &private).expect("put");
            id
        };
        let secret = put_secret();
        let public = put(&far, Pattern(1), 10);
        // A subscriber that begins later is not told either: the objects that are there come first.
        let mut late = subscription_of(stranger);
        far.delete(&[secret]).expect("delete");
        let last = put(&far, Pattern(2), 10);
        let told = heard(&mut owners, |_, event| is_seal(event, last));
        assert!(told.iter().any(|(_, event)| is_seal(event, secret)), "{told:?}");
        for events in [&mut strangers, &mut late] {
            let told = heard(events, |_, event| is_seal(event, last));
            assert!(told.iter().any(|(_, event)| is_seal(event, public)), "{told:?}");
            let of_secret = |event: &Event| match event {
                Event::Sealed { id, .. } | Event::Replaced { id, .. } | Event::Deleted { id, .. } => {
                    *id == secret
                }
                Event::Gap { .. } => false,
            };
            assert!(!told.iter().any(|(_, event)| of_secret(event)), "{told:?}");
        }
    }
}

#[test]
fn a_wait_ends_with_enough() {
    let cluster = Cluster::builder().nodes(2).start();
    let (here, there) = (cluster.client(0), cluster.client(1));
    let ids = [put(&here, Pattern(1), 10), ObjectId::random(), put(&there, Pattern(2), MIB)];
    assert_eq!(here.wait(&ids, 2, None, None), Ok(vec![true, false, true]));
    assert_eq!(here.wait(&ids, 0, Some(Duration::ZERO), None), Ok(vec![true, false, true]));
    assert_eq!(here.wait(&ids, 3, Some(Duration::from_millis(50)), None), Ok(vec![true, false, true]));
    assert_eq!(here.wait(&[], 0, None, None), Ok(vec![]));
    // A wait pins nothing.
    assert_eq!(cluster.status(0).objects.pinned, 0);
}

#[test]
fn a_wait_may_be_for_very_many() {
    const MANY: usize = 1 << 16;
    let cluster = Cluster::builder().start();
    let (client, other) = (cluster.client(0), cluster.client(0));
    let mut ids: Vec<_> = (0..MANY).map(|_| ObjectId::random()).collect();
    let places = [0, 1023, 1024, 30_000, MANY - 1];
    for place in places {
        ids[place] = put(&client, Pattern(place as u64), 10);
    }
    let expected: Vec<_> = (0..MANY).map(|at| places.contains(&at)).collect();
    let here = |count, timeout| {
        until("the daemon answers before the client's own clock has run out", || {
            match client.wait(&ids, count, timeout, None) {
                Err(error) if error.kind() == ErrorKind::TimedOut => None,
                answer => Some(answer.expect("the daemon lives")),
            }
        })
    };
    for count in [0, 1, places.len(), MANY] {
        assert!(here(count, Some(Duration::ZERO)) == expected, "{count}");
    }
    assert!(here(places.len(), None) == expected);
    assert!(here(MANY, Some(Duration::from_millis(200))) == expected);
    // A wait ends with whichever object comes.
    let late = 50_000;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| here(places.len() + 1, Some(PATIENCE)));
        try_put(&other, ids[late], Pattern(1), 10).expect("put");
        let here = waiting.join().expect("no panic");
        assert!(here.iter().zip(&expected).enumerate().all(|(at, (is, was))| *is == (*was || at == late)));
    });
    // One more id is too many.
    ids.push(ObjectId::random());
    assert_eq!(kind(client.wait(&ids, 1, None, None)), ErrorKind::Invalid);
}
