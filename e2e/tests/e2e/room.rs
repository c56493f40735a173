//! Tests of a full store: objects that do not fit are refused, and no sealed object is lost.

use std::fs;
use std::process::Command;

use plasmon::wire::{Reply, Request};
use plasmon::{Client, CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, Pattern, binary, eventually};
use rustix::process::{Pid, Resource, Rlimit, geteuid, getrlimit, prlimit};

use crate::raw::Raw;
use crate::support::{MIB, get, kind, put, try_get, try_put};

#[test]
fn an_object_larger_than_the_store_is_refused() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    for size in [65 * MIB as u64, 1 << 40, u64::MAX] {
        let result = client.create(ObjectId::random(), size, b"", &CreateOptions::default());
        assert_eq!(kind(result), ErrorKind::TooLarge, "{size}");
    }
    assert_eq!(cluster.status(0).memory.used, 0);
    Pattern(1).check(get(&client, put(&client, Pattern(1), MIB)).data());
}

#[test]
fn a_refusal_of_a_large_object_names_the_object_and_the_node() {
    let mut cluster = Cluster::builder().start();
    let small = cluster.add_node_with(&["--capacity", "8MiB"]);
    let (client, node) = (cluster.client(small), cluster.client(small).node().to_string());
    let new = ObjectId::random();
    let refusals = [
        client.create(new, 9 * MIB as u64, b"", &CreateOptions::default()).map(drop),
        try_get(&client, put(&cluster.client(0), Pattern(1), 9 * MIB)).map(drop),
    ];
    for (refusal, what) in refusals.into_iter().zip(["cannot create object", "cannot fetch object"]) {
        let error = refusal.expect_err("it does not fit");
        let id = error.id().expect("it is about an object").to_string();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        for told in [what, &id, &node, "9.0 MiB", "8.0 MiB", "--capacity"] {
            assert!(error.message().contains(told), "no {told} in {error}");
        }
    }
}

#[test]
fn a_full_store_refuses_and_keeps_what_it_has() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let mut ids = Vec::new();
    let refusal = loop {
        let (id, seed) = (ObjectId::random(), ids.len() as u64);
        match try_put(&client, id, Pattern(seed), 5 * MIB) {
            Ok(()) => ids.push(id),
            Err(error) => break error,
        }
        assert!(ids.len() <= 12, "more was put than fits");
    };
    assert_eq!(refusal.kind(), ErrorKind::Full, "{refusal}");
    assert!(ids.len() >= 11, "only {} of 5 MiB fit in 64", ids.len());
    let all_there = |ids: &[ObjectId]| {
        for (seed, id) in ids.iter().enumerate() {
            Pattern(seed as u64).check(get(&client, *id).data());
        }
    };
    all_there(&ids);

    // One goes, one comes.
    let last = ids.pop().expect("some fit");
    client.delete(&[last]).expect("delete");
    ids.push(put(&client, Pattern(ids.len() as u64), 5 * MIB));
    all_there(&ids);
}

#[test]
fn a_refusal_counts_what_is_held_and_names_who_has_it_pinned() {
    let cluster = Cluster::builder().start();
    let (maker, reader) = (cluster.client(0), cluster.client(0));
    maker.set_options(Some("the maker"), None).expect("options");
    reader.set_options(Some("the reader"), None).expect("options");
    let ids: Vec<_> = (0..3).map(|seed| put(&maker, Pattern(seed), 20 * MIB)).collect();
    let refusal = || {
        let refused = try_put(&maker, ObjectId::random(), Pattern(9), 20 * MIB).expect_err("it is full");
        assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
        refused.message().to_owned()
    };
    let says = |parts: &[&str]| {
        let message = refusal();
        assert!(message.lines().all(|line| line.len() < 200), "{message}");
        parts.iter().for_each(|part| assert!(message.contains(part), "no {part:?} in {message:?}"));
        assert!(!message.contains("80.0 MiB"), "the refused object counts: {message}");
    };
    let user = format!("user {} 60.0 MiB", geteuid().as_raw());
    says(&[
        "the store is full: 20.0 MiB wanted, 4.0 MiB free\n",
        "  primary: 60.0 MiB\n",
        "  pinned: nothing",
    ]);
    says(&[&status_of_memory(&cluster), &user]);

    let held = [get(&reader, ids[0]), get(&reader, ids[1])];
    says(&["  pinned: 40.0 MiB; by client \"the reader\""]);
    maker.delete(&ids[..1]).expect("delete");
    says(&[
        "  primary: 40.0 MiB\n  deleted but pinned: 20.0 MiB\n",
        "  pinned: 20.0 MiB, and 20.0 MiB that are deleted; by client",
    ]);
    let objects = cluster.status(0).objects;
    assert_eq!((objects.pinned_bytes, objects.doomed_bytes), (20 * MIB as u64, 20 * MIB as u64));
    let last = get(&maker, ids[2]);
    says(&[
        "  pinned: 40.0 MiB, which is all that is sealed, and 20.0 MiB",
        "\"the reader\" (process",
        "\"the maker\"",
    ]);
    drop((held, last));
}

/// The part of `plasmon status` on a node's memory, from the bytes that are used to the largest free piece.
fn status_of_memory(cluster: &Cluster) -> String {
    let mut command = Command::new(binary());
    let output = command.arg("status").arg("--socket").arg(cluster.socket(0)).output().expect("plasmon runs");
    let text = String::from_utf8(output.stdout).expect("it is text");
    let line =
        text.lines().find_map(|line| line.strip_prefix("memory    ")).expect("it has a line for memory");
    line.splitn(3, ", ").take(2).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_refusal_says_that_free_memory_lies_in_pieces() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let ids: Vec<_> = (0..16).map(|seed| put(&client, Pattern(seed), 4 * MIB)).collect();
    let held: Vec<_> = ids.iter().step_by(2).map(|id| get(&client, *id)).collect();
    let rest: Vec<_> = ids.iter().skip(1).step_by(2).copied().collect();
    client.delete(&rest).expect("delete");
    let refused =
        try_put(&client, ObjectId::random(), Pattern(9), 20 * MIB).expect_err("no piece is large enough");
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    let said = "the store is full: 20.0 MiB wanted, 32.0 MiB free, but in pieces of at most 4.0 MiB";
    assert!(refused.to_string().ends_with(said), "the first line stands alone: {refused}");
    let (message, status) = (refused.message(), status_of_memory(&cluster));
    assert!(
        message.contains(&status) && status.ends_with("largest free piece 4.0 MiB"),
        "{status}: {message}"
    );
    let mut command = Command::new(binary());
    fs::write(cluster.folder().join("in"), vec![0; 20 * MIB]).expect("the folder is ours");
    let output =
        command.arg("put").arg(cluster.folder().join("in")).arg("--socket").arg(cluster.socket(0)).output();
    let told = String::from_utf8(output.expect("plasmon runs").stderr).expect("it is text");
    assert!(told.contains(&format!("{said}\n  memory: ")) && told.lines().count() > 4, "{told}");
    drop(held);
}

#[test]
fn cached_replicas_make_room_and_primaries_do_not() {
    let cluster = Cluster::builder().nodes(2).start();
    let (here, there) = (cluster.client(0), cluster.client(1));
    let remote: Vec<_> = (0..3).map(|seed| put(&there, Pattern(seed), 15 * MIB)).collect();
    for (seed, id) in remote.iter().enumerate() {
        Pattern(seed as u64).check(get(&here, *id).data());
    }
    assert_eq!(cluster.status(0).objects.cached, 3);

    let own: Vec<_> = (10..14).map(|seed| put(&here, Pattern(seed), 15 * MIB)).collect();
    assert!(cluster.status(0).objects.evicted >= 3);
    // No room at all for a replica: the get says so, and nothing makes way.
    assert_eq!(kind(crate::support::try_get(&here, remote[0])), ErrorKind::Full);
    for (seed, id) in (10..).zip(&own) {
        Pattern(seed).check(get(&here, *id).data());
    }
    here.delete(&own).expect("delete");
    for (seed, id) in remote.iter().enumerate() {
        Pattern(seed as u64).check(get(&here, *id).data());
    }
}

#[test]
fn pinned_replicas_do_not_make_room() {
    let cluster = Cluster::builder().nodes(2).start();
    let (here, there) = (cluster.client(0), cluster.client(1));
    let held = get(&here, put(&there, Pattern(1), 40 * MIB));
    assert_eq!(kind(try_put(&here, ObjectId::random(), Pattern(2), 40 * MIB)), ErrorKind::Full);
    Pattern(1).check(held.data());
    drop(held);
    // The release travels behind the drop.
    eventually("the replica made room", || try_put(&here, ObjectId::random(), Pattern(2), 40 * MIB).is_ok());
}

#[test]
fn an_id_is_created_once() {
    let cluster = Cluster::builder().start();
    let (one, other) = (cluster.client(0), cluster.client(0));
    for len in [0, 10, 10 * MIB] {
        let id = ObjectId::random();
        let mut creation = one.create(id, len as u64, b"", &CreateOptions::default()).expect("create");
        assert_eq!(kind(try_put(&other, id, Pattern(2), len)), ErrorKind::Exists);
        Pattern(1).fill(creation.as_mut_slice());
        creation.seal().expect("seal");
        assert_eq!(kind(try_put(&other, id, Pattern(2), len)), ErrorKind::Exists);
        Pattern(1).check(get(&other, id).data());
    }
}

#[test]
fn an_aborted_creation_was_never_there() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    for len in [10, 10 * MIB as u64] {
        let id = ObjectId::random();
        client.create(id, len, b"", &CreateOptions::default()).expect("create").abort().expect("abort");
        assert_eq!(cluster.status(0).memory.used, 0);
        try_put(&client, id, Pattern(1), 10).expect("the id is free");
        client.delete(&[id]).expect("delete");
    }
}

#[test]
fn free_memory_in_pieces_is_put_together() {
    // 32 segments of 2 MiB. In each a few small objects are left: they are the engine's, large objects are
    // their creator's, so that not one segment could be had by both.
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let small: Vec<_> = (0..1000).map(|seed| (seed, put(&client, Pattern(seed), 60_000))).collect();
    let (kept, gone): (Vec<_>, Vec<_>) = small.into_iter().partition(|(seed, _)| seed % 17 == 0);
    client.delete(&gone.iter().map(|(_, id)| *id).collect::<Vec<_>>()).expect("delete");
    let status = cluster.status(0);
    assert!(status.memory.free > 58 << 20, "{:?}", status.memory);
    assert!(status.memory.largest_free < 20 << 20, "nothing to put together: {:?}", status.memory);

    let large = put(&client, Pattern(1), 40 * MIB);
    Pattern(1).check(get(&client, large).data());
    assert!(cluster.status(0).memory.compacted_bytes > 0);
    for (seed, id) in &kept {
        Pattern(*seed).check(get(&client, *id).data());
    }
}

#[test]
fn memory_that_clients_work_in_keeps_no_other_segment_from_being_cleared() {
    // 32 segments of 2 MiB, all of them the user's, so that the engine has none for a small object. Those
    // with lent memory have the fewest bytes in use, and cannot be cleared.
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let mut gone = Vec::new();
    let lend = || client.buffer(400 << 10, false, None).expect("lend");
    let lent: Vec<_> = (0..12)
        .map(|seed| {
            gone.push(put(&client, Pattern(seed), 3 * MIB / 2));
            lend()
        })
        .collect();
    let mut kept = Vec::new();
    for seed in 100.. {
        let id = ObjectId::random();
        match try_put(&client, id, Pattern(seed), 600 << 10) {
            Ok(()) if seed % 3 == 0 => gone.push(id),
            Ok(()) => kept.push((seed, id)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full);
                break;
            }
        }
    }
    client.delete(&gone).expect("delete");
    let small = put(&client, Pattern(1), 60_000);
    Pattern(1).check(get(&client, small).data());
    assert!(cluster.status(0).memory.compacted_bytes > 0);
    for (seed, id) in &kept {
        Pattern(*seed).check(get(&client, *id).data());
    }
    drop(lent);
}

#[test]
fn what_is_pinned_is_not_moved() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let small: Vec<_> = (0..1000).map(|seed| (seed, put(&client, Pattern(seed), 60_000))).collect();
    let held: Vec<_> = small
        .iter()
        .filter(|(seed, _)| seed % 17 == 0)
        .map(|(seed, id)| (*seed, get(&client, *id)))
        .collect();
    client.delete(&small.iter().map(|(_, id)| *id).collect::<Vec<_>>()).expect("delete");
    // Free memory is enough in all, and cannot be put together.
    assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(1), 40 * MIB)), ErrorKind::Full);
    for (seed, object) in &held {
        Pattern(*seed).check(object.data());
    }
    drop(held);
    eventually("there is room", || try_put(&client, ObjectId::random(), Pattern(1), 40 * MIB).is_ok());
}

/// Puts small objects all over a store of 32 segments of 2 MiB. Returns them by segment. Objects that span
/// two segments are deleted.
fn scattered(client: &Client) -> Vec<Vec<(u64, ObjectId)>> {
    const SEGMENT: usize = 2 * MIB;
    const LEN: usize = 60_000;
    let small: Vec<_> = (0..1085).map(|seed| (seed, put(client, Pattern(seed), LEN))).collect();
    let address = |id| get(client, id).data().as_ptr() as usize;
    let addresses: Vec<_> = small.iter().map(|(_, id)| address(*id)).collect();
    // The store was empty: the first lies at its start.
    let start = *addresses.iter().min().expect("there are some");
    let mut segments = vec![Vec::new(); 32];
    for (one, address) in small.into_iter().zip(addresses) {
        let (first, last) = ((address - start) / SEGMENT, (address - start + LEN - 1) / SEGMENT);
        if first == last {
            segments[first].push(one);
        } else {
            client.delete(&[one.1]).expect("delete");
        }
    }
    assert!(segments.iter().all(|segment| segment.len() > 5), "they are not all over the store");
    segments
}

/// Deletes all but the first so many objects of each segment.
fn thin_out(client: &Client, segments: &mut [Vec<(u64, ObjectId)>], left: impl Fn(usize) -> usize) {
    for (number, segment) in segments.iter_mut().enumerate() {
        let gone: Vec<_> = segment.drain(left(number)..).map(|(_, id)| id).collect();
        client.delete(&gone).expect("delete");
    }
}

#[test]
fn nothing_is_moved_in_vain() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let mut segments = scattered(&client);
    thin_out(&client, &mut segments, |_| 3);
    // In every window of ten segments something is pinned: by clients themselves, counted by the node, or
    // deleted since.
    let by_itself = get(&client, segments[8][0].1);
    let mut counted = Raw::connect(&cluster, 0);
    counted.send(1, &Request::Get { timeout_us: 0, verify: false, ids: vec![segments[16][1].1] });
    assert!(matches!(counted.next(), Some((_, Reply::Got { .. }))));
    let deleted = get(&client, segments[24][2].1);
    client.delete(&[deleted.id()]).expect("delete");
    assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(1), 20 * MIB)), ErrorKind::Full);
    assert_eq!(cluster.status(0).memory.compacted_bytes, 0);

    Pattern(segments[8][0].0).check(by_itself.data());
    Pattern(segments[24][2].0).check(deleted.data());
    drop(deleted);
    eventually("there is room", || try_put(&client, ObjectId::random(), Pattern(1), 20 * MIB).is_ok());
    for (seed, id) in segments[..24].iter().flatten() {
        Pattern(*seed).check(get(&client, *id).data());
    }
}

#[test]
fn what_is_pinned_does_not_keep_the_rest_from_being_moved() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let mut segments = scattered(&client);
    // The windows that are cheapest to clear are those that cannot be cleared.
    thin_out(&client, &mut segments, |number| if number <= 20 { 1 } else { 5 });
    let held: Vec<_> =
        segments[..=20].iter().flatten().map(|(seed, id)| (*seed, get(&client, *id))).collect();
    let large = put(&client, Pattern(5000), 20 * MIB);
    Pattern(5000).check(get(&client, large).data());
    for (seed, object) in &held {
        Pattern(*seed).check(object.data());
    }
    for (seed, id) in segments.iter().flatten() {
        Pattern(*seed).check(get(&client, *id).data());
    }
}

/// The daemon has no descriptors for more of the object table. An object that finds no place there is
/// refused, however it comes, and other objects stay.
#[test]
fn a_table_that_cannot_grow_refuses_and_keeps_what_it_has() {
    const ENTRIES: usize = 4096;
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let mut large = client.create(ObjectId::random(), MIB as u64, b"", &CreateOptions::default()).unwrap();
    Pattern(1).fill(large.as_mut_slice());
    let id = large.id();
    let first = put(&client, Pattern(0), 64);
    get(&client, first);

    let daemon = Pid::from_raw(cluster.daemon(0).pid() as i32);
    // The daemon has raised its limit to the highest that it inherited.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| {
        prlimit(daemon, Resource::Nofile, Rlimit { current, maximum }).expect("it is our daemon");
    };
    limit(Some(0));
    let ids: Vec<_> = (0..ENTRIES + 100).map(|_| ObjectId::random()).collect();
    let objects: Vec<_> = ids.iter().map(|id| (*id, &b"small"[..], &b""[..])).collect();
    let put_all = |objects: &[_]| client.put_many(objects, &CreateOptions::default()).expect("it serves");
    let mut results = put_all(&objects);
    let refused = results.split_off(ENTRIES - 1);
    results.into_iter().for_each(|result| result.expect("there is a place"));
    for refusal in refused {
        assert_eq!(kind(refusal), ErrorKind::Full);
    }
    assert_eq!(kind(large.seal()), ErrorKind::Full);
    assert_eq!(client.status().expect("it serves").objects.primary, ENTRIES as u64);
    Pattern(0).check(get(&client, first).data());
    assert_eq!(get(&client, ids[ENTRIES - 2]).data(), b"small");

    // One goes, one comes.
    client.delete(&[ids[0]]).expect("delete");
    try_put(&client, id, Pattern(1), MIB).expect("there is a place");
    assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(2), 64)), ErrorKind::Full);

    limit(maximum);
    Pattern(1).check(get(&client, id).data());
    put_all(&objects[ENTRIES - 1..]).into_iter().for_each(|result| result.expect("it grows again"));
    let status = cluster.status(0);
    assert_eq!((status.objects.primary, status.objects.unsealed), (ENTRIES as u64 + 101, 0));
    assert_eq!(get(&client, ids[ENTRIES + 99]).data(), b"small");
}
