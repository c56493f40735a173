//! Frames between a client and the daemon of its host, over a unix stream socket.
//!
//! A frame is a 24-byte header and a body, little-endian. `docs/design/sessions.md` lists all frames.
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 1 | version, [`VERSION`] |
//! | 1 | 1 | opcode: the number of the request or reply in its table |
//! | 2 | 2 | flags, [`FLAG_MORE`] |
//! | 4 | 4 | body length, at most [`MAX_BODY_BYTES`] |
//! | 8 | 8 | request id: the client's, repeated in the reply; unique among its open requests |
//! | 16 | 2 | zero |
//! | 18 | 2 | descriptors that travel with the frame, at most [`MAX_DESCRIPTORS`] |
//! | 20 | 4 | zero |
//!
//! Neither side trusts the other's bytes. Lengths are checked before memory is allocated. A frame that does
//! not decode closes the connection with an error that says why. Descriptors are sent with the first byte of
//! their frame (SCM_RIGHTS) and arrive in order.

pub mod body;
mod call;
mod call_table;
mod descriptors;
mod draw;
mod fields;
pub mod files;
mod gathering;
mod new_object;
#[doc(hidden)]
pub mod page;
mod peer;
mod protocols;
mod region;
mod reply;
mod request;
mod request_frames;
mod slices;
mod sync;
mod table;
mod words;

/// Buffer that frames are written to.
pub use bytes::BytesMut;

pub use crate::{
    wire_call_result as call_result, wire_call_table as call_table, wire_codes as codes,
    wire_record as record, wire_table as table,
};
pub use call::{ClusterCall, Looked, Reached, Received, Replied, ServiceCall};
pub use call_table::{BySlot, CallRow, CallTable, Packed, Placed, SlotResult};
#[doc(hidden)]
pub use call_table::{are_others, are_within, enter_result, placed};
pub use descriptors::{Receiver, send_with_descriptors};
pub use draw::Draw;
pub use fields::{AtMost, Each, Types, Wire};
#[doc(hidden)]
pub use fields::{listed, numbered};
pub use gathering::Gathering;
pub use new_object::{NewObject, Terms};
pub use peer::{Peer, groups_of, peer_of};
pub use protocols::{CALLS, CallProtocol, RESULTS, ResultProtocol};
pub use region::{OnRegion, Operation, RegionCall};
pub use reply::{
    Access, DeleteOutcome, Event, Granted, ObjectInfo, ObjectState, Placement, Presence, RegionPlace, Reply,
    Span, TableDomain, TablePart, TablePartKind, replies,
};
pub use request::{Request, requests};
pub use sync::{Locked, Passed, SyncCall};
pub use table::{Ask, FIRST_OTHER, Field, Other, Row, Table, answers};
#[doc(hidden)]
pub use table::{alternatives, are_distinct};
pub use words::{Argument, InWord, LentRange, Nanoseconds, NotZero, Packing, Payload, Unpacking};

use bytes::{Buf, BufMut};

/// Version of the protocol between client and daemon.
pub const VERSION: u8 = 15;
/// Length of a header in bytes.
pub const HEADER_LEN: usize = 24;
/// Largest length of a body in bytes.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// Largest number of descriptors with one frame, and so of segments in an arena. Linux passes at most 253.
pub const MAX_DESCRIPTORS: usize = 64;
/// Largest metadata in bytes that a frame carries. A creator writes larger metadata into the store itself.
pub const MAX_METADATA_BYTES: usize = 64 << 10;
/// Longest name of an object or a client, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Largest number of ids in one frame.
pub const MAX_IDS: usize = 1024;
/// Largest number of ids in one wait, and of ids that a client may wait for at the same time.
pub const MAX_WAIT_IDS: usize = 1 << 16;
/// Largest number of nodes in one list of members.
pub const MAX_MEMBERS: usize = 1 << 15;
/// Largest number of bytes of an object's metadata in a list.
pub const SHOWN_METADATA_BYTES: usize = 256;
/// Flag of a frame that another frame of the same `Wait` follows.
pub const FLAG_MORE: u16 = 1;

/// Error for a frame that does not decode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The other side speaks another version of the protocol.
    #[error(
        "the other side speaks version {0} of the protocol, this side {VERSION}: install the same release \
         on both"
    )]
    Version(u8),
    /// The body is longer than [`MAX_BODY_BYTES`].
    #[error("a frame of {0} bytes is over the limit of {MAX_BODY_BYTES}")]
    TooLong(usize),
    /// This side does not know the opcode.
    #[error("unknown opcode {0}")]
    Opcode(u8),
    /// The body is too short, is too long, or holds a value out of range.
    #[error("malformed {0}")]
    Malformed(&'static str),
}

/// Header of a frame: its first 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the request or the reply in its table.
    pub opcode: u8,
    /// Flags of the frame: 0 or [`FLAG_MORE`].
    pub flags: u16,
    /// Length of the body in bytes.
    pub body_len: u32,
    /// Request id, which joins a reply to its request.
    pub request: u64,
    /// Number of descriptors that travel with the frame.
    pub descriptors: u16,
}

impl Header {
    /// Reads a header, if `bytes` holds a whole one.
    ///
    /// # Errors
    /// If the version is another one, or if the length or the number of descriptors is over its limit.
    pub fn peek(mut bytes: &[u8]) -> Result<Option<Self>, WireError> {
        if bytes.len() < HEADER_LEN {
            return Ok(None);
        }
        let version = bytes.get_u8();
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let (opcode, flags, body_len) = (bytes.get_u8(), bytes.get_u16_le(), bytes.get_u32_le());
        let (request, zero, descriptors) = (bytes.get_u64_le(), bytes.get_u16_le(), bytes.get_u16_le());
        if body_len as usize > MAX_BODY_BYTES {
            return Err(WireError::TooLong(body_len as usize));
        }
        if descriptors as usize > MAX_DESCRIPTORS || zero != 0 || bytes.get_u32_le() != 0 {
            return Err(WireError::Malformed("frame header"));
        }
        let header = Self { opcode, flags, body_len, request, descriptors };
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
        out.put_u16_le(0);
        out.put_u16_le(self.descriptors);
        out.put_u32_le(0);
    }
}

/// Appends the frame of a message to `out`, with which so many descriptors travel.
fn put_frame(message: &impl Table, flags: u16, request: u64, descriptors: usize, out: &mut BytesMut) {
    let (start, descriptors) = (out.len(), descriptors as u16);
    Header { opcode: message.opcode(), flags, body_len: 0, request, descriptors }.put(out);
    message.put_body(out);
    let body_len = (out.len() - start - HEADER_LEN) as u32;
    out[start + 4..start + 8].copy_from_slice(&body_len.to_le_bytes());
}

#[cfg(test)]
mod tests;
