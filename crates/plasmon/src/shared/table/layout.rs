//! Parts of an object table, and the chunks in which its entries lie.
//!
//! Owns no state. Any thread. Invariant: an entry never moves; every chunk but the first holds as many
//! entries as all chunks before it.

/// Number of entries in the first chunk.
pub(super) const FIRST_CHUNK_ENTRIES: u32 = 4096;
/// Largest number of chunks, which hold 2^31 entries.
pub(super) const MAX_CHUNKS: usize = 20;

/// Part of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The root of the table.
    Root,
    /// An index.
    Index {
        /// Number of the index, in the order in which indices are made.
        version: u32,
    },
    /// A chunk of entries.
    Chunk {
        /// Number of the chunk.
        number: u32,
    },
}

/// Returns the chunk of an entry, and the entry's place in the chunk.
pub(super) fn place_of(entry: u32) -> (usize, usize) {
    match entry / FIRST_CHUNK_ENTRIES {
        0 => (0, entry as usize),
        parts => {
            let chunk = parts.ilog2() + 1;
            (chunk as usize, (entry - chunk_start(chunk)) as usize)
        }
    }
}

/// Returns the number of the first entry of a chunk.
pub(super) fn chunk_start(chunk: u32) -> u32 {
    if chunk == 0 { 0 } else { FIRST_CHUNK_ENTRIES << (chunk - 1) }
}

/// Returns the number of entries that a chunk holds.
pub(super) fn chunk_len(chunk: u32) -> u32 {
    if chunk == 0 { FIRST_CHUNK_ENTRIES } else { chunk_start(chunk) }
}
