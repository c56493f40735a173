//! Random operations on a file, compared with a model of its bytes: what `fsx` of xfstests does, from one
//! mount, and from two in turn. Reads and writes, direct ones, asynchronous ones, stores through mappings,
//! appends, cuts, holes and copies.
//!
//! The seed determines all operations. A failure prints it with the operations that came last.

mod asynchronous;

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use plasmon_e2e::{Chance, Cluster, until};
use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use self::asynchronous::Queue;
use super::mapping::Mapping;
use super::{Mounted, can_mount, own_descriptors};

/// Largest length of the file.
const LONGEST: usize = 256 << 10;
/// Unit of offsets and lengths of direct operations.
const SECTOR: usize = 512;
/// Number of operations of which a failure tells.
const TOLD: usize = 25;

/// Number of operations for a seed, and the number of seeds.
fn lengths() -> (usize, u64) {
    if std::env::var_os("PLASMON_E2E_LONG").is_some() { (5_000, 20) } else { (300, 3) }
}

/// File as a program has it open.
struct Opened {
    file: File,
    direct: File,
    append: File,
    mapping: Mapping,
}

/// File that is changed, and the model of it.
struct Run {
    chance: Chance,
    /// Paths of the file, by mount.
    paths: Vec<PathBuf>,
    at: usize,
    opened: Option<Opened>,
    model: Vec<u8>,
    queue: Queue,
    last: VecDeque<String>,
}

impl Run {
    fn new(seed: u64, paths: Vec<PathBuf>) -> Self {
        File::create(&paths[0]).expect("create");
        Self {
            chance: Chance::of_seed(seed),
            paths,
            at: 0,
            opened: None,
            model: Vec::new(),
            queue: Queue::new(),
            last: VecDeque::new(),
        }
    }

    fn note(&mut self, what: String) {
        if self.last.len() == TOLD {
            self.last.pop_front();
        }
        self.last.push_back(what);
    }

    /// Draws a range of at most `longest` bytes, of whole units.
    fn range(&mut self, end: usize, longest: usize, unit: usize) -> (usize, usize) {
        let at = self.chance.below(end / unit + 1) * unit;
        let len = (self.chance.below(longest / unit) + 1) * unit;
        (at.min(LONGEST - unit), len.min(LONGEST - at.min(LONGEST - unit)))
    }

    /// Draws a range within the file. `None` if the file is empty.
    fn inside(&mut self) -> Option<(usize, usize)> {
        let len = self.model.len();
        if len == 0 {
            return None;
        }
        let at = self.chance.below(len);
        Some((at, 1 + self.chance.below((len - at).min(30_000))))
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let word = self.chance.word() | 1;
        (0..len as u64).map(|at| ((word.wrapping_mul(at + 1)) >> 32) as u8).collect()
    }

    /// Notes that the file has these bytes from an offset on.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at..end].copy_from_slice(bytes);
    }

    fn opened(&mut self) -> &mut Opened {
        let path = &self.paths[self.at];
        self.opened.get_or_insert_with(|| {
            let open = |flags: OFlags| {
                File::options().read(true).write(true).custom_flags(flags.bits() as i32).open(path)
            };
            // A host that was late to tell that it has closed the file is not waited for again for a time.
            let (file, mapping) = until("the file can be mapped", || {
                let file = open(OFlags::empty()).expect("open");
                let mapped = Mapping::try_new(&file, LONGEST, MapFlags::SHARED);
                assert!(mapped.is_ok() || matches!(mapped, Err(Errno::NODEV)), "mmap");
                mapped.ok().map(|mapping| (file, mapping))
            });
            let direct = open(OFlags::DIRECT).expect("open direct");
            Opened { file, direct, append: File::options().append(true).open(path).expect("open"), mapping }
        })
    }

    fn check(&mut self) {
        let read = fs::read(&self.paths[self.at]).expect("read");
        self.compare(0, &read, "all of it");
        assert_eq!(read.len(), self.model.len());
    }

    /// Compares what was read from an offset on.
    fn compare(&self, at: usize, read: &[u8], how: &str) {
        let expected = &self.model[at.min(self.model.len())..self.model.len().min(at + read.len())];
        let differs = read.iter().zip(expected).position(|(one, other)| one != other);
        assert!(
            differs.is_none() && read.len() == expected.len(),
            "{how}: {} of {} bytes at {at}, the first other one at {differs:?}",
            read.len(),
            expected.len()
        );
    }

    fn step(&mut self) {
        match self.chance.below(16) {
            0..=2 => self.write(),
            3 => self.write_direct(),
            4 => self.write_asynchronously(),
            5..=6 => self.store(),
            7 => self.append(),
            8 => self.cut(),
            9..=10 => self.allocate(),
            11 => self.copy(),
            12 => self.read(),
            13 => self.look(),
            14 => self.seek(),
            _ => self.sync_or_close(),
        }
    }

    fn write(&mut self) {
        let (at, len) = self.range(LONGEST - 1, 60_000, 1);
        let bytes = self.bytes(len);
        self.note(format!("write {at} {len}"));
        self.opened().file.write_all_at(&bytes, at as u64).expect("pwrite");
        self.put(at, &bytes);
    }

    fn write_direct(&mut self) {
        let (at, len) = self.range(LONGEST - SECTOR, 60_000, SECTOR);
        let bytes = self.bytes(len);
        self.note(format!("write direct {at} {len}"));
        let direct = self.opened().direct.try_clone().expect("dup");
        direct.write_all_at(&asynchronous::aligned(&bytes), at as u64).expect("pwrite direct");
        self.put(at, &bytes);
    }

    /// Has several ranges that do not overlap written at a time.
    fn write_asynchronously(&mut self) {
        let part = LONGEST / 4;
        let mut writes = Vec::new();
        for number in 0..4 {
            let (at, len) = (self.chance.below(part / SECTOR) * SECTOR, SECTOR * (1 + self.chance.below(40)));
            let bytes = self.bytes(len.min(part - at));
            writes.push((number * part + at, bytes));
        }
        let told: Vec<_> = writes.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        self.note(format!("write asynchronously {told:?}"));
        let direct = self.opened().direct.as_raw_fd();
        self.queue.write(direct, &writes);
        for (at, bytes) in writes {
            self.put(at, &bytes);
        }
    }

    fn store(&mut self) {
        let Some((at, len)) = self.inside() else { return };
        let bytes = self.bytes(len);
        self.note(format!("store {at} {len}"));
        self.opened().mapping.bytes()[at..at + len].copy_from_slice(&bytes);
        self.put(at, &bytes);
    }

    fn append(&mut self) {
        let (at, len) = (self.model.len(), 1 + self.chance.below(9_000));
        if at + len > LONGEST {
            return;
        }
        let bytes = self.bytes(len);
        self.note(format!("append {at} {len}"));
        self.opened().append.write_all(&bytes).expect("append");
        self.put(at, &bytes);
    }

    fn cut(&mut self) {
        let len = self.chance.below(LONGEST);
        self.note(format!("cut to {len}"));
        self.opened().file.set_len(len as u64).expect("ftruncate");
        self.model.resize(len, 0);
    }

    fn allocate(&mut self) {
        let (at, len) = self.range(LONGEST - 1, 50_000, 1);
        let keep = FallocateFlags::KEEP_SIZE;
        let (zeros, zeros_inside) = (FallocateFlags::ZERO_RANGE, FallocateFlags::ZERO_RANGE | keep);
        let hole = FallocateFlags::PUNCH_HOLE | keep;
        let flags = *self.chance.pick(&[FallocateFlags::empty(), hole, zeros, zeros_inside]);
        self.note(format!("fallocate {at} {len} {flags:?}"));
        fallocate(&self.opened().file, flags, at as u64, len as u64).expect("fallocate");
        if !flags.contains(keep) && self.model.len() < at + len {
            self.model.resize(at + len, 0);
        }
        let end = self.model.len().min(at + len);
        if !flags.is_empty() && at < end {
            self.model[at..end].fill(0);
        }
    }

    fn copy(&mut self) {
        let Some((from, len)) = self.inside() else { return };
        let to = self.chance.below(LONGEST - len + 1);
        if from < to + len && to < from + len {
            return;
        }
        self.note(format!("copy {from} {len} to {to}"));
        let (mut read, mut written) = (from as u64, to as u64);
        while (read as usize) < from + len {
            let left = from + len - read as usize;
            let file = &self.opened().file;
            let done = copy_file_range(file, Some(&mut read), file, Some(&mut written), left);
            assert_ne!(done.expect("copy_file_range"), 0, "it ends before");
        }
        let bytes = self.model[from..from + len].to_vec();
        self.put(to, &bytes);
    }

    fn read(&mut self) {
        let (at, len) = self.range(LONGEST - SECTOR, 60_000, SECTOR);
        let is_direct = self.chance.percent(50);
        self.note(format!("read {at} {len}, direct: {is_direct}"));
        let opened = self.opened();
        let file = if is_direct { &opened.direct } else { &opened.file };
        let mut bytes = asynchronous::aligned(&vec![0; len]);
        let mut done = 0;
        while done < len {
            match file.read_at(&mut bytes[done..], (at + done) as u64).expect("pread") {
                0 => break,
                more => done += more,
            }
        }
        self.compare(at, &bytes[..done], "read");
    }

    /// Reads through the mapping.
    fn look(&mut self) {
        let Some((at, len)) = self.inside() else { return };
        self.note(format!("look {at} {len}"));
        let seen = self.opened().mapping.bytes()[at..at + len].to_vec();
        self.compare(at, &seen, "mapping");
    }

    /// Looks for data from an offset on: what is skipped is zeros.
    fn seek(&mut self) {
        let Some((at, _)) = self.inside() else { return };
        self.note(format!("seek data from {at}"));
        let opened = self.opened();
        // Stores count as data when the kernel has written them.
        opened.mapping.sync().expect("msync");
        let found = opened.file.seek(SeekFrom::Start(0)).map(|_| {
            // SAFETY: the call takes integers.
            unsafe { libc::lseek(opened.file.as_raw_fd(), at as i64, libc::SEEK_DATA) }
        });
        let found = found.expect("lseek");
        let end = usize::try_from(found).unwrap_or(self.model.len());
        assert!(self.model[at..end].iter().all(|byte| *byte == 0), "data between {at} and {end}");
    }

    fn sync_or_close(&mut self) {
        let is_closed = self.chance.percent(50);
        self.note(if is_closed { "close".to_owned() } else { "fsync".to_owned() });
        if !is_closed {
            self.opened().file.sync_all().expect("fsync");
            return;
        }
        self.opened = None;
        self.at = (self.at + 1) % self.paths.len();
        self.check();
    }

    fn run(mut self, operations: usize) {
        let run = AssertUnwindSafe(|| {
            for _ in 0..operations {
                self.step();
            }
            self.check();
            self.opened = None;
            self.check();
        });
        if let Err(panic) = catch_unwind(run) {
            eprintln!("mount {}; the last operations:\n{}", self.at, Vec::from(self.last).join("\n"));
            resume_unwind(panic);
        }
    }
}

/// Runs all seeds on files of these mounts.
fn run(mounts: &[Mounted]) {
    let (operations, seeds) = lengths();
    let first = Chance::of_this_run_or("random", 1).word() >> 1;
    for seed in first..first + seeds {
        eprintln!("random: the seed of the file is {seed}");
        let paths = mounts.iter().map(|mount| mount.path(&format!("file{seed}"))).collect();
        Run::new(seed, paths).run(operations);
    }
}

#[test]
fn random_operations_give_what_a_model_says() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("192MiB").start();
    run(&[Mounted::new(&cluster, 0)]);
}

#[test]
fn random_operations_from_two_mounts_in_turn_give_what_a_model_says() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("192MiB").start();
    run(&[0, 1].map(|node| Mounted::new(&cluster, node)));
}

/// Writes a file asynchronously by an open past the page cache, again and again while others read it, and
/// reads it after each time.
fn overwrite(mounted: &Mounted, name: &str, options: &mut OpenOptions) {
    const LEN: usize = 64 << 10;
    let rounds = if std::env::var_os("PLASMON_E2E_LONG").is_some() { 4_000 } else { 200 };
    let (path, over, mut queue) = (mounted.path(name), AtomicBool::new(false), Queue::new());
    fs::write(&path, vec![0; LEN]).expect("write");
    let (written, reads) = (options.open(&path).expect("open"), File::open(&path).expect("open"));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                own_descriptors();
                let (file, mut bytes) = (File::open(&path).expect("open"), vec![0; LEN]);
                while !over.load(Ordering::SeqCst) {
                    file.read_exact_at(&mut bytes, 0).expect("pread");
                }
            });
        }
        for round in 1..=rounds {
            let parts: Vec<_> = (0..4).map(|part| (part * LEN / 4, vec![round as u8; LEN / 4])).collect();
            queue.write(written.as_raw_fd(), &parts);
            let mut bytes = vec![0; LEN];
            reads.read_exact_at(&mut bytes, 0).expect("pread");
            let old = bytes.iter().position(|byte| *byte != round as u8);
            if old.is_some() {
                over.store(true, Ordering::SeqCst);
            }
            assert_eq!(old, None, "{name}, round {round}: what a completed write replaced is read");
        }
        over.store(true, Ordering::SeqCst);
    });
}

#[test]
fn reads_beside_asynchronous_direct_writes_leave_nothing_old() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("128MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    overwrite(&mounted, "direct", File::options().write(true).read(true).custom_flags(libc::O_DIRECT));
    // An open to write alone is past the page cache as well.
    overwrite(&mounted, "written", File::options().write(true));
}
