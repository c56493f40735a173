//! Header of a frame between a client and its daemon: the one list of its fields, and their places.
//!
//! Owns no state. Any thread. Invariant: a header that was encoded decodes to an equal header.

use std::mem::offset_of;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{MAX_BODY_BYTES, MAX_DESCRIPTORS, Table, VERSION, WireError};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = size_of::<Layout>();

macro_rules! layout {
    ($( #[doc = $about:literal] $field:ident: $type:ident, )+) => {
        /// Fields of a header as they are on the wire: one behind the other, little-endian.
        #[repr(C, packed)]
        struct Layout {
            $( $field: $type, )+
        }

        impl Layout {
            fn read(bytes: &[u8; HEADER_LEN]) -> Self {
                let mut rest = &bytes[..];
                Self { $( $field: $type::from_le_bytes(first(&mut rest)), )+ }
            }

            fn put(self, out: &mut BytesMut) {
                let Self { $( $field, )+ } = self;
                $( out.put_slice(&$field.to_le_bytes()); )+
            }
        }

        /// Offset, length, name and description of each field.
        #[cfg(test)]
        pub(super) const FIELDS: &[(usize, usize, &str, &str)] = &[
            $( (offset_of!(Layout, $field), size_of::<$type>(), stringify!($field), $about), )+
        ];
    };
}

layout! {
    /// The version of the protocol.
    version: u8,
    /// Opcode: the number of the request or the reply in its table.
    opcode: u8,
    /// 1 if another frame of the same wait follows, else 0.
    flags: u16,
    /// The length of the body in bytes, at most 1 MiB.
    body_len: u32,
    /// The request id: the client's, repeated in the reply, and unique among its open requests.
    request: u64,
    /// 0.
    reserved: u16,
    /// The number of descriptors that travel with the frame, at most 64.
    descriptors: u16,
    /// 0.
    unused: u32,
}

/// Header of a frame: its first 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the request or the reply in its table.
    pub opcode: u8,
    /// Flags of the frame: 0 or [`FLAG_MORE`](super::FLAG_MORE).
    pub flags: u16,
    /// Length of the body in bytes.
    pub body_len: u32,
    /// Request id, which joins a reply to its request.
    pub request: u64,
    /// Number of descriptors that travel with the frame.
    pub descriptors: u16,
}

impl Header {
    /// Reads a header, if `bytes` holds a whole header.
    ///
    /// # Errors
    /// If the version is another one, or if the length or the number of descriptors is over its limit.
    pub fn peek(bytes: &[u8]) -> Result<Option<Self>, WireError> {
        let Some(bytes) = bytes.first_chunk() else {
            return Ok(None);
        };
        let Layout { version, opcode, flags, body_len, request, reserved, descriptors, unused } =
            Layout::read(bytes);
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        if body_len as usize > MAX_BODY_BYTES {
            return Err(WireError::TooLong(body_len as usize));
        }
        if descriptors as usize > MAX_DESCRIPTORS || reserved != 0 || unused != 0 {
            return Err(WireError::Malformed("frame header"));
        }
        Ok(Some(Self { opcode, flags, body_len, request, descriptors }))
    }

    /// Takes the next whole frame out of `buffer`, if there is one.
    ///
    /// # Errors
    /// As [`Header::peek`].
    pub fn take_frame(buffer: &mut BytesMut) -> Result<Option<(Self, Bytes)>, WireError> {
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

    pub(super) fn put(self, out: &mut BytesMut) {
        let Self { opcode, flags, body_len, request, descriptors } = self;
        Layout { version: VERSION, opcode, flags, body_len, request, reserved: 0, descriptors, unused: 0 }
            .put(out);
    }
}

/// Appends the frame of a message to `out`. `descriptors` is the number of descriptors that travel with it.
pub(super) fn put_frame(
    message: &impl Table,
    flags: u16,
    request: u64,
    descriptors: usize,
    out: &mut BytesMut,
) {
    let (start, descriptors) = (out.len(), descriptors as u16);
    Header { opcode: message.opcode(), flags, body_len: 0, request, descriptors }.put(out);
    message.put_body(out);
    let body_len = (out.len() - start - HEADER_LEN) as u32;
    let at = start + offset_of!(Layout, body_len);
    out[at..at + size_of::<u32>()].copy_from_slice(&body_len.to_le_bytes());
}

/// Takes the first `N` bytes off `rest`.
fn first<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, others) = rest.split_first_chunk().expect("the fields fill the header");
    *rest = others;
    *first
}
