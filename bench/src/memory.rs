//! Shared memory as a store has it: memfds, mapped.
//!
//! Invariant: the memory of a [`Mapping`] is as long as it says for as long as it lives, because its memfd
//! is not truncated by anyone who has it.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Result;

/// A memfd mapped for reading and writing.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps a new memfd. Its pages are there and mapped if it is `populated`; otherwise the first touch of
    /// each is a page fault.
    pub(crate) fn new(len: usize, populated: bool) -> Result<Self> {
        let memory = create(len)?;
        Self::of(memory, len, populated)
    }

    /// Maps `len` bytes of a memfd that has as many.
    pub(crate) fn of(memory: impl AsFd, len: usize, populated: bool) -> Result<Self> {
        let flags = if populated { MapFlags::SHARED | MapFlags::POPULATE } else { MapFlags::SHARED };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, memory, 0)? };
        let start = NonNull::new(start.cast()).ok_or("the kernel mapped memory at address 0")?;
        Ok(Self { start, len })
    }

    /// Its bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes long while `self` lives; bytes are only taken of mappings that
        // no other process has, and `&mut self` makes this the only slice.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Its first four bytes, which other processes may change.
    pub(crate) fn word(&self) -> &AtomicU32 {
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

/// A memfd of `len` bytes.
pub(crate) fn create(len: usize) -> Result<OwnedFd> {
    let memory = memfd_create("plasmon-bench", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, len as u64)?;
    Ok(memory)
}
