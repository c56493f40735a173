//! Memory that a node's daemon and its clients share, so that the most frequent calls need no system call and
//! no reply.
//!
//! - The **object table** of a domain ([`TableWriter`], [`TableReader`]): only the engine writes it. Clients
//!   map it read-only, which the kernel enforces.
//! - The **channel** of a client ([`EngineChannel`], [`ClientChannel`]): pins, access bits and two rings in
//!   pages that this client and the engine write.
//! - The **slots** of a client ([`EngineCalls`], [`ClientCalls`]): calls of any number of threads, which are
//!   answered in any order, in pages that this client and the engine write.
//! - The **leases** of a client ([`EngineLeases`], [`ClientLeases`]): until when its locks are its own. Only
//!   the engine writes them.
//!
//! # Pin, eviction, validation
//!
//! One object's entry, and one client:
//!
//! | | client reads | engine takes away |
//! |---|---|---|
//! | 1 | finds the entry, generation *g*, even | makes the generation odd (*hide*) |
//! | 2 | stores its pin | SeqCst fence |
//! | 3 | SeqCst fence | looks through all pins |
//! | 4 | generation still *g*? then it has the object; else it takes the pin back and asks | no pin: the memory is free; else makes the generation *g* again (*show*) |
//!
//! If the engine's scan missed the pin, the client's second look sees the odd generation, or a later one. A
//! deleted object stays hidden. Its entry and its memory wait until a later scan finds no pin.
//!
//! *Death.* A client that dies between any two steps leaves at most a pin, and its page set is freed with its
//! connection. It cannot leave anything half-written that others read, because it writes only its own pages.
//! After the engine has died, no memory is freed any more: mapped bytes stay as they are, pinned or not, and
//! every call that needs the engine fails.
//!
//! # Who writes what, with which ordering
//!
//! | words | writer | order |
//! |---|---|---|
//! | an entry's generation | engine | odd: Relaxed, before a Release fence (to write) or the SeqCst fence (to evict); even: Release. Read: Acquire first; Relaxed after an Acquire fence (to validate) or after the SeqCst fence (to pin) |
//! | the rest of an entry | engine, while odd | Relaxed |
//! | index words | engine | Release; read Acquire: the entry is written before it can be found |
//! | number of removals | engine | Release, before the index word goes; read Acquire before a search, Relaxed after the Acquire fence behind it |
//! | version of the index in force | engine | Release, when the index is complete; read Acquire, before and after a search |
//! | flags, versions of segments | engine | Release; read Acquire, the latter when the pin holds: the segment of a pinned object is not replaced |
//! | a pin | client | set: Release, before the SeqCst fence; cleared: Release. Read by the engine: Acquire, so that the client's reads of the object are over before its memory is used again |
//! | access bits | client sets, engine clears | Relaxed: a guess |
//! | counts of gets | client | Relaxed: a slot's word by the thread that has the slot |
//! | tails and heads of rings | either | Release; read Acquire |
//! | submitted bits | client sets, engine takes | Release; taken Acquire: the request is written before |
//! | a request and its payload | client, until submitted | Relaxed |
//! | a result | engine | Relaxed, but its sequence number: Release; read Acquire |
//! | a lease | engine | Release; read Acquire |
//! | attention, asleep | engine, client | Relaxed, before a SeqCst fence, on both sides of it: see [`wakes`] |
//!
//! The protocols are model-checked with loom (`make test-all`).
#![allow(unsafe_code)]
// The loom models use the protocols and not the code that maps memory.
#![cfg_attr(loom, allow(dead_code, unreachable_pub))]

mod calls;
mod channel;
mod free;
#[cfg(not(loom))]
mod leases;
mod table;
mod wakes;
mod words;

pub use calls::{ARGUMENTS, PAYLOAD_LEN, VALUES};
#[cfg(not(loom))]
pub use calls::{
    CallPayload, CallRequest, CallResult, CallUnderWay, ClientCalls, EngineCalls, MAPPED_MAX, Manner,
    Misused, SLOTS, WaitStats,
};
#[cfg(not(loom))]
pub use channel::{
    ClientChannel, Completion, Counts, DATA_LEN, Deleted, EngineChannel, MAX_DELETED, Malformed, Operation,
    Outcome, Ring, Slot, Stray, Submission, TIME_BOUNDS_NS, TableId, Unanswered,
};
#[cfg(not(loom))]
pub use leases::{ClientLeases, EngineLeases, LEASES, boot_ns};
#[cfg(not(loom))]
pub use table::{Found, NewEntry, Part, Snapshot, State, TableReader, TableWriter};

#[cfg(all(test, loom))]
mod models;
