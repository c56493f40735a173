//! The header of frames: the one list of its fields and their positions.

use std::mem::offset_of;

use bytes::Bytes;
use plasmon::NodeId;
use plasmon::wire::body::Reader;
use plasmon::wire::{Wire, record};

use crate::net::class::Class;
use crate::net::members::Incarnation;

macro_rules! header {
    ($( #[doc = $about:literal] $field:ident: $type:ident, )+) => {
        record! {
            /// The header of a frame.
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub(crate) struct Header {
                $( #[doc = $about] pub(crate) $field: $type, )+
            }
        }

        /// The layout of the fields on the wire: one behind the other, each as long as it is in memory.
        #[allow(dead_code, reason = "only its measures count")]
        #[repr(C, packed)]
        struct Layout {
            $( $field: $type, )+
        }

        /// Offset, length, name and description of each field.
        #[cfg(test)]
        pub(super) const FIELDS: &[(usize, usize, &str, &str)] = &[
            $( (offset_of!(Layout, $field), size_of::<$type>(), stringify!($field), $about), )+
        ];
    };
}

header! {
    /// The version of the frames.
    version: u8,
    /// What is said: the number of a frame in the list below.
    opcode: u8,
    /// 0: there are none.
    flags: u16,
    /// The length of the body in bytes.
    body_len: u32,
    /// The session token of the receiver, given out by the coordinator.
    token: u64,
    /// The request id, drawn by the node that the answer goes to. The answer has the same.
    request: u64,
    /// The node that sends this frame.
    from: NodeId,
    /// The node that the answer goes to.
    reply_to: NodeId,
    /// The incarnation of the sender.
    incarnation: Incarnation,
    /// The membership epoch of the sender.
    epoch: u64,
    /// For how long the asker still waits, in microseconds, or all ones.
    deadline_us: u64,
    /// The user (uid) on whose behalf.
    tenant: u32,
    /// Class of the frame, by which its lane is found: 0 for messages.
    class: Class,
    /// 0.
    reserved: u8,
    /// How many messages more the receiver may send. Counts in the first frame of a message.
    credits: u16,
}

/// Length of the header in bytes.
pub(crate) const HEADER_LEN: usize = size_of::<Layout>();

impl Header {
    /// Decodes the header of a frame; `None` if the frame is shorter than a header.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let bytes = Bytes::copy_from_slice(frame.get(..HEADER_LEN)?);
        Self::take(&mut Reader::new(bytes, "node frame")).ok()
    }

    /// Length of a frame's body in bytes, as its header says.
    pub(super) fn body_len(frame: &[u8]) -> Option<u32> {
        let field = frame.get(offset_of!(Layout, body_len)..)?;
        field.first_chunk().copied().map(u32::from_le_bytes)
    }

    pub(super) fn set_body_len(frame: &mut [u8], body_len: u32) {
        let at = offset_of!(Layout, body_len);
        frame[at..at + size_of::<u32>()].copy_from_slice(&body_len.to_le_bytes());
    }

    /// Sets the number of credits that the first frame of a message returns.
    pub(crate) fn set_credits(message: &mut [u8], credits: u16) {
        let at = offset_of!(Layout, credits);
        message[at..at + size_of::<u16>()].copy_from_slice(&credits.to_le_bytes());
    }
}
