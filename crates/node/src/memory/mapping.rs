//! The engine's addresses: one reserved range in which segments are mapped, one more for each extent that
//! lies in several places, and the copies into and out of them.
//!
//! Owns the addresses. Any thread copies; the engine thread maps segments. Invariants: the range stays
//! reserved as long as any [`Reservation`] handle lives, so an address in it never belongs to anything else.
//! A segment that goes is replaced in place. The pre-fault thread shares the range, and only asks the kernel
//! to populate pages.
//!
//! Clients may write the same bytes at any moment. So nothing here forms a reference into the range, except
//! to an atomic word; bytes are copied by raw pointer. A copy that races with a client is as good as the
//! client's bytes, never better.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::policy::Insistence;
use super::system::HUGE_PAGE_BYTES;

/// Alignment of the range's addresses in bytes, so that huge pages fit.
const ALIGN_BYTES: usize = HUGE_PAGE_BYTES as usize;

/// A contiguous range of addresses, inaccessible where nothing is mapped into it.
#[derive(Debug)]
pub(super) struct Reservation {
    base: NonNull<u8>,
    len: usize,
    /// The NUMA node on which the range's memory is to be.
    near: Option<u32>,
    /// The mapping that mmap gave, before alignment.
    whole: (NonNull<c_void>, usize),
    /// Whether a hole was left in the range that others may have filled since: then it is never unmapped.
    torn: AtomicBool,
}

// SAFETY: it names a range of addresses; all state besides is atomic. Its methods are system calls
// on that range, and copies, which race with client processes anyway and suppose nothing.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes of addresses without memory behind them.
    pub(super) fn new(len: usize, near: Option<u32>) -> io::Result<Reservation> {
        let whole = len.checked_add(ALIGN_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), whole, ProtFlags::empty(), flags) }?;
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        let pad = start.cast::<u8>().align_offset(ALIGN_BYTES);
        // SAFETY: `pad` < ALIGN_BYTES, and the mapping is ALIGN_BYTES longer than `len`.
        let base = unsafe { start.cast::<u8>().add(pad) };
        Ok(Reservation { base, len, near, whole: (start, whole), torn: AtomicBool::new(false) })
    }

    /// Maps the whole of `file` read-write at `at`, in place of the former mapping. On failure the range is
    /// [vacant](Reservation::vacate).
    pub(super) fn map(&self, at: usize, len: usize, file: BorrowedFd<'_>) -> io::Result<()> {
        self.map_part(at, len, file, 0)
    }

    /// Maps `len` bytes of `file`, from a whole page of it on, as [`Reservation::map`] does.
    pub(super) fn map_part(
        &self,
        at: usize,
        len: usize,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> io::Result<()> {
        let address = self.address(at, len)?.as_ptr().cast::<c_void>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range lies in our reservation, so only a segment's mapping is replaced, or nothing; the
        // arena does so only while no extent lies in it.
        let mapped = unsafe { mmap(address, len, protection, flags, file, offset) };
        if let Err(error) = mapped {
            self.vacate(at, len)?;
            return Err(error.into());
        }
        // A core dump need not hold everybody's objects, and no child process needs them.
        for advice in [Advice::LinuxDontDump, Advice::LinuxDontFork] {
            // SAFETY: neither advice changes what this process sees.
            unsafe { madvise(address, len, advice) }?;
        }
        match self.near {
            Some(node) => self.keep_near(at, len, node, Insistence::Preferred),
            None => Ok(()),
        }
    }

    /// The NUMA node on which the range's memory is to be.
    pub(super) fn near(&self) -> Option<u32> {
        self.near
    }

    /// Unmaps a segment but keeps the addresses reserved and valid: a registration that is not yet undone,
    /// or a late read by a peer, finds zeros.
    pub(super) fn vacate(&self, at: usize, len: usize) -> io::Result<()> {
        let address = self.address(at, len)?.as_ptr().cast::<c_void>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `map`.
        let vacated = unsafe { mmap_anonymous(address, len, protection, flags) };
        if vacated.is_err() {
            self.torn.store(true, Ordering::Relaxed);
        }
        vacated.map(drop).map_err(io::Error::from)
    }

    /// Allocates the pages behind a part of the range. No harm is done if a segment is replaced meanwhile.
    pub(super) fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        let address = self.address(at, len)?.as_ptr().cast::<c_void>();
        // SAFETY: populating changes no byte that anyone can see.
        unsafe { madvise(address, len, Advice::LinuxPopulateWrite) }.map_err(io::Error::from)
    }

    /// Makes one huge page of the [`HUGE_PAGE_BYTES`] bytes at `at`, of a file of base pages, if the kernel
    /// has one to give (Linux 6.1). Of the settings, only `shmem_enabled=deny` prevents it.
    pub(super) fn collapse(&self, at: usize) -> io::Result<()> {
        let len = HUGE_PAGE_BYTES as usize;
        // The kernel makes no huge page of a piece without any page.
        self.populate(at, super::PAGE_BYTES as usize)?;
        let address = self.address(at, len)?.as_ptr().cast::<c_void>();
        // SAFETY: collapsing changes no byte that anyone can see.
        match unsafe { libc::madvise(address, len, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Copies `bytes` into the range at `at`.
    pub(super) fn copy_in(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let to = self.address(at, bytes.len())?;
        // SAFETY: `to` is good for that many bytes: they lie in the reservation, and an extent
        // keeps its segment mapped. `bytes` is ours and cannot overlap memory that no reference
        // ever points into. A client that writes there at once only spoils its own bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies `len` bytes of a block of memory, which lie at `from`, into the range at `at`.
    pub(super) fn copy_from(&self, at: usize, from: NonNull<u8>, len: usize) -> io::Result<()> {
        let to = self.address(at, len)?;
        // SAFETY: as in `copy_in`; the block's owner has checked that it has `len` bytes at `from`. A fabric
        // that writes there meanwhile only spoils what is copied, and any byte is a valid u8.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), len) };
        Ok(())
    }

    /// Copies the bytes at `at` out of the range.
    pub(super) fn copy_out(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        let from = self.address(at, into.len())?;
        // SAFETY: as in `copy_in`, the other way; the copy may be torn if a client writes there
        // meanwhile, and any byte is a valid u8.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Sets `len` bytes at `at` to a value.
    pub(super) fn fill(&self, at: usize, len: usize, byte: u8) -> io::Result<()> {
        let to = self.address(at, len)?;
        // SAFETY: as in `copy_in`.
        unsafe { ptr::write_bytes(to.as_ptr(), byte, len) };
        Ok(())
    }

    /// The word of 64 bits at `at`, if it lies in the range at a multiple of 8.
    pub(super) fn word(&self, at: usize) -> Option<&AtomicU64> {
        let word = self.address(at, size_of::<AtomicU64>()).ok()?.cast::<u64>();
        // SAFETY: the eight bytes lie in the reservation, which this borrow keeps, and are aligned as just
        // checked. Where a segment is replaced, other bytes are there, but never none. An atomic may be
        // changed by anybody; a process that writes the same bytes otherwise only spoils the word's value,
        // and any value is valid.
        word.is_aligned().then(|| unsafe { AtomicU64::from_ptr(word.as_ptr()) })
    }

    /// Writes `len` bytes at `at` to a descriptor, by one write(2); returns the number of bytes written.
    pub(super) fn write_out(&self, at: usize, len: usize, to: BorrowedFd<'_>) -> io::Result<usize> {
        let from = self.address(at, len)?;
        // SAFETY: as in `copy_out`; it is the kernel that reads, and what it cannot read is an error.
        let written = unsafe { libc::write(to.as_raw_fd(), from.as_ptr().cast(), len) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    }

    /// Fills `len` bytes at `at` from a descriptor, by one read(2); returns the number of bytes read.
    pub(super) fn read_in(&self, at: usize, len: usize, from: BorrowedFd<'_>) -> io::Result<usize> {
        let to = self.address(at, len)?;
        // SAFETY: as in `copy_in`; it is the kernel that writes, and no more than `len` bytes.
        let read = unsafe { libc::read(from.as_raw_fd(), to.as_ptr().cast(), len) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// The address of the first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address of `len` bytes at `at`, if they lie in the range.
    pub(super) fn address(&self, at: usize, len: usize) -> io::Result<NonNull<u8>> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: within the range, as just checked.
        Ok(unsafe { self.base.add(at) })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.torn.load(Ordering::Relaxed) {
            return;
        }
        let (start, len) = self.whole;
        // SAFETY: the range is ours and whole, and this was its last handle: segment memories and
        // extents hold one each.
        let unmapped = unsafe { munmap(start.as_ptr(), len) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "cannot unmap the arena");
        }
    }
}

/// The engine's mapping of one segment, to be registered with a fabric.
///
/// Keeps the addresses reserved for as long as it lives, even past the arena. When the segment is
/// recycled, the same addresses show its successor.
#[derive(Clone)]
pub struct SegmentMemory {
    base: NonNull<u8>,
    len: usize,
    _range: Arc<Reservation>,
}

impl SegmentMemory {
    /// Makes the memory of `len` bytes at `at` of the reserved range.
    pub(super) fn new(range: &Arc<Reservation>, at: usize, len: usize) -> io::Result<SegmentMemory> {
        Ok(SegmentMemory { base: range.address(at, len)?, len, _range: Arc::clone(range) })
    }
}

// SAFETY: both values are fixed. The range is mapped read-write from before the value exists until
// its last handle is dropped: a segment is only ever replaced by another, or by zeros. Nothing in
// this module forms a reference into it.
unsafe impl plasmon_fabric::Memory for SegmentMemory {
    /// The start of the memory. Others may write there at any time: no reference into it may be formed.
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for SegmentMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentMemory").field("base", &self.base).field("len", &self.len).finish()
    }
}
