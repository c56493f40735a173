//! The headers of messages and of frames: one list of the fields, and their positions on the wire. Owns no
//! state.

use std::mem::offset_of;

use bytes::{Bytes, BytesMut};
use plasmon::wire::body::Reader;
use plasmon::wire::{Wire, record};
use plasmon::{Class, NodeId};

use super::{FrameError, VERSION};
use crate::net::members::Incarnation;

macro_rules! header {
    (
        $( #[doc = $what:literal] )+
        $name:ident in $layout:ident, $fields:ident: $( #[doc = $about:literal] $field:ident: $type:ident, )+
    ) => {
        record! {
            $( #[doc = $what] )+
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub(crate) struct $name {
                $( #[doc = $about] pub(crate) $field: $type, )+
            }
        }

        /// The layout of the fields on the wire: one behind the other, each as long as it is in memory.
        #[allow(dead_code, reason = "only its measures count")]
        #[repr(C, packed)]
        struct $layout {
            $( $field: $type, )+
        }

        /// Offset, length, name and description of each field.
        #[cfg(test)]
        pub(super) const $fields: &[(usize, usize, &str, &str)] = &[
            $( (offset_of!($layout, $field), size_of::<$type>(), stringify!($field), $about), )+
        ];
    };
}

header! {
    /// The header of a message: who sends it, and its place among the messages to the receiver.
    MessageHeader in MessageLayout, MESSAGE_FIELDS:
    /// The version of messages and frames.
    version: u8,
    /// 0.
    reserved: u8,
    /// How many messages behind the received ones have not come, although a later one has.
    missing: u16,
    /// The stream of this message: a number that grows each time the sender begins to count anew.
    stream: u32,
    /// The session token of the receiver, given out by the coordinator.
    token: u64,
    /// The node that sends the message.
    from: NodeId,
    /// The incarnation of the sender.
    incarnation: Incarnation,
    /// The number of this message in its stream, from 1 on; 0 for a message that is not counted.
    number: u64,
    /// The number of the last message that has come to the sender after all messages before it.
    received: u64,
    /// The stream of the receiver's of which that is said; 0 for none.
    of: u32,
}

header! {
    /// The header of a frame.
    Header in FrameLayout, FRAME_FIELDS:
    /// Opcode: the number of a frame in the list below.
    opcode: u8,
    /// The class of service of the work that the frame is about.
    class: Class,
    /// 0: there are none.
    flags: u16,
    /// The length of the body in bytes.
    body_len: u32,
    /// The request id, drawn by the node that the answer goes to. The answer has the same.
    request: u64,
    /// The node that the answer goes to.
    reply_to: NodeId,
    /// The membership epoch of the sender.
    epoch: u64,
    /// For how long the asker still waits, in microseconds, or all ones.
    deadline_us: u64,
    /// The user (uid) on whose behalf.
    user: u32,
    /// 0.
    reserved: u32,
}

/// Length of the header of a message in bytes.
pub(crate) const MESSAGE_HEADER_LEN: usize = size_of::<MessageLayout>();
/// Length of the header of a frame in bytes.
pub(crate) const HEADER_LEN: usize = size_of::<FrameLayout>();

impl MessageHeader {
    /// Takes the header off a message.
    pub(crate) fn take_first(message: &mut Bytes) -> Result<Self, FrameError> {
        if message.len() < MESSAGE_HEADER_LEN {
            return Err(FrameError::Malformed);
        }
        let header = Self::take(&mut Reader::new(message.split_to(MESSAGE_HEADER_LEN), "node message"))?;
        match header {
            Self { version, .. } if version != VERSION => Err(FrameError::Version(version)),
            Self { reserved: 0, .. } => Ok(header),
            _ => Err(FrameError::Malformed),
        }
    }

    /// Encodes the header.
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(MESSAGE_HEADER_LEN);
        Self::put(self, &mut out);
        out
    }
}

impl Header {
    /// Length of a frame's body in bytes, as its header says.
    pub(super) fn body_len(frame: &[u8]) -> Option<u32> {
        let field = frame.get(offset_of!(FrameLayout, body_len)..)?;
        field.first_chunk().copied().map(u32::from_le_bytes)
    }

    pub(super) fn set_body_len(frame: &mut [u8], body_len: u32) {
        let at = offset_of!(FrameLayout, body_len);
        frame[at..at + size_of::<u32>()].copy_from_slice(&body_len.to_le_bytes());
    }
}
