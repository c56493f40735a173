//! Bytes of files of one mount, against files of another file system.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::thread;

use plasmon_e2e::{Chance, Cluster, Pattern};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom as RawSeek, copy_file_range, fallocate, seek};
use rustix::io::Errno;
use rustix::mm::MapFlags;
use tempfile::TempDir;

use super::mapping::Mapping;
use super::{Mounted, can_mount};
use crate::support::MIB;

#[test]
fn files_of_all_sizes_come_back_as_they_were_written() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("256MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    for len in [0, 1, 4095, 4096, 4097, 65_536, 65_537, MIB - 1, MIB + 1, 3 * MIB + 17, 70 * MIB + 5] {
        let path = mounted.path(&format!("file-{len}"));
        let data = Pattern(len as u64).bytes(len);
        fs::write(&path, &data).expect("write");
        assert_eq!(fs::metadata(&path).expect("stat").len(), len as u64);
        assert!(fs::read(&path).expect("read") == data, "{len} bytes differ");
    }
    assert_eq!(fs::read_dir(mounted.root()).expect("opendir").count(), 11);
    // Others read it after the mount is gone.
    mounted.unmount();
    let again = Mounted::new(&cluster, 0);
    for len in [1, 4097, 3 * MIB + 17, 70 * MIB + 5] {
        let read = fs::read(again.path(&format!("file-{len}"))).expect("read");
        assert!(read == Pattern(len as u64).bytes(len), "{len} bytes differ");
    }
}

/// Size of a file that is overwritten at random.
const RANDOM_BYTES: usize = 5 * MIB;

#[test]
fn random_writes_truncations_and_holes_give_the_same_file_as_elsewhere() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("256MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    let elsewhere = TempDir::new().expect("a folder");
    for seed in 0..3 {
        let mut chance = Chance::of_seed(seed);
        let open = |path| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true).open(path).expect("open")
        };
        let (ours, theirs) = (open(mounted.path("f")), open(elsewhere.path().join("f")));
        for step in 0..200 {
            act(&mut chance, [&ours, &theirs]);
            if step % 20 == 0 {
                compare(&ours, &theirs, seed, step);
            }
        }
        ours.sync_all().expect("fsync");
        compare(&ours, &theirs, seed, 200);
    }
}

/// Makes the same random call on two files.
fn act(chance: &mut Chance, files: [&File; 2]) {
    let offset = chance.below(RANDOM_BYTES) as u64;
    let len = match chance.below(3) {
        0 => chance.below(100),
        1 => chance.below(20_000),
        _ => chance.below(2 * MIB),
    };
    let what = chance.below(20);
    let data = Pattern(chance.word()).bytes(len);
    for file in files {
        match what {
            0 => file.set_len(offset).expect("ftruncate"),
            1 => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(file, hole, offset, len.max(1) as u64).expect("fallocate");
            }
            2 => file.sync_data().expect("fdatasync"),
            _ => file.write_all_at(&data, offset).expect("pwrite"),
        }
    }
}

fn compare(ours: &File, theirs: &File, seed: u64, step: u64) {
    let read = |mut file: &File| {
        let mut all = Vec::new();
        file.seek(SeekFrom::Start(0)).expect("lseek");
        file.read_to_end(&mut all).expect("read");
        all
    };
    let (ours, theirs) = (read(ours), read(theirs));
    assert_eq!(ours.len(), theirs.len(), "seed {seed}, step {step}");
    let differs = ours.iter().zip(&theirs).position(|(one, other)| one != other);
    assert_eq!(differs, None, "seed {seed}, step {step}");
}

#[test]
fn appends_of_several_programs_lose_no_line() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    let path = mounted.path("log");
    thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let mut file = File::options().append(true).create(true).open(path).expect("open");
                for line in 0..100 {
                    let text = format!("{writer} {line} {}\n", "x".repeat(line));
                    file.write_all(text.as_bytes()).expect("append");
                }
            });
        }
    });
    let text = fs::read_to_string(&path).expect("read");
    let mut next = [0; 4];
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok()).expect("a whole line");
        let (writer, line) = (number(), number());
        assert_eq!(next[writer], line, "the lines of a writer are in order");
        assert_eq!(words.next().map(str::len), Some(line), "a line is whole");
        next[writer] += 1;
    }
    assert_eq!(next, [100; 4]);
}

#[test]
fn mapped_files_are_read_and_written() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    let path = mounted.path("mapped");
    let len = 3 * MIB;
    let mut expected = Pattern(1).bytes(len);
    fs::write(&path, &expected).expect("write");
    let file = File::options().read(true).write(true).open(&path).expect("open");
    let mut mapping = Mapping::new(&file, len, MapFlags::SHARED);
    assert!(mapping.bytes() == expected, "the map shows the file");
    mapping.bytes()[MIB - 3..MIB + 3].copy_from_slice(b"mapped");
    mapping.bytes()[len - 1] = 7;
    mapping.sync().expect("msync");
    drop(mapping);
    expected[MIB - 3..MIB + 3].copy_from_slice(b"mapped");
    expected[len - 1] = 7;
    drop(file);
    assert!(fs::read(&path).expect("read") == expected, "what was written through the map is there");
    mounted.unmount();
    let again = Mounted::new(&cluster, 0);
    assert!(fs::read(again.path("mapped")).expect("read") == expected, "at the home as well");
}

#[test]
fn stores_through_a_private_mapping_stay_with_their_program() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    let path = mounted.path("private");
    let (len, mut expected) = (2 * MIB, Pattern(2).bytes(2 * MIB));
    fs::write(&path, &expected).expect("write");
    let file = File::options().read(true).write(true).open(&path).expect("open");
    let [mut one, mut other] = [(); 2].map(|()| Mapping::new(&file, len, MapFlags::PRIVATE));
    assert!(one.bytes() == expected, "the map shows the file");
    one.bytes()[MIB - 3..MIB + 3].copy_from_slice(b"mapped");
    assert_eq!(&one.bytes()[MIB - 3..MIB + 3], b"mapped");
    one.sync().expect("msync");
    assert!(other.bytes() == expected, "another mapping shows the file");
    // A write to the file is seen where nothing was stored through the mapping.
    file.write_all_at(b"written", 10).expect("pwrite");
    expected[10..17].copy_from_slice(b"written");
    assert!(other.bytes() == expected);
    file.sync_all().expect("fsync");
    drop((one, other, file));
    assert!(fs::read(&path).expect("read") == expected, "nothing was stored to the file");
    mounted.unmount();
    let again = Mounted::new(&cluster, 0);
    assert!(fs::read(again.path("private")).expect("read") == expected, "nor to the home's");
}

#[test]
fn sparse_files_clones_and_direct_access_work() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().start();
    let mounted = Mounted::new(&cluster, 0);
    holes(&mounted);
    clones(&mounted);
    direct(&mounted);
}

fn holes(mounted: &Mounted) {
    let open = |name: &str| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).open(mounted.path(name)).expect("open")
    };
    let file = open("sparse");
    file.write_all_at(b"begin", 0).expect("pwrite");
    file.write_all_at(b"end", 1 << 40).expect("pwrite");
    assert_eq!(file.metadata().expect("fstat").len(), (1 << 40) + 3);
    assert_eq!(seek(&file, RawSeek::Hole(0)), Ok(5));
    assert_eq!(seek(&file, RawSeek::Data(5)), Ok(1 << 40));
    assert_eq!(seek(&file, RawSeek::Hole(1 << 40)), Ok((1 << 40) + 3));
    assert_eq!(seek(&file, RawSeek::Data((1 << 40) + 3)), Err(Errno::NXIO));
    let mut middle = [1; 100];
    file.read_exact_at(&mut middle, 1 << 39).expect("pread");
    assert_eq!(middle, [0; 100]);
    let far = open("far");
    far.write_all_at(b"x", 1 << 60).expect("one byte far away");
    assert_eq!(far.metadata().expect("fstat").len(), (1 << 60) + 1);
    let mut last = [0; 1];
    far.read_exact_at(&mut last, 1 << 60).expect("pread");
    assert_eq!(&last, b"x");
}

fn clones(mounted: &Mounted) {
    let data = Pattern(9).bytes(3 * MIB + 100);
    fs::write(mounted.path("source"), &data).expect("write");
    let source = File::open(mounted.path("source")).expect("open");
    let target = File::create_new(mounted.path("target")).expect("create");
    let (mut from, mut to, mut left) = (50, 0, data.len() - 50);
    while left > 0 {
        let copied = copy_file_range(&source, Some(&mut from), &target, Some(&mut to), left).expect("copy");
        assert_ne!(copied, 0, "the source has more");
        left -= copied;
    }
    drop(target);
    assert!(fs::read(mounted.path("target")).expect("read") == data[50..]);
    fs::remove_file(mounted.path("source")).expect("unlink");
    assert!(fs::read(mounted.path("target")).expect("read") == data[50..], "the copy stays");
    // The kernel copies bytes that have no room in the map of a file.
    for name in ["small", "other"] {
        fs::write(mounted.path(name), &data[..3000]).expect("write");
    }
    let source = File::open(mounted.path("small")).expect("open");
    let target = File::options().write(true).open(mounted.path("other")).expect("open");
    let (mut from, mut to) = (0, 3000);
    assert_eq!(copy_file_range(&source, Some(&mut from), &target, Some(&mut to), 3000), Ok(3000));
    drop(target);
    assert!(fs::read(mounted.path("other")).expect("read") == [&data[..3000], &data[..3000]].concat());
}

fn direct(mounted: &Mounted) {
    use std::os::unix::fs::OpenOptionsExt;
    let path = mounted.path("direct");
    let data = Pattern(3).bytes(2 * MIB);
    let flags = OFlags::DIRECT.bits() as i32;
    let file =
        File::options().read(true).write(true).create(true).truncate(true).custom_flags(flags).open(&path);
    let file = file.expect("open");
    file.write_all_at(&data, 0).expect("pwrite");
    let mut read = vec![0; data.len()];
    file.read_exact_at(&mut read, 0).expect("pread");
    assert!(read == data);
}
