//! Tests of objects that are written, read back, recovered after a restart, and forgotten.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;
use std::sync::mpsc;

use super::*;
use crate::spill::{CHUNK_BYTES, MAX_FILE_BYTES, OWN_FILE_BYTES};

/// Sizes in bytes around every bound of the format.
const SIZES: [usize; 16] = [
    0,
    1,
    8,
    100,
    4000,
    4096,
    (64 << 10) - 97,
    64 << 10,
    CHUNK_BYTES - 96,
    CHUNK_BYTES - 95,
    CHUNK_BYTES,
    CHUNK_BYTES + 1,
    2 * CHUNK_BYTES + 7,
    1 << 20,
    OWN_FILE_BYTES as usize - 4096,
    OWN_FILE_BYTES as usize + 1,
];

#[test]
fn objects_are_read_in_parts() {
    const PART_BYTES: usize = 65_000;
    let mut bench = Bench::new();
    let objects: Vec<Object> =
        (0..).zip([0, 1, 100_000, CHUNK_BYTES, 3 << 20]).map(|(number, len)| object(number, len)).collect();
    for (object, place) in objects.iter().zip(bench.write(&objects)) {
        let (head, len) = (&object.head, object.bytes.len());
        assert_eq!(bench.promised(place, head).unwrap(), digest(object));
        let other = Header { digest: digest(object) ^ 2, ..head.clone() };
        let altered = bench.promised(place, &other);
        assert!(matches!(altered, Err(SpillError::Altered { .. })), "{altered:?}");
        let mut parts = Vec::new();
        while parts.len() < len {
            let part = (len - parts.len()).min(PART_BYTES);
            parts.extend(bench.read_part(place, head, parts.len() as u64, part).unwrap());
        }
        assert!(parts == object.bytes, "wrong parts of {}", head.id);
        for (at, len) in [(len as u64, 1), (0, len + 1), (u64::MAX, 1)] {
            let beyond = bench.read_part(place, head, at, len);
            assert!(matches!(beyond, Err(SpillError::Damaged { .. })), "{beyond:?}");
        }
        bench.store().forget(place);
        bench.settle();
        let forgotten = bench.promised(place, head);
        assert!(matches!(forgotten, Err(SpillError::Damaged { .. })), "{forgotten:?}");
    }
}

#[test]
fn objects_of_every_size_come_back_also_after_a_restart() {
    let mut bench = Bench::new();
    let objects: Vec<Object> = (0..).zip(SIZES).map(|(number, len)| object(number, len)).collect();
    let places = bench.write(&objects);
    let mut backwards = objects.clone();
    backwards.reverse();
    for object in &mut backwards {
        object.head.id = ObjectId::from_name(&format!("another {}", object.head.life));
        object.head.life += 1 << 32;
    }
    let others = bench.write(&backwards);
    for (object, place) in objects.iter().chain(&backwards).zip(places.iter().chain(&others)) {
        bench.assert_reads(*place, object);
    }
    let usage = bench.store().usage();
    let bytes = 2 * SIZES.iter().sum::<usize>() as u64;
    assert_eq!((usage.written, usage.read, usage.failures), (bytes, bytes, 0));
    bench.close();
    assert_eq!(bench.wakes.load(Ordering::SeqCst), 2 + 2 * SIZES.len() as u64);

    let mut all: Vec<Object> = objects.into_iter().chain(backwards).collect();
    all.sort_by_key(|object| object.head.life);
    for _ in 0..2 {
        let recovered = bench.restart();
        assert_eq!(bench.store().usage().failures, 0);
        let heads: Vec<&Header> = recovered.iter().map(|recovered| &recovered.header).collect();
        assert_eq!(heads, all.iter().map(|object| &object.head).collect::<Vec<_>>());
        for (object, recovered) in all.iter().zip(&recovered) {
            bench.assert_reads(recovered.place, object);
        }
    }
}

#[test]
fn many_small_objects_share_files() {
    let mut bench = Bench::new();
    let objects: Vec<Object> = (0..20_000).map(|number| object(number, 64)).collect();
    let places: Vec<Place> = objects.chunks(1000).flat_map(|batch| bench.write(batch)).collect();
    assert_eq!(bench.store().usage().files, 1);
    for at in (0..objects.len()).step_by(997) {
        bench.assert_reads(places[at], &objects[at]);
    }
}

#[test]
fn a_full_file_is_followed_by_another() {
    let mut bench = Bench::new();
    let per_file = MAX_FILE_BYTES / (12 << 20);
    let objects: Vec<Object> = (0..per_file + 1).map(|number| object(number, 12 << 20)).collect();
    let places = bench.write(&objects);
    assert_eq!(files(&bench.dir).len(), 2);
    for (object, place) in objects.iter().zip(places) {
        bench.assert_reads(place, object);
    }
    assert!(files(&bench.dir).iter().all(|path| path.metadata().unwrap().len() <= MAX_FILE_BYTES));
}

#[test]
fn what_was_forgotten_stays_away_and_frees_the_disk() {
    let mut bench = Bench::new();
    let objects: Vec<Object> = (0..40).map(|number| object(number, 100 << 10)).collect();
    let places = bench.write(&objects);
    let before = bench.store().usage().disk_bytes;
    assert!(before >= 40 * (100 << 10), "{before}");
    for (number, place) in places.iter().enumerate() {
        if number != 20 {
            bench.store().forget(*place);
        }
    }
    bench.assert_reads(places[20], &objects[20]);
    bench.wait_until("one record is left", |store| store.usage().live_bytes < 200 << 10);
    assert!(matches!(
        bench.read(places[3], &objects[3].head),
        Err(SpillError::Damaged { reason: "it was forgotten", .. })
    ));
    let recovered = bench.restart();
    let usage = bench.store().usage();
    assert!(
        usage.disk_bytes < 200 << 10,
        "the filesystem of the temporary directory punches holes: {usage:?}"
    );
    assert_eq!(usage.failures, 0, "holes are no damage");
    assert_eq!(recovered.len(), 1);
    bench.assert_reads(recovered[0].place, &objects[20]);

    bench.store().forget(recovered[0].place);
    bench.wait_until("no file is left", |store| store.usage().files + store.usage().disk_bytes == 0);
    assert_eq!(files(&bench.dir), Vec::<PathBuf>::new());
    assert_eq!(bench.restart(), []);
}

#[test]
fn a_file_that_holds_little_is_emptied_and_places_stay_good() {
    let mut bench = Bench::new();
    let objects: Vec<Object> = (0..5000).map(|number| object(number, 200)).collect();
    bench.write(&objects);
    // After a restart the file is not appended to any more, so it may be emptied.
    let places: Vec<Place> = bench.restart().iter().map(|recovered| recovered.place).collect();
    let mut objects = objects;
    objects.sort_by_key(|object| object.head.life);
    let original = files(&bench.dir);
    for (number, place) in places.iter().enumerate() {
        if number % 20 != 0 {
            bench.store().forget(*place);
        }
    }
    bench.wait_until("the file is emptied", |_| !original[0].exists());
    for number in (0..objects.len()).step_by(20) {
        bench.assert_reads(places[number], &objects[number]);
    }
    // A second move makes the known places two moves old.
    bench.store().forget(places[0]);
    bench.settle();
    assert!(matches!(bench.read(places[0], &objects[0].head), Err(SpillError::Damaged { .. })));
    bench.wait_until("one small file is left", |store| {
        let usage = store.usage();
        usage.files == 1 && usage.disk_bytes < 200 << 10
    });

    let recovered = bench.restart();
    assert_eq!(recovered.len(), 249);
    for recovered in &recovered {
        let object = objects.iter().find(|object| object.head == recovered.header).unwrap();
        bench.assert_reads(recovered.place, object);
    }
    assert_eq!(bench.store().usage().failures, 0);
}

#[test]
fn the_newest_record_of_an_id_counts() {
    let mut bench = Bench::new();
    let (older, mut newer) = (object(1, 500), object(2, OWN_FILE_BYTES as usize + 5));
    newer.head.id = older.head.id;
    let mut newest = object(3, 700);
    newest.head.id = older.head.id;
    bench.write(std::slice::from_ref(&older));
    bench.write(std::slice::from_ref(&newer));
    bench.write(std::slice::from_ref(&newest));
    for _ in 0..2 {
        let recovered = bench.restart();
        assert_eq!(recovered.len(), 1);
        assert_eq!(recovered[0].header, newest.head);
        bench.assert_reads(recovered[0].place, &newest);
    }
    // The file with the newest record may still be emptied into another.
    bench.wait_until("one file is left", |store| store.usage().files == 1);
}

/// A value that notes when it is dropped.
struct Hold(Rc<Cell<bool>>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn memory_is_held_until_the_thread_is_done_with_it() {
    let mut bench = Bench::new();
    bench.close();
    let (held, holding) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let wake = move || {
        held.send(()).unwrap();
        // The receive fails once the test has stopped holding the thread.
        let _ = released.recv();
    };
    let (store, _) = SpillStore::open(&bench.dir, wake).unwrap();
    let objects: Vec<Object> = (0..3).map(|number| object(number, 5000)).collect();
    let (mut items, _extents) = bench.load(&objects);
    let first = store.write(vec![items.remove(0)], ());
    holding.recv().unwrap();
    // The thread is held behind the first write, so the second cannot have begun.
    let dropped = Rc::new(Cell::new(false));
    drop(store.write(vec![items.remove(0)], Hold(Rc::clone(&dropped))));
    let waiting = store.write(items, ());
    let dropped_early = dropped.get();
    drop(release);
    assert!(!dropped_early);
    let (places, ()) = block_on(waiting);
    store.forget(places.unwrap()[0]);
    assert!(dropped.get(), "the next call lets go of it");
    block_on(first).0.unwrap();
    drop(store);
    let recovered = bench.restart();
    assert_eq!(recovered.len(), 1, "a write that nobody waited for is undone, and one was forgotten");
    assert_eq!(recovered[0].header, objects[0].head);
}

#[test]
fn dropping_the_store_finishes_what_was_asked() {
    let mut bench = Bench::new();
    let objects: Vec<Object> = (0..10).map(|number| object(number, 300 << 10)).collect();
    let (items, extents) = bench.load(&objects);
    let pending = bench.store().write(items, extents);
    bench.close();
    assert_eq!(block_on(pending).0.unwrap().len(), 10);
    assert_eq!(bench.restart().len(), 10);
}

#[test]
fn unfit_items_are_refused() {
    let mut bench = Bench::new();
    let mut long = object(1, 100);
    long.head.name = "x".repeat(256);
    assert!(matches!(bench.try_write(&[long]), Err(SpillError::Unfit { .. })));
    let mut short = object(2, 100);
    short.head.data_len += 1;
    assert!(matches!(bench.try_write(&[object(3, 10), short]), Err(SpillError::Unfit { .. })));
    assert_eq!(bench.restart(), []);
}

#[test]
fn one_daemon_a_directory() {
    let mut bench = Bench::new();
    let second = SpillStore::open(&bench.dir, || {}).map(drop).unwrap_err();
    let pid = format!("process {}", std::process::id());
    assert!(matches!(second, SpillError::InUse { .. }) && second.to_string().contains(&pid), "{second}");
    bench.close();
    SpillStore::open(&bench.dir, || {}).map(drop).unwrap();
}

#[test]
fn nobody_else_may_write_in_the_directory_or_read_its_files() {
    let mut bench = Bench::new();
    bench.write(&[object(1, 1)]);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&bench.dir), 0o700);
    assert_eq!(mode(&files(&bench.dir)[0]), 0o600);
    bench.close();
    fs::set_permissions(&bench.dir, fs::Permissions::from_mode(0o770)).unwrap();
    let error = SpillStore::open(&bench.dir, || {}).map(drop).unwrap_err();
    assert!(matches!(error, SpillError::Exposed { mode: 0o770, .. }), "{error}");
}

#[test]
fn a_directory_that_cannot_be_had_is_named() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join("file");
    fs::write(&file, "").unwrap();
    let error = SpillStore::open(&file.join("spill"), || {}).map(drop).unwrap_err();
    assert!(error.to_string().contains("file/spill"), "{error}");
}
