//! Objects of this node: replicas, who pins them, and who waits for them.
//!
//! Engine thread only. A [`Replica`] is an immutable object's bytes in the arena; it lives as long
//! as the table or a [`Pin`] holds it, and its memory returns to the arena with the last of them.
//! Deleting an object is therefore taking it out of the table: pinned bytes stay where they are.

mod replica;
mod table;

pub(crate) use replica::{Head, Pin, Replica, Role};
pub(crate) use table::{Conflict, Creation, Table};
