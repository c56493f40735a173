//! The object table of a domain, in three kinds of parts, each a memfd:
//!
//! - the **root**, one page, which says which other parts are in force ([`root`]);
//! - the **index**, from hash to entry number ([`index`]), replaced by a larger one as the table grows;
//! - **chunks** of entries ([`entry`]), which never move: chunk 0 holds [`FIRST_CHUNK`] of them, every
//!   further one as many as all before it.
//!
//! The engine writes through a [`TableWriter`], clients read through a [`TableReader`].

pub(in crate::shared) mod entry;
pub(in crate::shared) mod index;
#[cfg(not(loom))]
mod reader;
mod root;
#[cfg(not(loom))]
mod writer;

#[cfg(not(loom))]
pub use entry::{Snapshot, State};
#[cfg(not(loom))]
pub use reader::{Found, TableReader};
#[cfg(not(loom))]
pub use writer::{NewEntry, TableWriter};

/// Entries in the first chunk.
const FIRST_CHUNK: u32 = 4096;
/// Most chunks; 2^31 entries.
const CHUNKS: usize = 20;

/// A part of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The root.
    Root,
    /// An index.
    Index {
        /// Which, in the order they were made.
        version: u32,
    },
    /// A chunk of entries.
    Chunk {
        /// Which.
        number: u32,
    },
}

/// The chunk of an entry, and its place there.
fn place_of(entry: u32) -> (usize, usize) {
    match entry / FIRST_CHUNK {
        0 => (0, entry as usize),
        parts => {
            let chunk = parts.ilog2() + 1;
            (chunk as usize, (entry - chunk_start(chunk)) as usize)
        }
    }
}

/// The first entry of a chunk.
fn chunk_start(chunk: u32) -> u32 {
    if chunk == 0 { 0 } else { FIRST_CHUNK << (chunk - 1) }
}

/// How many entries a chunk holds.
fn chunk_len(chunk: u32) -> u32 {
    if chunk == 0 { FIRST_CHUNK } else { chunk_start(chunk) }
}

#[cfg(all(test, not(loom)))]
mod tests;
