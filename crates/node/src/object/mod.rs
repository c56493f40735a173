//! Objects of this node: replicas, their pins, and the tasks that wait for them.
//!
//! Owns the [`Table`] of all objects. Engine thread only. A [`Replica`] is an immutable object, its bytes in
//! the arena, on disk or both. It lives as long as the table or a [`Pin`] holds it; with the last of them its
//! memory returns to the arena, and its entry to the table that clients read. Clients pin by themselves too,
//! in pages of their own ([`FastPins`]): a replica that is removed from the table stays in *limbo* until a
//! scan of those pages shows that no client has it pinned. A removed replica that is still pinned is called
//! *doomed* in the code, and "deleted but pinned" for people.

mod census;
mod ownership;
mod replica;
mod ring;
mod shared;
mod stamps;
mod table;

pub(crate) use census::Wanted;
pub(crate) use ownership::{DEEDS, Ownership, ROOT, not_visible};
pub(crate) use replica::{Head, Held, Pin, Replica, Role, Sealing};
pub(crate) use shared::TABLE_LIFE;
pub(crate) use stamps::Stamp;
pub(crate) use table::{Conflict, Creation, FastPins, Happening, InMemory, Keeping, NotSealed, Table};
