//! One-sided reads and writes: content, immediate values, many at once, both lanes.

use std::time::Duration;

use plasmon_fabric::{Access, Event, FabricError, Provider};

use super::Case;
use super::support::{Driver, Node, assert_same, pattern, sizes, whole};

pub(crate) const CASES: &[Case] = &[
    ("reads_of_every_size", reads_of_every_size),
    ("writes_of_every_size", writes_of_every_size),
    ("writes_with_immediate_values", writes_with_immediate_values),
    ("reads_by_the_thousand", reads_by_the_thousand),
    ("writes_by_the_thousand", writes_by_the_thousand),
    ("reads_in_a_window_beside_small_messages", reads_in_a_window),
];

/// Offset in bytes on this side.
const OUR_OFFSET: usize = 13;
/// Offset in bytes on the peer's side, which differs from this side's.
const THEIR_OFFSET: usize = 4099;

fn reads_of_every_size(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let sizes = sizes(&here.bulk);
    let largest = sizes[sizes.len() - 1];
    let source = there.memory(largest + THEIR_OFFSET, Access::REMOTE_READ);
    let wanted = pattern(largest, 7);
    source.slice(THEIR_OFFSET, largest).expect("within").copy_from_slice(&wanted).expect("fits");

    for (lane, their_lane) in [(&here.small, &there.small), (&here.bulk, &there.bulk)] {
        let peer = lane.connect(&their_lane.address()).expect("connect");
        let target = here.memory(largest + 2 * OUR_OFFSET, Access::LOCAL);
        for size in sizes {
            let into = target.slice(OUR_OFFSET, size).expect("within");
            let op = lane.read(peer, into.clone(), source.remote(), THEIR_OFFSET as u64);
            driver.succeed(&[op]);
            assert_same(&into.to_vec(), &wanted[..size], "what was read");
        }
        let around = whole(&target, target.len()).to_vec();
        assert!(around[..OUR_OFFSET].iter().all(|byte| *byte == 0), "bytes before the slice changed");
        assert!(around[OUR_OFFSET + largest..].iter().all(|byte| *byte == 0), "bytes after it changed");
    }
}

fn writes_of_every_size(provider: &Provider) {
    writes(provider, |_| None);
}

fn writes_with_immediate_values(provider: &Provider) {
    if !provider.carries_immediates() {
        return refuses_immediate_values(provider);
    }
    writes(provider, |index| Some(0xffff_fff0 + index));
}

/// An immediate value that cannot arrive is not sent, and the write fails.
fn refuses_immediate_values(provider: &Provider) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    let target = there.memory(8, Access::REMOTE_WRITE);
    let op = here.bulk.write(peer, here.holding(b"told you"), target.remote(), 0, Some(1));
    assert!(matches!(op.result(), Some(Err(FabricError::Unsupported { .. }))), "{op:?}");
    assert_eq!(here.domain.stats().in_flight, 0);
}

fn writes(provider: &Provider, immediate: fn(u32) -> Option<u32>) {
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    let sizes = sizes(&here.bulk);
    let largest = sizes[sizes.len() - 1];
    let target = there.memory(largest + THEIR_OFFSET, Access::REMOTE_WRITE);
    for (index, size) in (0..).zip(sizes) {
        let bytes = pattern(size, u64::from(index));
        let from = here.holding(&bytes);
        let op = here.bulk.write(peer, from, target.remote(), THEIR_OFFSET as u64, immediate(index));
        driver.succeed(&[op]);
        // A complete write has arrived: no domain is polled between completion and comparison.
        let found = target.slice(THEIR_OFFSET, size).expect("within").to_vec();
        assert_same(&found, &bytes, "what was written");
        if let Some(wanted) = immediate(index) {
            let event = driver.until("the immediate value", |events| events.pop_front());
            assert!(
                matches!(event, Event::RemoteWrite { immediate, .. } if immediate == wanted),
                "{event:?}"
            );
        }
    }
    driver.linger(Duration::from_millis(20));
    assert!(driver.events.is_empty(), "unexpected: {:?}", driver.events);
}

fn reads_by_the_thousand(provider: &Provider) {
    const COUNT: usize = 3000;
    const SIZE: usize = 1000;
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let source = there.memory(COUNT * SIZE, Access::REMOTE_READ);
    let wanted = pattern(COUNT * SIZE, 3);
    whole(&source, COUNT * SIZE).copy_from_slice(&wanted).expect("fits");
    let target = here.memory(COUNT * SIZE, Access::LOCAL);

    let peers = [
        here.small.connect(&there.small.address()).expect("connect"),
        here.bulk.connect(&there.bulk.address()).expect("connect"),
    ];
    let ops: Vec<_> = (0..COUNT)
        .map(|index| {
            let into = target.slice(index * SIZE, SIZE).expect("within");
            let (lane, peer) = match index % 2 {
                0 => (&here.small, peers[0]),
                _ => (&here.bulk, peers[1]),
            };
            lane.read(peer, into, source.remote(), (index * SIZE) as u64)
        })
        .collect();
    assert_eq!(here.domain.stats().in_flight, COUNT as u64);
    driver.succeed(&ops);
    assert_same(&whole(&target, COUNT * SIZE).to_vec(), &wanted, "what was read");
    let stats = here.domain.stats();
    assert_eq!((stats.in_flight, stats.queued), (0, 0));
    assert_eq!((stats.reads, stats.completed, stats.failed), (COUNT as u64, COUNT as u64, 0));
}

fn writes_by_the_thousand(provider: &Provider) {
    const COUNT: usize = 1000;
    const SIZE: usize = 700;
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let target = there.memory(COUNT * SIZE, Access::REMOTE_WRITE);
    let wanted = pattern(COUNT * SIZE, 4);
    let from = here.holding(&wanted);
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    let ops: Vec<_> = (0..COUNT)
        .map(|index| {
            let from = from.slice(index * SIZE, SIZE).expect("within");
            let immediate = provider.carries_immediates().then_some(index as u32);
            here.bulk.write(peer, from, target.remote(), (index * SIZE) as u64, immediate)
        })
        .collect();
    driver.succeed(&ops);
    assert_same(&whole(&target, COUNT * SIZE).to_vec(), &wanted, "what was written");
    let told = if provider.carries_immediates() { COUNT } else { 0 };
    driver.until("all immediate values", |events| (events.len() == told).then_some(()));
    let values: Vec<u32> = driver
        .events
        .iter()
        .map(|event| match event {
            Event::RemoteWrite { immediate, .. } => *immediate,
            other => panic!("unexpected: {other:?}"),
        })
        .collect();
    assert_eq!(values, (0..told as u32).collect::<Vec<_>>());
    let stats = here.domain.stats();
    assert_eq!((stats.in_flight, stats.completed, stats.failed), (0, COUNT as u64, 0));
}

/// A large object is read as the engine does: in chunks of 1 MiB, with several under way on the bulk lane,
/// while small messages go through the other lane.
fn reads_in_a_window(provider: &Provider) {
    const CHUNK_BYTES: usize = 1 << 20;
    const CHUNKS: usize = 48;
    let (here, there) = (Node::new(provider), Node::new(provider));
    let mut driver = Driver::new(&[&here, &there]);
    let source = there.memory(CHUNKS * CHUNK_BYTES, Access::REMOTE_READ);
    let wanted = pattern(CHUNKS * CHUNK_BYTES, 5);
    whole(&source, CHUNKS * CHUNK_BYTES).copy_from_slice(&wanted).expect("fits");
    let bulk = here.bulk.connect(&there.bulk.address()).expect("connect");
    let small = here.small.connect(&there.small.address()).expect("connect");
    let note = here.holding(b"small");
    there.small.receive(there.empty(64)).expect("receive");

    for window in [4, 8] {
        let target = here.memory(CHUNKS * CHUNK_BYTES, Access::LOCAL);
        let read = |chunk: usize| {
            let into = target.slice(chunk * CHUNK_BYTES, CHUNK_BYTES).expect("within");
            here.bulk.read(bulk, into, source.remote(), (chunk * CHUNK_BYTES) as u64)
        };
        let mut under_way: Vec<_> = (0..window).map(read).collect();
        let mut message = here.small.send(small, note.clone());
        let (mut next, mut messages) = (window, 0);
        driver.until("all chunks", |events| {
            while let Some(event) = events.pop_front() {
                let Event::Received { slice, len: 5, .. } = event else { panic!("unexpected: {event:?}") };
                there.small.receive(slice).expect("receive again");
                messages += 1;
                message.result().transpose().expect("send");
                message = here.small.send(small, note.clone());
            }
            under_way.retain(|op| match op.result() {
                None => true,
                Some(result) => {
                    result.expect("read");
                    false
                }
            });
            while under_way.len() < window && next < CHUNKS {
                under_way.push(read(next));
                next += 1;
            }
            under_way.is_empty().then_some(())
        });
        assert_same(&whole(&target, CHUNKS * CHUNK_BYTES).to_vec(), &wanted, "what was read");
        assert!(messages > 0, "no small message got through beside {CHUNKS} chunks");
    }
}
