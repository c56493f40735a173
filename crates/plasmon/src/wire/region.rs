//! Calls by slot on regions: the operations on a region, and the arguments of each call.
//!
//! Owns no state. Any thread. The first value of a result is the word that the operation returns. Bytes that
//! were read are the payload of the result. Offsets and lengths are numbers of bytes.

use super::call_table::{BySlot, CallRow, CallTable, placed};
use super::draw::Draw;
use super::fields::Types;
use super::words::{Argument, InWord, LentRange, Packing, Unpacking};
use crate::shared::ARGUMENTS;

crate::wire::call_table! {
    /// Operation on the bytes of a region, which its home carries out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Operation as field {
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
        } with bytes,
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

crate::wire::call_table! {
    /// Call on a region by slot.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RegionCall {
        /// Reads bytes into lent memory of the client.
        116 ReadTo {
            /// Offset of the first byte in the region.
            offset: u64,
            /// Number of bytes.
            len: u64,
            /// Memory of the client.
            memory: LentRange,
        },
        /// Writes bytes of lent memory of the client.
        117 WriteFrom {
            /// Offset of the first byte in the region.
            offset: u64,
            /// Number of bytes.
            len: u64,
            /// Memory of the client.
            memory: LentRange,
        },
        /// Copies bytes of a region, as memmove does.
        118 Copy {
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
    and 100
    /// Carries out an operation. Bytes that are read or written are the payload.
    On(Operation)
}

impl RegionCall {
    /// Returns the call through a handle, without a guard.
    pub fn through(self, handle: u32) -> OnRegion {
        OnRegion { handle, guard: 0, call: self }
    }

    /// Whether the call may show a guard, which is so if it writes bytes of the client.
    pub fn may_show_guard(&self) -> bool {
        matches!(self, Self::On(Operation::Write { .. }) | Self::WriteFrom { .. })
    }
}

/// Call on a region, with the handle and the guard under which the call is made. In the slot the handle lies
/// before the fields of the call, and the guard behind these fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnRegion {
    /// Number of the handle.
    pub handle: u32,
    /// Ticket of a guard. The write is refused if a later guard of the lock has written. 0 for no guard.
    pub guard: u64,
    /// Operation on the region.
    pub call: RegionCall,
}

/// Encoding of the guard of a call, in the last word of the slot.
type InLast = InWord<{ ARGUMENTS - 1 }>;

impl CallTable for OnRegion {
    const NUMBERS: &'static [u8] = RegionCall::NUMBERS;

    fn rows(types: &mut Types, mut at: usize) -> Vec<CallRow> {
        let handle = placed::<u32, u32>("handle", types, &mut at);
        let mut rows = RegionCall::rows(types, at);
        for row in &mut rows {
            row.fields.insert(0, handle.clone());
            if RegionCall::draw_call(row.number, &mut Draw::new(0)).may_show_guard() {
                row.fields.push(placed::<u64, InLast>("guard", types, &mut at));
            }
        }
        rows
    }

    fn number(&self) -> u8 {
        self.call.number()
    }

    fn pack(&self, out: &mut Packing) {
        u32::pack(&self.handle, out);
        self.call.pack(out);
        InLast::pack(&self.guard, out);
    }

    fn unpack(number: u8, from: &mut Unpacking) -> Option<Self> {
        let (handle, call) = (u32::unpack(from)?, RegionCall::unpack(number, from)?);
        let guard = if call.may_show_guard() { InLast::unpack(from)? } else { 0 };
        Some(Self { handle, guard, call })
    }

    fn draw_call(number: u8, draw: &mut Draw) -> Self {
        let (handle, call) = (<u32 as Argument>::draw(draw), RegionCall::draw_call(number, draw));
        let guard = if call.may_show_guard() { InLast::draw(draw) } else { 0 };
        Self { handle, guard, call }
    }
}

impl BySlot for OnRegion {
    const FIRST: u8 = 100;
    const LAST: u8 = 119;
    const NAME: &'static str = "RegionCall";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_lie_in_their_words() {
        let memory = LentRange { buffer: 3, at: 64 };
        let fill = Operation::Fill { offset: 1, len: 2, byte: 255 };
        let swap = Operation::CompareSwap { offset: 1, expected: 2, value: 3 };
        let write = OnRegion { handle: 9, guard: 7, call: RegionCall::On(Operation::Write { offset: 4 }) };
        let from =
            OnRegion { handle: 9, guard: 7, call: RegionCall::WriteFrom { offset: 1, len: 2, memory } };
        let copy = RegionCall::Copy { offset: 1, len: 2, source: 7, source_offset: 4 };
        for (call, number, arguments) in [
            (RegionCall::On(Operation::Read { offset: 1, len: 2 }).through(9), 100, [9, 1, 2, 0, 0, 0]),
            (write, 101, [9, 4, 0, 0, 0, 7]),
            (RegionCall::On(Operation::FetchAdd { offset: 1, value: 2 }).through(9), 102, [9, 1, 2, 0, 0, 0]),
            (RegionCall::On(Operation::Swap { offset: 1, value: 2 }).through(9), 103, [9, 1, 2, 0, 0, 0]),
            (RegionCall::On(swap).through(9), 104, [9, 1, 2, 3, 0, 0]),
            (RegionCall::On(Operation::TestAndSet { offset: 1 }).through(9), 105, [9, 1, 0, 0, 0, 0]),
            (RegionCall::On(fill).through(9), 106, [9, 1, 2, 255, 0, 0]),
            (RegionCall::On(Operation::Wait { offset: 1, expected: 2 }).through(9), 107, [9, 1, 2, 0, 0, 0]),
            (RegionCall::On(Operation::Notify { offset: 1 }).through(9), 108, [9, 1, 0, 0, 0, 0]),
            (RegionCall::ReadTo { offset: 1, len: 2, memory }.through(9), 116, [9, 1, 2, 3, 64, 0]),
            (from, 117, [9, 1, 2, 3, 64, 7]),
            (copy.through(9), 118, [9, 1, 2, 7, 4, 0]),
        ] {
            assert_eq!(call.encode(), (number, arguments));
            assert_eq!(OnRegion::decode(number, arguments, &[]), Some(call));
        }
    }

    #[test]
    fn what_is_out_of_range_is_no_call() {
        let notify = |at: usize, word: u64| {
            let (number, mut arguments) = RegionCall::On(Operation::Notify { offset: 0 }).through(1).encode();
            arguments[at] = word;
            OnRegion::decode(number, arguments, &[]).is_some()
        };
        assert!(notify(0, u32::MAX.into()) && notify(1, u64::MAX));
        assert!(!notify(0, 1 << 32), "no handle has such a number");
        assert!(!notify(5, 9), "a call that does not write shows no guard");
        let fill = RegionCall::On(Operation::Fill { offset: 0, len: 1, byte: 255 });
        let (number, mut arguments) = fill.through(1).encode();
        arguments[3] = 256;
        assert_eq!(OnRegion::decode(number, arguments, &[]), None);
        assert_eq!(OnRegion::decode(99, [0; ARGUMENTS], &[]), None);
        assert_eq!(OnRegion::decode(OnRegion::LAST, [0; ARGUMENTS], &[]), None);
        assert!(OnRegion::decode(101, [0; ARGUMENTS], &[1]).is_some());
        assert_eq!(OnRegion::decode(108, [0; ARGUMENTS], &[1]), None, "it has no payload");
    }
}
