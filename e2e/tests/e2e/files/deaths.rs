//! Deaths around a mount: of the mount, of what waits, and of its node.

use std::fs::{self, File};
use std::io::Write;

use plasmon_e2e::{Cluster, Pattern, eventually};

use super::{Mounted, can_mount, kill, mount};
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
    kill(mounted.pid);
    let error = fs::metadata(mounted.path("synced")).expect_err("nobody serves the folder");
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN");
    drop(file);
    // A folder whose mount died is mounted again.
    mount(&cluster, 0, mounted.root(), &[]);
    assert!(fs::read(mounted.path("synced")).expect("read") == data);
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
