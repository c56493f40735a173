//! Calls by slot about the cluster and about services, and their results.
//!
//! Owns no state. Any thread. All calls are in [`CALLS`](super::CALLS). [`shared`](crate::shared) describes
//! how a call travels.
//!
//! The bytes of a call of a service, and of its reply, travel in one of three ways. At most
//! [`PAYLOAD_LEN`](crate::shared::PAYLOAD_LEN) bytes are the payload of a slot. More bytes lie in memory that
//! the client was lent, which the slot names. A receiver names memory with room for some kilobytes. Bytes
//! that do not fit there are taken by a second call into memory of their length.

use std::time::Duration;

use super::words::{LentRange, Nanoseconds};
use crate::NodeId;

crate::wire::call_table! {
    /// Call by slot about the cluster.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ClusterCall in 80..=80 {
        /// Asks for a sign of life of a node.
        80 Ping {
            /// Id of the node.
            node: NodeId,
        } -> Reached,
    }
}

crate::wire::call_result! {
    /// Result of a ping.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Reached {
        /// Time from asking the other node until its answer. It is 0 for the node of the client itself.
        pub took: Duration as Nanoseconds,
    }
}

crate::wire::call_table! {
    /// Call by slot about a service: what its callers and its servers do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ServiceCall in 120..=139 {
        /// Calls a function, and waits for its reply.
        120 Call {
            /// Number of the handle to the service.
            service: u32,
            /// Number of the function.
            function: u16,
            /// Number of bytes in lent memory. 0 if the payload is what is sent.
            len: u32,
            /// Number of bytes of lent memory in which a reply has room.
            room: u32,
            /// Lent memory in which the bytes that are sent lie.
            data: LentRange,
            /// Lent memory for the reply.
            into: LentRange,
        } -> Replied with bytes,
        /// Calls a function, and waits until a server has the call, not for its reply.
        121 Send {
            /// Number of the handle to the service.
            service: u32,
            /// Number of the function.
            function: u16,
            /// Number of bytes in lent memory. 0 if the payload is what is sent.
            len: u32,
            /// Lent memory in which they lie.
            data: LentRange,
        } with bytes,
        /// Brings a reply that had no room.
        122 TakeReply {
            /// Number of the reply, as the result of the call gave it.
            number: u64,
            /// Lent memory with room for all of it.
            into: LentRange,
        },
        /// Waits for a call at a port.
        123 Receive {
            /// Number of the port.
            port: u32,
            /// Number of bytes of lent memory in which the data of a call have room.
            room: u32,
            /// Lent memory for the data.
            into: LentRange,
        } -> Received,
        /// Brings the data of a call that had no room.
        124 TakeData {
            /// Number of the call.
            number: u64,
            /// Lent memory with room for all of them.
            into: LentRange,
        },
        /// Replies to a call. Waits until a long reply was taken.
        125 Reply {
            /// Number of the call.
            number: u64,
            /// Number of bytes in lent memory. 0 if the payload is the reply.
            len: u32,
            /// Lent memory in which they lie.
            data: LentRange,
        } with bytes,
        /// Replies to a call with the payload, and waits for the next one.
        126 ReplyAndReceive {
            /// Number of the call.
            number: u64,
            /// Number of the port.
            port: u32,
            /// Number of bytes of lent memory in which the data of the next call have room.
            room: u32,
            /// Lent memory for the data.
            into: LentRange,
        } -> Received with bytes,
        /// Says that a function failed, and in the payload why.
        127 Fail {
            /// Number of the call.
            number: u64,
        } with text,
        /// Asks whether the caller still waits.
        128 Look {
            /// Number of the call.
            number: u64,
        } -> Looked,
        /// Says that a function was not run, and in the payload why.
        129 Refuse {
            /// Number of the call.
            number: u64,
        } with text,
    }
}

crate::wire::call_result! {
    /// Result of a call of a function. A reply that fits neither the slot nor the memory that the call named
    /// is kept under its number until the reply is taken, or the time of the call is over.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Replied {
        /// Number of bytes of the reply.
        pub len: u64,
        /// Number of the reply, if it is kept.
        pub number: u64,
        /// Time for which the call waited for a thread of a server.
        pub queue: Duration as Nanoseconds,
        /// Time for which the call and its reply travelled between the nodes of caller and server.
        pub wire: Duration as Nanoseconds,
        /// Time that the function took.
        pub function: Duration as Nanoseconds,
    }
    with bytes
}

crate::wire::call_result! {
    /// Result of waiting for a call.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Received {
        /// Number of the call on this connection.
        pub number: u64,
        /// Number of the function.
        pub function: u16,
        /// User of the caller.
        pub user: u32,
        /// Number of bytes of the call's data.
        pub len: u64,
        /// Number of microseconds until the caller stops waiting.
        pub left_us: u64,
        /// Node of the caller.
        pub node: NodeId,
    }
    with bytes
}

crate::wire::call_result! {
    /// Result of asking whether a caller still waits.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Looked {
        /// Whether the caller has stopped waiting.
        pub gone: bool,
        /// Number of microseconds until the caller stops waiting.
        pub left_us: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{BySlot, SlotResult};

    /// Returns a word with one number in its low half and another in its high half.
    fn two(low: u64, high: u64) -> u64 {
        low | high << 32
    }

    #[test]
    fn the_arguments_of_a_ping_are_the_halves_of_the_node() {
        let call = ClusterCall::Ping { node: NodeId::from_bytes(std::array::from_fn(|at| at as u8)) };
        let arguments = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908, 0, 0, 0, 0];
        assert_eq!(call.encode(), (80, arguments));
        assert_eq!(ClusterCall::decode(80, arguments, &[]), Some(call));
    }

    #[test]
    fn calls_lie_in_their_words() {
        let (data, into) = (LentRange { buffer: 3, at: 64 }, LentRange { buffer: u64::MAX, at: 1 << 40 });
        let (most, port) = (u64::from(u32::MAX), 5);
        let [b, a] = [into.buffer, into.at];
        for (call, number, arguments) in [
            (
                ServiceCall::Call { service: 1, function: 2, len: 1 << 30, room: 8192, data, into },
                120,
                [two(1, 2), two(1 << 30, 8192), 3, 64, b, a],
            ),
            (
                ServiceCall::Send { service: u32::MAX, function: u16::MAX, len: u32::MAX, data },
                121,
                [two(most, 65_535), most, 3, 64, 0, 0],
            ),
            (ServiceCall::TakeReply { number: 9, into }, 122, [9, b, a, 0, 0, 0]),
            (ServiceCall::Receive { port, room: 8192, into }, 123, [two(5, 8192), b, a, 0, 0, 0]),
            (ServiceCall::TakeData { number: 9, into }, 124, [9, b, a, 0, 0, 0]),
            (
                ServiceCall::Reply { number: u64::MAX, len: 1 << 30, data },
                125,
                [u64::MAX, 1 << 30, 3, 64, 0, 0],
            ),
            (
                ServiceCall::ReplyAndReceive { number: 9, port, room: u32::MAX, into },
                126,
                [9, two(5, most), b, a, 0, 0],
            ),
            (ServiceCall::Fail { number: 9 }, 127, [9, 0, 0, 0, 0, 0]),
            (ServiceCall::Look { number: 9 }, 128, [9, 0, 0, 0, 0, 0]),
            (ServiceCall::Refuse { number: 9 }, 129, [9, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(call.encode(), (number, arguments));
            assert_eq!(ServiceCall::decode(number, arguments, &[]), Some(call));
        }
    }

    #[test]
    fn what_is_out_of_range_is_no_call() {
        for number in [ServiceCall::FIRST - 1, 130, ServiceCall::LAST] {
            assert_eq!(ServiceCall::decode(number, [0; 6], &[]), None);
        }
        let first = |word| ServiceCall::decode(120, [word, 0, 0, 0, 0, 0], &[7]);
        assert!(first(two(1, 65_535)).is_some());
        assert_eq!(first(two(1, 65_536)), None, "no function has such a number");
        assert_eq!(ServiceCall::decode(128, [9, 0, 0, 0, 0, 0], &[7]), None, "it has no payload");
    }

    #[test]
    fn results_lie_in_their_words() {
        let [queue, wire, function] = [1, 2, 3].map(Duration::from_nanos);
        let replied = Replied { len: 1 << 30, number: 7, queue, wire, function };
        assert_eq!(replied.values(), [1 << 30, 7, 1, 2, 3, 0, 0]);
        assert_eq!(Replied::of_values(replied.values(), b"a reply"), Some(replied));
        let endless = Replied { queue: Duration::MAX, ..replied };
        assert_eq!(endless.values()[2], u64::MAX);
        let node = NodeId::from_bytes(std::array::from_fn(|at| at as u8));
        let received = Received { number: 1, function: 65_535, user: 70_001, len: 5, left_us: 9, node };
        let [low, high] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(received.values(), [1, two(65_535, 70_001), 5, 9, low, high, 0]);
        assert_eq!(Received::of_values(received.values(), b"data"), Some(received));
        assert_eq!(Looked { gone: true, left_us: 9 }.values(), [1, 9, 0, 0, 0, 0, 0]);
        assert_eq!(Reached { took: queue }.values(), [1, 0, 0, 0, 0, 0, 0]);
    }
}
