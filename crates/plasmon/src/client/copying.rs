//! Copies of large objects into the store.
//!
//! Owns the writable range of addresses. Any thread. The range holds the segments that this user may write,
//! each mapped once and then kept, so that a creation costs no mapping, and no page fault after the first use
//! of its pages. Only this module has a pointer into the range. Memory that applications write themselves is
//! mapped for each creation separately, and frozen when the object is sealed.
//!
//! Large copies are made in chunks. Each chunk is copied by the first thread that is free: the calling
//! thread, or one of as many helper threads as there are idle cores.
//!
//! Invariants: a segment is mapped anew only by a grant of a new version, and the daemon makes such a grant
//! only if the old version holds no object. So no copy into it is under way.
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

/// Size in bytes of the pieces that are copied and populated at a time. A piece and its source fit the cache
/// of a core.
const CHUNK_BYTES: usize = 256 << 10;
/// Size in bytes from which several threads copy. Starting a thread takes as long as copying so many bytes.
const PARALLEL_COPY_BYTES: usize = 1 << 20;
/// Largest number of helper threads. More threads do not copy faster.
const MAX_HELPER_THREADS: usize = 7;

/// Writable addresses of the segments.
pub(super) struct Writing {
    segment_size: usize,
    segments: usize,
    range: OnceLock<Range>,
    mapped: Vec<AtomicBool>,
    /// For each chunk, whether its pages are in this process's page table.
    populated: Vec<AtomicBool>,
}

impl Writing {
    pub(super) fn new(segment_size: usize, segments: usize) -> Self {
        let flags = |count| (0..count).map(|_| AtomicBool::new(false)).collect();
        let chunks = (segment_size * segments).div_ceil(CHUNK_BYTES);
        let (mapped, populated) = (flags(segments), flags(chunks));
        Self { segment_size, segments, range: OnceLock::new(), mapped, populated }
    }

    /// Maps a segment, unless it is mapped. The caller holds the lock on the segments.
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

    /// Forgets the mapping of a segment, because the segment will be replaced.
    pub(super) fn forget(&self, number: usize) {
        self.mapped[number].store(false, Ordering::Release);
        let first = number * self.segment_size / CHUNK_BYTES;
        let last = ((number + 1) * self.segment_size).div_ceil(CHUNK_BYTES);
        for chunk in &self.populated[first..last.min(self.populated.len())] {
            chunk.store(false, Ordering::Relaxed);
        }
    }

    /// Writes `parts` from `offset` on, each at its own offset, and zeros between and behind them. The
    /// segments are mapped. No other client writes there, because a creation's extent belongs to its creator.
    pub(super) fn copy(&self, offset: usize, len: usize, parts: &[(usize, &[u8])]) {
        let Some(range) = self.range.get() else { return };
        let next = AtomicUsize::new(offset);
        // Copies the next chunk. Returns whether there was one.
        let take = || {
            // A chunk ends at the next bound, so that chunks of copies are chunks of the arena.
            let bound = |from: usize| (from / CHUNK_BYTES + 1) * CHUNK_BYTES;
            let more = |from| (from < offset + len).then(|| bound(from));
            let Ok(from) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
                return false;
            };
            self.copy_chunk(range, offset, from..bound(from).min(offset + len), parts);
            true
        };
        let work = || while take() {};
        if len < PARALLEL_COPY_BYTES {
            return work();
        }
        // During these two chunks the daemon, which has just reserved the extent, goes to sleep.
        let _ = take() && take();
        let helpers = idle_cores().min(MAX_HELPER_THREADS);
        thread::scope(|scope| {
            for _ in 0..helpers {
                // If no helper thread can be started, this thread copies everything.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }

    fn copy_chunk(&self, range: &Range, offset: usize, chunk: Span<usize>, parts: &[(usize, &[u8])]) {
        self.populate(range, chunk.start / CHUNK_BYTES);
        let mut at = chunk.start;
        // First part that ends behind the chunk's start.
        let first = parts.partition_point(|(start, part)| offset + start + part.len() <= at);
        for (start, part) in &parts[first..] {
            let start = offset + start;
            if start >= chunk.end {
                break;
            }
            zero(range, at..start.max(at));
            at = at.max(start);
            let bytes = &part[at - start..part.len().min(chunk.end - start)];
            // SAFETY: the destination is inside the chunk, which is mapped writable and belongs to this
            // thread alone. The part does not overlap it, because only this module has pointers there.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), range.at(at), bytes.len()) };
            at += bytes.len();
        }
        zero(range, at..chunk.end);
    }

    /// Brings a chunk's pages into the page table at once, which saves a page fault for each.
    fn populate(&self, range: &Range, chunk: usize) {
        if self.populated[chunk].load(Ordering::Relaxed) {
            return;
        }
        let from = chunk * CHUNK_BYTES;
        let len = CHUNK_BYTES.min(self.segment_size * self.segments - from);
        // Populating for reading lets the kernel map many pages at a time, and those of a shared mapping can
        // then be written, too. SAFETY: the addresses are the range's. The call changes none of their bytes.
        // If it fails (a chunk that is mapped in part, a kernel before 5.14) page faults do the same.
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

/// Estimate of the number of cores that are idle now.
fn idle_cores() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // The fourth field has the number of runnable tasks, including this one, and the number of all tasks.
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
