//! *socket*: the protocol of the original Plasma, as the baseline with which the other protocols are
//! compared.
//!
//! The reader connects to the holder's data port when it first needs this port, keeps the connection for
//! later objects, and asks for an object. The holder does a local get and answers with the sizes. Then
//! the bytes go from shared memory to shared memory through TCP in pieces of 4 KiB, with a write(2) and a
//! read(2) each, one object after the other.
//!
//! This module owns the thread `plasmon-socket`, which alone does this I/O in one event loop for all
//! connections, the port, and the connections. The thread starts and the port opens when they are first
//! needed: a node that never uses them has neither. [`ends`] is the engine's part before and after, and
//! runs on the engine thread.
//!
//! Invariants:
//! - Memory that the thread reads or writes stays an object's until the thread has dropped it: a task of
//!   the engine owns it until [`thread::Done`] is told or dropped, whatever becomes of the fetch or the
//!   lease.
//! - An object is given only to a client that shows the secret of a lease on it, which came through the
//!   fabric. A connection on which anything else comes is counted and closed.
//! - No connection waits for its peer for longer than a stall, unless a member has nothing to ask.
//!
//! Read in this order: [`ends`], [`thread`], [`frame`], [`asking`] at the reader, [`answering`] at the
//! holder, [`stream`].

mod answering;
mod asking;
mod ends;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod stream;
#[cfg(test)]
mod tests;
mod thread;

pub(super) use self::thread::SocketThread;
