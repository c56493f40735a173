//! Tests of regions on nodes that share one device: every operation between two nodes, and a home that stands
//! still.

use std::thread;
use std::time::{Duration, Instant};

use plasmon::region::{Region, RegionOptions, Rights};
use plasmon::{CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{PATIENCE, Pattern, eventually, wait};

use super::{cluster, cluster_with, packets};
use crate::support::{LONG_LEASE, get, kind};

/// Size in bytes of the regions: more than travels in messages.
const LEN: usize = 300_000;

fn check(region: &Region, seed: u64) {
    let mut found = vec![0; LEN];
    region.read(0, &mut found).expect("read");
    Pattern(seed).check(&found);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn every_operation_on_a_region_crosses_the_device() {
    let cluster = cluster(2);
    let (client, other) = (cluster.client(0), cluster.client(1));
    let there = RegionOptions { node: Some(other.node()), ..RegionOptions::default() };
    let far = client.create_region("far", LEN as u64, &there).expect("there is room");
    let near = client.create_region("near", LEN as u64, &RegionOptions::default()).expect("there is room");
    let before = packets();
    far.write(0, &Pattern(1).bytes(LEN)).expect("write");
    check(&far, 1);
    assert!(packets() - before >= 2 * LEN as u64 / 4096, "too few packets for that many bytes");
    far.write(8, &[7; 8]).expect("write");
    let mut word = [0; 8];
    far.read(8, &mut word).expect("read");
    assert_eq!(word, [7; 8]);
    near.copy_from(0, &far, 0..LEN as u64).expect("copy");
    far.fill(0..LEN as u64, 0).expect("fill");
    assert_eq!([far.fetch_add(0, 5), far.swap(0, 9), far.compare_swap(0, 9, 1)], [Ok(0), Ok(5), Ok(9)]);
    assert_eq!([far.test_and_set(0), far.test_and_set(16)], [Ok(true), Ok(false)]);
    far.copy_from(0, &near, 0..LEN as u64).expect("copy");
    far.write(8, &Pattern(1).bytes(16)[8..]).expect("write");
    check(&far, 1);
    thread::scope(|scope| {
        let old = u64::from_le_bytes(Pattern(1).bytes(8).try_into().expect("eight bytes"));
        let waiter = scope.spawn({
            let far = &far;
            move || far.wait(0, old, PATIENCE)
        });
        eventually("it waits", || cluster.status(1).regions.waiting == 1);
        let local = other.map_region("far", Rights::ALL, None).expect("it is there");
        assert!(local.is_mapped());
        local.fetch_add(0, 1).expect("add");
        local.notify(0).expect("notify");
        assert_eq!(waiter.join().expect("no panic"), Ok(old.wrapping_add(1)));
        local.fetch_add(0, u64::MAX).expect("add");
    });
    let object = far.snapshot(ObjectId::random(), &CreateOptions::default()).expect("there is room");
    Pattern(1).check(get(&client, object).data());
    for to in [client.node(), other.node()] {
        far.move_to(to, PATIENCE).expect("there is room");
        check(&far, 1);
    }
    far.free().expect("free");
    near.free().expect("free");
    eventually("no memory is left", || (0..2).all(|node| cluster.status(node).regions.bytes == 0));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_home_that_stands_still_is_read_and_not_written() {
    let timeout = Duration::from_secs(3);
    let cluster = cluster_with(2, &LONG_LEASE);
    let client = cluster.client(0);
    let there = RegionOptions { node: Some(cluster.client(1).node()), ..RegionOptions::default() };
    let far = client.create_region("far", LEN as u64, &there).expect("there is room");
    far.write(0, &Pattern(1).bytes(LEN)).expect("write");
    // From now on this node knows where the bytes lie.
    check(&far, 1);
    cluster.pause(1);
    (0..3).for_each(|_| check(&far, 1));
    let brief = far.clone().with_timeout(timeout);
    let began = Instant::now();
    assert_eq!(kind(brief.read(0, &mut [0; 8])), ErrorKind::TimedOut, "a word is read by the home");
    assert_eq!(kind(brief.fetch_add(0, 0)), ErrorKind::OutcomeUnknown);
    assert_eq!(kind(brief.write(0, &Pattern(2).bytes(LEN)[..100_000])), ErrorKind::OutcomeUnknown);
    wait::ended_in_time("three operations", began, 3 * timeout);
    check(&far, 1);
    cluster.resume(1);
    // A write that was begun meanwhile is made now, or not at all.
    let last = Pattern(3).bytes(LEN);
    eventually("the home goes on", || far.write(0, &last).is_ok());
    let mut found = [0; 8];
    far.read(0, &mut found).expect("read");
    assert!([2, 3].into_iter().any(|seed: u64| found[..] == Pattern(seed).bytes(8)), "{found:?}");
}
