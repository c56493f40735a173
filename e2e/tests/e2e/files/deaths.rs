//! Deaths around a mount: of the mount, of what waits, and of its node.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

use plasmon_e2e::wait::ended_in_time;
use plasmon_e2e::{Cluster, Pattern, binary, eventually, until};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::process::Signal;

use super::ground::Folder;
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
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    flock(&file, exclusive).expect("it is free");
    let elsewhere = File::open(other.path("lock")).expect("open");
    assert!(flock(&elsewhere, exclusive).is_err(), "the first mount holds it");
    kill(mounted.pid);
    eventually("the lock is free", || flock(&elsewhere, exclusive).is_ok());
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
fn a_mount_by_a_relative_socket_outlives_its_node() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let (folder, socket) = (Folder::new(), cluster.socket(1));
    let (above, name) = (socket.parent().expect("a folder"), socket.file_name().expect("a name"));
    let mut command = Command::new(binary());
    command.current_dir(above).args(["mount", "--json", "--socket"]).arg(name).arg(folder.path());
    let mounted = Mounted::of(folder, &command.output().expect("plasmon runs"));
    File::create_new(mounted.path("file")).expect("create");
    cluster.kill(1);
    cluster.start_again(1, &[]);
    assert!(mounted.path("file").exists());
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

#[test]
fn bytes_of_a_session_that_ended_are_an_error_of_their_sync() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let (other, mounted) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    let lock = FlockOperation::NonBlockingLockExclusive;
    let held = File::create_new(mounted.path("lock")).expect("create");
    flock(&held, lock).expect("nobody has it");
    let theirs = File::open(other.path("lock")).expect("open");
    let file = File::create_new(mounted.path("file")).expect("create");
    let data = Pattern(6).bytes(MIB);
    file.write_all_at(&data, 0).expect("write");
    // The mount does not commit before it attaches anew.
    mounted.signal(Signal::STOP);
    cluster.pause(1);
    eventually("the session has ended", || flock(&theirs, lock).is_ok());
    cluster.resume(1);
    mounted.signal(Signal::CONT);
    match file.sync_all() {
        Err(error) => assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}"),
        // The machine was so slow that they were committed before.
        Ok(()) => assert!(fs::read(other.path("file")).expect("read") == data),
    }
    file.write_all_at(&data, 0).expect("the mount goes on");
    file.sync_all().expect("fsync");
    assert!(fs::read(other.path("file")).expect("read") == data);
}

#[test]
fn locks_that_went_while_the_node_was_away_are_an_error() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let (other, mounted) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    let [try_lock, unlock] = [FlockOperation::NonBlockingLockExclusive, FlockOperation::Unlock];
    for name in ["by-flock", "by-fcntl"] {
        let lock: fn(&File, FlockOperation) -> rustix::io::Result<()> =
            if name == "by-flock" { |file, how| flock(file, how) } else { |file, how| fcntl_lock(file, how) };
        let open = |mounted: &Mounted| {
            let mut options = File::options();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(mounted.path(name))
                .expect("open")
        };
        let held = open(&mounted);
        lock(&held, try_lock).expect("nobody has it");
        held.write_all_at(b"mine", 0).expect("write");
        held.sync_all().expect("fsync");
        held.write_all_at(b"lost", 0).expect("it waits for a commit");
        cluster.pause(1);
        let theirs = open(&other);
        eventually("the session of the lock has ended", || lock(&theirs, try_lock).is_ok());
        let mut bytes = [0; 4];
        theirs.read_exact_at(&mut bytes, 0).expect("read");
        assert!([b"mine", b"lost"].contains(&&bytes), "{bytes:?}");
        theirs.write_all_at(b"ours", 0).expect("write");
        lock(&theirs, unlock).expect("it is locked");
        cluster.resume(1);
        let errno = |result: std::io::Result<()>| result.expect_err("the lock is lost").raw_os_error();
        eventually("the mount knows", || held.write_all_at(b"lost", 0).is_err());
        assert_eq!(errno(held.write_all_at(b"lost", 0)), Some(5), "EIO");
        assert_eq!(lock(&held, try_lock), Err(rustix::io::Errno::IO), "as long as it is not unlocked");
        // Writes that waited are given up. The unlock tells it, and so does the next sync.
        let _ = lock(&held, unlock);
        let _ = held.sync_all();
        lock(&held, try_lock).expect("nobody has it");
        held.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"ours");
        held.write_all_at(b"more", 0).expect("write");
        held.sync_all().expect("fsync");
        lock(&held, unlock).expect("it is locked");
        lock(&theirs, try_lock).expect("nobody has it");
        theirs.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"more");
    }
}

#[test]
fn volumes_outlive_a_coordinator_that_begins_anew() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    let mounts = [1, 2].map(|node| Mounted::new(&cluster, node));
    let data = Pattern(6).bytes(3 * MIB);
    for (at, mounted) in mounts.iter().enumerate() {
        fs::write(mounted.path(&format!("synced {at}")), &data).expect("write");
    }
    cluster.kill(0);
    let members = |cluster: &Cluster, node: usize| {
        json(cluster, node, &["status"])["cluster"]["members"].as_array().map_or(0, Vec::len)
    };
    eventually("the others go on", || members(&cluster, 1) == 2);
    // Before anybody comes back, a mount makes another volume of the name.
    [1, 2].into_iter().for_each(|node| cluster.pause(node));
    cluster.start_again(0, &[]);
    let own = Mounted::new(&cluster, 0);
    fs::write(own.path("new"), b"new").expect("write");
    [1, 2].into_iter().for_each(|node| cluster.resume(node));
    fs::write(mounts[1].path("written"), &data).expect("the volume is not taken for lost");
    eventually("all are back", || {
        assert!(mounts.iter().all(|mounted| mounted.path("synced 0").exists()), "it is served all the time");
        [0, 1, 2].iter().all(|node| members(&cluster, *node) == 3)
    });
    for (at, mounted) in mounts.iter().enumerate() {
        assert!(fs::read(mounted.path(&format!("synced {}", 1 - at))).expect("read") == data);
        assert!(fs::read(mounted.path("written")).expect("read") == data);
    }
    // Files that were written to the new volume are not lost.
    let volumes = json(&cluster, 1, &["volume", "ls"]);
    let rows = volumes.as_array().expect("rows").iter().filter_map(|row| row["name"].as_str());
    let names: Vec<_> = rows.filter(|name| *name != "main").collect();
    let again = Mounted::with(&cluster, 2, &["--volume", names[0]]);
    assert_eq!(fs::read(again.path("new")).expect("read"), b"new", "{names:?}");
    assert_eq!(fs::read(own.path("new")).expect("read"), b"new", "who has it mounted is not disturbed");
}
