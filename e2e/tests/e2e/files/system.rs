//! What a system does with a mount beside files: it mounts it anew, ends it, opens files by handles, and lays
//! an overlay over it.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Error, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use plasmon_e2e::{Cluster, Pattern, binary, eventually};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::Signal;
use tempfile::TempDir;

use super::ground::Folder;
use super::{Mounted, can_mount, has_ended, mount, plasmon, text};
use crate::support::MIB;

/// Runs a script in a mount namespace whose /sbin has the helpers of mount(8).
fn in_namespace(script: &str, place: &Path, socket: &Path) -> Output {
    let helper = TempDir::new().expect("there is a folder for temporary files");
    for name in ["mount.plasmon", "mount.fuse.plasmon"] {
        symlink(binary(), helper.path().join(name)).expect("the folder is ours");
    }
    let begin = "set -e; mount -t overlay -o lowerdir=$helper:/usr/sbin overlay /usr/sbin\n";
    Command::new("unshare")
        .args(["--mount", "sh", "-c", &format!("{begin}{script}")])
        .env("helper", helper.path())
        .env("place", place)
        .env("socket", socket)
        .output()
        .expect("unshare runs")
}

/// Steps of somebody who changes a mount.
const REMOUNTS: &str = "
mount -t plasmon main $place -o socket=$socket
echo one > $place/file
mount -o remount,ro $place
findmnt -n -o OPTIONS $place
if echo two > $place/file; then exit 9; fi
cat $place/file
mount -o remount,rw $place
echo two > $place/file
exec 3> $place/open
if mount -o remount,ro $place; then exit 8; fi
exec 3>&-
sleep_until() { for i in $(seq 600); do mount -o remount,ro $place 2> /dev/null && return; done; exit 7; }
sleep_until
umount $place
mount -t plasmon main $place -o ro,socket=$socket
if mount -o remount,rw $place; then exit 6; fi
if echo three > $place/file; then exit 5; fi
cat $place/file
umount $place
";

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let folder = Folder::new();
    let output = in_namespace(REMOUNTS, folder.path(), &cluster.socket(0));
    let (told, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}: {told}{said}", output.status);
    let lines: Vec<_> = told.lines().filter(|line| !line.starts_with("volume")).collect();
    assert!(
        matches!(lines[..], [options, "one", "two"] if options.starts_with("ro,nosuid,nodev,")),
        "{told}"
    );
    assert!(said.contains("open to write"), "{said}");
    assert!(said.contains("mounted read-only"), "{said}");
}

#[test]
fn a_signal_ends_a_mount_that_another_namespace_has() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    for is_unmounted_before in [false, true] {
        let folder = Folder::new();
        let pid = mount(&cluster, 0, folder.path(), &[]);
        let path = folder.path().join("file");
        fs::write(&path, "bytes").expect("write");
        // A copy of all mounts, which no unmount of others reaches.
        let script = "echo there; cat > /dev/null; if cat \"$0\"; then exit 1; fi";
        let mut other = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare runs");
        let mut told = [0; 6];
        other.stdout.as_mut().expect("it is piped").read_exact(&mut told).expect("it has the mount");
        if is_unmounted_before {
            assert!(plasmon(&["umount", text(folder.path())]).status.success());
            assert!(!has_ended(pid), "the other namespace uses it");
        }
        rustix::process::kill_process(pid, Signal::TERM).expect("the process is ours");
        eventually("the mount's process ends", || has_ended(pid));
        drop(other.stdin.take());
        let status = other.wait().expect("it is our child");
        assert!(status.success(), "nothing can be read there any more: {status}");
        // What was written is there.
        let again = Mounted::new(&cluster, 0);
        assert_eq!(fs::read(again.path("file")).expect("read"), b"bytes");
    }
}

#[test]
fn a_second_signal_ends_a_mount_of_which_files_are_open() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let folder = Folder::new();
    let pid = mount(&cluster, 0, folder.path(), &[]);
    let mut file = File::options().read(true).write(true).create_new(true).open(folder.path().join("file"));
    let file = file.as_mut().expect("open");
    let terminate = || rustix::process::kill_process(pid, Signal::TERM).expect("the process is ours");
    terminate();
    eventually("it is not mounted any more", || !folder.path().join("file").exists());
    std::io::Write::write_all(file, b"still").expect("what is open goes on");
    assert!(!has_ended(pid));
    terminate();
    eventually("the mount's process ends", || has_ended(pid));
    assert!(std::io::Write::write_all(file, b"over").is_err(), "it has ended");
}

/// Handle of a file, as the kernel makes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle {
    len: u32,
    kind: i32,
    bytes: [u8; 128],
}

/// Returns the handle of a path.
#[allow(unsafe_code)]
fn handle_of(path: &Path) -> Handle {
    let mut handle = Handle { len: 128, kind: 0, bytes: [0; 128] };
    let (path, mut mount) = (CString::new(text(path)).expect("no zero"), 0_i32);
    // SAFETY: the call writes at most as many bytes as the handle says, and one integer.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    };
    assert_eq!(done, 0, "name_to_handle_at: {}", Error::last_os_error());
    handle
}

/// Opens a file by its handle, in the mount of `at`.
#[allow(unsafe_code)]
fn open_handle(at: &File, mut handle: Handle) -> Result<File, i32> {
    let flags = libc::O_RDONLY;
    // SAFETY: the call reads the handle; the descriptor that it returns is nobody else's.
    unsafe {
        match libc::syscall(libc::SYS_open_by_handle_at, at.as_raw_fd(), &raw mut handle, flags) {
            -1 => Err(Error::last_os_error().raw_os_error().unwrap_or_default()),
            new => Ok(File::from_raw_fd(new as i32)),
        }
    }
}

#[test]
fn files_are_opened_by_handles_on_any_mount_and_after_another_name() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    fs::create_dir_all(mounted.path("a/b")).expect("mkdir");
    let data = Pattern(3).bytes(MIB);
    fs::write(mounted.path("a/b/file"), &data).expect("write");
    let handles = ["a/b/file", "a/b", ""].map(|path| handle_of(&mounted.path(path)));
    fs::rename(mounted.path("a/b/file"), mounted.path("a/other")).expect("rename");
    // This kernel knows none of the files by the other mount.
    let other = Mounted::new(&cluster, 1);
    let root = File::open(other.root()).expect("open");
    let [file, folder, top] = handles.map(|handle| open_handle(&root, handle).expect("it is there"));
    let mut read = Vec::new();
    (&file).read_to_end(&mut read).expect("read");
    assert!(read == data);
    assert!(folder.metadata().expect("fstat").is_dir());
    assert_eq!(top.metadata().expect("fstat").ino(), root.metadata().expect("fstat").ino());
    // A folder that was found by its handle has a path, as the kernel finds it from the root on.
    let shown = fs::read_link(format!("/proc/thread-self/fd/{}", folder.as_raw_fd())).expect("readlink");
    assert_eq!(shown, other.path("a/b"));
    drop((file, folder));
    fs::remove_file(mounted.path("a/other")).expect("unlink");
    fs::remove_dir(mounted.path("a/b")).expect("rmdir");
    for handle in &handles[..2] {
        eventually("what is gone has no handle", || open_handle(&root, *handle).err() == Some(libc::ESTALE));
    }
}

#[test]
fn a_name_that_is_moved_leaves_a_whiteout_if_that_is_asked_for() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let [mounted, other] = [0, 1].map(|node| Mounted::new(&cluster, node));
    fs::write(mounted.path("old"), "bytes").expect("write");
    fs::write(mounted.path("new"), "other bytes").expect("write");
    let rename =
        |from: &str, to: &str, flags| renameat_with(CWD, mounted.path(from), CWD, mounted.path(to), flags);
    let [whiteout, keeps] = [RenameFlags::WHITEOUT, RenameFlags::WHITEOUT | RenameFlags::NOREPLACE];
    assert_eq!(rename("old", "new", keeps), Err(Errno::EXIST));
    rename("old", "new", whiteout).expect("rename");
    for mount in [&mounted, &other] {
        let left = fs::metadata(mount.path("old")).expect("it is left");
        assert!(left.file_type().is_char_device(), "{left:?}");
        assert_eq!((left.rdev(), left.nlink()), (0, 1));
        assert_eq!(fs::read(mount.path("new")).expect("read"), b"bytes");
    }
    // In a folder whose names the session knows, too.
    fs::create_dir(mounted.path("own")).expect("mkdir");
    fs::write(mounted.path("own/a"), "a").expect("write");
    rename("own/a", "own/b", keeps).expect("rename");
    assert!(fs::metadata(mounted.path("own/a")).expect("it is left").file_type().is_char_device());
    fs::remove_file(mounted.path("old")).expect("unlink");
    assert!(!mounted.path("old").exists());
    // A host that was late has names of before for a second.
    eventually("the name is gone on the other host", || !other.path("old").exists());
}

/// Steps of an overlay with an upper folder on a mount.
const OVERLAYS: &str = "
mkdir $place/lower $place/upper $place/work $place/both
echo below > $place/lower/file; echo below > $place/lower/other; mkdir $place/lower/folder
echo deep > $place/lower/folder/deep
mkdir /tmp/lower.$$; cp -a $place/lower/. /tmp/lower.$$
mount -t overlay overlay -o lowerdir=/tmp/lower.$$,upperdir=$place/upper,workdir=$place/work $place/both
cd $place/both
echo above > file
mv other moved
rm -r folder; mkdir folder; echo new > folder/new
ls folder; cat file moved
if [ -e other ]; then exit 9; fi
cd /
umount $place/both
mount -t overlay overlay -o lowerdir=/tmp/lower.$$,upperdir=$place/upper,workdir=$place/work $place/both
ls $place/both $place/both/folder
umount $place/both
rm -r /tmp/lower.$$
";

#[test]
fn the_upper_folder_of_an_overlay_lies_on_a_mount() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    let output = in_namespace(OVERLAYS, mounted.root(), &cluster.socket(0));
    let (told, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}: {told}{said}", output.status);
    let lines: Vec<_> = told.lines().filter(|line| !line.contains('/') && !line.is_empty()).collect();
    assert_eq!(lines, ["new", "above", "below", "file", "folder", "moved", "new"], "{told}");
}
