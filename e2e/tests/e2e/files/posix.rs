//! Tests of promises of POSIX and Linux for files within a mount: unnamed files, room ahead, privileges, and
//! stores through mappings that find no room.

use std::fs::{self, File, Permissions};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

use plasmon_e2e::{Cluster, Pattern, eventually};
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, fallocate, linkat};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use super::mapping::Mapping;
use super::{Mounted, can_mount, text};
use crate::commands::{failure, json, output};
use crate::support::{MIB, as_user, put};

/// User that every Debian has: nobody.
const NOBODY: u32 = 65534;

fn inodes(cluster: &Cluster) -> u64 {
    json(cluster, 0, &["volume", "ls"])[0]["inodes"].as_u64().expect("a number")
}

#[test]
fn a_file_without_a_name_gets_one_by_linkat_or_goes() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let [mounted, other] = [0, 1].map(|node| Mounted::new(&cluster, node));
    fs::create_dir(mounted.path("folder")).expect("mkdir");
    let unnamed = |more: OFlags| {
        let flags = (OFlags::TMPFILE | more).bits() as i32;
        let mut options = File::options();
        options.read(true).write(true).mode(0o640).custom_flags(flags);
        options.open(mounted.path("folder")).expect("O_TMPFILE")
    };
    let name = |file: &File, path: &Path| {
        let path_of_file = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
        linkat(CWD, path_of_file, CWD, path, AtFlags::SYMLINK_FOLLOW)
    };
    let before = inodes(&cluster);
    let [small, large] =
        [100, 2 * MIB + 7].map(|len| (unnamed(OFlags::empty()), Pattern(len as u64).bytes(len)));
    for (file, data) in [&small, &large] {
        file.write_all_at(data, 0).expect("pwrite");
        let told = file.metadata().expect("fstat");
        assert_eq!((told.nlink(), told.len(), told.mode() & 0o777), (0, data.len() as u64, 0o640));
    }
    assert_eq!(fs::read_dir(mounted.path("folder")).expect("opendir").count(), 0, "it has no name");
    for ((file, data), path) in [(&small, "folder/small"), (&large, "large")] {
        name(file, &mounted.path(path)).expect("linkat");
        let told = fs::metadata(mounted.path(path)).expect("stat");
        assert_eq!((told.nlink(), told.ino()), (1, file.metadata().expect("fstat").ino()));
        assert_eq!(name(file, &mounted.path(path)), Err(Errno::EXIST));
        file.write_all_at(b"more", 50).expect("pwrite");
        file.sync_all().expect("fsync");
        let mut expected = data.clone();
        expected[50..54].copy_from_slice(b"more");
        assert!(fs::read(other.path(path)).expect("read") == expected, "{path} on another host");
    }
    assert_eq!(inodes(&cluster), before + 2);
    let goes = unnamed(OFlags::empty());
    goes.write_all_at(&[1; MIB], 0).expect("pwrite");
    let never = unnamed(OFlags::EXCL);
    assert_eq!(name(&never, &mounted.path("never")), Err(Errno::NOENT), "O_EXCL says so");
    assert_eq!(inodes(&cluster), before + 4);
    drop((goes, never));
    eventually("what has no name goes when it is closed", || inodes(&cluster) == before + 2);
}

#[test]
fn fallocate_makes_files_longer_and_makes_holes_and_does_nothing_else() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("128MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    let path = mounted.path("file");
    let mut expected = Pattern(4).bytes(MIB);
    fs::write(&path, &expected).expect("write");
    let file = File::options().read(true).write(true).open(&path).expect("open");
    let check = |expected: &[u8], what: &str| {
        assert_eq!(file.metadata().expect("fstat").len(), expected.len() as u64, "{what}");
        assert!(fs::read(&path).expect("read") == expected, "{what}");
    };
    let allocate = |flags, offset: usize, len: usize| fallocate(&file, flags, offset as u64, len as u64);
    let (none, keep) = (FallocateFlags::empty(), FallocateFlags::KEEP_SIZE);
    let (punch, zero) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
    assert_eq!(allocate(none, 1000, 5000), Ok(()));
    check(&expected, "what is there stays");
    assert_eq!(allocate(keep, 0, 4 * MIB), Ok(()));
    check(&expected, "the size is kept");
    let blocks = || fs::metadata(&path).expect("stat").blocks();
    let before = blocks();
    assert_eq!(allocate(none, MIB, MIB), Ok(()));
    expected.resize(2 * MIB, 0);
    check(&expected, "it is longer");
    assert_eq!(blocks(), before, "room is taken by who writes");
    assert_eq!(allocate(punch | keep, 3000, 70_000), Ok(()));
    expected[3000..73_000].fill(0);
    check(&expected, "a hole");
    assert!(blocks() < before);
    assert_eq!(allocate(punch | keep, 2 * MIB - 5, MIB), Ok(()));
    check(&expected, "a hole across the end, of bytes that are none");
    assert_eq!(allocate(zero | keep, MIB - 9000, 2 * MIB), Ok(()));
    expected[MIB - 9000..].fill(0);
    check(&expected, "zeros up to the end");
    assert_eq!(allocate(zero, 100_000, 3 * MIB), Ok(()));
    expected.resize(100_000 + 3 * MIB, 0);
    expected[100_000..].fill(0);
    check(&expected, "zeros beyond the end");
    for unknown in
        [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE, FallocateFlags::UNSHARE_RANGE]
    {
        assert_eq!(allocate(unknown, 0, 4096), Err(Errno::OPNOTSUPP), "{unknown:?}");
    }
    assert_eq!(allocate(punch, 0, 4096), Err(Errno::OPNOTSUPP), "a hole keeps the size");
    assert_eq!(allocate(none, 0, 0), Err(Errno::INVAL));
    assert_eq!(allocate(none, i64::MAX as usize - 1, 2), Err(Errno::FBIG));
    let read_only = File::open(&path).expect("open");
    assert_eq!(fallocate(&read_only, none, 0, 1), Err(Errno::BADF));
    check(&expected, "what was refused changed nothing");
    file.sync_all().expect("fsync");
    drop((file, read_only));
    mounted.unmount();
    let again = Mounted::new(&cluster, 0);
    assert!(fs::read(again.path("file")).expect("read") == expected, "at the home as well");
}

#[test]
fn setuid_and_setgid_go_with_a_write_of_others_and_with_another_owner() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::with(&cluster, 0, &["--allow-other"]);
    let path = mounted.path("program");
    let mode = || fs::metadata(&path).expect("stat").mode() & 0o7777;
    let set = |mode| {
        fs::write(&path, "bytes").expect("root writes");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("chmod");
    };
    // The mode while the program still has the file open, before anything is committed, and afterwards. The
    // kernel looks again for who asks for the size as well.
    let writes = |script: &str| {
        let mut shell = as_user(&cluster, NOBODY, &[Path::new("/bin/sh")]);
        let told = shell.args(["-ec", &format!("{script}; stat -c '%a %s' \"$0\"")]).arg(&path).output();
        let told = told.expect("sh runs");
        assert!(told.status.success(), "{script}: {}", String::from_utf8_lossy(&told.stderr));
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        u32::from_str_radix(told.split(' ').next().unwrap_or_default(), 8).expect("a mode")
    };
    for script in [
        "exec 3<> \"$0\"; printf x >&3",
        "exec 3>> \"$0\"; printf x >&3",
        "exec 3> \"$0\"",
        "exec 3<> \"$0\"; dd if=/dev/zero of=\"$0\" bs=1 count=1 conv=notrunc status=none",
        "truncate -s 3 \"$0\"",
        "fallocate -p -o 0 -l 1 \"$0\"",
        "fallocate -l 9 \"$0\"",
    ] {
        set(0o6777);
        assert_eq!((writes(script), mode()), (0o777, 0o777), "{script}");
    }
    // Without the permission to execute for the group, the bit is no privilege.
    set(0o6767);
    assert_eq!((writes("printf x >> \"$0\""), mode()), (0o2767, 0o2767));
    set(0o6777);
    assert_eq!((writes("cat \"$0\" > /dev/null"), mode()), (0o6777, 0o6777), "a read takes nothing");
    fs::write(&path, "other bytes").expect("write");
    assert_eq!(mode(), 0o6777, "root may write");
    for (uid, gid) in [(Some(NOBODY), None), (None, Some(NOBODY)), (Some(0), Some(0))] {
        set(0o6777);
        chown(&path, uid, gid).expect("chown");
        assert_eq!(mode(), 0o777, "{uid:?} {gid:?}");
    }
    let folder = mounted.path("folder");
    fs::create_dir(&folder).expect("mkdir");
    fs::set_permissions(&folder, Permissions::from_mode(0o2775)).expect("chmod");
    chown(&folder, Some(NOBODY), Some(NOBODY)).expect("chown");
    assert_eq!(
        fs::metadata(&folder).expect("stat").mode() & 0o7777,
        0o2775,
        "of a folder it is no privilege"
    );
}

/// Closes a file as `close(2)` does.
#[allow(unsafe_code)]
fn close(file: File) -> std::io::Result<()> {
    // SAFETY: the descriptor was the file's, which is gone.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn stores_through_a_mapping_that_find_no_room_are_errors_of_msync_fsync_and_close() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("128MiB").start();
    json(&cluster, 0, &["volume", "create", "small", "--capacity", "4MiB"]);
    let mounted = Mounted::with(&cluster, 0, &["--volume", "small"]);
    fs::write(mounted.path("full"), vec![1; 4 * MIB]).expect("there is room");
    let path = mounted.path("mapped");
    // A hole takes no room.
    let make = File::create_new(&path).expect("create");
    make.set_len(2 * MIB as u64).expect("ftruncate");
    drop(make);
    let open = || File::options().read(true).write(true).open(&path).expect("open");
    let file = open();
    let mut mapping = Mapping::new(&file, 2 * MIB, MapFlags::SHARED);
    mapping.bytes()[..5].copy_from_slice(b"first");
    assert_eq!(mapping.sync(), Err(Errno::NOSPC), "msync");
    mapping.bytes()[MIB..MIB + 6].copy_from_slice(b"second");
    assert_eq!(file.sync_all().expect_err("fsync").raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    mapping.bytes()[MIB..MIB + 5].copy_from_slice(b"third");
    assert_eq!(close(file).expect_err("close").raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    // With room again, what is stored then is accepted.
    fs::remove_file(mounted.path("full")).expect("unlink");
    eventually("the removed file is closed", || {
        mapping.bytes()[..4].copy_from_slice(b"last");
        mapping.bytes()[2 * MIB - 3..].copy_from_slice(b"end");
        mapping.sync().is_ok()
    });
    drop(mapping);
    open().sync_all().expect("there is room");
    mounted.unmount();
    let again = Mounted::with(&cluster, 0, &["--volume", "small"]);
    let read = fs::read(again.path("mapped")).expect("read");
    assert_eq!((&read[..4], &read[2 * MIB - 3..], read.len()), (&b"last"[..], &b"end"[..], 2 * MIB));
}

#[test]
fn objects_of_files_are_not_listed_and_cannot_be_deleted_past_their_files() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    let data = Pattern(6).bytes(3 * MIB);
    fs::write(mounted.path("file"), &data).expect("write");
    put(&cluster.client(0), Pattern(1), 1000);
    let told = json(&cluster, 0, &["explain", text(&mounted.path("file"))]);
    let ids: Vec<_> =
        told["objects"].as_array().expect("a list").iter().map(|object| &object["id"]).collect();
    assert!(ids.len() >= 3, "{told}");
    let held = cluster.status(0).objects.primary_bytes;
    assert!(held >= data.len() as u64, "{held}");
    for node in [0, 1] {
        let listed = json(&cluster, node, &["ls", "--cluster"]);
        assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
        for id in &ids {
            let id = id.as_str().expect("a text");
            let (_, said) = failure(&cluster, node, &["rm", id]);
            assert!(said.contains("delete the file"), "{said}");
        }
    }
    output(&cluster, 0, &["rm", "--unnamed"]);
    assert_eq!(json(&cluster, 0, &["ls", "--cluster"]), serde_json::json!([]));
    mounted.unmount();
    let again = Mounted::new(&cluster, 1);
    assert!(fs::read(again.path("file")).expect("read") == data, "no byte is gone");
    fs::remove_file(again.path("file")).expect("unlink");
    eventually("its objects go with it", || cluster.status(0).objects.primary_bytes < MIB as u64);
}
