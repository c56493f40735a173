//! Isolation of segments: the kernel refuses a process that holds the descriptor of a segment. A child
//! process makes the attempts: this program again (`child_process`), which inherits nothing but that
//! descriptor.

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs, ptr};

use plasmon_node::memory::{Access, Arena, ArenaConfig, ArenaError, Domain, Extent, HugePages, Writer, Zone};
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

const NOBODY: u32 = 65534;
const SEGMENT: usize = 64 << 10;
const DESCRIPTOR: &str = "PLASMON_TEST_DESCRIPTOR";
const SECRET: &[u8] = b"sealed bytes";
const FORGED: &[u8] = b"forged bytes";

fn arena() -> Arena {
    let segment_size = Some(SEGMENT as u64);
    let huge_pages = HugePages::Never;
    Arena::new(&ArenaConfig {
        capacity: 4 * SEGMENT as u64,
        segment_size,
        huge_pages,
        prefault: false,
        near: None,
        huge_allowance: None,
    })
    .unwrap()
}

fn extent(arena: &mut Arena, writer: Writer) -> Extent {
    let extent = arena.allocate(Zone { domain: Domain::Shared, writer }, 8192).unwrap();
    extent.write(0, SECRET).unwrap();
    extent
}

fn bytes_of(extent: &Extent) -> Vec<u8> {
    let mut bytes = vec![0; SECRET.len()];
    extent.read(0, &mut bytes).unwrap();
    bytes
}

/// Runs `child_process` with the descriptor, as another user if one is given. `None` if this process may not
/// become that user.
fn attempts_by(uid: Option<u32>, descriptor: impl AsFd) -> Option<HashMap<String, String>> {
    if uid.is_some() && !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a process of another user");
        return None;
    }
    // One at a time: a file that another test's child inherited open for writing cannot be run.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);

    // The program is run from where any user may run it, because the build directory may be private.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("attempts");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();

    // The copy is not closed on exec, unlike the original.
    let inherited: OwnedFd = rustix::io::dup(descriptor).unwrap();
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "child_process", "--nocapture", "--test-threads=1"]);
    command.env(DESCRIPTOR, inherited.as_raw_fd().to_string()).current_dir("/");
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let results = text.lines().filter_map(|line| line.strip_prefix("attempt ")?.split_once(": "));
    Some(results.map(|(name, result)| (name.to_owned(), result.to_owned())).collect())
}

#[track_caller]
fn expect(results: &HashMap<String, String>, expected: &[(&str, &str)]) {
    for (name, result) in expected {
        assert_eq!(results.get(*name).map(String::as_str), Some(*result), "{name} in {results:#?}");
    }
}

#[test]
fn another_user_can_only_read_what_it_was_given_to_read() {
    for writer in [Writer::Engine, Writer::Uid(1)] {
        let mut arena = arena();
        let extent = extent(&mut arena, writer);
        let descriptor = arena.descriptor(extent.segments().next().unwrap(), Access::Read).unwrap();
        let Some(results) = attempts_by(Some(NOBODY), descriptor) else { return };
        expect(
            &results,
            &[
                ("uid", "65534"),
                ("read", "sealed bytes"),
                ("map writable", "ACCESS"),
                ("make a mapping writable", "ACCESS"),
                ("write", "BADF"),
                ("shrink", "INVAL"),
                ("punch a hole", "BADF"),
                ("change the mode", "PERM"),
                ("re-open writable", "ACCESS"),
            ],
        );
        assert_eq!(bytes_of(&extent), SECRET);
    }
}

#[test]
fn not_even_our_own_user_can_write_an_engine_written_segment() {
    let mut arena = arena();
    let extent = extent(&mut arena, Writer::Engine);
    let segment = extent.segments().next().unwrap();
    assert!(matches!(arena.descriptor(segment, Access::Write), Err(ArenaError::NotWritable { .. })));
    let descriptor = arena.descriptor(segment, Access::Read).unwrap();
    let results = attempts_by(None, descriptor).unwrap();
    expect(
        &results,
        &[
            ("read", "sealed bytes"),
            ("map writable", "ACCESS"),
            ("make a mapping writable", "ACCESS"),
            ("write", "BADF"),
            ("shrink", "INVAL"),
            // The owner gets a writable descriptor this way, but still cannot write a byte.
            ("change the mode", "done"),
            ("re-open writable", "done"),
            ("re-opened, map writable", "PERM"),
            ("re-opened, make a mapping writable", "ACCESS"),
            ("re-opened, write", "PERM"),
            ("re-opened, shrink", "PERM"),
            ("re-opened, grow", "PERM"),
            ("re-opened, punch a hole", "PERM"),
            ("re-opened, add a seal", "PERM"),
        ],
    );
    assert_eq!(bytes_of(&extent), SECRET);
    extent.write(0, FORGED).expect("our own mapping still writes");
    assert_eq!(bytes_of(&extent), FORGED);
}

#[test]
fn a_creator_writes_in_place_but_cannot_pull_the_memory_away() {
    let mut arena = arena();
    let extent = extent(&mut arena, Writer::Uid(NOBODY));
    let descriptor = arena.descriptor(extent.segments().next().unwrap(), Access::Write).unwrap();
    let Some(results) = attempts_by(Some(NOBODY), descriptor) else { return };
    expect(
        &results,
        &[("map writable", "done"), ("shrink", "PERM"), ("grow", "PERM"), ("add a seal", "PERM")],
    );
    assert_eq!(bytes_of(&extent), FORGED, "written by the child through its mapping");
}

/// The other side of the tests above.
#[test]
#[ignore = "run by the other tests in a process of its own"]
fn child_process() {
    let Ok(number) = env::var(DESCRIPTOR) else { return };
    let number: RawFd = number.parse().unwrap();
    // SAFETY: inherited from the test that started this process, and open as long as it lives.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    // The test harness has begun a line.
    println!("\nattempt uid: {}", rustix::process::getuid().as_raw());
    println!("attempt read: {}", String::from_utf8_lossy(&read_mapped(descriptor)));
    attempt_all("", descriptor);
    let mode = rustix::fs::fchmod(descriptor, Mode::RUSR | Mode::WUSR);
    report("change the mode", mode);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(format!("/proc/self/fd/{number}"), flags, Mode::empty()) {
        Ok(reopened) => {
            report("re-open writable", Ok(()));
            attempt_all("re-opened, ", reopened.as_fd());
        }
        Err(error) => report("re-open writable", Err(error)),
    }
}

fn attempt_all(prefix: &str, descriptor: BorrowedFd<'_>) {
    let attempt = |name: &str, result| report(&format!("{prefix}{name}"), result);
    let writable = ProtFlags::READ | ProtFlags::WRITE;
    attempt("map writable", map(descriptor, writable).map(forge));
    attempt(
        "make a mapping writable",
        map(descriptor, ProtFlags::READ).and_then(|address| {
            let flags = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: the mapping was just made and nothing else uses it.
            unsafe { rustix::mm::mprotect(address, SEGMENT, flags) }.map(|()| forge(address))
        }),
    );
    attempt("write", rustix::io::write(descriptor, FORGED).map(drop));
    attempt("shrink", rustix::fs::ftruncate(descriptor, 4096));
    attempt("grow", rustix::fs::ftruncate(descriptor, 2 * SEGMENT as u64));
    attempt("add a seal", rustix::fs::fcntl_add_seals(descriptor, SealFlags::FUTURE_WRITE));
    if !prefix.is_empty() || map(descriptor, writable).is_err() {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        attempt("punch a hole", rustix::fs::fallocate(descriptor, flags, 0, 4096));
    }
}

fn map(descriptor: BorrowedFd<'_>, protection: ProtFlags) -> Result<*mut c_void, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    unsafe { rustix::mm::mmap(ptr::null_mut(), SEGMENT, protection, MapFlags::SHARED, descriptor, 0) }
}

fn forge(address: *mut c_void) {
    // SAFETY: a writable mapping of SEGMENT bytes into which no reference points.
    unsafe { ptr::copy_nonoverlapping(FORGED.as_ptr(), address.cast(), FORGED.len()) };
}

fn read_mapped(descriptor: BorrowedFd<'_>) -> Vec<u8> {
    let address = map(descriptor, ProtFlags::READ).expect("a descriptor that was given out can be read");
    let mut bytes = vec![0; SECRET.len()];
    // SAFETY: a readable mapping of SEGMENT bytes into which no reference points.
    unsafe { ptr::copy_nonoverlapping(address.cast(), bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

fn report(name: &str, result: Result<(), Errno>) {
    let result = match result {
        Ok(()) => "done".to_owned(),
        Err(Errno::ACCESS) => "ACCESS".to_owned(),
        Err(Errno::PERM) => "PERM".to_owned(),
        Err(Errno::BADF) => "BADF".to_owned(),
        Err(Errno::INVAL) => "INVAL".to_owned(),
        Err(other) => other.to_string(),
    };
    println!("attempt {name}: {result}");
}
