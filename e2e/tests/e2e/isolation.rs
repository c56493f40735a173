//! Tests of isolation: only those who may write memory can write it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use plasmon::ObjectId;
use plasmon_e2e::{Cluster, Pattern};
use rustix::process::geteuid;

use crate::support::{MIB, as_nobody, get, put};

const INTRUDER: &str = env!("CARGO_BIN_EXE_plasmon-e2e-intruder");

/// Runs an intruder on an object of node 0 and returns the lines that it printed.
fn intrude(cluster: &Cluster, mut command: Command, id: ObjectId) -> Vec<String> {
    let output = command.arg(cluster.socket(0)).arg(id.to_string()).output().expect("it runs");
    assert!(output.status.success(), "it got nothing: {}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("descriptors ") && lines[0] != "descriptors 0", "{lines:?}");
    lines[1..].to_vec()
}

#[test]
fn a_reader_of_another_user_cannot_change_anything() {
    if !geteuid().is_root() {
        eprintln!("Only root can be another user: not tested.");
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    fs::set_permissions(cluster.socket(0), Permissions::from_mode(0o666)).expect("the socket is ours");
    let (here, there) = (cluster.client(0), cluster.client(1));
    // Written by the engine, written by a client, and a replica.
    let objects =
        [put(&here, Pattern(1), 100), put(&here, Pattern(1), 5 * MIB), put(&there, Pattern(1), 5 * MIB)];
    for id in objects {
        let held = get(&here, id);
        let done = intrude(&cluster, as_nobody(&cluster, &[Path::new(INTRUDER)]), id);
        assert!(done.is_empty(), "{done:?}");
        Pattern(1).check(held.data());
    }
}

#[test]
fn nobody_changes_what_the_engine_wrote() {
    let cluster = Cluster::builder().nodes(2).start();
    let (here, there) = (cluster.client(0), cluster.client(1));
    for id in [put(&here, Pattern(1), 100), put(&there, Pattern(1), 5 * MIB)] {
        let held = get(&here, id);
        // A process of the same user may open descriptors that the user owns; the kernel's seals still refuse
        // the write.
        let done = intrude(&cluster, Command::new(INTRUDER), id);
        let changes: Vec<_> =
            done.iter().filter(|line| line.contains("written") || line.contains("sized")).collect();
        assert!(changes.is_empty(), "{done:?}");
        Pattern(1).check(held.data());
    }
}
