//! Files and folders that are removed or replaced while others use them, on the same mount and on another.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plasmon_e2e::wait::let_pass;
use plasmon_e2e::{Cluster, Pattern};
use rustix::fs::{Mode, OFlags, openat};

use super::mapping::Mapping;
use super::{Mounted, can_mount, unless_late};
use crate::commands::json;
use crate::support::MIB;

/// Number of times that each mount tries each of two names: 100,000 opens in all at length.
fn tries() -> u64 {
    if std::env::var_os("PLASMON_E2E_LONG").is_some() { 25_000 } else { 1_000 }
}

/// Makes a name stand for another file again and again, until `over`. Returns how often.
fn replace(folder: &Path, over: &AtomicBool) -> u64 {
    let (new, name, link) = (folder.join("new"), folder.join("name"), folder.join("link"));
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        count += 1;
        fs::write(&new, content(count)).expect("write");
        fs::rename(&new, &name).expect("rename");
        symlink("name", &new).expect("symlink");
        fs::rename(&new, &link).expect("rename");
    }
    count
}

fn content(count: u64) -> String {
    // Some are objects, and some lie in the map of the file.
    format!("{count:0>width$}", width = if count.is_multiple_of(2) { 20 } else { 6000 })
}

/// Opens, reads and looks at a name that others replace.
fn use_name(folder: &Path) -> io::Result<()> {
    for name in ["name", "link"] {
        let mut file = File::open(folder.join(name))?;
        let len = file.metadata()?.len();
        let mut read = String::new();
        file.read_to_string(&mut read)?;
        let count = read.trim_start_matches('0').parse().expect("it is a number");
        assert!(read == content(count) && len == read.len() as u64, "{len} and {}", read.len());
        fs::metadata(folder.join(name))?;
        fs::symlink_metadata(folder.join(name))?;
    }
    fs::read_link(folder.join("link")).map(drop)
}

#[test]
fn a_name_that_is_replaced_again_and_again_can_always_be_opened() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let mounts = [Mounted::new(&cluster, 0), Mounted::new(&cluster, 1)];
    fs::write(mounts[0].path("name"), content(1)).expect("write");
    symlink("name", mounts[0].path("link")).expect("symlink");
    let (over, failed, begun) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        let writer = scope.spawn(|| replace(mounts[0].root(), &over));
        let readers = mounts.each_ref().map(|mounted| {
            scope.spawn(|| {
                for number in 0..tries() {
                    if let Err(error) = use_name(mounted.root()) {
                        eprintln!("try {number}: {error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        let ended = readers.map(|reader| reader.join());
        over.store(true, Ordering::Relaxed);
        let count = writer.join().expect("replacing does not fail");
        let rate = 2.0 * count as f64 / begun.elapsed().as_secs_f64();
        eprintln!("{} opens beside {rate:.0} replaces a second", 4 * tries());
        assert!(ended.iter().all(Result::is_ok) && count > 100, "{count}");
    });
    assert_eq!(failed.into_inner(), 0, "of {} tries on each mount", tries());
}

/// Makes a tree of folders with files.
fn make_tree(top: &Path) {
    for outer in 0..8 {
        for inner in 0..8 {
            let folder = top.join(format!("outer{outer}/inner{inner}"));
            fs::create_dir_all(&folder).expect("mkdir");
            for file in 0..12 {
                File::create_new(folder.join(format!("file{file}"))).expect("create");
            }
        }
    }
}

#[test]
fn two_hosts_remove_one_tree_at_once() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let mounts = [Mounted::new(&cluster, 0), Mounted::new(&cluster, 1)];
    for round in 0..3 {
        let tree = format!("tree{round}");
        make_tree(&mounts[0].path(&tree));
        let begin = Barrier::new(2);
        thread::scope(|scope| {
            for mounted in &mounts {
                scope.spawn(|| {
                    let mut rm = Command::new("rm");
                    rm.arg("-rf").arg(mounted.path(&tree)).stdout(Stdio::null());
                    begin.wait();
                    let done = rm.output().expect("rm runs");
                    let said = String::from_utf8_lossy(&done.stderr);
                    assert!(done.status.success(), "round {round}: {said}");
                });
            }
        });
        assert!(mounts.iter().all(|mounted| !mounted.path(&tree).exists()));
    }
}

#[test]
fn a_folder_that_is_open_and_removed_has_neither_links_nor_names() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    for folder in ["removed", "replaced"] {
        fs::create_dir(one.path(folder)).expect("mkdir");
    }
    fs::create_dir(one.path("other")).expect("mkdir");
    let open = |mounted: &Mounted, folder: &str| File::open(mounted.path(folder)).expect("open");
    let opened: Vec<_> = [&one, &two]
        .into_iter()
        .flat_map(|mounted| ["removed", "replaced"].map(|folder| open(mounted, folder)))
        .collect();
    fs::remove_dir(one.path("removed")).expect("rmdir");
    fs::rename(one.path("other"), one.path("replaced")).expect("rename");
    let check = |when: &str| {
        for (number, folder) in opened.iter().enumerate() {
            let what = format!("folder {number} {when}");
            assert_eq!(folder.metadata().expect(&what).nlink(), 0, "{what}");
            let names = rustix::fs::Dir::read_from(folder)
                .expect(&what)
                .map(|entry| entry.map(|entry| entry.file_name().to_owned()).expect(&what));
            assert!(names.into_iter().all(|name| name.to_bytes().starts_with(b".")), "{what}");
            let mode = Mode::from_raw_mode(0o644);
            for flags in [OFlags::RDONLY, OFlags::CREATE | OFlags::WRONLY, OFlags::DIRECTORY] {
                let refused = openat(folder, "name", flags, mode).expect_err(&what);
                assert_eq!(refused, rustix::io::Errno::NOENT, "{what}");
            }
            let refused = rustix::fs::mkdirat(folder, "name", Mode::from_raw_mode(0o755));
            assert_eq!(refused, Err(rustix::io::Errno::NOENT), "{what}");
            let refused = rustix::fs::unlinkat(folder, "name", rustix::fs::AtFlags::empty());
            assert_eq!(refused, Err(rustix::io::Errno::NOENT), "{what}");
            let refused = rustix::fs::renameat(rustix::fs::CWD, one.path("replaced"), folder, "name");
            assert!(number > 1 || refused == Err(rustix::io::Errno::NOENT), "{what}: {refused:?}");
        }
    };
    check("at once");
    let_pass(Duration::from_secs(4), "the home keeps a removed folder that nobody has open for 2 s");
    check("later");
    drop(opened);
    assert_eq!(fs::read_dir(two.path("replaced")).expect("opendir").count(), 0);
}

#[test]
fn a_time_that_is_set_stays_when_earlier_bytes_are_committed_later() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    let long_ago = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    unless_late(&cluster, |attempt| {
        let name = format!("file{attempt}");
        let mut file = File::create_new(one.path(&name)).expect("create");
        file.write_all(b"some bytes").expect("write");
        let other = File::options().write(true).open(two.path(&name)).expect("open");
        other.set_modified(long_ago).expect("utimens");
        fs::set_permissions(two.path(&name), fs::Permissions::from_mode(0o4755)).expect("chmod");
        drop(file);
        for mounted in [&one, &two] {
            let told = fs::metadata(mounted.path(&name)).expect("stat");
            assert_eq!(told.modified().expect("a time"), long_ago);
            assert_eq!((told.len(), told.mode() & 0o7777), (10, 0o4755));
        }
        // What is written later counts.
        let mut file = File::options().append(true).open(one.path(&name)).expect("open");
        file.write_all(b"more").expect("write");
        drop(file);
        let told = fs::metadata(two.path(&name)).expect("stat");
        assert!(told.modified().expect("a time") > long_ago && told.len() == 14);
    });
}

#[test]
fn a_file_is_changed_no_earlier_than_it_was_written() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let mounts = [Mounted::new(&cluster, 0), Mounted::new(&cluster, 1)];
    let times = |path: &Path| {
        let told = fs::metadata(path).expect("stat");
        let changed = UNIX_EPOCH + Duration::new(told.ctime() as u64, told.ctime_nsec() as u32);
        (told.modified().expect("a time"), changed)
    };
    for number in 0..50 {
        let mounted = &mounts[number % 2];
        let path = mounted.path(&format!("file{number}"));
        let mut file = File::create_new(&path).expect("create");
        let before = SystemTime::now();
        file.write_all(&Pattern(1).bytes(if number % 3 == 0 { 10 } else { 5000 })).expect("write");
        let (written, changed) = times(&path);
        assert!(written <= changed && before <= written, "{written:?} and {changed:?}, open");
        drop(file);
        let (closed, changed) = times(&path);
        assert!(written <= closed && closed <= changed, "{closed:?} and {changed:?}, closed");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        assert!(times(&path).1 >= changed, "a change of the mode is later");
    }
}

#[test]
fn a_list_ends_while_its_entries_are_renamed() {
    if !can_mount() {
        return;
    }
    const FILES: usize = 2_000;
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    fs::create_dir(one.path("folder")).expect("mkdir");
    for number in 0..FILES {
        File::create_new(one.path(&format!("folder/{number}"))).expect("create");
    }
    for (lists, renames) in [(&two, &one), (&one, &one)] {
        let mut seen: Vec<OsString> = Vec::new();
        let list = fs::read_dir(lists.path("folder")).expect("opendir");
        // Each entry that was listed gets a new name at once, which comes behind those of before.
        for entry in list {
            let name = entry.expect("readdir").file_name();
            let (from, mut to) = (renames.path("folder").join(&name), name.clone());
            to.push("+");
            match fs::rename(from, renames.path("folder").join(to)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                renamed => renamed.expect("rename"),
            }
            seen.push(name);
            assert!(seen.len() <= FILES, "the list does not end");
        }
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), FILES, "each once");
    }
    // A name that is replaced is listed, although it stands for a new file.
    let mut list = fs::read_dir(two.path("folder")).expect("opendir");
    let first = list.next().expect("there are entries").expect("readdir").file_name();
    fs::write(one.path("new"), "new").expect("write");
    let last = fs::read_dir(one.path("folder")).expect("opendir").last().expect("there are entries");
    let last = last.expect("readdir").file_name();
    fs::rename(one.path("new"), one.path("folder").join(&last)).expect("rename");
    let rest: Vec<_> = list.map(|entry| entry.expect("readdir").file_name()).collect();
    assert!(first != last && rest.contains(&last) && rest.len() == FILES - 1, "{} are listed", rest.len());
}

#[test]
fn room_of_files_that_were_read_closed_and_removed_is_free_at_once() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let capacity = (8 * MIB).to_string();
    json(&cluster, 0, &["volume", "create", "small", "--capacity", &capacity]);
    let mounts = [0, 1].map(|node| Mounted::with(&cluster, node, &["--volume", "small"]));
    let write = |mounted: &Mounted, name: &str, seed| {
        let mut file = File::create_new(mounted.path(name)).expect("create");
        for piece in Pattern(seed).bytes(8 * MIB).chunks(MIB) {
            file.write_all(piece).expect("there is room");
        }
        file.sync_all().expect("it was accepted");
    };
    for round in 0..6 {
        // Another host reads the file in some rounds, and removes it in others.
        let [writes, reads, removes] =
            [round / 2, round / 3, round].map(|number: u64| &mounts[number as usize % 2]);
        write(writes, "file", round);
        assert_eq!(fs::read(reads.path("file")).expect("read").len(), 8 * MIB);
        fs::remove_file(removes.path("file")).expect("unlink");
    }
    // A file that has lost its name before it is closed.
    write(&mounts[0], "file", 7);
    let mut open = File::open(mounts[0].path("file")).expect("open");
    fs::remove_file(mounts[0].path("file")).expect("unlink");
    open.read_exact(&mut [0; 10]).expect("it is open");
    drop(open);
    write(&mounts[0], "again", 8);
}

#[test]
fn nodes_without_memory_get_back_that_of_removed_files_at_once() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().memory("64MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    for round in 0..8 {
        let path = mounted.path(&format!("file{round}"));
        let mut file = File::create_new(&path).expect("create");
        for piece in Pattern(round).bytes(40 * MIB).chunks(MIB) {
            file.write_all(piece).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        file.sync_all().unwrap_or_else(|error| panic!("round {round}: {error}"));
        let read = fs::read(&path).expect("read");
        Pattern(round).check(&read);
        drop(file);
        fs::remove_file(&path).expect("unlink");
    }
}

/// Writes to one file by a mapping and by calls, a page each, as do other threads that have opened it.
fn scribble(path: &Path, number: usize, threads: usize, pages: usize) -> io::Result<()> {
    const PAGE: usize = 4096;
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    file.set_len((pages * PAGE) as u64)?;
    let mut mapping = Mapping::new(&file, pages * PAGE, rustix::mm::MapFlags::SHARED);
    for page in 0..pages {
        let (at, byte) = (page * PAGE + number * (PAGE / threads), number as u8 + 1);
        if number.is_multiple_of(2) {
            mapping.bytes()[at..at + 8].fill(byte);
        } else {
            file.write_all_at(&[byte; 8], at as u64)?;
        }
    }
    Ok(())
}

#[test]
fn files_that_threads_write_close_and_remove_are_nothing_to_warn_of() {
    if !can_mount() {
        return;
    }
    const THREADS: usize = 8;
    const PAGES: usize = 2_048;
    let rounds = if std::env::var_os("PLASMON_E2E_LONG").is_some() { 30 } else { 3 };
    let cluster = Cluster::builder().memory("256MiB").start();
    let mounted = Mounted::new(&cluster, 0);
    for round in 0..rounds {
        let path = mounted.path(&format!("file{round}"));
        thread::scope(|scope| {
            for number in 0..THREADS {
                let path = &path;
                scope.spawn(move || scribble(path, number, THREADS, PAGES).expect("the file can be written"));
            }
        });
        let read = fs::read(&path).expect("read");
        let part = 4096 / THREADS;
        for (number, bytes) in read.chunks(part).enumerate() {
            let byte = (number % THREADS) as u8 + 1;
            assert_eq!(bytes[..8], [byte; 8], "part {number} in round {round}");
        }
        fs::remove_file(&path).expect("unlink");
        // The same again, while the name goes.
        thread::scope(|scope| {
            for number in 0..THREADS {
                let path = &path;
                scope.spawn(move || {
                    scribble(path, number, THREADS, 256).expect("the file can be written");
                    let _ = fs::remove_file(path);
                });
            }
        });
    }
    mounted.unmount();
    let log = fs::read_to_string(cluster.folder().join("mount.log")).expect("the log of the mount");
    assert!(!log.contains("lost"), "{log}");
    let log = cluster.log(0);
    assert!(!log.contains("which is refused"), "{log}");
}
