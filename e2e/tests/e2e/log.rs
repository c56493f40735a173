//! Tests of the log that is made of regions (`examples/log`): all readers read every acknowledged transaction
//! once, in one order and whole, whatever writers and nodes die.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use plasmon::{ErrorKind, NodeId};
use plasmon_e2e::{Chance, Cluster, PATIENCE, Pattern, eventually, own_namespaces};
use plasmon_log::{Error, Log, Result, Start, Transaction, Writer};
use serde_json::Value;

use crate::support::MIB;

/// Bytes of a log of several segments.
const CAPACITY: u64 = 1 << 20;

fn nodes(cluster: &Cluster, numbers: &[usize]) -> Vec<NodeId> {
    numbers.iter().map(|node| cluster.client(*node).node()).collect()
}

fn command(cluster: &Cluster, node: usize, words: &[&str]) -> Command {
    let mut command = cluster.command(node, Path::new(env!("CARGO_BIN_EXE_plasmon-e2e-log")));
    command.arg("--socket").arg(cluster.socket(node)).args(words).stdin(Stdio::null());
    command
}

fn run(cluster: &Cluster, node: usize, words: &[&str]) -> Output {
    command(cluster, node, words).output().expect("the command runs")
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("it prints text")
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("it should have failed").kind()
}

/// All transactions from a position on that there are now.
fn read_all(log: &Log, start: Start) -> Result<Vec<Transaction>> {
    let mut reader = log.reader(start)?;
    let mut all = Vec::new();
    loop {
        let batch = reader.next_batch(Duration::ZERO)?;
        if batch.is_empty() {
            return Ok(all);
        }
        all.extend(batch);
    }
}

/// First records of transactions, as texts.
fn texts(transactions: &[Transaction]) -> Vec<String> {
    transactions.iter().map(|one| String::from_utf8_lossy(&one.records[0]).into_owned()).collect()
}

/// Has everything decided that is undecided.
fn clean(log: &Log) {
    let mut cleaner = log.cleaner(Duration::ZERO);
    eventually("nothing is undecided", || cleaner.pass().expect("the copies live").open == 0);
}

#[test]
fn transactions_of_all_sizes_are_read_as_they_were_appended() {
    let cluster = Cluster::builder().nodes(2).start();
    for (name, copies) in [("near", &[0][..]), ("far", &[1]), ("both", &[0, 1])] {
        let log =
            Log::create(&cluster.client(0), name, 8 * MIB as u64, &nodes(&cluster, copies)).expect("room");
        let mut writer = log.writer().expect("it is there");
        let mut written = Vec::new();
        for (nth, size) in [0, 1, 7, 8, 300, 321, 5000, 300_000, 900_000, 16].into_iter().enumerate() {
            let records = vec![Pattern(nth as u64).bytes(size), Vec::new(), b"end".to_vec()];
            written.push((writer.append(&records).expect("there is room"), records));
        }
        assert!(written.is_sorted_by_key(|(position, _)| *position), "positions grow");
        for node in [0, 1] {
            let log = Log::open(&cluster.client(node), name).expect("it is there");
            let read = read_all(&log, Start::Oldest).expect("the nodes live");
            let read: Vec<_> = read.into_iter().map(|one| (one.position, one.records)).collect();
            assert!(read == written, "{name} on node {node}");
        }
        assert_eq!(kind(writer.append(&[Pattern(0).bytes(MIB + 1)])), ErrorKind::TooLarge);
    }
}

#[test]
fn a_log_that_is_full_goes_on_when_it_was_trimmed() {
    let cluster = Cluster::builder().nodes(2).start();
    let log =
        Log::create(&cluster.client(0), "log", CAPACITY, &nodes(&cluster, &[1, 0])).expect("there is room");
    let mut writer = log.writer().expect("it is there");
    let record = Pattern(1).bytes(10_000);
    let fill = |writer: &mut Writer| {
        let positions = std::iter::from_fn(|| match writer.append(&[&record]) {
            Ok(position) => Some(position),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                None
            }
        });
        positions.collect::<Vec<_>>()
    };
    let positions = fill(&mut writer);
    let used = positions.len() * record.len();
    assert!(used > CAPACITY as usize * 9 / 10 && used <= CAPACITY as usize, "{used} bytes of {CAPACITY}");
    let memory = |cluster: &Cluster| cluster.status(1).memory.used;
    let full = memory(&cluster);
    assert_eq!(kind(writer.append(&[b"small"])), ErrorKind::Full, "a segment that is full stays full");

    // A reader that is behind is told, and goes on where the log begins now.
    let mut reader = log.reader(Start::Oldest).expect("it is there");
    let kept = positions[positions.len() / 2];
    assert_eq!(log.trim(kept).expect("it is no further than the end"), kept);
    assert_eq!(log.trim(3).expect("it is trimmed further already"), kept);
    let behind = reader.next_batch(PATIENCE).expect_err("that was trimmed");
    assert!(matches!(behind, Error::Trimmed { oldest, .. } if oldest == kept), "{behind}");
    reader.skip_trimmed().expect("the log is there");
    assert_eq!(reader.next_batch(PATIENCE).expect("the nodes live")[0].position, kept);
    assert_eq!(kind(read_all(&log, Start::At(kept - 1))), ErrorKind::NotFound);
    eventually("the memory is back", || memory(&cluster) < full);

    let more = fill(&mut writer);
    assert!(more.len() > positions.len() / 3 && more[0] > positions[positions.len() - 1]);
    let expected: Vec<_> = positions.iter().chain(&more).filter(|one| **one >= kept).copied().collect();
    let read = read_all(&log, Start::Oldest).expect("the nodes live");
    assert_eq!(read.iter().map(|one| one.position).collect::<Vec<_>>(), expected);
    assert_eq!(kind(log.trim(log.end().expect("it is there") + 1)), ErrorKind::Invalid);
    log.remove().expect("the nodes live");
    assert_eq!(cluster.client(0).regions().expect("the nodes live"), []);
}

#[test]
fn a_writer_may_die_at_every_step() {
    let cluster = Cluster::builder().nodes(3).start();
    for (name, copies) in [("one", &[1][..]), ("three", &[1, 0, 2])] {
        let log =
            Log::create(&cluster.client(0), name, CAPACITY, &nodes(&cluster, copies)).expect("there is room");
        let mut reader = Log::open(&cluster.client(2), name).and_then(|log| log.reader(Start::Oldest));
        let reader = reader.as_mut().expect("it is there");
        let (mut seen, mut after) = (Vec::new(), Vec::new());
        for step in 0.. {
            let mut dying = log.writer().expect("it is there");
            dying
                .begin(&[format!("dying {step}").as_bytes(), &Pattern(step).bytes(2000)])
                .expect("there is room");
            let more = (0..step).all(|_| dying.advance());
            drop(dying);
            let text = format!("after {step}");
            after.push(text.clone());
            log.writer().and_then(|mut writer| writer.append(&[text.as_bytes()])).expect("others go on");
            clean(&log);
            seen.extend(reader.next_batch(PATIENCE).expect("the nodes live"));
            if !more {
                break;
            }
        }
        eventually("the reader has all", || {
            seen.extend(reader.next_batch(Duration::ZERO).expect("the nodes live"));
            texts(&seen).last() == after.last()
        });
        // A transaction of a dying writer is there as a whole or not at all, and the same for all readers.
        for one in seen.iter().filter(|one| one.records[0].starts_with(b"dying")) {
            let step = String::from_utf8_lossy(&one.records[0][6..]).parse().expect("it is a number");
            assert!(one.records.len() == 2 && one.records[1] == Pattern(step).bytes(2000), "step {step}");
        }
        let whole: Vec<_> = texts(&seen).into_iter().filter(|text| text.starts_with("after")).collect();
        assert_eq!(whole, after);
        assert!(seen.len() > after.len(), "the last one died after its commit");
        for node in 0..3 {
            let log = Log::open(&cluster.client(node), name).expect("it is there");
            assert!(read_all(&log, Start::Oldest).expect("the nodes live") == seen, "{name} on node {node}");
        }
    }
}

#[test]
fn a_writer_that_was_voided_appends_anew() {
    let cluster = Cluster::builder().nodes(2).start();
    let log =
        Log::create(&cluster.client(0), "log", CAPACITY, &nodes(&cluster, &[1, 0])).expect("there is room");
    let mut slow = log.writer().expect("it is there");
    slow.begin(&[b"slow"]).expect("there is room");
    // The first step is the reservation of a place.
    eventually("a place is reserved", || log.end().expect("the nodes live") == 1);
    clean(&log);
    log.writer().and_then(|mut writer| writer.append(&[b"other"])).expect("others go on");
    assert_eq!(texts(&read_all(&log, Start::Oldest).expect("the nodes live")), ["other"]);
    let position = slow.finish().expect("it was begun").expect("the nodes live");
    let read = read_all(&log, Start::Oldest).expect("the nodes live");
    assert_eq!((texts(&read), read[1].position), (vec!["other".to_owned(), "slow".to_owned()], position));
}

/// Process that appends lines with its name and a number, and the numbers that were acknowledged.
struct Appending {
    child: Child,
    acknowledged: thread::JoinHandle<u64>,
}

impl Appending {
    fn start(cluster: &Cluster, node: usize, name: &str, writer: &str, stop: &'static AtomicBool) -> Self {
        let words = ["append", name, "--group", "3", "--positions"];
        let mut child = command(cluster, node, &words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child_ref = child.as_mut().expect("the command runs");
        let (mut to, from) =
            (child_ref.stdin.take().expect("a pipe"), child_ref.stdout.take().expect("a pipe"));
        let writer = writer.to_owned();
        let acknowledged = thread::spawn(move || {
            let mut lines = BufReader::new(from).lines();
            for number in 0.. {
                let lines_of = |part| format!("{writer} {number} {part}\n");
                let group: String = (0..3).map(lines_of).collect();
                let sent = !stop.load(Ordering::Relaxed) && to.write_all(group.as_bytes()).is_ok();
                if !sent || lines.next().and_then(std::io::Result::ok).is_none() {
                    return number;
                }
            }
            unreachable!("the numbers do not end")
        });
        Self { child: child.expect("the command runs"), acknowledged }
    }

    /// Number of groups that were acknowledged, once the process has ended.
    fn end(mut self) -> u64 {
        let count = self.acknowledged.join().expect("no panic");
        self.child.wait().expect("it is our child");
        count
    }
}

/// Checks what a reader has read: whole groups, each once, those of a writer in order, and all that were
/// acknowledged.
fn check(read: &[Transaction], acknowledged: &HashMap<String, u64>) {
    assert!(read.windows(2).all(|pair| pair[0].position < pair[1].position));
    let mut next: HashMap<String, u64> = HashMap::new();
    for one in read {
        let lines: Vec<_> = one.records.iter().map(|record| String::from_utf8_lossy(record)).collect();
        let parts: Vec<_> = lines[0].split(' ').collect();
        let (writer, number) = (parts[0], parts[1].parse::<u64>().expect("it is a number"));
        let expected: Vec<_> = (0..3).map(|part| format!("{writer} {number} {part}")).collect();
        assert_eq!(lines, expected, "position {}", one.position);
        let due = next.entry(writer.to_owned()).or_default();
        assert_eq!(number, *due, "of {writer}, position {}", one.position);
        *due += 1;
    }
    for (writer, count) in acknowledged {
        let found = next.get(writer).copied().unwrap_or_default();
        // The one after the last that was acknowledged may be there: its writer died before it was told.
        assert!(
            found == *count || found == count + 1,
            "{found} of {writer} are there, {count} were acknowledged"
        );
    }
}

#[test]
fn writers_are_killed_and_readers_of_all_hosts_agree() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let cluster = Cluster::builder().nodes(3).start();
    let log =
        Log::create(&cluster.client(0), "log", 4 * CAPACITY, &nodes(&cluster, &[0, 1, 2])).expect("room");
    let follow = ["follow", "log", "--json"];
    let followers: Vec<_> = (0..3)
        .map(|node| {
            command(&cluster, node, &follow).stdout(Stdio::piped()).spawn().expect("the command runs")
        })
        .collect();
    let mut cleaner =
        command(&cluster, 2, &["clean", "log", "--after", "0.5"]).spawn().expect("the command runs");
    let (mut chance, mut acknowledged) = (Chance::of_seed(7), HashMap::new());
    let mut writers: Vec<_> =
        (0..3).map(|node| Appending::start(&cluster, node, "log", &format!("w{node}"), &STOP)).collect();
    for round in 3..12 {
        let end = log.end().expect("the nodes live");
        let grown = end + 5 + chance.below(30) as u64;
        eventually("transactions come", || log.end().expect("the nodes live") >= grown);
        let mut victim = writers.remove(0);
        victim.child.kill().expect("it is our child");
        acknowledged.insert(format!("w{}", round - 3), victim.end());
        writers.push(Appending::start(&cluster, round % 3, "log", &format!("w{round}"), &STOP));
    }
    STOP.store(true, Ordering::Relaxed);
    for (round, writer) in (9..).zip(writers) {
        acknowledged.insert(format!("w{round}"), writer.end());
    }
    let last = log.writer().and_then(|mut writer| writer.append(&[b"last"])).expect("the nodes live");
    let reads: Vec<_> = followers.into_iter().map(|child| take_until(child, last)).collect();
    cleaner.kill().and_then(|()| cleaner.wait()).expect("it is our child");
    assert!(reads[0] == reads[1] && reads[1] == reads[2], "the readers do not agree");
    let mut read = read_all(&log, Start::Oldest).expect("the nodes live");
    let positions: Vec<_> = read.iter().map(|one| one.position).collect();
    assert_eq!(reads[0], positions);
    read.pop();
    check(&read, &acknowledged);
}

/// Positions that a follower prints up to one.
fn take_until(mut child: Child, last: u64) -> Vec<u64> {
    let mut positions = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
        let line: Value = serde_json::from_str(&line.expect("it is text")).expect("it is JSON");
        positions.push(line["position"].as_u64().expect("it has a position"));
        if positions.last() == Some(&last) {
            break;
        }
    }
    child.kill().and_then(|()| child.wait()).expect("it is our child");
    positions
}

#[test]
fn a_home_of_a_copy_dies_and_the_log_goes_on() {
    // The first node coordinates, and has no copy.
    for victim in 1..4 {
        let mut cluster = Cluster::builder().nodes(5).start();
        let client = cluster.client(0);
        let log = Log::create(&client, "log", CAPACITY, &nodes(&cluster, &[1, 2, 3])).expect("there is room");
        let mut writer = log.writer().expect("it is there").with_timeout(PATIENCE);
        let mut reader = log.reader(Start::Oldest).expect("it is there");
        let mut appended = Vec::new();
        let mut append = |writer: &mut Writer, count: usize| {
            for _ in 0..count {
                let text = format!("{:05}", appended.len());
                writer.append(&[text.as_bytes()]).expect("the log goes on");
                appended.push(text);
            }
            appended.clone()
        };
        append(&mut writer, 50);
        let mut dying = log.writer().expect("it is there");
        dying.begin(&[b"hole"]).expect("there is room");
        eventually("a place is reserved", || log.end().expect("the nodes live") == 51);
        drop(dying);
        let mut seen = Vec::new();
        while seen.len() < 50 {
            seen.extend(reader.next_batch(PATIENCE).expect("the nodes live"));
        }
        cluster.kill(victim);
        let expected = append(&mut writer, 50);
        clean(&log);
        while seen.len() < 100 {
            seen.extend(reader.next_batch(PATIENCE).expect("there are other copies"));
        }
        assert_eq!(texts(&seen), expected, "node {victim} died");
        let others = Log::open(&cluster.client(4), "log").expect("there are other copies");
        assert!(read_all(&others, Start::Oldest).expect("there are other copies") == seen);
        let info = others.info().expect("there are other copies");
        assert_eq!(info.segments[0].closed, victim == 1);
        assert_eq!(info.segments[0].homes.len(), 2);
        if victim == 1 {
            assert_eq!(info.segments[1].homes.len(), 3, "new segments have all copies again");
        }
        // The roots are whole again when something was trimmed.
        let end = others.end().expect("it is there");
        others.trim(end).expect("there are other copies");
        assert_eq!(read_all(&log, Start::Oldest).expect("it is there"), []);
    }
}

#[test]
fn a_first_copy_that_comes_back_is_no_copy_any_more() {
    if !own_namespaces() {
        return;
    }
    let cluster = Cluster::builder().nodes(4).start();
    let log =
        Log::create(&cluster.client(0), "log", CAPACITY, &nodes(&cluster, &[1, 2])).expect("there is room");
    let on_it = Log::open(&cluster.client(1), "log").expect("it is there");
    let mut writer = log.writer().expect("it is there").with_timeout(PATIENCE);
    writer.append(&[b"before"]).expect("the nodes live");
    cluster.unplug(1);
    writer.append(&[b"meanwhile"]).expect("the log goes on");
    cluster.plug(1);
    eventually("the node is a member again", || cluster.status(1).cluster.members.len() == 4);
    let mut late = on_it.writer().expect("the log is there").with_timeout(PATIENCE);
    late.append(&[b"after"]).expect("the log goes on");
    for node in 0..4 {
        let log = Log::open(&cluster.client(node), "log").expect("it is there");
        let read = read_all(&log, Start::Oldest).expect("the nodes live");
        assert_eq!(texts(&read), ["before", "meanwhile", "after"], "node {node}");
    }
}

#[test]
fn a_window_of_transactions_is_read_once_each() {
    let cluster = Cluster::builder().nodes(2).start();
    let log =
        Log::create(&cluster.client(0), "log", CAPACITY, &nodes(&cluster, &[1, 0])).expect("there is room");
    let mut writer = Log::open(&cluster.client(1), "log").and_then(|log| log.writer()).expect("it is there");
    let mut positions = BTreeSet::new();
    // More than a segment has room for.
    for number in 0..4000_u64 {
        while writer.under_way() == writer.window() {
            positions.insert(writer.finish().expect("some are under way").expect("the nodes live"));
        }
        writer.begin(&[number.to_le_bytes()]).expect("the window has room");
    }
    assert_eq!(kind((0..2).try_for_each(|_| writer.begin(&[b""]))), ErrorKind::Busy);
    while let Some(position) = writer.finish() {
        positions.insert(position.expect("the nodes live"));
    }
    let read = read_all(&log, Start::Oldest).expect("the nodes live");
    let numbers: BTreeSet<_> =
        read.iter().map(|one| one.records[0].clone()).filter(|one| !one.is_empty()).collect();
    assert_eq!((numbers.len(), read.len()), (4000, positions.len()));
    assert_eq!(read.iter().map(|one| one.position).collect::<BTreeSet<_>>(), positions);
    assert!(log.info().expect("the nodes live").segments.len() > 1);
}

#[test]
fn the_command_does_all_of_it() {
    let cluster = Cluster::builder().nodes(2).start();
    let there = cluster.client(1).node().to_string();
    printed(&run(&cluster, 0, &["create", "log", "--capacity", "1MiB", "--nodes", &there]));
    let lines = cluster.folder().join("lines");
    std::fs::write(&lines, "one\ntwo\nthree\n").expect("the folder is ours");
    let lines = lines.to_str().expect("it is text");
    let told: Value = serde_json::from_str(&printed(&run(
        &cluster,
        1,
        &["append", "log", lines, "--group", "2", "--json"],
    )))
    .expect("it is JSON");
    assert_eq!((&told["transactions"], &told["last"]), (&Value::from(2), &Value::from(1)));
    let table = cluster.folder().join("flights.csv");
    std::fs::write(&table, "year,carrier,tailnum\n2013,UA,N14228\n2013,AA,NA\n").expect("the folder is ours");
    printed(&run(
        &cluster,
        0,
        &["feed", "log", "--flights", table.to_str().expect("it is text"), "--window", "8"],
    ));
    let read = printed(&run(&cluster, 0, &["follow", "log", "--no-wait"]));
    assert!(read.starts_with("one\ntwo\nthree\n"), "{read}");
    assert!(read.contains("{\"carrier\":\"UA\",\"tailnum\":\"N14228\",\"year\":2013}\n"), "{read}");
    assert_eq!(printed(&run(&cluster, 0, &["follow", "log", "--from", "1", "--count", "1"])), "three\n");
    printed(&run(&cluster, 1, &["trim", "log", "1"]));
    let info: Value =
        serde_json::from_str(&printed(&run(&cluster, 0, &["info", "log", "--json"]))).expect("it is JSON");
    assert_eq!(
        (&info["oldest"], &info["end"], &info["segments"][0]["open"]),
        (&1.into(), &4.into(), &0.into())
    );
    assert_eq!(printed(&run(&cluster, 0, &["clean", "log", "--once", "--after", "0"])), "");

    let fails = |words: &[&str], code: i32, told: &str| {
        let output = run(&cluster, 0, words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(told), "{words:?}: {text}");
    };
    fails(&["create", "log"], 5, "there is a log 'log' already");
    fails(&["create", "a:b"], 1, "no colon");
    fails(&["create", "small", "--capacity", "1KiB"], 1, "the capacity of a log is");
    fails(&["info", "other"], 3, "there is no log 'other'");
    fails(&["follow", "log", "--from", "0", "--no-wait"], 3, "the oldest position is 1 now");
    fails(&["trim", "log", "99"], 1, "ends at position 4");
    fails(&["trim", "log", "soon"], 2, "is no position");
    fails(&["append", "log", "/nowhere"], 1, "cannot open /nowhere");
    let mut nowhere = cluster.command(0, Path::new(env!("CARGO_BIN_EXE_plasmon-e2e-log")));
    let status = nowhere.args(["--socket", "/nowhere", "info", "log"]).status().expect("the command runs");
    assert_eq!(status.code(), Some(7));
    printed(&run(&cluster, 0, &["remove", "log"]));
    fails(&["info", "log"], 3, "there is no log 'log'");
}
