//! Files: volumes that are mounted, as programs use them.
//!
//! A mount needs root and `/dev/fuse`; without them these tests say so and end. Each mount is a process of
//! the host on which the tests run: what ties it to a node is the node's socket.

mod abuse;
mod chaos;
mod check;
mod coherence;
mod copies;
mod crowds;
mod data;
mod deaths;
mod fstab;
mod ground;
mod homes;
mod lookahead;
mod mapped;
mod mapping;
mod mirrors;
mod names;
mod native;
mod ofd;
mod place;
mod posix;
mod programs;
mod random;
mod removed;
mod room;
mod shared;
mod show;
mod spilling;
mod strangers;
mod system;
mod tidy;
mod users;
mod waits;
mod writing;

use std::fs::{self, File};
use std::io::Error;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Cluster, binary, eventually};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use self::ground::Folder;

/// Whether folders can be mounted here. Gives this thread descriptors of its own: every test on mounts begins
/// with it.
fn can_mount() -> bool {
    own_descriptors();
    let can = geteuid().is_root() && File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        eprintln!("skipped: mounting takes root and /dev/fuse");
    }
    can
}

/// Gives this thread a table of descriptors of its own, which is empty but for the standard ones.
///
/// A daemon is started by a child of this process, which has all descriptors of the thread that forks until
/// it executes the daemon's program. Then the kernel closes them, and each close of a file on a mount is a
/// request to the mount: with such files among them, a node would wait for a mount that waits for this node,
/// and a test for the mounts of others.
fn own_descriptors() {
    // SAFETY: nothing of this thread has a descriptor yet, and those of other threads stay as they are.
    let done = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_UNSHARE as i32) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
}

/// Tries a case again, if it fails after a host was late: a home waits for no host longer than a second, and
/// asks a late host again after 10 s.
fn unless_late(cluster: &Cluster, case: impl Fn(usize)) {
    const ATTEMPTS: usize = 5;
    for attempt in 0.. {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(attempt))) else { return };
        if attempt == ATTEMPTS || cluster.status(0).files.missed == 0 {
            resume_unwind(panic);
        }
        let_pass(Duration::from_secs(11), "a host that was late is asked again");
    }
}

/// Volume that is mounted at a folder of its own.
struct Mounted {
    folder: Folder,
    pid: Pid,
}

impl Mounted {
    /// Mounts the volume `main` by a node.
    fn new(cluster: &Cluster, node: usize) -> Self {
        Self::with(cluster, node, &[])
    }

    /// Mounts by a node, with options.
    fn with(cluster: &Cluster, node: usize, options: &[&str]) -> Self {
        let folder = Folder::new();
        let pid = mount(cluster, node, folder.path(), options);
        Self { folder, pid }
    }

    /// Folder that a command has mounted.
    fn of(folder: Folder, output: &Output) -> Self {
        Self { folder, pid: pid_of(output) }
    }

    /// Path of a name in the volume.
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Sends the mount's process a signal.
    fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("the process is ours");
    }

    /// Unmounts, as a user does, and waits until the process has ended.
    fn unmount(self) {
        let output = plasmon(&["umount", text(self.root())]);
        assert!(output.status.success(), "umount: {}", String::from_utf8_lossy(&output.stderr));
        eventually("the mount's process ends", || has_ended(self.pid));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After `unmount` nothing is mounted, which the command says.
        let _ = plasmon(&["umount", "--force", text(self.root())]);
    }
}

/// Whether a process has ended, with all its threads, so that what it had open is closed. Its entry may stay,
/// because the first process of some machines waits for the children of others once in a while, or never.
fn has_ended(pid: Pid) -> bool {
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    let is_dead =
        stat.rsplit(") ").next().is_none_or(|state| state.is_empty() || state.starts_with(['Z', 'X']));
    // The first thread may be dead while others are not yet.
    is_dead && fs::read_dir(process.join("task")).map_or(0, Iterator::count) <= 1
}

/// Mounts a folder by a node. Returns the process that serves it.
fn mount(cluster: &Cluster, node: usize, folder: &Path, options: &[&str]) -> Pid {
    pid_of(&try_mount(cluster, node, folder, options))
}

/// Process that a command has started to serve a folder.
fn pid_of(output: &Output) -> Pid {
    assert!(output.status.success(), "mount: {}", String::from_utf8_lossy(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    Pid::from_raw(told["pid"].as_i64().expect("a number") as i32).expect("a process")
}

fn try_mount(cluster: &Cluster, node: usize, folder: &Path, options: &[&str]) -> Output {
    let log = cluster.folder().join("mount.log");
    let mut command = Command::new(binary());
    command.args(["mount", "--json", "--log", text(&log)]).arg("--socket").arg(cluster.socket(node));
    command.args(options).arg(folder).output().expect("plasmon runs")
}

/// Runs the command `plasmon`.
fn plasmon(words: &[&str]) -> Output {
    Command::new(binary()).args(words).output().expect("plasmon runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("folders of tests have plain names")
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("the process is ours");
    eventually("the process is gone", || has_ended(pid));
}
