//! Tests of subscriptions: a subscriber gets all events, or the number of events that it missed.

use std::collections::HashSet;
use std::time::Duration;

use plasmon::{CreateOptions, ErrorKind, Event, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, until};

use crate::support::{MIB, get, kind, put, try_put};

#[test]
fn a_subscriber_hears_what_is_there_and_what_happens() {
    let cluster = Cluster::builder().nodes(2).start();
    let (here, there) = (cluster.client(0), cluster.client(1));
    let before: HashSet<_> = (0..3).map(|seed| put(&here, Pattern(seed), 1000)).collect();
    let mut events = here.subscribe("watcher").expect("subscribe");
    let mut next = || events.next(Some(PATIENCE), None).expect("the daemon lives").expect("an event comes");
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
        match events.next(Some(PATIENCE), None).expect("the daemon lives").expect("an event comes") {
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
        Some(Event::Sealed { id, name: "".into(), data_len: 1, metadata_len: 0 })
    );
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
    // It pins nothing.
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
    // It waits for whichever comes.
    let late = 50_000;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| here(places.len() + 1, Some(PATIENCE)));
        try_put(&other, ids[late], Pattern(1), 10).expect("put");
        let here = waiting.join().expect("no panic");
        assert!(here.iter().zip(&expected).enumerate().all(|(at, (is, was))| *is == (*was || at == late)));
    });
    // And no more than that.
    ids.push(ObjectId::random());
    assert_eq!(kind(client.wait(&ids, 1, None, None)), ErrorKind::Invalid);
}
