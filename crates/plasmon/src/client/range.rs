//! Ranges of addresses that this process reserves and maps the node's memory into.
//!
//! Owns the addresses of a [`Range`] until it is dropped. Runs on any thread. Invariants: nothing is mapped
//! outside the range; a range is unmapped only when nothing that points into it is left. The module stands
//! below `mapping` and `copying`, which both reserve addresses. So they do not need each other.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::{Error, ErrorKind, Result};

/// Largest alignment in bytes of mappings, which are aligned alike in the arena and in memory: the largest
/// huge page.
const MAX_ALIGNMENT_BYTES: usize = 1 << 30;

/// Addresses of this process that hold nothing else. They are given back when the range is dropped.
pub(super) struct Range {
    /// Start of the reserved addresses. More is reserved than used, for the alignment.
    reserved: NonNull<c_void>,
    reserved_len: usize,
    start: *mut u8,
    len: usize,
}

// SAFETY: a range is plain address space; who may touch its bytes is for its owners to say.
unsafe impl Send for Range {}
// SAFETY: a range is plain address space; who may touch its bytes is for its owners to say.
unsafe impl Sync for Range {}

impl Range {
    /// Reserves `len` bytes of addresses without memory whose start is congruent to `offset` modulo
    /// `alignment`. The three are multiples of the page size, `alignment` a power of two.
    pub(super) fn reserve(len: usize, offset: usize, alignment: usize) -> Result<Self> {
        let reserved_len = len + alignment;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let reserved = unsafe { mmap_anonymous(ptr::null_mut(), reserved_len, ProtFlags::empty(), flags) };
        let reserved = reserved.ok().and_then(NonNull::new).ok_or_else(|| {
            let what = format!(
                "cannot reserve {len} bytes of addresses for the node's memory: raise the limit of \
                     virtual memory (ulimit -v) of this process"
            );
            Error::new(ErrorKind::Internal, what)
        })?;
        let first = reserved.as_ptr() as usize;
        let skip = offset.wrapping_sub(first) & (alignment - 1);
        let start = reserved.as_ptr().cast::<u8>().wrapping_add(skip);
        Ok(Self { reserved, reserved_len, start, len })
    }

    /// Length of the range in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Address at `offset` of the range.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }

    /// Maps a piece of a file over `len` bytes at `at`. The bytes lie inside the range.
    ///
    /// # Safety
    /// Nothing may point to what the piece held before.
    pub(super) unsafe fn map(
        &self,
        at: usize,
        len: usize,
        file: impl AsFd,
        offset: usize,
        access: ProtFlags,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.map_with(at, len, file, offset, access, MapFlags::empty()) }
    }

    /// Maps a piece of a file as [`Range::map`] does, and brings its pages into the page table. One by one,
    /// the first writes to the pages would cost many times as much.
    ///
    /// # Safety
    /// As [`Range::map`].
    pub(super) unsafe fn map_populated(
        &self,
        at: usize,
        len: usize,
        file: impl AsFd,
        offset: usize,
        access: ProtFlags,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.map_with(at, len, file, offset, access, MapFlags::POPULATE) }
    }

    unsafe fn map_with(
        &self,
        at: usize,
        len: usize,
        file: impl AsFd,
        offset: usize,
        access: ProtFlags,
        more: MapFlags,
    ) -> Result<()> {
        debug_assert!(at + len <= self.len);
        let flags = MapFlags::SHARED | MapFlags::FIXED | more;
        // SAFETY: the addresses are this range's, and the caller answers for what they held.
        unsafe { mmap(self.at(at).cast(), len, access, flags, file, offset as u64) }
            .map_err(|error| local("map a segment", error))?;
        Ok(())
    }

    /// Changes what may be done with the whole range.
    ///
    /// # Safety
    /// Nobody may need the access that is taken away.
    pub(super) unsafe fn protect(&self, access: MprotectFlags) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.protect_part(0..self.len, access) }
    }

    /// Changes what may be done with whole pages of the range.
    ///
    /// # Safety
    /// Nobody may need the access that is taken away.
    pub(super) unsafe fn protect_part(
        &self,
        part: std::ops::Range<usize>,
        access: MprotectFlags,
    ) -> Result<()> {
        debug_assert!(part.end <= self.len);
        // SAFETY: the addresses are this range's, and the caller answers for the access.
        unsafe { mprotect(self.at(part.start).cast(), part.len(), access) }
            .map_err(|error| local("change the protection of a mapping", error))
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was reserved by `reserve`, and nothing that points into it outlives it.
        // It cannot fail for addresses that were mapped whole; if it does, they stay reserved.
        let _ = unsafe { munmap(self.reserved.as_ptr(), self.reserved_len) };
    }
}

/// Alignment in bytes of mappings: the largest power of two that divides the segment size, up to the largest
/// huge page.
pub(super) fn alignment(segment_size: usize) -> usize {
    (1 << segment_size.trailing_zeros()).min(MAX_ALIGNMENT_BYTES)
}

/// Error of a failed system call on the node's memory.
pub(super) fn local(what: &str, error: rustix::io::Errno) -> Error {
    Error::new(ErrorKind::Internal, format!("this process cannot {what} of the node: {error}"))
}
