//! Places in a client's page set that do not belong to its rings or its pins.
//!
//! Owns no state. Invariant: the places are those of the table in [`super`], for the engine and the client
//! alike.

/// Index of the word that says that the engine has let go of the client.
pub(super) const CLOSED: usize = 1;
/// First word of a page set: "channel" and the version of the layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"channel\x01");
/// Bytes of a page set.
pub(super) const LEN: usize = 512 << 10;
/// Offset in bytes of the data that goes with submissions.
pub(super) const DATA: usize = 100 << 10;
/// Bytes of data that can go with submissions at a time.
pub const DATA_LEN: usize = LEN - DATA;
