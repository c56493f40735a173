//! Deaths of homes and mirrors while programs on several mounts write and rename, and note what they were
//! told is done.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Cluster, EtcdOptions, Pattern, eventually, until};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use super::{Mounted, can_mount};
use crate::commands::json;

/// Number of files that each program makes at least while something happens.
const FILES: usize = 20;
/// Pause of a program between two files: without it, programs fill the nodes while a home is elected.
const PAUSE: Duration = Duration::from_millis(50);

/// Size of a file: in the map, in an object, and at times in several.
fn size(number: usize) -> usize {
    match number % 16 {
        15 => 1_500_000,
        other if other % 2 == 0 => 100,
        _ => 20_000,
    }
}

/// The row of the volume `main` in the list, whether all nodes answer or not.
pub(super) fn row(cluster: &Cluster, node: usize) -> Value {
    let output = super::plasmon(&["volume", "ls", "--json", "--socket", super::text(&cluster.socket(node))]);
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    listed.as_array().and_then(|rows| rows.first().cloned()).unwrap_or_default()
}

pub(super) fn id(cluster: &Cluster, node: usize) -> String {
    cluster.client(node).node().to_string()
}

/// Makes the volume `main` with a home, and waits for its mirror. Returns the number of the mirror's node.
pub(super) fn create(cluster: &Cluster, home: usize, options: &[&str]) -> usize {
    let members = || json(cluster, home, &["status"])["cluster"]["members"].as_array().map(Vec::len);
    eventually("the home knows all nodes", || members() == Some(cluster.nodes()));
    json(cluster, home, &[&["volume", "create", "main"], options].concat());
    let mirror = || Some(row(cluster, home)["mirrors"][0].as_str()?.to_owned());
    let mirror = until("the volume has a mirror", mirror);
    (0..cluster.nodes()).find(|node| id(cluster, *node) == mirror).expect("a node is the mirror")
}

/// Progress of programs on a mount.
struct Work {
    done: AtomicUsize,
    over: AtomicBool,
}

impl Work {
    fn new() -> Self {
        Self { done: AtomicUsize::new(0), over: AtomicBool::new(false) }
    }

    /// Writes files under other names and renames them, until it is over. Their number counts what is done.
    fn go_on(&self, folder: &Path) {
        fs::create_dir_all(folder).expect("mkdir");
        for number in 0.. {
            if self.over.load(Ordering::SeqCst) {
                break;
            }
            let data = Pattern(number as u64).bytes(size(number));
            let written = folder.join("written");
            fs::write(&written, data).unwrap_or_else(|error| panic!("write {number}: {error}"));
            let name = folder.join(number.to_string());
            fs::rename(&written, &name).unwrap_or_else(|error| panic!("rename {number}: {error}"));
            self.done.store(number + 1, Ordering::SeqCst);
            let_pass(PAUSE, "programs leave room");
        }
    }

    fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// Waits until programs have made some more files.
    fn await_more(&self) {
        let before = self.done();
        eventually("programs go on", || self.done() >= before + FILES);
    }

    /// Compares all files that were renamed with what was written, by any mount.
    fn check(&self, folder: &Path) {
        for number in 0..self.done() {
            let data = fs::read(folder.join(number.to_string()));
            let data = data.unwrap_or_else(|error| panic!("file {number} of {}: {error}", self.done()));
            assert!(data == Pattern(number as u64).bytes(size(number)), "file {number}");
        }
        let names = fs::read_dir(folder).expect("list").count();
        assert!((self.done()..=self.done() + 1).contains(&names), "{names} names of {} files", self.done());
    }
}

/// Has programs on two mounts work while something happens to the cluster, then looks at what they did by the
/// other mount.
fn work_while(cluster: &mut Cluster, nodes: [usize; 2], happens: impl FnOnce(&mut Cluster, &[Work; 2])) {
    let mounts = nodes.map(|node| Mounted::new(cluster, node));
    let works = [Work::new(), Work::new()];
    thread::scope(|scope| {
        for (mount, work) in mounts.iter().zip(&works) {
            let folder = mount.path(&mount.pid.as_raw_nonzero().to_string());
            scope.spawn(move || {
                super::own_descriptors();
                work.go_on(&folder);
            });
        }
        let happened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            works.iter().for_each(Work::await_more);
            happens(cluster, &works);
            works.iter().for_each(Work::await_more);
        }));
        works.iter().for_each(|work| work.over.store(true, Ordering::SeqCst));
        if let Err(panic) = happened {
            std::panic::resume_unwind(panic);
        }
    });
    for (at, work) in works.iter().enumerate() {
        let folder = mounts[1 - at].path(&mounts[at].pid.as_raw_nonzero().to_string());
        work.check(&folder);
    }
    mounts.into_iter().for_each(Mounted::unmount);
}

/// The two nodes of four that are neither the coordinator's nor the home.
const OTHERS: [usize; 2] = [2, 3];

#[test]
fn mounts_go_on_when_the_home_is_killed() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(4).memory("256MiB").start();
    let mirror = create(&cluster, 1, &[]);
    assert!(OTHERS.contains(&mirror), "the coordinator's node is taken last");
    let heir = id(&cluster, mirror);
    work_while(&mut cluster, OTHERS, |cluster, works| {
        cluster.kill(1);
        works.iter().for_each(Work::await_more);
        assert_eq!(row(cluster, 0)["home"], heir, "the mirror is the home");
        until("there is another mirror", || row(cluster, 0)["mirrors"][0].as_str().map(drop));
    });
}

#[test]
fn mounts_go_on_when_the_mirror_is_killed() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(4).memory("256MiB").start();
    let mirror = create(&cluster, 1, &[]);
    let other = OTHERS.into_iter().find(|node| *node != mirror).expect("there are two");
    let home = id(&cluster, 1);
    work_while(&mut cluster, [1, other], |cluster, works| {
        cluster.kill(mirror);
        works.iter().for_each(Work::await_more);
        assert_eq!(row(cluster, 0)["home"], home);
        until("there is another mirror", || row(cluster, 0)["mirrors"][0].as_str().map(drop));
    });
}

#[test]
fn mounts_go_on_when_the_home_stands_still() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(4).memory("256MiB").start();
    let mirror = create(&cluster, 1, &[]);
    let heir = id(&cluster, mirror);
    work_while(&mut cluster, OTHERS, |cluster, works| {
        cluster.pause(1);
        works.iter().for_each(Work::await_more);
        let_pass(Duration::from_secs(5), "the home stands still for longer than its lease");
        cluster.resume(1);
        works.iter().for_each(Work::await_more);
        eventually("the node follows the record", || row(cluster, 1)["home"] == heir.as_str());
    });
}

#[test]
fn what_is_open_stays_open_when_home_and_node_die_together() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(4).memory("64MiB").start();
    let mirror = create(&cluster, 1, &[]);
    let (mounted, other) = (Mounted::new(&cluster, 1), Mounted::new(&cluster, 0));
    let make = |name: &str| {
        let file = File::options().read(true).write(true).create_new(true).open(mounted.path(name));
        let file = file.expect("create");
        file.write_all_at(name.as_bytes(), 0).expect("write");
        file.sync_all().expect("fsync");
        file
    };
    let [locked, free, unlinked] = ["locked", "free", "unlinked"].map(make);
    flock(&locked, FlockOperation::LockExclusive).expect("nobody has it");
    fs::remove_file(mounted.path("unlinked")).expect("unlink");
    // The second time, the node itself has not opened anything.
    for dies in [1, mirror] {
        cluster.kill(dies);
        cluster.start_again(dies, &[]);
        let mut name = [0; 8];
        unlinked.write_all_at(b"U", 0).expect("it is open");
        unlinked.sync_all().expect("it is open");
        unlinked.read_exact_at(&mut name, 0).expect("it is open");
        assert_eq!(&name, b"Unlinked");
        flock(&free, FlockOperation::LockExclusive).expect("nobody has it");
        flock(&free, FlockOperation::Unlock).expect("it is locked");
        let elsewhere = File::open(other.path("locked")).expect("it is there");
        let refused = flock(&elsewhere, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK), "it stays locked");
        until("there is another mirror", || row(&cluster, 0)["mirrors"][0].as_str().map(drop));
    }
    drop((locked, free, unlinked));
    let none_is_left = || row(&cluster, 0)["inodes"] == 3;
    eventually("what was unlinked goes with its last close", none_is_left);
    [mounted, other].into_iter().for_each(Mounted::unmount);
}

#[test]
fn a_drained_home_hands_over_and_leaves() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(4).memory("256MiB").start();
    create(&cluster, 1, &[]);
    work_while(&mut cluster, OTHERS, |cluster, works| {
        let drained = id(cluster, 1);
        json(cluster, 0, &["drain", &drained]);
        works.iter().for_each(Work::await_more);
        let row = row(cluster, 0);
        assert!(row["home"] != drained.as_str() && row["mirrors"][0] != drained.as_str(), "{row}");
    });
}

#[test]
fn homes_die_in_turn_with_etcd() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(4).memory("256MiB").etcd(EtcdOptions::default()).start();
    create(&cluster, 0, &[]);
    work_while(&mut cluster, OTHERS, |cluster, works| {
        for dies in [0, 1] {
            // The second one may be the home, a mirror, or neither.
            cluster.kill(dies);
            works.iter().for_each(Work::await_more);
            until("there is another mirror", || row(cluster, 2)["mirrors"][0].as_str().map(drop));
        }
    });
}

#[test]
fn of_three_nodes_with_the_names_two_may_die_one_after_the_other() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(5).memory("192MiB").etcd(EtcdOptions::default()).start();
    create(&cluster, 0, &["--metadata-copies", "3"]);
    let mirrors = until("the volume has two mirrors", || {
        let mirrors = row(&cluster, 0)["mirrors"].clone();
        mirrors[1].is_string().then_some(mirrors)
    });
    let is_mirror = |node: &usize| (0..2).any(|at| mirrors[at] == id(&cluster, *node));
    let (heirs, others): (Vec<_>, Vec<_>) = (1..5).partition(is_mirror);
    work_while(&mut cluster, [others[0], others[1]], |cluster, works| {
        cluster.kill(0);
        let heir = until("a mirror is the home", || {
            let home = row(cluster, others[0])["home"].clone();
            heirs.iter().copied().find(|node| home == id(cluster, *node))
        });
        // Nobody waits until a third node has the names again.
        cluster.kill(heir);
        works.iter().for_each(Work::await_more);
        until("there are two mirrors", || row(cluster, others[0])["mirrors"][1].as_str().map(drop));
    });
}

#[test]
fn a_volume_without_any_node_is_lost_and_is_forgotten_on_demand() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    json(&cluster, 1, &["volume", "create", "main", "--metadata-copies", "1"]);
    let mounted = Mounted::with(&cluster, 2, &["--patience", "3"]);
    fs::write(mounted.path("file"), "x").expect("write");
    cluster.kill(1);
    let error = fs::write(mounted.path("other"), "x").expect_err("nobody has the names");
    assert_eq!(error.raw_os_error(), Some(5), "EIO");
    eventually("the list says so", || row(&cluster, 0)["state"] == "lost");
    let (code, message) = crate::commands::failure(&cluster, 0, &["volume", "rm", "main"]);
    assert!(message.contains("--lost"), "{code}: {message}");
    json(&cluster, 0, &["volume", "rm", "main", "--lost"]);
    assert_eq!(row(&cluster, 0), Value::Null);
    drop(mounted);
    let again = Mounted::new(&cluster, 2);
    assert_eq!(fs::read_dir(again.root()).expect("list").count(), 0, "it is a new volume");
}
