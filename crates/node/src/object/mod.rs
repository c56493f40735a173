//! Objects of this node: replicas, who pins them, and who waits for them.
//!
//! Engine thread only. A [`Replica`] is an immutable object, its bytes in the arena, on disk or both.
//! It lives as long as the table or a [`Pin`] holds it; its memory returns to the arena, and its entry to
//! the table that clients read, with the last of them. Clients pin by themselves too, in pages of their
//! own ([`FastPins`]): what is taken out of the table stays in *limbo* until a scan of those pages shows
//! that nobody has it pinned.

mod census;
mod ownership;
mod replica;
mod ring;
mod shared;
mod stamps;
mod table;

pub(crate) use ownership::{Ownership, not_visible};
pub(crate) use replica::{Head, Held, Pin, Replica, Role, Sealing};
pub(crate) use shared::TABLE_LIFE;
pub(crate) use stamps::Stamp;
pub(crate) use table::{Conflict, Creation, FastPins, Happening, Keeping, Table};
