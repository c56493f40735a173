//! Volumes as programs use them without a mount.

use std::time::Duration;

use plasmon::files::{
    Actor, AttachOptions, Errno, FileKind, LockKind, OpenOptions, ROOT_INODE, Volume, WriteManner,
};
use plasmon_e2e::{Cluster, Pattern, eventually};

use crate::support::MIB;

fn attach(cluster: &Cluster, node: usize) -> Volume {
    let options = AttachOptions { create: true, ..AttachOptions::default() };
    Volume::attach(&cluster.client(node), "main", &options).expect("a volume")
}

#[test]
fn files_are_written_and_read_by_their_paths() {
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let (volume, other) = (attach(&cluster, 0), attach(&cluster, 1));
    volume.create_dir("/run", 0o755).expect("mkdir");
    for len in [0, 100, 5_000, 3 * MIB + 7] {
        let data = Pattern(len as u64).bytes(len);
        let path = format!("/run/{len}");
        let file = volume.open(&path, OpenOptions::new().write(true).create_new(true)).expect("create");
        file.write_at(&data, 0).expect("write");
        file.close().expect("close");
        let file = other.open(&path, OpenOptions::new().read(true)).expect("open by the other node");
        let mut read = vec![0; len + 10];
        assert_eq!(file.read_at(&mut read, 0).expect("read"), len);
        assert!(read[..len] == data, "{len} bytes differ");
    }
    let again = volume.open("/run/0", OpenOptions::new().write(true).create_new(true));
    assert_eq!(again.expect_err("it is there").errno(), Errno::Exists);
    let error = volume.metadata("/nowhere/file").expect_err("no folder");
    assert_eq!(error.errno(), Errno::NotFound);
    assert!(error.to_string().starts_with("/nowhere/file: "), "{error}");
    names(&volume);
}

fn names(volume: &Volume) {
    volume.symlink("run", "/link").expect("symlink");
    assert_eq!(volume.metadata("/link/100").expect("followed").size, 100);
    volume.symlink("loop", "/loop").expect("symlink");
    assert_eq!(volume.metadata("/loop").expect_err("endless").errno(), Errno::IsLink);
    volume.rename("/run/100", "/run/renamed", true).expect("rename");
    let taken = volume.rename("/run/0", "/run/renamed", true).expect_err("taken");
    assert_eq!(taken.errno(), Errno::Exists);
    volume.remove_file("/run/renamed").expect("unlink");
    let mut names: Vec<_> =
        volume.read_dir("/run").expect("opendir").map(|entry| entry.expect("readdir").name).collect();
    names.sort();
    assert_eq!(names, [b"0".to_vec(), (3 * MIB + 7).to_string().into_bytes(), b"5000".to_vec()]);
    assert_eq!(volume.metadata("/").expect("stat").kind, FileKind::Folder);
    assert_eq!(volume.remove_dir("/run").expect_err("full").errno(), Errno::NotEmpty);
}

#[test]
fn a_file_that_is_made_although_its_name_is_taken_is_cut_with_the_bytes_that_wait() {
    let cluster = Cluster::builder().nodes(2).start();
    let (volume, other) = (attach(&cluster, 0), attach(&cluster, 1));
    let actor = Actor::default();
    let mut options = OpenOptions::new();
    options.write(true);
    let first = volume.create(&actor, ROOT_INODE, b"file", 0o644, &options).expect("create");
    let inode = first.entry.attributes.inode;
    let mut buffer = volume.buffer();
    buffer.bytes()[..5].copy_from_slice(b"first");
    assert_eq!(volume.write(inode, 0, &mut buffer, 5, WriteManner::default()).expect("write"), 5);
    let second = volume.create(&actor, ROOT_INODE, b"file", 0o644, options.truncate(true)).expect("create");
    assert_eq!((second.entry.attributes.inode, second.created), (inode, false));
    assert_eq!(second.entry.attributes.size, 0);
    for opened in [first, second] {
        volume.close(inode, &opened.seen).expect("close");
    }
    assert_eq!(other.metadata("/file").expect("stat").size, 0, "what was written before is cut");
}

#[test]
fn appends_and_locks_are_decided_by_the_home() {
    let cluster = Cluster::builder().nodes(2).start();
    let (volume, other) = (attach(&cluster, 0), attach(&cluster, 1));
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    let (one, two) =
        (volume.open("/log", &options).expect("open"), other.open("/log", &options).expect("open"));
    assert_eq!(one.append(b"first").expect("append"), 0);
    assert_eq!(two.append(&vec![2; 5_000]).expect("append"), 5);
    assert_eq!(one.append(b"last").expect("append"), 5_005);
    assert_eq!(two.metadata().expect("stat").size, 5_009);
    one.lock(LockKind::Exclusive, (0, 10), None).expect("it is free");
    assert_eq!(two.lock(LockKind::Shared, (5, 10), None).expect_err("held").errno(), Errno::Again);
    two.lock(LockKind::Shared, (10, 10), None).expect("another range");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| two.lock(LockKind::Exclusive, (0, 1), Some(Duration::from_secs(60))));
        one.lock(LockKind::Unlocked, (0, 0), None).expect("unlock");
        waiting.join().expect("no panic").expect("the lock was given");
    });
    // The locks of a process end with its first close of the file.
    drop(two);
    one.lock(LockKind::Exclusive, (0, 0), None).expect("nobody holds it");
    one.close().expect("close");
    let again = other.open("/log", &options).expect("open");
    again.lock(LockKind::Exclusive, (0, 0), None).expect("nobody holds it");
}

#[test]
fn many_small_pieces_of_a_small_file_are_committed() {
    let cluster = Cluster::builder().start();
    let volume = attach(&cluster, 0);
    let file = volume.open("/pieces", OpenOptions::new().read(true).write(true).create(true)).expect("open");
    let mut expected = vec![0; 100 * 40];
    for (number, place) in expected.chunks_mut(40).enumerate().rev() {
        let piece = Pattern(number as u64).bytes(10);
        place[..10].copy_from_slice(&piece);
        file.write_at(&piece, number as u64 * 40).expect("write");
    }
    file.sync().expect("sync");
    expected.truncate(99 * 40 + 10);
    let mut read = vec![0; expected.len() + 1];
    let again = attach(&cluster, 0).open("/pieces", OpenOptions::new().read(true)).expect("open");
    assert_eq!(again.read_at(&mut read, 0).expect("read"), expected.len());
    assert!(read[..expected.len()] == expected);
}

#[test]
fn a_file_that_stays_open_shows_what_others_write() {
    let cluster = Cluster::builder().nodes(2).start();
    let (volume, other) = (attach(&cluster, 0), attach(&cluster, 1));
    let writer = volume.open("/shared", OpenOptions::new().write(true).create(true)).expect("open");
    writer.write_at(b"before", 0).expect("write");
    writer.sync().expect("sync");
    let reader = other.open("/shared", OpenOptions::new().read(true)).expect("open");
    let read = || {
        let mut bytes = [0; 20];
        let len = reader.read_at(&mut bytes, 0).expect("read");
        bytes[..len].to_vec()
    };
    assert_eq!(read(), b"before");
    writer.write_at(b"after that", 0).expect("write");
    writer.sync().expect("sync");
    eventually("the reader sees it", || read() == b"after that");
    writer.set_len(5).expect("cut");
    eventually("the reader sees the end", || read() == b"after");
}
