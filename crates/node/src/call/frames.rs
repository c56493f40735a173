//! The one list of frames about services and their calls, which nodes send on behalf of their clients.
//! Owns no state. Any thread. The user of a frame is the user who asks.

use std::ops::RangeInclusive;

use bytes::Bytes;
use plasmon::service::{MAX_FUNCTIONS, ServiceInfo};
use plasmon::wire::{AtMost, Each, MAX_NAME_BYTES, table};
use plasmon::{NodeId, ObjectId};

use crate::net::frame::{Location, WindowPlace, carried};

/// Numbers of the frames about services.
pub(super) const CALL_FRAMES: RangeInclusive<u8> = 130..=149;
/// Maximum number of bytes of a call or a reply that travel in a frame. More bytes are written to a
/// window, or read.
pub(super) const CARRIED_MAX_BYTES: u64 = 8 << 10;
/// Maximum number of nodes of a service that a frame tells.
pub(super) const MAX_NODES: usize = 256;

table! {
    /// A frame about services.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum CallFrame in ask -> CallFrame in self {
        /// Tells the home of a service's name that the sender has servers of it. It is sent again and again.
        130 Join {
            id: ObjectId,
            owner: u32,
            functions: Vec<String> as Each<AtMost<MAX_NAME_BYTES>, MAX_FUNCTIONS>,
        } -> Joined,
        /// Says that the home has noted the node.
        131 Joined,
        /// Tells the home that the sender has no servers any more.
        132 Part { id: ObjectId },
        /// Asks the home of a name which nodes have servers. The name has to belong to `owner`, or else to
        /// the user or to root.
        133 Seek { id: ObjectId, owner: Option<u32> } -> Sought,
        /// Says which nodes have servers, and what functions they run.
        134 Sought {
            owner: u32,
            functions: Vec<String> as Each<AtMost<MAX_NAME_BYTES>, MAX_FUNCTIONS>,
            nodes: Vec<NodeId> as AtMost<MAX_NODES>,
        },
        /// Calls a function of a service of the user `owner`. The data come with the frame, or lie in the
        /// sender's memory until the call has been answered, and may be `written` to a window of the
        /// receiver's as well. A call that is `one_way` is answered as soon as a server has it.
        135 Call {
            call: u64,
            id: ObjectId,
            owner: u32,
            function: String as AtMost<MAX_NAME_BYTES>,
            left_us: u64,
            one_way: bool,
            data: Bytes,
            pieces: Vec<Location>,
            written: Option<WindowPlace>,
        } -> Returned,
        /// Brings the reply to a call, or says where it lies in the sender's memory until the receiver has
        /// *taken* it, and whether it was `written` to a window of the receiver's as well; and for how many
        /// nanoseconds the call waited, and the function ran.
        136 Returned {
            data: Bytes,
            pieces: Vec<Location>,
            written: Option<WindowPlace>,
            lent: u64,
            queue_ns: u64,
            function_ns: u64,
        },
        /// Says that nobody waits for the answer to a call any more.
        137 GiveUp { call: u64 },
        /// Says that a reply is not read any more.
        138 Taken { lent: u64 },
        /// Asks for the page of the receiver's names that begins at a place: 0, or what the page before said.
        139 List { from: u64 } -> Listed,
        /// Answers a *list*, with the place at which the next page begins, if there is one.
        140 Listed { services: Vec<ServiceInfo>, next: Option<u64> },
    }
}
carried!(CallFrame, Self::Call { .. } | Self::Returned { .. } | Self::GiveUp { .. });

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plasmon::wire::{Table, page};

    use super::*;
    use crate::net::frame::Frames;

    #[test]
    fn every_frame_survives_the_wire_and_has_a_number_of_calls() {
        for frame in CallFrame::draw_all(50, 1) {
            assert!(CALL_FRAMES.contains(&frame.opcode()));
            assert_eq!(CallFrame::from_message(frame.clone().into_message()), Ok(frame));
        }
    }

    #[test]
    fn the_page_lists_the_frames() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/call.md");
        page::check(&path, "call frames", &page::rows(CallFrame::ROWS, CallFrame::ROWS));
    }
}
