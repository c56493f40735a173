//! Programs that wait for a node that is away: each can be killed, and none waits for longer than was said.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use plasmon_e2e::wait::{ended_in_time, let_pass};
use plasmon_e2e::{Cluster, EtcdOptions, Pattern, eventually};
use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::{Mounted, can_mount};
use crate::commands::json;
use crate::support::MIB;

/// Number of programs: more than a mount has threads.
const PROGRAMS: usize = 40;

/// Starts programs of which each looks at a name of its own, and waits until all of them wait for the mount.
fn waiting(mounted: &Mounted) -> Vec<Child> {
    let start = |number| {
        let mut command = Command::new("stat");
        command.arg(mounted.path(&format!("file{number}"))).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("stat runs")
    };
    let programs: Vec<Child> = (0..PROGRAMS).map(start).collect();
    eventually("all programs wait for the mount", || programs.iter().all(waits));
    programs
}

/// Whether a program waits for a mount.
fn waits(program: &Child) -> bool {
    let wait = fs::read_to_string(format!("/proc/{}/wchan", program.id())).unwrap_or_default();
    wait.contains("fuse") || wait.contains("request_wait")
}

/// Kills programs, which end.
fn kill_all(mut programs: Vec<Child>) {
    programs.iter_mut().for_each(|program| program.kill().expect("it is our child"));
    for program in &mut programs {
        eventually("a program that was killed ends", || {
            let ended = program.try_wait().expect("it is our child");
            ended.inspect(|ended| assert_eq!(ended.code(), None, "a signal ended it")).is_some()
        });
    }
}

#[test]
fn all_programs_that_wait_for_a_node_that_stands_still_can_be_killed() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::with(&cluster, 0, &["--patience", "600", "--cache", "0"]);
    cluster.pause(0);
    kill_all(waiting(&mounted));
    // Requests of programs that were killed in turn hold up no other.
    kill_all(waiting(&mounted));
    cluster.resume(0);
    fs::write(mounted.path("file"), "x").expect("the mount goes on");
}

#[test]
fn all_programs_that_wait_for_a_node_that_died_can_be_killed() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(2).start();
    let mounted = Mounted::with(&cluster, 1, &["--patience", "600", "--cache", "0"]);
    cluster.kill(1);
    kill_all(waiting(&mounted));
    cluster.start_again(1, &[]);
    fs::write(mounted.path("file"), "x").expect("the mount goes on");
}

#[test]
fn a_program_that_waits_for_a_lock_can_be_killed_while_the_node_stands_still() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::with(&cluster, 0, &["--patience", "600"]);
    let held = File::create_new(mounted.path("lock")).expect("create");
    flock(&held, FlockOperation::LockExclusive).expect("nobody has it");
    let program = Command::new("flock").arg(mounted.path("lock")).arg("true").spawn().expect("flock runs");
    eventually("the program waits for the lock", || waits(&program));
    cluster.pause(0);
    let_pass(Duration::from_millis(200), "the wait asks the node each 20 ms");
    kill_all(vec![program]);
    cluster.resume(0);
    flock(&held, FlockOperation::Unlock).expect("it is locked");
    flock(&held, FlockOperation::LockExclusive).expect("nobody has it");
}

#[test]
fn a_lock_ends_although_its_close_found_no_node() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(2).start();
    let (other, mounted) = (Mounted::new(&cluster, 0), Mounted::with(&cluster, 1, &["--patience", "1"]));
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    let open = |mounted: &Mounted, name| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(mounted.path(name)).expect("open")
    };
    let [closed, again] = ["closed", "again"].map(|name| open(&mounted, name));
    for file in [&closed, &again] {
        fcntl_lock(file, exclusive).expect("nobody has it");
    }
    cluster.kill(1);
    // Each close waits until the patience is over.
    drop((closed, again));
    cluster.start_again(1, &[]);
    let theirs = open(&other, "closed");
    eventually("the lock is free", || fcntl_lock(&theirs, exclusive).is_ok());
    // A program locks a file again that it has closed.
    let again = open(&mounted, "again");
    eventually("the mount is attached anew", || fcntl_lock(&again, exclusive).is_ok());
    let_pass(Duration::from_secs(1), "the session tells what is left several times a second");
    assert!(fcntl_lock(open(&other, "again"), exclusive).is_err(), "no late unlock has ended it");
}

#[test]
fn more_programs_than_threads_are_served() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::with(&cluster, 0, &["--threads", "2", "--cache", "0"]);
    // Writes of several sizes wait with their bytes.
    cluster.pause(0);
    let start = |number: usize| {
        let to = mounted.path(&format!("file{number}"));
        let bytes = format!("head -c {} /dev/zero | tr '\\0' {} > \"$0\"", number * 200_001, number % 10);
        Command::new("sh").args(["-ec", &bytes]).arg(to).spawn().expect("sh runs")
    };
    let programs: Vec<Child> = (0..16).map(start).collect();
    cluster.resume(0);
    for mut program in programs {
        assert!(program.wait().expect("it is our child").success());
    }
    for number in 0..16 {
        let read = fs::read(mounted.path(&format!("file{number}"))).expect("read");
        let digit = b'0' + (number % 10) as u8;
        assert!(read.len() == number * 200_001 && read.iter().all(|byte| *byte == digit), "file {number}");
    }
}

#[test]
fn a_sync_that_waits_for_copies_ends_in_time_and_its_bytes_wait() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(2).memory("128MiB").etcd(EtcdOptions::default()).start();
    json(&cluster, 0, &["volume", "create", "two", "--copies", "2"]);
    let patience = Duration::from_secs(4);
    let mounted = Mounted::with(&cluster, 0, &["--volume", "two", "--patience", "4", "--cache", "0"]);
    let file = File::create_new(mounted.path("file")).expect("create");
    cluster.kill_etcd(0);
    eventually("the nodes are fenced", || (0..2).all(|node| cluster.status(node).cluster.fenced));
    let data = Pattern(3).bytes(2 * MIB + 7);
    file.write_all_at(&data, 0).expect("it needs no other node");
    for _ in 0..2 {
        let begun = Instant::now();
        let error = file.sync_all().expect_err("one node has the bytes");
        assert_eq!(error.raw_os_error(), Some(5), "EIO");
        ended_in_time("fsync", begun, patience);
    }
    // Whether they are told something or not, they do not hang.
    let begun = Instant::now();
    let _ = fs::metadata(mounted.path("file"));
    ended_in_time("stat", begun, 2 * patience);
    let begun = Instant::now();
    let _ = fs::read_dir(mounted.root()).map(Iterator::count);
    ended_in_time("ls", begun, 2 * patience);
    cluster.start_etcd(0);
    eventually("two nodes have the bytes", || file.sync_all().is_ok());
    drop(file);
    let other = Mounted::with(&cluster, 1, &["--volume", "two"]);
    assert!(fs::read(other.path("file")).expect("read") == data);
}
