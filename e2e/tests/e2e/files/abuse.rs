//! Bad input: of the commands, and of programs on a mount.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::process::Command;

use plasmon_e2e::Cluster;
use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;
use tempfile::TempDir;

use super::ground::Folder;
use super::{Mounted, can_mount, plasmon, text, try_mount};
use crate::commands::{failure, json};

#[test]
fn folders_that_cannot_be_mounted_are_refused_with_a_reason() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let folder = TempDir::new().expect("a folder");
    let fails = |path: &std::path::Path, options: &[&str], code: i32, part: &str| {
        let output = try_mount(&cluster, 0, path, options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(part), "{said}");
    };
    let file = folder.path().join("file");
    fs::write(&file, "").expect("write");
    fails(&file, &[], 1, "is no folder");
    fails(&folder.path().join("nowhere"), &[], 1, "No such file");
    fails(folder.path(), &["--volume", "nothing"], 3, "nothing");
    let mounted = Mounted::new(&cluster, 0);
    fails(mounted.root(), &[], 5, "already");
    let open = File::create_new(mounted.path("open")).expect("create");
    let busy = plasmon(&["umount", text(mounted.root())]);
    assert!(String::from_utf8_lossy(&busy.stderr).contains("in use"), "{busy:?}");
    drop(open);
    let nothing = plasmon(&["umount", text(folder.path())]);
    assert_eq!(nothing.status.code(), Some(3), "{nothing:?}");
    let nobody = plasmon(&["mount", "--socket", "/nowhere/socket", text(folder.path())]);
    assert_eq!(nobody.status.code(), Some(7), "{nobody:?}");
    mounted.unmount();
}

#[test]
fn a_folder_in_use_can_be_mounted_and_is_as_it_was_afterwards() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let folder = Folder::new();
    let below = folder.path().join("below");
    fs::write(&below, "of the folder").expect("write");
    let open = File::open(&below).expect("open");
    let mut inside = Command::new("sleep").arg("600").current_dir(folder.path()).spawn().expect("sleep runs");
    let mounted = try_mount(&cluster, 0, folder.path(), &[]);
    let mounted = Mounted::of(folder, &mounted);
    assert!(!below.exists(), "the volume is seen instead");
    fs::write(&below, "of the volume").expect("write");
    let mut read = [0; 13];
    open.read_exact_at(&mut read, 0).expect("pread");
    assert_eq!(&read, b"of the folder");
    let again = Mounted::new(&cluster, 0);
    assert_eq!(fs::read(again.path("below")).expect("read"), b"of the volume", "it is mounted twice");
    let ended = plasmon(&["umount", text(mounted.root())]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(fs::read(&below).expect("read"), b"of the folder");
    assert_eq!(fs::read(again.path("below")).expect("read"), b"of the volume", "the other mount goes on");
    inside.kill().expect("it is our child");
    inside.wait().expect("it is our child");
}

#[test]
fn volumes_are_made_listed_changed_and_removed() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let made = json(&cluster, 0, &["volume", "create", "scratch", "--capacity", "10MiB"]);
    assert_eq!((made["name"].as_str(), made["capacity"].as_u64()), (Some("scratch"), Some(10 << 20)));
    assert_eq!(failure(&cluster, 0, &["volume", "create", "scratch"]).0, 5);
    let changed = json(&cluster, 0, &["volume", "set", "scratch", "--capacity", "20MiB"]);
    assert_eq!(changed["capacity"].as_u64(), Some(20 << 20));
    let mounted = Mounted::with(&cluster, 0, &["--volume", "scratch"]);
    fs::write(mounted.path("file"), "x").expect("write");
    assert_ne!(failure(&cluster, 0, &["volume", "rm", "scratch"]).0, 0, "it is mounted");
    let listed = json(&cluster, 0, &["volume", "ls"]);
    let row = listed.as_array().and_then(|rows| rows.iter().find(|row| row["name"] == "scratch"));
    assert_eq!(row.expect("it is listed")["inodes"].as_u64(), Some(2));
    mounted.unmount();
    json(&cluster, 0, &["volume", "rm", "scratch"]);
    assert_eq!(failure(&cluster, 0, &["volume", "rm", "scratch"]).0, 3);
    assert_eq!(failure(&cluster, 0, &["volume", "set", "scratch", "--copies", "2"]).0, 3);
}

#[test]
fn bad_names_offsets_and_values_are_errors_that_programs_understand() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    let errno = |result: std::io::Result<File>| result.expect_err("a bad name").raw_os_error();
    File::create_new(mounted.path(&"n".repeat(255))).expect("255 bytes");
    assert_eq!(errno(File::create_new(mounted.path(&"n".repeat(256)))), Some(36), "ENAMETOOLONG");
    let no_text = mounted.root().join(std::ffi::OsStr::from_bytes(b"\xff\xfe \n"));
    fs::write(&no_text, "x").expect("a name that is no text");
    assert_eq!(fs::read(&no_text).expect("read"), b"x");
    let file = File::create_new(mounted.path("file")).expect("create");
    // No offset is larger, so that the second byte has none.
    assert_eq!(file.write_all_at(b"xy", i64::MAX as u64 - 1).expect_err("too far").raw_os_error(), Some(22));
    let too_long = vec![0; (8 << 10) + 1];
    let long = setxattr(mounted.path("file"), "user.long", &too_long, XattrFlags::empty());
    assert!(matches!(long, Err(Errno::TOOBIG | Errno::RANGE | Errno::NOSPC)), "{long:?}");
    let read_only = Mounted::with(&cluster, 0, &["--read-only"]);
    assert_eq!(errno(File::create_new(read_only.path("x"))), Some(30), "EROFS");
    assert_eq!(fs::read(read_only.path("file")).expect("read"), b"");
}

#[test]
fn a_volume_that_is_full_says_so_and_keeps_what_it_has() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("128MiB").start();
    json(&cluster, 0, &["volume", "create", "small", "--capacity", "4MiB"]);
    let mounted = Mounted::with(&cluster, 0, &["--volume", "small"]);
    fs::write(mounted.path("fits"), vec![1; 3 << 20]).expect("there is room");
    let mut file = File::create_new(mounted.path("too much")).expect("create");
    let written = file.write_all(&vec![2; 3 << 20]);
    assert_eq!(written.expect_err("no room").raw_os_error(), Some(28), "ENOSPC");
    file.sync_all().expect("what was accepted has room");
    drop(file);
    assert_eq!(fs::read(mounted.path("fits")).expect("read"), vec![1; 3 << 20]);
    File::create(mounted.path("fits")).expect("cutting needs no room");
    fs::remove_file(mounted.path("too much")).expect("unlink");
    fs::write(mounted.path("again"), vec![3; 3 << 20]).expect("there is room again");
}

#[test]
fn a_mount_without_a_node_keeps_names_and_sizes() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let mounted = plasmon(&["mount", "--null", text(folder.path())]);
    assert!(mounted.status.success(), "{mounted:?}");
    let path = folder.path().join("file");
    fs::write(&path, vec![1; (3 << 20) + 5]).expect("write");
    assert_eq!(fs::metadata(&path).expect("stat").len(), (3 << 20) + 5);
    assert_eq!(fs::read(&path).expect("read").len(), (3 << 20) + 5);
    let names: Vec<_> = fs::read_dir(folder.path())
        .expect("opendir")
        .map(|entry| entry.expect("readdir").file_name())
        .collect();
    assert_eq!(names, ["file"]);
    fs::remove_file(&path).expect("unlink");
    assert!(!path.exists());
    let ended = plasmon(&["umount", text(folder.path())]);
    assert!(ended.status.success(), "{ended:?}");
}
