//! `/dev/fuse`: where requests of the kernel come from, and replies and notifications go.
//!
//! Owns the descriptor of one mount, or a clone of it with a queue of its own. Any thread. A request is read
//! by one call into its head and a block: the payload of a write then begins with the block, so that nobody
//! copies it. Invariant: a request is answered on the descriptor that it was read from.
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
    /// A request of so many bytes behind its header.
    Request(InHeader, usize),
    /// A request was withdrawn, or a signal came: read again.
    Nothing,
    /// The folder is not mounted any more.
    Over,
}

impl Device {
    /// Opens the device. It becomes a mount's when a folder is mounted with it.
    pub(crate) fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(PATH)?;
        Ok(Self(Arc::new(file)))
    }

    /// Takes over a descriptor that `fusermount3` has opened and mounted.
    pub(crate) fn of(file: OwnedFd) -> Self {
        Self(Arc::new(File::from(file)))
    }

    /// Descriptor of the same mount with a queue of its own, so that threads do not share one.
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
        // The kernel hands over whole requests, so anything else is passed over.
        Ok(match header.filter(|header| header.len as usize == len && len >= InHeader::LEN) {
            Some(header) => Received::Request(header, len - InHeader::LEN),
            None => Received::Nothing,
        })
    }

    /// Waits for a request, at most so long. Returns whether there is something to receive.
    pub(crate) fn has_request(&self, patience: Duration) -> bool {
        let timeout = Timespec::try_from(patience).unwrap_or_default();
        let mut devices = [PollFd::new(&self.0, PollFlags::IN)];
        // A device that cannot be looked at says why when it is read.
        poll(&mut devices, Some(&timeout)).map_or(true, |ready| ready > 0)
    }

    /// Answers a request: an error number of 0 and the parts, or an error number and no parts.
    pub(crate) fn reply(&self, unique: u64, error: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.send(OutHeader { len: 0, error: -error, unique }, parts)
    }

    /// Notifies the kernel.
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
