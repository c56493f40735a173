//! Calls by slot: their numbers, and what their arguments and values are.
//!
//! Owns no state. The numbers are in the ranges of requests: 1 to 99 are of objects and the cluster, 100 to
//! 119 of [regions](super::RegionCall), 120 to 139 of services, 140 to 149 of [locks](super::SyncCall), and
//! 150 is of [files](super::files::FilesCall). How a call travels is in [`shared`](crate::shared).
//!
//! The bytes of a call of a service, and of its reply, travel in one of three ways. At most
//! [`PAYLOAD_LEN`](crate::shared::PAYLOAD_LEN) bytes are the payload of a slot. More lie in memory that the
//! client was lent, which the slot names. Who receives them names memory with room for some kilobytes; what
//! does not fit there is taken by a second call into memory of its length.

use std::time::Duration;

use super::LentRange;
use crate::NodeId;
use crate::shared::{ARGUMENTS, VALUES};

/// Asks for a sign of life of a node. The first value of the result is the time in nanoseconds from asking
/// the other node until its answer. It is 0 for the node of the client itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping {
    /// Id of the node.
    pub node: NodeId,
}

impl Ping {
    /// Number of the call.
    pub const OPCODE: u8 = 80;

    /// Arguments of the call: the halves of the id.
    pub fn arguments(self) -> [u64; 6] {
        let (halves, _) = self.node.as_bytes().as_chunks();
        [u64::from_le_bytes(halves[0]), u64::from_le_bytes(halves[1]), 0, 0, 0, 0]
    }

    /// Call with these arguments.
    pub fn of_arguments([first, second, ..]: [u64; 6]) -> Self {
        let mut bytes = [0; NodeId::LEN];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        Self { node: NodeId::from_bytes(bytes) }
    }
}

/// Call by slot about a service: what its callers and its servers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceCall {
    /// Calls a function, and waits for its reply. The result is a [`Replied`].
    Call {
        /// Number of the handle to the service.
        service: u32,
        /// Number of the function.
        function: u16,
        /// Number of bytes in lent memory. 0 if the payload is what is sent.
        len: u32,
        /// Lent memory in which they lie.
        data: LentRange,
        /// Number of bytes of lent memory in which a reply has room.
        room: u32,
        /// That memory.
        into: LentRange,
    },
    /// Calls a function, and waits until a server has the call, not for its reply.
    Send {
        /// Number of the handle to the service.
        service: u32,
        /// Number of the function.
        function: u16,
        /// Number of bytes in lent memory. 0 if the payload is what is sent.
        len: u32,
        /// Lent memory in which they lie.
        data: LentRange,
    },
    /// Brings a reply that had no room.
    TakeReply {
        /// Number of the reply, as [`Replied`] gave it.
        number: u64,
        /// Lent memory with room for all of it.
        into: LentRange,
    },
    /// Waits for a call at a port. The result is a [`Received`].
    Receive {
        /// Number of the port.
        port: u32,
        /// Number of bytes of lent memory in which the data of a call have room.
        room: u32,
        /// That memory.
        into: LentRange,
    },
    /// Brings the data of a call that had no room.
    TakeData {
        /// Number of the call.
        number: u64,
        /// Lent memory with room for all of them.
        into: LentRange,
    },
    /// Replies to a call. Waits until a long reply was taken.
    Reply {
        /// Number of the call.
        number: u64,
        /// Number of bytes in lent memory. 0 if the payload is the reply.
        len: u32,
        /// Lent memory in which they lie.
        data: LentRange,
    },
    /// Replies to a call with the payload, and waits for the next one.
    ReplyAndReceive {
        /// Number of the call.
        number: u64,
        /// Number of the port.
        port: u32,
        /// Number of bytes of lent memory in which the data of the next call have room.
        room: u32,
        /// That memory.
        into: LentRange,
    },
    /// Says that a function failed. The payload says why.
    Fail {
        /// Number of the call.
        number: u64,
    },
    /// Asks whether the caller still waits. The values are 1 if it does not, and the microseconds left.
    Look {
        /// Number of the call.
        number: u64,
    },
}

impl ServiceCall {
    /// Number of the first call.
    pub const FIRST: u8 = 120;
    /// Number of the last call.
    pub const LAST: u8 = 139;

    /// Number and arguments of the call.
    pub fn encode(self) -> (u8, [u64; ARGUMENTS]) {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (number, arguments) = match self {
            Self::Call { service, function, len, data, room, into } => {
                let first = two(service, function.into());
                (0, [first, two(len, room), data.buffer, data.at, into.buffer, into.at])
            }
            Self::Send { service, function, len, data } => {
                (1, [two(service, function.into()), len.into(), data.buffer, data.at, 0, 0])
            }
            Self::TakeReply { number, into } => (2, [number, into.buffer, into.at, 0, 0, 0]),
            Self::Receive { port, room, into } => (3, [two(port, room), into.buffer, into.at, 0, 0, 0]),
            Self::TakeData { number, into } => (4, [number, into.buffer, into.at, 0, 0, 0]),
            Self::Reply { number, len, data } => (5, [number, len.into(), data.buffer, data.at, 0, 0]),
            Self::ReplyAndReceive { number, port, room, into } => {
                (6, [number, two(port, room), into.buffer, into.at, 0, 0])
            }
            Self::Fail { number } => (7, [number, 0, 0, 0, 0, 0]),
            Self::Look { number } => (8, [number, 0, 0, 0, 0, 0]),
        };
        (Self::FIRST + number, arguments)
    }

    /// Call with this number and these arguments. `None` if there is no such call, or if an argument is out
    /// of range.
    pub fn decode(opcode: u8, [a, b, c, d, e, f]: [u64; ARGUMENTS]) -> Option<Self> {
        let low = |word: u64| word as u32;
        let high = |word: u64| (word >> 32) as u32;
        let range = |buffer, at| LentRange { buffer, at };
        Some(match opcode.checked_sub(Self::FIRST)? {
            0 => Self::Call {
                service: low(a),
                function: high(a).try_into().ok()?,
                len: low(b),
                data: range(c, d),
                room: high(b),
                into: range(e, f),
            },
            1 => Self::Send {
                service: low(a),
                function: high(a).try_into().ok()?,
                len: b.try_into().ok()?,
                data: range(c, d),
            },
            2 => Self::TakeReply { number: a, into: range(b, c) },
            3 => Self::Receive { port: low(a), room: high(a), into: range(b, c) },
            4 => Self::TakeData { number: a, into: range(b, c) },
            5 => Self::Reply { number: a, len: b.try_into().ok()?, data: range(c, d) },
            6 => Self::ReplyAndReceive { number: a, port: low(b), room: high(b), into: range(c, d) },
            7 => Self::Fail { number: a },
            8 => Self::Look { number: a },
            _ => return None,
        })
    }
}

/// Result of a call of a function. A reply that fits neither the slot nor the memory that the call named is
/// kept under its number until it is taken, or the time of the call is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replied {
    /// Number of bytes of the reply.
    pub len: u64,
    /// Number of the reply, if it is kept.
    pub number: u64,
    /// Time in which the call waited for a thread of a server.
    pub queue: Duration,
    /// Time between the nodes of caller and server.
    pub wire: Duration,
    /// Time that the function took.
    pub function: Duration,
}

impl Replied {
    /// Values of the result.
    pub fn values(self) -> [u64; VALUES] {
        let [queue, wire, function] =
            [self.queue, self.wire, self.function].map(|time| time.as_nanos().try_into().unwrap_or(u64::MAX));
        [self.len, self.number, queue, wire, function, 0, 0]
    }

    /// Result with these values.
    pub fn of_values([len, number, queue, wire, function, ..]: [u64; VALUES]) -> Self {
        let [queue, wire, function] = [queue, wire, function].map(Duration::from_nanos);
        Self { len, number, queue, wire, function }
    }
}

/// Result of waiting for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Number of the call on this connection.
    pub number: u64,
    /// Number of the function.
    pub function: u16,
    /// User of the caller.
    pub user: u32,
    /// Number of bytes of the data.
    pub len: u64,
    /// Microseconds until the caller waits no more.
    pub left_us: u64,
    /// Node of the caller.
    pub node: NodeId,
}

impl Received {
    /// Values of the result.
    pub fn values(self) -> [u64; VALUES] {
        let [first, second, ..] = Ping { node: self.node }.arguments();
        let whose = u64::from(self.function) | u64::from(self.user) << 32;
        [self.number, whose, self.len, self.left_us, first, second, 0]
    }

    /// Result with these values.
    pub fn of_values([number, whose, len, left_us, first, second, _]: [u64; VALUES]) -> Self {
        let Ping { node } = Ping::of_arguments([first, second, 0, 0, 0, 0]);
        Self { number, function: whose as u16, user: (whose >> 32) as u32, len, left_us, node }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_of_the_node() {
        let node = NodeId::random();
        assert_eq!(Ping::of_arguments(Ping { node }.arguments()), Ping { node });
    }

    #[test]
    fn every_call_of_a_service_has_arguments_of_its_own() {
        let (data, into) = (LentRange { buffer: 3, at: 64 }, LentRange { buffer: u64::MAX, at: 1 << 40 });
        let calls = [
            ServiceCall::Call { service: 1, function: 2, len: 1 << 30, data, room: 8192, into },
            ServiceCall::Send { service: u32::MAX, function: u16::MAX, len: u32::MAX, data },
            ServiceCall::TakeReply { number: 9, into },
            ServiceCall::Receive { port: 5, room: 8192, into },
            ServiceCall::TakeData { number: 9, into },
            ServiceCall::Reply { number: u64::MAX, len: 1 << 30, data },
            ServiceCall::ReplyAndReceive { number: 9, port: 5, room: u32::MAX, into },
            ServiceCall::Fail { number: 9 },
            ServiceCall::Look { number: 9 },
        ];
        for call in calls {
            let (opcode, arguments) = call.encode();
            assert!((ServiceCall::FIRST..=ServiceCall::LAST).contains(&opcode));
            assert_eq!(ServiceCall::decode(opcode, arguments), Some(call));
        }
        assert_eq!(ServiceCall::decode(ServiceCall::FIRST - 1, [0; 6]), None);
        assert_eq!(ServiceCall::decode(ServiceCall::LAST, [0; 6]), None);
        let (opcode, mut arguments) = calls[0].encode();
        arguments[0] |= 1 << 48;
        assert_eq!(ServiceCall::decode(opcode, arguments), None, "no function has such a number");
    }

    #[test]
    fn results_of_a_service_are_values() {
        let [queue, wire, function] = [1, 2, 3].map(Duration::from_nanos);
        let replied = Replied { len: 1 << 30, number: 7, queue, wire, function };
        assert_eq!(Replied::of_values(replied.values()), replied);
        let node = NodeId::random();
        let received =
            Received { number: 1, function: 65_535, user: 70_001, len: 5, left_us: u64::MAX, node };
        assert_eq!(Received::of_values(received.values()), received);
    }
}
