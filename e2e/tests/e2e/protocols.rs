//! Tests of all ways in which an object can be fetched, by means of the counters.

use std::os::fd::OwnedFd;
use std::time::Duration;

use plasmon::status::ProtocolStatus;
use plasmon::transfer::Calibration;
use plasmon::{ObjectId, Protocol};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::support::{MIB, get, has_served, put};

/// Sizes in bytes: some fit a message, some do not, and some take several reads.
const SIZES: [usize; 8] = [0, 1, 4095, 15 << 10, 16 << 10, 100_000, MIB, 5 * MIB + 3];

fn count(cluster: &Cluster, node: usize, protocol: &str) -> ProtocolStatus {
    cluster.status(node).transfer.protocols.get(protocol).cloned().unwrap_or_default()
}

/// Gets objects of all sizes from node 0 on node 1 and checks every byte. Returns their number and bytes.
fn get_all(cluster: &Cluster) -> (u64, u64) {
    let (holder, reader) = (cluster.client(0), cluster.client(1));
    for (seed, len) in SIZES.into_iter().enumerate() {
        let (pattern, metadata) = (Pattern(seed as u64), Pattern(99).bytes(seed * 10));
        let (id, data) = (ObjectId::random(), pattern.bytes(len));
        holder.put(id, &data, &metadata, &Default::default()).expect("put");
        let object = get(&reader, id);
        assert!(object.data() == data && object.metadata() == metadata, "{len} bytes");
    }
    let metadata: usize = (0..SIZES.len()).map(|seed| seed * 10).sum();
    (SIZES.len() as u64, (SIZES.iter().sum::<usize>() + metadata) as u64)
}

fn cluster(protocol: Protocol) -> Cluster {
    Cluster::builder().nodes(2).memory("128MiB").args(&["--protocol", protocol.name()]).start()
}

#[test]
fn nodes_with_any_numbers_of_lanes_read_from_each_other() {
    let mut cluster = Cluster::builder().nodes(1).memory("128MiB").start();
    cluster.add_node_with(&["--lanes", "4"]);
    cluster.add_node_with(&["--lanes", "3"]);
    assert_eq!([0, 1, 2].map(|node| cluster.status(node).fabric.bulk_lanes), [1, 4, 3]);
    for (holder, reader) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
        let (holder, reader) = (cluster.client(holder), cluster.client(reader));
        let ids = SIZES.map(|len| put(&holder, Pattern(len as u64), len));
        // The second time, those that were read are read where they were, with a stamp behind them.
        for _ in 0..2 {
            let got = reader.get(&ids, Some(PATIENCE)).expect("get");
            for (len, object) in SIZES.into_iter().zip(got) {
                Pattern(len as u64).check(object.expect("it comes").data());
            }
            reader.evict(u64::MAX).expect("evict");
        }
        holder.delete(&ids).expect("delete");
    }
}

#[test]
fn messages_carry_objects_of_any_size() {
    let cluster = cluster(Protocol::Send);
    let (objects, bytes) = get_all(&cluster);
    let (here, there) = (count(&cluster, 1, "send"), count(&cluster, 0, "send"));
    assert_eq!((here.fetched, here.fetched_bytes, here.copied_bytes), (objects, bytes, bytes));
    assert!(has_served(&there, &here), "{there:?} {here:?}");
    assert_eq!((here.reads, here.registrations + there.registrations), (0, 0));
    eventually("no lease is left", || cluster.status(0).transfer.leases == 0);
}

#[test]
fn an_object_comes_in_messages_up_to_a_limit() {
    const LIMIT: usize = 48 << 10;
    let cluster = Cluster::builder().nodes(2).memory("128MiB").args(&["--push", "messages"]).start();
    let (holder, reader) = (cluster.client(0), cluster.client(1));
    let sizes = [(0, 1), (100, 1), (16 << 10, 2), (30_000, 2), (LIMIT - 10, 4), (LIMIT - 9, 0)];
    for (seed, (len, messages)) in sizes.into_iter().enumerate() {
        let (data, metadata) = (Pattern(seed as u64).bytes(len), Pattern(99).bytes(10));
        let id = ObjectId::random();
        holder.put(id, &data, &metadata, &Default::default()).expect("put");
        let object = get(&reader, id);
        assert!(object.data() == data && object.metadata() == metadata, "{len} bytes");
        let fetched = reader.explain(id).expect("explain").fetched.expect("it was fetched");
        let (protocol, why) = match messages {
            0 => ("read", "it is too large for messages".to_owned()),
            1 => ("eager", "it fits a message".to_owned()),
            _ => ("eager", format!("it fits {messages} messages")),
        };
        assert_eq!((fetched.protocol.as_str(), fetched.why), (protocol, why), "{len} bytes");
    }
}

#[test]
fn objects_of_medium_size_are_pushed_to_a_node_that_has_read_one() {
    for (push, others) in [("auto", "push"), ("messages", "read")] {
        let cluster = Cluster::builder().nodes(2).memory("128MiB").args(&["--push", push]).start();
        let (holder, reader) = (cluster.client(0), cluster.client(1));
        let sizes = [100_000, (48 << 10) + 1, 64 << 10, (64 << 10) + 1, 200_001, (256 << 10) - 10];
        for (seed, len) in [sizes, sizes].concat().into_iter().enumerate() {
            let (data, metadata) = (Pattern(seed as u64).bytes(len), Pattern(99).bytes(10));
            let id = ObjectId::random();
            holder.put(id, &data, &metadata, &Default::default()).expect("put");
            let object = get(&reader, id);
            assert!(object.data() == data && object.metadata() == metadata, "{len} bytes");
            let fetched = reader.explain(id).expect("explain").fetched.expect("it was fetched");
            let wanted = if seed == 0 { "read" } else { others };
            let copied = if wanted == "push" { len as u64 + 10 } else { 0 };
            assert_eq!((fetched.protocol.as_str(), fetched.copied_bytes), (wanted, copied), "{len} bytes");
        }
        let (here, there) = (count(&cluster, 1, others), count(&cluster, 0, others));
        assert!(there.served >= here.fetched && there.served_bytes >= here.fetched_bytes);
        assert_eq!(cluster.status(1).transfer.fetch_failures, 0);
        eventually("no lease is left", || cluster.status(0).transfer.leases == 0);
    }
}

#[test]
fn sockets_carry_objects_of_any_size() {
    let cluster = cluster(Protocol::Socket);
    let (objects, bytes) = get_all(&cluster);
    let (here, there) = (count(&cluster, 1, "socket"), count(&cluster, 0, "socket"));
    assert_eq!((here.fetched, here.fetched_bytes, here.copied_bytes), (objects, bytes, bytes));
    assert_eq!((here.reads, here.registrations + there.registrations), (0, 0));
    eventually("the holder has counted", || has_served(&count(&cluster, 0, "socket"), &here));
    eventually("no lease is left", || cluster.status(0).transfer.leases == 0);
}

#[test]
fn a_get_that_gives_up_in_the_middle_of_the_messages_leaves_nothing() {
    let cluster = cluster(Protocol::Send);
    let (holder, reader) = (cluster.client(0), cluster.client(1));
    let id = put(&holder, Pattern(1), 24 * MIB);
    let mut gave_up = 0;
    for patience in (1..200).map(Duration::from_millis) {
        let result = reader.get(&[id], Some(patience)).expect("get").remove(0);
        gave_up += usize::from(result.is_err());
        drop(result);
        reader.evict(u64::MAX).expect("evict");
    }
    assert!(gave_up > 0, "all were faster: this tests nothing");
    eventually("its memory is free", || cluster.status(1).memory.used == 0);
    eventually("no lease is left", || cluster.status(0).transfer.leases == 0);
    Pattern(1).check(get(&reader, id).data());
}

#[test]
fn reads_copy_nothing_and_register_nothing() {
    let cluster = cluster(Protocol::Read);
    let registrations = |node| cluster.status(node).fabric.registrations;
    let before = (registrations(0), registrations(1));
    let (objects, bytes) = get_all(&cluster);
    let (here, there) = (count(&cluster, 1, "read"), count(&cluster, 0, "read"));
    assert_eq!((here.fetched, here.fetched_bytes, here.copied_bytes), (objects, bytes, 0));
    assert!(has_served(&there, &here), "{there:?} {here:?}");
    assert!(here.reads >= objects - 1, "{here:?}");
    assert!(registrations(0) <= before.0 + 2 && registrations(1) <= before.1 + 2, "not one a transfer");
    eventually("no lease is left", || cluster.status(0).transfer.leases == 0);
}

#[test]
fn reads_can_register_both_sides_for_each_transfer() {
    let cluster = cluster(Protocol::ReadRegister);
    let (objects, bytes) = get_all(&cluster);
    let (here, there) = (count(&cluster, 1, "read-register"), count(&cluster, 0, "read-register"));
    assert_eq!((here.fetched, here.fetched_bytes, here.copied_bytes), (objects, bytes, 0));
    assert!(has_served(&there, &here), "{there:?} {here:?}");
    // All but the empty one, and those over a segment's end twice.
    assert!(here.registrations >= objects - 1 && there.registrations >= objects - 1, "{here:?} {there:?}");
    eventually("no lease is left", || cluster.status(0).transfer.leases == 0);
}

/// File in memory that cannot shrink.
fn memory(len: usize) -> OwnedFd {
    let file = memfd_create("own", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&file, len as u64).expect("truncate");
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("seal");
    file
}

#[test]
fn every_protocol_brings_data_into_memory_that_clients_give() {
    const AT: usize = 64;
    const UNTOUCHED: u8 = 0xa5;
    // Metadata stays behind: none, within a message, and more than a socket gives at a time.
    let objects = [(1, 10), (4095, 0), (15 << 10, 5000), (100_000, 9000), (5 * MIB + 3, 40_000)];
    for protocol in Protocol::ALL.iter().copied() {
        let cluster = cluster(protocol);
        let (holder, reader) = (cluster.client(0), cluster.client(1));
        let mut lent = reader.buffer(6 * MIB, false, None).expect("buffer");
        let mut own = reader.register(memory(6 * MIB)).expect("register");
        for (seed, (len, metadata)) in objects.into_iter().enumerate() {
            let (pattern, metadata) = (Pattern(seed as u64), Pattern(99).bytes(metadata));
            for (kind, scratch) in [("lent", &mut lent), ("own", &mut own)] {
                let what = format!("{len} bytes by {protocol} into {kind} memory");
                let id = ObjectId::random();
                holder.put(id, &pattern.bytes(len), &metadata, &Default::default()).expect("put");
                scratch.as_mut_slice().fill(UNTOUCHED);
                let into = &mut scratch.as_mut_slice()[AT..AT + len];
                assert_eq!(reader.get_into(id, into, Some(PATIENCE)).expect(&what), len);
                let (before, rest) = scratch.as_slice().split_at(AT);
                pattern.check(&rest[..len]);
                assert!(before.iter().chain(&rest[len..]).all(|byte| *byte == UNTOUCHED), "{what}");
                let explained = reader.explain(id).expect("explain");
                let fetched = explained.fetched.expect("it was fetched");
                assert_eq!((explained.here.as_str(), fetched.into.as_str()), ("absent", "given"), "{what}");
                if protocol != Protocol::Auto {
                    assert_eq!(fetched.protocol, protocol.name(), "{what}");
                }
            }
        }
        eventually("no lease is left", || cluster.status(0).transfer.leases == 0);
    }
}

#[test]
fn what_was_fetched_before_is_read_without_asking_anybody() {
    let cluster = cluster(Protocol::Auto);
    let (holder, reader) = (cluster.client(0), cluster.client(1));
    let large = put(&holder, Pattern(1), MIB);
    let small = put(&holder, Pattern(2), 100);
    let medium = put(&holder, Pattern(5), 100 << 10);
    // The first one of its size is read, and a window opened for the next ones.
    drop(get(&reader, put(&holder, Pattern(6), 100 << 10)));
    drop((get(&reader, large), get(&reader, medium), get(&reader, small)));
    assert_eq!(count(&cluster, 1, "push").fetched, 1);
    reader.evict(u64::MAX).expect("evict");
    eventually("no lease is left", || cluster.status(0).transfer.leases == 0);

    let before = cluster.status(0).transfer;
    Pattern(1).check(get(&reader, large).data());
    Pattern(5).check(get(&reader, medium).data());
    let after = cluster.status(0).transfer;
    assert_eq!(count(&cluster, 1, "read-first").fetched, 2);
    assert_eq!(
        (after.leases, &after.protocols),
        (before.leases, &before.protocols),
        "the holder did nothing"
    );
    Pattern(2).check(get(&reader, small).data());
    assert_eq!(count(&cluster, 1, "eager").fetched, 2);

    // The places have other bytes now: what was known of them is of no use.
    reader.evict(u64::MAX).expect("evict");
    holder.delete(&[large, medium]).expect("delete");
    eventually("the memory is free", || cluster.status(0).memory.used < MIB as u64);
    let other = put(&holder, Pattern(3), MIB);
    let pattern = Pattern(4);
    holder.put(large, &pattern.bytes(MIB), b"", &Default::default()).expect("put anew");
    holder.put(medium, &pattern.bytes(100 << 10), b"", &Default::default()).expect("put anew");
    pattern.check(get(&reader, large).data());
    pattern.check(get(&reader, medium).data());
    Pattern(3).check(get(&reader, other).data());
    assert_eq!(count(&cluster, 1, "read-first").fetched, 2);
}

#[test]
fn a_large_object_comes_from_all_who_hold_it() {
    let cluster = Cluster::builder().nodes(4).memory("128MiB").start();
    let (len, pattern) = (40 * MIB + 5, Pattern(7));
    let id = put(&cluster.client(0), pattern, len);
    let second = get(&cluster.client(1), id);
    pattern.check(second.data());
    let third = get(&cluster.client(2), id);
    pattern.check(third.data());
    pattern.check(get(&cluster.client(3), id).data());
    let striped: u64 = (2..4).map(|node| count(&cluster, node, "striped-read").fetched).sum();
    assert!(striped >= 1, "{:?}", cluster.status(3).transfer);
    (0..4).for_each(|node| eventually("no lease is left", || cluster.status(node).transfer.leases == 0));
}

#[test]
fn what_is_calibrated_is_used_and_kept() {
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let peer = cluster.status(0).node.parse().expect("a node id");
    let calibration = cluster.client(1).calibrate(peer).expect("calibrate");
    assert!(calibration.small.len() > 3 && calibration.large.len() > 3, "{calibration:?}");
    assert!(calibration.small.iter().all(|point| point.eager_us > 0.0 && point.read_us > 0.0));
    let fastest = calibration.large.iter().min_by(|a, b| a.us.total_cmp(&b.us)).expect("points");
    assert_eq!((calibration.chunk, calibration.window), (fastest.chunk, fastest.window));
    eventually("the memory went back", || (0..2).all(|node| cluster.status(node).memory.used == 0));

    let path = cluster.folder().join("plasmon/calibration.json");
    let kept: Vec<Calibration> =
        serde_json::from_slice(&std::fs::read(path).expect("it is kept")).expect("it is JSON");
    assert_eq!(kept, [calibration]);

    let unknown = cluster.client(1).calibrate(plasmon::NodeId::random()).expect_err("nobody");
    assert!(unknown.to_string().contains("not a member"), "{unknown}");
}

#[test]
fn objects_come_ahead_and_the_node_says_how() {
    let cluster = Cluster::builder().nodes(3).start();
    let ids: Vec<_> = (0..20).map(|seed| put(&cluster.client(0), Pattern(seed), 100_000)).collect();
    let reader = cluster.client(1);
    let later = ObjectId::random();
    reader.prefetch(&ids, PATIENCE).expect("prefetch");
    reader.prefetch(&[later], PATIENCE).expect("prefetch");
    // The prefetch goes on without the client that asked for it.
    drop(reader);
    // All but the first may be pushed.
    let come = || ["read", "push"].map(|protocol| count(&cluster, 1, protocol).fetched).iter().sum::<u64>();
    eventually("they came", || come() == 20);
    let pattern = Pattern(99);
    cluster.client(2).put(later, &pattern.bytes(10), b"", &Default::default()).expect("put");
    eventually("so did what was put later", || count(&cluster, 1, "eager").fetched == 1);
    eventually("both are known", || cluster.client(2).locations(later).expect("locations").len() == 2);

    let reader = cluster.client(1);
    let explained = reader.explain(ids[3]).expect("explain");
    let fetched = explained.fetched.expect("it was fetched");
    assert_eq!(explained.here, "cached");
    assert!(["read", "push"].contains(&fetched.protocol.as_str()), "{}", fetched.protocol);
    assert_eq!(fetched.holders, [cluster.status(0).node]);
    let status = cluster.status(1);
    let (misses, busy) = (status.transfer.fetch_failures, status.transfer.fetching);
    assert_eq!((misses, busy), (0, 0));
}

#[test]
fn the_command_explains_in_words() {
    let cluster = Cluster::builder().nodes(2).start();
    let id = put(&cluster.client(0), Pattern(1), 2 * MIB).to_string();
    let run = |node: usize, args: &[&str]| {
        let output = cluster
            .command(node, &plasmon_e2e::binary())
            .arg("--socket")
            .arg(cluster.socket(node))
            .args(args)
            .output();
        let output = output.expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(run(1, &["prefetch", &id]).0, Some(0));
    assert_eq!(run(1, &["wait", &id]).0, Some(0));
    let (code, text) = run(1, &["explain", &id]);
    assert!(code == Some(0) && text.contains("read over") && text.contains("0 registrations"), "{text}");
    let (code, text) = run(1, &["locations", &id]);
    assert!(code == Some(0) && text.contains("primary"), "{text}");
    assert_eq!(run(1, &["locations", "nothing"]).0, Some(3));
}
