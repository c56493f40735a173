//! Bytes and descriptors over a unix stream socket, blocking or not.

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

/// Bytes asked of the socket at a time.
const CHUNK: usize = 64 << 10;

/// The receiving half of a connection: bytes not yet decoded and descriptors not yet claimed.
pub struct Receiver {
    /// Bytes received; frames are taken from its front.
    pub buffer: BytesMut,
    descriptors: VecDeque<OwnedFd>,
    /// How many may come with a frame.
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
    /// A receiver that takes at most one descriptor with a frame: more are an error.
    pub fn with_one_descriptor() -> Self {
        Self { limit: 1, ..Self::default() }
    }

    /// Receives what is there; 0 bytes means that the other side closed the connection.
    ///
    /// # Errors
    /// The socket's, `WouldBlock` and `Interrupted` among them; and `InvalidData` when more
    /// descriptors arrive than any frame may carry, or this side takes.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        self.scratch.resize(CHUNK, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        // Without room for them, the kernel closes what came and says so.
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

    /// Whether descriptors came that belong to no frame.
    pub fn has_stray_descriptors(&self) -> bool {
        self.buffer.is_empty() && !self.descriptors.is_empty()
    }

    /// Claims the `count` oldest descriptors; fewer when fewer came.
    pub fn take_descriptors(&mut self, count: usize) -> Vec<OwnedFd> {
        let count = count.min(self.descriptors.len());
        self.descriptors.drain(..count).collect()
    }
}

/// Sends the front of `bytes`, with `descriptors` on its first byte; returns the bytes taken.
///
/// # Errors
/// The socket's. Nothing was sent then, descriptors included.
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
