//! Frames between a client and the daemon of its host, over a unix stream socket.
//!
//! Owns no state. Any thread. A frame is a [`Header`] and a body, little-endian. `docs/design/sessions.md`
//! draws the header and lists all frames.
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
mod header;
mod new_object;
#[doc(hidden)]
pub mod page;
mod peer;
mod protocols;
mod region;
mod replacing;
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
pub use header::{HEADER_LEN, Header};
pub use new_object::{NewObject, Terms};
pub use peer::{Peer, groups_of, peer_of};
pub use protocols::{CALLS, CallProtocol, RESULTS, ResultProtocol};
pub use region::{OnRegion, Operation, RegionCall};
pub use replacing::{Replacing, SealingOver};
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

use header::put_frame;

/// Version of the protocol between client and daemon.
pub const VERSION: u8 = 18;
/// Largest length of a body in bytes.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// Largest number of descriptors with one frame, which limits the segments of an arena. Linux passes at most
/// 253.
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
/// Flag of a frame behind which another frame of the same `Wait` follows.
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

#[cfg(test)]
mod tests;
