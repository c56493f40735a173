//! Counters of the spill store. Owns [`Counters`]: the spill thread counts, and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// How the spill directory is used. Sums count from the start of the daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of files.
    pub files: u64,
    /// Number of bytes of live records: those of the objects, and about a hundred more for each object.
    pub live_bytes: u64,
    /// Number of bytes that the files take on disk, without holes.
    pub disk_bytes: u64,
    /// Number of bytes that were free on the disk at the last look.
    pub free_bytes: u64,
    /// Number of bytes of objects written so far.
    pub written: u64,
    /// Number of bytes of objects read back so far.
    pub read: u64,
    /// Number of batches that could not be written, objects that could not be read back, and damaged places
    /// found at the start.
    pub failures: u64,
    /// Number of files and damaged places found at the start whose objects are unknown.
    pub unreadable: u64,
}

/// The counters, shared between the threads. The numbers are for people: there is no order among them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    files: AtomicU64,
    live_bytes: AtomicU64,
    disk_bytes: AtomicU64,
    free_bytes: AtomicU64,
    written: AtomicU64,
    read: AtomicU64,
    failures: AtomicU64,
    unreadable: AtomicU64,
}

impl Counters {
    pub(super) fn usage(&self) -> Usage {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            files: load(&self.files),
            live_bytes: load(&self.live_bytes),
            disk_bytes: load(&self.disk_bytes),
            free_bytes: load(&self.free_bytes),
            written: load(&self.written),
            read: load(&self.read),
            failures: load(&self.failures),
            unreadable: load(&self.unreadable),
        }
    }

    pub(super) fn set_space(&self, files: u64, live_bytes: u64, disk_bytes: u64) {
        self.files.store(files, Ordering::Relaxed);
        self.live_bytes.store(live_bytes, Ordering::Relaxed);
        self.disk_bytes.store(disk_bytes, Ordering::Relaxed);
    }

    pub(super) fn set_free(&self, bytes: u64) {
        self.free_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn read_back(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn found_unreadable(&self, places: u64) {
        self.unreadable.fetch_add(places, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, times: u64) {
        self.failures.fetch_add(times, Ordering::Relaxed);
    }
}
