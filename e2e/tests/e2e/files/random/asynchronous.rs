//! Writes that the kernel carries out while their program goes on (`io_submit`).
//!
//! Owns a queue of the kernel. One thread. Invariant: memory stays until all writes that use it have ended.
#![allow(unsafe_code)]

use std::io::Error;
use std::ops::{Deref, DerefMut};

/// Number of bytes to whose multiples memory of direct operations is aligned.
const ALIGNED: usize = 4096;
/// Largest number of writes at a time.
const MOST: usize = 16;
/// Code of a write.
const PWRITE: u16 = 1;

/// Bytes that begin at an aligned place.
pub(super) struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

/// Copies bytes to an aligned place.
pub(super) fn aligned(source: &[u8]) -> Aligned {
    let mut bytes = vec![0; source.len() + ALIGNED];
    let from = bytes.as_ptr().align_offset(ALIGNED);
    bytes[from..from + source.len()].copy_from_slice(source);
    Aligned { bytes, from, len: source.len() }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

/// Operation, as the kernel reads it.
#[repr(C)]
#[derive(Default)]
struct Operation {
    data: u64,
    key: u32,
    rw_flags: u32,
    code: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_file: u32,
}

/// Outcome of an operation, as the kernel writes it.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Event {
    data: u64,
    operation: u64,
    result: i64,
    result2: i64,
}

/// Queue of asynchronous operations.
pub(super) struct Queue(u64);

impl Queue {
    pub(super) fn new() -> Self {
        let mut queue = 0_u64;
        // SAFETY: the call writes one word.
        let done = unsafe { libc::syscall(libc::SYS_io_setup, MOST, &raw mut queue) };
        assert_eq!(done, 0, "io_setup: {}", Error::last_os_error());
        Self(queue)
    }

    /// Writes ranges of a file at a time, and waits until all are written.
    pub(super) fn write(&mut self, file: i32, writes: &[(usize, Vec<u8>)]) {
        let blocks: Vec<_> = writes.iter().map(|(_, bytes)| aligned(bytes)).collect();
        let mut operations: Vec<_> = writes
            .iter()
            .zip(&blocks)
            .map(|((offset, _), block)| Operation {
                code: PWRITE,
                file: file as u32,
                buffer: block.as_ptr() as u64,
                len: block.len() as u64,
                offset: *offset as i64,
                ..Operation::default()
            })
            .collect();
        let pointers: Vec<*mut Operation> = operations.iter_mut().map(|one| one as *mut _).collect();
        let count = pointers.len();
        // SAFETY: the kernel reads the operations now, and the blocks until their events have come below.
        let begun = unsafe { libc::syscall(libc::SYS_io_submit, self.0, count, pointers.as_ptr()) };
        assert_eq!(begun, count as i64, "io_submit: {}", Error::last_os_error());
        let mut events = vec![Event::default(); count];
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel writes at most as many events as there are.
        let ended =
            unsafe { libc::syscall(libc::SYS_io_getevents, self.0, count, count, events.as_mut_ptr(), none) };
        assert_eq!(ended, count as i64, "io_getevents: {}", Error::last_os_error());
        let mut wanted: Vec<_> = blocks.iter().map(|block| block.len() as i64).collect();
        let mut written: Vec<_> = events.iter().map(|event| event.result).collect();
        wanted.sort_unstable();
        written.sort_unstable();
        assert_eq!(written, wanted, "a write failed, or was short");
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: nothing of the queue is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}
