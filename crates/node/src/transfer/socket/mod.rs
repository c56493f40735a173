//! *socket*: what the original Plasma did, as the baseline that the other protocols are compared with.
//!
//! The reader connects to the holder's data port when it first needs it, keeps the connection for what comes
//! later, and asks for an object; the holder does a local get, answers with the sizes, and then the bytes go
//! from shared memory to shared memory through TCP in pieces of 4 KiB, a write(2) and a read(2) each, an
//! object after the other.
//!
//! Owns: the thread `plasmon-socket`, which alone does this I/O, one event loop for all connections; the
//! port; the connections. The thread starts, and the port opens, when they are first needed: a node that
//! never uses them has neither. [`ends`] is what the engine does before and after, and runs there.
//!
//! Invariants:
//! - Memory that the thread reads or writes stays an object's until the thread has let go of it: a task of
//!   the engine's owns it until [`service::Done`] is told or dropped, whatever becomes of the fetch or the
//!   lease.
//! - An object is given only to who shows the secret of a lease on it, which came through the fabric; whoever
//!   says anything else is counted and closed.
//! - No connection waits for its peer for longer than a stall, unless a member has nothing to ask.
//!
//! Read in this order: [`ends`], [`service`], [`frame`], [`asking`] at the reader, [`answering`] at the
//! holder, [`stream`].

mod answering;
mod asking;
mod ends;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod service;
mod stream;
#[cfg(test)]
mod tests;

pub(super) use self::service::Service;
