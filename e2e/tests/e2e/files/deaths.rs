//! Deaths around a mount: of the mount, of what waits, and of its node.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use plasmon_e2e::wait::ended_in_time;
use plasmon_e2e::{Cluster, Pattern, eventually, until};

use super::{Mounted, can_mount, kill, mount};
use crate::commands::json;
use crate::support::MIB;

#[test]
fn what_was_synced_outlives_the_mount_that_wrote_it() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("256MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    let data = Pattern(4).bytes(5 * MIB + 11);
    let mut file = File::create_new(mounted.path("synced")).expect("create");
    file.write_all(&data).expect("write");
    file.sync_all().expect("fsync");
    let each = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DSYNC)
        .open(mounted.path("each"));
    let mut each = each.expect("create");
    each.write_all(&data).expect("write, and sync");
    kill(mounted.pid);
    let error = fs::metadata(mounted.path("synced")).expect_err("nobody serves the folder");
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN");
    drop((file, each));
    // A folder whose mount died is mounted again.
    mount(&cluster, 0, mounted.root(), &[]);
    assert!(fs::read(mounted.path("synced")).expect("read") == data);
    assert!(fs::read(mounted.path("each")).expect("read") == data, "each write was synced");
    mounted.unmount_again();
}

#[test]
fn locks_of_a_mount_that_died_are_free() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let (mounted, other) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 0));
    let file = File::create_new(mounted.path("lock")).expect("create");
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&file, exclusive).expect("it is free");
    let elsewhere = File::open(other.path("lock")).expect("open");
    assert!(rustix::fs::flock(&elsewhere, exclusive).is_err(), "the first mount holds it");
    kill(mounted.pid);
    eventually("the lock is free", || rustix::fs::flock(&elsewhere, exclusive).is_ok());
}

impl Mounted {
    /// Unmounts a folder that was mounted again by another process.
    fn unmount_again(self) {
        let output = super::plasmon(&["umount", super::text(self.root())]);
        assert!(output.status.success(), "umount: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_mount_outlives_its_node() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    let by_second = Mounted::new(&cluster, 1);
    fs::write(by_second.path("synced"), Pattern(1).bytes(10_000)).expect("write");
    let open = File::options().append(true).open(by_second.path("synced")).expect("open");
    cluster.kill(1);
    cluster.start_again(1, &[]);
    // The first operation waits until the mount is attached anew.
    (&open).write_all(b"and more").expect("append to a file that was open");
    drop(open);
    File::create_new(by_second.path("new")).expect("create");
    fs::write(by_second.path("large"), Pattern(2).bytes(3 * MIB)).expect("write");
    assert_eq!(fs::metadata(mounted.path("synced")).expect("stat").len(), 10_008);
    assert!(fs::read(mounted.path("large")).expect("read") == Pattern(2).bytes(3 * MIB));
}

#[test]
fn a_program_that_waits_can_be_killed_and_waits_no_longer_than_was_said() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::with(&cluster, 0, &["--patience", "20", "--cache", "0"]);
    fs::write(mounted.path("file"), "x").expect("write");
    cluster.pause(0);
    let start = || Command::new("stat").arg(mounted.path("file")).spawn().expect("stat runs");
    let mut killed = start();
    until("the program waits for the mount", || {
        let wait = fs::read_to_string(format!("/proc/{}/wchan", killed.id())).unwrap_or_default();
        (wait.contains("fuse") || wait.contains("request_wait")).then_some(())
    });
    killed.kill().expect("it is our child");
    let ended = killed.wait().expect("it is our child");
    assert_eq!(ended.code(), None, "a signal ended it");
    let begun = Instant::now();
    let error = fs::metadata(mounted.path("file")).expect_err("the node stands still");
    assert_eq!(error.raw_os_error(), Some(5), "EIO");
    ended_in_time("the wait for the node", begun, Duration::from_secs(20));
    cluster.resume(0);
    eventually("the file is there again", || mounted.path("file").exists());
}

#[test]
fn lost_bytes_are_errors_and_those_with_copies_are_not_lost() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    json(&cluster, 0, &["volume", "create", "one"]);
    json(&cluster, 0, &["volume", "create", "two", "--copies", "2"]);
    let mount = |node, volume| Mounted::with(&cluster, node, &["--volume", volume, "--patience", "3"]);
    let writers = [mount(2, "one"), mount(2, "two")];
    let readers = [mount(0, "one"), mount(0, "two")];
    let data = Pattern(8).bytes(2 * MIB + 9);
    for writer in &writers {
        fs::write(writer.path("file"), &data).expect("write");
    }
    cluster.kill(2);
    let error = fs::read(readers[0].path("file")).expect_err("its only node is gone");
    assert_eq!(error.raw_os_error(), Some(5), "EIO");
    assert_eq!(fs::metadata(readers[0].path("file")).expect("stat").len(), data.len() as u64);
    assert!(fs::read(readers[1].path("file")).expect("read") == data);
}
