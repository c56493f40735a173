//! Messages: content, order, lanes, buffers that are too small, peers that connect to each other.

use std::time::Duration;

use plasmon_fabric::{Event, FabricError, Provider};

use super::Case;
use super::support::{Driver, Node, assert_same, pattern, sizes};

pub(crate) const CASES: &[Case] = &[
    ("messages_of_every_size", of_every_size),
    ("messages_stay_in_order", stay_in_order),
    ("messages_keep_to_their_lane", keep_to_their_lane),
    ("messages_cross_while_connecting", cross_while_connecting),
    ("messages_too_long_are_truncated", too_long_are_truncated),
    ("messages_to_oneself", to_oneself),
];

fn of_every_size(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    for size in sizes(&here.small) {
        let sent = pattern(size, size as u64);
        there.small.receive(there.empty(size)).expect("receive");
        let op = here.small.send(peer, here.message(&sent));
        let (endpoint, _, received) = driver.message();
        assert_eq!(endpoint, there.small.id());
        assert_same(&received, &sent, "message");
        driver.succeed(&[op]);
    }
}

/// More messages of mixed sizes are sent than any queue of the provider takes. Messages up to `eager_size`
/// arrive in the order in which they were sent. A longer message may be overtaken, but overtakes none.
fn stay_in_order(provider: &Provider) {
    const COUNT: usize = 3000;
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    let eager = here.small.eager_size();
    for _ in 0..64 {
        there.small.receive(there.empty(2 * eager)).expect("receive");
    }
    let size = |index: usize| match index % 100 {
        50 => eager,
        99 => eager + 1,
        rest => 8 + rest,
    };
    let message = |index: usize| {
        let mut bytes = pattern(size(index), index as u64);
        bytes[..8].copy_from_slice(&index.to_le_bytes());
        bytes
    };
    let ops: Vec<_> = (0..COUNT).map(|it| here.small.send(peer, here.message(&message(it)))).collect();
    assert_eq!(here.domain.stats().in_flight, COUNT as u64);
    let mut arrived = vec![false; COUNT];
    let mut next = 0;
    for _ in 0..COUNT {
        let (_, slice, received) = driver.message();
        let index = usize::from_le_bytes(received[..8].try_into().expect("eight bytes"));
        assert_same(&received, &message(index), "message");
        if size(index) <= eager {
            let expected = (next..COUNT).find(|index| size(*index) <= eager);
            assert_eq!(Some(index), expected, "overtaken");
            next = index + 1;
        } else {
            let earlier = (0..index).filter(|earlier| size(*earlier) <= eager);
            assert!(earlier.into_iter().all(|earlier| arrived[earlier]), "{index} overtook another");
        }
        assert!(!std::mem::replace(&mut arrived[index], true), "{index} arrived twice");
        there.small.receive(slice).expect("receive again");
    }
    driver.succeed(&ops);
    assert_eq!(here.domain.stats().in_flight, 0);
    assert_eq!(here.domain.stats().queued, 0);
}

fn keep_to_their_lane(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    for (ours, theirs) in [(&here.small, &there.bulk), (&here.bulk, &there.small)] {
        let peer = ours.connect(&theirs.address()).expect("connect");
        theirs.receive(there.empty(64)).expect("receive");
        let op = ours.send(peer, here.holding(b"which lane?"));
        let (endpoint, _, received) = driver.message();
        assert_eq!(endpoint, theirs.id());
        assert_same(&received, b"which lane?", "message");
        driver.succeed(&[op]);
    }
}

/// Both sides send first, so that two connections are made at once.
fn cross_while_connecting(provider: &Provider) {
    for round in 0..20 {
        let (here, there) = (Node::new(provider), Node::new(provider));
        let mut driver = Driver::new(&[&here, &there]);
        let to_there = here.small.connect(&there.small.address()).expect("connect");
        let to_here = there.small.connect(&here.small.address()).expect("connect");
        here.small.receive(here.empty(64)).expect("receive");
        there.small.receive(there.empty(64)).expect("receive");
        let bytes = pattern(64, round);
        let ops = [
            here.small.send(to_there, here.holding(&bytes)),
            there.small.send(to_here, there.holding(&bytes)),
        ];
        driver.succeed(&ops);
        assert_same(&driver.message().2, &bytes, "first message");
        assert_same(&driver.message().2, &bytes, "second message");
    }
}

/// A message is too long for its buffer. The receiver gets an event with its buffer. The provider may close
/// the connection: messages that were under way on it are lost, and later messages make a new connection.
fn too_long_are_truncated(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    there.small.receive(there.empty(100)).expect("receive");
    there.small.receive(there.empty(100)).expect("receive");
    let _too_long = here.small.send(peer, here.holding(&pattern(101, 1)));
    match driver.until("the failed receive", |events| events.pop_front()) {
        Event::ReceiveFailed { slice, error } => {
            assert!(matches!(error, FabricError::Truncated { capacity: 100, .. }), "{error}");
            assert_eq!(slice.len(), 100);
        }
        other => panic!("expected a failed receive, got {other:?}"),
    }
    let mut tries = 0;
    while driver.events.is_empty() {
        let op = here.small.send(peer, here.holding(&pattern(100, 2)));
        driver.linger(Duration::from_millis(100));
        tries += 1;
        assert!(tries < 100, "no message gets through any more: {op:?}");
    }
    assert_same(&driver.message().2, &pattern(100, 2), "message");
}

fn to_oneself(provider: &Provider) {
    let node = Node::new(provider);
    let mut driver = Driver::new(&[&node]);
    let peer = node.bulk.connect(&node.small.address()).expect("connect");
    node.small.receive(node.empty(16)).expect("receive");
    let op = node.bulk.send(peer, node.holding(b"hello, me"));
    assert_same(&driver.message().2, b"hello, me", "message");
    driver.succeed(&[op]);
}
