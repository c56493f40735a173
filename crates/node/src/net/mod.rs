//! Frames between nodes, and the fabrics that carry them.
//!
//! [`network`] owns the fabrics and the peers. Engine thread only, except [`door`], which every thread that
//! accepts connections uses. [`frame`] defines the frames, [`network`] and [`peer`] have the ways to other
//! nodes, [`sending`] and [`incoming`] carry messages, [`stream`] counts them, so that each arrives once,
//! [`ahead`] connects before there are any, [`calls`] joins answers to questions, and [`faults`] counts
//! invalid frames of peers. [`pool`] and [`registrations`] hold memory that the fabric may use, [`windows`]
//! is memory that peers may write to, and [`rekey`] gives the arena new keys when a member goes.

pub(crate) mod ahead;
pub(crate) mod calls;
pub(crate) mod door;
pub(crate) mod fabric;
pub(crate) mod faults;
pub(crate) mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod incoming;
pub(crate) mod members;
pub(crate) mod network;
pub(crate) mod peer;
pub(crate) mod pool;
mod queue;
pub(crate) mod registrations;
pub(crate) mod rekey;
mod report;
pub(crate) mod sending;
mod stream;
pub(crate) mod traffic;
pub(crate) mod windows;

pub(crate) use self::sending::stands_still;
