//! Tests of the spill store with real files and a real arena.

mod damage;
mod full;
mod killed;
mod life;
mod model;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use plasmon::{ObjectId, Rights};
use tempfile::TempDir;
use twox_hash::XxHash3_64;

use super::{Header, Item, Place, Recovered, SpillError, SpillStore};
use crate::memory::{Arena, ArenaConfig, Domain, Extent, HugePages, Writer, Zone};

const ZONE: Zone = Zone { domain: Domain::Shared, writer: Writer::Engine };

/// An object to be spilled.
#[derive(Debug, Clone, PartialEq)]
struct Object {
    head: Header,
    bytes: Vec<u8>,
}

/// Makes an object whose header and bytes both follow from a number.
fn object(number: u64, len: usize) -> Object {
    let metadata_len = (len / 3).min(1000) as u32;
    let name = "ö".repeat(number as usize % 128);
    let id = ObjectId::from_name(&format!("object {number}"));
    let mut state = number;
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let head = Header {
        id,
        name,
        life: number ^ 0xfeed,
        user: number as u32,
        rights: Rights::from_wire((number % 3) as u8).expect("there are three"),
        data_len: len as u64 - u64::from(metadata_len),
        metadata_len,
        digest: 0,
        created: 1_700_000_000_000 + number,
        copies: (number % 3) as u16,
        expires: if number % 5 == 1 { 1_800_000_000_000 + number } else { 0 },
        owned: number % 7 == 1,
    };
    let bytes: Vec<u8> = bytes.take(len).collect();
    // Some objects have no digest.
    let digest = if number.is_multiple_of(3) { 0 } else { XxHash3_64::oneshot(&bytes).max(1) };
    Object { head: Header { digest, ..head }, bytes }
}

/// The digest of an object's bytes.
fn digest(object: &Object) -> u64 {
    XxHash3_64::oneshot(&object.bytes).max(1)
}

/// A store in a directory of its own, and memory for objects.
struct Bench {
    arena: Arena,
    dir: PathBuf,
    store: Option<SpillStore>,
    wakes: Arc<AtomicU64>,
    _temporary: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("spill");
        Bench::at(temporary, dir)
    }

    fn at(temporary: TempDir, dir: PathBuf) -> Bench {
        let config = ArenaConfig {
            capacity: 128 << 20,
            segment_size: Some(64 << 20),
            huge_pages: HugePages::Never,
            prefault: false,
            near: None,
            huge_allowance: None,
        };
        let arena = Arena::new(&config).unwrap();
        let mut bench = Bench { arena, dir, store: None, wakes: Arc::default(), _temporary: temporary };
        assert_eq!(bench.restart(), []);
        bench
    }

    fn store(&self) -> &SpillStore {
        self.store.as_ref().unwrap()
    }

    fn close(&mut self) {
        self.store = None;
    }

    /// Ends the store, if there is one, and opens another; returns the objects that it recovers, in order
    /// of life.
    fn restart(&mut self) -> Vec<Recovered> {
        self.close();
        let wakes = Arc::clone(&self.wakes);
        let wake = move || {
            wakes.fetch_add(1, Ordering::SeqCst);
        };
        let (store, mut recovered) = SpillStore::open(&self.dir, wake).unwrap();
        self.store = Some(store);
        recovered.sort_by_key(|recovered| recovered.header.life);
        recovered
    }

    /// Puts objects in memory.
    fn load(&mut self, objects: &[Object]) -> (Vec<Item>, Vec<Extent>) {
        let load = |object: &Object| {
            let extent = self.arena.allocate(ZONE, object.bytes.len() as u64).unwrap();
            extent.write(0, &object.bytes).unwrap();
            (Item { head: object.head.clone(), bytes: extent.io_range() }, extent)
        };
        objects.iter().map(load).unzip()
    }

    fn try_write(&mut self, objects: &[Object]) -> Result<Vec<Place>, SpillError> {
        let (items, extents) = self.load(objects);
        block_on(self.store().write(items, extents)).0
    }

    fn write(&mut self, objects: &[Object]) -> Vec<Place> {
        let places = self.try_write(objects).unwrap();
        assert_eq!(places.len(), objects.len());
        places
    }

    fn read(&mut self, place: Place, head: &Header) -> Result<Vec<u8>, SpillError> {
        let len = head.payload_len().unwrap();
        let into = self.arena.allocate(ZONE, len).unwrap();
        let (result, extent) = block_on(self.store().read(place, head.id, head.digest, into));
        let mut bytes = vec![0; len as usize];
        extent.read(0, &mut bytes).unwrap();
        result.map(|()| bytes)
    }

    fn assert_reads(&mut self, place: Place, object: &Object) {
        let bytes = self.read(place, &object.head).unwrap();
        assert!(bytes == object.bytes, "wrong bytes of {}", object.head.id);
    }

    fn promised(&self, place: Place, head: &Header) -> Result<u64, SpillError> {
        block_on(self.store().promised(place, head.id, head.digest, head.payload_len().unwrap())).0
    }

    fn read_part(&self, place: Place, head: &Header, at: u64, len: usize) -> Result<Vec<u8>, SpillError> {
        block_on(self.store().read_part(place, head.id, head.payload_len().unwrap(), (at, len))).0
    }

    /// Waits until all earlier requests are done.
    fn settle(&mut self) {
        self.write(&[]);
    }

    /// Waits until the thread has finished its requests and the work that follows from them.
    fn wait_until(&self, what: &str, done: impl Fn(&SpillStore) -> bool) {
        let start = Instant::now();
        while !done(self.store()) {
            assert!(start.elapsed() < Duration::from_secs(60), "never: {what}; {:?}", self.store().usage());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The spill files in a directory, lowest number first.
fn files(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some()).collect();
    paths.sort_by_key(|path| path.file_stem().unwrap().to_str().unwrap().parse::<u32>().unwrap());
    paths
}

/// Inverts a byte of a file.
fn flip(path: &Path, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

fn truncate(path: &Path, len: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}
