//! Tests of the command line as people and scripts use it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use plasmon::{ObjectId, Socket};
use plasmon_e2e::{Cluster, Pattern, binary, eventually};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{MIB, copy_program, get, put};

/// Runs `plasmon` against a node with `stdin`.
fn run(cluster: &Cluster, node: usize, words: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(binary());
    command.args(words).arg("--socket").arg(cluster.socket(node)).current_dir(cluster.folder());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("plasmon runs");
    child.stdin.take().expect("it is a pipe").write_all(stdin).expect("plasmon reads what it was asked to");
    child.wait_with_output().expect("plasmon ends")
}

/// Output of a `plasmon` command that succeeds.
pub(crate) fn output(cluster: &Cluster, node: usize, words: &[&str]) -> Vec<u8> {
    let output = run(cluster, node, words, b"");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Output of a command with `--json`.
pub(crate) fn json(cluster: &Cluster, node: usize, words: &[&str]) -> Value {
    let text = output(cluster, node, &[words, &["--json"]].concat());
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{words:?} printed no JSON: {error}"))
}

/// Exit code and message of a command that fails.
pub(crate) fn failure(cluster: &Cluster, node: usize, words: &[&str]) -> (i32, String) {
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
fn a_file_takes_the_place_of_another() {
    let cluster = Cluster::builder().nodes(2).start();
    let mut versions = Vec::new();
    for len in [10, 0, MIB] {
        let data = Pattern(len as u64).bytes(len);
        fs::write(cluster.folder().join("in"), &data).expect("the folder is ours");
        let put = json(&cluster, versions.len() % 2, &["put", "in", "--name", "changed", "--replace"]);
        versions.push(put["version"].as_str().expect("what replaces has a version").to_owned());
        assert!(output(&cluster, 1, &["get", "changed", "--timeout", "0"]) == data, "{len} bytes");
    }
    let expecting = |name, version| ["put", "in", "--name", name, "--replace", "--expected", version];
    let (code, message) = failure(&cluster, 0, &expecting("changed", &versions[0]));
    assert_eq!(code, 5, "{message}");
    assert_eq!(failure(&cluster, 0, &expecting("nothing", &versions[2])).0, 3);
    assert_eq!(failure(&cluster, 0, &expecting("changed", "1")).0, 2);
    assert_eq!(failure(&cluster, 0, &["put", "in", "--name", "changed", "--expected", &versions[2]]).0, 2);
    let last = json(&cluster, 1, &expecting("changed", &versions[2]))["version"].clone();
    assert_ne!(last, versions[2]);
    assert_eq!(json(&cluster, 1, &["ls", "changed"])[0]["version"], last);
    assert_eq!(json(&cluster, 0, &["ls", "changed", "--cluster"])[0]["version"], last);
    assert_eq!(json(&cluster, 1, &["explain", "changed"])["version"], last);
    let explained = output(&cluster, 1, &["explain", "changed"]);
    let line = format!("version   {}", last.as_str().expect("it is a text"));
    assert!(String::from_utf8_lossy(&explained).lines().any(|one| one == line), "{explained:?}");
    let put = json(&cluster, 0, &["put", "in", "--name", "new"]);
    assert_eq!(put["version"], Value::Null, "what replaces nothing is not told its version");
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
fn the_status_says_how_much_is_in_huge_pages() {
    const CAPACITY: u64 = 64 << 20;
    for (args, most) in [(&[][..], CAPACITY), (&["--no-huge-pages"], 0)] {
        let cluster = Cluster::builder().prefault().args(args).start();
        eventually("all is touched", || cluster.status(0).memory.prefaulted == CAPACITY);
        let text = String::from_utf8(output(&cluster, 0, &["status"])).expect("it is text");
        let huge = json(&cluster, 0, &["status"])["memory"]["huge"].as_u64().expect("it is a number");
        assert!(huge <= most && huge.is_multiple_of(2 << 20), "{huge}");
        for (bytes, kinds) in [
            (huge, ["transparent huge pages", "huge pages of the pool"]),
            (CAPACITY - huge, ["base pages", "base pages"]),
        ] {
            let shown = |kind| text.contains(&format!(", {}.0 MiB in {kind}", bytes >> 20));
            assert_eq!(kinds.into_iter().any(shown), bytes > 0, "{bytes} of {kinds:?}: {text}");
        }
    }
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
    // Other nodes would not find it at another address.
    assert!(message.contains(&format!("--listen {}", cluster.listen(0))), "{message}");
    cluster.start_again(0, &[]);
    cluster.terminate(0, Signal::TERM);
    assert!(!Socket::address_file(&cluster.socket(0)).exists(), "the address goes with the socket");
}

#[test]
fn errors_say_what_is_known_and_what_to_do() {
    let cluster = Cluster::builder().nodes(2).start();
    fs::write(cluster.folder().join("in"), b"data").expect("the folder is ours");
    let id = ObjectId::from_name("nothing").to_string();
    let explain = format!("`plasmon explain {id}`");
    output(&cluster, 0, &["put", "in", "--name", "taken"]);
    let cases: [(i32, &[&str], &[&str]); 8] = [
        (4, &["get", "nothing", "--timeout", "0.05"], &["nobody has put it", &explain]),
        (3, &["get", "nothing", "--timeout", "0"], &["nobody has put it", "a get with a time-out waits"]),
        (3, &["explain", "nothing"], &["object 'nothing' (", "no node is known to hold"]),
        (3, &["explain", "nothing", "--json"], &["no node is known to hold"]),
        (3, &["locations", "nothing"], &["object 'nothing' (", "no node is known to hold"]),
        (5, &["put", "in", "--name", "taken"], &["another name or id"]),
        (2, &["rm", "--older", "1h"], &["<NAME|ID|PATTERN", "--unnamed"]),
        (2, &["rm", "taken", "--unnamed"], &["cannot be used with"]),
    ];
    for (code, words, said) in cases {
        let (was, message) = failure(&cluster, 0, words);
        assert_eq!(was, code, "{words:?}: {message}");
        said.iter().for_each(|said| assert!(message.contains(said), "no {said:?} in {message:?}"));
    }
    // `explain` of an object that another node has is no failure.
    let elsewhere = output(&cluster, 1, &["explain", "taken"]);
    assert!(String::from_utf8_lossy(&elsewhere).contains("has a primary replica"), "{elsewhere:?}");
}

#[test]
fn values_of_arguments_are_refused_for_what_they_are() {
    let cluster = Cluster::builder().start();
    let size = "write a size such as 4096, 512MiB or 4GiB";
    let time = "write a time such as 30, 0.5, 200ms, 30s, 5m, 1h or 2d";
    let cases: [(&[&str], &str); 11] = [
        (&["serve", "--memory", "4GBB"], size),
        (&["serve", "--memory", "-1"], size),
        (&["serve", "--memory", "-4KiB"], size),
        (&["evict", "-1"], size),
        (&["evict", "-4KiB"], size),
        (&["region", "create", "name", "-1"], size),
        (&["region", "create", "name", "-4KiB", "--exist-ok"], size),
        (&["region", "read", "name", "--offset", "-4KiB"], size),
        (&["lock", "name", "--timeout", "5 m", "--", "true"], time),
        (&["wait", "name", "--timeout", "5w"], time),
        (&["wait", "name", "--timeout", "-5s"], "a number of seconds, 0 or more"),
    ];
    for (words, said) in cases {
        let (code, message) = failure(&cluster, 0, words);
        assert_eq!(code, 2, "{words:?}: {message}");
        assert!(message.contains(said) && message.contains("invalid value"), "{words:?}: {message}");
        let refused = words.iter().any(|word| message.contains(&format!("invalid value '{word}'")));
        assert!(refused, "{words:?}: {message}");
        assert!(!message.contains("parse"), "{words:?} quotes a library: {message}");
    }
    // Minutes are as good as seconds.
    output(&cluster, 0, &["locks", "--timeout", "5m"]);
    let (code, _) = failure(&cluster, 0, &["wait", "name", "--timeout", "0.001m"]);
    assert_eq!(code, 4);
}

#[test]
fn a_digest_is_made_and_compared_on_any_node() {
    let cluster = Cluster::builder().nodes(2).start();
    let data = Pattern(3).bytes(2 * MIB + 1);
    fs::write(cluster.folder().join("in"), &data).expect("the folder is ours");
    output(&cluster, 0, &["put", "in", "--name", "with", "--digest"]);
    output(&cluster, 0, &["put", "in", "--name", "without"]);
    let with = json(&cluster, 0, &["hash", "with"]);
    let without = json(&cluster, 0, &["hash", "without"]);
    assert_eq!((&with["compared"], &without["compared"]), (&Value::from(true), &Value::from(false)));
    assert_eq!(with["hash"], without["hash"], "the same bytes have the same digest");
    assert_eq!(json(&cluster, 1, &["hash", "with"]), with, "it goes with the object");
    let text = output(&cluster, 0, &["hash", "with"]);
    assert_eq!(String::from_utf8_lossy(&text).trim(), with["hash"].as_str().expect("it is text"));
    assert_eq!(failure(&cluster, 0, &["hash", "nothing", "--timeout", "0"]).0, 3);
}

#[test]
fn a_wait_ends_when_enough_is_here() {
    let cluster = Cluster::builder().start();
    fs::write(cluster.folder().join("in"), b"data").expect("the folder is ours");
    output(&cluster, 0, &["put", "in", "--name", "one"]);
    output(&cluster, 0, &["put", "in", "--name", "two"]);
    let both = output(&cluster, 0, &["wait", "one", "two"]);
    assert_eq!(String::from_utf8_lossy(&both), "one\ntwo\n");
    let rows = json(&cluster, 0, &["wait", "nothing", "two", "--count", "1"]);
    assert_eq!((&rows[0]["here"], &rows[1]["here"]), (&Value::from(false), &Value::from(true)));
    assert_eq!(failure(&cluster, 0, &["wait", "nothing", "two", "--timeout", "0.05"]).0, 4);
    assert_eq!(failure(&cluster, 0, &["wait", "two", "--count", "2"]).0, 2);

    // The creation of an object that did not exist wakes the wait.
    let mut waiting = Command::new(binary());
    waiting.args(["wait", "late", "--timeout", "60", "--socket"]).arg(cluster.socket(0));
    let waiting = waiting.stdout(Stdio::piped()).spawn().expect("plasmon runs");
    eventually("the wait begins", || names_of_clients(&cluster).contains(&"plasmon wait".to_owned()));
    output(&cluster, 0, &["put", "in", "--name", "late"]);
    let ended = waiting.wait_with_output().expect("plasmon ends");
    assert!(ended.status.success());
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "late\n");
}

/// Names of clients that `plasmon clients` shows.
fn names_of_clients(cluster: &Cluster) -> Vec<String> {
    let rows = json(cluster, 0, &["clients"]);
    let rows = rows.as_array().expect("it is a list").iter();
    rows.map(|row| row["name"].as_str().expect("it is text").to_owned()).collect()
}

#[test]
fn clients_are_shown_with_what_they_hold() {
    let cluster = Cluster::builder().start();
    let client = cluster.client(0);
    let held = get(&client, put(&client, Pattern(1), MIB));
    let rows = json(&cluster, 0, &["clients"]);
    let row = (rows.as_array().expect("it is a list").iter()).find(|row| row["pid"] == std::process::id());
    let row = row.expect("this process is a client");
    assert_eq!((&row["pins"], &row["quota"]), (&Value::from(1), &Value::Null));
    assert!(row["bytes"].as_u64() >= Some(MIB as u64), "{row}");
    let text = output(&cluster, 0, &["clients"]);
    assert!(String::from_utf8_lossy(&text).contains(&std::process::id().to_string()));
    drop(held);
}

#[test]
fn what_is_elsewhere_too_can_be_evicted() {
    let cluster = Cluster::builder().nodes(2).start();
    let id = put(&cluster.client(0), Pattern(1), 4 * MIB);
    assert_eq!(json(&cluster, 0, &["evict", "1MiB"])["bytes"], 0, "the only replica stays");
    drop(get(&cluster.client(1), id));
    let freed = json(&cluster, 1, &["evict", "1MiB"])["bytes"].as_u64().expect("it is a number");
    assert!(freed >= 4 * MIB as u64, "{freed}");
    assert_eq!(json(&cluster, 1, &["ls"]).as_array().map(Vec::len), Some(0));
    assert_eq!(failure(&cluster, 1, &["evict", "much"]).0, 2);
}

#[test]
fn events_are_printed_until_nobody_reads() {
    let mut cluster = Cluster::builder().start();
    fs::write(cluster.folder().join("in"), b"data").expect("the folder is ours");
    output(&cluster, 0, &["put", "in", "--name", "before"]);
    let subscribe = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("subscribe").args(words).arg("--socket").arg(cluster.socket(0));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("plasmon runs")
    };
    let (mut programs, mut people) = (subscribe(&["--json"]), subscribe(&[]));
    let mut lines = BufReader::new(programs.stdout.take().expect("it is a pipe")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("there is more").expect("it is text");
        serde_json::from_str(&line).expect("it is JSON")
    };
    let id = |name| Value::from(ObjectId::from_name(name).to_string());
    let before = next();
    assert_eq!(
        (&before["event"], &before["id"], &before["bytes"]),
        (&"sealed".into(), &id("before"), &4.into())
    );
    let mut text = BufReader::new(people.stdout.take().expect("it is a pipe"));
    let mut line = String::new();
    text.read_line(&mut line).expect("it is text");
    assert!(
        line.starts_with("sealed") && line.contains(&ObjectId::from_name("before").to_string()),
        "{line}"
    );
    output(&cluster, 0, &["put", "in", "--name", "after"]);
    assert_eq!(next()["id"], id("after"));
    fs::write(cluster.folder().join("in"), b"longer").expect("the folder is ours");
    output(&cluster, 0, &["put", "in", "--name", "after", "--replace"]);
    let replaced = next();
    assert_eq!(
        (&replaced["event"], &replaced["id"], &replaced["bytes"], &replaced["name"]),
        (&"replaced".into(), &id("after"), &6.into(), &"after".into())
    );
    output(&cluster, 0, &["rm", "before"]);
    let gone = next();
    assert_eq!((&gone["event"], &gone["id"]), (&"deleted".into(), &id("before")));

    // The reader of these lines is gone: the command notices that at the next event.
    drop(text);
    output(&cluster, 0, &["put", "in", "--name", "last"]);
    assert!(people.wait().expect("it is our child").success());

    cluster.kill(0);
    assert_eq!(programs.wait().expect("it is our child").code(), Some(7));
}

#[test]
fn events_of_all_nodes_are_printed_with_their_nodes() {
    let cluster = Cluster::builder().nodes(2).start();
    fs::write(cluster.folder().join("in"), b"data").expect("the folder is ours");
    output(&cluster, 1, &["put", "in", "--name", "far"]);
    let node = cluster.client(1).node().to_string();
    for words in [&["--cluster"][..], &["--cluster", "--json"]] {
        let mut command = Command::new(binary());
        command.arg("subscribe").args(words).arg("--socket").arg(cluster.socket(0)).stdout(Stdio::piped());
        let mut child = command.spawn().expect("plasmon runs");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe"));
        lines.read_line(&mut line).expect("it is text");
        assert!(line.contains(&node) && line.contains("sealed") && line.contains("far"), "{line}");
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }
}

#[test]
fn objects_are_put_where_they_are_wanted() {
    let cluster = Cluster::builder().nodes(3).start();
    fs::write(cluster.folder().join("in"), Pattern(1).bytes(3 * MIB)).expect("the folder is ours");
    let nodes = [0, 1, 2].map(|node| cluster.client(node).node().to_string());
    let sorted = |value: &Value| {
        let names = value.as_array().expect("a list").iter().map(|name| name.as_str().expect("a word"));
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort();
        names
    };
    let all = sorted(&Value::from(nodes.to_vec()));

    output(&cluster, 0, &["put", "in", "--name", "two", "--replicas", "2"]);
    let roles = |name: &str| -> Vec<String> {
        let rows = json(&cluster, 0, &["locations", name]);
        let rows = rows.as_array().expect("a list").iter();
        rows.map(|row| row["role"].as_str().expect("a word").to_owned()).collect()
    };
    eventually("the directory knows", || roles("two") == ["primary", "kept"]);
    assert_eq!(sorted(&json(&cluster, 1, &["replicate", "two", "3"])["holders"]), all);
    let (code, message) = failure(&cluster, 0, &["replicate", "two", "4"]);
    assert_eq!(code, 10, "{message}");
    let (code, message) = failure(&cluster, 0, &["put", "in", "--name", "four", "--replicas", "4"]);
    assert_eq!(code, 10, "{message}");
    eventually("it stays", || roles("four").len() == 3);

    output(&cluster, 0, &["put", "in", "--name", "moved"]);
    let host = cluster.address(2).to_string();
    let there = match cluster.listen(2).ip() == cluster.listen(0).ip() {
        true => nodes[2].clone(),
        false => host,
    };
    assert_eq!(json(&cluster, 1, &["migrate", "moved", &there])["holders"][0], nodes[2].as_str());
    assert_eq!(
        json(&cluster, 1, &["broadcast", "moved", "--nodes", &nodes[0]])["holders"][0],
        nodes[0].as_str()
    );
    assert_eq!(sorted(&json(&cluster, 1, &["broadcast", "moved"])["holders"]), all);
    let shown = String::from_utf8(output(&cluster, 1, &["broadcast", "moved"])).expect("text");
    assert!(nodes.iter().all(|node| shown.contains(node)), "{shown}");
    assert_eq!(failure(&cluster, 1, &["migrate", "moved", "nowhere"]).0, 1);
    assert_eq!(failure(&cluster, 1, &["broadcast", "nothing"]).0, 3);

    output(&cluster, 0, &["put", "in", "--name", "brief", "--ttl", "0.5"]);
    eventually("it ends", || {
        run(&cluster, 0, &["get", "brief", "--timeout", "0"], b"").status.code() == Some(3)
    });
    assert_eq!(failure(&cluster, 0, &["put", "in", "--ttl", "0"]).0, 2);
    // A second object of the name is refused.
    assert_eq!(failure(&cluster, 1, &["put", "in", "--name", "moved"]).0, 5);
}

#[test]
fn the_demo_says_that_no_python_has_it() {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let program = folder.path().join("plasmon");
    copy_program(&binary(), &program);
    let mut command = Command::new(&program);
    let output = command.arg("demo").env("PATH", folder.path()).output().expect("plasmon runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("python3") && said.contains("python -m plasmon.demo"), "{said}");
}
