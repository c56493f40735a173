//! All protocols of calls by slot, and all their results, for the page of sessions, the fuzzer and the tests.
//!
//! Owns no state. Any thread. Invariant: no number belongs to two protocols; otherwise the module does not
//! compile.

use std::fmt::Debug;

use bytes::BytesMut;

use super::call::{ClusterCall, Looked, Reached, Received, Replied, ServiceCall};
use super::call_table::{BySlot, CallRow, Packed, SlotResult};
use super::draw::Draw;
use super::fields::Types;
use super::files::{FileAnswered, FilesCall};
use super::region::OnRegion;
use super::sync::{Locked, Passed, SyncCall};
use crate::shared::{ARGUMENTS, VALUES};

/// Protocol of calls, for the documentation, the fuzzer and tests.
#[derive(Debug, Clone, Copy)]
pub struct CallProtocol {
    /// Name of the protocol.
    pub name: &'static str,
    /// Number of the first call.
    pub first: u8,
    /// Largest number that a call of the protocol may have.
    pub last: u8,
    /// Function that returns the rows, and enters the types of the fields.
    pub rows: fn(&mut Types) -> Vec<CallRow>,
    /// Function that draws a call with a number.
    pub draw: fn(u8, &mut Draw) -> Packed,
    /// Function that decodes a call, and returns whether it is valid. The function panics if the call changes
    /// when it is encoded and decoded again.
    pub examine: fn(u8, [u64; ARGUMENTS], &[u8]) -> bool,
}

impl CallProtocol {
    const fn of<T: BySlot + PartialEq + Debug>() -> Self {
        Self {
            name: T::NAME,
            first: T::FIRST,
            last: T::LAST,
            rows: |types| T::rows(types, 0),
            draw: |number, draw| T::draw_call(number, draw).packed(),
            examine: |number, arguments, payload| {
                let Some(call) = T::decode(number, arguments, payload) else {
                    return false;
                };
                let (again, words, own) = call.packed();
                assert_eq!((again, words), (number, arguments), "{call:?}");
                let payload = if own.is_empty() { payload } else { &own };
                assert_eq!(T::decode(again, words, payload).as_ref(), Some(&call));
                true
            },
        }
    }
}

/// All calls by slot, by their numbers.
pub const CALLS: [CallProtocol; 5] = [
    CallProtocol::of::<ClusterCall>(),
    CallProtocol::of::<OnRegion>(),
    CallProtocol::of::<ServiceCall>(),
    CallProtocol::of::<SyncCall>(),
    CallProtocol::of::<FilesCall>(),
];

const _: () = assert!(are_apart(&CALLS), "a number belongs to two protocols");

/// Result of calls, for the fuzzer and tests.
#[derive(Debug, Clone, Copy)]
pub struct ResultProtocol {
    /// Function that draws a result.
    pub draw: fn(&mut Draw) -> ([u64; VALUES], BytesMut),
    /// Function that decodes a result, and returns whether it is valid. The function panics if the result
    /// changes when it is encoded and decoded again.
    pub examine: fn([u64; VALUES], &[u8]) -> bool,
}

impl ResultProtocol {
    const fn of<T: SlotResult + PartialEq + Debug>() -> Self {
        Self {
            draw: |draw| T::draw_result(draw).packed(),
            examine: |values, payload| {
                let Some(result) = T::of_values(values, payload) else {
                    return false;
                };
                let (again, own) = result.packed();
                assert_eq!(again, values, "{result:?}");
                let payload = if own.is_empty() { payload } else { &own };
                assert_eq!(T::of_values(again, payload).as_ref(), Some(&result));
                true
            },
        }
    }
}

/// All results that are structs.
pub const RESULTS: [ResultProtocol; 7] = [
    ResultProtocol::of::<Reached>(),
    ResultProtocol::of::<Replied>(),
    ResultProtocol::of::<Received>(),
    ResultProtocol::of::<Looked>(),
    ResultProtocol::of::<Locked>(),
    ResultProtocol::of::<Passed>(),
    ResultProtocol::of::<FileAnswered>(),
];

/// Whether each protocol ends before the next one begins.
const fn are_apart(protocols: &[CallProtocol]) -> bool {
    match protocols {
        [one, rest @ ..] if one.first <= one.last => match rest {
            [next, ..] => one.last < next.first && are_apart(rest),
            [] => true,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests;
