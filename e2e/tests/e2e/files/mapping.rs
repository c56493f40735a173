//! Mappings of files into this process.
//!
//! Owns a mapping. One thread. Invariant: nobody cuts a file that is mapped to less than the mapping.
#![allow(unsafe_code)]

use std::fs::File;
use std::slice;

use rustix::io::Result;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// Mapping of the first bytes of a file, to be read and written.
pub(super) struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    /// Maps so many bytes, which others see (`SHARED`) or not (`PRIVATE`).
    pub(super) fn new(file: &File, len: usize, flags: MapFlags) -> Self {
        Self::try_new(file, len, flags).expect("mmap")
    }

    /// Maps as [`Mapping::new`] does, if the kernel lets it.
    pub(super) fn try_new(file: &File, len: usize, flags: MapFlags) -> Result<Self> {
        // SAFETY: a new mapping, which nobody else has.
        let at =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) };
        Ok(Self { at: at?.cast(), len })
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this value's alone, and is as long; the file is not cut meanwhile.
        unsafe { slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Has the kernel write to the file what was stored.
    pub(super) fn sync(&self) -> Result<()> {
        // SAFETY: the mapping is there.
        unsafe { msync(self.at.cast(), self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody uses the mapping any more.
        unsafe { munmap(self.at.cast(), self.len) }.expect("it is mapped");
    }
}
