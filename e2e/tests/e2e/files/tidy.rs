//! Files that were written in many small pieces: their sections become few.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use plasmon::files::{AttachOptions, OpenOptions, Volume, VolumeTerms, Volumes};
use plasmon_e2e::{Cluster, Pattern, eventually};
use serde_json::json;

use crate::commands::json as command;
use crate::support::MIB;

const LINES: usize = 3000;
const LINE: usize = 100;
/// Number of sections of a file of a few MiB that is not ragged.
const FEW: usize = 40;

fn start() -> Cluster {
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    Volumes::by(&cluster.client(0)).create("main", None, VolumeTerms::default()).expect("a volume");
    cluster
}

fn attach(cluster: &Cluster, node: usize) -> Volume {
    Volume::attach(&cluster.client(node), "main", &AttachOptions::default()).expect("it is there")
}

fn line(number: usize) -> Vec<u8> {
    Pattern(number as u64).bytes(LINE)
}

fn read(volume: &Volume, path: &str) -> Vec<u8> {
    let file = volume.open(path, OpenOptions::new().read(true)).expect("open");
    let mut all = vec![0; file.metadata().expect("stat").size as usize];
    assert_eq!(file.read_at(&mut all, 0).expect("read"), all.len());
    all
}

fn sections(cluster: &Cluster, path: &str) -> usize {
    let told = command(cluster, 0, &["explain", &format!("main:{path}")]);
    told["sections"].as_array().expect("a list").len()
}

/// Waits until the objects of before are gone, and has the volume checked.
fn check(cluster: &Cluster, most: u64) {
    eventually("the objects of before are gone", || {
        let left: Vec<_> = [0, 1].map(|node| cluster.status(node)).into();
        left.iter().all(|node| node.files.condemned == 0)
            && left.iter().map(|node| node.objects.primary).sum::<u64>() <= most
    });
    let checked = command(cluster, 0, &["volume", "check", "main"]);
    assert_eq!((&checked["lost"], &checked["short"]), (&json!([]), &json!([])), "{checked}");
}

#[test]
fn lines_that_were_appended_share_objects() {
    let cluster = start();
    let volume = attach(&cluster, 1);
    let log = volume.open("/log", OpenOptions::new().append(true).create(true)).expect("create");
    for number in 0..LINES {
        assert_eq!(log.append(&line(number)).expect("append"), (number * LINE) as u64);
    }
    let written: u64 = cluster.status(1).objects.primary;
    assert!(written < LINES as u64 / 20, "{written} objects for {LINES} lines");
    eventually("the log has few sections", || sections(&cluster, "/log") <= FEW);
    let expected: Vec<u8> = (0..LINES).flat_map(line).collect();
    assert_eq!(read(&volume, "/log"), expected);
    assert_eq!(read(&attach(&cluster, 0), "/log"), expected);
    check(&cluster, FEW as u64);
}

#[test]
fn a_file_is_tidied_while_it_is_written_at_random() {
    const LEN: usize = 4 * MIB;
    const PIECE: usize = 512;
    let cluster = start();
    let volume = attach(&cluster, 1);
    let mut model = Pattern(7).bytes(LEN);
    let file = volume.open("/file", OpenOptions::new().write(true).create_new(true)).expect("create");
    file.write_at(&model, 0).expect("write");
    file.sync().expect("sync");
    // Another host appends to a file beside, and to a log of its own.
    let (over, other) = (AtomicBool::new(false), attach(&cluster, 0));
    thread::scope(|scope| {
        let appending = scope.spawn(|| {
            let log = other.open("/log", OpenOptions::new().append(true).create(true)).expect("create");
            let mut lines = 0;
            while !over.load(Ordering::Relaxed) {
                log.append(&line(lines)).expect("append");
                lines += 1;
            }
            lines
        });
        for number in 0..3000_usize {
            let at = (number * 2_654_435_761) % (LEN / PIECE) * PIECE;
            let piece = Pattern(number as u64).bytes(PIECE);
            file.write_at(&piece, at as u64).expect("write");
            model[at..at + PIECE].copy_from_slice(&piece);
            if number % 500 == 499 {
                file.sync().expect("sync");
            }
        }
        assert!(sections(&cluster, "/file") > 10 * FEW, "it is ragged");
        eventually("the file has few sections", || sections(&cluster, "/file") <= FEW);
        over.store(true, Ordering::Relaxed);
        let lines = appending.join().expect("all was appended");
        assert_eq!(read(&volume, "/log"), (0..lines).flat_map(line).collect::<Vec<_>>());
    });
    for volume in [&volume, &other] {
        assert!(read(volume, "/file") == model, "other bytes are read");
    }
    eventually("the log has few sections", || sections(&cluster, "/log") <= FEW);
    check(&cluster, 2 * FEW as u64);
}
