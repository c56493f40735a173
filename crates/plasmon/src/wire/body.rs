//! Bodies, field by field: every read is checked. The frames between nodes are made of the same parts.

use bytes::{Buf, Bytes};

use super::{MAX_IDS, WireError};
use crate::{NodeId, ObjectId};

/// A body being read. `what` names the frame in errors.
pub struct Reader {
    rest: Bytes,
    what: &'static str,
    most_items: usize,
}

macro_rules! integers {
    ($($type:ident $take:ident),*) => {
        impl Reader {$(
            /// The next little-endian integer.
            ///
            /// # Errors
            /// When the body ends before.
            pub fn $type(&mut self) -> Result<$type, WireError> {
                self.rest.$take().map_err(|_| self.malformed())
            }
        )*}
    };
}

integers!(u8 try_get_u8, u16 try_get_u16_le, u32 try_get_u32_le, u64 try_get_u64_le, u128 try_get_u128_le);

impl Reader {
    /// Begins to read.
    pub fn new(rest: Bytes, what: &'static str) -> Self {
        Self { rest, what, most_items: MAX_IDS }
    }

    /// Takes lists of at most so many items, where a list has no limit of its own; `MAX_IDS` else.
    pub fn with_most_items(self, most_items: usize) -> Self {
        Self { most_items, ..self }
    }

    /// Most items in a list that has no limit of its own.
    pub(super) fn most_items(&self) -> usize {
        self.most_items
    }

    /// What is said of a body that makes no sense.
    pub fn malformed(&self) -> WireError {
        WireError::Malformed(self.what)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut bytes = [0; N];
        self.rest.try_copy_to_slice(&mut bytes).map_err(|_| self.malformed())?;
        Ok(bytes)
    }

    /// An object id.
    ///
    /// # Errors
    /// When the body ends before.
    pub fn object(&mut self) -> Result<ObjectId, WireError> {
        self.array().map(ObjectId::from_bytes)
    }

    /// A node id.
    ///
    /// # Errors
    /// When the body ends before.
    pub fn node(&mut self) -> Result<NodeId, WireError> {
        self.array().map(NodeId::from_bytes)
    }

    /// A 32-bit length of at most `max`, and as many bytes.
    ///
    /// # Errors
    /// When it is longer, or the body ends before.
    pub fn bytes(&mut self, max: usize) -> Result<Bytes, WireError> {
        let len = self.u32()? as usize;
        if len > max || len > self.rest.len() {
            return Err(self.malformed());
        }
        Ok(self.rest.split_to(len))
    }

    /// As `bytes`, in UTF-8.
    ///
    /// # Errors
    /// As `bytes`, and when it is not UTF-8.
    pub fn text(&mut self, max: usize) -> Result<String, WireError> {
        let bytes = self.bytes(max)?;
        String::from_utf8(bytes.into()).map_err(|_| self.malformed())
    }

    /// All that is left.
    pub fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.rest)
    }

    /// Bytes that were not read yet.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Ends the body.
    ///
    /// # Errors
    /// When something is left.
    pub fn finish<T>(self, value: T) -> Result<T, WireError> {
        if self.rest.is_empty() { Ok(value) } else { Err(self.malformed()) }
    }
}
