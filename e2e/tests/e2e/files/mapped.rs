//! The right to map a file so that others see the stores: one mount has it at a time, because two kernels
//! cannot keep one page. The others are refused, and never lose stores in silence.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use plasmon_e2e::{Cluster, Pattern, eventually, until};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use super::mapping::Mapping;
use super::{Mounted, can_mount, kill, mirrors};
use crate::commands::json;

/// Number of bytes of the files that are mapped.
const LEN: usize = 64 << 10;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("open")
}

fn shared(file: &File) -> Result<Mapping, Errno> {
    Mapping::try_new(file, LEN, MapFlags::SHARED)
}

/// Opens a file and maps it, as a program does that begins.
fn map(path: &Path) -> Result<Mapping, Errno> {
    shared(&open(path))
}

fn start(nodes: usize) -> (Cluster, Vec<Mounted>) {
    let cluster = Cluster::builder().nodes(nodes).memory("128MiB").start();
    let mounts: Vec<_> = (0..nodes).map(|node| Mounted::new(&cluster, node)).collect();
    fs::write(mounts[0].path("file"), Pattern(1).bytes(LEN)).expect("write");
    (cluster, mounts)
}

#[test]
fn who_maps_a_file_second_is_refused_and_may_do_all_else() {
    if !can_mount() {
        return;
    }
    let (cluster, mounts) = start(2);
    let [here, there] = [0, 1].map(|mount: usize| mounts[mount].path("file"));
    let mut mapping = map(&here).expect("nobody else has it open");
    mapping.bytes()[..5].copy_from_slice(b"store");
    mapping.sync().expect("msync");
    let second = open(&there);
    for _ in 0..3 {
        assert_eq!(shared(&second).map(drop), Err(Errno::NODEV));
        assert_eq!(map(&there).map(drop), Err(Errno::NODEV), "another open");
    }
    let mut read = [0; 5];
    second.read_exact_at(&mut read, 0).expect("pread");
    assert_eq!(&read, b"store");
    second.write_all_at(b"write", LEN as u64 - 5).expect("pwrite");
    second.sync_all().expect("fsync");
    let mut own = Mapping::new(&second, LEN, MapFlags::PRIVATE);
    own.bytes()[0] = b'X';
    assert_eq!(&own.bytes()[1..5], b"tore");
    // Who only reads has mapped before and may do so now.
    let reads = File::open(&there).expect("open");
    // SAFETY of the mapping is its own; it is private, since this test has a mapping that reads and writes.
    let mut view = Mapping::new(&reads, LEN, MapFlags::PRIVATE);
    assert_eq!(&view.bytes()[LEN - 5..], b"write");
    let again = map(&here).expect("the mount has the right");
    drop((again, own, view));
    eventually("the first host reads what the second has written", || {
        let mut read = [0; 5];
        open(&here).read_exact_at(&mut read, LEN as u64 - 5).expect("pread");
        &read == b"write"
    });
    let log = fs::read_to_string(cluster.folder().join("mount.log")).expect("the mounts have a log");
    assert_eq!(log.lines().filter(|line| line.contains("--shared-maps")).count(), 1, "{log}");
    // A file that was opened without the right does not get it later, but a new open does.
    drop(mapping);
    drop(map(&there).expect("the first host has closed it"));
    assert_eq!(shared(&second).map(drop), Err(Errno::NODEV));
}

#[test]
fn hosts_map_a_file_in_turn_without_waiting() {
    const ROUNDS: usize = 40;
    if !can_mount() {
        return;
    }
    let (_cluster, mounts) = start(2);
    for round in 0..ROUNDS {
        let path = mounts[round % 2].path("file");
        // Half of the time another descriptor of the file is closed later than the mapping is gone.
        let file = open(&path);
        let mut mapping = shared(&file).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let at = round * 8;
        if round > 0 {
            assert_eq!(mapping.bytes()[at - 8..at], ((round - 1) as u64).to_le_bytes(), "round {round}");
        }
        mapping.bytes()[at..at + 8].copy_from_slice(&(round as u64).to_le_bytes());
        if round % 4 < 2 {
            drop(mapping);
            drop(file);
        } else {
            drop(file);
            drop(mapping);
        }
    }
}

/// Program that maps a file, stores and says so, then waits until its input ends, as `numpy.memmap` does.
const MAPS: &str = "
import mmap, sys
with open(sys.argv[1], 'r+b') as file:
    view = mmap.mmap(file.fileno(), 65536, access=mmap.ACCESS_WRITE)
view[:4] = sys.argv[2].encode()
view.flush()
print('stored', flush=True)
sys.stdin.read()
";

fn program(path: &Path, word: &str) -> Child {
    Command::new("python3")
        .args(["-c", MAPS])
        .arg(path)
        .arg(word)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 runs")
}

#[test]
fn a_program_that_maps_elsewhere_is_refused_until_the_first_has_ended() {
    if !can_mount() {
        return;
    }
    let (_cluster, mounts) = start(2);
    let [here, there] = [0, 1].map(|mount: usize| mounts[mount].path("file"));
    let mut first = program(&here, "one.");
    let mut told = String::new();
    BufReader::new(first.stdout.take().expect("it is piped")).read_line(&mut told).expect("it is text");
    assert_eq!(told, "stored\n");
    let refused = program(&there, "two.").wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("No such device"), "{said}");
    first.kill().expect("it is our child");
    first.wait().expect("it is our child");
    let second = program(&there, "two.").wait_with_output().expect("it ends");
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
    assert_eq!(&fs::read(&here).expect("read")[..4], b"two.");
}

#[test]
fn the_right_ends_with_the_mount_or_the_host_that_has_it_and_outlives_the_home() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::builder().nodes(4).memory("128MiB").start();
    mirrors::create(&cluster, 2, &[]);
    let mounts: Vec<_> = [0, 1, 3].map(|node| Mounted::new(&cluster, node)).into();
    fs::write(mounts[0].path("file"), Pattern(1).bytes(LEN)).expect("write");
    let paths = [0, 1, 2].map(|mount: usize| mounts[mount].path("file"));
    let mut mapping = map(&paths[0]).expect("nobody has it");
    // The home dies: who has the right keeps it.
    cluster.kill(2);
    mapping.bytes()[..3].copy_from_slice(b"new");
    mapping.sync().expect("the next home takes it");
    for _ in 0..20 {
        assert_eq!(map(&paths[1]).map(drop), Err(Errno::NODEV));
    }
    // The next home has a mirror before its own host may die.
    eventually("another mirror has joined", || {
        let mirrors = json(&cluster, 0, &["volume", "ls"])[0]["mirrors"].as_array().map(Vec::len);
        mirrors == Some(1)
    });
    // The process of the mount dies.
    kill(mounts[0].pid);
    let second = until("another mount gets the right", || map(&paths[1]).ok());
    assert_eq!(map(&paths[2]).map(drop), Err(Errno::NODEV));
    // The host dies, whose node alone counts: its mount is left without one.
    cluster.kill(1);
    let mut third = until("a third mount gets the right", || map(&paths[2]).ok());
    assert_eq!(&third.bytes()[..3], b"new");
    drop((mapping, second));
}

#[test]
fn with_shared_maps_all_map_and_appending_opens_and_direct_mounts_never_do() {
    if !can_mount() {
        return;
    }
    let (cluster, mounts) = start(2);
    let [here, there] = [0, 1].map(|mount: usize| mounts[mount].path("file"));
    let append = File::options().read(true).append(true).open(&here).expect("open");
    assert_eq!(shared(&append).map(drop), Err(Errno::NODEV));
    let direct = Mounted::with(&cluster, 0, &["--direct"]);
    assert_eq!(map(&direct.path("file")).map(drop), Err(Errno::NODEV));
    let _first = map(&here).expect("neither of them has the right");
    assert_eq!(map(&there).map(drop), Err(Errno::NODEV));
    let info = json(&cluster, 0, &["volume", "set", "main", "--shared-maps", "true"]);
    assert_eq!(info["shared_maps"], true);
    let _second = map(&there).expect("all may");
    json(&cluster, 1, &["volume", "set", "main", "--shared-maps", "false"]);
    // Made to be mapped by others later: who makes a file has the right.
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o644);
    let made = options.open(there.with_file_name("made")).expect("create");
    made.set_len(LEN as u64).expect("ftruncate");
    let _third = shared(&made).expect("it is new");
    assert_eq!(map(&here.with_file_name("made")).map(drop), Err(Errno::NODEV));
}

/// Program that keeps a database in the mode `wal`. It inserts rows as it is told, and says what came of it.
const WAL: &str = "
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], timeout=20)
def act(line):
    if line == 'begin':
        base.execute('pragma journal_mode=wal')
        base.execute('create table if not exists t (n integer)')
    elif line == 'count':
        return base.execute('select count(*) from t').fetchone()[0]
    elif line == 'check':
        return base.execute('pragma integrity_check').fetchone()[0]
    else:
        with base:
            base.execute('insert into t values (?)', (int(line),))
    return 'ok'
for line in sys.stdin:
    try:
        print(act(line.strip()), flush=True)
    except sqlite3.Error as error:
        print('error', error, flush=True)
";

/// Program of Python that uses a database as it is told.
struct User(Child, BufReader<std::process::ChildStdout>);

impl User {
    fn new(python: &str, program: &str, path: &Path) -> Self {
        let mut child = Command::new(python)
            .args(["-c", program])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self(child, output)
    }

    /// Connection to SQLite's database.
    fn of_sqlite(path: &Path) -> Self {
        Self::new("python3", WAL, path)
    }

    fn say(&mut self, line: &str) -> String {
        writeln!(self.0.stdin.as_mut().expect("it is piped"), "{line}").expect("it reads");
        let mut told = String::new();
        self.1.read_line(&mut told).expect("it is text");
        told.trim_end().to_owned()
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("it is our child").success());
    }
}

#[test]
fn sqlite_in_wal_mode_loses_no_committed_row_between_two_mounts() {
    const ROWS: usize = 12;
    if !can_mount() {
        return;
    }
    let (_cluster, mounts) = start(2);
    let paths = [0, 1].map(|mount: usize| mounts[mount].path("base"));
    let mut first = User::of_sqlite(&paths[0]);
    assert_eq!(first.say("begin"), "ok");
    let mut second = User::of_sqlite(&paths[1]);
    let mut committed = 0;
    for row in 0..ROWS {
        assert_eq!(first.say(&row.to_string()), "ok");
        committed += 1;
        let told = second.say(&row.to_string());
        // Refused, and not taken for done.
        assert!(told.starts_with("error"), "{told}");
    }
    assert_eq!(first.say("count"), committed.to_string());
    first.end();
    second.end();
    // In turn: each program sees all rows that were committed, and its own are kept.
    for turn in 0..6 {
        let mut next = User::of_sqlite(&paths[turn % 2]);
        assert_eq!(next.say("count"), committed.to_string(), "turn {turn}");
        assert_eq!(next.say("7"), "ok", "turn {turn}");
        committed += 1;
        assert_eq!(next.say("check"), "ok");
        next.end();
    }
}

/// Python that has Debian's package of LMDB.
const PYTHON_OF_DEBIAN: &str = "/usr/bin/python3";

/// Program that keeps an environment of LMDB, which maps both of its files.
const LMDB: &str = "
import lmdb, sys
base = None
def act(line):
    global base
    if line == 'begin':
        base = lmdb.open(sys.argv[1], map_size=1 << 20)
    elif line == 'count':
        return base.stat()['entries']
    else:
        with base.begin(write=True) as transaction:
            transaction.put(line.encode(), b'value')
    return 'ok'
for line in sys.stdin:
    try:
        print(act(line.strip()), flush=True)
    except lmdb.Error as error:
        print('error', error, flush=True)
";

#[test]
fn lmdb_is_used_from_one_mount_at_a_time() {
    if !can_mount() {
        return;
    }
    let has_lmdb = Command::new(PYTHON_OF_DEBIAN).args(["-c", "import lmdb"]).stderr(Stdio::null()).status();
    if !has_lmdb.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: there is no python3-lmdb");
    }
    let (_cluster, mounts) = start(2);
    let users = || [0, 1].map(|mount: usize| User::new(PYTHON_OF_DEBIAN, LMDB, &mounts[mount].path("base")));
    let [mut first, mut second] = users();
    assert_eq!(first.say("begin"), "ok");
    let mut committed = 0;
    for _ in 0..6 {
        assert_eq!(first.say(&committed.to_string()), "ok");
        committed += 1;
        let told = second.say("begin");
        assert!(told.starts_with("error") && told.contains("No such device"), "{told}");
    }
    assert_eq!(first.say("count"), committed.to_string());
    // The program that was refused tries again when the first has closed the environment.
    first.end();
    for turn in 0..6 {
        assert_eq!(second.say("begin"), "ok", "turn {turn}");
        assert_eq!(second.say("count"), committed.to_string(), "turn {turn}");
        assert_eq!(second.say(&committed.to_string()), "ok", "turn {turn}");
        committed += 1;
        if turn % 2 == 0 {
            second.end();
        } else {
            second.0.kill().expect("it is our child");
            second.0.wait().expect("it is our child");
        }
        let [one, other] = users();
        second = if turn % 2 == 0 { one } else { other };
    }
}
