//! Two mounts of one volume, by two nodes.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::thread;

use plasmon_e2e::{Cluster, Pattern, eventually};

use super::{Mounted, can_mount};
use crate::support::MIB;

#[test]
fn what_one_mount_closed_the_other_opens() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    for (round, len) in [0, 10, 4097, 3 * MIB + 5, 20].into_iter().enumerate() {
        let (from, to) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let data = Pattern(round as u64).bytes(len);
        fs::write(from.path("shared"), &data).expect("write");
        assert!(fs::read(to.path("shared")).expect("read") == data, "round {round}");
    }
    // A part that is written anew leaves the rest as it is.
    fs::write(one.path("parts"), vec![1; 2 * MIB]).expect("write");
    let file = File::options().write(true).open(two.path("parts")).expect("open");
    std::os::unix::fs::FileExt::write_all_at(&file, &[2; 100], MIB as u64 - 50).expect("pwrite");
    file.sync_all().expect("fsync");
    drop(file);
    let read = fs::read(one.path("parts")).expect("read");
    assert!(read[..MIB - 50].iter().all(|byte| *byte == 1), "before");
    assert!(read[MIB - 50..MIB + 50].iter().all(|byte| *byte == 2), "the part");
    assert!(read[MIB + 50..].iter().all(|byte| *byte == 1) && read.len() == 2 * MIB, "behind");
}

#[test]
fn names_made_by_one_mount_are_seen_by_the_other() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    assert_eq!(fs::metadata(two.path("new")).expect_err("not yet").kind(), ErrorKind::NotFound);
    fs::create_dir(one.path("new")).expect("mkdir");
    eventually("the other mount sees the name", || two.path("new").is_dir());
    File::create_new(two.path("new/file")).expect("create");
    // O_EXCL is decided by the home, whatever a mount remembers.
    let again = File::create_new(one.path("new/file")).expect_err("it is there");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    fs::rename(two.path("new"), two.path("old")).expect("rename");
    eventually("the old name is gone", || !one.path("new").exists());
    assert!(one.path("old/file").exists());
}

#[test]
fn appends_of_two_hosts_lose_no_line() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let mounts = [Mounted::new(&cluster, 0), Mounted::new(&cluster, 1)];
    thread::scope(|scope| {
        for (writer, mounted) in mounts.iter().enumerate() {
            scope.spawn(move || {
                let mut file =
                    File::options().append(true).create(true).open(mounted.path("log")).expect("open");
                for line in 0..100 {
                    file.write_all(format!("{writer} {line}\n").as_bytes()).expect("append");
                }
            });
        }
    });
    for mounted in &mounts {
        let text = fs::read_to_string(mounted.path("log")).expect("read");
        for writer in 0..2 {
            let own: Vec<_> =
                text.lines().filter_map(|line| line.strip_prefix(&format!("{writer} "))).collect();
            let expected: Vec<String> = (0..100).map(|line| line.to_string()).collect();
            assert_eq!(own, expected);
        }
    }
}

#[test]
fn a_file_that_is_open_becomes_one_to_append_to() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    let mut file = File::create_new(one.path("log")).expect("create");
    file.write_all(b"one").expect("write");
    file.sync_all().expect("fsync");
    let mut other = File::options().append(true).open(two.path("log")).expect("open");
    other.write_all(b"two").expect("append");
    drop(other);
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND).expect("fcntl");
    file.write_all(b"three").expect("append");
    drop(file);
    assert_eq!(fs::read(two.path("log")).expect("read"), b"onetwothree");
}
