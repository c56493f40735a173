//! Mappings of the daemon's memory in this process.
//!
//! [`Arena`] reserves one contiguous range of addresses for the whole arena and maps segment `n` read-only at
//! `n * segment_size` in it, so that an object which spans several segments is one slice. It also finds the
//! memory into which an object is written ([`writable`](super::writable)).
//!
//! Runs on any thread. Descriptors arrive through [`Arena::grant`] in the order in which the daemon sent
//! them, on whichever thread reads the connection.
//!
//! Invariants: the reservation is unmapped only when the arena is dropped, and every slice of it holds the
//! arena. A segment is mapped only after its size and its seals have been checked, so no access inside it can
//! fault. A segment's mapping is replaced only by a grant, and the daemon grants a new version only if no
//! object of the old one is pinned.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::ProtFlags;
use rustix::param::page_size;

use super::copying::Writing;
use super::fork::Process;
use super::range::{Range, alignment, local};
use super::region::RegionMemory;
use super::writable::Writable;
use crate::wire::{Access, Granted, MAX_DESCRIPTORS, RegionPlace, Span};
use crate::{Error, ErrorKind, Result};

/// Size in bytes of the largest arena that fits the address space beside the rest of a process.
const MAX_ARENA_BYTES: u64 = 1 << 46;
/// Arena of the daemon. The segments that this client was granted are mapped read-only.
pub(super) struct Arena {
    range: Range,
    segment_size: usize,
    segments: Mutex<Vec<Segment>>,
    /// Versions of the mapped segments, 0 for none. A version is set after its mapping is in place.
    mapped: Vec<AtomicU32>,
    writing: Writing,
    spares: Mutex<Vec<Range>>,
    process: Process,
}

/// Grants that this client has for a segment.
#[derive(Default)]
struct Segment {
    readable: bool,
    write: Option<WriteGrant>,
}

/// Grant to write to a segment.
struct WriteGrant {
    descriptor: OwnedFd,
    version: u32,
    /// Size in bytes of a page of this segment. Its mappings are aligned to that.
    page: usize,
}

impl Arena {
    /// Reserves addresses for an arena of `segments` segments of `segment_size` bytes.
    pub(super) fn reserve(segment_size: u64, segments: u32) -> Result<Self> {
        let total = segment_size.checked_mul(segments.into()).filter(|total| *total <= MAX_ARENA_BYTES);
        let (Some(total), true) =
            (total, segment_size > 0 && segment_size.is_multiple_of(page_size() as u64))
        else {
            return Err(nonsense(format!("an arena of {segments} segments of {segment_size} bytes")));
        };
        if segments == 0 || segments as usize > MAX_DESCRIPTORS {
            return Err(nonsense(format!("an arena of {segments} segments")));
        }
        let segment_size = segment_size as usize;
        Ok(Self {
            range: Range::reserve(total as usize, 0, alignment(segment_size))?,
            segment_size,
            segments: Mutex::new((0..segments).map(|_| Segment::default()).collect()),
            mapped: (0..segments).map(|_| AtomicU32::new(0)).collect(),
            writing: Writing::new(segment_size, segments as usize),
            spares: Mutex::default(),
            process: Process::this(),
        })
    }

    /// Takes a descriptor that the daemon granted: maps it, or keeps it for creations.
    pub(super) fn grant(&self, granted: Granted, descriptor: OwnedFd) -> Result<()> {
        let number = granted.segment as usize;
        let mut segments = self.lock();
        let Some(segment) = segments.get_mut(number) else {
            return Err(nonsense(format!("segment {number} of {}", self.segments_len())));
        };
        let page = self.check(number, &descriptor)?;
        match granted.access {
            Access::Read => {
                let at = number * self.segment_size;
                // SAFETY: the piece lies inside the reservation. It replaces the reservation itself, or an
                // older version of the segment. The daemon knows no pin of the older version, so no slice
                // points there.
                unsafe { self.range.map(at, self.segment_size, &descriptor, 0, ProtFlags::READ) }?;
                segment.readable = true;
                self.mapped[number].store(granted.version, Ordering::Release);
            }
            Access::Write => {
                self.writing.forget(number);
                segment.write = Some(WriteGrant { descriptor, version: granted.version, page });
            }
        }
        Ok(())
    }

    /// Bytes of an object that the daemon has pinned for this client. The view holds the arena.
    pub(super) fn view(self: &Arc<Self>, span: Span) -> Result<View> {
        let len = span.data_len.checked_add(span.metadata_len.into());
        let (offset, len) = self.inside(span.offset, len)?;
        let segments = self.lock();
        if let Some(number) = self.numbers(offset, len).find(|number| !segments[*number].readable) {
            return Err(nonsense(format!("an object in segment {number}, which it did not grant")));
        }
        Ok(View { arena: Arc::clone(self), span })
    }

    /// Bytes of an object that this client has pinned itself. `None` unless the segments of the object are
    /// mapped in the version that `version` tells.
    #[inline]
    pub(super) fn view_mapped(self: &Arc<Self>, span: Span, version: impl Fn(u32) -> u32) -> Option<View> {
        let len = span.data_len.checked_add(span.metadata_len.into());
        let (offset, len) = self.inside(span.offset, len).ok()?;
        for number in self.numbers(offset, len) {
            let mapped = self.mapped[number].load(Ordering::Acquire);
            if mapped == 0 || mapped != version(number as u32) {
                return None;
            }
        }
        Some(View { arena: Arc::clone(self), span })
    }

    /// Whether the data of a creation can be written: whether its segments were granted for writing in the
    /// version that `version` tells. Bytes written to an older version would be lost.
    pub(super) fn may_write(&self, span: Span, version: impl Fn(u32) -> u32) -> Result<bool> {
        let (offset, len) = self.inside(span.offset, Some(span.data_len))?;
        let segments = self.lock();
        let granted = |number: usize| segments[number].write.as_ref().map(|write| write.version);
        Ok(self.numbers(offset, len).all(|number| granted(number) == Some(version(number as u32))))
    }

    /// Writes the data of a creation: each part at its offset, ascending, and zeros between them.
    pub(super) fn write(&self, span: Span, parts: &[(usize, &[u8])]) -> Result<()> {
        let (offset, len) = self.inside(span.offset, Some(span.data_len))?;
        let segments = self.lock();
        for number in self.numbers(offset, len) {
            self.writing.map(number, &Self::granted(&segments, number)?.descriptor)?;
        }
        drop(segments);
        if self.writing.is_frozen(offset..offset + len) {
            // An application still reads what it wrote there.
            self.writable(span)?.fill(parts);
        } else {
            self.writing.copy(offset, len, parts);
        }
        Ok(())
    }

    /// Memory for the data of a creation: a piece of the writable range, which is mapped once. It is a
    /// mapping of its own where pages of that piece are frozen, or could not be frozen by themselves.
    pub(super) fn creation(self: &Arc<Self>, span: Span) -> Result<Writable> {
        let (offset, len) = self.inside(span.offset, Some(span.data_len))?;
        if len == 0 {
            return Writable::spare(self, 0);
        }
        let segments = self.lock();
        let mut of_base_pages = offset.is_multiple_of(page_size());
        for number in self.numbers(offset, len) {
            let write = Self::granted(&segments, number)?;
            of_base_pages &= write.page == page_size();
            self.writing.map(number, &write.descriptor)?;
        }
        drop(segments);
        if !of_base_pages || self.writing.is_frozen(offset..offset + len) {
            return self.writable(span);
        }
        self.writing.expect(offset, len);
        Ok(Writable::in_arena(self, offset, len))
    }

    /// Maps an extent for writing, apart from all others.
    pub(super) fn writable(&self, span: Span) -> Result<Writable> {
        let (offset, len) = self.inside(span.offset, Some(span.data_len))?;
        if len == 0 {
            return Writable::anonymous(0);
        }
        let segments = self.lock();
        let mut page = page_size();
        for number in self.numbers(offset, len) {
            page = page.max(Self::granted(&segments, number)?.page);
        }
        // Whole pages around the data, at addresses that are aligned as in the arena.
        let start = offset - offset % page;
        let end = (offset + len).next_multiple_of(page);
        let range = Range::reserve(end - start, start, alignment(self.segment_size))?;
        for number in self.numbers(start, end - start) {
            let Some(write) = &segments[number].write else { continue };
            let first = start.max(number * self.segment_size);
            let last = end.min((number + 1) * self.segment_size);
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let within = first - number * self.segment_size;
            // SAFETY: the piece lies inside the range, and nothing points into the range yet.
            unsafe { range.map_populated(first - start, last - first, &write.descriptor, within, access) }?;
        }
        Ok(Writable::over(range, offset - start, len))
    }

    /// Maps a region, which stays in its place as long as this client has a handle to it. The memory holds
    /// the arena, or a mapping of its own. `None` if this process can have no more mappings.
    pub(super) fn region(self: &Arc<Self>, place: &RegionPlace, len: u64) -> Result<Option<RegionMemory>> {
        let pieces = self.pieces(place, len)?;
        let [(offset, bytes)] = pieces[..] else {
            let range = self.side_by_side(&pieces)?;
            let memory = |range: Range| {
                let start = range.at(0);
                RegionMemory::new(Arc::new(range), start, len as usize, place)
            };
            return Ok(range.map(memory));
        };
        let segments = self.lock();
        if !place.writable {
            if let Some(number) = self.numbers(offset, bytes).find(|number| !segments[*number].readable) {
                return Err(nonsense(format!("a region in segment {number}, which it did not grant")));
            }
            return Ok(Some(RegionMemory::new(self.clone(), self.range.at(offset), bytes, place)));
        }
        for number in self.numbers(offset, bytes) {
            self.writing.map(number, &Self::granted(&segments, number)?.descriptor)?;
        }
        drop(segments);
        if self.writing.is_frozen(offset..offset + bytes) {
            // An application still reads what it wrote there.
            let span = Span { offset: offset as u64, data_len: len, metadata_len: 0, digest: 0 };
            let memory = Arc::clone(self.writable(span)?.memory());
            let start = memory.as_ptr();
            return Ok(Some(RegionMemory::new(memory, start, bytes, place)));
        }
        let start = self.writing.at(offset);
        Ok(Some(RegionMemory::new(self.clone(), start, bytes, place)))
    }

    /// Offsets and lengths of the pieces of a region of `len` bytes, which lie in the arena.
    fn pieces(&self, place: &RegionPlace, len: u64) -> Result<Vec<(usize, usize)>> {
        let inside = |&(offset, len): &(u64, u64)| self.inside(offset, Some(len));
        let pieces = place.pieces.iter().map(inside).collect::<Result<Vec<_>>>()?;
        // The sum is bounded, as each piece lies in the arena and a frame has room for some hundreds.
        if pieces.is_empty() || pieces.iter().map(|(_, len)| *len as u64).sum::<u64>() != len {
            return Err(nonsense(format!("a region of {len} bytes in {} other pieces", pieces.len())));
        }
        match pieces[0].0 {
            offset if offset.is_multiple_of(align_of::<AtomicU64>()) => Ok(pieces),
            offset => Err(nonsense(format!("a region at {offset}, where words are not aligned"))),
        }
    }

    /// Maps the pieces of a region side by side, apart from all others, for reading and writing. `None` if
    /// the kernel gives this process no addresses, or no more mappings.
    fn side_by_side(&self, pieces: &[(usize, usize)]) -> Result<Option<Range>> {
        let segments = self.lock();
        let mut page = page_size();
        for number in pieces.iter().flat_map(|(offset, len)| self.numbers(*offset, *len)) {
            page = page.max(Self::granted(&segments, number)?.page);
        }
        let whole = |&(offset, len): &(usize, usize)| offset.is_multiple_of(page) && len.is_multiple_of(page);
        if !pieces[0].0.is_multiple_of(page) || !pieces[..pieces.len() - 1].iter().all(whole) {
            return Err(nonsense(format!("a region in pieces that are not of pages of {page} bytes")));
        }
        let lens = pieces.iter().map(|(_, len)| len.next_multiple_of(page));
        let Ok(range) = Range::reserve(lens.sum(), 0, page) else { return Ok(None) };
        let mut at = 0;
        for &(offset, len) in pieces {
            let end = offset + len.next_multiple_of(page);
            for number in self.numbers(offset, len) {
                let first = offset.max(number * self.segment_size);
                let last = end.min((number + 1) * self.segment_size);
                let descriptor = &Self::granted(&segments, number)?.descriptor;
                let within = first - number * self.segment_size;
                let access = ProtFlags::READ | ProtFlags::WRITE;
                // SAFETY: the piece lies inside the range, and nothing points into the range yet.
                let mapped = unsafe { range.map(at, last - first, descriptor, within, access) };
                if mapped.is_err() {
                    return Ok(None);
                }
                at += last - first;
            }
        }
        Ok(Some(range))
    }

    /// Grant to write to a segment, which a creation, a scratch or a region is to lie in.
    fn granted(segments: &[Segment], number: usize) -> Result<&WriteGrant> {
        let write = segments.get(number).and_then(|segment| segment.write.as_ref());
        write.ok_or_else(|| {
            nonsense(format!("an extent to write in segment {number}, which it did not grant"))
        })
    }

    /// Range of addresses through which the segments are written.
    pub(super) fn writing(&self) -> &Writing {
        &self.writing
    }

    /// Memory of this process for small objects that are being created, as far as it is not in use.
    pub(super) fn spares(&self) -> MutexGuard<'_, Vec<Range>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process made the arena. A forked child locks nothing.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.process.is_this()
    }

    /// Checks that a descriptor is a whole segment that cannot shrink. Returns its page size in bytes.
    fn check(&self, number: usize, descriptor: &OwnedFd) -> Result<usize> {
        let stat = fstat(descriptor).map_err(|error| local("examine a segment", error))?;
        let seals = fcntl_get_seals(descriptor).unwrap_or(SealFlags::empty());
        if stat.st_size as u64 != self.segment_size as u64 || !seals.contains(SealFlags::SHRINK) {
            return Err(nonsense(format!(
                "segment {number} with {} bytes instead of {} and the seals {seals:?}",
                stat.st_size, self.segment_size
            )));
        }
        let page = usize::try_from(stat.st_blksize).unwrap_or(0).max(page_size());
        if !page.is_power_of_two() || page > alignment(self.segment_size) {
            return Err(nonsense(format!("segment {number} with pages of {page} bytes")));
        }
        Ok(page)
    }

    /// Checks that a span lies in the arena. Returns its offset and its length in bytes.
    fn inside(&self, offset: u64, len: Option<u64>) -> Result<(usize, usize)> {
        let end = len.and_then(|len| offset.checked_add(len));
        match (end, len) {
            (Some(end), Some(len)) if end <= self.range.len() as u64 => Ok((offset as usize, len as usize)),
            _ => Err(nonsense(format!("an object at {offset}, outside its arena"))),
        }
    }

    /// Numbers of the segments that a span touches.
    fn numbers(&self, offset: usize, len: usize) -> std::ops::Range<usize> {
        let first = offset / self.segment_size;
        if len == 0 { first..first } else { first..(offset + len).div_ceil(self.segment_size) }
    }

    fn segments_len(&self) -> usize {
        self.range.len() / self.segment_size
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Segment>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of one object: its data, directly followed by its metadata. The span lies in mapped segments.
pub(super) struct View {
    arena: Arc<Arena>,
    span: Span,
}

impl View {
    /// Digest made at the seal, 0 for none.
    pub(super) fn digest(&self) -> u64 {
        self.span.digest
    }

    /// Offset of the object in the arena, which also names its pin.
    pub(super) fn offset(&self) -> u64 {
        self.span.offset
    }

    fn data_len(&self) -> usize {
        self.span.data_len as usize
    }

    fn bytes(&self) -> &[u8] {
        let (offset, len) = (self.span.offset as usize, self.data_len() + self.span.metadata_len as usize);
        // SAFETY: `Arena::view` checked that the span lies in mapped segments, which stay mapped as long as
        // the arena that `self` holds. The owner of this view has the object pinned, and the object is
        // sealed: the daemon neither writes nor re-uses the bytes.
        unsafe { slice::from_raw_parts(self.arena.range.at(offset), len) }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.bytes()[..self.data_len()]
    }

    pub(super) fn metadata(&self) -> &[u8] {
        &self.bytes()[self.data_len()..]
    }
}

fn nonsense(what: String) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("the daemon sent {what}: install the same release of client and daemon"),
    )
}

#[cfg(test)]
mod tests;
