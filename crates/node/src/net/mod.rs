//! Frames between nodes, and the fabrics that carry them.
//!
//! Engine thread only, but for [`door`], which is used by every thread that takes connections. [`frame`] says
//! what nodes tell each other, [`network`] and [`peer`] bring it there, [`incoming`] takes it in, [`calls`]
//! joins answers to questions, [`faults`] counts what a peer does wrong, [`pool`] and [`registrations`] hold
//! memory that the fabric may use, and [`rekey`] gives it new keys when a member goes.

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
pub(crate) mod registrations;
pub(crate) mod rekey;
mod report;
