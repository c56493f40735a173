//! Files that are long enough to be committed in parts while a program writes them.
//!
//! The first node is the home of the volume and coordinates, the second one writes, bytes lie on the third.

use std::fs::File as Opened;
use std::os::unix::fs::FileExt;
use std::thread;

use plasmon::files::{AttachOptions, Errno, File, OpenOptions, Place, Volume, VolumeTerms, Volumes};
use plasmon_e2e::{Chance, Cluster, Pattern, eventually};

use super::{Mounted, can_mount, kill};
use crate::commands::json;
use crate::support::MIB;

const HOME: usize = 0;
const WRITER: usize = 1;
const STORE: usize = 2;

/// A lease for nodes that are stopped and are to stay members.
const LONG: &[&str] = &["--lease", "30"];

/// Starts a cluster with the volume `main`.
fn start(args: &[&str]) -> Cluster {
    let cluster = Cluster::builder().nodes(3).memory("256MiB").args(args).start();
    let place = Place::Nodes(vec![cluster.client(STORE).node()]);
    let terms = VolumeTerms { place, metadata_copies: 1, ..VolumeTerms::default() };
    Volumes::by(&cluster.client(HOME)).create("main", None, terms).expect("a volume");
    cluster
}

fn attach(cluster: &Cluster, number: usize) -> Volume {
    Volume::attach(&cluster.client(number), "main", &AttachOptions::default()).expect("it is there")
}

/// Number of objects that no file has.
fn left(cluster: &Cluster) -> u64 {
    let told = json(cluster, HOME, &["volume", "check", "main"]);
    let nodes = told["nodes"].as_array().expect("a list");
    nodes.iter().map(|node| node["left"].as_u64().expect("a number")).sum()
}

fn open(volume: &Volume, path: &str) -> File {
    volume.open(path, OpenOptions::new().read(true).write(true).create(true)).expect("open")
}

/// The MiB of a file with this number.
fn part(number: usize) -> Vec<u8> {
    Pattern(number as u64).bytes(MIB)
}

/// Writes these MiB of a file.
fn fill(file: &File, parts: std::ops::Range<usize>) {
    for number in parts {
        file.write_at(&part(number), (number * MIB) as u64).expect("write");
    }
}

/// Compares the first so many MiB of a file.
fn check(file: &File, parts: usize) {
    let mut read = vec![0; MIB];
    for number in 0..parts {
        assert_eq!(file.read_at(&mut read, (number * MIB) as u64).expect("read"), MIB);
        assert!(read == part(number), "MiB {number} differs");
    }
}

#[test]
fn a_writer_goes_on_while_its_first_bytes_are_brought_to_their_place() {
    let cluster = start(LONG);
    let volume = attach(&cluster, WRITER);
    let file = open(&volume, "/file");
    cluster.pause(STORE);
    fill(&file, 0..60);
    assert_eq!(file.metadata().expect("stat").size, 60 * MIB as u64, "with what is not committed");
    assert_eq!(attach(&cluster, HOME).metadata("/file").expect("stat").size, 0, "nobody stores it yet");
    thread::scope(|scope| {
        // Bytes that are not committed are committed before they are read.
        let reading = scope.spawn(|| check(&file, 60));
        cluster.resume(STORE);
        reading.join().expect("it is what was written");
    });
    fill(&file, 60..150);
    file.close().expect("close");
    let file = attach(&cluster, HOME).open("/file", OpenOptions::new().read(true)).expect("open");
    check(&file, 150);
}

#[test]
fn a_failure_in_the_background_is_told_once_to_each_open_by_a_sync_or_a_close() {
    let mut cluster = start(LONG);
    let volume = attach(&cluster, WRITER);
    let (synced, closed) = (open(&volume, "/synced"), open(&volume, "/closed"));
    let again = open(&volume, "/synced");
    cluster.pause(STORE);
    [&synced, &closed].iter().for_each(|file| fill(file, 0..40));
    // The node that dies had the only copies.
    cluster.kill(WRITER);
    cluster.start_again(WRITER, &[]);
    cluster.resume(STORE);
    eventually("a write finds bytes that have waited for long", || {
        synced.write_at(b"x", 0).expect("a write tells of its own bytes alone");
        synced.metadata().expect("stat").size == 1
    });
    for file in [&synced, &again] {
        assert_eq!(file.sync().expect_err("the bytes are lost").errno(), Errno::Io);
        file.sync().expect("that was told");
    }
    open(&volume, "/synced").sync().expect("others were told before it was opened");
    assert_eq!(closed.close().expect_err("the bytes are lost").errno(), Errno::Io);
    synced.write_at(b"again", 0).expect("write");
    synced.close().expect("close");
    let other = attach(&cluster, HOME);
    let mut read = [0; 10];
    let file = other.open("/synced", OpenOptions::new().read(true)).expect("open");
    assert_eq!((file.read_at(&mut read, 0).expect("read"), &read[..5]), (5, &b"again"[..]));
    assert_eq!(other.metadata("/closed").expect("stat").size, 0, "nothing of it was committed");
}

/// Size in MiB of a file that is overwritten, and number of MiB that are written.
const AREA: usize = 12;
const WRITTEN: usize = 160;

#[test]
fn writes_over_each_other_are_committed_in_their_order() {
    let cluster = start(&[]);
    let volume = attach(&cluster, WRITER);
    let file = open(&volume, "/file");
    let mut expected = vec![0; AREA * MIB];
    let mut chance = Chance::of_seed(11);
    let mut written = 0;
    while written < WRITTEN * MIB {
        let longest = if chance.below(4) == 0 { MIB } else { 3 * MIB };
        let len = 1 + chance.below(longest);
        let at = chance.below(expected.len() - len);
        let data = Pattern(chance.word()).bytes(len);
        file.write_at(&data, at as u64).expect("write");
        expected[at..at + len].copy_from_slice(&data);
        written += len;
    }
    file.sync().expect("fsync");
    let mut read = vec![0; expected.len()];
    for reader in [&volume, &attach(&cluster, HOME)] {
        let file = reader.open("/file", OpenOptions::new().read(true)).expect("open");
        let len = file.read_at(&mut read, 0).expect("read");
        let differs = read[..len].iter().zip(&expected).position(|(one, other)| one != other);
        assert_eq!(differs, None);
    }
}

#[test]
fn a_mount_that_is_killed_in_the_middle_leaves_what_was_committed_alone() {
    if !can_mount() {
        return;
    }
    let cluster = start(&[]);
    let mounted = Mounted::new(&cluster, WRITER);
    let file = Opened::create_new(mounted.path("file")).expect("create");
    for number in 0..90 {
        file.write_all_at(&part(number), (number * MIB) as u64).expect("write");
    }
    kill(mounted.pid);
    drop(file);
    eventually("no node has an object that no file has", || left(&cluster) == 0);
    let volume = attach(&cluster, HOME);
    let file = volume.open("/file", OpenOptions::new().read(true)).expect("open");
    let size = file.metadata().expect("stat").size as usize;
    assert!((MIB..=90 * MIB).contains(&size), "{size} bytes: parts were committed before");
    check(&file, size / MIB);
    let used = json(&cluster, HOME, &["volume", "ls"])[0]["used"].as_u64();
    assert_eq!(used, Some(size as u64));
}

#[test]
fn what_was_written_before_a_cut_does_not_come_back() {
    let cluster = start(LONG);
    let volume = attach(&cluster, WRITER);
    let file = open(&volume, "/file");
    cluster.pause(STORE);
    fill(&file, 0..50);
    // Some of it is being brought to its place meanwhile.
    volume.open("/file", OpenOptions::new().write(true).truncate(true)).expect("cut");
    cluster.resume(STORE);
    file.write_at(b"after", 3).expect("write");
    file.sync().expect("fsync");
    let other = attach(&cluster, HOME);
    let mut read = [1; 100];
    let file = other.open("/file", OpenOptions::new().read(true)).expect("open");
    assert_eq!(file.read_at(&mut read, 0).expect("read"), 8);
    assert_eq!(&read[..8], b"\0\0\0after");
    eventually("no node has an object that no file has", || left(&cluster) == 0);
}
