//! Two mounts of one volume, by two nodes.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::panic::{catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use plasmon::wire::files::{Actor, FileAsked, FileOperation, ROOT_INODE};
use plasmon::wire::{BytesMut, Receiver, Reply, Request};
use plasmon_e2e::{Cluster, PATIENCE, Pattern, eventually};
use rustix::fs::{FallocateFlags, FlockOperation, copy_file_range, fallocate, flock};
use rustix::process::Signal;

use super::{Mounted, can_mount, unless_late};
use crate::support::{MIB, ask};

#[test]
fn what_one_mount_closed_the_other_opens() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    for (round, len) in [0, 10, 4097, 3 * MIB + 5, 20].into_iter().enumerate() {
        let (from, to) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let data = Pattern(round as u64).bytes(len);
        fs::write(from.path("shared"), &data).expect("write");
        assert!(fs::read(to.path("shared")).expect("read") == data, "round {round}");
    }
    // A part that is written anew leaves the rest as it is.
    fs::write(one.path("parts"), vec![1; 2 * MIB]).expect("write");
    let file = File::options().write(true).open(two.path("parts")).expect("open");
    file.write_all_at(&[2; 100], MIB as u64 - 50).expect("pwrite");
    file.sync_all().expect("fsync");
    drop(file);
    let read = fs::read(one.path("parts")).expect("read");
    assert!(read[..MIB - 50].iter().all(|byte| *byte == 1), "before");
    assert!(read[MIB - 50..MIB + 50].iter().all(|byte| *byte == 2), "the part");
    assert!(read[MIB + 50..].iter().all(|byte| *byte == 1) && read.len() == 2 * MIB, "behind");
}

#[test]
fn locks_wait_for_no_reads_that_wait_for_the_thread_of_a_mount() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let (one, two) = (Mounted::with(&cluster, 0, &["--threads", "1"]), Mounted::new(&cluster, 1));
    fs::write(two.path("file"), Pattern(1).bytes(8 * MIB)).expect("write");
    let file = |mounted: &Mounted| File::options().read(true).write(true).open(mounted.path("file"));
    let (reads, locks, writes) = (file(&one), file(&one), file(&two));
    let (reads, locks) = (reads.expect("open"), locks.expect("open"));
    let writes = writes.expect("open");
    let (locked, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut read = vec![0; 8 * MIB];
            while !over.load(Ordering::Relaxed) {
                reads.read_exact_at(&mut read, 0).expect("read");
            }
        });
        scope.spawn(|| {
            for round in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                // Each lock finds another version of the file.
                writes.write_all_at(&[round as u8; 100], 0).expect("write");
                writes.sync_all().expect("fsync");
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                flock(&locks, FlockOperation::LockExclusive).expect("nobody else locks");
                flock(&locks, FlockOperation::Unlock).expect("it is locked");
                locked.fetch_add(1, Ordering::Relaxed);
            }
        });
        let enough = catch_unwind(|| eventually("thirty locks", || locked.load(Ordering::Relaxed) >= 30));
        over.store(true, Ordering::Relaxed);
        if let Err(failure) = enough {
            // Threads that hang end with the mount.
            one.signal(Signal::KILL);
            resume_unwind(failure);
        }
    });
}

#[test]
fn names_made_by_one_mount_are_seen_by_the_other() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    assert_eq!(fs::metadata(two.path("new")).expect_err("not yet").kind(), ErrorKind::NotFound);
    fs::create_dir(one.path("new")).expect("mkdir");
    eventually("the other mount sees the name", || two.path("new").is_dir());
    File::create_new(two.path("new/file")).expect("create");
    // O_EXCL is decided by the home, whatever a mount remembers.
    let again = File::create_new(one.path("new/file")).expect_err("it is there");
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    fs::rename(two.path("new"), two.path("old")).expect("rename");
    eventually("the old name is gone", || !one.path("new").exists());
    assert!(one.path("old/file").exists());
}

#[test]
fn appends_of_two_hosts_lose_no_line() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let mounts = [Mounted::new(&cluster, 0), Mounted::new(&cluster, 1)];
    thread::scope(|scope| {
        for (writer, mounted) in mounts.iter().enumerate() {
            scope.spawn(move || {
                let mut file =
                    File::options().append(true).create(true).open(mounted.path("log")).expect("open");
                for line in 0..100 {
                    file.write_all(format!("{writer} {line}\n").as_bytes()).expect("append");
                }
            });
        }
    });
    for mounted in &mounts {
        let text = fs::read_to_string(mounted.path("log")).expect("read");
        for writer in 0..2 {
            let own: Vec<_> =
                text.lines().filter_map(|line| line.strip_prefix(&format!("{writer} "))).collect();
            let expected: Vec<String> = (0..100).map(|line| line.to_string()).collect();
            assert_eq!(own, expected);
        }
    }
}

#[test]
fn a_file_that_is_open_becomes_one_to_append_to() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    let mut file = File::create_new(one.path("log")).expect("create");
    file.write_all(b"one").expect("write");
    file.sync_all().expect("fsync");
    let mut other = File::options().append(true).open(two.path("log")).expect("open");
    other.write_all(b"two").expect("append");
    drop(other);
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND).expect("fcntl");
    file.write_all(b"three").expect("append");
    drop(file);
    assert_eq!(fs::read(two.path("log")).expect("read"), b"onetwothree");
}

/// Messages to sessions about changes that all nodes sent as homes: sent, confirmed and missed.
fn told(cluster: &Cluster, nodes: usize) -> [u64; 3] {
    let files = (0..nodes).map(|node| cluster.status(node).files);
    files.fold([0; 3], |[told, confirmed, missed], files| {
        [told + files.told, confirmed + files.confirmed, missed + files.missed]
    })
}

/// Checks that a host sees a change: at once, or late if a host did not confirm in time. Returns whether the
/// change was late.
fn sees(cluster: &Cluster, what: &str, seen: impl Fn() -> bool) -> bool {
    if seen() {
        return false;
    }
    let [_, _, missed] = told(cluster, 2);
    assert!(missed > 0, "not seen at once, though all confirmed: {what}");
    eventually(what, seen);
    true
}

#[test]
fn a_change_is_seen_at_once_by_a_host_that_has_just_looked() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    fs::create_dir(one.path("folder")).expect("mkdir");
    for round in 0..20 {
        let (by, other) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let (name, moved) = (format!("folder/{round}"), format!("folder/moved {round}"));
        let looks = |name: &str, there: bool| {
            assert_eq!(by.path(name).exists(), there, "{name} in round {round}, who changes it");
            sees(&cluster, &format!("{name} in round {round}"), || other.path(name).exists() == there);
        };
        looks(&name, false);
        File::create_new(by.path(&name)).expect("create");
        looks(&name, true);
        looks(&moved, false);
        fs::rename(by.path(&name), by.path(&moved)).expect("rename");
        looks(&name, false);
        looks(&moved, true);
        fs::remove_file(by.path(&moved)).expect("unlink");
        looks(&moved, false);
        let folder = |mounted: &Mounted| fs::metadata(mounted.path("folder")).expect("stat").modified();
        let changed = folder(by).expect("a time");
        sees(&cluster, &format!("the time of round {round}"), || folder(other).expect("a time") == changed);
    }
    let [sent, confirmed, _] = told(&cluster, 2);
    assert!(sent > 0 && confirmed > 0, "{sent} told, {confirmed} confirmed");
}

#[test]
fn attributes_and_bytes_are_those_of_the_last_change() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    fs::write(one.path("file"), vec![0; 10_000]).expect("write");
    let open = File::open(two.path("file")).expect("open");
    for round in 1..=20_u8 {
        let mode = 0o600 + u32::from(round % 8);
        let stat = || fs::metadata(two.path("file")).expect("stat");
        assert_eq!(stat().len(), 10_000 * u64::from(round));
        fs::set_permissions(one.path("file"), PermissionsExt::from_mode(mode)).expect("chmod");
        sees(&cluster, &format!("the mode of round {round}"), || stat().mode() & 0o777 == mode);
        let mut file = File::options().append(true).open(one.path("file")).expect("open");
        file.write_all(&vec![round; 10_000]).expect("append");
        drop(file);
        let len = 10_000 * (u64::from(round) + 1);
        sees(&cluster, &format!("{len} bytes"), || open.metadata().expect("fstat").len() == len);
    }
    let file = File::options().write(true).open(one.path("file")).expect("open");
    file.set_len(7).expect("truncate");
    sees(&cluster, "the new end", || fs::metadata(two.path("file")).expect("stat").len() == 7);
    // A session that has the file open hears of its bytes as well, though nobody waits for it.
    file.write_all_at(&[9; 7], 0).expect("pwrite");
    file.sync_all().expect("fsync");
    eventually("the new bytes are read", || {
        let mut read = [0; 7];
        open.read_exact_at(&mut read, 0).is_ok() && read == [9; 7]
    });
}

#[test]
fn a_host_that_is_stopped_delays_nobody_for_long_and_forgets() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    let kept = two.path("kept");
    eventually("the other host has looked just before it was stopped", || {
        // Kept answers are over after a second, which a busy machine may need.
        fs::write(one.path("kept"), "x").expect("write");
        assert!(kept.exists());
        two.signal(Signal::STOP);
        fs::remove_file(one.path("kept")).expect("unlink");
        let [_, _, missed] = told(&cluster, 2);
        if missed == 0 {
            two.signal(Signal::CONT);
        }
        missed > 0
    });
    // Nobody waits for it any more, whatever it has looked at.
    let [_, _, missed] = told(&cluster, 2);
    for name in 0..50 {
        fs::write(one.path(&format!("new {name}")), "x").expect("write");
    }
    assert_eq!(told(&cluster, 2)[2], missed);
    two.signal(Signal::CONT);
    eventually("it sees the change", || !kept.exists());
    assert!((0..50).all(|name| two.path(&format!("new {name}")).exists()));
}

#[test]
fn more_mounts_than_are_listed_see_changes_at_once() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("256MiB").start();
    let mounts: Vec<_> = (0..10).map(|mount| Mounted::new(&cluster, mount % 2)).collect();
    for round in 0..4 {
        let (name, by) = (format!("name {round}"), &mounts[round * 3 % mounts.len()]);
        assert!(mounts.iter().all(|mounted| !mounted.path(&name).exists()), "round {round}");
        File::create_new(by.path(&name)).expect("create");
        assert!(mounts.iter().all(|mounted| mounted.path(&name).exists()), "round {round}");
        fs::remove_file(by.path(&name)).expect("unlink");
        assert!(mounts.iter().all(|mounted| !mounted.path(&name).exists()), "round {round}");
    }
}

/// Session that keeps what it is told, and says what it likes.
struct RogueSession {
    stream: UnixStream,
    receiver: Receiver,
    volume: u32,
    numbers: u64,
    /// Connection that follows the session.
    follower: UnixStream,
}

impl RogueSession {
    fn connect(cluster: &Cluster, node: usize) -> (UnixStream, Receiver) {
        let mut stream = UnixStream::connect(cluster.socket(node)).expect("the daemon listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is not zero");
        let mut receiver = Receiver::default();
        ask(&mut stream, &mut receiver, &Request::Hello { name: "rogue".to_owned() });
        (stream, receiver)
    }

    fn attach(cluster: &Cluster, node: usize) -> Self {
        let (mut stream, mut receiver) = Self::connect(cluster, node);
        let (name, again) = ("main".to_owned(), None);
        let attach = |name, again| Request::AttachVolume {
            name,
            create: false,
            read_only: false,
            checked: false,
            again,
        };
        let attached = ask(&mut stream, &mut receiver, &attach(name, again)).0;
        let Reply::VolumeAttached { volume, session, secret, info, .. } = attached else {
            panic!("{attached:?}")
        };
        let (mut follower, mut heard) = Self::connect(cluster, node);
        let watch = |secret| Request::WatchVolume { volume: info.number, session, secret };
        let refused = ask(&mut follower, &mut heard, &watch(secret ^ 1)).0;
        assert!(matches!(refused, Reply::Failed { .. }), "{refused:?}");
        let (mut other, mut told) = Self::connect(cluster, node);
        let again = attach("main".to_owned(), Some((session, secret ^ 1)));
        let fresh = ask(&mut other, &mut told, &again).0;
        assert!(matches!(fresh, Reply::VolumeAttached { fresh: true, .. }), "{fresh:?}");
        let begun = ask(&mut follower, &mut heard, &watch(secret)).0;
        assert!(matches!(begun, Reply::VolumeStale { number: 0, .. }), "{begun:?}");
        Self { stream, receiver, volume, numbers: 0, follower }
    }

    /// Looks a name up. Returns the number of milliseconds for which the session may keep the answer.
    fn look(&mut self, name: &str) -> u32 {
        self.numbers += 1;
        let operation = FileOperation::Lookup { folder: ROOT_INODE, name: name.to_owned().into() };
        let (number, answered) = (self.numbers, self.numbers);
        let asked = FileAsked { number, answered, actor: Actor::default(), operation };
        let on_file = Request::OnFile { volume: self.volume, asked };
        match ask(&mut self.stream, &mut self.receiver, &on_file).0 {
            Reply::FileDone(answer) => answer.valid_ms,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for an operation on a volume that it is not attached to.
    fn look_elsewhere(&mut self) {
        let (number, operation) = (1, FileOperation::Usage);
        let asked = FileAsked { number, answered: number, actor: Actor::default(), operation };
        let on_file = Request::OnFile { volume: self.volume + 1, asked };
        let refused = ask(&mut self.stream, &mut self.receiver, &on_file).0;
        assert!(matches!(refused, Reply::Failed { .. }), "{refused:?}");
    }

    /// Confirms all messages that there may be, and some that there are not.
    fn confirm_all(&mut self) {
        let mut out = BytesMut::new();
        for number in (0..100).chain([u64::MAX]) {
            Request::ConfirmStale { number }.encode(1000 + number % 1000, &mut out);
        }
        self.follower.write_all(&out).expect("the node reads");
    }
}

#[test]
fn confirmations_that_are_forged_or_never_sent_harm_nobody_else() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    let mut rogues = [RogueSession::attach(&cluster, 0), RogueSession::attach(&cluster, 1)];
    rogues[1].look_elsewhere();
    eventually("who asks for what is another's is named once", || {
        let lines = |node: usize, what: &str| {
            cluster.log(node).lines().filter(|line| line.contains(what) && line.contains("uid=0")).count()
        };
        // Each rogue is a session of the home.
        [lines(0, "asks to follow"), lines(1, "asks to follow"), lines(1, "that it is not attached to")]
            == [1; 3]
            && lines(0, "does not have its secret") == 2
    });
    let (mut kept, mut late) = (0, 0);
    for round in 0..20 {
        let name = format!("name {round}");
        assert!(!two.path(&name).exists());
        kept += rogues.iter_mut().map(|rogue| u64::from(rogue.look(&name) > 0)).sum::<u64>();
        rogues[0].confirm_all();
        File::create_new(one.path(&name)).expect("create");
        late += u32::from(sees(&cluster, &name, || two.path(&name).exists()));
    }
    assert!((2..40).contains(&kept), "what is not confirmed is given for a while only: {kept}");
    let [_, _, missed] = told(&cluster, 2);
    assert!(missed > 0, "one never confirms");
    for round in 0..20 {
        let name = format!("name {round}");
        assert!(two.path(&name).exists(), "round {round}");
        fs::remove_file(one.path(&name)).expect("unlink");
        late += u32::from(sees(&cluster, &name, || !two.path(&name).exists()));
    }
    // After one that was missed nothing is given for 10 s.
    assert!(late < 10, "{late} of 40 changes did not wait for who confirms");
}

#[test]
fn names_that_others_make_in_a_folder_of_ones_own_are_seen() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).start();
    let (one, two) = (Mounted::new(&cluster, 1), Mounted::new(&cluster, 0));
    fs::create_dir(one.path("own")).expect("mkdir");
    for round in 0..20 {
        let (own, others) = (format!("own/{round}"), format!("own/other {round}"));
        assert!(!one.path(&own).exists(), "round {round}");
        File::create_new(one.path(&own)).expect("create");
        assert!(one.path(&own).exists() && two.path(&own).exists(), "round {round}");
        assert!(!one.path(&others).exists(), "round {round}");
        File::create_new(two.path(&others)).expect("create");
        assert!(one.path(&others).exists(), "round {round}");
        let len = |mounted: &Mounted| fs::read_dir(mounted.path("own")).expect("opendir").count();
        assert_eq!((len(&one), len(&two)), (2 * round + 2, 2 * round + 2));
        let folder = |mounted: &Mounted| fs::metadata(mounted.path("own")).expect("stat");
        assert_eq!(folder(&one).modified().expect("a time"), folder(&two).modified().expect("a time"));
        if round % 5 == 4 {
            fs::rename(one.path(&own), renamed(&one, round)).expect("rename");
            fs::remove_file(one.path(&others)).expect("unlink");
            File::create_new(one.path(&others)).expect("create");
            fs::rename(renamed(&one, round), one.path(&own)).expect("rename");
            fs::set_permissions(one.path("own"), PermissionsExt::from_mode(0o700)).expect("chmod");
            assert_eq!(folder(&one).mode() & 0o777, 0o700);
            fs::set_permissions(two.path("own"), PermissionsExt::from_mode(0o755)).expect("chmod");
            assert_eq!(folder(&one).mode() & 0o777, 0o755);
        }
    }
}

/// Path of a file that was made in a round, after its rename.
fn renamed(mounted: &Mounted, round: usize) -> PathBuf {
    mounted.path(&format!("own/renamed {round}"))
}

#[test]
fn what_programs_do_on_a_host_that_is_not_the_home_costs_few_questions() {
    if !can_mount() {
        return;
    }
    /// Number of files.
    const FILES: u64 = 50;
    let cluster = Cluster::builder().nodes(2).start();
    let (_home, far) = (Mounted::new(&cluster, 0), Mounted::new(&cluster, 1));
    fs::create_dir_all(far.path("one/two")).expect("mkdir");
    let path = |file: u64| far.path(&format!("one/two/{file}"));
    let costs = |what: &str, most: u64, run: &dyn Fn(u64)| {
        let before = cluster.status(1).files.asked;
        (0..FILES).for_each(run);
        let asked = cluster.status(1).files.asked - before;
        // Each second the names of the path are asked for anew.
        assert!(asked < most * FILES, "{what} of {FILES} files took {asked} questions");
    };
    // Making a file and committing its bytes.
    costs("writing", 4, &|file| fs::write(path(file), [7; 4000]).expect("write"));
    // Looking the name up and opening the file, which brings the bytes along.
    costs("reading", 4, &|file| assert_eq!(fs::read(path(file)).expect("read"), [7; 4000]));
    costs("looking again", 1, &|_| assert_eq!(fs::metadata(path(0)).expect("stat").len(), 4000));
    costs("removing", 4, &|file| fs::remove_file(path(file)).expect("unlink"));
    costs("looking for what is not there", 1, &|_| assert!(!path(0).exists()));
}

#[test]
fn what_was_written_before_another_host_cuts_the_file_does_not_come_back() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let mounts = [Mounted::new(&cluster, 0), Mounted::new(&cluster, 1)];
    for (round, len) in [100, 5_000, 300_000, 3 * MIB + 5].into_iter().enumerate() {
        let data = Pattern(round as u64).bytes(len);
        // By the host of the home and by the other one, to nothing and to something.
        let cut = |writer: usize, left: u64, attempt: usize| {
            let name = format!("{len}-{writer}-{left}-{attempt}");
            let (writer, cutter) = (&mounts[writer], &mounts[1 - writer]);
            let file = File::options().read(true).write(true).create_new(true).open(writer.path(&name));
            let file = file.expect("create");
            file.write_all_at(&data, 0).expect("write");
            // The written bytes are not synced, and of a length that the other host does not know.
            let mut cut = File::options();
            let cut = cut.write(true).truncate(left == 0).open(cutter.path(&name)).expect("open");
            cut.set_len(left).expect("truncate");
            assert_eq!(cut.metadata().expect("stat").len(), left, "{name}");
            file.sync_all().expect("fsync");
            for mounted in &mounts {
                let read = fs::read(mounted.path(&name)).expect("read");
                assert!(read == data[..left as usize], "{name}: {} bytes are there", read.len());
            }
            // Bytes that are written afterwards stay.
            file.write_all_at(b"after", 20).expect("write");
            drop((file, cut));
            let expected = [&data[..left as usize], &vec![0; 20 - left as usize], b"after"].concat();
            assert_eq!(fs::read(cutter.path(&name)).expect("read"), expected, "{name}");
        };
        for (writer, left) in [(0, 0), (1, 0), (0, 10), (1, 10)] {
            unless_late(&cluster, |attempt| cut(writer, left, attempt));
        }
    }
}

/// Something that a host does to bytes from 10 on of a file that another host has written.
type Takes = (&'static str, fn(&File, &File, u64));

#[test]
fn what_was_written_before_another_host_makes_a_hole_or_clones_does_not_come_back() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::builder().nodes(2).memory("128MiB").start();
    let mounts = [Mounted::new(&cluster, 0), Mounted::new(&cluster, 1)];
    let takes: [Takes; 3] = [
        ("hole", |file, _, len| {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, hole, 10, len - 10).expect("fallocate");
        }),
        ("zeros", |file, _, len| {
            fallocate(file, FallocateFlags::ZERO_RANGE, 10, len - 10).expect("fallocate");
        }),
        ("clone", |file, zeros, len| {
            let copied = copy_file_range(zeros, None, file, Some(&mut 10), len as usize - 10);
            assert_eq!(copied, Ok(len as usize - 10));
        }),
    ];
    for (len, writer) in [(100, 0), (5_000, 1), (300_000, 0), (3 * MIB + 5, 1)] {
        let data = Pattern(len as u64).bytes(len);
        let (writer, taker) = (&mounts[writer], &mounts[1 - writer]);
        let take = |(what, take): Takes, attempt: usize| {
            let name = format!("{what}-{len}-{attempt}");
            let zeros = taker.path("zeros");
            fs::write(&zeros, vec![0; len]).expect("write");
            let zeros = File::open(zeros).expect("open");
            let file = File::create_new(writer.path(&name)).expect("create");
            file.write_all_at(&data, 0).expect("write");
            // The written bytes are not synced.
            let other = File::options().write(true).open(taker.path(&name)).expect("open");
            take(&other, &zeros, len as u64);
            file.sync_all().expect("fsync");
            let expected = [&data[..10], &vec![0; len - 10]].concat();
            for mounted in &mounts {
                assert!(fs::read(mounted.path(&name)).expect("read") == expected, "{name}");
            }
            // Bytes that are written afterwards stay.
            file.write_all_at(b"after", 20).expect("write");
            drop((file, other));
            let expected = [&expected[..20], b"after", &expected[25..]].concat();
            assert!(fs::read(taker.path(&name)).expect("read") == expected, "{name}");
        };
        for one in takes {
            unless_late(&cluster, |attempt| take(one, attempt));
        }
    }
}
