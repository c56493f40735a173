//! A piece of the arena for another thread: one that reads and writes files or sockets on the engine's
//! behalf.
//!
//! Invariant: the addresses stay mapped for as long as a handle lives, so a late copy can spoil
//! bytes, if whoever made the handle let the extent go too early, but never fault.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

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

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` in, `at` bytes from its start. Writes nothing if they do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let place = self.place(at, bytes.len())?;
        self.range.copy_in(place, bytes).map_err(|_| self.out_of_bounds(at, bytes.len()))
    }

    /// Copies out what lies `at` bytes from its start. A client that may write there can change it
    /// between two reads: read it once.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let place = self.place(at, into.len())?;
        self.range.copy_out(place, into).map_err(|_| self.out_of_bounds(at, into.len()))
    }

    /// Writes `len` bytes that lie `at` bytes from its start to a descriptor, by one write(2) from where they
    /// are.
    ///
    /// # Errors
    /// The system's; `InvalidInput` if it has no such bytes.
    pub fn write_to(&self, at: usize, len: usize, to: BorrowedFd<'_>) -> io::Result<usize> {
        let place = self.place(at, len).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.range.write_out(place, len, to)
    }

    /// Fills up to `len` bytes, `at` bytes from its start, from a descriptor, by one read(2) to where they
    /// belong.
    ///
    /// # Errors
    /// As `write_to`.
    pub fn read_from(&self, at: usize, len: usize, from: BorrowedFd<'_>) -> io::Result<usize> {
        let place = self.place(at, len).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.range.read_in(place, len, from)
    }

    /// Where in the mapped range `len` bytes at `at` lie.
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
