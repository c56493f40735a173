//! `/dev/fuse`: where requests of the kernel come from, and replies and notifications go.
//!
//! Owns the descriptor of one mount, or a clone of this descriptor with a queue of its own. Any thread. One
//! call reads a request into its head and a block. The payload of a write then begins with the block, and
//! nobody copies the payload. Invariant: a request is answered on the descriptor that it was read from.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

use crate::kernel::{InHeader, OutHeader, Reader, Structure, WRITE_HEAD};

/// Path of the kernel's device.
const PATH: &str = "/dev/fuse";
/// Largest number of pieces of a reply that go with one system call.
const MAX_PARTS: usize = 1_000;

/// Descriptor of `/dev/fuse`. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Device(Arc<File>);

/// Result of a read of the device.
pub(crate) enum Received {
    /// A request: its header, and the number of bytes behind the header.
    Request(InHeader, usize),
    /// No request, because one was withdrawn or a signal came. The caller reads again.
    Nothing,
    /// The folder is not mounted any more.
    Over,
}

impl Device {
    /// Opens the device, which belongs to no mount until a folder is mounted with the descriptor.
    pub(crate) fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(PATH)?;
        Ok(Self(Arc::new(file)))
    }

    /// Takes over a descriptor that `fusermount3` has opened and mounted.
    pub(crate) fn of(file: OwnedFd) -> Self {
        Self(Arc::new(File::from(file)))
    }

    /// Returns a descriptor of the same mount with a queue of its own, so that threads share no queue.
    pub(crate) fn with_own_queue(&self) -> io::Result<Self> {
        const CLONE: u32 = opcode::read::<u32>(229, 0);
        let clone = Self::open()?;
        let source = self.0.as_raw_fd() as u32;
        // SAFETY: the call reads one integer of 32 bits, which the setter has.
        unsafe { ioctl(&clone.0, Setter::<CLONE, u32>::new(source)) }?;
        Ok(clone)
    }

    /// Waits for a request, and reads it into `head` and `block`.
    pub(crate) fn receive(&self, head: &mut [u8; WRITE_HEAD], block: &mut [u8]) -> io::Result<Received> {
        let mut parts = [IoSliceMut::new(head), IoSliceMut::new(block)];
        let len = match (&*self.0).read_vectored(&mut parts) {
            Ok(len) => len,
            Err(error) => {
                return match Errno::from_io_error(&error) {
                    Some(Errno::NODEV | Errno::CONNABORTED) => Ok(Received::Over),
                    Some(Errno::INTR | Errno::NOENT | Errno::AGAIN) => Ok(Received::Nothing),
                    _ => Err(error),
                };
            }
        };
        let header: Option<InHeader> = Reader::new(&head[..]).take();
        // The kernel hands over whole requests; anything else is ignored.
        Ok(match header.filter(|header| header.len as usize == len && len >= InHeader::LEN) {
            Some(header) => Received::Request(header, len - InHeader::LEN),
            None => Received::Nothing,
        })
    }

    /// Waits for a request for at most `patience`. Returns whether there is something to receive.
    pub(crate) fn has_request(&self, patience: Duration) -> bool {
        let timeout = Timespec::try_from(patience).unwrap_or_default();
        let mut devices = [PollFd::new(&self.0, PollFlags::IN)];
        // If the device cannot be polled, reading it gives the error.
        poll(&mut devices, Some(&timeout)).map_or(true, |ready| ready > 0)
    }

    /// Answers a request: an error number of 0 and the parts, or an error number and no parts.
    pub(crate) fn reply(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.send(OutHeader { len: 0, error: -error, unique }, parts)
    }

    /// Sends the kernel a notification with this code.
    pub(crate) fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.send(OutHeader { len: 0, error: code, unique: 0 }, parts)
    }

    fn send(&self, header: OutHeader, parts: &[&[u8]]) -> io::Result<()> {
        let payload: usize = parts.iter().map(|part| part.len()).sum();
        let len = u32::try_from(OutHeader::LEN + payload).map_err(|_| io::ErrorKind::InvalidInput)?;
        let head = OutHeader { len, ..header }.bytes();
        let joined;
        let parts = if parts.len() < MAX_PARTS {
            parts
        } else {
            joined = parts.concat();
            &[&joined[..]]
        };
        let mut slices = Vec::with_capacity(parts.len() + 1);
        slices.push(IoSlice::new(&head));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        // The device takes a reply whole or not at all.
        (&*self.0).write_vectored(&slices).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
