//! Places in a client's page set that belong neither to its rings nor to its pins.
//!
//! Owns no state. Any thread. Invariant: the places are those of the table in [`super`], for the engine and
//! the client alike.

/// Index of the word that says whether the engine has stopped looking at the client's pins.
pub(super) const CLOSED_WORD: usize = 1;
/// Index of the word with the number of submissions that were made when the client last gave up waiting.
pub(super) const GIVEN_UP_WORD: usize = 400 / 8;
/// First word of a page set: "channel" and the version of the layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"channel\x03");
/// Size of a page set in bytes.
pub(super) const PAGE_SET_BYTES: usize = 512 << 10;
/// Offset in bytes of the data that goes with submissions.
pub(super) const DATA_OFFSET_BYTES: usize = 100 << 10;
/// Size in bytes of the area for data that goes with submissions.
pub const DATA_LEN: usize = PAGE_SET_BYTES - DATA_OFFSET_BYTES;
