//! Calls by slot about locks and barriers, and their results.
//!
//! Owns no state. Any thread. A *ticket* is a number that the client chooses for one call, and for the guard
//! or the arrival that follows from the call. A ticket is unique on the connection and not 0.

use super::words::{InWord, NotZero, Payload};

crate::wire::call_table! {
    /// Call by slot about a lock or a barrier.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SyncCall in 140..=149 {
        /// Waits for a lock. A time-out of 0 does not wait: the error is `Busy`.
        140 Lock {
            /// Number of the handle to the lock.
            lock: u32,
            /// Ticket of the guard.
            ticket: u64 as NotZero,
            /// Whether others may hold the lock at the same time, if they share it as well.
            shared: bool,
        } -> Locked,
        /// Ends a guard, or a call that waits for a lock.
        141 Unlock {
            /// Ticket of the guard.
            ticket: u64 as NotZero,
        },
        /// Says that the process is alive. Leases are renewed for as long as that was said within their time
        /// to live.
        142 Keep,
        /// Waits at a barrier until all parties have arrived.
        145 Arrive {
            /// Number of the handle to the barrier.
            barrier: u32,
            /// Ticket of the arrival.
            ticket: u64 as NotZero,
        } -> Passed,
    }
    retired 143, 144
}

crate::wire::call_result! {
    /// Result of a call that got a lock.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Locked {
        /// Index of the word of the lease in the client's [leases](super::Reply::Leases).
        pub word: u32,
        /// Whether the previous holder died, or lost the lock, instead of unlocking it.
        pub abandoned: bool as InWord<1>,
        /// Token of the guard, larger than the token of every earlier guard of the lock.
        pub token: u128 as Payload,
    }
}

crate::wire::call_result! {
    /// Result of a call that passed a barrier.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Passed {
        /// Place of the arrival among those of all parties, from 0.
        pub index: u32,
        /// Number of times that the barrier had been passed before this time.
        pub generation: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{BySlot, SlotResult};

    #[test]
    fn calls_lie_in_their_words() {
        for (call, number, arguments) in [
            (SyncCall::Lock { lock: u32::MAX, ticket: 1, shared: true }, 140, [(1 << 32) - 1, 1, 1, 0, 0, 0]),
            (SyncCall::Unlock { ticket: u64::MAX }, 141, [u64::MAX, 0, 0, 0, 0, 0]),
            (SyncCall::Keep, 142, [0; 6]),
            (SyncCall::Arrive { barrier: 3, ticket: 4 }, 145, [3, 4, 0, 0, 0, 0]),
        ] {
            assert_eq!(call.encode(), (number, arguments));
            assert_eq!(SyncCall::decode(number, arguments, &[]), Some(call));
        }
    }

    #[test]
    fn arguments_out_of_range_are_no_call() {
        let lock = |arguments| SyncCall::decode(140, arguments, &[]);
        assert!(lock([1, 1, 1, 0, 0, 0]).is_some());
        for arguments in [[1 << 32, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 2, 0, 0, 0]] {
            assert_eq!(lock(arguments), None);
        }
        for number in [139, 143, 144, 146, SyncCall::LAST] {
            assert_eq!(SyncCall::decode(number, [0; 6], &[]), None);
        }
        assert_eq!(SyncCall::decode(141, [0; 6], &[]), None, "no ticket is 0");
        assert_eq!(SyncCall::decode(142, [0, 0, 0, 0, 0, 1], &[]), None, "it has no such argument");
        assert_eq!(SyncCall::decode(142, [0; 6], &[0]), None, "it has no payload");
    }

    #[test]
    fn results_lie_in_their_words() {
        let locked = Locked { word: 8191, abandoned: true, token: 5 << 64 | 7 };
        let (values, payload) = locked.packed();
        assert_eq!((values, &payload[..]), ([8191, 1, 0, 0, 0, 0, 0], &(5u128 << 64 | 7).to_le_bytes()[..]));
        assert_eq!(Locked::of_values(values, &payload), Some(locked));
        assert_eq!(Locked::of_values(values, &payload[1..]), None);
        let passed = Passed { index: 999_999, generation: u64::MAX };
        assert_eq!(passed.values(), [999_999, u64::MAX, 0, 0, 0, 0, 0]);
        assert_eq!(Passed::of_values(passed.values(), &[]), Some(passed));
    }
}
