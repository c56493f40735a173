//! Tests of stopping: a node leaves nothing behind but what its next life needs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use plasmon::{CreateOptions, ErrorKind, ObjectId};
use plasmon_e2e::{Cluster, Pattern, binary, eventually, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{MIB, get, kind, put};

#[test]
fn sigterm_ends_a_node_cleanly() {
    ends_cleanly(Signal::TERM);
}

#[test]
fn sigint_ends_a_node_cleanly() {
    ends_cleanly(Signal::INT);
}

fn ends_cleanly(signal: Signal) {
    let shared_before = shared_memory();
    let mut cluster = Cluster::builder().nodes(2).start();
    // In the middle of life: sealed, pinned, unsealed, fetched.
    let clients = [cluster.client(0), cluster.client(1)];
    let id = put(&clients[0], Pattern(1), MIB);
    let held = get(&clients[1], id);
    let unsealed =
        clients[0].create(ObjectId::random(), 1000, b"", &CreateOptions::default()).expect("create");

    let pids = [0, 1].map(|node| cluster.daemon(node).pid());
    for pid in pids {
        let files = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the daemon lives");
        assert!(!files.contains("/dev/shm/"), "a file that would outlive a killed daemon:\n{files}");
    }
    // The one that joined first: the coordinator sees it leave.
    let status = cluster.terminate(1, signal);
    assert!(status.success(), "{status}:\n{}", cluster.log(1));
    eventually("the other node saw it leave", || cluster.status(0).cluster.members.len() == 1);
    let status = cluster.terminate(0, signal);
    assert!(status.success(), "{status}:\n{}", cluster.log(0));

    for node in 0..2 {
        // The coordinator's node tells its next life that no lock is held.
        let leases = format!("{SOCKET}.locks");
        let entries = fs::read_dir(cluster.node_folder(node)).expect("folder").flatten();
        let left: Vec<_> = entries.filter(|left| node != 0 || left.file_name() != *leases).collect();
        assert!(left.is_empty(), "node {node} left {left:?}");
    }
    // Other programs may use /dev/shm meanwhile.
    let ours =
        |name: &&String| name.contains("plasmon") || pids.iter().any(|pid| name.contains(&pid.to_string()));
    let shared_after = shared_memory();
    let left: Vec<_> = shared_after.difference(&shared_before).filter(ours).collect();
    assert!(left.is_empty(), "left in /dev/shm: {left:?}");

    drop(unsealed);
    assert_eq!(kind(clients[0].status()), ErrorKind::Disconnected);
    Pattern(1).check(held.data());
}

/// Moment of a start: its name, and the check whether it has come.
type Moment = (&'static str, fn(&Starting) -> bool);

/// Moments of a start. None is earlier than the one before it.
const MOMENTS: [Moment; 5] = [
    ("it handles SIGTERM", |starting| starting.handles(Signal::TERM)),
    ("its socket is there", |starting| starting.folder.join(SOCKET).exists()),
    ("it has a fabric", |starting| starting.said("log", "fabric provider")),
    ("its control thread runs", |starting| starting.has_thread("plasmon-control")),
    ("it serves", |starting| starting.said("out", "\n")),
];

const SOCKET: &str = "plasmon.sock";

/// Daemon that has not announced yet that it serves.
struct Starting<'a> {
    pid: u32,
    folder: &'a Path,
}

impl Starting<'_> {
    fn handles(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        caught.is_some_and(|mask| mask & 1 << (signal.as_raw() - 1) != 0)
    }

    fn said(&self, file: &str, what: &str) -> bool {
        fs::read_to_string(self.folder.join(file)).is_ok_and(|text| text.contains(what))
    }

    fn has_thread(&self, name: &str) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let mut names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
        names.any(|comm| comm.trim() == name)
    }
}

#[test]
fn a_node_that_is_told_to_stop_while_it_starts_ends_cleanly() {
    let own = tempfile::tempdir().expect("the temporary folder is writable");
    // A cluster that exists, and one whose address does not answer.
    for (words, last) in [(&[][..], MOMENTS.len()), (&["--join", "127.0.0.1:1"], MOMENTS.len() - 1)] {
        for signal in [Signal::TERM, Signal::INT] {
            for (number, (moment, reached)) in MOMENTS[..last].iter().enumerate() {
                let case = format!("{}-{number}-{}", words.len(), signal.as_raw());
                let folder = own.path().join(&case);
                fs::create_dir(&folder).expect("the folder is ours");
                let file = |name: &str| File::create(folder.join(name)).expect("the folder is ours");
                let mut command = Command::new(binary());
                command.args(["serve", "--exit-with-parent", "--memory", "16MiB", "--listen", "127.0.0.1:0"]);
                command.args(["--log", "debug"]);
                command.arg("--socket").arg(folder.join(SOCKET)).args(words);
                command.stdin(Stdio::null()).stdout(file("out")).stderr(file("log"));
                let mut child = command.spawn().expect("there is a plasmon");
                let starting = Starting { pid: child.id(), folder: &folder };
                eventually(moment, || reached(&starting));
                kill_process(Pid::from_child(&child), signal).expect("it has not been waited for");
                // The library that handles signals (signal-hook) loses one that comes in the microseconds
                // between its call of the kernel and its own note of it, and the first moment may be just
                // then.
                let mut again = number == 0;
                let status = until("it ends", || {
                    if again && starting.said("log", "fabric provider") {
                        again = false;
                        // The daemon may have ended meanwhile.
                        _ = kill_process(Pid::from_child(&child), signal);
                    }
                    child.try_wait().expect("it is our child")
                });
                let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
                assert!(status.success(), "{signal:?} when {moment}: {status}\n{log}");
                assert!(!folder.join(SOCKET).exists(), "{signal:?} when {moment} left the socket:\n{log}");
            }
        }
    }
}

fn shared_memory() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_node_that_is_stopped_says_what_only_it_keeps() {
    let mut cluster = Cluster::builder().nodes(2).start();
    let client = cluster.client(1);
    let twice = CreateOptions { replicas: 2, ..CreateOptions::default() };
    client.put(ObjectId::random(), &Pattern(9).bytes(MIB), b"", &twice).expect("put");
    (0..3).for_each(|seed| _ = put(&client, Pattern(seed), MIB));
    assert!(cluster.terminate(1, Signal::TERM).success());
    let log = cluster.log(1);
    assert!(
        log.contains("end with this node, since no other keeps them: objects 3 (3.0 MiB), regions 0"),
        "{log}"
    );
    assert!(log.contains("--drain-on-stop"), "{log}");
}

#[test]
fn a_node_that_is_stopped_hands_over_what_it_keeps() {
    let mut cluster = Cluster::builder().nodes(2).args(&["--drain-on-stop", "5m"]).start();
    let client = cluster.client(1);
    let ids: Vec<_> = (0..4).map(|seed| put(&client, Pattern(seed), MIB)).collect();
    assert!(cluster.terminate(1, Signal::TERM).success(), "{}", cluster.log(1));
    let there = cluster.client(0);
    for (seed, id) in (0..).zip(&ids) {
        Pattern(seed).check(get(&there, *id).data());
    }
    // The last node has nobody to hand over to.
    assert!(cluster.terminate(0, Signal::TERM).success(), "{}", cluster.log(0));
    let log = cluster.log(0);
    assert!(log.contains("there is no drain before the end"), "{log}");
    assert!(log.contains("since no other keeps them: objects 4 (4.0 MiB)"), "{log}");
    assert!(!log.contains("--drain-on-stop"), "no node could take them: {log}");
}

#[test]
fn a_node_whose_drain_takes_too_long_stops_all_the_same() {
    let mut cluster = Cluster::builder().nodes(2).args(&["--drain-on-stop", "300ms"]).start();
    // Nobody else has room for it.
    let filled = cluster.client(0);
    (0..4).for_each(|seed| _ = put(&filled, Pattern(seed), 12 * MIB));
    put(&cluster.client(1), Pattern(9), 30 * MIB);
    assert!(cluster.terminate(1, Signal::TERM).success(), "{}", cluster.log(1));
    let log = cluster.log(1);
    assert!(log.contains("has not moved everything"), "{log}");
    assert!(log.contains("since no other keeps them: objects 1 ("), "{log}");
    assert!(!log.contains("--drain-on-stop"), "that was tried: {log}");
}
