//! Slots of a client: one page set by which any number of threads call the engine, each in a slot of its own.
//!
//! | at | bytes | what | written by |
//! |---|---|---|---|
//! | 0 | 64 | magic | engine, once |
//! | 64 | 64 | core on which a thread last waited | client |
//! | 192 | 64 | attention: whether the engine looks ([`wakes`](super::wakes)) | engine |
//! | 4 KiB | 32 | submitted bits, one a slot | client sets, engine takes |
//! | 4 KiB + 64 | 32 | given-up bits, one a slot | client sets, engine takes |
//! | 128 KiB | 128 KiB | 256 slots of 512 bytes ([`slots`]) | |
//! | 384 KiB | 32 KiB | 4,096 pins, each the region that a thread touches ([`mapped`]) | client |
//! | 512 KiB | 512 KiB | 65,536 words, each whether a region that is mapped may be touched | engine |
//!
//! | at in a slot | bytes | what | written by |
//! |---|---|---|---|
//! | 0 | 64 | request | client |
//! | 64 | 64 | result | engine |
//! | 128 | 64 | whether a thread sleeps until the result, and which request was given up | client |
//! | 192 | 320 | payload | client until the request is submitted, then engine until the result |
//!
//! A cache line has one writer at a time, except for the bits. Bytes between the places of the table are not
//! used.
//!
//! [`ClientCalls`] is used by any thread of the client, [`EngineCalls`] by the engine thread. A thread that
//! takes a slot from the list of free slots owns the slot until the result is read. Results come in any
//! order, so no call waits for another, and no thread takes the results of others.
//!
//! The client may write any word at any time. The engine copies a request with its payload once and checks
//! the copy. It keeps in its own memory which slots are under way and the sequence number of each.

#[cfg(not(loom))]
mod client;
#[cfg(not(loom))]
mod engine;
mod entries;
mod mapped;
mod slots;
#[cfg(not(loom))]
mod waiting;

#[cfg(not(loom))]
pub use client::{CallUnderWay, ClientCalls, Manner};
#[cfg(not(loom))]
pub use engine::{EngineCalls, Misused};
pub use entries::{ARGUMENTS, PAYLOAD_LEN, VALUES};
#[cfg(not(loom))]
pub use entries::{CallPayload, CallRequest, CallResult};
#[cfg(not(loom))]
pub use mapped::MAPPED_MAX;
#[cfg(not(loom))]
pub use slots::SLOTS;
#[cfg(not(loom))]
pub use waiting::WaitStats;

/// First word of a page set: "calls" and the version of the layout.
#[cfg(not(loom))]
const MAGIC: u64 = u64::from_le_bytes(*b"calls\0\0\x04");
/// Size of a page set in bytes.
#[cfg(not(loom))]
const PAGE_SET_BYTES: usize = 1 << 20;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
