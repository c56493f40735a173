//! Tests of regions: all operations on this host and on another, by loads and stores and by calls, and what
//! happens when the arguments are wrong or somebody dies.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plasmon::region::{Principal, Region, RegionOptions, Rights};
use plasmon::{Client, CreateOptions, ErrorKind, ObjectId, RegionState};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, binary, eventually, own_namespaces, wait};

use crate::commands::{failure, json};
use crate::support::{ClientProcess, LONG_LEASE, MIB, NOBODY, client_of, get, kind};

/// Sizes in bytes of accesses: none, less and more than words, what a slot has room for and not, odd ones.
const SIZES: [usize; 9] = [0, 1, 7, 8, 319, 320, 321, 4095, MIB + 1];
/// Size in bytes of the regions.
const LEN: usize = 3 * MIB + 5;

fn unmappable() -> RegionOptions {
    RegionOptions { mappable: false, ..RegionOptions::default() }
}

/// A region that is mapped here, one of this host that is reached by calls, and one of another host.
fn all_kinds(cluster: &Cluster, client: &Client) -> Vec<Region> {
    let far = RegionOptions { node: Some(cluster.client(1).node()), ..RegionOptions::default() };
    let kinds = [("mapped", RegionOptions::default()), ("called", unmappable()), ("far", far)];
    let make = |(name, options): (&str, RegionOptions)| {
        let region = client.create_region(name, LEN as u64, &options).expect("there is room");
        assert_eq!(region.is_mapped(), name == "mapped");
        assert_eq!((region.len(), region.rights()), (LEN as u64, Rights::ALL));
        assert_eq!(region.home(), options.node.unwrap_or(client.node()));
        region
    };
    kinds.into_iter().map(make).collect()
}

fn word(region: &Region, offset: u64) -> u64 {
    let mut word = [0; 8];
    region.read(offset, &mut word).expect("read");
    u64::from_le_bytes(word)
}

#[test]
fn bytes_of_all_sizes_are_written_and_read() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    for region in all_kinds(&cluster, &client) {
        let mut whole = vec![1; LEN];
        region.read(0, &mut whole).expect("read");
        assert!(whole.iter().all(|byte| *byte == 0), "{} is not zeroed", region.name());
        for (nth, size) in SIZES.into_iter().enumerate() {
            for offset in [0, 1, 8, LEN - size] {
                let data = Pattern(nth as u64).bytes(size);
                region.write(offset as u64, &data).expect("write");
                whole[offset..offset + size].copy_from_slice(&data);
                let mut found = vec![0; size];
                region.read(offset as u64, &mut found).expect("read");
                assert!(found == data, "{size} bytes at {offset} of {}", region.name());
            }
        }
        let mut found = vec![0; LEN];
        region.read(0, &mut found).expect("read");
        assert!(found == whole, "{}", region.name());
    }
}

#[test]
fn memory_of_the_node_is_sent_and_received_without_a_copy() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let mut buffer = client.buffer(2 * MIB, true, None).expect("there is room");
    for region in all_kinds(&cluster, &client) {
        let data = Pattern(7).bytes(MIB + 3);
        buffer.as_mut_slice()[5..5 + data.len()].copy_from_slice(&data);
        region.write_from(11, &buffer, 5..5 + data.len()).expect("write");
        buffer.as_mut_slice().fill(0);
        region.read_to(11, &mut buffer, 1..1 + data.len()).expect("read");
        assert!(buffer.as_slice()[1..=data.len()] == data, "{}", region.name());
        assert_eq!(kind(region.read_to(0, &mut buffer, MIB..3 * MIB)), ErrorKind::Invalid);
        let mut other = cluster.client(0).buffer(4096, true, None).expect("there is room");
        assert_eq!(kind(region.read_to(0, &mut other, 0..4096)), ErrorKind::Invalid);
    }
}

#[test]
fn atomic_operations_return_what_was_before() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    for region in all_kinds(&cluster, &client) {
        let last = LEN as u64 / 8 * 8 - 8;
        for offset in [0, 8, last] {
            assert_eq!(region.fetch_add(offset, 5).expect("add"), 0);
            assert_eq!(region.fetch_add(offset, u64::MAX).expect("add"), 5);
            assert_eq!(region.swap(offset, u64::MAX).expect("swap"), 4);
            assert_eq!(region.fetch_add(offset, 3).expect("add"), u64::MAX);
            assert_eq!(region.compare_swap(offset, 7, 9).expect("swap"), 2);
            assert_eq!(region.compare_swap(offset, 2, 0).expect("swap"), 2);
            assert!(!region.test_and_set(offset).expect("set"));
            assert!(region.test_and_set(offset).expect("set"));
            assert_eq!(word(&region, offset), 1);
        }
        for crooked in [1, 4, last + 1] {
            assert_eq!(kind(region.fetch_add(crooked, 1)), ErrorKind::Invalid, "offset {crooked}");
        }
        assert_eq!(kind(region.swap(last + 8, 1)), ErrorKind::Invalid, "half of the word is beyond the end");
    }
}

#[test]
fn regions_are_filled_and_copied() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let regions = all_kinds(&cluster, &client);
    for region in &regions {
        region.fill(3..MIB as u64, 0xa5).expect("fill");
        region.fill(9..9, 1).expect("nothing to fill");
        let mut found = vec![0; LEN];
        region.read(0, &mut found).expect("read");
        assert!(found[..3].iter().chain(&found[MIB..]).all(|byte| *byte == 0));
        assert!(found[3..MIB].iter().all(|byte| *byte == 0xa5));
        // Within one region, as memmove does.
        let data = Pattern(1).bytes(MIB);
        region.write(0, &data).expect("write");
        region.copy_from(100, region, 0..MIB as u64).expect("copy");
        region.read(0, &mut found).expect("read");
        assert!(found[..100] == data[..100] && found[100..100 + MIB] == data, "{}", region.name());
    }
    for (nth, source) in regions.iter().enumerate() {
        let data = Pattern(nth as u64 + 10).bytes(LEN);
        source.write(0, &data).expect("write");
        for target in &regions {
            if target.name() != source.name() {
                target.copy_from(1, source, 0..LEN as u64 - 1).expect("copy");
                let mut found = vec![0; LEN - 1];
                target.read(1, &mut found).expect("read");
                assert!(found == data[..LEN - 1], "{} to {}", source.name(), target.name());
                assert_eq!(kind(target.copy_from(1, source, 0..LEN as u64)), ErrorKind::Invalid);
            }
        }
    }
}

#[test]
fn a_copy_from_a_region_that_is_no_more_leaves_the_other_as_it_was() {
    let mut cluster = Cluster::builder().nodes(3).start();
    let client = cluster.client(0);
    let targets = all_kinds(&cluster, &client);
    let make = |name: &str, node: usize| {
        let there = RegionOptions { node: Some(cluster.client(node).node()), ..RegionOptions::default() };
        client.create_region(name, 100, &there).expect("there is room")
    };
    let [freed, anew, lost] = [("freed", 1), ("anew", 0), ("lost", 2)].map(|(name, node)| make(name, node));
    for name in ["freed", "anew"] {
        cluster.client(2).map_region(name, Rights::ALL, None).expect("it is there").free().expect("free");
    }
    let _next = make("anew", 1);
    cluster.kill(2);
    eventually("its home is gone", || cluster.status(0).cluster.members.len() == 2);
    for target in &targets {
        for (source, expected) in
            [(&freed, ErrorKind::Freed), (&anew, ErrorKind::Freed), (&lost, ErrorKind::Lost)]
        {
            assert_eq!(kind(target.copy_from(0, source, 0..100)), expected, "{}", source.name());
            assert_eq!(target.state(), RegionState::Live, "{} to {}", source.name(), target.name());
            assert_eq!(word(target, 0), 0);
        }
    }
    assert!(targets[0].is_mapped());
}

#[test]
fn many_operations_are_under_way_at_a_time() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let regions = all_kinds(&cluster, &client);
    let before = cluster.status(0).memory.used;
    for region in &regions {
        let adds: Vec<_> = (0..64).map(|_| region.begin_fetch_add(0, 1).expect("begin")).collect();
        let mut before: Vec<_> = adds.into_iter().map(|add| add.wait().expect("add")).collect();
        before.sort_unstable();
        assert!(before.into_iter().eq(0..64));
        let place = |nth: usize| 4096 + nth as u64 * 70_000;
        let data = |nth: usize| Pattern(nth as u64).bytes(SIZES[nth % 8].max(1) + nth * 1000);
        let writes: Vec<_> =
            (0..30).map(|nth| region.begin_write(place(nth), &data(nth)).expect("begin")).collect();
        region.fence().expect("fence");
        assert!(writes.iter().all(|write| write.is_over()));
        let reads: Vec<_> =
            (0..30).map(|nth| region.begin_read(place(nth), data(nth).len()).expect("begin")).collect();
        for (nth, read) in reads.into_iter().enumerate() {
            assert!(read.wait().expect("read") == data(nth), "{nth} of {}", region.name());
        }
        writes.into_iter().for_each(|write| write.wait().expect("write"));
        assert_eq!(kind(region.begin_read(0, MIB)), ErrorKind::Invalid);
        // A client that gives results up gets new ones all the same.
        (0..600).for_each(|_| drop(region.begin_fetch_add(0, 1).expect("begin")));
        eventually("all of them are added", || word(region, 0) == 664);
    }
    // 1 MiB for short operations, and 1 MiB for long ones, each with room for a page behind it.
    let kept = cluster.status(0).memory.used - before;
    assert!((MIB as u64..=2 * (MIB as u64 + 4096)).contains(&kept), "{kept} bytes are kept");
}

#[test]
fn a_word_is_waited_for_from_both_hosts() {
    let cluster = Cluster::builder().nodes(2).start();
    let clients = [cluster.client(0), cluster.client(1)];
    let region = clients[0].create_region("flag", 64, &RegionOptions::default()).expect("there is room");
    for (offset, waker) in [(0, 0), (8, 1)] {
        let changer = clients[waker].map_region("flag", Rights::READ_WRITE, None).expect("it is there");
        thread::scope(|threads| {
            let waiters: Vec<_> = (0..4)
                .map(|nth| {
                    let client = &clients[nth % 2];
                    threads.spawn(move || {
                        let region = client.map_region("flag", Rights::READ, None).expect("it is there");
                        region.wait(offset, 0, PATIENCE).expect("it is changed")
                    })
                })
                .collect();
            // A store in mapped memory wakes nobody, so it is told of.
            changer.swap(offset, 7).expect("swap");
            changer.notify(offset).expect("notify");
            for waiter in waiters {
                assert_eq!(waiter.join().expect("it returns"), 7);
            }
        });
    }
    let began = Instant::now();
    for waiting in [&region, &clients[1].map_region("flag", Rights::READ, None).expect("it is there")] {
        assert_eq!(waiting.wait(0, 1, PATIENCE).expect("it is another"), 7);
        assert_eq!(kind(waiting.wait(0, 7, Duration::from_millis(300))), ErrorKind::TimedOut);
    }
    wait::ended_in_time("two waits", began, Duration::from_millis(600));
    let waiting = clients[1].map_region("flag", Rights::READ, None).expect("it is there");
    thread::scope(|threads| {
        let waiter = threads.spawn(|| kind(waiting.wait(16, 0, PATIENCE)));
        eventually("it waits", || cluster.status(1).slots.under_way == 1);
        region.free().expect("free");
        assert_eq!(waiter.join().expect("it returns"), ErrorKind::Freed);
    });
}

#[test]
fn wrong_arguments_are_refused_and_disturb_nothing() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let create = |name: &str, len, options: &RegionOptions| client.create_region(name, len, options);
    let options = RegionOptions::default();
    assert_eq!(kind(create("", 8, &options)), ErrorKind::Invalid);
    assert_eq!(kind(create(&"n".repeat(256), 8, &options)), ErrorKind::Invalid);
    assert_eq!(kind(create("none", 0, &options)), ErrorKind::Invalid);
    assert!(matches!(kind(create("huge", 1 << 50, &options)), ErrorKind::Full | ErrorKind::TooLarge));
    assert_eq!(kind(client.map_region("huge", Rights::READ, None)), ErrorKind::NotFound);
    let longest = create(&"n".repeat(255), 8, &options).expect("there is room");
    assert_eq!(kind(create(longest.name(), 8, &options)), ErrorKind::Exists);
    let again = RegionOptions { exist_ok: true, ..RegionOptions::default() };
    assert_eq!(create(longest.name(), 8, &again).expect("it is this one").len(), 8);
    assert_eq!(kind(create(longest.name(), 16, &again)), ErrorKind::Exists);
    for region in all_kinds(&cluster, &client) {
        let len = region.len();
        let mut two = [0; 2];
        for offset in [len - 1, len, len + 1, u64::MAX] {
            assert_eq!(kind(region.read(offset, &mut two)), ErrorKind::Invalid, "offset {offset}");
            assert_eq!(kind(region.write(offset, &two)), ErrorKind::Invalid);
            assert_eq!(kind(region.fill(offset..offset.saturating_add(2), 1)), ErrorKind::Invalid);
            assert_eq!(kind(region.wait(offset, 0, PATIENCE)), ErrorKind::Invalid);
        }
        let (from, to) = (5, 3);
        assert_eq!(kind(region.fill(from..to, 1)), ErrorKind::Invalid);
        let reader = client.map_region(region.name(), Rights::READ, None).expect("it is there");
        assert_eq!(kind(reader.write(0, &two)), ErrorKind::NotAllowed);
        assert_eq!(kind(reader.fetch_add(0, 1)), ErrorKind::NotAllowed);
        assert_eq!(kind(reader.notify(0)), ErrorKind::NotAllowed);
        assert_eq!(word(&region, 0), 0, "nothing was changed");
    }
}

#[test]
fn views_are_of_regions_that_are_mapped() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    let [mapped, called, far]: [Region; 3] = all_kinds(&cluster, &client).try_into().expect("three");
    for region in [&called, &far] {
        assert_eq!(kind(region.view()), ErrorKind::NotHere);
        let prompt = region.clone().without_calls();
        assert_eq!(kind(prompt.fetch_add(0, 1)), ErrorKind::NotHere);
        assert_eq!(kind(prompt.read(0, &mut [0; 1000])), ErrorKind::NotHere);
        assert_eq!(word(region, 0), 0, "nothing was done");
    }
    let prompt = mapped.clone().without_calls();
    assert_eq!(prompt.fetch_add(16, 1).expect("it takes no call"), 0);
    assert_eq!(kind(prompt.notify(16)), ErrorKind::NotHere);
    let view = mapped.view().expect("it lives here");
    let words = view.words().expect("it may be written");
    words[3].store(17, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(word(&mapped, 24), 17);
    let other = cluster.client(1).map_region("mapped", Rights::READ_WRITE, None).expect("it is there");
    assert_eq!(other.fetch_add(24, 1).expect("add"), 17);
    assert_eq!((view.load(24).expect("a word"), view.len()), (18, LEN));
    let reader = client.map_region("mapped", Rights::READ, None).expect("it is there");
    let seen = reader.view().expect("it lives here");
    assert_eq!((seen.load(24).expect("a word"), seen.is_writable()), (18, false));
    assert_eq!(kind(seen.words()), ErrorKind::NotAllowed);
    // The view keeps the bytes, and nothing else gets them.
    mapped.free().expect("free");
    assert_eq!(kind(reader.read(24, &mut [0; 8])), ErrorKind::Freed);
    assert_eq!(kind(other.read(24, &mut [0; 8])), ErrorKind::Freed);
    assert_eq!((other.state(), reader.state()), (RegionState::Freed, RegionState::Freed));
    let next = client.create_region("mapped", LEN as u64, &RegionOptions::default()).expect("there is room");
    next.fill(0..LEN as u64, 0xff).expect("fill");
    assert_eq!(view.load(24).expect("a word"), 18);
}

#[test]
fn a_counter_is_right_to_the_last_add() {
    const THREADS: u64 = 8;
    const ADDS: u64 = 2000;
    let cluster = Cluster::builder().nodes(2).start();
    let clients = [cluster.client(0), cluster.client(1)];
    let region = clients[0].create_region("counter", 8, &RegionOptions::default()).expect("there is room");
    thread::scope(|threads| {
        // Two processes that have it mapped, threads that have it mapped, and threads of the other host.
        for _ in 0..2 {
            let adds = ADDS.to_string();
            let cluster = &cluster;
            threads.spawn(move || drop(ClientProcess::start(cluster, 0, &["add", "counter", &adds])));
        }
        for thread in 0..THREADS as usize {
            let client = &clients[thread % 2];
            threads.spawn(move || {
                let region = client.map_region("counter", Rights::READ_WRITE, None).expect("it is there");
                (0..ADDS).for_each(|_| _ = region.fetch_add(0, 1).expect("add"));
            });
        }
    });
    assert_eq!(word(&region, 0), (THREADS + 2) * ADDS);
}

#[test]
fn rights_are_granted_and_revoked() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
        return;
    }
    let cluster = Cluster::builder().nodes(2).args(&["--socket-mode", "0666"]).start();
    let owner = client_of(NOBODY, &cluster, 0);
    let region = owner.create_region("shared", 64, &RegionOptions::default()).expect("there is room");
    for node in 0..2 {
        let other = client_of(NOBODY - 1, &cluster, node);
        let map = |rights| other.map_region_of(Some(NOBODY), "shared", rights, None);
        assert!(matches!(kind(map(Rights::READ)), ErrorKind::NotAllowed | ErrorKind::NotFound));
        region.grant(Principal::User(NOBODY - 1), Rights::READ).expect("grant");
        let reader = map(Rights::READ).expect("it may be read");
        assert!(!reader.is_mapped(), "another user's memory");
        assert_eq!(kind(map(Rights::READ_WRITE)), ErrorKind::NotAllowed);
        region.grant(Principal::User(NOBODY - 1), Rights::READ_WRITE).expect("grant");
        let writer = map(Rights::READ_WRITE).expect("it may be written");
        writer.fetch_add(0, 1).expect("add");
        assert_eq!(kind(writer.grant(Principal::Everyone, Rights::READ)), ErrorKind::NotAllowed);
        region.revoke(Principal::User(NOBODY - 1)).expect("revoke");
        assert_eq!(kind(writer.fetch_add(0, 1)), ErrorKind::NotAllowed);
        assert_eq!(kind(reader.read(0, &mut [0; 8])), ErrorKind::NotAllowed);
        assert_eq!(kind(writer.free()), ErrorKind::NotAllowed);
    }
    assert_eq!(word(&region, 0), 2);
    let root = cluster.client(1).map_region_of(Some(NOBODY), "shared", Rights::ALL, None);
    root.expect("root may do everything").free().expect("free");
    assert_eq!(kind(region.info()), ErrorKind::Freed);
}

#[test]
fn a_list_has_the_regions_of_all_nodes() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(1);
    assert_eq!(client.regions().expect("a list"), []);
    let regions = all_kinds(&cluster, &cluster.client(0));
    let mut rows = client.regions().expect("a list");
    rows.sort_unstable_by_key(|row| row.name != "mapped");
    let names: Vec<_> = rows.iter().map(|row| (&*row.name, row.len)).collect();
    assert_eq!(names, [("mapped", LEN as u64), ("called", LEN as u64), ("far", LEN as u64)]);
    assert_eq!((rows[0].mappable, rows[1].mappable, rows[2].home), (true, false, client.node()));
    for region in regions {
        assert_eq!(region.info().expect("it is there").name, region.name());
        region.free().expect("free");
    }
    assert_eq!(client.regions().expect("a list"), []);
}

#[test]
fn a_full_store_refuses_regions_and_serves_those_that_there_are() {
    let cluster = Cluster::builder().nodes(2).memory("64MiB").start();
    let client = cluster.client(0);
    let region = client.create_region("first", 2 * MIB as u64, &unmappable()).expect("there is room");
    let mut others = Vec::new();
    let error = (0..100)
        .find_map(|nth| {
            let made = client.create_region(&format!("other-{nth}"), MIB as u64, &RegionOptions::default());
            made.map(|region| others.push(region)).err()
        })
        .expect("the memory has an end");
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    let mut objects = Vec::new();
    while let Ok(creation) = client.create(ObjectId::random(), MIB as u64, b"", &CreateOptions::default()) {
        objects.push(creation);
    }
    let data = Pattern(3).bytes(MIB + 1);
    region.write(1, &data).expect("write");
    let mut found = vec![0; data.len()];
    region.read(1, &mut found).expect("read");
    assert!(found == data);
    others.pop().expect("there was room for some").free().expect("free");
    drop(objects);
    client.create_region("again", MIB as u64, &RegionOptions::default()).expect("there is room again");
}

#[test]
fn a_snapshot_is_an_object_of_the_bytes() {
    let cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(0);
    for region in all_kinds(&cluster, &client) {
        let data = Pattern(5).bytes(LEN);
        region.write(0, &data).expect("write");
        let id = region.snapshot(ObjectId::random(), &CreateOptions::default()).expect("there is room");
        region.fill(0..LEN as u64, 0).expect("fill");
        for node in 0..2 {
            assert!(get(&cluster.client(node), id).data() == data, "{}", region.name());
        }
    }
}

#[test]
fn an_ephemeral_region_ends_with_its_client() {
    let cluster = Cluster::builder().nodes(2).start();
    let far = cluster.client(1);
    let owner = ClientProcess::start(&cluster, 0, &["own", "brief"]);
    let region = far.map_region("brief", Rights::READ_WRITE, None).expect("it is there");
    region.write(0, &[1; 100]).expect("write");
    owner.kill();
    eventually("it is freed", || region.read(0, &mut [0; 8]).is_err());
    assert_eq!(kind(region.read(0, &mut [0; 8])), ErrorKind::Freed);
    eventually("its name is free", || far.create_region("brief", 8, &RegionOptions::default()).is_ok());
}

#[test]
fn operations_end_when_the_home_dies() {
    let timeout = Duration::from_secs(20);
    let mut cluster = Cluster::builder().nodes(3).start();
    let client = cluster.client(0);
    let options = RegionOptions { node: Some(cluster.client(1).node()), ..RegionOptions::default() };
    let region = client.create_region("lost", MIB as u64, &options).expect("there is room");
    let region = region.with_timeout(timeout);
    let local = cluster.client(1).map_region("lost", Rights::READ_WRITE, None).expect("it is there");
    let local = local.with_timeout(timeout);
    assert!(local.is_mapped());
    let began = Instant::now();
    thread::scope(|threads| {
        let waiter = threads.spawn(|| kind(region.wait(0, 0, timeout)));
        eventually("it waits", || cluster.status(0).slots.under_way == 1);
        cluster.kill(1);
        let add = kind(region.fetch_add(8, 1));
        assert!(matches!(add, ErrorKind::OutcomeUnknown | ErrorKind::Lost), "{add:?}");
        let read = kind(region.read(0, &mut [0; 1000]));
        assert!(matches!(read, ErrorKind::Lost | ErrorKind::TimedOut | ErrorKind::Disconnected), "{read:?}");
        let waited = waiter.join().expect("it returns");
        assert!(matches!(waited, ErrorKind::Lost | ErrorKind::TimedOut), "{waited:?}");
    });
    wait::ended_in_time("operations on a dead node", began, 3 * timeout);
    eventually("it is lost", || kind(region.read(0, &mut [0; 8])) == ErrorKind::Lost);
    assert_eq!(region.state(), RegionState::Lost);
    let gone = kind(client.map_region("lost", Rights::READ, None));
    assert!(matches!(gone, ErrorKind::Lost | ErrorKind::NotFound), "{gone:?}");
    // The program of the dead daemon learns it as well, when the daemon no longer says that it lives.
    eventually("its own clients are told", || local.fetch_add(0, 1).is_err());
    assert_eq!(kind(local.read(0, &mut [0; 8])), ErrorKind::Disconnected);
}

#[test]
fn a_region_is_lost_for_whoever_maps_it_while_its_home_leaves() {
    if !own_namespaces() {
        return;
    }
    let cluster = Cluster::builder().nodes(3).start();
    let client = cluster.client(0);
    let options = RegionOptions { node: Some(cluster.client(1).node()), ..RegionOptions::default() };
    // The names of the regions are kept by several nodes, the home among them.
    let names: Vec<_> = (0..8).map(|number| format!("lost {number}")).collect();
    names.iter().for_each(|name| drop(client.create_region(name, 4096, &options).expect("there is room")));
    cluster.unplug(1);
    thread::scope(|threads| {
        let mut mapping = Vec::new();
        for name in &names {
            let client = cluster.client(0);
            mapping.push(threads.spawn(move || kind(client.map_region(name, Rights::READ, None))));
        }
        for (name, mapped) in names.iter().zip(mapping) {
            assert_eq!(mapped.join().expect("it returns"), ErrorKind::Lost, "{name}");
        }
    });
}

#[test]
fn a_home_that_stands_still_delays_nobody_beyond_the_time_out() {
    let timeout = Duration::from_secs(1);
    let cluster = Cluster::builder().nodes(2).args(&LONG_LEASE).start();
    let client = cluster.client(0);
    let options = RegionOptions { node: Some(cluster.client(1).node()), ..RegionOptions::default() };
    let far = client.create_region("far", MIB as u64, &options).expect("there is room").with_timeout(timeout);
    far.write(0, &[1; 5000]).expect("write");
    let called =
        client.create_region("called", 64, &unmappable()).expect("there is room").with_timeout(timeout);
    cluster.pause(1);
    let began = Instant::now();
    assert_eq!(kind(far.fetch_add(8, 1)), ErrorKind::OutcomeUnknown);
    assert_eq!(kind(far.write(16, &[2; 5000])), ErrorKind::OutcomeUnknown);
    assert_eq!(kind(far.read(0, &mut [0; 8])), ErrorKind::TimedOut);
    assert_eq!(kind(far.wait(0, word_of(1), timeout)), ErrorKind::TimedOut);
    wait::ended_in_time("four operations", began, 4 * timeout);
    let map =
        || client.map_region("far", Rights::READ, Some(timeout)).expect_err("it stands still").to_string();
    eventually("its node says that the home is silent", || map().contains("not found within the time-out"));
    // The node itself stands still: the client keeps the time.
    cluster.pause(0);
    let began = Instant::now();
    assert_eq!(kind(called.fetch_add(0, 1)), ErrorKind::OutcomeUnknown);
    assert_eq!(kind(called.read(0, &mut [0; 8])), ErrorKind::TimedOut);
    wait::ended_in_time("two operations", began, 2 * timeout);
    cluster.resume(0);
    cluster.resume(1);
    // A submitted operation is carried out once, or was dropped.
    let far = far.with_timeout(PATIENCE);
    far.fence().expect("fence");
    eventually("the home answers", || far.read(0, &mut [0; 8]).is_ok());
    let before = word(&far, 8);
    assert!([word_of(1), word_of(1) + 1].contains(&before), "{before}");
    assert!(word(&called.with_timeout(PATIENCE), 0) <= 1);
}

/// Word of eight bytes of this value.
fn word_of(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

#[test]
fn the_command_watches_a_word() {
    let cluster = Cluster::builder().nodes(2).start();
    let region = cluster.client(0).create_region("r", 64, &RegionOptions::default()).expect("there is room");
    let far = cluster.client(1).map_region("r", Rights::READ_WRITE, None).expect("it is there");
    for node in 0..2 {
        let mut command = Command::new(binary());
        command.args(["region", "watch", "r", "8", "--socket"]).arg(cluster.socket(node));
        let mut watch = command.stdout(Stdio::piped()).spawn().expect("plasmon runs");
        let mut lines = BufReader::new(watch.stdout.take().expect("it is a pipe")).lines();
        let mut next = || lines.next().expect("a line").expect("it is text");
        let first: u64 = next().parse().expect("a number");
        for add in 1..4 {
            far.fetch_add(8, 1).expect("add");
            assert_eq!(next(), (first + add).to_string());
        }
        watch.kill().expect("it is our child");
        watch.wait().expect("it is our child");
    }
    assert_eq!(word(&region, 8), 6);
}

#[test]
fn the_command_makes_reads_and_changes_regions() {
    let cluster = Cluster::builder().nodes(2).start();
    let (here, there) = (cluster.client(0).node().to_string(), cluster.client(1).node().to_string());
    let region = |node: usize, words: &[&str]| json(&cluster, node, &[&["region"], words].concat());
    assert_eq!(region(0, &["create", "r", "4KiB", "--node", &there])["home"], there);
    assert_eq!(region(0, &["create", "s", "64"])["home"], here);
    assert_eq!(region(1, &["ls"]).as_array().expect("a list").len(), 2);
    assert_eq!(region(1, &["info", "r"])["bytes"], 4096);
    std::fs::write(cluster.folder().join("in"), b"some bytes").expect("the folder is ours");
    assert_eq!(region(0, &["write", "r", "in", "--offset", "8"])["bytes"], 10);
    assert_eq!(region(1, &["read", "r", "-o", "out", "--offset", "8", "--size", "10"])["bytes"], 10);
    assert_eq!(std::fs::read(cluster.folder().join("out")).expect("it was written"), b"some bytes");
    assert_eq!(region(0, &["fill", "r", "7", "--offset", "8", "--size", "2"])["bytes"], 2);
    assert_eq!(region(0, &["copy", "s", "r", "--source-offset", "8", "--size", "10"])["bytes"], 10);
    region(1, &["read", "s", "-o", "out", "--size", "10"]);
    assert_eq!(std::fs::read(cluster.folder().join("out")).expect("it was written"), b"\x07\x07me bytes");
    assert_eq!(region(0, &["add", "r", "0"])["before"], 0);
    assert_eq!(region(1, &["add", "r", "0", "-1"])["before"], 1);
    assert_eq!(region(1, &["cas", "r", "0", "0", "0xff"])["swapped"], true);
    assert_eq!(region(1, &["cas", "r", "0", "0", "1"])["before"], 255);
    region(0, &["grant", "r", "everyone", "r"]);
    assert_eq!(region(0, &["info", "r"])["public"], "r");
    region(0, &["revoke", "r", "everyone"]);
    assert_eq!(region(0, &["info", "r"])["public"], "");
    let id = region(0, &["snapshot", "r", "--name", "o"])["id"].clone();
    assert_eq!(id, ObjectId::from_name("o").to_string());
    region(0, &["free", "r"]);
    assert_eq!(failure(&cluster, 0, &["region", "info", "r"]).0, 3);
    assert_eq!(failure(&cluster, 0, &["region", "create", "s", "64"]).0, 5);
    assert_eq!(failure(&cluster, 0, &["region", "add", "s", "3"]).0, 1);
    assert_eq!(failure(&cluster, 0, &["region", "read", "s", "--size", "65"]).0, 1);
}
