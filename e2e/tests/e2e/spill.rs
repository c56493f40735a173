//! Tests of spilling: objects that memory cannot hold go to disk and come back; in cache mode they are
//! dropped.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use plasmon::wire::{NewObject, Reply, Request, Terms};
use plasmon::{Client, CreateOptions, ErrorKind, ObjectId, ObjectState, Rights};
use plasmon_e2e::wait::ended_in_time;
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::raw::Raw;
use crate::support::{MIB, SmallDisk, get, kind, put, try_get, try_put};

/// Files of the first node's spill directory.
fn files(cluster: &Cluster) -> Vec<PathBuf> {
    spill_files(cluster, 0)
}

/// Files of a node's spill directory.
fn spill_files(cluster: &Cluster, node: usize) -> Vec<PathBuf> {
    let entries = fs::read_dir(cluster.node_folder(node).join("spill")).expect("the daemon made it");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "spill")).collect()
}

fn spilling() -> Cluster {
    Cluster::builder().args(&["--spill-dir", "spill"]).start()
}

#[test]
fn more_than_memory_holds_is_kept_and_read() {
    let cluster = spilling();
    let client = cluster.client(0);
    let sizes = [0, 1, 4095, 100_000, 3 * MIB, 20 * MIB];
    let ids: Vec<_> =
        (0..60).map(|seed| (seed, put(&client, Pattern(seed), sizes[seed as usize % sizes.len()]))).collect();
    let status = cluster.status(0);
    assert!(status.spill.bytes > 100 * MIB as u64, "{:?}", status.spill);
    for (seed, id) in ids.iter().rev() {
        let object = get(&client, *id);
        assert_eq!(object.data().len(), sizes[*seed as usize % sizes.len()]);
        Pattern(*seed).check(object.data());
    }
    assert!(cluster.status(0).spill.restored_bytes > 0);

    // Deletions give the disk back.
    client.delete(&ids.iter().map(|(_, id)| *id).collect::<Vec<_>>()).expect("delete");
    eventually("the files are gone", || files(&cluster).is_empty());
    assert_eq!(cluster.status(0).memory.used, 0);
}

#[test]
fn a_get_from_disk_says_that_all_memory_is_pinned() {
    let cluster = spilling();
    let client = cluster.client(0);
    let ids: Vec<_> = (0..6).map(|seed| put(&client, Pattern(seed), 15 * MIB)).collect();
    let held: Vec<_> = ids[2..].iter().map(|id| get(&client, *id)).collect();
    let short = Some(Duration::from_millis(500));
    // Until all of it is on disk, the node is still making room.
    eventually("the node cannot make room", || {
        let refused = client.get(&ids[..1], short).expect("the daemon lives").remove(0).err();
        let error = refused.expect("all memory is pinned");
        let told = error.message().contains("which is all that is sealed; by client");
        assert!(told || error.kind() == ErrorKind::TimedOut, "{error}");
        told && error.kind() == ErrorKind::Full
    });
    drop(held);
    Pattern(0).check(get(&client, ids[0]).data());
}

#[test]
fn what_was_spilled_is_fetched_by_other_nodes() {
    let cluster = Cluster::builder().nodes(2).args(&["--spill-dir", "spill"]).start();
    let (here, there) = (cluster.client(0), cluster.client(1));
    let ids: Vec<_> = (0..12).map(|seed| put(&here, Pattern(seed), 10 * MIB)).collect();
    for (seed, id) in (0..).zip(&ids) {
        Pattern(seed).check(get(&there, *id).data());
    }
}

#[test]
fn a_daemon_takes_over_what_a_killed_one_spilled() {
    let mut cluster = spilling();
    let name = CreateOptions { name: Some("kept".to_owned()), digest: true, ..CreateOptions::default() };
    let kept = ObjectId::from_name("kept");
    let client = cluster.client(0);
    client.put(kept, &Pattern(99).bytes(2 * MIB), b"metadata", &name).expect("put");
    let ids: Vec<_> = (0..12).map(|seed| put(&client, Pattern(seed), 10 * MIB)).collect();
    let spilled: Vec<_> = client.list().expect("list").into_iter().collect();
    cluster.kill(0);
    cluster.restart();

    let client = cluster.client(0);
    let found = client.list().expect("list");
    let on_disk = |row: &&plasmon::ObjectInfo| row.state == ObjectState::Spilled;
    assert!(spilled.iter().filter(on_disk).all(|row| found.iter().any(|there| there.id == row.id)));
    let object = get(&client, kept);
    Pattern(99).check(object.data());
    assert_eq!(object.metadata(), b"metadata");
    object.verify().expect("the digest came back as well");
    let mut there = 0;
    for (seed, id) in (0..).zip(&ids) {
        // Objects that were only in memory were lost with the daemon.
        if let Ok(object) = client.get(&[*id], Some(Duration::ZERO)).expect("get").remove(0) {
            Pattern(seed).check(object.data());
            there += 1;
        }
    }
    assert!(there >= 5, "only {there} of {} came back", ids.len());
}

#[test]
fn a_damaged_file_costs_its_own_objects() {
    let cluster = spilling();
    let client = cluster.client(0);
    // Each has a file of its own.
    let ids: Vec<_> = (0..6).map(|seed| put(&client, Pattern(seed), 20 * MIB)).collect();
    let spilled: Vec<_> = client
        .list()
        .expect("list")
        .into_iter()
        .filter(|row| row.state == ObjectState::Spilled)
        .map(|row| row.id)
        .collect();
    assert!(spilled.len() >= 3, "{} are on disk", spilled.len());
    let mut paths = files(&cluster);
    paths.sort();
    let file = OpenOptions::new().write(true).open(&paths[0]).expect("it is ours");
    file.write_all_at(b"damage", 10 * MIB as u64).expect("it is ours");

    let mut damaged = 0;
    for (seed, id) in (0..).zip(&ids) {
        match try_get(&client, *id) {
            Ok(object) => Pattern(seed).check(object.data()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                assert!(error.message().contains(&id.to_string()), "{error}");
                damaged += 1;
            }
        }
    }
    assert_eq!(damaged, 1);
    // A damaged object can be made anew.
    client.delete(&ids).expect("delete");
    try_put(&client, ids[0], Pattern(7), 20 * MIB).expect("the id is free");
    Pattern(7).check(get(&client, ids[0]).data());
}

#[test]
fn what_is_found_damaged_at_the_start_is_damaged_for_whoever_asks() {
    let mut cluster = Cluster::builder().nodes(2).args(&["--spill-dir", "spill"]).start();
    let client = cluster.client(1);
    let spilled = |cluster: &Cluster| -> Vec<ObjectId> {
        let rows = cluster.client(1).list().expect("list").into_iter();
        rows.filter(|row| row.state == ObjectState::Spilled).map(|row| row.id).collect()
    };
    // Each has a file of its own.
    for seed in 0..7 {
        put(&client, Pattern(seed), 20 * MIB);
    }
    let before = spilled(&cluster);
    assert!(before.len() >= 4, "{} are on disk", before.len());
    cluster.kill(1);
    let mut paths = spill_files(&cluster, 1);
    paths.sort();
    let open = |path| OpenOptions::new().write(true).open(path).expect("it is ours");
    // The bytes of one, the end of another, and what a third is: whose that was cannot be told any more.
    open(&paths[0]).write_all_at(b"damage", 10 * MIB as u64).expect("it is ours");
    open(&paths[1]).set_len(10 * MIB as u64).expect("it is ours");
    open(&paths[2]).write_all_at(b"damage", 4096 + 80).expect("it is ours");
    cluster.start_again(1, &[]);
    eventually("it is a member again", || {
        [0, 1].iter().all(|node| cluster.status(*node).cluster.members.len() == 2)
    });
    let status = cluster.status(1);
    assert_eq!(status.spill.unreadable, 1, "{:?}", status.spill);
    assert!(cluster.log(1).contains("cut off in the middle of an object"));
    let known = spilled(&cluster);
    for node in [1, 0] {
        let client = cluster.client(node);
        let mut damaged = 0;
        for id in &known {
            if let Err(error) = try_get(&client, *id) {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                assert!(error.message().contains(&id.to_string()), "{error}");
                damaged += 1;
            }
        }
        assert_eq!(damaged, 2, "at node {node}");
    }
    // Other nodes know where the object was, but not that it was damaged.
    let unknown: Vec<_> = before.iter().filter(|id| !known.contains(id)).collect();
    assert!(!unknown.is_empty());
    assert_eq!(kind(try_get(&cluster.client(1), *unknown[0])), ErrorKind::Lost);
}

/// Puts objects until there is no room. Returns their ids, whose numbers are their patterns, and the refusal.
fn fill(client: &Client) -> (Vec<ObjectId>, plasmon::Error) {
    let mut ids = Vec::new();
    loop {
        let (id, seed) = (ObjectId::random(), ids.len() as u64);
        match try_put(client, id, Pattern(seed), 5 * MIB) {
            Ok(()) => ids.push(id),
            Err(error) => return (ids, error),
        }
        assert!(ids.len() <= 20, "more was put than fits");
    }
}

#[test]
fn a_full_disk_refuses_the_put_and_loses_nothing() {
    let Some(disk) = SmallDisk::new(30) else { return };
    let disk = disk.path();
    {
        let cluster = Cluster::builder().args(&["--spill-dir", &format!("{disk}/spill")]).start();
        let client = cluster.client(0);
        let (ids, refusal) = fill(&client);
        assert_eq!(refusal.kind(), ErrorKind::Full, "{refusal}");
        assert!(refusal.message().contains(disk), "{refusal}");
        for (seed, id) in (0..).zip(&ids) {
            match try_get(&client, *id) {
                Ok(object) => Pattern(seed).check(object.data()),
                // The object is on disk, and no memory can be made for it.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
            }
        }
        client.delete(&ids[..10]).expect("delete");
        Pattern(50).check(get(&client, put(&client, Pattern(50), 5 * MIB)).data());
    }
}

#[test]
fn what_a_full_node_has_on_disk_is_read_by_nodes_with_room() {
    let Some(disk) = SmallDisk::new(30) else { return };
    {
        let mut cluster = Cluster::builder().start();
        let full = cluster.add_node_with(&["--spill-dir", &format!("{}/spill", disk.path())]);
        let (there, here) = (cluster.client(0), cluster.client(full));
        let (ids, refusal) = fill(&here);
        assert_eq!(refusal.kind(), ErrorKind::Full, "{refusal}");
        let rows = here.list().expect("list");
        let on_disk: Vec<_> = rows.iter().filter(|row| row.state == ObjectState::Spilled).collect();
        assert!(on_disk.len() >= 4, "{rows:?}");
        for row in &on_disk {
            let seed = ids.iter().position(|id| *id == row.id).expect("it was put here") as u64;
            // The full node says what has its memory, and why that stays there.
            let error = try_get(&here, row.id).expect_err("no memory can be made for it");
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            for told in [&row.id.to_string() as &str, "is on disk", "  primary: ", disk.path()] {
                assert!(error.message().contains(told), "{told:?} is not in {error}");
            }
            Pattern(seed).check(get(&there, row.id).data());
        }
        let fetches = cluster.status(0).transfer;
        assert_eq!(fetches.cpu_copied_bytes, (on_disk.len() * 5 * MIB) as u64, "{fetches:?}");
        // What is found damaged on disk is so for whoever asks.
        let path = fs::read_dir(format!("{}/spill", disk.path())).expect("the daemon made it");
        let paths = path.map(|entry| entry.expect("it can be read").path());
        let is_spilled = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "spill");
        for path in paths.filter(is_spilled) {
            let file = OpenOptions::new().write(true).open(&path).expect("it is ours");
            let len = file.metadata().expect("it is there").len();
            (0..len / MIB as u64).for_each(|mib| {
                file.write_all_at(b"damage", (mib * MIB as u64) + 77_777).expect("it is ours");
            });
        }
        there.evict(u64::MAX).expect("evict");
        assert_eq!(kind(try_get(&there, on_disk[0].id)), ErrorKind::Damaged);
    }
}

#[test]
fn a_small_disk_takes_what_it_has_room_for() {
    let Some(disk) = SmallDisk::new(12) else { return };
    {
        let cluster = Cluster::builder().args(&["--spill-dir", &format!("{}/spill", disk.path())]).start();
        let client = cluster.client(0);
        // The large object would go first, and does not fit; nor do all together that go then.
        let large = put(&client, Pattern(100), 20 * MIB);
        let (ids, refusal) = fill(&client);
        assert_eq!(refusal.kind(), ErrorKind::Full, "{refusal}");
        let status = cluster.status(0).spill;
        assert_eq!((status.objects, status.bytes), (2, 10 * MIB as u64), "{status:?}");
        assert!(status.failing.contains(disk.path()), "{status:?}");
        // With room in memory they come back.
        Pattern(100).check(get(&client, large).data());
        client.delete(&[large]).expect("delete");
        for (seed, id) in (0..).zip(&ids) {
            Pattern(seed).check(get(&client, *id).data());
        }
    }
}

#[test]
fn a_disk_that_fails_is_told_of_once_and_tried_until_it_recovers() {
    let Some(disk) = SmallDisk::new(30) else { return };
    {
        let cluster = Cluster::builder().args(&["--spill-dir", &format!("{}/spill", disk.path())]).start();
        let client = cluster.client(0);
        let (ids, _) = fill(&client);
        let patient = CreateOptions { room: Some(Duration::from_secs(600)), ..CreateOptions::default() };
        let id = ObjectId::random();
        let waiting = {
            let client = cluster.client(0);
            std::thread::spawn(move || client.put(id, &Pattern(50).bytes(5 * MIB), b"", &patient))
        };
        let told = |what: &str| cluster.log(0).lines().filter(|line| line.contains(what)).count();
        eventually("it was tried several times", || cluster.status(0).spill.failures >= 4);
        assert!(cluster.status(0).spill.failing.contains(disk.path()), "{:?}", cluster.status(0).spill);
        assert_eq!((told("cannot be spilled and stay"), told("can be spilled again")), (1, 0));
        // A get that does not wait for objects does not wait for the disk either.
        assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(1), 5 * MIB)), ErrorKind::Full);

        disk.grow(200);
        waiting.join().expect("no panic").expect("there is room on the disk");
        assert_eq!(cluster.status(0).spill.failing, "");
        assert_eq!((told("cannot be spilled and stay"), told("can be spilled again")), (1, 1));
        for (seed, id) in (0..).zip(ids).chain([(50, id)]) {
            Pattern(seed).check(get(&client, id).data());
        }
    }
}

#[test]
fn cache_mode_drops_what_was_read_least_recently() {
    let cluster = Cluster::builder().args(&["--cache"]).start();
    let client = cluster.client(0);
    let pinned = put(&client, Pattern(100), 5 * MIB);
    let held = get(&client, pinned);
    let dear = put(&client, Pattern(101), 5 * MIB);
    for seed in 0..40 {
        put(&client, Pattern(seed), 5 * MIB);
        Pattern(101).check(get(&client, dear).data());
    }
    Pattern(100).check(held.data());
    Pattern(100).check(get(&client, pinned).data());
    let status = cluster.status(0);
    assert!(status.objects.evicted >= 29, "{:?}", status.objects);
    assert!(status.memory.used <= status.memory.capacity);
}

#[test]
fn a_put_waits_for_room_as_long_as_it_says() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let first = put(&client, Pattern(1), 40 * MIB);
    let patient = CreateOptions { room: Some(Duration::from_secs(60)), ..CreateOptions::default() };
    let waiting = {
        let client = cluster.client(0);
        std::thread::spawn(move || {
            let id = ObjectId::random();
            client.put(id, &Pattern(2).bytes(40 * MIB), b"", &patient).map(|()| id)
        })
    };
    eventually("the put waits", || cluster.status(0).memory.waiting == 1);
    // A get that does not wait is served or refused at once.
    assert_eq!(kind(try_put(&client, ObjectId::random(), Pattern(3), 40 * MIB)), ErrorKind::Full);
    put(&client, Pattern(3), MIB);
    let impatient = CreateOptions { room: Some(Duration::from_millis(50)), ..CreateOptions::default() };
    let data = Pattern(4).bytes(40 * MIB);
    eventually("a put without room is refused", || {
        let begun = Instant::now();
        let refused = client.put(ObjectId::random(), &data, b"", &impatient);
        ended_in_time("a put without room", begun, Duration::from_millis(50));
        let error = refused.expect_err("there is no room");
        let full = error.kind() == ErrorKind::Full;
        assert!(!full || error.message().contains("user"), "it does not say who holds what: {error}");
        // The client ends the call itself if the daemon does not run in time.
        assert!(full || error.kind() == ErrorKind::TimedOut, "{error}");
        full
    });

    client.delete(&[first]).expect("delete");
    let id = waiting.join().expect("no panic").expect("room was made");
    Pattern(2).check(get(&client, id).data());
}

#[test]
fn a_wrong_digest_costs_its_own_object_when_that_comes_back_from_disk() {
    let cluster = Cluster::builder().args(&["--spill-dir", "spill"]).start();
    let client = cluster.client(0);
    let mut liar = Raw::connect(&cluster, 0);
    let lies: Vec<_> = (1..4).map(|number| (number, ObjectId::random())).collect();
    for (number, id) in &lies {
        let object = NewObject {
            id: *id,
            rights: Rights::default(),
            name: String::new(),
            metadata: Bytes::from_static(b"m"),
            terms: Terms::default(),
        };
        let data = Bytes::from(Pattern(*number).bytes(1000));
        liar.send(*number, &Request::Put { object, digest: 1 + number, room_us: 0, data });
        assert!(matches!(liar.next(), Some((_, Reply::Done))), "it cannot know");
    }
    let honest = CreateOptions { digest: true, ..CreateOptions::default() };
    let ids: Vec<_> = (10..30).map(|seed| (seed, ObjectId::random())).collect();
    for (seed, id) in &ids {
        client.put(*id, &Pattern(*seed).bytes(10 * MIB), b"metadata", &honest).expect("put");
    }
    eventually("the lies are on disk alone", || {
        let rows = client.list().expect("list");
        let spilled = |id| rows.iter().any(|row| row.id == id && row.state == ObjectState::Spilled);
        lies.iter().all(|(_, id)| spilled(*id))
    });
    for (number, id) in &lies {
        let error = try_get(&client, *id).map(drop).expect_err("these bytes were never sealed");
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.message().contains(&id.to_string()), "{error}");
        assert!(error.message().contains(&format!("was {:016x}", 1 + number)), "{error}");
    }
    for (seed, id) in &ids {
        let object = get(&client, *id);
        Pattern(*seed).check(object.data());
        object.verify().expect("it has its digest");
    }
}
