//! Tests with a daemon killed at any moment: a process of its own that spills, deletes and empties files.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::*;

const DIR: &str = "PLASMON_TEST_SPILL_DIR";

/// The process that is killed. It prints which object it is about to forget, and which it has written.
#[test]
#[ignore = "run by the test below"]
fn child() {
    let Some(dir) = env::var_os(DIR) else { return };
    let mut bench = Bench::at(tempfile::tempdir().unwrap(), dir.into());
    let mut kept: Vec<(u64, Place)> = Vec::new();
    let mut out = std::io::stderr();
    for number in (0..).step_by(50) {
        let len = [300, 20_000, 1_000_000][number / 50 % 3];
        let count = if len > 100_000 { 5 } else { 50 };
        let batch: Vec<Object> = (number..number + count).map(|number| object(number as u64, len)).collect();
        let places = bench.write(&batch);
        for (number, place) in (number as u64..).zip(places) {
            writeln!(out, "wrote {number} {len}").unwrap();
            kept.push((number, place));
        }
        while kept.len() > 200 {
            let (number, place) = kept.swap_remove(number % 190);
            writeln!(out, "forgets {number} 0").unwrap();
            bench.store().forget(place);
        }
    }
}

#[test]
fn a_killed_daemon_leaves_what_it_said_it_wrote() {
    for kill_after in [1, 60, 333, 1000, 2500] {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("spill");
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "spill::tests::killed::child", "--ignored", "--nocapture"])
            .env(DIR, &dir)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        while said.len() < kill_after {
            said.push(lines.next().unwrap().unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The last line may be cut off; then its write counts as not reported.
        said.extend(lines.map_while(Result::ok));

        let mut written: HashMap<u64, Object> = HashMap::new();
        for line in said {
            let words: Vec<&str> = line.split(' ').collect();
            let [verb, number, len] = words[..] else { continue };
            let Ok(number) = number.parse() else { continue };
            match (verb, len.parse()) {
                ("wrote", Ok(len @ (300 | 20_000 | 1_000_000))) => {
                    drop(written.insert(number, object(number, len)))
                }
                // The deletion may have been carried out or not.
                ("forgets", _) => drop(written.remove(&number)),
                _ => {}
            }
        }
        let mut bench = Bench::new();
        bench.dir = dir;
        let found: HashMap<u64, Recovered> =
            bench.restart().into_iter().map(|found| (found.header.life ^ 0xfeed, found)).collect();
        assert!(!written.is_empty() && found.len() >= written.len());
        for (number, object) in &written {
            assert_eq!(found[number].header, object.head);
            bench.assert_reads(found[number].place, object);
        }
        for (number, found) in &found {
            let object = object(*number, found.header.payload_len().unwrap() as usize);
            bench.assert_reads(found.place, &object);
        }
    }
}
