//! Names, attributes, links, folders and extended attributes of one mount.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use plasmon_e2e::{Cluster, eventually};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags, getxattr, listxattr,
    mknodat, removexattr, renameat_with, setxattr, statvfs, utimensat,
};
use rustix::io::Errno;

use super::{Mounted, can_mount};

#[test]
fn names_attributes_and_links_are_those_of_a_file_system() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    make_and_remove(&mounted);
    rename(&mounted);
    links(&mounted);
    attributes(&mounted);
    xattrs(&mounted);
    special_files(&mounted);
    mounted.unmount();
}

fn make_and_remove(mounted: &Mounted) {
    let folder = mounted.path("made");
    fs::create_dir(&folder).expect("mkdir");
    assert_eq!(fs::create_dir(&folder).expect_err("it is there").kind(), ErrorKind::AlreadyExists);
    File::create_new(folder.join("file")).expect("create");
    let again = File::create_new(folder.join("file")).expect_err("O_EXCL");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::remove_dir(&folder).expect_err("full").raw_os_error(), Some(39), "ENOTEMPTY");
    assert_eq!(fs::remove_file(&folder).expect_err("a folder").raw_os_error(), Some(21), "EISDIR");
    let below = fs::metadata(folder.join("file/x")).expect_err("no folder");
    assert_eq!(below.raw_os_error(), Some(20), "ENOTDIR");
    // A file that is open stays when its name goes.
    let mut open = File::options().read(true).write(true).open(folder.join("file")).expect("open");
    open.write_all(b"still here").expect("write");
    fs::remove_file(folder.join("file")).expect("unlink");
    assert_eq!(open.metadata().expect("fstat").nlink(), 0);
    let mut read = vec![0; 10];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut read, 0).expect("read");
    assert_eq!(read, b"still here");
    drop(open);
    fs::remove_dir(&folder).expect("rmdir");
    assert_eq!(fs::metadata(&folder).expect_err("gone").kind(), ErrorKind::NotFound);
}

fn rename(mounted: &Mounted) {
    let path = |name: &str| mounted.path(name);
    fs::write(path("a"), "one").expect("write");
    fs::write(path("b"), "two").expect("write");
    let keep = renameat_with(CWD, path("a"), CWD, path("b"), RenameFlags::NOREPLACE);
    assert_eq!(keep, Err(Errno::EXIST));
    renameat_with(CWD, path("a"), CWD, path("b"), RenameFlags::EXCHANGE).expect("exchange");
    assert_eq!(fs::read(path("a")).expect("read"), b"two");
    fs::rename(path("a"), path("b")).expect("rename over");
    assert_eq!(fs::read(path("b")).expect("read"), b"two");
    assert!(!path("a").exists());
    fs::create_dir_all(path("up/down")).expect("mkdir");
    let into_itself = fs::rename(path("up"), path("up/down/up")).expect_err("into itself");
    assert_eq!(into_itself.raw_os_error(), Some(22), "EINVAL");
    fs::rename(path("b"), path("up/down/b")).expect("to another folder");
    fs::rename(path("up"), path("elsewhere")).expect("a folder");
    assert_eq!(fs::read(path("elsewhere/down/b")).expect("read"), b"two");
}

fn links(mounted: &Mounted) {
    let path = |name: &str| mounted.path(name);
    fs::write(path("file"), "x").expect("write");
    fs::hard_link(path("file"), path("hard")).expect("link");
    let (one, two) = (fs::metadata(path("file")).expect("stat"), fs::metadata(path("hard")).expect("stat"));
    assert_eq!((one.ino(), one.nlink(), two.nlink()), (two.ino(), 2, 2));
    fs::remove_file(path("file")).expect("unlink");
    assert_eq!(fs::metadata(path("hard")).expect("stat").nlink(), 1);
    symlink("hard", path("soft")).expect("symlink");
    assert_eq!(fs::read_link(path("soft")).expect("readlink").as_os_str().as_bytes(), b"hard");
    assert_eq!(fs::read(path("soft")).expect("followed"), b"x");
}

fn attributes(mounted: &Mounted) {
    let path = mounted.path("attributes");
    File::options().create(true).write(true).truncate(true).mode(0o640).open(&path).expect("create");
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o640);
    fs::set_permissions(&path, Permissions::from_mode(0o4755)).expect("chmod");
    std::os::unix::fs::chown(&path, Some(1234), Some(5678)).expect("chown");
    let found = fs::metadata(&path).expect("stat");
    assert_eq!((found.uid(), found.gid()), (1234, 5678));
    let time = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps {
        last_access: time(1_000_000_000, 123_456_789),
        last_modification: time(-5, 999_999_999),
    };
    utimensat(CWD, &path, &times, AtFlags::empty()).expect("utimens");
    let found = fs::metadata(&path).expect("stat");
    assert_eq!((found.atime(), found.atime_nsec()), (1_000_000_000, 123_456_789));
    assert_eq!((found.mtime(), found.mtime_nsec()), (-5, 999_999_999));
    assert_eq!(statvfs(mounted.root()).expect("statfs").f_namemax, 255);
    // A home that has just begun learns within a moment how much room there is.
    eventually("there is room", || {
        let full = statvfs(mounted.root()).expect("statfs");
        full.f_blocks > 0 && full.f_bfree > 0 && full.f_bfree <= full.f_blocks
    });
}

fn xattrs(mounted: &Mounted) {
    let path = mounted.path("xattrs");
    fs::write(&path, "").expect("write");
    let mut value = vec![0; 8 << 10];
    setxattr(&path, "user.one", b"1", XattrFlags::CREATE).expect("setxattr");
    assert_eq!(setxattr(&path, "user.one", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(&path, "user.two", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    setxattr(&path, "user.big", &vec![7; 8 << 10], XattrFlags::empty()).expect("setxattr");
    assert_eq!(getxattr(&path, "user.big", &mut value), Ok(8 << 10));
    assert_eq!(getxattr(&path, "user.one", &mut value), Ok(1));
    assert_eq!(getxattr(&path, "user.big", &mut value[..9]), Err(Errno::RANGE));
    let mut names = vec![0; 100];
    let len = listxattr(&path, &mut names).expect("listxattr");
    let names: BTreeSet<&[u8]> =
        names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    assert!(names.contains(&b"user.one"[..]) && names.contains(&b"user.big"[..]), "{names:?}");
    removexattr(&path, "user.one").expect("removexattr");
    assert_eq!(getxattr(&path, "user.one", &mut value), Err(Errno::NODATA));
}

fn special_files(mounted: &Mounted) {
    mknodat(CWD, mounted.path("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("mkfifo");
    assert!(fs::metadata(mounted.path("pipe")).expect("stat").file_type().is_fifo());
    mknodat(CWD, mounted.path("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), 0x103)
        .expect("mknod");
    let found = fs::metadata(mounted.path("null")).expect("stat");
    assert_eq!((found.file_type().is_char_device(), found.rdev()), (true, 0x103));
    let _listener = UnixListener::bind(mounted.path("s")).expect("bind");
    assert!(fs::metadata(mounted.path("s")).expect("stat").file_type().is_socket());
}

#[test]
fn a_large_folder_is_listed_whole_while_it_changes() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    let folder = mounted.path("large");
    fs::create_dir(&folder).expect("mkdir");
    let names: BTreeSet<String> = (0..3_000).map(|number| format!("a rather long name {number}")).collect();
    for name in &names {
        File::create_new(folder.join(name)).expect("create");
    }
    let list = || -> BTreeSet<String> {
        let entries = fs::read_dir(&folder).expect("opendir");
        entries.map(|entry| entry.expect("readdir").file_name().into_string().expect("plain")).collect()
    };
    assert_eq!(list(), names);
    // Names that are there all the time are listed, whatever is removed meanwhile.
    let mut seen = BTreeSet::new();
    for (number, entry) in fs::read_dir(&folder).expect("opendir").enumerate() {
        let name = entry.expect("readdir").file_name().into_string().expect("plain");
        if number % 2 == 0 {
            fs::remove_file(folder.join(&name)).expect("unlink");
        }
        assert!(seen.insert(name), "an entry was listed twice");
    }
    assert_eq!(seen, names);
    assert_eq!(list().len(), names.len() / 2);
    fs::remove_dir_all(&folder).expect("rm -r");
}
