//! `mount.plasmon`, the helper of mount(8): by itself, by `mount -t plasmon`, and by a line of fstab.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use plasmon_e2e::{Cluster, Pattern, binary, until};
use tempfile::TempDir;

use super::ground::Folder;
use super::{can_mount, plasmon, text};
use crate::commands::json;
use crate::support::MIB;

/// Folder with a link by which the command is the helper.
fn helper() -> TempDir {
    let folder = TempDir::new().expect("there is a folder for temporary files");
    symlink(binary(), folder.path().join("mount.plasmon")).expect("the folder is ours");
    folder
}

fn run(helper: &TempDir, words: &[&str]) -> Output {
    let program = helper.path().join("mount.plasmon");
    Command::new(program).args(words).output().expect("the helper runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_helper_mounts_as_its_options_say() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("128MiB").start();
    json(&cluster, 0, &["volume", "create", "scratch"]);
    let (helper, folder) = (helper(), Folder::new());
    let socket = format!("rw,noauto,socket={},patience=20", text(&cluster.socket(0)));
    let place = text(folder.path());
    let output = run(&helper, &["scratch", place, "-o", &socket]);
    assert!(output.status.success(), "{}", said(&output));
    let data = Pattern(3).bytes(MIB + 5);
    fs::write(folder.path().join("file"), &data).expect("write");
    let again = run(&helper, &["scratch", place, "-o", &socket]);
    assert_eq!(again.status.code(), Some(32), "{}", said(&again));
    assert!(said(&again).contains("mounted at"), "{}", said(&again));
    assert!(plasmon(&["umount", place]).status.success());
    let output = run(&helper, &["-r", "scratch", place, "-o", &socket]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(fs::read(folder.path().join("file")).expect("read") == data);
    let error = fs::write(folder.path().join("new"), "x").expect_err("nothing can be changed");
    assert_eq!(error.raw_os_error(), Some(30), "EROFS");
    assert!(plasmon(&["umount", place]).status.success());
}

#[test]
fn the_helper_says_what_is_wrong() {
    let (helper, folder) = (helper(), TempDir::new().expect("a folder"));
    let place = text(folder.path());
    let nowhere = format!("socket={place}/none.sock");
    for (words, code, expected) in [
        (&["main"][..], 1, "usage"),
        (&["main", place, "-o", "noexec"][..], 1, "noexec"),
        (&["main", place, "-o", "cache=x", "-o", &nowhere][..], 32, "cache"),
        (&["main", place, "-o", &nowhere][..], 32, "none.sock"),
    ] {
        let output = run(&helper, words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(expected), "{words:?}: {}", said(&output));
    }
    let fake = run(&helper, &["main", place, "-f", "-o", &nowhere]);
    assert!(fake.status.success(), "{}", said(&fake));
}

/// Steps of a host at boot, and when it goes down, in a mount namespace whose /sbin has the helper.
const BOOT: &str = "
set -e
mount -t overlay -o lowerdir=$helper:/usr/sbin overlay /usr/sbin
mount -T $fstab $place
findmnt -n -o SOURCE,FSTYPE $place
cp $place/first $place/second
cmp $place/first $place/second
umount $place
mount -t plasmon scratch $place -o ro,socket=$socket
cat $place/second
umount $place
";

#[test]
fn a_line_of_fstab_mounts_a_volume() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("128MiB").start();
    json(&cluster, 0, &["volume", "create", "scratch"]);
    let (helper, folder) = (helper(), Folder::new());
    let socket = cluster.socket(0);
    let options = format!("socket={}", text(&socket));
    let place = text(folder.path());
    assert!(run(&helper, &["scratch", place, "-o", &options]).status.success());
    fs::write(folder.path().join("first"), "by a line of fstab").expect("write");
    assert!(plasmon(&["umount", place]).status.success());
    let fstab = helper.path().join("fstab");
    let line = format!("scratch {place} plasmon {options},nofail,_netdev,x-a.b=c 0 0\n");
    fs::write(&fstab, line).expect("the folder is ours");
    let of = |name: &str, path: &Path| (name.to_owned(), path.to_owned());
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", BOOT])
        .envs([of("helper", helper.path()), of("fstab", &fstab), of("place", folder.path())])
        .env("socket", &socket)
        .output()
        .expect("unshare runs");
    assert!(output.status.success(), "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("scratch fuse.plasmon"), "{told}");
    assert!(told.ends_with("by a line of fstab"), "{told}");
    // The processes of both mounts have ended.
    until("nobody has the volume", || plasmon_rm(&socket).then_some(()));
}

/// Removes the volume, which is refused while it is mounted.
fn plasmon_rm(socket: &Path) -> bool {
    plasmon(&["volume", "rm", "scratch", "--socket", text(socket)]).status.success()
}
