//! The frames of a data connection, little-endian: a request like Plasma's `PLASMA_TRANSFER`, and an
//! answer like its `PLASMA_DATA`, which the object's bytes follow. Owns no state. Any thread.

use bytes::{BufMut, Bytes, BytesMut};
use plasmon::wire::WireError;
use plasmon::wire::body::Reader;
use plasmon::{NodeId, ObjectId};

const VERSION: u8 = 1;
const TRANSFER: u8 = 1;
const DATA: u8 = 2;
const REFUSED: u8 = 3;

/// Length of a request in bytes.
pub(super) const ASK_LEN: usize = 64;
/// Length of an answer in bytes, without the object.
pub(super) const ANSWER_LEN: usize = 40;

/// A request for an object, under a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ask {
    pub(super) id: ObjectId,
    /// The node that was given the lease. `request` is the number of the request with which it
    /// asked for the object.
    pub(super) reader: NodeId,
    pub(super) request: u64,
    /// The secret that came with the lease.
    pub(super) secret: u128,
}

/// Numbers of bytes of data and of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) data: u64,
    pub(super) metadata: u32,
}

impl Sizes {
    /// Number of bytes of data and metadata together, which lie one behind the other.
    pub(super) fn bytes(self) -> usize {
        (self.data as usize).saturating_add(self.metadata as usize)
    }
}

/// A holder's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) id: ObjectId,
    /// The sizes of the bytes that follow; `None` when there is no such lease.
    pub(super) sizes: Option<Sizes>,
}

impl Ask {
    pub(super) fn encode(&self) -> BytesMut {
        let mut out = begin(TRANSFER, &self.id);
        out.put_slice(self.reader.as_bytes());
        out.put_u64_le(self.request);
        out.put_u128_le(self.secret);
        debug_assert_eq!(out.len(), ASK_LEN);
        out
    }

    pub(super) fn decode(bytes: &[u8; ASK_LEN]) -> Result<Self, WireError> {
        let (kind, id, mut rest) = end(bytes)?;
        let ask = Self { id, reader: rest.node()?, request: rest.u64()?, secret: rest.u128()? };
        if kind == TRANSFER { rest.finish(ask) } else { Err(WireError::Opcode(kind)) }
    }
}

impl Answer {
    pub(super) fn encode(&self) -> BytesMut {
        let mut out = begin(if self.sizes.is_some() { DATA } else { REFUSED }, &self.id);
        let Sizes { data, metadata } = self.sizes.unwrap_or(Sizes { data: 0, metadata: 0 });
        out.put_u64_le(data);
        out.put_u32_le(metadata);
        out.put_u32_le(0);
        debug_assert_eq!(out.len(), ANSWER_LEN);
        out
    }

    pub(super) fn decode(bytes: &[u8; ANSWER_LEN]) -> Result<Self, WireError> {
        let (kind, id, mut rest) = end(bytes)?;
        let sizes = Sizes { data: rest.u64()?, metadata: rest.u32()? };
        let sizes = match (kind, rest.u32()?) {
            (DATA, 0) => Some(sizes),
            (REFUSED, 0) => None,
            _ => return Err(WireError::Opcode(kind)),
        };
        rest.finish(Self { id, sizes })
    }
}

fn begin(kind: u8, id: &ObjectId) -> BytesMut {
    let mut out = BytesMut::with_capacity(ASK_LEN);
    out.put_u8(VERSION);
    out.put_u8(kind);
    out.put_u16_le(0);
    out.put_slice(id.as_bytes());
    out
}

fn end(bytes: &[u8]) -> Result<(u8, ObjectId, Reader), WireError> {
    let mut rest = Reader::new(Bytes::copy_from_slice(bytes), "frame of a data connection");
    let (version, kind, zero, id) = (rest.u8()?, rest.u8()?, rest.u16()?, rest.object()?);
    if version == VERSION && zero == 0 { Ok((kind, id, rest)) } else { Err(rest.malformed()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_survive_the_wire(
            id in any::<[u8; 20]>(), reader in any::<[u8; 16]>(), request in any::<u64>(),
            secret in any::<u128>(), sizes in any::<Option<(u64, u32)>>(),
        ) {
            let id = ObjectId::from_bytes(id);
            let ask = Ask { id, reader: NodeId::from_bytes(reader), request, secret };
            prop_assert_eq!(Ask::decode(ask.encode()[..].try_into().unwrap()), Ok(ask));
            let answer = Answer { id, sizes: sizes.map(|(data, metadata)| Sizes { data, metadata }) };
            prop_assert_eq!(Answer::decode(answer.encode()[..].try_into().unwrap()), Ok(answer));
        }

        #[test]
        fn what_begins_otherwise_is_refused(at in 0usize..4, change in 1u8.., secret in any::<u128>()) {
            let id = ObjectId::from_bytes([7; 20]);
            let mut ask = Ask { id, reader: NodeId::from_bytes([8; 16]), request: 9, secret }.encode();
            ask[at] ^= change;
            prop_assert!(Ask::decode(ask[..].try_into().unwrap()).is_err());
        }
    }
}
