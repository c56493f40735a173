//! Tests of regions on nodes whose free memory lies in pieces: they are as good as any, wherever they are
//! read from, and leave nothing behind.

use plasmon::region::{Region, RegionOptions, Rights};
use plasmon::{Client, CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};

use crate::commands::{failure, json};
use crate::support::{MIB, get, kind};

/// Size in bytes of what is left in memory, and of the pieces that are free between.
const TOOTH: usize = MIB / 4;
/// Size in bytes of the regions: more than 32 pieces, and no whole pages.
pub(crate) const LEN: usize = 9 * MIB + 5;

fn node(cluster: &Cluster, number: usize) -> (Client, RegionOptions) {
    let client = cluster.client(number);
    let options = RegionOptions { node: Some(client.node()), ..RegionOptions::default() };
    (client, options)
}

/// Private object without bytes that were written: it takes its memory until it is dropped.
fn creation(client: &Client, len: usize) -> Result<plasmon::Creation, plasmon::Error> {
    let options = CreateOptions { rights: plasmon::Rights::Private, ..CreateOptions::default() };
    client.create(ObjectId::random(), len as u64, b"", &options)
}

/// Fills the memory of a client's node with objects of its user, and deletes every other one.
pub(crate) fn comb(client: &Client) -> Vec<plasmon::Creation> {
    let mut all = Vec::new();
    while let Ok(one) = creation(client, TOOTH) {
        all.push(one);
    }
    assert!(all.len() > 80, "{}", all.len());
    let mut nth = 0;
    all.retain(|_| {
        nth += 1;
        nth % 2 == 0
    });
    all
}

/// Bytes of a region in pieces, as all clients with handles have to see them.
fn check(region: &Region, wanted: &[u8]) {
    let mut found = vec![0; wanted.len()];
    region.read(0, &mut found).expect("read");
    assert!(found == wanted, "all bytes of {}", region.name());
}

/// Uses a region all over, across the edges of its pages and of every so many pieces.
fn exercise(region: &Region, whole: &mut [u8], step: usize) {
    let edges = (1..LEN / TOOTH).step_by(step).map(|nth| nth * TOOTH);
    for (nth, edge) in edges.chain([4096, 3 * 4096]).enumerate() {
        for (before, size) in [(1, 2), (4, 8), (50, 319), (4000, 9000), (TOOTH - 9, TOOTH + 18)] {
            let (begin, data) = (edge.saturating_sub(before), Pattern(nth as u64).bytes(size));
            let size = size.min(LEN - begin);
            region.write(begin as u64, &data[..size]).expect("write");
            whole[begin..begin + size].copy_from_slice(&data[..size]);
            let mut found = vec![0; size];
            region.read(begin as u64, &mut found).expect("read");
            assert!(found == data[..size], "{size} bytes at {begin} of {}", region.name());
        }
        for word in [edge - 8, edge] {
            let at = word..word + 8;
            let value = u64::from_le_bytes(whole[at.clone()].try_into().expect("a word"));
            assert_eq!(region.fetch_add(word as u64, 3).expect("add"), value);
            let next = value.wrapping_add(3);
            assert_eq!(region.compare_swap(word as u64, next, value ^ 1).expect("swap"), next);
            whole[at].copy_from_slice(&(value ^ 1).to_le_bytes());
        }
    }
    let middle = LEN / 2..LEN / 2 + 3 * TOOTH;
    region.fill(middle.start as u64..middle.end as u64, 0x5a).expect("fill");
    whole[middle].fill(0x5a);
    region.copy_from(100, region, 0..3 * MIB as u64).expect("copy");
    whole.copy_within(0..3 * MIB, 100);
    check(region, whole);
}

#[test]
fn a_region_in_pieces_is_as_good_as_any() {
    let cluster = Cluster::builder().nodes(2).memory("64MiB").start();
    let (client, _) = node(&cluster, 0);
    let other = cluster.client(1);
    let buffers = [&client, &other].map(|client| client.buffer(3 * MIB, true, None).expect("there is room"));
    let teeth = comb(&client);
    let used = cluster.status(0).memory.used;
    let region = client
        .create_region("r", LEN as u64, &RegionOptions::default())
        .expect("there is room")
        .with_timeout(PATIENCE);
    assert!(region.is_mapped());
    let info = region.info().expect("it is there");
    assert!(info.pieces >= 32 && info.mappable && !info.crowded_out, "{info:?}");
    let shown = json(&cluster, 0, &["region", "info", "r"]);
    assert_eq!((shown["pieces"].as_u64(), &shown["mappable"]), (Some(info.pieces.into()), &true.into()));
    assert_eq!(cluster.status(0).regions.in_pieces, 1);
    let mut whole = vec![0; LEN];
    check(&region, &whole);
    exercise(&region, &mut whole, 1);
    // By one more process of the host, of which a handle can read only; by calls; and from another host.
    let second =
        cluster.client(0).map_region("r", Rights::READ, None).expect("it is there").with_timeout(PATIENCE);
    assert!(second.is_mapped());
    check(&second, &whole);
    assert_eq!(kind(second.write(0, &[1])), ErrorKind::NotAllowed);
    let far = other.map_region("r", Rights::ALL, None).expect("it is there").with_timeout(PATIENCE);
    check(&far, &whole);
    exercise(&far, &mut whole, 3);
    check(&region, &whole);
    // A view has all bytes side by side.
    let view = region.view().expect("it is mapped");
    let words = view.words().expect("it is writable");
    assert_eq!((view.len(), words.len()), (LEN, LEN / 8));
    for edge in (1..LEN / TOOTH).map(|nth| nth * TOOTH / 8) {
        let before = words[edge].fetch_add(9, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(far.fetch_add(8 * edge as u64, 1), Ok(before.wrapping_add(9)));
        whole[8 * edge..8 * edge + 8].copy_from_slice(&before.wrapping_add(10).to_le_bytes());
    }
    drop(view);
    // Without a copy, from and to memory that the nodes lend.
    for (mut buffer, region) in buffers.into_iter().zip([&region, &far]) {
        region.read_to(77, &mut buffer, 0..3 * MIB).expect("read");
        assert!(buffer.as_slice() == &whole[77..77 + 3 * MIB]);
        region.write_from(5 * MIB as u64 - 1, &buffer, 1..3 * MIB).expect("write");
        whole.copy_within(78..77 + 3 * MIB, 5 * MIB - 1);
        check(region, &whole);
    }
    let id = far.snapshot(ObjectId::random(), &CreateOptions::default());
    let id = id.expect_err("the home has no room for an object of so many bytes in one piece");
    assert_eq!(id.kind(), ErrorKind::Full);
    drop(teeth);
    let id = far.snapshot(ObjectId::random(), &CreateOptions::default()).expect("there is room");
    assert!(get(&other, id).data() == whole);
    client.delete(&[id]).expect("it is there");
    region.free().expect("free");
    assert_eq!(kind(far.read(0, &mut [0; 8])), ErrorKind::Freed);
    drop((far, second));
    eventually("all memory is free", || {
        let status = cluster.status(0);
        status.regions.bytes == 0 && status.regions.in_pieces == 0 && status.memory.used < used / 2
    });
    let all = client.create_region("all", 31 * MIB as u64, &RegionOptions::default());
    assert_eq!(all.expect("there is room").info().expect("it is there").pieces, 1);
}

#[test]
fn a_region_moves_from_pieces_to_pieces() {
    let cluster = Cluster::builder().nodes(3).memory("64MiB").start();
    let nodes: Vec<_> = (0..3).map(|number| node(&cluster, number)).collect();
    let teeth: Vec<_> = nodes[..2].iter().map(|(client, _)| comb(client)).collect();
    let region =
        nodes[0].0.create_region("r", LEN as u64, &nodes[0].1).expect("there is room").with_timeout(PATIENCE);
    let far = nodes[2].0.map_region("r", Rights::ALL, None).expect("it is there").with_timeout(PATIENCE);
    let mut whole = vec![0; LEN];
    exercise(&far, &mut whole, 9);
    for (to, in_pieces) in [(1, true), (2, false), (0, true)] {
        region.move_to(nodes[to].0.node(), std::time::Duration::from_secs(60)).expect("there is room");
        let info = far.info().expect("it is there");
        assert_eq!((info.home, info.pieces > 1), (nodes[to].0.node(), in_pieces), "{info:?}");
        check(&region, &whole);
        check(&far, &whole);
        exercise(&region, &mut whole, 9);
    }
    region.free().expect("free");
    drop(far);
    drop(teeth);
    eventually("no memory is left", || (0..3).all(|node| cluster.status(node).regions.bytes == 0));
}

#[test]
fn a_full_store_gives_no_pieces_and_keeps_none() {
    let cluster = Cluster::builder().memory("64MiB").start();
    let client = cluster.client(0);
    let teeth = comb(&client);
    let before = cluster.status(0).memory.used;
    // Everything that is free, and a byte beyond what regions may have.
    let limit = cluster.status(0).regions.limit;
    assert_eq!(kind(client.create_region("r", limit + 1, &RegionOptions::default())), ErrorKind::TooLarge);
    let free = cluster.status(0).memory.free;
    let full = client.create_region("r", free.min(limit) - 4096, &RegionOptions::default());
    let region = full.or_else(|_| {
        // Some pages are of other users' segments, or of none.
        client.create_region("r", free.min(limit) - 4 * MIB as u64, &RegionOptions::default())
    });
    let region = region.expect("nearly all of it can be had");
    assert!(region.info().expect("it is there").pieces > 100);
    region.fill(0..region.len(), 7).expect("fill");
    let rest = client.create_region("s", 8 * MIB as u64, &RegionOptions::default());
    assert_eq!(rest.err().map(|error| error.kind()), Some(ErrorKind::Full));
    region.free().expect("free");
    eventually("all is as before", || cluster.status(0).memory.used == before);
    drop(teeth);
}

#[test]
fn a_region_for_which_no_mappable_memory_is_left_is_reached_by_calls() {
    let cluster = Cluster::builder().nodes(2).memory("64MiB").args(&["--region-memory", "64MiB"]).start();
    let client = cluster.client(0);
    // All segments are the engine's, and most of each is free.
    let hidden = RegionOptions { mappable: false, ..RegionOptions::default() };
    let mut all = Vec::new();
    while let Ok(region) = client.create_region(&format!("hidden-{}", all.len()), TOOTH as u64, &hidden) {
        all.push(region);
    }
    let (_kept, freed): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(nth, _)| nth % 4 == 0);
    freed.into_iter().for_each(|(_, region)| region.free().expect("free"));
    eventually("there is room", || cluster.status(0).memory.free > 4 * MIB as u64);
    let region = client
        .create_region("r", 2 * MIB as u64, &RegionOptions::default())
        .expect("there is room")
        .with_timeout(PATIENCE);
    assert!(!region.is_mapped());
    assert_eq!(kind(region.view()), ErrorKind::NotHere);
    let info = region.info().expect("it is there");
    assert!(!info.mappable && info.crowded_out, "{info:?}");
    assert_eq!(json(&cluster, 1, &["region", "info", "r"])["crowded_out"], true);
    assert_eq!(cluster.status(0).regions.crowded_out, 1);
    let data = Pattern(2).bytes(2 * MIB);
    region.write(0, &data).expect("write");
    let far =
        cluster.client(1).map_region("r", Rights::ALL, None).expect("it is there").with_timeout(PATIENCE);
    check(&far, &data);
    // On a node that has the memory for it, it is mapped.
    far.move_to(cluster.client(1).node(), std::time::Duration::from_secs(60)).expect("there is room");
    let near =
        cluster.client(1).map_region("r", Rights::ALL, None).expect("it is there").with_timeout(PATIENCE);
    assert!(near.is_mapped() && near.info().expect("it is there").mappable);
    check(&near, &data);
}

#[test]
fn a_user_may_have_so_many_regions() {
    let cluster = Cluster::builder().args(&["--user-regions", "2"]).start();
    let client = cluster.client(0);
    let make = |name| client.create_region(name, 8, &RegionOptions::default());
    let first = make("a").expect("it is the first");
    make("b").expect("it is the second");
    let error = make("c").expect_err("two are the most");
    assert!(error.kind() == ErrorKind::Full && error.to_string().contains("--user-regions"), "{error}");
    assert_eq!(failure(&cluster, 0, &["region", "create", "c", "8"]).0, 6);
    first.free().expect("free");
    eventually("there is room for another", || make("c").is_ok());
    assert_eq!(cluster.status(0).regions.user_limit, 2);
}
