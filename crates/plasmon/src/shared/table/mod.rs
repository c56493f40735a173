//! Object table of a domain. It has three kinds of parts, each a memfd:
//!
//! - the **root**, one page, which says which other parts are in force ([`root`]);
//! - the **index**, from hash to entry number ([`index`]), replaced by a larger one as the table grows;
//! - **chunks** of entries ([`entry`]), which never move: chunk 0 holds [`layout::FIRST_CHUNK_ENTRIES`]
//!   entries, every further chunk as many as all chunks before it.
//!
//! The engine thread writes through a [`TableWriter`], any thread of a client reads through a
//! [`TableReader`].

pub(in crate::shared) mod entry;
pub(in crate::shared) mod index;
mod layout;
#[cfg(not(loom))]
mod reader;
pub(in crate::shared) mod root;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use entry::{Snapshot, State};
#[cfg(not(loom))]
pub use layout::Part;
#[cfg(not(loom))]
pub use reader::{Found, TableReader};
#[cfg(not(loom))]
pub use writer::{NewEntry, TableWriter};

#[cfg(all(test, not(loom)))]
mod tests;
