//! Writes that go wrong, and writes with a message behind them.
//!
//! A node that lets peers write to its memory relies on three promises. A peer without the key, or with a key
//! that was replaced, changes nothing. A message that was sent behind a write to the same endpoint arrives
//! behind it. A writer that dies in the middle of a write harms nobody.

use std::time::Duration;

use plasmon_fabric::{Access, Event, FabricError, Op, Provider, RemoteRegion};

use super::Case;
use super::remote::Remote;
use super::support::{Driver, Node, Pages, assert_same, hang, pattern, whole};

pub(crate) const CASES: &[Case] = &[
    ("writes_are_refused_with_a_wrong_key", wrong_key),
    ("writes_are_refused_past_the_end", past_the_end),
    ("writes_are_refused_without_permission", without_permission),
    ("writes_are_refused_after_the_region_is_dropped", region_is_dropped),
    ("writes_end_when_the_key_is_replaced", key_is_replaced),
    ("writes_arrive_before_the_message_behind_them", message_behind),
    ("writes_to_a_peer_that_is_killed_fail", target_is_killed),
    ("writes_of_a_peer_that_is_killed_harm_nobody", writer_is_killed),
    ("writes_of_a_peer_that_hangs_can_be_ended", writer_hangs),
];

/// Length in bytes of the memory that is written.
const LEN: usize = 256 << 10;
/// Largest number of times that a write by a connection that has to be made anew is tried.
const TRIES: u32 = 1000;
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Whether an operation failed because the peer refused the access, or the connection to the peer broke.
fn is_refused(error: &FabricError) -> bool {
    matches!(error, FabricError::BadKey { .. } | FabricError::PeerGone { .. })
}

fn wrong_key(provider: &Provider) {
    refused(provider, Access::REMOTE_WRITE, |region| RemoteRegion { key: !region.key, ..region });
}

/// A forged length passes the check of this side, and the peer's side must refuse the write.
fn past_the_end(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let region = there.memory(LEN, Access::REMOTE_WRITE).remote();
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    for offset in [1, LEN as u64, u64::MAX] {
        let result = here.bulk.write(peer, here.empty(LEN), region, offset, None).result();
        assert!(matches!(result, Some(Err(FabricError::OutOfBounds { .. }))), "{result:?}");
    }
    refused(provider, Access::REMOTE_WRITE, |region| RemoteRegion { len: region.len * 2, ..region });
}

fn without_permission(provider: &Provider) {
    refused(provider, Access::REMOTE_READ, |region| region);
    refused(provider, Access::LOCAL, |region| region);
}

/// Writes to a peer's region after `forge`; the peer must refuse, keep its bytes, and go on working.
fn refused(provider: &Provider, access: Access, forge: impl Fn(RemoteRegion) -> RemoteRegion) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let guarded = there.memory(LEN, access);
    let kept = pattern(LEN, 1);
    whole(&guarded, LEN).copy_from_slice(&kept).expect("fits");
    let open = there.memory(LEN, Access::REMOTE_WRITE);
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");

    let forged = forge(guarded.remote());
    let from = here.holding(&pattern(usize::try_from(forged.len).expect("small"), 2));
    let op = here.bulk.write(peer, from, forged, 0, None);
    let error = driver.outcome(&op).expect_err("the peer should refuse");
    assert!(is_refused(&error), "not recognisable: {error:?}");
    driver.linger(Duration::from_millis(20));
    assert_same(&whole(&guarded, LEN).to_vec(), &kept, "memory that nobody may write to");
    write_at_last(&mut driver, (&here, peer), &pattern(LEN, 3), open.remote());
    assert_same(&whole(&open, LEN).to_vec(), &pattern(LEN, 3), "memory that is open to writes");
}

/// Writes to a peer whose connection may have broken: the first attempts may fail.
fn write_at_last(
    driver: &mut Driver<'_>,
    (here, peer): (&Node, plasmon_fabric::Peer),
    bytes: &[u8],
    to: RemoteRegion,
) {
    let from = here.holding(bytes);
    let mut tries = 0;
    while let Err(error) = {
        let op = here.bulk.write(peer, from.clone(), to, 0, None);
        driver.outcome(&op)
    } {
        tries += 1;
        assert!(tries < TRIES, "the peer cannot be written to any more: {error}");
        driver.linger(PAUSE);
    }
}

fn region_is_dropped(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let region = there.memory(LEN, Access::REMOTE_WRITE);
    let remote = region.remote();
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    driver.succeed(&[here.bulk.write(peer, here.empty(LEN), remote, 0, None)]);
    drop(region);
    let op = here.bulk.write(peer, here.empty(LEN), remote, 0, None);
    let error = driver.outcome(&op).expect_err("the key should be dead");
    assert!(is_refused(&error), "not recognisable: {error:?}");
}

/// A region is registered anew in the middle of writes: another key is given out for the same memory. The
/// writes by the former key end, in order, with success or a refusal, and none by that key succeeds later.
fn key_is_replaced(provider: &Provider) {
    for steps in [0, 1, 2, 4, 8, 16] {
        let (here, there) = (Node::new(provider), Node::new(provider));
        let mut driver = Driver::new(&[&here, &there]);
        let pages = Pages::new(LEN);
        let former = there.domain.register(pages.clone(), Access::REMOTE_WRITE).expect("register");
        let known = former.remote();
        let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
        driver.succeed(&[here.bulk.write(peer, here.empty(LEN), known, 0, None)]);
        let from = here.holding(&pattern(LEN, 1));
        let ops: Vec<_> = (0..8).map(|_| here.bulk.write(peer, from.clone(), known, 0, None)).collect();
        (0..steps).for_each(|_| driver.step());
        drop(former);
        let fresh = there.domain.register(pages, Access::REMOTE_WRITE).expect("register again");
        assert_ne!(fresh.remote().key, known.key, "a key that a writer knows is given out again");
        let mut refusals = 0;
        for op in &ops {
            match driver.outcome(op) {
                Ok(()) => assert_eq!(refusals, 0, "a write succeeds behind one that was refused"),
                Err(error) => {
                    assert!(is_refused(&error), "not recognisable: {error:?}");
                    refusals += 1;
                }
            }
        }
        let op = here.bulk.write(peer, from.clone(), known, 0, None);
        assert!(is_refused(&driver.outcome(&op).expect_err("the former key should be dead")));
        let wanted = pattern(LEN, 2);
        write_at_last(&mut driver, (&here, peer), &wanted, fresh.remote());
        assert_same(&whole(&fresh, LEN).to_vec(), &wanted, "what was written by the new key");
    }
}

/// When a message arrives, the writes that were posted before it to the same endpoint have arrived: there is
/// no poll between the event of the message and the comparison of the memory.
fn message_behind(provider: &Provider) {
    const SLOTS: usize = 8;
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let target = there.memory(SLOTS * LEN, Access::REMOTE_WRITE);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    for _ in 0..SLOTS {
        there.small.receive(there.empty(here.small.eager_size())).expect("receive");
    }
    for (round, len) in (0..).zip([1, 4096, 16 << 10, (16 << 10) + 1, 100_000, LEN]) {
        let sent = |slot: usize| pattern(len, round * SLOTS as u64 + slot as u64 + 1);
        let mut ops: Vec<Op> = Vec::new();
        for slot in 0..SLOTS {
            let to = (slot * LEN) as u64;
            let from = here.holding(&sent(slot));
            ops.push(match slot % 3 {
                0 => here.small.write(peer, from, target.remote(), to, None),
                _ => here.small.hand_over(peer, from, target.remote(), to),
            });
            // A short message, and one as long as may be: they go different ways in a provider.
            let longest = if slot % 2 == 0 { 8 } else { here.small.eager_size() };
            let mut note = (slot as u64).to_le_bytes().to_vec();
            note.resize(longest, 0);
            ops.push(here.small.send(peer, here.holding(&note)));
        }
        for wanted in 0..SLOTS {
            let (bytes, slice) = driver.until("a message", |events| match events.pop_front()? {
                Event::Received { slice, .. } => Some((slice.to_vec(), slice)),
                other => panic!("unexpected: {other:?}"),
            });
            let slot = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
            assert_eq!(slot, wanted, "messages come in order");
            let found = target.slice(slot * LEN, len).expect("within").to_vec();
            assert_same(&found, &sent(slot), "what was written before the message");
            there.small.receive(slice).expect("receive again");
        }
        driver.succeed(&ops);
    }
}

/// A peer dies in the middle of large writes to it. The writes fail or stay, and end with `disconnect`; their
/// buffers come back, and another peer can be written to.
fn target_is_killed(provider: &Provider) {
    for steps in [0, 1, 3, 10, 100] {
        let mut remote = Remote::start(provider);
        let node = Node::new(provider);
        let mut driver = Driver::new(&[&node]);
        let peer = node.bulk.connect(&remote.bulk).expect("connect");
        let from = node.holding(&pattern(4 << 20, 1));
        driver.succeed(&[node.bulk.write(peer, node.empty(1), remote.region, 0, None)]);
        let ops: Vec<_> =
            (0..8).map(|_| node.bulk.write(peer, from.clone(), remote.region, 0, None)).collect();
        (0..steps).for_each(|_| driver.step());
        remote.kill();
        driver.linger(Duration::from_millis(100));
        node.bulk.disconnect(peer);
        assert!(ops.iter().all(|op| op.result().is_some()), "a write outlives the disconnect");
        let successor = Remote::start(provider);
        let peer = node.bulk.connect(&successor.bulk).expect("connect");
        driver.succeed(&[node.bulk.write(peer, from, successor.region, 0, None)]);
        driver.until("the buffers", |_| (node.domain.stats().in_flight == 0).then_some(()));
        successor.finish();
    }
}

/// A peer dies while it writes without a pause. The target goes on, and others write to it.
fn writer_is_killed(provider: &Provider) {
    for round in 0..8 {
        let (node, third) = (Node::new(provider), Node::new(provider));
        let mut driver = Driver::new(&[&node, &third]);
        let open = node.memory(super::remote::LEN, Access::REMOTE_WRITE);
        let mut remote = Remote::start(provider);
        let writing = remote.write_to(&node, open.remote());
        driver.until("the first bytes", |_| (whole(&open, 1).to_vec()[0] != 0).then_some(()));
        (0..round * 3).for_each(|_| driver.step());
        remote.kill();
        driver.linger(Duration::from_millis(50));
        drop(writing);
        let peer = third.bulk.connect(&node.bulk.address()).expect("connect");
        let wanted = pattern(LEN, round as u64 + 1);
        write_at_last(&mut driver, (&third, peer), &wanted, open.remote());
        assert_same(&whole(&open, LEN).to_vec(), &wanted, "what another peer wrote");
    }
}

/// A peer stops in the middle of a large write. The target closes the connection to the peer, and goes on
/// with others. Later the peer goes on as well, on a new connection.
fn writer_hangs(provider: &Provider) {
    const LARGE: usize = 32 << 20;
    for steps in [0, 1, 2, 3, 5, 8, 13, 30] {
        hang(provider, false);
        let [node, writer, third] = [(); 3].map(|()| Node::new(provider));
        let open = node.memory(LARGE, Access::REMOTE_WRITE);
        let (to, from) = (node.small.address(), writer.holding(&pattern(LARGE, 1)));
        let peer = writer.small.connect(&to).expect("connect");
        let back = node.small.connect(&writer.small.address()).expect("connect");
        writer.small.receive(writer.empty(8)).expect("receive");
        let mut all = Driver::new(&[&node, &writer, &third]);
        all.succeed(&[writer.small.write(peer, writer.empty(1), open.remote(), 0, None)]);
        all.succeed(&[node.small.send(back, node.holding(b"hold on!"))]);
        let op = writer.small.write(peer, from, open.remote(), 0, None);
        (0..steps).for_each(|_| all.step());
        let finished = op.result().is_some();
        hang(provider, true);
        Driver::new(&[&node]).linger(Duration::from_millis(5));
        node.small.disconnect(back);
        Driver::new(&[&node]).linger(Duration::from_millis(20));
        hang(provider, false);
        if !finished && provider.memory_network().is_none() {
            // With what has come of it the provider may have come to its end.
            let _ = all.outcome(&op);
        }
        let (another, wanted) = (third.small.connect(&to).expect("connect"), pattern(LEN, 2));
        let op = third.small.write(another, third.holding(&wanted), open.remote(), 0, None);
        all.succeed(&[op]);
        assert_same(&whole(&open, LEN).to_vec(), &wanted, "what another peer wrote");
        let mut tries = 0;
        while let Err(error) = {
            let op = writer.small.write(peer, writer.empty(8), open.remote(), 0, None);
            all.outcome(&op)
        } {
            tries += 1;
            assert!(tries < TRIES, "the writer cannot write any more: {error}");
            all.linger(PAUSE);
        }
    }
}
