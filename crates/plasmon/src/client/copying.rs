//! Copying into the store at the speed of memory.
//!
//! Any thread. A second, writable range of addresses holds the segments that this user may write, each
//! mapped once and then kept, so that a creation costs no mapping and no page fault after the first of
//! its pages. Nobody outside this module gets a pointer there: what users write by themselves
//! is mapped for each creation apart, and frozen when it is sealed.
//!
//! Large copies are made in chunks. Whoever is first takes the next one: this thread, and as many helpers as
//! there are cores that nobody uses.
//!
//! Invariants: a segment is mapped anew only by a grant of a new version, and the daemon makes one only
//! when nothing lies in the old: no copy is under way there.
#![allow(unsafe_code)]

use std::fs;
use std::ops::Range as Span;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustix::mm::{Advice, ProtFlags, madvise};

use super::range::{Range, alignment};
use crate::Result;

/// Bytes copied at a time, and populated at a time: what fits a core's cache beside its source.
const CHUNK: usize = 256 << 10;
/// Shorter copies are made by one thread: starting another takes as long as copying so much.
const PARALLEL: usize = 1 << 20;
/// Most threads that help: memory is no faster for more.
const HELPERS: usize = 7;

/// The writable addresses.
pub(super) struct Writing {
    segment_size: usize,
    segments: usize,
    range: OnceLock<Range>,
    mapped: Vec<AtomicBool>,
    /// By chunk: its pages are in this process's page table.
    populated: Vec<AtomicBool>,
}

impl Writing {
    pub(super) fn new(segment_size: usize, segments: usize) -> Self {
        let flags = |count| (0..count).map(|_| AtomicBool::new(false)).collect();
        let chunks = (segment_size * segments).div_ceil(CHUNK);
        let (mapped, populated) = (flags(segments), flags(chunks));
        Self { segment_size, segments, range: OnceLock::new(), mapped, populated }
    }

    /// Maps a segment, unless it is mapped. Call it with the segments locked.
    pub(super) fn map(&self, number: usize, file: &OwnedFd) -> Result<()> {
        if self.mapped[number].load(Ordering::Acquire) {
            return Ok(());
        }
        let range = match self.range.get() {
            Some(range) => range,
            None => {
                let len = self.segment_size * self.segments;
                let range = Range::reserve(len, 0, alignment(self.segment_size))?;
                self.range.get_or_init(|| range)
            }
        };
        let (at, access) = (number * self.segment_size, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the piece lies inside the range, and nothing is being copied there: see the module.
        unsafe { range.map(at, self.segment_size, file, 0, access) }?;
        self.mapped[number].store(true, Ordering::Release);
        Ok(())
    }

    /// A segment is about to be another.
    pub(super) fn forget(&self, number: usize) {
        self.mapped[number].store(false, Ordering::Release);
        let first = number * self.segment_size / CHUNK;
        let last = ((number + 1) * self.segment_size).div_ceil(CHUNK);
        for chunk in &self.populated[first..last.min(self.populated.len())] {
            chunk.store(false, Ordering::Relaxed);
        }
    }

    /// Writes parts, each where it belongs from `offset` on, and zeros between and behind them. The
    /// segments are mapped, and nobody else writes there: a creation's place is its creator's.
    pub(super) fn copy(&self, offset: usize, len: usize, parts: &[(usize, &[u8])]) {
        let Some(range) = self.range.get() else { return };
        let next = AtomicUsize::new(offset);
        // Copies the next chunk; says whether there was one.
        let take = || {
            // To the next bound, so that chunks of copies are chunks of the arena.
            let bound = |from: usize| (from / CHUNK + 1) * CHUNK;
            let more = |from| (from < offset + len).then(|| bound(from));
            let Ok(from) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
                return false;
            };
            self.copy_chunk(range, offset, from..bound(from).min(offset + len), parts);
            true
        };
        let work = || while take() {};
        if len < PARALLEL {
            return work();
        }
        // Two chunks give the daemon, which has just reserved the place, time to go to sleep.
        let _ = take() && take();
        let helpers = idle_cores().min(HELPERS);
        thread::scope(|scope| {
            for _ in 0..helpers {
                // If the system has no thread to give, this one does it all.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }

    fn copy_chunk(&self, range: &Range, offset: usize, chunk: Span<usize>, parts: &[(usize, &[u8])]) {
        self.populate(range, chunk.start / CHUNK);
        let mut at = chunk.start;
        // The first part that ends behind the chunk's start.
        let first = parts.partition_point(|(start, part)| offset + start + part.len() <= at);
        for (start, part) in &parts[first..] {
            let start = offset + start;
            if start >= chunk.end {
                break;
            }
            zero(range, at..start.max(at));
            at = at.max(start);
            let bytes = &part[at - start..part.len().min(chunk.end - start)];
            // SAFETY: inside the chunk, which is mapped writable and this thread's alone, and the part is
            // not in it: nobody outside this module has a reference there.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), range.at(at), bytes.len()) };
            at += bytes.len();
        }
        zero(range, at..chunk.end);
    }

    /// Brings a chunk's pages into the page table at once, rather than by a fault each.
    fn populate(&self, range: &Range, chunk: usize) {
        if self.populated[chunk].load(Ordering::Relaxed) {
            return;
        }
        let from = chunk * CHUNK;
        let len = CHUNK.min(self.segment_size * self.segments - from);
        // To read: the kernel brings many pages at a time then, and those of a shared mapping may be written
        // as well. SAFETY: the addresses are the range's. It changes nothing of what they hold, and where it
        // fails (a chunk that is mapped in part, a kernel before 5.14) faults do the same.
        let _ = unsafe { madvise(range.at(from).cast(), len, Advice::LinuxPopulateRead) };
        self.populated[chunk].store(true, Ordering::Relaxed);
    }
}

fn zero(range: &Range, span: Span<usize>) {
    if !span.is_empty() {
        // SAFETY: inside a chunk, as in `copy_chunk`.
        unsafe { ptr::write_bytes(range.at(span.start), 0, span.len()) };
    }
}

/// Cores that nobody uses now, as far as can be told.
fn idle_cores() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // The fourth field: tasks that run or want to, this one among them, and all there are.
    let busy = fs::read_to_string("/proc/loadavg").ok().and_then(|text| running(&text));
    cores.saturating_sub(busy.unwrap_or(1).max(1))
}

fn running(loadavg: &str) -> Option<usize> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::running;

    #[test]
    fn running_tasks_are_read_from_the_load() {
        assert_eq!(running("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running("nonsense"), None);
    }
}
