//! Room of volumes and quotas of users: what has no room is refused by `write(2)`, and what was accepted is
//! there afterwards.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::thread;

use plasmon::files::{Actor, AttachOptions, Errno, OpenOptions, Volume, VolumeChange, VolumeTerms, Volumes};
use plasmon_e2e::{Cluster, Pattern, eventually, until};
use rustix::fs::{SeekFrom, seek, statvfs};
use rustix::io::pwrite;

use super::{Mounted, can_mount, kill};
use crate::commands::{failure, json, output};
use crate::support::MIB;

/// Error number of Linux for a full volume.
const ENOSPC: i32 = 28;
/// Error number of Linux for an exceeded quota.
const EDQUOT: i32 = 122;

const KIB: usize = 1 << 10;
/// Size in bytes of a write.
const PIECE: usize = 64 << 10;

fn create(cluster: &Cluster, terms: VolumeTerms) {
    Volumes::by(&cluster.client(0)).create("main", None, terms).expect("a volume");
}

fn of_capacity(capacity: usize) -> VolumeTerms {
    VolumeTerms { capacity: capacity as u64, ..VolumeTerms::default() }
}

/// Writes pieces to a file until one is refused. Returns how many bytes were accepted, and why no more.
fn fill(mut file: &File, seed: u64, piece: usize) -> (usize, Option<i32>) {
    let mut accepted = 0;
    loop {
        // Only a part of the last piece may have room.
        let done = accepted % piece;
        match file.write(&Pattern(seed + (accepted - done) as u64).bytes(piece)[done..]) {
            Ok(len) => accepted += len,
            Err(error) => return (accepted, error.raw_os_error()),
        }
    }
}

/// Compares a file with what [`fill`] has written.
fn check(path: &Path, seed: u64, piece: usize, accepted: usize) {
    let read = fs::read(path).expect("read");
    assert_eq!(read.len(), accepted);
    for (number, bytes) in read.chunks(piece).enumerate() {
        Pattern(seed + (number * piece) as u64).check(bytes);
    }
}

/// Capacity of a mounted volume, and bytes of it that may still be written, as `df` tells them.
fn df(mounted: &Mounted) -> (u64, u64) {
    let told = statvfs(mounted.root()).expect("statvfs");
    (told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize)
}

#[test]
fn a_write_is_refused_when_the_volume_is_full_and_what_was_accepted_is_there() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let capacity = 12 * MIB;
    create(&cluster, of_capacity(capacity));
    let [here, there] = [0, 1].map(|node| Mounted::new(&cluster, node));
    assert_eq!(df(&here), (capacity as u64, capacity as u64));
    let file = File::create_new(here.path("dd")).expect("create");
    let (accepted, errno) = fill(&file, 7, MIB);
    assert_eq!((accepted, errno), (capacity, Some(ENOSPC)));
    assert_eq!(df(&here), (capacity as u64, 0), "what waits is counted");
    file.sync_all().expect("what was accepted has room");
    drop(file);
    check(&there.path("dd"), 7, MIB, capacity);
    assert_eq!(df(&there), (capacity as u64, 0));
    // Bytes that replace other bytes take no room.
    let file = File::options().write(true).open(there.path("dd")).expect("open");
    assert_eq!(pwrite(&file, &Pattern(7).bytes(MIB), 0), Ok(MIB));
    let last = *fs::read(there.path("dd")).expect("read").last().expect("it has bytes");
    assert_eq!(pwrite(&file, &[last; 2], capacity as u64 - 1), Ok(1), "one byte is too many");
    drop(file);
    check(&here.path("dd"), 7, MIB, capacity);
    let mut log = File::options().append(true).create(true).open(here.path("log")).expect("open");
    assert_eq!(log.write(b"a line\n").map_err(|error| error.raw_os_error()).err(), Some(Some(ENOSPC)));
    // Others get the room of a file that is removed.
    fs::remove_file(here.path("dd")).expect("unlink");
    eventually("it is closed everywhere", || df(&there).1 == capacity as u64);
    let file = File::create_new(there.path("again")).expect("create");
    assert_eq!(fill(&file, 9, MIB), (capacity, Some(ENOSPC)));
    file.set_len(MIB as u64).expect("ftruncate");
    file.sync_all().expect("fsync");
    log.write_all(b"a line\n").expect("there is room");
    assert_eq!(fs::read(there.path("log")).expect("read"), b"a line\n");
}

#[test]
fn a_write_for_whose_beginning_there_is_room_writes_that() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let limit = MIB + 300 * KIB;
    create(&cluster, of_capacity(limit));
    let mounted = Mounted::new(&cluster, 1);
    let write_all = |mut file: &File, errno| {
        let data = Pattern(3).bytes(3 * MIB);
        assert_eq!(file.write(&data[..MIB]).expect("there is room"), MIB);
        assert_eq!(file.write(&data[MIB..2 * MIB]).expect("there is room for a part"), 300 * KIB);
        let refused = file.write(&data[limit..]).expect_err("the volume is full");
        assert_eq!(refused.raw_os_error(), Some(errno));
        file.sync_all().expect("what was accepted has room");
        let inside = limit - 64 * KIB;
        let over = pwrite(file, &data[inside..inside + 128 * KIB], inside as u64);
        assert_eq!(over.expect("what lies over bytes needs no room"), 64 * KIB);
        file.sync_all().expect("what was accepted has room");
    };
    let path = mounted.path("file");
    let remove = |owner| {
        fs::remove_file(&path).expect("unlink");
        let usage = || attach(&cluster, 0).usage(&Actor { uid: owner, ..Actor::default() }).expect("usage");
        eventually("the room is free", || usage().available >= limit as u64);
    };
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=1M", "count=3"]).arg(format!("of={}", path.display()));
    let dd = dd.env("LC_ALL", "C").output().expect("dd runs");
    assert!(!dd.status.success() && String::from_utf8_lossy(&dd.stderr).contains("No space left"), "{dd:?}");
    assert_eq!(fs::metadata(&path).expect("stat").len(), limit as u64);
    remove(0);
    // The kernel has pages of files that are read, too.
    for reads in [false, true] {
        let file = File::options().read(reads).write(true).create_new(true).open(&path).expect("create");
        write_all(&file, ENOSPC);
        drop(file);
        let read = fs::read(&path).expect("read");
        assert_eq!(read.len(), limit);
        Pattern(3).check(&read);
        remove(0);
    }
    let quota = limit.to_string();
    json(&cluster, 0, &["volume", "set", "main", "--capacity", "none", "--user-quota", &quota]);
    let file = File::create_new(&path).expect("create");
    chown(&path, Some(1000), None).expect("chown");
    write_all(&file, EDQUOT);
    drop(file);
    let read = fs::read(&path).expect("read");
    assert_eq!(read.len(), limit);
    Pattern(3).check(&read);
    remove(1000);
}

#[test]
fn hosts_that_write_at_once_share_the_last_bytes() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let capacity = 24 * MIB;
    create(&cluster, of_capacity(capacity));
    let mounts = [0, 1].map(|node| Mounted::new(&cluster, node));
    let accepted: Vec<usize> = thread::scope(|scope| {
        let fill = |number: usize| {
            let file = File::create_new(mounts[number].path(&number.to_string())).expect("create");
            let (accepted, errno) = fill(&file, number as u64, PIECE);
            assert_eq!(errno, Some(ENOSPC));
            file.sync_all().expect("what was accepted has room");
            accepted
        };
        let writers = [0, 1].map(|number| scope.spawn(move || fill(number)));
        writers.into_iter().map(|writer| writer.join().expect("it ends")).collect()
    });
    let both: usize = accepted.iter().sum();
    assert_eq!(both, capacity, "{accepted:?}");
    for number in 0..2 {
        check(&mounts[1 - number].path(&number.to_string()), number as u64, PIECE, accepted[number]);
    }
}

#[test]
fn a_write_beyond_the_quota_of_the_owner_is_refused() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    create(&cluster, VolumeTerms { user_quota: 3 * MIB as u64, ..VolumeTerms::default() });
    let mounted = Mounted::new(&cluster, 1);
    let file = |name: &str, owner| {
        let file = File::create_new(mounted.path(name)).expect("create");
        chown(mounted.path(name), Some(owner), None).expect("chown");
        file
    };
    let (own, alices) = (file("own", 0), file("alices", 1000));
    assert_eq!(fill(&alices, 1, PIECE), (3 * MIB, Some(EDQUOT)));
    alices.sync_all().expect("fsync");
    assert_eq!(fill(&own, 2, PIECE), (3 * MIB, Some(EDQUOT)), "another user has room");
    own.sync_all().expect("fsync");
    assert_eq!(df(&mounted).1, 0, "root has none left");
    let more = file("more", 1000);
    assert_eq!(fill(&more, 3, PIECE), (0, Some(EDQUOT)));
    fs::remove_file(mounted.path("alices")).expect("unlink");
    drop(alices);
    let written = || match fill(&more, 3, PIECE) {
        (0, _) => None,
        (accepted, _) => Some(accepted),
    };
    assert_eq!(until("the removed file is closed", written), 3 * MIB);
}

#[test]
fn what_was_accepted_is_there_after_another_host_gave_the_file_away() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let (quota, capacity) = (3 * MIB, 6 * MIB);
    let terms = VolumeTerms { user_quota: quota as u64, ..of_capacity(capacity) };
    create(&cluster, terms);
    let [here, there] = [0, 1].map(|node| Mounted::new(&cluster, node));
    let file = File::create_new(here.path("file")).expect("create");
    let full = File::create_new(there.path("full")).expect("create");
    chown(there.path("full"), Some(1000), None).expect("chown");
    assert_eq!(fill(&full, 1, PIECE), (quota, Some(EDQUOT)));
    full.sync_all().expect("fsync");
    let accepted = quota / 2;
    eventually("the file is given away before anything of it is committed", || {
        file.set_len(0).expect("ftruncate");
        pwrite(&file, &Pattern(2).bytes(accepted), 0).expect("write");
        chown(there.path("file"), Some(1000), None).is_ok()
    });
    file.sync_all().expect("what was accepted has room");
    drop(file);
    check(&there.path("file"), 2, accepted, accepted);
    let file = File::options().append(true).open(here.path("file")).expect("open");
    assert_eq!(fill(&file, 1, PIECE), (0, Some(EDQUOT)), "the new owner has more than the quota");
}

#[test]
fn the_credit_of_a_mount_that_is_killed_comes_back() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let capacity = 100 * MIB;
    create(&cluster, of_capacity(capacity));
    let [dies, lives] = [1, 0].map(|node| Mounted::new(&cluster, node));
    let file = File::create_new(dies.path("file")).expect("create");
    eventually("the status of the home tells of credit", || {
        assert_eq!(pwrite(&file, &[1; PIECE], 0), Ok(PIECE));
        let told = String::from_utf8(output(&cluster, 0, &["status"])).expect("it is text");
        told.contains("  credit  ") && cluster.status(0).files.credit >= PIECE as u64
    });
    kill(dies.pid);
    drop(file);
    let file = File::create_new(lives.path("file-2")).expect("create");
    let all = until("the room is free", || {
        file.set_len(0).expect("ftruncate");
        let lost = fs::metadata(lives.path("file")).expect("stat").len() as usize;
        seek(&file, SeekFrom::Start(0)).expect("lseek");
        let (accepted, errno) = fill(&file, 4, MIB);
        assert_eq!(errno, Some(ENOSPC));
        (accepted + MIB > capacity - lost).then_some(accepted)
    });
    file.sync_all().expect("fsync");
    check(&lives.path("file-2"), 4, MIB, all);
    eventually("what was not used is given back", || cluster.status(0).files.credit == 0);
}

#[test]
fn limits_that_are_set_later_hold_for_mounts_that_are_there() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    create(&cluster, VolumeTerms::default());
    let mounted = Mounted::new(&cluster, 1);
    let free = df(&mounted).1;
    let memory: u64 = [0, 1].map(|node| cluster.status(node).memory.capacity).iter().sum();
    assert!(free > memory / 2 && free <= memory, "{free} of the {memory} bytes of both nodes are free");
    fs::write(mounted.path("before"), vec![1; MIB]).expect("write");
    json(&cluster, 0, &["volume", "set", "main", "--capacity", "2MiB", "--inodes", "9"]);
    assert_eq!(df(&mounted), (2 * MIB as u64, MIB as u64));
    let file = File::create_new(mounted.path("after")).expect("create");
    assert_eq!(fill(&file, 5, PIECE), (MIB, Some(ENOSPC)));
    let (_, message) = failure(&cluster, 0, &["volume", "set", "main", "--capacity", "0"]);
    assert!(message.contains("'none'"), "{message}");
    let lifted = ["--capacity", "none", "--user-quota", "none", "--inodes", "none"];
    let told = json(&cluster, 0, &[&["volume", "set", "main"], &lifted[..]].concat());
    let limits = ["capacity", "user_quota", "most_inodes"].map(|limit| told[limit].as_u64());
    assert_eq!(limits, [Some(0); 3], "{told}");
    assert!(df(&mounted).1 > memory / 2);
    fs::write(mounted.path("more"), vec![1; 5 * MIB]).expect("there is no limit");
}

fn attach(cluster: &Cluster, node: usize) -> Volume {
    Volume::attach(&cluster.client(node), "main", &AttachOptions::default()).expect("it is there")
}

#[test]
fn what_was_accepted_has_room_at_the_mirror_that_takes_over() {
    let mut cluster = Cluster::builder().nodes(3).memory("256MiB").start();
    let (coordinator, home) = (0, 1);
    let created = ["volume", "create", "main", "--capacity", "16MiB"];
    json(&cluster, home, &created);
    let row = || json(&cluster, coordinator, &["volume", "ls"])[0].clone();
    until("the volume has a mirror", || row()["mirrors"][0].as_str().map(str::to_owned));
    let (first, second) = (attach(&cluster, coordinator), attach(&cluster, 2));
    let data = Pattern(1).bytes(4 * MIB);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true);
    let ours = first.open("/ours", options).expect("create");
    let theirs = second.open("/theirs", options).expect("create");
    ours.write_at(&data, 0).expect("write");
    cluster.kill(home);
    let piece = vec![2; MIB];
    let refused = (0..20).find_map(|at| theirs.write_at(&piece, at * MIB as u64).err());
    let refused = refused.expect("20 MiB do not fit");
    assert_eq!(refused.errno(), Errno::Full, "{refused}");
    ours.sync().expect("what was accepted has room");
    theirs.sync().expect("what was accepted has room");
    let mut read = vec![0; data.len()];
    let ours = second.open("/ours", OpenOptions::new().read(true)).expect("open");
    assert_eq!(ours.read_at(&mut read, 0).expect("read"), data.len());
    assert!(read == data);
    let usage = second.usage(&Actor::default()).expect("usage");
    assert_eq!((usage.used, usage.free), (16 * MIB as u64, 0));
}

#[test]
fn threads_of_one_session_share_the_last_bytes() {
    let cluster = Cluster::builder().memory("256MiB").start();
    let capacity = 8 * MIB;
    create(&cluster, of_capacity(capacity));
    let volume = attach(&cluster, 0);
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true);
    let files: Vec<_> =
        (0..8).map(|number| volume.open(format!("/{number}"), options).expect("create")).collect();
    for round in 0..50 {
        thread::scope(|scope| {
            for file in &files {
                scope.spawn(move || {
                    // Each is given more than it needs, which the others are to have.
                    let written = file.write_at(&vec![round; MIB], 0);
                    written.unwrap_or_else(|error| panic!("round {round}: there is room: {error}"));
                    file.sync().expect("what was accepted has room");
                });
            }
        });
        let usage = volume.usage(&Actor::default()).expect("usage");
        assert_eq!((usage.used, usage.free), (capacity as u64, 0));
        files.iter().for_each(|file| file.set_len(0).expect("ftruncate"));
    }
}

#[test]
fn a_volume_without_limits_asks_for_no_credit() {
    let cluster = Cluster::builder().memory("128MiB").start();
    create(&cluster, VolumeTerms::default());
    let asked = || cluster.status(0).files.asked;
    let volume = attach(&cluster, 0);
    let write = |name: &str| {
        let file = volume.open(name, OpenOptions::new().write(true).create(true)).expect("create");
        let before = asked();
        (0..3).for_each(|at| file.write_at(&[1; PIECE], at * PIECE as u64).expect("write"));
        file.sync().expect("fsync");
        asked() - before
    };
    assert_eq!(write("/free"), 1, "a commit");
    let limit = VolumeChange { capacity: Some(8 * MIB as u64), ..VolumeChange::default() };
    Volumes::by(&cluster.client(0)).set("main", limit).expect("set");
    assert!(write("/limited") >= 2, "credit and a commit");
}
