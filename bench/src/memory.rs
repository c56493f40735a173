//! Memory of the benchmarks: mapped memfds, as a store has them, and memory of one process.
//!
//! Owns its mappings. Invariant: the memory of a [`Mapping`] keeps its length as long as the mapping lives,
//! because no process truncates its memfd.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::Result;

/// Memory mapped for reading and writing.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps a new memfd. Its pages exist and are mapped if it is `populated`. Otherwise the first touch of
    /// each is a page fault.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn new(len: usize, populated: bool) -> Result<Self> {
        let memory = create(len)?;
        Self::of(memory, len, populated)
    }

    /// Maps a memfd of `len` bytes.
    pub fn of(memory: impl AsFd, len: usize, populated: bool) -> Result<Self> {
        let flags = if populated { MapFlags::SHARED | MapFlags::POPULATE } else { MapFlags::SHARED };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, memory, 0)? };
        let start = NonNull::new(start.cast()).ok_or("the kernel mapped memory at address 0")?;
        Ok(Self { start, len })
    }

    /// Maps memory of this process, with all pages present, in huge pages if the kernel has them. Copies to
    /// and from such memory are the fastest.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn huge(len: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)? };
        let mapping =
            Self { start: NonNull::new(start.cast()).ok_or("the kernel mapped memory at address 0")?, len };
        // SAFETY: the range was just mapped, and neither advice changes its contents. The first may be
        // refused.
        unsafe {
            let _ = madvise(start, len, Advice::LinuxHugepage);
            madvise(start, len, Advice::LinuxPopulateWrite)?;
        }
        Ok(mapping)
    }

    /// Bytes of the mapping.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes long while `self` lives. Only mappings that no other process has
        // are used as slices, and `&mut self` makes this the only slice.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length of the mapping in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First four bytes of the mapping, which other processes may change.
    pub fn word(&self) -> &AtomicU32 {
        assert!(self.len >= size_of::<AtomicU32>());
        // SAFETY: a mapping begins at a page, is long enough, and lives as long as `self`.
        unsafe { self.start.cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this range was mapped by `of`, and nothing borrows it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// Places of objects of one size in memory: next to each other, or all at the same place.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    size: usize,
    count: usize,
}

impl Places {
    /// Alignment of places in bytes: that of cache lines.
    const ALIGNED: usize = 64;

    /// Makes one place, which stays in the processor's caches.
    pub fn one(size: usize) -> Self {
        Self { size, count: 1 }
    }

    /// Makes a place for each of `count` objects, as in a store; fewer if `room` bytes do not suffice.
    pub fn many(size: usize, count: usize, room: usize) -> Self {
        let most = room / size.max(1).next_multiple_of(Self::ALIGNED);
        Self { size, count: count.clamp(1, most.max(1)) }
    }

    /// Number of places.
    pub fn count(self) -> usize {
        self.count
    }

    /// Range of the bytes of one place.
    pub fn range(self, index: usize) -> Range<usize> {
        let start = index % self.count * self.size.next_multiple_of(Self::ALIGNED);
        start..start + self.size
    }

    /// Length in bytes of all places, from the beginning of the memory.
    pub fn len(self) -> usize {
        self.range(self.count - 1).end
    }

    /// Whether the places have no bytes.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Makes a memfd of `len` bytes.
pub fn create(len: usize) -> Result<OwnedFd> {
    let memory = memfd_create("plasmon-bench", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, len as u64)?;
    Ok(memory)
}
