//! Folders of very many names, and what empty files cost.

use std::collections::HashMap;
use std::fs;
use std::thread;

use plasmon::files::{Actor, AttachOptions, ROOT_INODE, Volume, VolumeTerms, Volumes};
use plasmon_e2e::{Cluster, eventually};

use super::{Mounted, can_mount};
use crate::support::own_memory;

/// Number of names in a folder, of which one half stays.
fn names() -> usize {
    if std::env::var_os("PLASMON_E2E_LONG").is_some() { 1_000_000 } else { 20_000 }
}

/// Number of threads that make and remove names. They wait for the node most of the time.
const THREADS: usize = 4;

/// A node that is the home of the volume `main`, with memory for many names.
fn start() -> (Cluster, Volume) {
    let cluster = Cluster::builder().memory("64MiB").args(&["--files-memory", "1GiB"]).start();
    let terms = VolumeTerms { metadata_copies: 1, ..VolumeTerms::default() };
    Volumes::by(&cluster.client(0)).create("main", None, terms).expect("a volume");
    let volume = Volume::attach(&cluster.client(0), "main", &AttachOptions::default()).expect("attach");
    (cluster, volume)
}

/// Makes empty files in a folder, by several threads.
fn make(volume: &Volume, folder: u64, many: usize, name: impl Fn(usize) -> String + Sync) {
    thread::scope(|scope| {
        for first in 0..THREADS {
            let name = &name;
            scope.spawn(move || {
                for number in (first..many).step_by(THREADS) {
                    let name = name(number);
                    volume
                        .make_node(&Actor::default(), folder, name.as_bytes(), 0o644, 0)
                        .unwrap_or_else(|error| panic!("{name}: {error}"));
                }
            });
        }
    });
}

#[test]
fn of_very_many_names_those_that_stay_are_listed_once_while_others_come_and_go() {
    if !can_mount() {
        return;
    }
    let (cluster, volume) = start();
    let half = names() / 2;
    let folder = volume.create_dir("/crowd", 0o755).expect("mkdir").inode;
    let name =
        |number: usize| format!("{} {number}", if number.is_multiple_of(2) { "stays" } else { "goes" });
    make(&volume, folder, 2 * half, name);
    let mounted = Mounted::new(&cluster, 0);
    let path = mounted.path("crowd");
    // With each name that is listed another one goes, or one comes, by another session.
    let (mut going, mut coming) = ((0..half).map(|number| name(2 * number + 1)), 0);
    let mut listed: HashMap<String, u32> = HashMap::new();
    for (number, entry) in fs::read_dir(&path).expect("opendir").enumerate() {
        let found = entry.expect("readdir").file_name().into_string().expect("plain");
        *listed.entry(found).or_default() += 1;
        if number % 2 == 0 {
            if let Some(name) = going.next() {
                volume.unlink(&Actor::default(), folder, name.as_bytes()).expect("it was there");
            }
        } else if coming < half {
            let name = format!("comes {coming}");
            volume.make_node(&Actor::default(), folder, name.as_bytes(), 0o644, 0).expect("mknod");
            coming += 1;
        }
    }
    assert!(listed.values().all(|times| *times == 1), "a name was listed twice");
    let stays = listed.keys().filter(|name| name.starts_with("stays")).count();
    assert_eq!(stays, half, "a name was not listed");
    for name in going {
        volume.unlink(&Actor::default(), folder, name.as_bytes()).expect("it was there");
    }
    assert!(coming > 0);
    let found = fs::read_dir(&path).expect("opendir").count();
    assert_eq!(found, half + coming);
    assert_eq!(volume.read_dir("/crowd").expect("opendir").count(), found);
    fs::remove_dir_all(&path).expect("rm -r");
    assert_eq!(fs::read_dir(mounted.root()).expect("opendir").count(), 0);
    eventually("all that was made is gone", || cluster.status(0).files.inodes == 1);
}

/// Number of empty files whose memory is measured. Tables of the home have as much room to spare with both.
fn files() -> usize {
    if std::env::var_os("PLASMON_E2E_LONG").is_some() { 100_000 } else { 25_000 }
}

/// Largest number of bytes of memory of an empty file with a name of 16 bytes.
const MAX_BYTES: u64 = 400;

#[test]
fn an_empty_file_takes_few_bytes_of_the_home() {
    let (cluster, volume) = start();
    let folder = volume.create_dir("/empty", 0o755).expect("mkdir").inode;
    let name = |number: usize| format!("a file {number:09}");
    assert_eq!(name(7).len(), 16);
    // A thousand files before make the node take memory that does not belong to the measured files.
    make(&volume, ROOT_INODE, 1_000, |number| format!("before {number}"));
    let told = || cluster.status(0).files.memory;
    let before = (own_memory(&cluster, 0), told());
    make(&volume, folder, files(), name);
    let after = (own_memory(&cluster, 0), told());
    let of_one = |before: u64, after: u64| after.saturating_sub(before) / files() as u64;
    let (taken, counted) = (of_one(before.0, after.0), of_one(before.1, after.1));
    println!("an empty file takes {taken} bytes of memory, of which the node counts {counted}");
    assert!(taken <= MAX_BYTES, "{taken} bytes");
    assert!(counted <= MAX_BYTES, "{counted} bytes");
    assert!(counted * 3 >= taken * 2, "the node counts {counted} of {taken} bytes");
}
