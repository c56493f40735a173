//! Tests of `plasmon doctor`: without a node, and with one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use plasmon_e2e::{Cluster, Pattern, binary};
use serde_json::Value;

use crate::support::{MIB, put};

/// Number of columns that nearly every terminal has.
const WIDTH: usize = 100;

fn doctor(socket: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.arg("doctor").args(words).arg("--socket").arg(socket);
    command.output().expect("plasmon runs")
}

/// Report in JSON, whose exit code is checked.
fn report(socket: &Path, words: &[&str]) -> Value {
    let output = doctor(socket, &[words, &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    let problems = report["problems"].as_u64().expect("it counts them");
    assert_eq!(problems as usize, of(&report, "problem").len());
    assert_eq!(report["advice"].as_u64().map(|some| some as usize), Some(of(&report, "advice").len()));
    assert_eq!(output.status.code(), Some(i32::from(problems > 0)), "{report:#}");
    report
}

/// Topics of the findings of one severity.
fn of<'a>(report: &'a Value, severity: &str) -> BTreeSet<&'a str> {
    let findings = report["findings"].as_array().expect("it is a list").iter();
    let some = findings.filter(|finding| finding["severity"] == severity);
    some.map(|finding| finding["topic"].as_str().expect("it is text")).collect()
}

fn finding<'a>(report: &'a Value, topic: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("it is a list");
    let found = findings.iter().find(|finding| finding["topic"] == topic);
    found.unwrap_or_else(|| panic!("nothing on {topic}: {report:#}"))
}

#[test]
fn a_host_without_a_node_is_examined() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let socket = folder.path().join("none.sock");
    let report = report(&socket, &["--memory", "64MiB"]);
    assert_eq!(report["memory"], 64 << 20);
    assert!(report["node"].is_null());
    for topic in ["huge_pages", "memory", "open_files", "locked_memory", "rdma", "cores", "spill_directory"] {
        assert!(!finding(&report, topic)["found"].as_str().expect("it is text").is_empty());
    }
    assert_eq!(finding(&report, "node")["severity"], "ok", "nobody has to run one");
    if !Path::new("/sys/class/infiniband").exists() {
        let rdma = finding(&report, "rdma");
        assert_eq!((&rdma["severity"], &rdma["found"]), (&"ok".into(), &"no device".into()));
        assert!(rdma["why"].as_str().is_some_and(|why| why.contains("TCP")), "{rdma:#}");
    }

    let text = doctor(&socket, &["--memory", "64MiB"]).stdout;
    let text = String::from_utf8(text).expect("it is text");
    let commands: BTreeSet<&str> = (report["findings"].as_array().expect("it is a list").iter())
        .flat_map(|finding| finding["mend"].as_array().expect("it is a list"))
        .map(|step| step["command"].as_str().expect("it is text"))
        .collect();
    assert!(commands.iter().all(|command| text.lines().any(|line| line.trim() == *command)), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= WIDTH || commands.contains(line.trim())),
        "{text}"
    );
}

#[test]
fn what_cannot_be_is_a_problem() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let socket = folder.path().join("none.sock");
    let report = report(&socket, &["--memory", "1PiB", "--spill-dir", "/dev/shm/plasmon"]);
    let problems = of(&report, "problem");
    assert!(problems.contains("memory") && problems.contains("spill_directory"), "{report:#}");
    assert!(!Path::new("/dev/shm/plasmon").exists(), "the doctor only looks");

    let output = doctor(&socket, &["--memory", "1PiB"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("problem  memory: 1.0 PiB wanted"), "the worst comes first: {text}");
}

#[test]
fn the_node_says_what_it_uses() {
    let cluster = Cluster::builder().memory("96MiB").start();
    let report = report(&cluster.socket(0), &[]);
    let status = cluster.status(0);
    assert_eq!(report["memory"], status.memory.capacity);
    assert_eq!(report["node"]["pid"], cluster.daemon(0).pid());
    assert_eq!(report["node"]["pages"], status.memory.pages.as_str());
    assert_eq!(report["node"]["provider"], status.fabric.provider.as_str());
    assert_eq!(report["node"]["reason"], status.fabric.reason.as_str());
    let told = finding(&report, "node")["found"].as_str().expect("it is text");
    assert!(told.contains(&status.fabric.provider) && told.contains("96.0 MiB"), "{told}");
    assert!(finding(&report, "open_files")["found"].as_str().is_some_and(|found| found.contains("the node")));
}

#[test]
fn a_node_that_is_silent_does_not_keep_the_doctor() {
    let cluster = Cluster::builder().start();
    cluster.pause(0);
    let silent = report(&cluster.socket(0), &["--memory", "64MiB"]);
    cluster.resume(0);
    assert!(of(&silent, "problem").contains("node"), "{silent:#}");
    assert!(silent["node"].is_null());
}

#[test]
fn a_node_that_was_killed_is_told_from_none() {
    let mut cluster = Cluster::builder().start();
    cluster.kill(0);
    let report = report(&cluster.socket(0), &["--memory", "64MiB"]);
    assert_eq!(finding(&report, "node")["severity"], "advice", "{report:#}");
}

#[test]
fn what_a_killed_node_left_on_disk_is_named_with_its_size() {
    let mut cluster = Cluster::builder().args(&["--spill-dir", "spill"]).start();
    let client = cluster.client(0);
    // Each has a file of its own.
    (0..6).for_each(|seed| _ = put(&client, Pattern(seed), 20 * MIB));
    let folder = cluster.node_folder(0).join("spill");
    let words = ["--memory", "64MiB", "--spill-dir", folder.to_str().expect("it is text")];
    let nobody = cluster.folder().join("none.sock");
    let topics = |report: &Value| {
        let findings = report["findings"].as_array().expect("it is a list").iter();
        findings.filter(|finding| finding["topic"] == "spill_files").count()
    };
    assert_eq!(topics(&report(&cluster.socket(0), &words)), 0, "the node has them");
    assert_eq!(topics(&report(&nobody, &words)), 0, "another node has them");
    cluster.kill(0);
    let left = report(&nobody, &words);
    let found = finding(&left, "spill_files")["found"].as_str().expect("it is text");
    let files = fs::read_dir(&folder).expect("the daemon made it").flatten().map(|entry| entry.path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "spill")).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in &files {
        let name = file.file_name().expect("it has one").to_str().expect("it is text");
        assert!(found.contains(&format!("{name} (20.")), "{found}");
    }
    // A node that is started with the setting has the directory without being asked.
    let mut command = Command::new(binary());
    command.args(["doctor", "--json", "--memory", "64MiB"]).arg("--socket").arg(&nobody);
    command.env("PLASMON_SPILL_DIR", &folder).env("PLASMON_CONFIG", "/dev/null");
    let told: Value = serde_json::from_slice(&command.output().expect("plasmon runs").stdout).expect("JSON");
    assert_eq!(topics(&told), 1, "{told:#}");
}
