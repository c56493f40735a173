//! Frames between nodes: their meaning and their encoding. Owns no state; any thread.
//!
//! A frame is a [`Header`] and a body, little-endian. A message of the fabric is a [`MessageHeader`] and any
//! number of frames, at most [`MESSAGE_MAX_BYTES`] bytes so that it fits a block of the pool.
//! `docs/design/net.md` lists the fields of both headers and all bodies; the code generates these lists.
//!
//! Peers are trusted to be Plasmon, but their bytes are not: every field is checked on decode. A frame of
//! another version, with an unknown opcode or flag, or with a wrong end is dropped and counted. A request
//! that a node cannot serve is answered with [`Message::Refused`].

mod header;
mod parts;
mod table;

use bytes::{Bytes, BytesMut};
#[cfg(any(test, feature = "fuzzing"))]
use plasmon::wire::Draw;
use plasmon::wire::body::Reader;
use plasmon::wire::{self, Table, Wire, WireError, answers};
use plasmon::{Class, NodeId};

pub(crate) use self::header::{HEADER_LEN, Header, MESSAGE_HEADER_LEN, MessageHeader};
pub(crate) use self::parts::{
    Heir, Holding, Kind, Life, Location, Order, Passing, Stage, Standing, Successor, Verdict, Whole,
    WindowPlace, Wish, Withdrawal,
};
pub(crate) use self::table::{
    DIRECTORY_FRAMES, Message, OBJECTS_FRAMES, OVERVIEW_FRAMES, PLACEMENT_FRAMES, TRANSFER_FRAMES, ask,
};
use super::members::Incarnation;
use crate::object::Head;

/// Version of messages and frames.
pub(crate) const VERSION: u8 = 22;
/// Length in bytes of the largest message: what libfabric's rxm moves in one piece, less its own header.
pub(crate) const MESSAGE_MAX_BYTES: usize = 16 << 10;
/// Length in bytes of the largest frame.
pub(crate) const FRAME_MAX_BYTES: usize = MESSAGE_MAX_BYTES - MESSAGE_HEADER_LEN;
/// Maximum number of entries in a frame that lists ids.
pub(crate) const MAX_ENTRIES: usize = 256;
/// Header flag of a frame that answers a question, where its opcode alone does not say so to the receiver.
const FLAG_ANSWER: u16 = 1;
/// For each opcode, whether a question names the frame as its answer.
const ANSWERS: [bool; 256] = answers(Message::ROWS, Message::ROWS);

/// A message with its addressing. Forwarding keeps `request`, `reply_to` and `user`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The number that joins an answer to its request; `reply_to` draws it.
    pub(crate) request: u64,
    /// The node that sent this frame.
    pub(crate) from: NodeId,
    /// The incarnation of the sender.
    pub(crate) incarnation: Incarnation,
    /// The node that waits for the answer.
    pub(crate) reply_to: NodeId,
    /// Membership epoch of the sender.
    pub(crate) epoch: u64,
    /// Microseconds the asker still waits; `u64::MAX` when it does not say.
    pub(crate) deadline_us: u64,
    /// The user on whose behalf the frame is sent.
    pub(crate) user: u32,
    /// Class of service of the work that the frame is about.
    pub(crate) class: Class,
    /// Whether the frame of another service leaves in the order of its class. The frame does not carry this.
    pub(crate) by_class: bool,
    /// Whether the frame answers a question of a service's own table. Other answers are known by their
    /// opcodes.
    pub(crate) answers: bool,
    /// The body of the frame.
    pub(crate) message: Message,
}

/// A question to another node, which has one answer.
pub(crate) trait Ask: wire::Ask<Table: Frames, Answers: Frames> {}

impl<Q: wire::Ask<Table: Frames, Answers: Frames>> Ask for Q {}

/// The reason why a frame does not decode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("version {0} of the node protocol, this node speaks {VERSION}")]
    Version(u8),
    #[error("malformed frame")]
    Malformed,
    #[error(transparent)]
    Body(#[from] WireError),
}

impl Envelope {
    /// Encodes the frame. The header of the message, not the frame, has the sender.
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(256);
        let header = Header {
            opcode: self.message.opcode(),
            class: self.class,
            flags: if self.answers { FLAG_ANSWER } else { 0 },
            body_len: 0,
            request: self.request,
            reply_to: self.reply_to,
            epoch: self.epoch,
            deadline_us: self.deadline_us,
            user: self.user,
            reserved: 0,
        };
        Header::put(&header, &mut out);
        self.message.put_body(&mut out);
        let body_len = (out.len() - HEADER_LEN) as u32;
        Header::set_body_len(&mut out, body_len);
        out
    }

    /// Draws a random frame with this message, from the sender of a message.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn draw(draw: &mut Draw, sender: &MessageHeader, message: Message) -> Self {
        Self::of(sender, Header::draw(draw), message)
    }

    fn of(sender: &MessageHeader, header: Header, message: Message) -> Self {
        let Header { request, reply_to, epoch, deadline_us, user, class, .. } = header;
        let MessageHeader { from, incarnation, .. } = *sender;
        let answers = header.flags == FLAG_ANSWER && matches!(message, Message::Other(_));
        Self {
            request,
            from,
            incarnation,
            reply_to,
            epoch,
            deadline_us,
            user,
            class,
            by_class: false,
            answers,
            message,
        }
    }

    /// Takes the first frame off the frames of a message.
    pub(crate) fn decode_first(sender: &MessageHeader, frames: &mut Bytes) -> Result<Self, FrameError> {
        let body_len = Header::body_len(frames).ok_or(FrameError::Malformed)?;
        let len = (body_len as usize).saturating_add(HEADER_LEN);
        if frames.len() < len {
            return Err(FrameError::Malformed);
        }
        let mut body = Reader::new(frames.split_to(len), "node frame").with_most_items(MAX_ENTRIES);
        let header = Header::take(&mut body)?;
        let message = Message::take_body(header.opcode, &mut body)?;
        let flags = if matches!(message, Message::Other(_)) { FLAG_ANSWER } else { 0 };
        if header.flags & !flags != 0 || header.reserved != 0 {
            return Err(FrameError::Malformed);
        }
        Ok(body.finish(Self::of(sender, header, message))?)
    }
}

impl Envelope {
    /// Whether the frame answers a request, and so goes to the call that waits for it.
    pub(crate) fn is_answer(&self) -> bool {
        let message = &self.message;
        self.answers || ANSWERS[usize::from(message.opcode())] || matches!(message, Message::Refused { .. })
    }

    /// Whether the answer is for another node than the sender, although no node passes such a frame on. The
    /// other node would take the frame for the answer to a question of its own.
    pub(crate) fn is_misdirected(&self) -> bool {
        !self.is_answer() && self.reply_to != self.from && !self.message.is_passed_on()
    }
}

/// A table of frames: the node's, or that of a service of its own, whose frames the network only carries.
pub(crate) trait Frames: Table {
    /// Converts the frame to the form in which the network carries it.
    fn into_message(self) -> Message;

    /// Converts the frame to the form in which its service knows it.
    ///
    /// # Errors
    /// When the frame is of another table, or does not decode.
    fn from_message(message: Message) -> Result<Self, WireError>;

    /// Whether the frame leaves in the order of its class. Its order among the frames of other operations
    /// then does not matter.
    fn goes_by_class(&self) -> bool;
}

impl Frames for Message {
    fn into_message(self) -> Message {
        self
    }

    fn from_message(message: Message) -> Result<Self, WireError> {
        Ok(message)
    }

    fn goes_by_class(&self) -> bool {
        matches!(
            self,
            Self::Find { .. }
                | Self::Forget { .. }
                | Self::FindShort { .. }
                | Self::Fetch { .. }
                | Self::FetchShort { .. }
                | Self::Eager { .. }
                | Self::Offer { .. }
                | Self::Registered { .. }
                | Self::Stream { .. }
                | Self::Dial { .. }
                | Self::Ready { .. }
                | Self::Part { .. }
                | Self::Short { .. }
                | Self::Pushed { .. }
                | Self::Ping
                | Self::Pong
        )
    }
}

/// Lets the network carry the frames of a service's table. Frames that match the patterns after the table's
/// name leave in the order of their class.
macro_rules! carried {
    ($table:ty $(, $by_class:pat)?) => {
        impl $crate::net::frame::Frames for $table {
            fn into_message(self) -> $crate::net::frame::Message {
                $crate::net::frame::Message::Other(plasmon::wire::Other::of(&self))
            }

            fn from_message(message: $crate::net::frame::Message) -> Result<Self, plasmon::wire::WireError> {
                match message {
                    $crate::net::frame::Message::Other(other) => other.read(),
                    message => Err(plasmon::wire::WireError::Opcode(plasmon::wire::Table::opcode(&message))),
                }
            }

            fn goes_by_class(&self) -> bool {
                false $(|| matches!(self, $by_class))?
            }
        }
    };
}
pub(crate) use carried;

impl Message {
    /// Whether the sender keeps a lease for the receiver of this answer.
    pub(crate) fn comes_with_a_lease(&self) -> bool {
        matches!(self, Self::Offer { .. } | Self::Registered { .. } | Self::Stream { .. } | Self::Dial { .. })
    }

    /// Whether keepers of an id pass the frame on, on behalf of the node that asked: to another keeper, or to
    /// a holder.
    fn is_passed_on(&self) -> bool {
        matches!(
            self,
            Self::Find { .. }
                | Self::Fetch { stage: Stage::Forwarded, .. }
                | Self::FetchShort { .. }
                | Self::Claim { probe: true, .. }
        )
    }

    /// Number of bytes that a message has for an object, beside the object's head.
    pub(crate) fn eager_room(head: &Head) -> u64 {
        let mut frame = BytesMut::with_capacity(128);
        Head::put(head, &mut frame);
        let fixed = HEADER_LEN + frame.len() + size_of::<u32>();
        FRAME_MAX_BYTES.saturating_sub(fixed) as u64
    }
}

#[cfg(test)]
mod tests;
