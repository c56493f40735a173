//! Frames between a client and the daemon of its host, over a unix stream socket.
//!
//! A frame is a 24-byte header and a body, little-endian. `docs/design.md` draws the bytes.
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | version, [`VERSION`] |
//! | 1 | 1 | opcode: the request's, repeated in its reply; 0 where that failed |
//! | 2 | 2 | flags, [`FLAG_MORE`] |
//! | 4 | 4 | body length, at most [`MAX_BODY`] |
//! | 8 | 8 | request id: the client's, repeated in the reply; unique among its open requests |
//! | 16 | 2 | error kind of a failed request, 0 else |
//! | 18 | 2 | descriptors that travel with the frame, at most [`MAX_DESCRIPTORS`] |
//! | 20 | 4 | zero |
//!
//! Neither side trusts the other's bytes: lengths are checked before anything is allocated, and a
//! frame that does not decode closes the connection with an error that says why. Descriptors ride
//! on the first byte of their frame (SCM_RIGHTS) and arrive in order.

pub mod body;
mod descriptors;
mod reply;
mod request;

pub use descriptors::{Receiver, send_with_descriptors};
pub use reply::{
    Access, DeleteOutcome, Event, Granted, ObjectInfo, ObjectState, Placement, Presence, Reply, Span,
    TableDomain, TablePart, TablePartKind,
};
pub use request::{Gathering, NewObject, Request, Terms};

use bytes::{Buf, BufMut, BytesMut};

/// Version of the frames.
pub const VERSION: u8 = 3;
/// Bytes in a header.
pub const HEADER_LEN: usize = 24;
/// Largest body.
pub const MAX_BODY: usize = 1 << 20;
/// Most descriptors with one frame, and so most segments in an arena; Linux passes at most 253.
pub const MAX_DESCRIPTORS: usize = 64;
/// Largest metadata of an object.
pub const MAX_METADATA: usize = 64 << 10;
/// Longest name of an object, in bytes.
pub const MAX_NAME: usize = 255;
/// Most ids in one frame.
pub const MAX_IDS: usize = 1024;
/// Most ids that one wait is for, and that a client may wait for at once.
pub const MAX_WAIT: usize = 1 << 16;
/// Flag: another frame of the same reply follows, or of the same `Wait`.
pub const FLAG_MORE: u16 = 1;

/// A frame that does not decode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The other side speaks another version.
    #[error(
        "the other side speaks version {0} of the protocol, this side {VERSION}: install the same release on both"
    )]
    Version(u8),
    /// A body over the limit.
    #[error("a frame of {0} bytes is over the limit of {MAX_BODY}")]
    TooLong(usize),
    /// An opcode this side does not know.
    #[error("unknown opcode {0}")]
    Opcode(u8),
    /// The body ends early, is too long, or holds a value out of range.
    #[error("malformed {0}")]
    Malformed(&'static str),
}

/// The first 24 bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What is asked, or answered.
    pub opcode: u8,
    /// [`FLAG_MORE`].
    pub flags: u16,
    /// Bytes that follow.
    pub body_len: u32,
    /// Joins a reply to its request.
    pub request: u64,
    /// Error kind of a failed request, 0 else.
    pub error: u16,
    /// Descriptors that came with the frame.
    pub descriptors: u16,
}

impl Header {
    /// Reads a header, if `bytes` holds a whole one.
    ///
    /// # Errors
    /// When version, length or descriptor count are beyond what this side takes.
    pub fn peek(mut bytes: &[u8]) -> Result<Option<Self>, WireError> {
        if bytes.len() < HEADER_LEN {
            return Ok(None);
        }
        let version = bytes.get_u8();
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let header = Self {
            opcode: bytes.get_u8(),
            flags: bytes.get_u16_le(),
            body_len: bytes.get_u32_le(),
            request: bytes.get_u64_le(),
            error: bytes.get_u16_le(),
            descriptors: bytes.get_u16_le(),
        };
        if header.body_len as usize > MAX_BODY {
            return Err(WireError::TooLong(header.body_len as usize));
        }
        if header.descriptors as usize > MAX_DESCRIPTORS || bytes.get_u32_le() != 0 {
            return Err(WireError::Malformed("frame header"));
        }
        Ok(Some(header))
    }

    /// Takes the next whole frame out of `buffer`, if there is one.
    ///
    /// # Errors
    /// As [`Header::peek`].
    pub fn take_frame(buffer: &mut BytesMut) -> Result<Option<(Self, bytes::Bytes)>, WireError> {
        let Some(header) = Self::peek(buffer)? else {
            return Ok(None);
        };
        let len = HEADER_LEN + header.body_len as usize;
        if buffer.len() < len {
            return Ok(None);
        }
        let mut frame = buffer.split_to(len).freeze();
        frame.advance(HEADER_LEN);
        Ok(Some((header, frame)))
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(VERSION);
        out.put_u8(self.opcode);
        out.put_u16_le(self.flags);
        out.put_u32_le(self.body_len);
        out.put_u64_le(self.request);
        out.put_u16_le(self.error);
        out.put_u16_le(self.descriptors);
        out.put_u32_le(0);
    }
}

/// Appends a frame to `out`: the header with its length filled in, and the body `write` makes.
fn put_frame(out: &mut BytesMut, header: Header, write: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    header.put(out);
    write(out);
    let body_len = (out.len() - start - HEADER_LEN) as u32;
    out[start + 4..start + 8].copy_from_slice(&body_len.to_le_bytes());
}

mod opcode {
    pub(super) const HELLO: u8 = 1;
    pub(super) const PUT: u8 = 2;
    pub(super) const CREATE: u8 = 3;
    pub(super) const SEAL: u8 = 4;
    pub(super) const ABORT: u8 = 5;
    pub(super) const GET: u8 = 6;
    pub(super) const RELEASE: u8 = 7;
    pub(super) const CONTAINS: u8 = 8;
    pub(super) const DELETE: u8 = 9;
    pub(super) const LIST: u8 = 10;
    pub(super) const STATUS: u8 = 11;
    pub(super) const CANCEL: u8 = 12;
    pub(super) const WAIT: u8 = 13;
    pub(super) const EVICT: u8 = 14;
    pub(super) const REFRESH: u8 = 15;
    pub(super) const OPTIONS: u8 = 16;
    pub(super) const SUBSCRIBE: u8 = 17;
    pub(super) const CHANNEL: u8 = 18;
    pub(super) const TABLES: u8 = 19;
    pub(super) const EXPLAIN: u8 = 20;
    pub(super) const LOCATIONS: u8 = 21;
    pub(super) const PREFETCH: u8 = 22;
    pub(super) const CALIBRATE: u8 = 23;
    pub(super) const LEND: u8 = 24;
    pub(super) const ADOPT: u8 = 25;
    pub(super) const GIVE_BACK: u8 = 26;
    pub(super) const GET_INTO: u8 = 27;
    pub(super) const PUT_FROM: u8 = 28;
    pub(super) const REPLICATE: u8 = 29;
    pub(super) const MIGRATE: u8 = 30;
    pub(super) const BROADCAST: u8 = 31;
    pub(super) const PIN: u8 = 32;
    pub(super) const UNPIN: u8 = 33;
    pub(super) const DRAIN: u8 = 34;
    pub(super) const OVERVIEW: u8 = 40;
}

#[cfg(test)]
mod tests;
