//! A piece of the arena for another thread, which reads and writes files or sockets for the engine.
//!
//! A handle owns a share of the mapping. Any thread. Invariant: the addresses stay mapped for as long as a
//! handle lives. So a late copy can spoil bytes, if the maker of the handle dropped the extent too early, but
//! never fault.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::blocks::BlockMemory;
use super::error::OutOfBounds;
use super::mapping::Reservation;

/// The bytes of an [`Extent`](super::Extent), to be copied on any thread.
pub struct IoRange {
    range: Arc<Reservation>,
    at: usize,
    len: usize,
}

impl IoRange {
    pub(super) fn new(range: &Arc<Reservation>, at: usize, len: usize) -> IoRange {
        IoRange { range: Arc::clone(range), at, len }
    }

    /// The length of the range in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` into the range, `at` bytes from its start. Writes nothing if they do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let place = self.place(at, bytes.len())?;
        self.range.copy_in(place, bytes).map_err(|_| self.out_of_bounds(at, bytes.len()))
    }

    /// Copies `len` bytes of a block of memory, from its byte `start` on, to the beginning of the range.
    /// Copies nothing if they do not lie within both.
    pub(crate) fn copy_block(
        &self,
        block: &BlockMemory,
        start: usize,
        len: usize,
    ) -> Result<(), OutOfBounds> {
        let outside = |_| self.out_of_bounds(0, len);
        let place = self.place(0, len)?;
        let from = block.address(start, len).ok_or_else(|| self.out_of_bounds(start, len))?;
        self.range.copy_from(place, from, len).map_err(outside)
    }

    /// Copies the bytes out that lie `at` bytes from the range's start. A client that may write there can
    /// change them between two reads: read once.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let place = self.place(at, into.len())?;
        self.range.copy_out(place, into).map_err(|_| self.out_of_bounds(at, into.len()))
    }

    /// Writes `len` bytes that lie `at` bytes from the range's start to a descriptor, by one write(2) from
    /// where they are.
    ///
    /// # Errors
    /// The system's; `InvalidInput` if the range has no such bytes.
    pub fn write_to(&self, at: usize, len: usize, to: BorrowedFd<'_>) -> io::Result<usize> {
        let place = self.place(at, len).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.range.write_out(place, len, to)
    }

    /// Fills up to `len` bytes, `at` bytes from the range's start, from a descriptor, by one read(2) to
    /// their place.
    ///
    /// # Errors
    /// The errors of [`IoRange::write_to`].
    pub fn read_from(&self, at: usize, len: usize, from: BorrowedFd<'_>) -> io::Result<usize> {
        let place = self.place(at, len).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.range.read_in(place, len, from)
    }

    /// The position of `len` bytes at `at` in the mapped range.
    fn place(&self, at: usize, len: usize) -> Result<usize, OutOfBounds> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.at + at),
            _ => Err(self.out_of_bounds(at, len)),
        }
    }

    fn out_of_bounds(&self, at: usize, len: usize) -> OutOfBounds {
        OutOfBounds { at: at as u64, len: len as u64, extent: self.len as u64 }
    }
}

impl fmt::Debug for IoRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoRange").field("at", &self.at).field("len", &self.len).finish()
    }
}
