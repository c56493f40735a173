//! Calls by slot about locks and barriers: their numbers, arguments and results.
//!
//! Owns no state. The numbers of these calls are 140 to 149. A *ticket* is a number that the client chooses
//! for one call and what comes of it: a guard, or an arrival. It is unique on the connection and not 0.

use crate::shared::{ARGUMENTS, VALUES};

/// Call by slot about a lock or a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncCall {
    /// Waits for a lock. The result is a [`Locked`]. A time-out of 0 does not wait: the error is `Busy`.
    Lock {
        /// Number of the handle to the lock.
        lock: u32,
        /// Ticket of the guard.
        ticket: u64,
        /// Whether others may hold the lock at the same time, if they share it as well.
        shared: bool,
    },
    /// Ends a guard, or a call that waits for a lock.
    Unlock {
        /// Ticket of the guard.
        ticket: u64,
    },
    /// Says that the process is alive. Leases are renewed for as long as that was said within their time to
    /// live.
    Keep,
    /// Waits at a barrier until all parties have arrived. The result is a [`Passed`].
    Arrive {
        /// Number of the handle to the barrier.
        barrier: u32,
        /// Ticket of the arrival.
        ticket: u64,
    },
}

impl SyncCall {
    /// Number of the first call.
    pub const FIRST: u8 = 140;
    /// Number of the last call.
    pub const LAST: u8 = 149;

    /// Number and arguments of the call.
    pub fn encode(self) -> (u8, [u64; ARGUMENTS]) {
        let (number, [a, b, c]) = match self {
            Self::Lock { lock, ticket, shared } => (0, [lock.into(), ticket, shared.into()]),
            Self::Unlock { ticket } => (1, [ticket, 0, 0]),
            Self::Keep => (2, [0, 0, 0]),
            Self::Arrive { barrier, ticket } => (5, [barrier.into(), ticket, 0]),
        };
        (Self::FIRST + number, [a, b, c, 0, 0, 0])
    }

    /// Call with this number and these arguments. `None` if there is no such call, or if an argument is out
    /// of range.
    pub fn decode(opcode: u8, [a, b, c, ..]: [u64; ARGUMENTS]) -> Option<Self> {
        let ticket = |word: u64| (word != 0).then_some(word);
        Some(match opcode.checked_sub(Self::FIRST)? {
            0 if c <= 1 => Self::Lock { lock: a.try_into().ok()?, ticket: ticket(b)?, shared: c == 1 },
            1 => Self::Unlock { ticket: ticket(a)? },
            2 => Self::Keep,
            5 => Self::Arrive { barrier: a.try_into().ok()?, ticket: ticket(b)? },
            _ => return None,
        })
    }
}

/// Result of a call that got a lock. The token is the payload, 16 bytes, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locked {
    /// Index of the word of the lease in the client's [leases](super::Reply::Leases).
    pub word: u32,
    /// Whether the holder before died, or lost the lock, instead of unlocking it.
    pub abandoned: bool,
    /// Token of the guard. It is larger than that of every guard of the lock before.
    pub token: u128,
}

impl Locked {
    /// Values and payload of the result.
    pub fn values(self) -> ([u64; VALUES], [u8; 16]) {
        ([self.word.into(), self.abandoned.into(), 0, 0, 0, 0, 0], self.token.to_le_bytes())
    }

    /// Result with these values and this payload. `None` if the payload is no token.
    pub fn of_values([word, abandoned, ..]: [u64; VALUES], payload: &[u8]) -> Option<Self> {
        let token = u128::from_le_bytes(payload.try_into().ok()?);
        Some(Self { word: word.try_into().ok()?, abandoned: abandoned == 1, token })
    }
}

/// Result of a call that passed a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Place of the arrival among those of all parties, from 0.
    pub index: u32,
    /// Number of times that the barrier had been passed before.
    pub generation: u64,
}

impl Passed {
    /// Values of the result.
    pub fn values(self) -> [u64; VALUES] {
        [self.index.into(), self.generation, 0, 0, 0, 0, 0]
    }

    /// Result with these values.
    pub fn of_values([index, generation, ..]: [u64; VALUES]) -> Self {
        Self { index: index as u32, generation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_arguments_of_its_own() {
        let calls = [
            SyncCall::Lock { lock: u32::MAX, ticket: 1, shared: false },
            SyncCall::Lock { lock: 1, ticket: u64::MAX, shared: true },
            SyncCall::Unlock { ticket: 9 },
            SyncCall::Keep,
            SyncCall::Arrive { barrier: 3, ticket: 4 },
        ];
        for call in calls {
            let (opcode, arguments) = call.encode();
            assert!((SyncCall::FIRST..=SyncCall::LAST).contains(&opcode));
            assert_eq!(SyncCall::decode(opcode, arguments), Some(call));
        }
    }

    #[test]
    fn arguments_out_of_range_are_no_call() {
        let lock = SyncCall::FIRST;
        for arguments in [[1 << 32, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 2, 0, 0, 0]] {
            assert_eq!(SyncCall::decode(lock, arguments), None);
        }
        assert_eq!(SyncCall::decode(lock - 1, [1; 6]), None);
        assert_eq!(SyncCall::decode(SyncCall::LAST, [1; 6]), None);
        assert_eq!(SyncCall::decode(lock + 1, [0; 6]), None);
    }

    #[test]
    fn results_are_values() {
        let locked = Locked { word: 8191, abandoned: true, token: 5 << 64 | 7 };
        let (values, payload) = locked.values();
        assert_eq!(Locked::of_values(values, &payload), Some(locked));
        assert_eq!(Locked::of_values(values, &payload[1..]), None);
        let passed = Passed { index: 999_999, generation: u64::MAX };
        assert_eq!(Passed::of_values(passed.values()), passed);
    }
}
