//! Channel of a client: one page set that the client and the engine both write.
//!
//! | at | bytes | what | written by |
//! |---|---|---|---|
//! | 0 | 64 | magic; whether the engine has let go of the client | engine, once |
//! | 64 | 64 | tail of the submissions | client |
//! | 128 | 64 | head of the submissions | engine |
//! | 192 | 64 | tail of the completions | engine |
//! | 256 | 64 | head of the completions | client |
//! | 320 | 64 | attention: what the engine looks at | engine |
//! | 384 | 64 | whether the client sleeps, on which core it was, what it gave up | client |
//! | 448 | 64 | pins: how many slots were ever used | client |
//! | 512 | 3.2 KiB | counts of gets ([`counts`]) | client |
//! | 4 KiB | 16 KiB | submissions, 256 of 64 bytes | client |
//! | 20 KiB | 16 KiB | completions, 256 of 64 bytes | engine |
//! | 36 KiB | 32 KiB | pins, 4096 words ([`pins`]) | client |
//! | 68 KiB | 32 KiB | access bits, 2^18 ([`pins`]) | client sets, engine clears |
//! | 100 KiB | 412 KiB | data that goes with submissions | client |
//!
//! [`ClientChannel`] is used by any thread of the client, [`EngineChannel`] by the engine thread. The client
//! may write any word at any time. The engine loads each word once, checks the loaded value, and trusts no
//! value that would concern other clients.

#[cfg(not(loom))]
mod client;
pub(in crate::shared) mod counts;
#[cfg(not(loom))]
mod engine;
mod entries;
mod layout;
pub(in crate::shared) mod pins;
pub(in crate::shared) mod ring;

#[cfg(not(loom))]
pub use client::{ClientChannel, Ring, Stray, Unanswered};
#[cfg(not(loom))]
pub use counts::{Counts, TIME_BOUNDS_NS};
#[cfg(not(loom))]
pub use engine::EngineChannel;
#[cfg(not(loom))]
pub use entries::{Completion, Deleted, MAX_DELETED, Malformed, Operation, Outcome, Submission};
#[cfg(not(loom))]
pub use layout::DATA_LEN;
#[cfg(not(loom))]
pub use pins::{Slot, TableId};

#[cfg(all(test, not(loom)))]
mod tests;
