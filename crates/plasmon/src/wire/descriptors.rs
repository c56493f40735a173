//! Bytes and descriptors on a unix stream socket, blocking or not.
//!
//! Owns the bytes and descriptors that a receiver has not handed on. Any thread. Invariant: a receiver holds
//! at most twice as many descriptors as it accepts with a frame.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::BytesMut;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::MAX_DESCRIPTORS;

/// Number of bytes that are read from the socket at a time.
const RECEIVE_BYTES: usize = 64 << 10;

/// Receiving half of a connection: bytes not yet decoded and descriptors not yet claimed.
pub struct Receiver {
    /// Bytes that were received. Frames are taken from the front.
    pub buffer: BytesMut,
    descriptors: VecDeque<OwnedFd>,
    /// Largest number of descriptors that are accepted with a frame.
    limit: usize,
    scratch: Vec<u8>,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            buffer: BytesMut::new(),
            descriptors: VecDeque::new(),
            limit: MAX_DESCRIPTORS,
            scratch: Vec::new(),
        }
    }
}

impl Receiver {
    /// Returns a receiver that accepts at most one descriptor with a frame. More descriptors are an error.
    pub fn with_one_descriptor() -> Self {
        Self { limit: 1, ..Self::default() }
    }

    /// Receives bytes and descriptors that have come. Returns the number of bytes; 0 means that the other
    /// side closed the connection.
    ///
    /// # Errors
    /// Errors of the socket, including `WouldBlock` and `Interrupted`. `InvalidData` if too many descriptors
    /// arrive.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        self.scratch.resize(RECEIVE_BYTES, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        // If there is no room for descriptors, the kernel closes them and says so.
        let room = rustix::cmsg_space!(ScmRights(self.limit));
        let mut ancillary = RecvAncillaryBuffer::new(&mut space[..room]);
        let message = recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut self.scratch)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for control in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = control {
                self.descriptors.extend(descriptors);
            }
        }
        if self.descriptors.len() > 2 * self.limit || message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors"));
        }
        self.buffer.extend_from_slice(&self.scratch[..message.bytes]);
        Ok(message.bytes)
    }

    /// Whether descriptors have come that belong to no frame.
    pub fn has_stray_descriptors(&self) -> bool {
        self.buffer.is_empty() && !self.descriptors.is_empty()
    }

    /// Claims the `count` oldest descriptors, or fewer if fewer have come.
    pub fn take_descriptors(&mut self, count: usize) -> Vec<OwnedFd> {
        let count = count.min(self.descriptors.len());
        self.descriptors.drain(..count).collect()
    }
}

/// Sends the front of `bytes`, with `descriptors` on the first byte. Returns the number of bytes sent.
///
/// # Errors
/// Errors of the socket. No byte and no descriptor was sent then.
pub fn send_with_descriptors(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(sent)
}
