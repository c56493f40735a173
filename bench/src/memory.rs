//! Shared memory as a store has it: memfds, mapped; and memory of one process, for what has no store.
//!
//! Invariant: the memory of a [`Mapping`] is as long as it says for as long as it lives, because its memfd
//! is not truncated by anyone who has it.
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
    /// Maps a new memfd. Its pages are there and mapped if it is `populated`; otherwise the first touch of
    /// each is a page fault.
    ///
    /// # Errors
    /// When the system has none.
    pub fn new(len: usize, populated: bool) -> Result<Self> {
        let memory = create(len)?;
        Self::of(memory, len, populated)
    }

    /// Maps `len` bytes of a memfd that has as many.
    pub fn of(memory: impl AsFd, len: usize, populated: bool) -> Result<Self> {
        let flags = if populated { MapFlags::SHARED | MapFlags::POPULATE } else { MapFlags::SHARED };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, memory, 0)? };
        let start = NonNull::new(start.cast()).ok_or("the kernel mapped memory at address 0")?;
        Ok(Self { start, len })
    }

    /// Maps memory of this process alone, all there, and in huge pages if the kernel has them: nothing is
    /// faster to copy to or from.
    ///
    /// # Errors
    /// When the system has none.
    pub fn huge(len: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)? };
        let mapping =
            Self { start: NonNull::new(start.cast()).ok_or("the kernel mapped memory at address 0")?, len };
        // SAFETY: the range was just mapped, and neither advice changes what it holds. The first may be
        // refused.
        unsafe {
            let _ = madvise(start, len, Advice::LinuxHugepage);
            madvise(start, len, Advice::LinuxPopulateWrite)?;
        }
        Ok(mapping)
    }

    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes long while `self` lives; bytes are only taken of mappings that
        // no other process has, and `&mut self` makes this the only slice.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Where it begins.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its first four bytes, which other processes may change.
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

/// Where objects of one size lie in memory: next to each other, or all in the same place.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    size: usize,
    count: usize,
}

impl Places {
    /// Places begin at cache lines.
    const ALIGNED: usize = 64;

    /// One place, which stays in the processor's caches.
    pub fn one(size: usize) -> Self {
        Self { size, count: 1 }
    }

    /// A place for each of `count` objects, as a store has them; fewer if `room` has no more.
    pub fn many(size: usize, count: usize, room: usize) -> Self {
        let most = room / size.max(1).next_multiple_of(Self::ALIGNED);
        Self { size, count: count.clamp(1, most.max(1)) }
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.count
    }

    /// The bytes of one.
    pub fn range(self, index: usize) -> Range<usize> {
        let start = index % self.count * self.size.next_multiple_of(Self::ALIGNED);
        start..start + self.size
    }

    /// All of them, from the beginning of the memory.
    pub fn len(self) -> usize {
        self.range(self.count - 1).end
    }

    /// Whether they have no bytes.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// A memfd of `len` bytes.
pub fn create(len: usize) -> Result<OwnedFd> {
    let memory = memfd_create("plasmon-bench", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, len as u64)?;
    Ok(memory)
}
