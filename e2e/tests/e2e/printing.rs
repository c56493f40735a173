//! Tests of the output of commands: no byte controls a terminal or misleads a reader, and a failed write is a
//! failure.

use std::process::{Command, Output, Stdio};
use std::{fs, thread};

use plasmon::service::ServeOptions;
use plasmon::{Client, CreateOptions, ObjectId};
use plasmon_e2e::{Cluster, PATIENCE, binary};
use serde_json::Value;

/// Name that would clear the screen, reverse text, and hide.
const DECEIVING: &str = "\u{1b}[2J\u{7}\n\u{9b}1m\u{202e}fdp\u{2066}\u{2028}\u{200b}\u{e0041}";

fn plasmon(cluster: &Cluster, words: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(words).arg("--socket").arg(cluster.socket(0)).stdin(Stdio::null());
    command.output().expect("plasmon runs")
}

fn deceives(char: char) -> bool {
    (char.is_control() && char != '\n') || DECEIVING.chars().any(|one| one == char && !one.is_ascii())
}

/// Asserts that no character misleads a reader, and returns the text.
fn harmless(bytes: &[u8], words: &[&str]) -> String {
    let text = String::from_utf8(bytes.to_vec()).expect("it is text");
    assert!(!text.chars().any(deceives), "{words:?} printed {text:?}");
    text
}

#[test]
fn names_do_not_steer_the_terminal() {
    let cluster = Cluster::builder().start();
    let client = Client::connect_as(cluster.socket(0), DECEIVING).expect("connect");
    let named = CreateOptions { name: Some(DECEIVING.into()), ..CreateOptions::default() };
    client.put(ObjectId::from_name(DECEIVING), b"x", b"", &named).expect("put");
    let held = client.get(&[ObjectId::from_name(DECEIVING)], None).expect("get");
    let absent = &format!("{DECEIVING} absent");
    let cases: [(&[&str], &str); 17] = [
        (&["ls"], r"\u{1b}[2J\u{7}\n\u{9b}1m\u{202e}fdp\u{2066}\u{2028}\u{200b}\u{e0041}"),
        (&["clients"], r"\u{202e}"),
        (&["wait", DECEIVING], r"\u{202e}"),
        (&["wait", absent, "--timeout", "0"], ""),
        (&["get", absent, "--timeout", "0"], ""),
        (&["hash", absent, "--timeout", "0"], ""),
        (&["rm", absent], r"\u{202e}"),
        (&["locations", absent], r"\u{202e}"),
        (&["explain", absent], ""),
        (&["replicate", absent, "1"], ""),
        (&["migrate", DECEIVING, DECEIVING], r"\u{202e}"),
        (&["broadcast", DECEIVING, "--nodes", DECEIVING], r"\u{202e}"),
        (&["drain", DECEIVING], r"\u{202e}"),
        (&["put", DECEIVING], r"\u{202e}"),
        (&["get", DECEIVING, "--timeout", DECEIVING], r"\u{202e}"),
        (&[DECEIVING], r"\u{202e}"),
        // The removed object is held: a line says so.
        (&["rm", DECEIVING], r"\u{202e}"),
    ];
    for (words, escape) in cases {
        let output = plasmon(&cluster, words);
        let text = harmless(&output.stdout, words) + &harmless(&output.stderr, words);
        assert!(text.contains(escape), "{words:?} printed {text:?}");
    }
    drop(held);

    let missing = Command::new(binary()).args(["ls", "--socket"]).arg(format!("/{DECEIVING}")).output();
    harmless(&missing.expect("plasmon runs").stderr, &["ls, no socket"]);
    let help = Command::new(binary()).arg("--help").env("PLASMON_SOCKET", DECEIVING).output();
    harmless(&help.expect("plasmon runs").stdout, &["--help"]);
}

#[test]
fn programs_read_the_true_name() {
    let cluster = Cluster::builder().start();
    let client = Client::connect_as(cluster.socket(0), DECEIVING).expect("connect");
    let named = CreateOptions { name: Some(DECEIVING.into()), ..CreateOptions::default() };
    client.put(ObjectId::from_name(DECEIVING), b"x", b"", &named).expect("put");
    for (words, path) in [
        (&["ls", "--json"][..], "/name"),
        (&["clients", "--json"], "/name"),
        (&["status", "--json"], "/connections/name"),
        (&["wait", DECEIVING, "--json"], "/object"),
        (&["rm", DECEIVING, "--json"], "/object"),
    ] {
        let output = plasmon(&cluster, words);
        let text = harmless(&output.stdout, words);
        let value: Value = serde_json::from_str(&text).expect("it is JSON");
        let (rows, field) = path.split_at(path.rfind('/').expect("a path"));
        let rows = value.pointer(rows).and_then(Value::as_array).expect("rows");
        let named = rows.iter().any(|row| row[&field[1..]] == DECEIVING);
        assert!(named, "{words:?}: {text}");
    }
}

/// Runs `plasmon` with a redirection of the shell. Returns its exit code and its message.
fn redirected(cluster: &Cluster, words: &str, how: &str) -> (Option<i32>, String) {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("\"$PLASMON\" {words} {how}")).current_dir(cluster.folder());
    shell.env("PLASMON", binary()).env("PLASMON_SOCKET", cluster.socket(0)).stdin(Stdio::null());
    let output = shell.output().expect("the shell runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_cannot_be_printed_is_a_failure() {
    let cluster = Cluster::builder().start();
    fs::write(cluster.folder().join("in"), b"data").expect("the folder is ours");
    redirected(&cluster, "put in --name here", "");
    let printing = [
        "put in",
        "get here",
        "get here -o out",
        "get here -o out --json",
        "wait here",
        "wait here --json",
        "ls",
        "ls --json",
        "hash here",
        "evict 1KiB",
        "subscribe",
        "status",
        "status --json",
        "status --cluster",
        "top",
        "clients",
        "locations here",
        "explain here",
        "replicate here 1",
        "broadcast here",
        "drain --call-off",
        "doctor",
        "serve --print-config",
        "serve --print-config --json",
        "--help",
        "get --help",
        "--version",
    ];
    for words in printing {
        for how in [">&-", ">/dev/full"] {
            let (code, complaint) = redirected(&cluster, words, how);
            assert_eq!(code, Some(1), "{words} {how}: {complaint}");
            assert!(complaint.contains("cannot write standard output"), "{words} {how}: {complaint}");
        }
        // A reader that has read enough is no failure, and neither is standard error without a reader.
        let (code, complaint) = redirected(&cluster, words, "| true");
        let quiet = complaint.is_empty() || words == "top" && complaint.contains("is no terminal");
        assert!(code == Some(0) && quiet, "{words} | true: {code:?}, {complaint}");
    }
    for how in [">&-", ">/dev/full"] {
        assert_eq!(redirected(&cluster, "prefetch here", how).0, Some(0), "it prints nothing");
    }
    for how in ["2>&-", "2>/dev/full"] {
        assert_eq!(redirected(&cluster, "get nothing --timeout 0", how).0, Some(3));
        assert_eq!(redirected(&cluster, "no-such-command", how).0, Some(2));
    }
}

#[test]
fn a_reply_that_cannot_be_printed_is_a_failure() {
    const REDIRECTIONS: [&str; 2] = [">&-", ">/dev/full"];
    let cluster = Cluster::builder().start();
    let server = cluster.client(0).serve("words", &["say"], &ServeOptions::default()).expect("it serves");
    thread::scope(|threads| {
        threads.spawn(|| {
            for _ in REDIRECTIONS {
                let call = server.receive(Some(PATIENCE)).expect("it serves").expect("a call");
                call.reply(b"hello").expect("it is waited for");
            }
        });
        for how in REDIRECTIONS {
            let (code, complaint) = redirected(&cluster, "call words say hello", how);
            assert_eq!(code, Some(1), "{how}: {complaint}");
            assert!(complaint.contains("cannot write standard output"), "{how}: {complaint}");
        }
    });
}

#[test]
fn time_outs_are_read_alike() {
    let cluster = Cluster::builder().start();
    fs::write(cluster.folder().join("in"), b"data").expect("the folder is ours");
    let calls = [
        "put in --name put",
        "get here",
        "wait here",
        "hash here",
        "prefetch here",
        "replicate here 1",
        "broadcast here",
    ];
    redirected(&cluster, "put in --name here", "");
    for words in calls {
        let number = "a time-out is a number of seconds, 0 or more";
        let time = "write a time such as 30";
        for (wrong, why) in [("-1", number), ("nan", number), ("-inf", number), ("soon", time)] {
            for between in [" ", "="] {
                let (code, complaint) =
                    redirected(&cluster, &format!("{words} --timeout{between}{wrong}"), "");
                assert_eq!(code, Some(2), "{words} {wrong}");
                let said = complaint.contains(why);
                // A word that begins with a dash and is no number is a flag.
                assert!(said || (wrong, between) == ("-inf", " "), "{words} {wrong}: {complaint}");
            }
        }
        for right in ["0.5", "30", "inf"] {
            let words = words.replace("--name put", "");
            let (code, complaint) = redirected(&cluster, &format!("{words} --timeout {right}"), "");
            assert_eq!(code, Some(0), "{words} {right}: {complaint}");
        }
    }
}

#[test]
fn a_node_that_is_alone_cannot_be_calibrated() {
    let alone = Cluster::builder().start();
    for words in [&["calibrate"][..], &["calibrate", "--peer", "node7"], &["calibrate", "--json"]] {
        let output = plasmon(&alone, words);
        assert_eq!(output.status.code(), Some(11), "{words:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("there is no other node to measure towards"), "{said}");
    }
    let two = Cluster::builder().nodes(2).start();
    let output = plasmon(&two, &["calibrate", "--peer", "0.0.0.1"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no node of the cluster is 0.0.0.1"), "{said}");
}
