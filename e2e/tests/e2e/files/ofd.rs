//! Locks that belong to an open file and not to a process (`F_OFD_SETLK`): the kernel tells of their end only
//! by the end of the open.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use plasmon_e2e::{Cluster, eventually};

use super::{Mounted, can_mount};

/// Sets a lock of the first bytes of a file by `command`, or takes it away. Returns the error of the kernel.
#[allow(unsafe_code)]
fn set(file: &File, command: i32, kind: i32) -> Result<(), i32> {
    // SAFETY: a lock is integers, of which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_len) = (kind as i16, libc::SEEK_SET as i16, 10);
    // SAFETY: the call reads a lock, which outlives it.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error().raw_os_error().unwrap_or_default()),
    }
}

fn lock(file: &File) -> Result<(), i32> {
    set(file, libc::F_OFD_SETLK, libc::F_WRLCK)
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

fn gets(file: &File, what: &str) {
    eventually(what, || lock(file).is_ok());
    set(file, libc::F_OFD_SETLK, libc::F_UNLCK).expect("unlock");
}

/// Program that locks the first bytes of a file by an open, says so, and stays.
const HOLDS: &str = "
import fcntl, struct, sys
file = open(sys.argv[1], 'r+b')
fcntl.fcntl(file, 37, struct.pack('hhqqixxxx', fcntl.F_WRLCK, 0, 0, 10, 0))
print('locked', flush=True)
sys.stdin.read()
";

fn holder(path: &Path) -> Child {
    let mut child = Command::new("python3")
        .args(["-c", HOLDS])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut told = [0; 7];
    let output = child.stdout.as_mut().expect("it is piped");
    std::io::Read::read_exact(output, &mut told).expect("it locks the file");
    assert_eq!(&told, b"locked\n");
    child
}

#[test]
fn a_lock_of_an_open_file_ends_with_its_last_descriptor_or_its_holder() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let [here, there] = [0, 1].map(|node| Mounted::new(&cluster, node));
    let path = here.path("file");
    let first = open(&path);
    let others = [open(&path), open(&there.path("file"))];
    lock(&first).expect("nobody has it");
    let refused = || others.iter().all(|other| lock(other) == Err(libc::EAGAIN));
    assert!(refused());
    let again = first.try_clone().expect("dup");
    drop(first);
    assert!(refused(), "a descriptor is left");
    drop(again);
    others.iter().for_each(|other| gets(other, "the lock ends with the open"));
    let mut killed = holder(&path);
    assert!(refused());
    killed.kill().expect("it is our child");
    killed.wait().expect("it is our child");
    others.iter().for_each(|other| gets(other, "the lock ends with its holder"));
    // A part that was unlocked is free at once, and the rest of it with the open.
    let third = open(&path);
    lock(&third).expect("nobody has it");
    set(&third, libc::F_OFD_SETLK, libc::F_UNLCK).expect("unlock");
    assert!(others.iter().all(|other| lock(other).and(set(other, libc::F_OFD_SETLK, libc::F_UNLCK)).is_ok()));
}

#[test]
fn an_open_file_is_not_taken_for_one_that_was_closed() {
    const ROUNDS: usize = 200;
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    let path = mounted.path("file");
    let other = open(&path);
    for round in 0..ROUNDS {
        // The kernel gives the next open the number of this one.
        let one = open(&path);
        eventually("the lock of before has ended", || lock(&one).is_ok());
        assert_eq!(lock(&other), Err(libc::EAGAIN), "round {round}");
        // A lock of a process goes when the process closes any descriptor of the file, others stay.
        let second = File::open(&path).expect("open");
        drop(second);
        assert_eq!(lock(&other), Err(libc::EAGAIN), "round {round}: the lock is the open's");
    }
    gets(&other, "the last lock ends");
}

#[test]
fn a_lock_of_a_process_ends_with_any_close_and_with_no_other_open() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    let path = mounted.path("file");
    let [first, second, other] = [0, 1, 2].map(|_| open(&path));
    let process = |file: &File| set(file, libc::F_SETLK, libc::F_WRLCK);
    process(&first).expect("nobody has it");
    assert_eq!(lock(&other), Err(libc::EAGAIN));
    drop(second);
    gets(&other, "POSIX has it so: any close of the file ends the locks of the process");
    // The lock is set by the later of two opens, and the end of the former one does not take it.
    let later = open(&path);
    process(&first).expect("nobody has it");
    drop(first);
    process(&later).expect("nobody has it");
    for _ in 0..50 {
        assert_eq!(lock(&other), Err(libc::EAGAIN), "the lock is of the later open");
    }
}
