//! Tests of `plasmon volume check`: lost bytes are named, and mended where they can be.

use std::process::Output;

use plasmon::files::{AttachOptions, Errno, File, OpenOptions, Volume, VolumeChange, VolumeTerms, Volumes};
use plasmon_e2e::{Cluster, Pattern, eventually};
use serde_json::{Value, json};

use super::{plasmon, text};
use crate::support::MIB;

/// Home of the volume.
const HOME: usize = 0;
/// Node whose clients write.
const WRITER: usize = 1;

fn attach(cluster: &Cluster, node: usize) -> Volume {
    Volume::attach(&cluster.client(node), "main", &AttachOptions::default()).expect("it is there")
}

fn create(cluster: &Cluster, terms: VolumeTerms) {
    Volumes::by(&cluster.client(HOME)).create("main", None, terms).expect("a volume");
}

fn write(volume: &Volume, path: &str, len: usize) {
    let file = volume.open(path, OpenOptions::new().write(true).create_new(true)).expect("create");
    file.write_at(&Pattern(len as u64).bytes(len), 0).expect("write");
    file.close().expect("close");
}

fn run(cluster: &Cluster, more: &[&str]) -> Output {
    let socket = cluster.socket(HOME);
    plasmon(&[&["volume", "check", "main", "--socket", text(&socket)], more].concat())
}

fn check(cluster: &Cluster, more: &[&str]) -> (Option<i32>, Value) {
    let output = run(cluster, &[&["--json"], more].concat());
    let told = serde_json::from_slice(&output.stdout);
    let told = told.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), told)
}

/// Paths of the ranges in a list, each once.
fn paths(told: &Value, list: &str) -> Vec<String> {
    let rows = told[list].as_array().expect("a list");
    let mut paths: Vec<_> = rows.iter().map(|row| row["path"].as_str().expect("text").to_owned()).collect();
    paths.sort();
    paths.dedup();
    paths
}

#[test]
fn a_check_names_what_too_few_nodes_keep_and_has_copies_made() {
    let cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    create(&cluster, VolumeTerms { copies: 1, ..VolumeTerms::default() });
    let volume = attach(&cluster, WRITER);
    volume.create_dir("/folder", 0o755).expect("mkdir");
    write(&volume, "/folder/large", 2 * MIB + 9);
    write(&volume, "/middle", 70_000);
    write(&volume, "/small", 100);
    write(&volume, "/empty", 0);
    let (code, told) = check(&cluster, &[]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!((&told["files"], &told["folders"], &told["lost_bytes"]), (&json!(4), &json!(2), &json!(0)));
    assert_eq!((paths(&told, "short"), paths(&told, "lost")), (vec![], vec![]), "{told}");
    let usage: Vec<_> = told["nodes"].as_array().expect("a list").iter().map(|node| &node["usage"]).collect();
    let right = usage.iter().filter(|usage| {
        usage["used"] == usage["counted"] && usage["wrong_users"] == 0 && usage["wrong_objects"] == 0
    });
    assert_eq!(right.count(), 1, "the home's: {told}");
    // The volume is to have copies from now on, which what is there has not.
    let change = VolumeChange { copies: Some(2), ..VolumeChange::default() };
    Volumes::by(&cluster.client(HOME)).set("main", change).expect("set");
    let (code, told) = check(&cluster, &[]);
    assert_eq!((code, paths(&told, "lost")), (Some(0), vec![]), "{told}");
    assert_eq!(paths(&told, "short"), ["/folder/large", "/middle"], "{told}");
    assert_eq!((&told["short"][0]["kept"], &told["short"][0]["copies"]), (&json!(1), &json!(2)));
    let (code, told) = check(&cluster, &["--repair"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told["short"].as_array().expect("a list").iter().all(|row| row["mended"] == true), "{told}");
    let (code, told) = check(&cluster, &[]);
    assert_eq!((code, paths(&told, "short")), (Some(0), vec![]), "{told}");
}

#[test]
fn a_check_names_what_is_lost() {
    let mut cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    create(&cluster, VolumeTerms::default());
    write(&attach(&cluster, WRITER), "/lost", 2 * MIB + 9);
    write(&attach(&cluster, HOME), "/kept", 2 * MIB);
    cluster.kill(WRITER);
    eventually("the node is no member", || cluster.status(HOME).cluster.members.len() == 2);
    eventually("its bytes are lost", || {
        let file = attach(&cluster, HOME).open("/lost", OpenOptions::new().read(true)).expect("open");
        file.read_at(&mut [0; 9], 0).is_err_and(|error| error.errno() == Errno::Io)
    });
    let (code, told) = check(&cluster, &["--repair"]);
    assert_eq!(code, Some(8), "{told}");
    assert_eq!((paths(&told, "lost"), paths(&told, "short")), (vec!["/lost".to_owned()], vec![]), "{told}");
    assert_eq!(told["lost_bytes"], json!(2 * MIB + 9));
    let output = run(&cluster, &[]);
    let (told, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(told.contains(&format!("lost   /lost 0..{}\n", 2 * MIB + 9)), "{told}");
    assert!(error.contains("lost"), "{error}");
    // Bytes whose file is gone are not missed.
    attach(&cluster, HOME).remove_file("/lost").expect("unlink");
    assert_eq!(check(&cluster, &[]).0, Some(0));
}

#[test]
fn what_was_put_and_cannot_be_committed_goes_while_the_session_goes_on() {
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    create(&cluster, VolumeTerms { capacity: MIB as u64, ..VolumeTerms::default() });
    let volume = attach(&cluster, WRITER);
    write(&volume, "/fits", MIB / 2);
    let before = cluster.status(WRITER).objects.primary_bytes;
    let file = volume.open("/does-not", OpenOptions::new().write(true).create(true)).expect("create");
    // Whether bytes lie over others, the home says when they were put.
    file.set_len(3 * MIB as u64).expect("a hole needs no room");
    let refused = file.write_at(&Pattern(1).bytes(3 * MIB), 0).expect_err("the volume is full");
    assert_eq!(refused.errno(), Errno::Full);
    file.close().expect("nothing waits");
    eventually("the bytes go", || cluster.status(WRITER).objects.primary_bytes == before);
    // The session goes on: what it puts from now on is committed.
    write(&volume, "/fits-too", MIB / 3);
    let file = volume.open("/fits", OpenOptions::new().read(true)).expect("open");
    let mut read = vec![0; MIB / 2];
    assert_eq!(file.read_at(&mut read, 0).expect("read"), read.len());
    assert!(read == Pattern(MIB as u64 / 2).bytes(MIB / 2));
    let (code, told) = check(&cluster, &[]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told["nodes"].as_array().expect("a list").iter().all(|node| node["left"] == 0), "{told}");
}

#[test]
fn a_check_names_files_without_a_name_by_their_inodes() {
    let mut cluster = Cluster::builder().nodes(3).memory("128MiB").start();
    create(&cluster, VolumeTerms { copies: 1, ..VolumeTerms::default() });
    let (volume, other) = (attach(&cluster, HOME), attach(&cluster, WRITER));
    let open = |volume: &Volume, path: &str| {
        write(volume, path, 70_000);
        let file = volume.open(path, OpenOptions::new().read(true)).expect("open");
        volume.remove_file(path).expect("unlink");
        file
    };
    let (kept, elsewhere) = (open(&volume, "/kept"), open(&other, "/elsewhere"));
    // The session of the first node has it open, and the bytes are on the other node.
    write(&other, "/lost", 50_000);
    let lost = volume.open("/lost", OpenOptions::new().read(true)).expect("open");
    volume.remove_file("/lost").expect("unlink");
    let (code, told) = check(&cluster, &[]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!((&told["files"], &told["unnamed"], &told["objects"]), (&json!(3), &json!(3), &json!(3)));
    let change = VolumeChange { copies: Some(2), ..VolumeChange::default() };
    Volumes::by(&cluster.client(HOME)).set("main", change).expect("set");
    let (_, told) = check(&cluster, &[]);
    let inodes = |told: &Value, list: &str| {
        let rows = told[list].as_array().expect("a list").iter();
        rows.map(|row| (row["path"].clone(), row["inode"].as_u64().expect("a number"))).collect::<Vec<_>>()
    };
    let unnamed = |file: &File| (Value::Null, file.inode());
    assert_eq!(inodes(&told, "short"), [unnamed(&kept), unnamed(&elsewhere), unnamed(&lost)], "{told}");
    drop((elsewhere, other));
    cluster.kill(WRITER);
    eventually("the node is no member", || cluster.status(HOME).cluster.members.len() == 2);
    eventually("its bytes are lost", || lost.read_at(&mut [0; 9], 0).is_err());
    let (code, told) = check(&cluster, &[]);
    assert_eq!((code, inodes(&told, "lost")), (Some(8), vec![unnamed(&lost)]), "{told}");
    assert_eq!(told["lost_bytes"], json!(50_000));
    let output = run(&cluster, &[]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains(&format!("lost   inode {} (no name) 0..50000\n", lost.inode())), "{told}");
    drop((kept, lost));
    eventually("what nobody has open is not missed", || check(&cluster, &[]).0 == Some(0));
}
