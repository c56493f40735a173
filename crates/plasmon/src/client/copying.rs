//! Writable addresses of the arena, and copies of large objects into it.
//!
//! Owns the writable range of addresses. Any thread. The range holds the segments that this user may write,
//! each mapped once and then kept, so that a creation costs no mapping, and no page fault after the first
//! use of its pages. Applications write their own creations there, too ([`writable`](super::writable)). Pages
//! that an application still sees when its object is sealed or aborted are *frozen*: read-only, until the
//! application lets go of them. An object that comes to lie there meanwhile gets a mapping of its own.
//!
//! Large copies are made in chunks. Each chunk is copied by the first thread that is free: the calling
//! thread, or one of as many helper threads as there are idle cores.
//!
//! Invariants: a segment is mapped anew only by a grant of a new version, and the daemon makes such a grant
//! only if the old version holds no object. So no copy into it is under way, and pages that are still frozen
//! stay so in the new mapping.
#![allow(unsafe_code)]

use std::fs;
use std::ops::Range as Span;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use rustix::mm::{Advice, MprotectFlags, ProtFlags, madvise};
use rustix::param::page_size;

use super::range::{Range, alignment};
use crate::Result;

/// Size in bytes of the pieces that are copied and populated at a time. A piece and its source fit the cache
/// of a core.
const CHUNK_BYTES: usize = 256 << 10;
/// Size in bytes from which several threads copy. Starting a thread takes as long as copying so many bytes.
const PARALLEL_COPY_BYTES: usize = 1 << 20;
/// Largest number of bytes whose pages a creation brings into the page table at once. Page faults bring the
/// others.
const MAX_EXPECTED_BYTES: usize = 64 << 20;
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
    /// Whole pages that are read-only, each piece once.
    frozen: Mutex<Vec<Span<usize>>>,
}

impl Writing {
    pub(super) fn new(segment_size: usize, segments: usize) -> Self {
        let flags = |count| (0..count).map(|_| AtomicBool::new(false)).collect();
        let chunks = (segment_size * segments).div_ceil(CHUNK_BYTES);
        let (mapped, populated) = (flags(segments), flags(chunks));
        Self { segment_size, segments, range: OnceLock::new(), mapped, populated, frozen: Mutex::default() }
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
        let at = number * self.segment_size;
        let whole = at..at + self.segment_size;
        let frozen = self.lock_frozen();
        let held: Vec<_> = frozen.iter().filter(|pages| overlap(pages, &whole)).cloned().collect();
        let access = if held.is_empty() { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the piece lies inside the range. Nothing is being written there: see the module. Whoever
        // still reads there may find other bytes.
        unsafe { range.map(at, self.segment_size, file, 0, access) }?;
        for pages in gaps(&whole, held) {
            // SAFETY: no access is taken away.
            unsafe { range.protect_part(pages, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        }
        self.mapped[number].store(true, Ordering::Release);
        Ok(())
    }

    /// Address of a byte of the arena. The segments there are mapped.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.range.get().map_or(ptr::null_mut(), |range| range.at(offset))
    }

    /// Whether a page of these bytes is frozen.
    pub(super) fn is_frozen(&self, bytes: Span<usize>) -> bool {
        self.lock_frozen().iter().any(|pages| overlap(pages, &bytes))
    }

    /// Makes the pages of a creation read-only. The creation begins with a page, and no other object lies in
    /// its pages. A forked child notes nothing, because it copies nothing either.
    pub(super) fn freeze(&self, offset: usize, len: usize, note: bool) -> Result<()> {
        let (Some(range), pages) = (self.range.get(), pages_of(offset, len)) else { return Ok(()) };
        // SAFETY: the creation is over, so nobody needs to write there.
        unsafe { range.protect_part(pages.clone(), MprotectFlags::READ) }?;
        if note {
            self.lock_frozen().push(pages);
        }
        Ok(())
    }

    /// Makes the pages of a creation writable again, when nobody holds its memory any more.
    pub(super) fn thaw(&self, offset: usize, len: usize) -> Result<()> {
        let (Some(range), pages) = (self.range.get(), pages_of(offset, len)) else { return Ok(()) };
        let mut frozen = self.lock_frozen();
        // SAFETY: no access is taken away.
        unsafe { range.protect_part(pages.clone(), MprotectFlags::READ | MprotectFlags::WRITE) }?;
        frozen.retain(|one| *one != pages);
        Ok(())
    }

    fn lock_frozen(&self) -> MutexGuard<'_, Vec<Span<usize>>> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the first pages of a creation, which an application is about to write, into the page table. The
    /// segments are mapped.
    pub(super) fn expect(&self, offset: usize, len: usize) {
        let Some(range) = self.range.get() else { return };
        let end = (offset + len.min(MAX_EXPECTED_BYTES)).div_ceil(CHUNK_BYTES);
        (offset / CHUNK_BYTES..end).for_each(|chunk| self.populate(range, chunk));
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
            // thread alone. The part does not overlap it: whoever else has pointers there has them to another
            // object, or to frozen pages.
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

/// Whole pages of some bytes that begin with a page.
fn pages_of(offset: usize, len: usize) -> Span<usize> {
    offset..(offset + len).next_multiple_of(page_size())
}

fn overlap(one: &Span<usize>, other: &Span<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Pieces of `whole` that none of the spans covers.
fn gaps(whole: &Span<usize>, mut spans: Vec<Span<usize>>) -> Vec<Span<usize>> {
    spans.sort_by_key(|span| span.start);
    let (mut gaps, mut at) = (Vec::new(), whole.start);
    for span in spans {
        if at < span.start {
            gaps.push(at..span.start);
        }
        at = at.max(span.end);
    }
    if at < whole.end {
        gaps.push(at..whole.end);
    }
    gaps
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
    use super::{gaps, running};

    #[test]
    fn gaps_are_what_no_span_covers() {
        let gaps = |spans: &[(usize, usize)]| -> Vec<(usize, usize)> {
            let spans = spans.iter().map(|(start, end)| *start..*end).collect();
            gaps(&(2..20), spans).into_iter().map(|gap| (gap.start, gap.end)).collect()
        };
        assert_eq!(gaps(&[(8, 10), (2, 4), (4, 6), (3, 5), (18, 30)]), [(6, 8), (10, 18)]);
        assert_eq!(gaps(&[(0, 3)]), [(3, 20)]);
        assert_eq!(gaps(&[]), [(2, 20)]);
    }

    #[test]
    fn running_tasks_are_read_from_the_load() {
        assert_eq!(running("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running("nonsense"), None);
    }
}
