//! Tests of `plasmon lock` and `plasmon locks`: what the command finds, its exit codes, signals, and the end
//! of a command whose lock is lost.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use plasmon_e2e::{Cluster, binary, eventually, until, wait};
use rustix::process::{Pid, Signal, kill_process};

use crate::commands::{failure, json};
use crate::locks::{attempt, row, take};

/// `plasmon lock NAME` with options, and a script for the shell.
fn locked(cluster: &Cluster, node: usize, options: &[&str], script: &str) -> Command {
    holding(cluster, node, options, &["sh", "-c", script])
}

/// `plasmon lock NAME` with options, and a command.
fn holding(cluster: &Cluster, node: usize, options: &[&str], held: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["lock", "name"]).args(options);
    command.arg("--socket").arg(cluster.socket(node)).arg("--").args(held);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts a command, and waits until its script says that it has begun.
fn started(mut command: Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.spawn().expect("plasmon runs");
    let mut out = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("it is text");
    assert_eq!(line, "begun\n");
    (child, out)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it is our child");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[test]
fn the_command_holds_the_lock_and_its_exit_code_is_told() {
    let cluster = Cluster::builder().nodes(2).start();
    let run = |options: &[&str], script: &str| -> Output {
        locked(&cluster, 0, options, script).output().expect("plasmon runs")
    };
    let first = run(&["--ttl", "1s", "--timeout", "5s"], "echo $PLASMON_TOKEN");
    assert!(first.status.success(), "{}", text(&first.stderr));
    let token: u128 = text(&first.stdout).parse().expect("a number");
    let guard = take(&cluster.client(1), "name");
    assert!(guard.token() > token && !guard.abandoned());
    for timeout in ["0", "0.2"] {
        let late = run(&["--timeout", timeout], "echo it ran");
        assert_eq!(late.status.code(), Some(4), "{}", text(&late.stderr));
        assert_eq!(text(&late.stdout), "");
    }
    drop(guard);
    assert_eq!(run(&[], "exit 3").status.code(), Some(3));
    assert_eq!(run(&[], "kill -9 $$").status.code(), Some(137));
    for (command, code) in [("/no/such/command", 127), ("/", 126)] {
        let tried = holding(&cluster, 0, &[], &[command]).output().expect("plasmon runs");
        assert_eq!(tried.status.code(), Some(code), "{}", text(&tried.stderr));
    }
    assert_eq!(run(&["--ttl", "61s"], "true").status.code(), Some(2));
    assert_eq!(failure(&cluster, 0, &["lock", "name"]).0, 2);
    drop(attempt(&cluster.client(1), "name").expect("it is free"));
}

#[test]
fn who_holds_and_who_waits_is_listed() {
    let cluster = Cluster::builder().nodes(2).start();
    assert_eq!(json(&cluster, 1, &["locks"]), serde_json::json!([]));
    let (mut child, _out) = started(locked(&cluster, 0, &[], "echo begun; exec sleep 600"));
    let waiting = locked(&cluster, 1, &[], "true").spawn().expect("plasmon runs");
    let told = until("one waits", || {
        let list = json(&cluster, 1, &["locks"]);
        (list[0]["waiting"] == 1).then_some(list)
    });
    let told = &told[0];
    assert_eq!((&told["name"], &told["kind"], &told["held"]), (&"name".into(), &"lock".into(), &1.into()));
    assert_eq!(told["holders"][0]["pid"], child.id());
    assert!(told["holders"][0]["token"].is_string() && told["holders"][0]["age_seconds"].is_number());
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().expect("it is our child").code(), Some(128 + 15));
    let waited = waiting.wait_with_output().expect("it is our child");
    assert!(waited.status.success(), "{}", text(&waited.stderr));
}

#[test]
fn who_left_a_lock_is_listed_until_the_next_holder_has_learned_of_it() {
    let cluster = Cluster::builder().nodes(2).start();
    let (mut child, _out) = started(locked(&cluster, 1, &["--ttl", "60s"], "echo begun; exec sleep 600"));
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    let told = until("the death is known", || {
        let list = json(&cluster, 1, &["locks"]);
        list[0]["abandoned"].is_object().then_some(list)
    });
    let told = &told[0];
    assert_eq!((&told["name"], &told["held"], &told["waiting"]), (&"name".into(), &0.into(), &0.into()));
    assert_eq!(told["abandoned"]["pid"], child.id());
    assert!(told["abandoned"]["age_seconds"].is_number());
    let shown = Command::new(binary()).arg("locks").arg("--socket").arg(cluster.socket(0)).output();
    let shown = text(&shown.expect("plasmon runs").stdout);
    assert!(shown.contains(&format!("abandoned by pid {} of user ", child.id())), "{shown}");
    assert!(shown.contains(" at 20"), "{shown}");
    let locks = |node: usize| cluster.status(node).locks;
    let counts = [0, 1].map(|node| (locks(node).names, locks(node).abandoned));
    assert_eq!(counts, [(0, 1), (0, 0)], "the first node decides");
    let guard = attempt(&cluster.client(0), "name").expect("nothing keeps it");
    assert!(guard.abandoned());
    drop(guard);
    eventually("it is forgotten", || row(&cluster, 0, "name").is_none());
}

#[test]
fn a_node_that_is_silent_does_not_hold_up_a_list_for_longer_than_asked() {
    let cluster = Cluster::builder().nodes(2).start();
    let guard = take(&cluster.client(0), "name");
    let silent = cluster.status(1).node;
    cluster.pause(1);
    for list in [&["locks"][..], &["services"], &["region", "ls"]] {
        let began = Instant::now();
        let (code, said) = failure(&cluster, 0, &[list, &["--timeout", "1"]].concat());
        wait::ended_in_time("the list", began, Duration::from_secs(1));
        assert_eq!(code, 4, "{list:?}: {said}");
        assert!(said.contains(&silent), "{list:?}: {said}");
    }
    cluster.resume(1);
    drop(guard);
}

#[test]
fn signals_are_passed_on() {
    let cluster = Cluster::builder().start();
    for (name, sent) in [("TERM", Signal::TERM), ("INT", Signal::INT), ("USR1", Signal::USR1)] {
        let script = format!("trap 'exit 7' {name}; echo begun; while :; do sleep 0.05; done");
        let (mut child, _out) = started(locked(&cluster, 0, &[], &script));
        signal(&child, sent);
        assert_eq!(child.wait().expect("it is our child").code(), Some(7), "{name}");
    }
    eventually("the lock is free", || row(&cluster, 0, "name").is_none());
}

#[test]
fn a_command_that_lost_its_lock_is_ended() {
    let cluster = Cluster::builder().nodes(2).start();
    // The first ends at once, the second has to be killed.
    for trap in ["", "trap '' TERM;"] {
        let script = format!("{trap} echo begun; while :; do sleep 0.05; done");
        let (mut child, _out) = started(locked(&cluster, 0, &["--ttl", "1s", "--grace", "0.2s"], &script));
        signal(&child, Signal::STOP);
        let guard = take(&cluster.client(1), "name");
        signal(&child, Signal::CONT);
        let status = child.wait().expect("it is our child");
        assert_eq!(status.code(), Some(12), "{status}");
        assert!(guard.abandoned());
        guard.unlock().expect("it was held");
    }
}

#[test]
fn a_lock_command_that_is_killed_lets_others_have_the_lock() {
    let cluster = Cluster::builder().nodes(2).start();
    let script = "trap 'echo ended; exit' TERM; echo begun; while :; do sleep 0.05; done";
    let (mut child, mut out) = started(locked(&cluster, 0, &["--ttl", "60s"], script));
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    let mut said = String::new();
    out.read_line(&mut said).expect("it is text");
    assert_eq!(said, "ended\n", "the command goes on without the lock");
    assert!(take(&cluster.client(1), "name").abandoned());
}

#[test]
fn a_command_that_has_ended_tells_its_exit_code_although_the_node_stands_still() {
    let cluster = Cluster::builder().start();
    let folder = tempfile::tempdir().expect("a folder");
    let may_end = folder.path().join("may end");
    let script = format!("echo begun; until [ -e '{}' ]; do sleep 0.05; done; exit 3", may_end.display());
    let (child, _out) = started(locked(&cluster, 0, &["--ttl", "60s"], &script));
    cluster.pause(0);
    fs::write(&may_end, "").expect("there is room");
    let pid = child.id();
    eventually("the command has ended", || {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        children.is_ok_and(|children| children.is_empty())
    });
    // The lease goes on for long. A signal ends the wait for the node.
    signal(&child, Signal::TERM);
    let ended = child.wait_with_output().expect("it is our child");
    cluster.resume(0);
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.contains("could not be unlocked"), "{said}");
}
