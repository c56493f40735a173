//! Programs that people use, on a mount: git, tar, SQLite by Python, and locks between processes.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use plasmon_e2e::{Cluster, Pattern};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{Mounted, can_mount};
use crate::support::MIB;

/// Runs a program in a folder, which has to end well.
pub(super) fn run(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.env("HOME", folder).env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs git in a folder as somebody.
pub(super) fn git(folder: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
    run(folder, "git", &[&identity, arguments].concat())
}

#[test]
fn git_clones_commits_and_packs() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("256MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    let git = |folder: &str, arguments: &[&str]| git(&mounted.path(folder), arguments);
    fs::create_dir(mounted.path("origin")).expect("mkdir");
    git("origin", &["init", "-q", "-b", "main"]);
    for number in 0..60 {
        let folder = mounted.path(&format!("origin/folder{}", number % 7));
        fs::create_dir_all(&folder).expect("mkdir");
        fs::write(folder.join(format!("{number}")), Pattern(number).bytes(number as usize * 1_000))
            .expect("write");
    }
    git("origin", &["add", "."]);
    git("origin", &["commit", "-q", "-m", "first"]);
    git("", &["clone", "-q", "--no-local", "origin", "copy"]);
    fs::write(mounted.path("copy/new"), "new").expect("write");
    git("copy", &["add", "new"]);
    git("copy", &["commit", "-q", "-m", "second"]);
    git("copy", &["gc", "-q"]);
    git("copy", &["fsck", "--strict"]);
    assert_eq!(git("copy", &["status", "--porcelain"]), "");
    assert_eq!(git("copy", &["log", "--format=%s"]), "second\nfirst\n");
}

#[test]
fn tar_packs_and_unpacks_what_it_packed() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("256MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    let tree = mounted.path("tree");
    fs::create_dir_all(tree.join("a/b")).expect("mkdir");
    for (name, len) in [("one", 1), ("a/two", 5_000), ("a/b/three", 2 * MIB + 3)] {
        fs::write(tree.join(name), Pattern(len as u64).bytes(len)).expect("write");
    }
    std::os::unix::fs::symlink("a/two", tree.join("link")).expect("symlink");
    run(mounted.root(), "tar", &["--xattrs", "-cf", "tree.tar", "tree"]);
    fs::create_dir(mounted.path("out")).expect("mkdir");
    run(&mounted.path("out"), "tar", &["--xattrs", "-xpf", "../tree.tar"]);
    run(mounted.root(), "diff", &["-r", "--no-dereference", "tree", "out/tree"]);
    run(mounted.root(), "rm", &["-r", "tree", "out"]);
}

/// Program that changes a database in transactions, one of which is rolled back.
const SQLITE: &str = "
import sqlite3, sys
base = sqlite3.connect('base', timeout=60)
base.execute('create table if not exists t (who integer, n integer)')
for n in range(20):
    with base:
        base.execute('insert into t values (?, ?)', (int(sys.argv[1]), n))
try:
    with base:
        base.execute('delete from t')
        raise KeyError
except KeyError:
    pass
print(base.execute('pragma integrity_check').fetchone()[0])
";

#[test]
fn sqlite_is_used_by_two_processes_at_once() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    let start = |who: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", SQLITE, who]).current_dir(mounted.root());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python3 runs")
    };
    for child in [start("1"), start("2")] {
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok\n", "{said}");
    }
    let count =
        "import sqlite3; print(sqlite3.connect('base').execute('select count(*) from t').fetchone()[0])";
    assert_eq!(run(mounted.root(), "python3", &["-c", count]), "40\n");
}

#[test]
fn locks_keep_others_out_until_their_holder_closes() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let (mounted, other) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 0));
    let (path, seen) = (mounted.path("lock"), other.path("lock"));
    let file = File::create_new(&path).expect("create");
    let again = File::open(&path).expect("open");
    let elsewhere = File::open(&seen).expect("open by the other mount");
    flock(&file, FlockOperation::NonBlockingLockExclusive).expect("it is free");
    let taken = FlockOperation::NonBlockingLockShared;
    assert_eq!(flock(&again, taken), Err(Errno::WOULDBLOCK));
    assert_eq!(flock(&elsewhere, taken), Err(Errno::WOULDBLOCK));
    // The waiting program gets the lock when the holder closes.
    let waiting = std::thread::spawn(move || flock(&again, FlockOperation::LockExclusive).map(|()| again));
    drop(file);
    let again = waiting.join().expect("no panic").expect("the lock was given");
    assert_eq!(flock(&elsewhere, taken), Err(Errno::WOULDBLOCK));
    flock(&again, FlockOperation::Unlock).expect("it is held");
    flock(&elsewhere, taken).expect("it is free");
}
