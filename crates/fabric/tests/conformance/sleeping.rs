//! Sleeping on the wait descriptor alone, with no time-out behind it.

use std::time::{Duration, Instant};

use plasmon_fabric::{Event, Op, Provider};
use rustix::event::{PollFd, PollFlags, poll};

use super::Case;
use super::remote::{LEN, Remote, SEED};
use super::support::{Node, assert_same, pattern};
use super::wait::let_pass;

pub(crate) const CASES: &[Case] = &[
    ("sleeping_target_serves", sleeping_target_serves),
    ("sleeping_initiator_wakes", sleeping_initiator_wakes),
    ("sleeping_through_a_connect_storm", connect_storm),
];

/// Polls without sleeping until `done` returns true.
fn spin(node: &Node, what: &str, mut done: impl FnMut(&mut Vec<Event>) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut events = Vec::new();
    while !done(&mut events) {
        node.domain.poll(&mut events).expect("poll");
        assert!(Instant::now() < deadline, "hangs: {what}");
    }
}

/// Sends this side's address to the peer, and returns the number of wake-ups in the peer's answer.
fn ask(node: &Node, send: impl Fn() -> Op) -> u64 {
    node.small.receive(node.empty(8)).expect("receive");
    let op = send();
    let mut answer = None;
    spin(node, "an answer of the sleeper", |events| {
        for event in events.drain(..) {
            let Event::Received { slice, len: 8, .. } = event else { panic!("{event:?}") };
            let bytes = slice.to_vec().try_into().expect("eight bytes");
            answer = Some(u64::from_le_bytes(bytes));
        }
        answer.is_some() && op.result().is_some()
    });
    op.result().expect("sent").expect("send");
    answer.expect("an answer")
}

/// The peer process sleeps without a time-out. It wakes for connections, messages, reads and writes, however
/// long it has been idle. The pauses let it fall asleep in every state.
fn sleeping_target_serves(provider: &Provider) {
    let remote = Remote::start(provider);
    let wanted = pattern(LEN, SEED);
    let mut wakes = 0;
    for round in 0..12 {
        // A new node each round: new connections.
        let node = Node::new(provider);
        let span = Duration::from_millis([0, 1, 5, 12, 30, 120][round % 6]);
        let pause = || let_pass(span, "how deep the peer sleeps cannot be seen");
        let small = node.small.connect(&remote.small).expect("connect");
        let bulk = node.bulk.connect(&remote.bulk).expect("connect");
        let message = node.holding(&node.small.address());
        pause();
        for _ in 0..5 {
            let count = ask(&node, || node.small.send(small, message.clone()));
            assert!(count > wakes || provider_cannot_sleep(&node), "it does not sleep");
            wakes = count;
            pause();
            let size = if round == 0 { LEN } else { 1 << 20 };
            let into = node.empty(size);
            let op = node.bulk.read(bulk, into.clone(), remote.region, 0);
            spin(&node, "a read from the sleeper", |_| op.result().is_some());
            op.result().expect("done").expect("read");
            assert_same(&into.to_vec(), &wanted[..size], "what was read");
            pause();
            let from = node.holding(&wanted[..size]);
            let immediate = provider.carries_immediates().then_some(9);
            let op = node.bulk.write(bulk, from, remote.region, 0, immediate);
            spin(&node, "a write to the sleeper", |_| op.result().is_some());
            op.result().expect("done").expect("write");
            pause();
        }
    }
    remote.finish();
}

fn provider_cannot_sleep(node: &Node) -> bool {
    node.domain.wait_descriptor().is_none()
}

/// Both sides sleep, with no time-out but the limit that queued operations ask for.
fn sleeping_initiator_wakes(provider: &Provider) {
    let remote = Remote::start(provider);
    let node = Node::new(provider);
    let small = node.small.connect(&remote.small).expect("connect");
    let bulk = node.bulk.connect(&remote.bulk).expect("connect");
    let message = node.holding(&node.small.address());
    let wanted = pattern(LEN, SEED);
    let mut events = Vec::new();
    for size in [1, 1000, 100_000, LEN].repeat(25) {
        node.small.receive(node.empty(8)).expect("receive");
        let into = node.empty(size);
        let ops =
            [node.bulk.read(bulk, into.clone(), remote.region, 0), node.small.send(small, message.clone())];
        loop {
            while node.domain.poll(&mut events).expect("poll") > 0 {}
            if ops.iter().all(|op| op.result().is_some()) && !events.is_empty() {
                break;
            }
            let Some(descriptor) = node.domain.wait_descriptor() else { continue };
            if !node.domain.try_wait() {
                continue;
            }
            // A minute is for ever: a wake-up that is lost fails the test.
            let minute = Duration::from_secs(60);
            let limit = node.domain.sleep_limit();
            let time = limit.unwrap_or(minute).try_into().expect("short");
            let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
            let ready = poll(&mut descriptors, Some(&time)).expect("poll(2)");
            assert!(ready > 0 || limit.is_some(), "a wake-up got lost");
        }
        for op in ops {
            op.result().expect("done").expect("operation");
        }
        assert!(matches!(events[..], [Event::Received { len: 8, .. }]), "{events:?}");
        events.clear();
        assert_same(&into.to_vec(), &wanted[..size], "what was read");
    }
    remote.finish();
}

/// Many connections in a row are made to a sleeping peer. Each is used once and closed.
fn connect_storm(provider: &Provider) {
    let remote = Remote::start(provider);
    let node = Node::new(provider);
    let region = remote.region;
    let wanted = pattern(LEN, SEED);
    for round in 0..200 {
        let peer = node.bulk.connect(&remote.bulk).expect("connect");
        let into = node.empty(4096);
        let op = node.bulk.read(peer, into.clone(), region, 4096);
        spin(&node, "a read through a new connection", |_| op.result().is_some());
        op.result().expect("done").unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_same(&into.to_vec(), &wanted[4096..8192], "what was read");
        node.bulk.disconnect(peer);
    }
    remote.finish();
}
