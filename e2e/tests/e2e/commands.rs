//! The command line as people and scripts use it.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use plasmon::ObjectId;
use plasmon_e2e::{Cluster, Pattern, binary};
use serde_json::Value;

use crate::support::{MIB, put};

/// Runs `plasmon` against a node with `stdin`.
fn run(cluster: &Cluster, node: usize, words: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(binary());
    command.args(words).arg("--socket").arg(cluster.socket(node)).current_dir(cluster.folder());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("plasmon runs");
    child.stdin.take().expect("it is a pipe").write_all(stdin).expect("plasmon reads what it was asked to");
    child.wait_with_output().expect("plasmon ends")
}

/// What `plasmon` prints when all is well.
fn output(cluster: &Cluster, node: usize, words: &[&str]) -> Vec<u8> {
    let output = run(cluster, node, words, b"");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// What it prints with `--json`.
fn json(cluster: &Cluster, node: usize, words: &[&str]) -> Value {
    let text = output(cluster, node, &[words, &["--json"]].concat());
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{words:?} printed no JSON: {error}"))
}

/// The exit code of a command that fails, and its message.
fn failure(cluster: &Cluster, node: usize, words: &[&str]) -> (i32, String) {
    let output = run(cluster, node, words, b"");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{words:?} should have failed");
    assert!(!message.is_empty(), "{words:?} failed without a word");
    (output.status.code().expect("it was not killed"), message)
}

#[test]
fn a_file_goes_in_at_one_node_and_comes_out_at_another() {
    let cluster = Cluster::builder().nodes(2).start();
    for len in [0, 10, 5 * MIB + 3] {
        let (name, data) = (format!("object-{len}"), Pattern(len as u64).bytes(len));
        fs::write(cluster.folder().join("in"), &data).expect("the folder is ours");
        let id = output(&cluster, 0, &["put", "in", "--name", &name]);
        assert_eq!(String::from_utf8_lossy(&id).trim(), ObjectId::from_name(&name).to_string());

        assert!(output(&cluster, 1, &["get", &name]) == data, "{len} bytes by name");
        assert!(
            output(&cluster, 1, &["get", String::from_utf8_lossy(&id).trim()]) == data,
            "{len} bytes by id"
        );
        output(&cluster, 1, &["get", &name, "-o", "out"]);
        assert!(
            fs::read(cluster.folder().join("out")).expect("it was written") == data,
            "{len} bytes in a file"
        );
    }
}

#[test]
fn standard_input_can_be_put() {
    let cluster = Cluster::builder().start();
    let data = Pattern(1).bytes(300_000);
    let put = run(&cluster, 0, &["put", "-", "--name", "piped"], &data);
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    assert!(output(&cluster, 0, &["get", "piped"]) == data);
}

#[test]
fn programs_can_read_what_is_there() {
    let cluster = Cluster::builder().nodes(2).start();
    let id = put(&cluster.client(0), Pattern(1), MIB).to_string();
    let rows = json(&cluster, 0, &["ls"]);
    assert_eq!(rows[0]["id"], id.as_str());
    assert_eq!(rows[0]["bytes"], MIB);
    assert_eq!(rows[0]["state"], "primary");
    assert_eq!(rows.as_array().map(Vec::len), Some(1));

    let status = json(&cluster, 0, &["status"]);
    assert_eq!(status["objects"]["primary"], 1);
    assert_eq!(status["cluster"]["members"].as_array().map(Vec::len), Some(2));

    let people: Vec<_> = [["ls"], ["status"]].iter().map(|words| output(&cluster, 0, words)).collect();
    assert!(String::from_utf8_lossy(&people[0]).contains(&id));
    assert!(String::from_utf8_lossy(&people[1]).contains(&status["node"].as_str().expect("it is text")[..8]));

    json(&cluster, 1, &["rm", &id]);
    assert_eq!(json(&cluster, 0, &["ls"]).as_array().map(Vec::len), Some(0));
}

#[test]
fn exit_codes_say_what_happened() {
    let mut cluster = Cluster::builder().start();
    fs::write(cluster.folder().join("small"), b"data").expect("the folder is ours");
    fs::write(cluster.folder().join("large"), vec![0; 65 * MIB]).expect("the folder is ours");
    output(&cluster, 0, &["put", "small", "--name", "taken"]);
    let cases: [(i32, &str, &[&str]); 7] = [
        (1, "missing", &["put", "missing"]),
        (2, "no-such-command", &["no-such-command"]),
        (2, "abc", &["put", "small", "--id", "abc"]),
        (3, "nothing", &["rm", "nothing"]),
        (4, "", &["get", "nothing", "--timeout", "0.05"]),
        (5, "", &["put", "small", "--name", "taken"]),
        (6, "", &["put", "large"]),
    ];
    for (code, word, words) in cases {
        let (was, message) = failure(&cluster, 0, words);
        assert_eq!(was, code, "{words:?}: {message}");
        assert!(message.contains(word), "{words:?} does not name {word}: {message}");
    }
    // A failed get writes no file.
    failure(&cluster, 0, &["get", "nothing", "--timeout", "0.05", "-o", "never"]);
    assert!(!cluster.folder().join("never").exists());

    cluster.kill(0);
    let (code, message) = failure(&cluster, 0, &["status"]);
    assert_eq!(code, 7, "{message}");
    assert!(message.contains(cluster.socket(0).to_str().expect("it is text")), "{message}");
}
