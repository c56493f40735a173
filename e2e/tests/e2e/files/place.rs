//! Tests of the places of the bytes of files: on nodes by name, on nodes with room, never on a cache.
//!
//! The first node is the home of the volume and coordinates, the second one writes.

use std::thread;

use plasmon::files::{
    Actor, AttachOptions, Errno, File, OpenOptions, PLACE_XATTR, Place, Volume, VolumeChange, VolumeTerms,
    Volumes,
};
use plasmon::status::FilesStatus;
use plasmon::{CreateOptions, NodeId, ObjectId};
use plasmon_e2e::{Chance, Cluster, Pattern, eventually, until};
use serde_json::{Value, json};

use super::{Mounted, can_mount, text};
use crate::commands::{failure, json as command};
use crate::support::{LONG_LEASE, MIB};

/// Home of the volume.
const HOME: usize = 0;
/// Node whose clients write.
const WRITER: usize = 1;
/// Node on which bytes are to lie.
const STORE: usize = 2;

fn node(cluster: &Cluster, number: usize) -> NodeId {
    cluster.client(number).node()
}

/// Makes the volume `main`.
fn create(cluster: &Cluster, place: Place, copies: u16) {
    let terms = VolumeTerms { place, copies, ..VolumeTerms::default() };
    Volumes::by(&cluster.client(HOME)).create("main", None, terms).expect("a volume");
}

fn attach(cluster: &Cluster, number: usize) -> Volume {
    Volume::attach(&cluster.client(number), "main", &AttachOptions::default()).expect("it is there")
}

fn files(cluster: &Cluster, number: usize) -> FilesStatus {
    cluster.status(number).files
}

/// Writes a file of so many bytes, by several writes, and closes it. Three writes make an object.
fn write(volume: &Volume, len: usize) {
    let data = Pattern(len as u64).bytes(len);
    let path = format!("/{len}");
    let file = volume.open(&path, OpenOptions::new().write(true).create_new(true)).expect("create");
    for (number, piece) in data.chunks(300_001).enumerate() {
        file.write_at(piece, number as u64 * 300_001).expect("write");
    }
    file.close().expect("close");
}

/// Compares a file with what was written.
fn check(volume: &Volume, len: usize) {
    let file = volume.open(format!("/{len}"), OpenOptions::new().read(true)).expect("open");
    let mut all = vec![0; len];
    // A part at a time: all of it may be more than a node has room for.
    for (number, part) in all.chunks_mut(MIB).enumerate() {
        assert_eq!(file.read_at(part, (number * MIB) as u64).expect("read"), part.len());
    }
    assert_eq!(file.read_at(&mut [0], len as u64).expect("read"), 0, "the file ends there");
    Pattern(len as u64).check(&all);
}

#[test]
fn bytes_lie_on_the_named_node_and_outlive_their_writer() {
    let mut cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    create(&cluster, Place::Nodes(vec![node(&cluster, STORE)]), 1);
    let lens = [10_000, 70_000, MIB, 5 * MIB + 77];
    let volume = attach(&cluster, WRITER);
    lens.iter().for_each(|len| write(&volume, *len));
    let (writer, store) = (files(&cluster, WRITER), files(&cluster, STORE));
    // A close has waited until the bytes were there: one object or more for each file.
    assert!(store.placed_here >= lens.len() as u64, "{store:?}");
    assert_eq!((writer.placed_elsewhere, writer.placed_in_vain), (store.placed_here, 0), "{writer:?}");
    assert_eq!(writer.pulls, 0, "nothing is left to be done");
    assert_eq!(files(&cluster, HOME).placed_here, 0);
    // The home reads the files without another node.
    lens.iter().for_each(|len| check(&volume, *len));
    drop(volume);
    cluster.kill(WRITER);
    let volume = attach(&cluster, HOME);
    lens.iter().for_each(|len| check(&volume, *len));
}

#[test]
fn a_place_that_changes_holds_for_what_is_written_then() {
    let cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    create(&cluster, Place::Local, 1);
    let volume = attach(&cluster, WRITER);
    write(&volume, 2 * MIB + 1);
    assert_eq!(files(&cluster, WRITER).placed_elsewhere, 0, "it has room");
    let place = Some(Place::Nodes(vec![node(&cluster, STORE)]));
    let change = VolumeChange { place, ..VolumeChange::default() };
    let info = Volumes::by(&cluster.client(WRITER)).set("main", change.clone()).expect("set");
    assert_eq!(Some(info.terms.place), change.place);
    write(&volume, 3 * MIB + 2);
    assert_eq!(files(&cluster, STORE).placed_here, 4);
    let file = volume.open("/log", OpenOptions::new().append(true).create(true)).expect("open");
    assert_eq!(file.append(&Pattern(8).bytes(20_000)).expect("append"), 0);
    assert_eq!(files(&cluster, STORE).placed_here, 5, "an append waits for it too");
    [2 * MIB + 1, 3 * MIB + 2].iter().for_each(|len| check(&attach(&cluster, HOME), *len));
}

#[test]
fn copies_lie_on_the_named_nodes() {
    let mut cluster = Cluster::builder().nodes(4).memory("128MiB").start();
    let named = vec![node(&cluster, STORE), node(&cluster, 3)];
    create(&cluster, Place::Nodes(named), 2);
    let volume = attach(&cluster, WRITER);
    let lens = [9_999, 4 * MIB + 3];
    lens.iter().for_each(|len| write(&volume, *len));
    let here = |number| files(&cluster, number).placed_here;
    assert_eq!((here(STORE), here(3), here(HOME)), (6, 6, 0));
    drop(volume);
    cluster.kill(WRITER);
    cluster.kill(STORE);
    let volume = attach(&cluster, HOME);
    lens.iter().for_each(|len| check(&volume, *len));
}

#[test]
fn a_cache_takes_no_bytes_of_files_and_keeps_none() {
    let mut cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let cache = cluster.add_node_with(&["--cache"]);
    create(&cluster, Place::Nodes(vec![node(&cluster, cache)]), 1);
    let volume = attach(&cluster, WRITER);
    write(&volume, 2 * MIB);
    let writer = files(&cluster, WRITER);
    assert_eq!((writer.placed_elsewhere, writer.placed_in_vain), (0, 3), "it stays where it was put");
    check(&attach(&cluster, HOME), 2 * MIB);
    // Bytes that are put on a cache go elsewhere, although the volume says nothing of it.
    let change = VolumeChange { place: Some(Place::Local), ..VolumeChange::default() };
    Volumes::by(&cluster.client(HOME)).set("main", change).expect("set");
    write(&attach(&cluster, cache), 3 * MIB);
    assert_eq!(files(&cluster, cache).placed_elsewhere, 4);
    cluster.kill(cache);
    check(&attach(&cluster, HOME), 3 * MIB);
}

#[test]
fn more_is_written_than_the_memory_of_a_node_has_room_for() {
    for place in [Place::Local, Place::Spread] {
        let cluster = Cluster::builder().nodes(3).memory("128MiB").start();
        create(&cluster, place, 1);
        let volume = attach(&cluster, WRITER);
        write(&volume, 150 * MIB + 5);
        let writer = files(&cluster, WRITER);
        assert!(writer.placed_elsewhere > 30, "{writer:?}");
        check(&volume, 150 * MIB + 5);
        check(&attach(&cluster, HOME), 150 * MIB + 5);
    }
}

#[test]
fn a_node_that_dies_while_it_pulls_loses_nothing() {
    let mut cluster = Cluster::builder().nodes(4).memory("256MiB").start();
    create(&cluster, Place::Nodes(vec![node(&cluster, STORE), node(&cluster, 3)]), 1);
    let volume = attach(&cluster, WRITER);
    thread::scope(|scope| {
        let writing = scope.spawn(|| write(&volume, 80 * MIB + 9));
        until("some are there, and more are to come", || {
            (files(&cluster, STORE).placed_here > 3).then_some(())
        });
        cluster.kill(STORE);
        writing.join().expect("all was written");
    });
    let writer = files(&cluster, WRITER);
    assert_eq!((writer.pulls, writer.placed_in_vain), (0, 0), "the other node took the rest: {writer:?}");
    assert!(files(&cluster, 3).placed_here > 0);
    check(&attach(&cluster, HOME), 80 * MIB + 9);
}

#[test]
fn a_file_is_explained_by_its_path() {
    let cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    let store = node(&cluster, STORE).to_string();
    create(&cluster, Place::Nodes(vec![node(&cluster, STORE)]), 1);
    write(&attach(&cluster, WRITER), 2 * MIB + 5);
    let told = command(&cluster, HOME, &["explain", &format!("main:/{}", 2 * MIB + 5)]);
    assert_eq!((&told["size"], &told["place"]), (&json!(2 * MIB + 5), &json!(store)), "{told}");
    let sections = told["sections"].as_array().expect("a list");
    let ends = |section: &Value| section["offset"].as_u64().unwrap() + section["len"].as_u64().unwrap();
    assert_eq!(sections.first().map(|first| &first["offset"]), Some(&json!(0)));
    assert!(sections.windows(2).all(|two| two[1]["offset"] == ends(&two[0])), "{told}");
    assert_eq!(sections.last().map(ends), Some(2 * MIB as u64 + 5));
    let objects = told["objects"].as_array().expect("a list");
    assert_eq!(objects.len(), 3, "{told}");
    for object in objects {
        let primary = |location: &Value| *location == json!({ "node": store, "role": "primary" });
        assert!(object["locations"].as_array().expect("a list").iter().any(primary), "{object}");
        assert_eq!((&object["committed_on"], &object["here"]), (&json!(store), &json!("absent")));
    }
    // The node that took an object tells how.
    let told = command(&cluster, STORE, &["explain", &format!("main:/{}", 2 * MIB + 5)]);
    let protocols: Vec<_> = told["objects"].as_array().expect("a list").iter().collect();
    assert!(protocols.iter().all(|object| object["fetched"]["protocol"] == "read-first"), "{told}");
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&cluster, HOME);
    std::fs::write(mounted.path("small"), "some bytes").expect("write");
    let told = command(&cluster, HOME, &["explain", text(&mounted.path("small"))]);
    assert_eq!((&told["volume"], &told["path"]), (&json!("main"), &json!("/small")));
    assert_eq!(told["sections"], json!([{ "offset": 0, "len": 10, "object": null }]));
    // A path in the folder at which nothing is is that of a file, unless an object has this name.
    let nothing = mounted.path("no-folder/nope");
    let (code, message) = failure(&cluster, HOME, &["explain", text(&nothing)]);
    assert_eq!(code, 3, "{message}");
    assert!(message.contains("/no-folder/nope") && !message.contains("object"), "{message}");
    let name = CreateOptions { name: Some(text(&nothing).to_owned()), ..CreateOptions::default() };
    cluster.client(HOME).put(ObjectId::from_name(text(&nothing)), b"x", b"", &name).expect("put");
    let told = command(&cluster, HOME, &["explain", text(&nothing)]);
    assert_eq!(told["here"], "primary", "{told}");
}

/// Reads parts of a file of so many bytes at random, all within a range, and compares them.
fn read_at_random(file: &File, all: &[u8], within: std::ops::Range<usize>, times: usize, longest: usize) {
    let mut chance = Chance::of_seed(within.start as u64);
    for _ in 0..times {
        let len = 1 + chance.below(longest);
        let at = within.start + chance.below(within.len() - len);
        let mut read = vec![0; len];
        assert_eq!(file.read_at(&mut read, at as u64).expect("read"), len);
        assert!(read == all[at..at + len], "{len} bytes at {at} differ");
    }
}

#[test]
fn reads_at_random_bring_no_objects_until_a_quarter_was_read() {
    let cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    create(&cluster, Place::Local, 1);
    let len = 20 * MIB + 333;
    write(&attach(&cluster, WRITER), len);
    let all = Pattern(len as u64).bytes(len);
    let volume = attach(&cluster, HOME);
    let file = volume.open(format!("/{len}"), OpenOptions::new().read(true)).expect("open");
    let cached = |cluster: &Cluster| cluster.status(HOME).objects.cached;
    // Short and longer than an answer brings, at any offset, over the borders of objects too.
    read_at_random(&file, &all, 1..len, 60, 4096);
    read_at_random(&file, &all, 2..len, 40, 40_000);
    let home = files(&cluster, HOME);
    assert!(home.ranges_asked + home.ranges_read >= 100, "{home:?}");
    assert!(home.ranges_read >= 40, "where objects lie is known by then: {home:?}");
    assert!(files(&cluster, WRITER).ranges_given <= home.ranges_asked + 24, "{home:?}");
    assert_eq!(cached(&cluster), 0, "no object was brought");
    // An object of which much is read is brought; those that lie beside it are not.
    read_at_random(&file, &all, 3..MIB, 300, 4096);
    assert!((1..4).contains(&cached(&cluster)), "{} objects", cached(&cluster));
    // An object that moves is found again.
    let objects: Vec<_> = command(&cluster, HOME, &["explain", &format!("main:/{len}")])["objects"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|object| object["id"].as_str().expect("text").parse().expect("an id"))
        .collect();
    let store = node(&cluster, STORE);
    for id in objects {
        cluster.client(WRITER).migrate(id, store, None).expect("it moves");
    }
    read_at_random(&file, &all, 2 * MIB..len, 60, 4096);
    // In order, all of them are brought.
    check(&volume, len);
    assert!(cached(&cluster) >= 21);
}

#[test]
fn files_wait_for_no_store_of_others_to_be_committed() {
    let cluster = Cluster::builder().nodes(3).memory("128MiB").args(&LONG_LEASE).start();
    let terms = VolumeTerms { metadata_copies: 1, ..VolumeTerms::default() };
    Volumes::by(&cluster.client(HOME)).create("main", None, terms).expect("a volume");
    let (volume, reader) = (attach(&cluster, WRITER), attach(&cluster, HOME));
    let folder = volume.create_dir("/there", 0o755).expect("mkdir").inode;
    let store = node(&cluster, STORE).to_string();
    let name = PLACE_XATTR.as_bytes();
    volume.set_xattr(&Actor::default(), folder, name, store.as_bytes(), (false, false)).expect("it is one");
    let open = |path: String| volume.open(path, OpenOptions::new().write(true).create(true)).expect("create");
    let there: Vec<File> = (0..6).map(|number| open(format!("/there/{number}"))).collect();
    let here = open("/here".to_owned());
    cluster.pause(STORE);
    let data = Pattern(5).bytes(300_001);
    there.iter().chain([&here]).for_each(|file| file.write_at(&data, 0).expect("write"));
    let size = |path: &str| reader.metadata(path).expect("stat").size;
    eventually("the file is committed", || size("/here") == data.len() as u64);
    assert_eq!(cluster.status(HOME).cluster.members.len(), 3, "the others wait for a node that is there");
    assert_eq!(size("/there/0"), 0);
    cluster.resume(STORE);
    eventually("all are committed", || {
        (0..6).all(|number| size(&format!("/there/{number}")) == data.len() as u64)
    });
}

#[test]
fn a_folder_says_where_the_bytes_of_its_files_lie() {
    let cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    create(&cluster, Place::Local, 1);
    let volume = attach(&cluster, WRITER);
    let folder = volume.create_dir("/there", 0o755).expect("mkdir").inode;
    let set = |value: &str| {
        volume.set_xattr(&Actor::default(), folder, PLACE_XATTR.as_bytes(), value.as_bytes(), (false, false))
    };
    assert_eq!(set("no-such-host").expect_err("there is none").errno(), Errno::Invalid);
    // The beginning of an id stands for a node.
    let store = node(&cluster, STORE).to_string();
    set(&store[..12]).expect("it is one node");
    let told = volume.xattr(&Actor::default(), folder, PLACE_XATTR.as_bytes()).expect("it is set");
    assert_eq!(told, store.as_bytes());
    volume.create_dir("/there/inner", 0o755).expect("mkdir");
    let data = Pattern(3).bytes(2 * MIB);
    for (path, placed) in [("/here", 0), ("/there/inner/file", 2)] {
        let file = volume.open(path, OpenOptions::new().write(true).create(true)).expect("create");
        file.write_at(&data, 0).expect("write");
        file.close().expect("close");
        assert_eq!(files(&cluster, STORE).placed_here, placed, "{path}");
    }
    let file = attach(&cluster, HOME).open("/there/inner/file", OpenOptions::new().read(true)).expect("open");
    let mut read = vec![0; data.len()];
    file.read_at(&mut read, 0).expect("read");
    assert!(read == data);
}
