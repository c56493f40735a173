//! Calls by slot on regions: what is done to a region, and what the arguments of each call are.
//!
//! Owns no state. The numbers of these calls are 100 to 119. Their first argument is the number of the
//! handle. The first value of a result is what the operation returns; bytes that were read are its payload.
//! Offsets and lengths are bytes.

use crate::shared::ARGUMENTS;

crate::wire::table! {
    /// Operation on the bytes of a region, which its home carries out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Operation {
        /// Reads bytes.
        0 Read {
            /// Offset of the first byte.
            offset: u64,
            /// Number of bytes.
            len: u64,
        },
        /// Writes the bytes that come with it.
        1 Write {
            /// Offset of the first byte.
            offset: u64,
        },
        /// Adds to a word of 64 bits, and returns what the word was before.
        2 FetchAdd {
            /// Offset of the word.
            offset: u64,
            /// Number that is added. The sum wraps.
            value: u64,
        },
        /// Replaces a word, and returns what it was before.
        3 Swap {
            /// Offset of the word.
            offset: u64,
            /// Value that the word gets.
            value: u64,
        },
        /// Replaces a word if it is what was expected, and returns what it was before.
        4 CompareSwap {
            /// Offset of the word.
            offset: u64,
            /// Value that is expected.
            expected: u64,
            /// Value that the word gets.
            value: u64,
        },
        /// Sets a word to 1, and returns what it was before.
        5 TestAndSet {
            /// Offset of the word.
            offset: u64,
        },
        /// Sets bytes to a value.
        6 Fill {
            /// Offset of the first byte.
            offset: u64,
            /// Number of bytes.
            len: u64,
            /// Value of each byte.
            byte: u8,
        },
        /// Waits until a word is another than was expected, and returns it.
        7 Wait {
            /// Offset of the word.
            offset: u64,
            /// Value that is expected.
            expected: u64,
        },
        /// Wakes those who wait for a change of a word.
        8 Notify {
            /// Offset of the word.
            offset: u64,
        },
    }
}

/// Call on a region by slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegionCall {
    /// Carries out an operation. Bytes that are read or written are the payload.
    On(Operation),
    /// Reads bytes into lent memory of the client.
    ReadTo {
        /// Offset of the first byte in the region.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Memory of the client.
        memory: LentRange,
    },
    /// Writes bytes of lent memory of the client.
    WriteFrom {
        /// Offset of the first byte in the region.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Memory of the client.
        memory: LentRange,
    },
    /// Copies bytes of a region, as memmove does.
    Copy {
        /// Offset of the first byte in the region that is changed.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Handle of the region that is read.
        source: u32,
        /// Offset of the first byte there.
        source_offset: u64,
    },
}

/// Place in lent memory of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentRange {
    /// Number of the memory on this connection.
    pub buffer: u64,
    /// Offset of the first byte.
    pub at: u64,
}

impl RegionCall {
    /// Number of the first call.
    pub const FIRST: u8 = 100;
    /// Number of the last call.
    pub const LAST: u8 = 119;
    /// Place of the ticket of a guard among the arguments of a write, which is refused if a later guard of
    /// the lock has written. 0 if the write shows no guard.
    pub const FENCE: usize = ARGUMENTS - 1;

    /// Number and arguments of the call through a handle, without a guard.
    pub fn encode(self, handle: u32) -> (u8, [u64; ARGUMENTS]) {
        let (number, [a, b, c, d]) = match self {
            Self::On(operation) => match operation {
                Operation::Read { offset, len } => (0, [offset, len, 0, 0]),
                Operation::Write { offset } => (1, [offset, 0, 0, 0]),
                Operation::FetchAdd { offset, value } => (2, [offset, value, 0, 0]),
                Operation::Swap { offset, value } => (3, [offset, value, 0, 0]),
                Operation::CompareSwap { offset, expected, value } => (4, [offset, expected, value, 0]),
                Operation::TestAndSet { offset } => (5, [offset, 0, 0, 0]),
                Operation::Fill { offset, len, byte } => (6, [offset, len, byte.into(), 0]),
                Operation::Wait { offset, expected } => (7, [offset, expected, 0, 0]),
                Operation::Notify { offset } => (8, [offset, 0, 0, 0]),
            },
            Self::ReadTo { offset, len, memory } => (16, [offset, len, memory.buffer, memory.at]),
            Self::WriteFrom { offset, len, memory } => (17, [offset, len, memory.buffer, memory.at]),
            Self::Copy { offset, len, source, source_offset } => {
                (18, [offset, len, source.into(), source_offset])
            }
        };
        (Self::FIRST + number, [handle.into(), a, b, c, d, 0])
    }

    /// Handle and call with this number and these arguments. `None` if there is no such call, or if an
    /// argument is out of range.
    pub fn decode(opcode: u8, [handle, a, b, c, d, fence]: [u64; ARGUMENTS]) -> Option<(u32, Self)> {
        let call = match opcode.checked_sub(Self::FIRST)? {
            0 => Self::On(Operation::Read { offset: a, len: b }),
            1 => Self::On(Operation::Write { offset: a }),
            2 => Self::On(Operation::FetchAdd { offset: a, value: b }),
            3 => Self::On(Operation::Swap { offset: a, value: b }),
            4 => Self::On(Operation::CompareSwap { offset: a, expected: b, value: c }),
            5 => Self::On(Operation::TestAndSet { offset: a }),
            6 => Self::On(Operation::Fill { offset: a, len: b, byte: c.try_into().ok()? }),
            7 => Self::On(Operation::Wait { offset: a, expected: b }),
            8 => Self::On(Operation::Notify { offset: a }),
            16 => Self::ReadTo { offset: a, len: b, memory: LentRange { buffer: c, at: d } },
            17 => Self::WriteFrom { offset: a, len: b, memory: LentRange { buffer: c, at: d } },
            18 => Self::Copy { offset: a, len: b, source: c.try_into().ok()?, source_offset: d },
            _ => return None,
        };
        let may_show_guard = matches!(call, Self::On(Operation::Write { .. }) | Self::WriteFrom { .. });
        (fence == 0 || may_show_guard).then_some((handle.try_into().ok()?, call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Table;

    #[test]
    fn every_call_has_arguments_of_its_own() {
        let memory = LentRange { buffer: 3, at: 64 };
        let operations = Operation::draw_all(20, 1).into_iter().map(RegionCall::On);
        let others = [
            RegionCall::ReadTo { offset: 1, len: 2, memory },
            RegionCall::WriteFrom { offset: 1, len: 2, memory },
            RegionCall::Copy { offset: 1, len: 2, source: 7, source_offset: 4 },
        ];
        for call in operations.chain(others) {
            let (opcode, arguments) = call.encode(9);
            assert!((RegionCall::FIRST..=RegionCall::LAST).contains(&opcode));
            assert_eq!(RegionCall::decode(opcode, arguments), Some((9, call)));
        }
    }

    #[test]
    fn arguments_out_of_range_are_no_call() {
        let (opcode, mut arguments) = RegionCall::On(Operation::Notify { offset: 0 }).encode(1);
        assert_eq!(RegionCall::decode(99, arguments), None);
        assert_eq!(RegionCall::decode(RegionCall::LAST, arguments), None);
        arguments[0] = 1 << 32;
        assert_eq!(RegionCall::decode(opcode, arguments), None);
        let fenced = |call: RegionCall| {
            let (opcode, mut arguments) = call.encode(1);
            arguments[RegionCall::FENCE] = 9;
            RegionCall::decode(opcode, arguments).is_some()
        };
        assert!(fenced(RegionCall::On(Operation::Write { offset: 0 })));
        assert!(!fenced(RegionCall::On(Operation::Notify { offset: 0 })));
        let fill = RegionCall::On(Operation::Fill { offset: 0, len: 1, byte: 255 });
        let (opcode, mut arguments) = fill.encode(1);
        arguments[3] = 256;
        assert_eq!(RegionCall::decode(opcode, arguments), None);
    }
}
