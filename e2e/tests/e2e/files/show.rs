//! Tests of the examples of docs/files.md: three hosts with a mount each, on which a job's checkpoint
//! outlives a node, git clones a project that is built there, and SQLite is used from two hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use plasmon_e2e::{Cluster, Pattern};

use super::programs::{git, run};
use super::{Mounted, can_mount, mirrors, text};
use crate::support::MIB;

/// Node that is killed: the home of the volume, on whose host a half of the job runs.
const DIES: usize = 1;
/// Node on whose host others' work is used.
const USES: usize = 2;
/// Number of processes of the job, half of them on each of two hosts.
const RANKS: usize = 4;

/// Size in MiB of the checkpoint, and the memory of each node.
fn sizes() -> (usize, &'static str) {
    match std::env::var_os("PLASMON_E2E_LONG") {
        Some(_) => (1024, "1536MiB"),
        None => (64, "192MiB"),
    }
}

/// Three hosts with a node each, and the volume `main` with two copies of bytes.
fn start(memory: &str) -> (Cluster, Vec<Mounted>) {
    let cluster = Cluster::builder().nodes(3).memory(memory).start();
    mirrors::create(&cluster, DIES, &["--copies", "2"]);
    let mounts = (0..3).map(|node| Mounted::new(&cluster, node)).collect();
    (cluster, mounts)
}

#[test]
fn a_checkpoint_outlives_a_node_that_wrote_it() {
    if !can_mount() {
        return;
    }
    let (mib, memory) = sizes();
    let (mut cluster, mounts) = start(memory);
    // The bytes that each process is to save lie outside, too.
    let outside = cluster.folder().to_owned();
    let state = |rank: usize| outside.join(format!("rank{rank}"));
    for rank in 0..RANKS {
        fs::write(state(rank), Pattern(rank as u64).bytes(mib * MIB / RANKS)).expect("there is room on disk");
    }
    fs::create_dir(mounts[0].path("checkpoint")).expect("mkdir");
    let saved = |mount: usize, rank: usize| mounts[mount].path(&format!("checkpoint/rank{rank}"));
    let save = |rank: usize| -> Child {
        let to = format!("of={}", text(&saved(rank % 2, rank)));
        let mut command = Command::new("dd");
        command.arg(format!("if={}", text(&state(rank)))).args([&to, "bs=1M", "conv=fsync", "status=none"]);
        command.stdin(Stdio::null()).spawn().expect("dd runs")
    };
    for mut rank in (0..RANKS).map(save).collect::<Vec<_>>() {
        assert!(rank.wait().expect("it is our child").success(), "a process could not save its state");
    }
    cluster.kill(DIES);
    for rank in 0..RANKS {
        run(mounts[USES].root(), "cmp", &[text(&state(rank)), text(&saved(USES, rank))]);
    }
}

/// Rules of the project that is built.
const MAKEFILE: &str = "\
OBJECTS = main.o $(patsubst %.c,%.o,$(wildcard part*.c))
sum: $(OBJECTS)
\tcc -o $@ $^
%.o: %.c parts.h
\tcc -O1 -c -o $@ $<
";

/// Makes a project in C whose program prints a sum, and commits it to a repository.
fn project(folder: &Path) {
    let parts: Vec<u32> = (1..=12).collect();
    let each = |line: fn(u32) -> String| parts.iter().copied().map(line).collect::<String>();
    let main = "#include <stdio.h>\n#include \"parts.h\"\nint main(void) {\n  long sum = 0;\n".to_owned()
        + &each(|part| format!("  sum += part{part}();\n"))
        + "  printf(\"%ld\\n\", sum);\n  return 0;\n}\n";
    fs::write(folder.join("Makefile"), MAKEFILE).expect("write");
    fs::write(folder.join("parts.h"), each(|part| format!("long part{part}(void);\n"))).expect("write");
    fs::write(folder.join("main.c"), main).expect("write");
    for part in parts {
        let body = format!("#include \"parts.h\"\nlong part{part}(void) {{ return {part}; }}\n");
        fs::write(folder.join(format!("part{part}.c")), body).expect("write");
    }
    git(folder, &["init", "-q", "-b", "main"]);
    git(folder, &["add", "."]);
    git(folder, &["commit", "-q", "-m", "a project"]);
}

#[test]
fn a_project_is_cloned_by_one_host_and_built_by_another() {
    if !can_mount() {
        return;
    }
    let lacks = |program: &str| Command::new(program).arg("--version").output().is_err();
    if let Some(program) = ["git", "make", "cc"].into_iter().find(|program| lacks(program)) {
        eprintln!("skipped: there is no {program} here");
        return;
    }
    let (cluster, mounts) = start("192MiB");
    let origin: PathBuf = cluster.folder().join("origin");
    fs::create_dir(&origin).expect("the folder is ours");
    project(&origin);
    git(mounts[0].root(), &["clone", "-q", "--no-local", text(&origin), "project"]);
    let built = mounts[USES].path("project");
    run(&built, "make", &["-j", "4"]);
    // Another host runs the program that this one has built, and has nothing left to build.
    let there = mounts[DIES].path("project");
    assert_eq!(run(&there, "./sum", &[]), "78\n");
    run(&there, "make", &["-q"]);
    fs::write(there.join("part1.c"), "long part1(void) { return 1000; }\n").expect("write");
    assert_eq!(git(&built, &["status", "--porcelain", "-uno"]), " M part1.c\n");
    run(&built, "make", &["-j", "4"]);
    assert_eq!(run(&mounts[0].path("project"), "./sum", &[]), "1077\n");
    git(&there, &["commit", "-q", "-a", "-m", "another part"]);
    git(&mounts[0].path("project"), &["fsck", "--strict"]);
    assert_eq!(git(&built, &["log", "--format=%s"]), "another part\na project\n");
}

/// Program that adds rows to a database in transactions, and prints how many it finds and whether all is
/// well.
const SQLITE: &str = "
import sqlite3, sys
base = sqlite3.connect('base', timeout=60)
mode = base.execute('pragma journal_mode=' + sys.argv[1]).fetchone()[0]
assert mode == sys.argv[1], mode
base.execute('create table if not exists t (who text, n integer)')
for n in range(int(sys.argv[3])):
    with base:
        base.execute('insert into t values (?, ?)', (sys.argv[2], n))
print(base.execute('select count(*) from t').fetchone()[0])
print(base.execute('pragma integrity_check').fetchone()[0])
";

/// Starts the program in a folder.
fn sqlite(folder: &Path, mode: &str, who: &str, rows: usize) -> Child {
    let mut command = Command::new("python3");
    command.args(["-c", SQLITE, mode, who, &rows.to_string()]).current_dir(folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python3 runs")
}

/// Waits for the program. Returns the number of rows that it found.
fn rows(child: Child) -> usize {
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let (rows, check) = told.trim_end().split_once('\n').unwrap_or_else(|| panic!("{told}{said}"));
    assert_eq!(check, "ok", "{said}");
    rows.parse().expect("it is a number")
}

#[test]
fn sqlite_is_used_from_two_hosts_in_turn_and_at_once() {
    if !can_mount() {
        return;
    }
    let (_cluster, mounts) = start("128MiB");
    let mut written = 0;
    for mode in ["delete", "truncate", "persist"] {
        for host in [0, USES, 0, USES] {
            written += 5;
            assert_eq!(rows(sqlite(mounts[host].root(), mode, mode, 5)), written, "{mode} on host {host}");
        }
        let both = [0, USES].map(|host| sqlite(mounts[host].root(), mode, mode, 10));
        written += 20;
        let seen = both.map(rows);
        assert!(seen.contains(&written), "who was the last saw {seen:?} of {written} rows");
    }
    let host = DIES;
    assert_eq!(rows(sqlite(mounts[host].root(), "wal", "wal", 5)), written + 5);
    assert_eq!(rows(sqlite(mounts[host].root(), "wal", "wal", 5)), written + 10);
}
