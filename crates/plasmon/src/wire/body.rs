//! Reader of the bodies of frames, field by field. Frames between nodes have bodies of the same form.
//!
//! Owns no state. Any thread. Invariant: every read is checked against the end of the body.

use bytes::{Buf, Bytes};

use super::{MAX_IDS, WireError};
use crate::{NodeId, ObjectId};

/// Reader of a body. `what` names the frame in errors.
pub struct Reader {
    rest: Bytes,
    what: &'static str,
    most_items: usize,
}

macro_rules! integers {
    ($($type:ident $take:ident),*) => {
        impl Reader {$(
            /// Reads the next little-endian integer.
            ///
            /// # Errors
            /// If the body is too short.
            pub fn $type(&mut self) -> Result<$type, WireError> {
                self.rest.$take().map_err(|_| self.malformed())
            }
        )*}
    };
}

integers!(u8 try_get_u8, u16 try_get_u16_le, u32 try_get_u32_le, u64 try_get_u64_le, u128 try_get_u128_le);

impl Reader {
    /// Returns a reader of the body `rest` of the frame `what`.
    pub fn new(rest: Bytes, what: &'static str) -> Self {
        Self { rest, what, most_items: MAX_IDS }
    }

    /// Limits lists that have no limit of their own to `most_items` items. The default is `MAX_IDS`.
    pub fn with_most_items(self, most_items: usize) -> Self {
        Self { most_items, ..self }
    }

    /// Largest number of items in a list that has no limit of its own.
    pub(super) fn most_items(&self) -> usize {
        self.most_items
    }

    /// Returns the error for a body that is not valid.
    pub fn malformed(&self) -> WireError {
        WireError::Malformed(self.what)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut bytes = [0; N];
        self.rest.try_copy_to_slice(&mut bytes).map_err(|_| self.malformed())?;
        Ok(bytes)
    }

    /// Reads an object id.
    ///
    /// # Errors
    /// If the body is too short.
    pub fn object(&mut self) -> Result<ObjectId, WireError> {
        self.array().map(ObjectId::from_bytes)
    }

    /// Reads a node id.
    ///
    /// # Errors
    /// If the body is too short.
    pub fn node(&mut self) -> Result<NodeId, WireError> {
        self.array().map(NodeId::from_bytes)
    }

    /// Reads a 32-bit length of at most `max`, and as many bytes.
    ///
    /// # Errors
    /// If the length is larger than `max`, or if the body is too short.
    pub fn bytes(&mut self, max: usize) -> Result<Bytes, WireError> {
        let len = self.u32()? as usize;
        if len > max || len > self.rest.len() {
            return Err(self.malformed());
        }
        Ok(self.rest.split_to(len))
    }

    /// Reads text: a 32-bit length of at most `max`, and as many bytes of UTF-8.
    ///
    /// # Errors
    /// As [`Reader::bytes`], and if the bytes are not UTF-8.
    pub fn text(&mut self, max: usize) -> Result<String, WireError> {
        let bytes = self.bytes(max)?;
        String::from_utf8(bytes.into()).map_err(|_| self.malformed())
    }

    /// Returns all bytes that are left.
    pub fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.rest)
    }

    /// Number of bytes that are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Ends the body, and returns `value`.
    ///
    /// # Errors
    /// If bytes are left.
    pub fn finish<T>(self, value: T) -> Result<T, WireError> {
        if self.rest.is_empty() { Ok(value) } else { Err(self.malformed()) }
    }
}
