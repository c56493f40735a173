//! Tests of locks of files, between sessions.

use plasmon::wire::files::{Errno, FileOperation, FileOutcome, LockKind, LockRange};

use super::*;
use crate::files::opens::MAX_TOLD;
use crate::files::state::Opens;

fn lock(inode: u64, kind: LockKind, start: u64, end: u64) -> FileOperation {
    let range = LockRange { owner: 5, pid: 77, start, end, kind, flock: false };
    FileOperation::Lock { inode, range, wait: false }
}

#[test]
fn sessions_keep_each_other_from_locking() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let root = Actor::default();
    let exclusive = lock(file, LockKind::Exclusive, 0, 9);
    assert_eq!(bench.run(exclusive.clone()).map(drop), Err(Errno::NotOpen));
    let second = bench.attach(true);
    let open = FileOperation::Open { inode: file, read: true, write: true, truncate: false, maps: false };
    for session in [1, second] {
        bench.act(session, &root, open.clone()).unwrap();
    }
    bench.run(exclusive.clone()).unwrap();
    assert_eq!(bench.act(second, &root, exclusive.clone()).map(drop), Err(Errno::Again));
    bench.act(second, &root, lock(file, LockKind::Exclusive, 10, u64::MAX)).unwrap();
    let FileOperation::Lock { range, .. } = exclusive else { panic!() };
    let test = FileOperation::TestLock { inode: file, range };
    let Ok(FileOutcome::Locked(Some(found))) = bench.act(second, &root, test) else { panic!() };
    assert_eq!((found.pid, found.start, found.end), (77, 0, 9));
    assert_eq!(bench.run(lock(file, LockKind::Shared, 9, 3)).map(drop), Err(Errno::Invalid));
    bench.run(lock(file, LockKind::Unlocked, 0, u64::MAX)).unwrap();
    bench.act(second, &root, lock(file, LockKind::Shared, 0, 9)).unwrap();
    bench.run(lock(file, LockKind::Shared, 0, 9)).unwrap();
    assert_eq!(bench.run(lock(file, LockKind::Exclusive, 0, 9)).map(drop), Err(Errno::Again));
    // The locks of a session end with the session.
    bench.end(second);
    bench.run(lock(file, LockKind::Exclusive, 0, u64::MAX)).unwrap();
    bench.run(lock(file, LockKind::Unlocked, 0, u64::MAX)).unwrap();
    assert!(bench.state.locks.is_empty());
}

#[test]
fn opens_locks_and_outcomes_are_memory() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let (before, limits) = (bench.state.memory, bench.limits);
    bench.open(file).unwrap();
    bench.run(lock(file, LockKind::Exclusive, 0, 9)).unwrap();
    let whole = bench.state.memory;
    bench.run(lock(file, LockKind::Unlocked, 3, 5)).unwrap();
    assert!(before < whole && whole < bench.state.memory, "there are two locks now");
    bench.limits.memory = bench.state.memory;
    assert_eq!(bench.run(lock(file, LockKind::Shared, 20, 30)).map(drop), Err(Errno::TooManyLocks));
    bench.run(lock(file, LockKind::Unlocked, 0, u64::MAX)).unwrap();
    bench.close(file);
    assert_eq!(bench.state.memory, before);
    // Opens, locks and outcomes of a session end with the session.
    bench.limits = limits;
    let second = bench.attach(true);
    let open = FileOperation::Open { inode: file, read: true, write: true, truncate: false, maps: false };
    for operation in [open, lock(file, LockKind::Exclusive, 0, 9)] {
        bench.act(second, &Actor::default(), operation).unwrap();
    }
    let held = bench.state.memory;
    for number in 1..=4 {
        bench.state.apply(Change::Note { session: second, number, outcome: FileOutcome::Done });
    }
    let noted = bench.state.memory;
    bench.state.apply(Change::Answered { session: second, number: 4 });
    assert!(held < bench.state.memory && bench.state.memory < noted, "one outcome is kept");
    bench.end(second);
    assert_eq!(bench.state.memory, before);
}

#[test]
fn without_memory_a_session_opens_few_files() {
    let mut bench = Bench::new();
    let files: Vec<_> = (0..1025).map(|number| bench.make_file(TOP, &format!("{number}"))).collect();
    bench.limits.memory = 0;
    for file in &files[..1024] {
        bench.open(*file).unwrap();
    }
    assert_eq!(bench.open(files[1024]).map(drop), Err(Errno::Full));
    bench.open(files[0]).expect("it is open");
    bench.close(files[1]);
    bench.open(files[1024]).unwrap();
}

#[test]
fn a_session_opens_no_more_files_than_it_may_tell_of() {
    let mut bench = Bench::new();
    let file = bench.make_file(TOP, "a");
    let session = bench.state.sessions.get_mut(&1).expect("it is attached");
    let opens = Opens { count: 1, writes: false, maps: 0 };
    session.opens.extend((1 << 40..).take(MAX_TOLD).map(|inode| (inode, opens)));
    assert_eq!(bench.open(file).map(drop), Err(Errno::Full));
    for name in ["new", ""] {
        assert_eq!(bench.run(create(TOP, name, true)).map(drop), Err(Errno::Full), "'{name}'");
    }
    let session = bench.state.sessions.get_mut(&1).expect("it is attached");
    session.opens.pop_first();
    bench.run(create(TOP, "new", true)).expect("it has one less");
}
