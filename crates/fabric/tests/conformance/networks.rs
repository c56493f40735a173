//! Memory networks: the faults that only they can make at will, and that a seed decides everything.

use std::collections::BTreeSet;
use std::time::Duration;

use plasmon_fabric::{Access, Event, FabricError, Faults, MemoryNetwork, Op, Peer, Slice};

use super::support::{Driver, Node, pattern, whole};

pub(crate) const CASES: &[(&str, fn())] = &[
    ("do_the_same_by_the_same_seed", same_by_the_same_seed),
    ("deliver_a_prefix_before_a_cut", prefix_before_a_cut),
    ("lose_what_was_sent_early", lose_what_was_sent_early),
    ("hold_back_while_separated", hold_back_while_separated),
    ("lose_patience_while_separated", lose_patience_while_separated),
    ("break_what_was_closed_behind_a_partition", closed_behind_a_partition),
    ("forget_the_killed", forget_the_killed),
    ("forget_the_killed_behind_a_partition", killed_behind_a_partition),
    ("read_at_two_moments", read_at_two_moments),
    ("refuse_the_second_half_of_a_read", refuse_the_second_half),
    ("read_in_order", read_in_order),
    ("land_writes_after_the_connection_is_broken", writes_that_are_late),
    ("read_wrong_bytes", read_wrong_bytes),
];

/// Faults of every kind.
fn all_faults() -> Faults {
    Faults {
        delay_min: Duration::ZERO,
        delay_max: Duration::from_micros(200),
        split_reads: true,
        cut_ppm: 20_000,
        early_send_ppm: 300_000,
        late_write_max: Duration::from_millis(1),
        spoiled_read_ppm: 100_000,
        patience: Some(Duration::from_millis(2)),
    }
}

/// Network without faults but for `faults`, with a node on each of two hosts.
fn two(seed: u64, faults: Faults) -> (MemoryNetwork, Node, Node) {
    let network = MemoryNetwork::new(seed, faults);
    let nodes = [0, 1].map(|host| Node::new(&network.provider(host)));
    let [here, there] = nodes;
    (network, here, there)
}

/// Sends the numbers of a range as messages of eight bytes.
fn send_numbers(node: &Node, peer: Peer, numbers: std::ops::Range<u64>) -> Vec<Op> {
    numbers.map(|number| node.small.send(peer, node.holding(&number.to_le_bytes()))).collect()
}

/// Posts receive buffers for numbers.
fn receive_numbers(node: &Node, count: usize) {
    (0..count).for_each(|_| node.small.receive(node.empty(8)).expect("receive"));
}

fn number(slice: &Slice) -> u64 {
    u64::from_le_bytes(slice.to_vec().try_into().expect("eight bytes"))
}

/// Polls until nothing is under way, and returns the numbers that came in.
fn quiesce(network: &MemoryNetwork, driver: &mut Driver<'_>) -> Vec<u64> {
    while network.next_due().is_some() {
        driver.step();
    }
    driver.step();
    let received = driver.events.drain(..).map(|event| match event {
        Event::Received { slice, len: 8, .. } => number(&slice),
        other => panic!("unexpected: {other:?}"),
    });
    received.collect()
}

fn is_gone(op: &Op) -> bool {
    matches!(op.result(), Some(Err(FabricError::PeerGone { .. })))
}

/// Four hosts do everything to each other while everything breaks. One seed gives the same results at the
/// same times. Whatever breaks, every operation of living hosts ends when all is quiet again.
fn same_by_the_same_seed() {
    let mut seen = BTreeSet::new();
    for seed in 0..30 {
        let first = chaos(seed);
        assert_eq!(first, chaos(seed), "seed {seed}");
        assert!(seen.insert(first), "seed {seed} does as another");
    }
}

/// Digest and outcomes of a run of operations and faults that `seed` decides.
fn chaos(seed: u64) -> (u64, Vec<String>) {
    const HOSTS: u32 = 4;
    const DOOMED: u32 = 3;
    let network = MemoryNetwork::new(seed, all_faults());
    let nodes: Vec<_> = (0..HOSTS).map(|host| Node::new(&network.provider(host))).collect();
    let regions: Vec<_> = nodes.iter().map(|node| node.memory(4096, Access::REMOTE_READ_WRITE)).collect();
    let mut driver = Driver::new(&nodes.iter().collect::<Vec<_>>());
    let mut draw = pattern(1 << 16, seed).into_iter().map(u32::from);
    let mut draw = |limit: u32| draw.next().expect("enough draws") % limit;
    let mut peers = Vec::new();
    for node in &nodes {
        let connect = |to: &Node| node.small.connect(&to.small.address()).expect("connect");
        peers.push(nodes.iter().map(connect).collect::<Vec<_>>());
        receive_numbers(node, 20);
    }
    let mut ops = Vec::new();
    for at in 0..1000_u64 {
        if at == 900 {
            network.kill(DOOMED);
        }
        let (from, to) = (draw(HOSTS) as usize, draw(HOSTS) as usize);
        let (node, peer, region) = (&nodes[from], peers[from][to], regions[to].remote());
        match draw(40) {
            0..12 => ops.push((from, node.small.send(peer, node.holding(&at.to_le_bytes())))),
            12..20 => ops.push((from, node.small.read(peer, node.empty(1000), region, 96))),
            20..26 => {
                let immediate = Some(at as u32);
                ops.push((from, node.small.write(peer, node.empty(1000), region, 96, immediate)));
            }
            26 => network.cut(from as u32, to as u32),
            27 => network.partition(from as u32, to as u32, true),
            28..30 => network.partition(from as u32, to as u32, false),
            30 => {
                node.small.disconnect(peer);
                peers[from][to] = node.small.connect(&nodes[to].small.address()).expect("connect");
            }
            31..33 => node.small.receive(node.empty(8)).expect("receive"),
            _ => driver.step(),
        }
    }
    // Operations of the dead host do not end.
    ops.retain(|(from, _)| *from != DOOMED as usize);
    for (a, b) in (0..HOSTS).flat_map(|a| (0..HOSTS).map(move |b| (a, b))) {
        network.partition(a, b, false);
    }
    while network.next_due().is_some() {
        driver.step();
    }
    driver.step();
    assert!(ops.iter().all(|(_, op)| op.result().is_some()), "seed {seed}: an operation does not end");
    let mut trace: Vec<_> = ops.iter().map(|(_, op)| format!("{:?}", op.result())).collect();
    trace.extend(driver.events.iter().map(|event| format!("{event:?}")));
    trace.push(format!(
        "{:?} {:?}",
        network.now(),
        nodes.iter().map(|it| it.domain.stats()).collect::<Vec<_>>()
    ));
    (network.fingerprint(), trace)
}

/// A connection is cut in the middle of messages. A prefix arrives, all operations end, and some fail though
/// their message has arrived. Later messages get through.
fn prefix_before_a_cut() {
    let (mut duplicates, mut losses) = (0, 0);
    for seed in 0..40 {
        let (network, here, there) = two(seed, Faults::default());
        let mut driver = Driver::new(&[&here, &there]);
        receive_numbers(&there, 101);
        let peer = here.small.connect(&there.small.address()).expect("connect");
        let ops = send_numbers(&here, peer, 0..100);
        (0..seed * 5).for_each(|_| driver.step());
        network.cut(0, 1);
        let mut arrived: Vec<u64> = quiesce(&network, &mut driver);
        let count = arrived.len() as u64;
        assert_eq!(arrived, (0..count).collect::<Vec<_>>(), "seed {seed}");
        for (number, op) in (0..).zip(&ops) {
            assert!(is_gone(op) || op.result() == Some(Ok(())), "{op:?}");
            assert!(number < count || is_gone(op), "message {number} is lost without a sign");
            duplicates += usize::from(number < count && is_gone(op));
            losses += usize::from(number >= count);
        }
        // Both sides have noticed the cut by then.
        network.advance(network.now() + Duration::from_secs(1));
        let after = send_numbers(&here, peer, 1000..1001);
        arrived = quiesce(&network, &mut driver);
        assert_eq!((arrived, after[0].result()), (vec![1000], Some(Ok(()))), "seed {seed}");
    }
    assert!(duplicates > 0 && losses > 0, "{duplicates} failed and arrived, {losses} were lost");
}

/// A send that completed before its message arrived says nothing about the message.
fn lose_what_was_sent_early() {
    let mut lost = 0;
    for seed in 0..40 {
        let (network, here, there) = two(seed, Faults { early_send_ppm: 500_000, ..Faults::default() });
        let mut driver = Driver::new(&[&here, &there]);
        receive_numbers(&there, 101);
        let peer = here.small.connect(&there.small.address()).expect("connect");
        driver.succeed(&send_numbers(&here, peer, 0..1));
        let ops = send_numbers(&here, peer, 1..101);
        (0..seed * 2).for_each(|_| driver.step());
        network.cut(0, 1);
        let arrived = quiesce(&network, &mut driver);
        let sent = 1 + ops.iter().filter(|op| op.result() == Some(Ok(()))).count();
        lost += sent.saturating_sub(arrived.len());
        assert_eq!(arrived, (0..arrived.len() as u64).collect::<Vec<_>>(), "seed {seed}");
    }
    assert!(lost > 0, "every message that was sent has arrived");
}

/// Nothing goes between separated hosts, other hosts are not concerned, and all goes on when they are joined.
fn hold_back_while_separated() {
    let (network, here, there) = two(1, Faults::default());
    assert!(here.domain.wait_descriptor().is_none() && here.domain.try_wait());
    let third = Node::new(&network.provider(2));
    let mut driver = Driver::new(&[&here, &there, &third]);
    receive_numbers(&there, 100);
    receive_numbers(&third, 1);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    let mut ops = send_numbers(&here, peer, 0..50);
    (0..20).for_each(|_| driver.step());
    network.partition(1, 0, true);
    ops.extend(send_numbers(&here, peer, 50..80));
    let before = quiesce(&network, &mut driver);
    assert!(before.len() < 50, "nothing is held back");
    assert!(ops.iter().all(|op| matches!(op.result(), None | Some(Ok(())))));
    let other = here.small.connect(&third.small.address()).expect("connect");
    driver.succeed(&send_numbers(&here, other, 7..8));
    assert_eq!(quiesce(&network, &mut driver), [7]);
    ops.extend(send_numbers(&here, peer, 80..90));
    network.partition(0, 1, false);
    ops.extend(send_numbers(&here, peer, 90..100));
    driver.succeed(&ops);
    let all: Vec<u64> = before.into_iter().chain(quiesce(&network, &mut driver)).collect();
    assert_eq!(all, (0..100).collect::<Vec<_>>());
}

/// With a patience, operations that are held back fail, and so do operations that are posted later.
fn lose_patience_while_separated() {
    let patience = Some(Duration::from_secs(5));
    let (network, here, there) = two(1, Faults { patience, ..Faults::default() });
    let mut driver = Driver::new(&[&here, &there]);
    receive_numbers(&there, 10);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    network.partition(0, 1, true);
    for _ in 0..2 {
        let ops = send_numbers(&here, peer, 0..3);
        let begin = network.now();
        network.advance(begin + Duration::from_secs(4));
        driver.poll();
        assert!(ops.iter().all(|op| op.result().is_none()), "patience is lost too early");
        network.advance(begin + Duration::from_secs(6));
        driver.poll();
        assert!(ops.iter().all(is_gone), "{ops:?}");
    }
    network.partition(0, 1, false);
    driver.succeed(&send_numbers(&here, peer, 3..5));
    assert_eq!(quiesce(&network, &mut driver), [3, 4]);
}

/// One side closes a connection while it is separated from the other side, which learns of the closing when
/// the hosts are joined. Operations that the other side had under way are lost.
fn closed_behind_a_partition() {
    let (network, here, there) = two(3, Faults::default());
    let mut driver = Driver::new(&[&here, &there]);
    receive_numbers(&there, 3);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    let back = there.small.connect(&here.small.address()).expect("connect");
    driver.succeed(&send_numbers(&here, peer, 0..1));
    network.partition(0, 1, true);
    let lost = send_numbers(&here, peer, 1..2);
    there.small.disconnect(back);
    assert_eq!(quiesce(&network, &mut driver), [0]);
    assert_eq!(lost[0].result(), None);
    network.partition(0, 1, false);
    assert_eq!(quiesce(&network, &mut driver), []);
    assert!(is_gone(&lost[0]), "{lost:?}");
    driver.succeed(&send_numbers(&here, peer, 2..3));
    assert_eq!(quiesce(&network, &mut driver), [2]);
}

/// A host dies. Operations of its peers fail, later operations find no host, and its next life has other
/// addresses. The dead host learns nothing, and can be dropped.
fn forget_the_killed() {
    let (network, here, there) = two(1, Faults::default());
    let mut driver = Driver::new(&[&here, &there]);
    let region = there.memory(4096, Access::REMOTE_READ);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    let back = there.small.connect(&here.small.address()).expect("connect");
    driver.succeed(&[here.small.read(peer, here.empty(8), region.remote(), 0)]);
    let reads: Vec<_> = (0..5).map(|_| here.small.read(peer, here.empty(8), region.remote(), 0)).collect();
    let of_the_dead = there.small.send(back, there.holding(b"farewell"));
    network.kill(1);
    let late = there.small.send(back, there.holding(b"a ghost?"));
    driver.step();
    while network.next_due().is_some() {
        driver.step();
    }
    assert!(reads.iter().all(is_gone), "{reads:?}");
    let error = driver.outcome(&here.small.read(peer, here.empty(8), region.remote(), 0));
    assert!(matches!(error, Err(FabricError::Unreachable { .. })), "{error:?}");
    assert_eq!((of_the_dead.result(), late.result()), (None, None));
    drop(region);
    let Node { small, bulk, domain } = there;
    drop((small, bulk, domain));
    for op in [of_the_dead, late] {
        assert!(matches!(op.result(), Some(Err(FabricError::Closed { .. }))), "{op:?}");
    }
    let next = Node::new(&network.provider(1));
    receive_numbers(&next, 1);
    let peer = here.small.connect(&next.small.address()).expect("connect");
    let mut driver = Driver::new(&[&here, &next]);
    driver.succeed(&send_numbers(&here, peer, 5..6));
    assert_eq!(quiesce(&network, &mut driver), [5]);
}

/// A host dies while it is separated from another host, which learns of the death when the hosts are joined.
fn killed_behind_a_partition() {
    let (network, here, there) = two(2, Faults::default());
    let mut driver = Driver::new(&[&here, &there]);
    receive_numbers(&there, 2);
    let peer = here.small.connect(&there.small.address()).expect("connect");
    driver.succeed(&send_numbers(&here, peer, 0..1));
    network.partition(0, 1, true);
    network.kill(1);
    let ops = send_numbers(&here, peer, 1..3);
    assert_eq!(quiesce(&network, &mut driver), [0]);
    assert!(ops.iter().all(|op| op.result().is_none()), "{ops:?}");
    network.partition(0, 1, false);
    assert_eq!(quiesce(&network, &mut driver), []);
    assert!(ops.iter().all(is_gone), "{ops:?}");
    let error = driver.outcome(&send_numbers(&here, peer, 3..4)[0]);
    assert!(matches!(error, Err(FabricError::Unreachable { .. })), "{error:?}");
}

/// A read brings one wrong bit if that is asked for, and succeeds nevertheless.
fn read_wrong_bytes() {
    let (network, here, there) = two(1, Faults { spoiled_read_ppm: 500_000, ..Faults::default() });
    let mut driver = Driver::new(&[&here, &there]);
    let region = there.memory(64, Access::REMOTE_READ);
    whole(&region, 64).copy_from_slice(&[7; 64]).expect("fits");
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    let mut spoiled = 0;
    for round in 0..100 {
        if round == 50 {
            network.change_faults(|faults| faults.spoiled_read_ppm = 0);
        }
        let into = here.empty(64);
        let op = here.bulk.read(peer, into.clone(), region.remote(), 0);
        while op.result().is_none() {
            driver.step();
        }
        let bits: u32 = into.to_vec().iter().map(|byte| (byte ^ 7).count_ones()).sum();
        assert!(op.result() == Some(Ok(())) && bits <= 1 && (round < 50 || bits == 0));
        spoiled += bits;
    }
    assert!((10..=40).contains(&spoiled), "{spoiled} of 50 reads");
}

/// A read may find a part of the memory as it was and the rest as it is. The bytes that were found stay.
fn read_at_two_moments() {
    let mut torn = 0;
    for (seed, split_reads) in (0..40).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (network, here, there) = two(seed, Faults { split_reads, ..Faults::default() });
        let mut driver = Driver::new(&[&here, &there]);
        let region = there.memory(64, Access::REMOTE_READ);
        let memory = whole(&region, 64);
        let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
        let into = here.empty(64);
        let op = here.bulk.read(peer, into.clone(), region.remote(), 0);
        let mut version = 0;
        while op.result().is_none() {
            version += 1;
            memory.copy_from_slice(&[version; 64]).expect("fits");
            driver.step();
        }
        let found = into.to_vec();
        let values: BTreeSet<u8> = found.iter().copied().collect();
        assert!(found.is_sorted() && values.len() <= 2, "{found:?}");
        assert!(split_reads || values.len() == 1, "torn without being asked for");
        torn += values.len() - 1;
        memory.copy_from_slice(&[99; 64]).expect("fits");
        network.advance(network.now() + Duration::from_secs(1));
        assert_eq!(into.to_vec(), found, "it changed after the read");
    }
    assert!(torn > 30, "{torn} of 40 reads were torn");
}

/// A region is dropped between the two moments of a read, which fails.
fn refuse_the_second_half() {
    let (network, here, there) = two(1, Faults { split_reads: true, ..Faults::default() });
    let mut driver = Driver::new(&[&here, &there]);
    let region = there.memory(64, Access::REMOTE_READ);
    whole(&region, 64).copy_from_slice(&[1; 64]).expect("fits");
    let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
    let into = here.empty(64);
    let op = here.bulk.read(peer, into.clone(), region.remote(), 0);
    network.advance(network.next_due().expect("the first half"));
    assert_eq!((into.to_vec()[0], into.to_vec()[63]), (1, 0), "not half of it");
    drop(region);
    driver.outcome(&op).expect_err("the region is gone");
    assert_eq!(into.to_vec()[63], 0);
}

/// Reads of one endpoint from one peer see memory in the order in which they were posted.
fn read_in_order() {
    for seed in 0..20 {
        let (_, here, there) = two(seed, Faults { split_reads: seed % 2 == 0, ..Faults::default() });
        let mut driver = Driver::new(&[&here, &there]);
        let region = there.memory(1, Access::REMOTE_READ);
        let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
        let buffers: Vec<_> = (0..50).map(|_| here.empty(1)).collect();
        let read = |into: &Slice| here.bulk.read(peer, into.clone(), region.remote(), 0);
        let ops: Vec<_> = buffers.iter().map(read).collect();
        for version in 0..200 {
            whole(&region, 1).copy_from_slice(&[version]).expect("fits");
            driver.step();
        }
        driver.succeed(&ops);
        let found: Vec<u8> = buffers.iter().map(|buffer| buffer.to_vec()[0]).collect();
        assert!(found.is_sorted() && found[0] < found[49], "seed {seed}: {found:?}");
    }
}

/// A connection is cut in the middle of writes. A prefix of the writes lands, the last write perhaps in
/// part, and some writes after their failure was reported. No write lands once the target has closed the
/// connection.
fn writes_that_are_late() {
    const COUNT: usize = 10;
    const LEN: usize = 64;
    let (mut late, mut torn) = (0, 0);
    for (seed, closes) in (0..60).flat_map(|seed| [(seed, false), (seed, true)]) {
        let late_write_max = Duration::from_millis(seed % 3);
        let (network, here, there) = two(seed, Faults { late_write_max, ..Faults::default() });
        let mut driver = Driver::new(&[&here, &there]);
        let region = there.memory(COUNT * LEN, Access::REMOTE_WRITE);
        let memory = whole(&region, COUNT * LEN);
        let peer = here.bulk.connect(&there.bulk.address()).expect("connect");
        let back = there.bulk.connect(&here.bulk.address()).expect("connect");
        let from = here.holding(&[7; LEN]);
        let write = |at: usize| here.bulk.write(peer, from.clone(), region.remote(), (at * LEN) as u64, None);
        let ops: Vec<_> = (0..COUNT).map(write).collect();
        (0..seed % 12).for_each(|_| driver.step());
        network.cut(0, 1);
        if closes {
            there.bulk.disconnect(back);
        } else {
            driver.until("all failures", |_| ops.iter().all(|op| op.result().is_some()).then_some(()));
        }
        let before = memory.to_vec();
        quiesce(&network, &mut driver);
        let after = memory.to_vec();
        let landed = after.iter().filter(|byte| **byte == 7).count();
        assert!(after[..landed].iter().all(|byte| *byte == 7), "seed {seed}: it is no prefix");
        let done = ops.iter().filter(|op| op.result() == Some(Ok(()))).count();
        assert!(done * LEN <= landed, "seed {seed}: a write that succeeded is not there");
        assert!(!closes || before == after, "seed {seed}: a write lands on a connection that was closed");
        late += usize::from(before != after);
        torn += usize::from(landed % LEN > 0);
    }
    assert!(late > 0 && torn > 0, "{late} were late, {torn} were torn");
}
