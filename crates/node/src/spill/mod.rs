//! Sealed objects on disk: primaries leave memory for files when it is short, and come back on get,
//! also after a restart of the daemon.
//!
//! Owns: the directory given with `--spill-dir`, its files, and the thread `plasmon-spill`, which
//! alone touches them. The engine holds a [`SpillStore`] (not `Send`), asks, and gets futures; no
//! call on it does file I/O, except that opening reads what a former daemon left and dropping waits
//! for what is under way.
//!
//! **What it promises.** The files are an extension of memory, not a database: nothing is synced,
//! so they survive the daemon, whatever kills it, but not a power cut. Whatever was damaged is
//! noticed and never handed out as an object: every record carries checksums of itself and of its
//! payload, and what is read back is compared with the digest of its seal, if one was made. Damage
//! costs the objects it hits, not their neighbours. What the thread had not come to when the daemon was
//! killed has not happened: an object deleted at the last moment may come back.
//!
//! **Files.** `<dir>/<number>.spill`, written once from front to back: objects follow each other
//! until a file has 64 MiB; one of more than 16 MiB has a file to itself. A restarted daemon appends to
//! none of its predecessor's files.
//!
//! ```text
//! file:    0     header: magic, version, salt, checksum      2048  the header again
//!          4096  record, record, ... each at a multiple of 8, of 4096 if of 64 KiB or more
//! record:  0     state: live or dead       8   checksum of 16.. up to the payload
//!          16    version, flags (1 private, 2 terms behind the name, 4 everybody's to change),
//!                length of the name (2 bytes), of the metadata (4)
//!          24    length of the data        32  checksum of the payload
//!          40    sequence                  48  life       56  created       64  digest
//!          72    tenant (4), id (20)       96  name       then payload: data, metadata
//! ```
//!
//! All little-endian; name and payload are padded to 8 bytes. Checksums are XXH3-64; a record's is
//! seeded with the file's salt and its offset, so that bytes of an object that look like a record
//! are not taken for one when a scan has to search behind damage.
//!
//! **Space.** A forgotten record is marked dead; once dead neighbours cover whole pages, those are
//! punched out, on a filesystem that can; a file without a live record is unlinked. A file whose
//! live records are less than a quarter of what it takes up is emptied: its records are moved behind
//! the others when nothing else is to be done. Nobody sees that: a [`Place`] is good until forgotten.
//!
//! Invariants:
//! - A record is written before anyone knows its place; a batch that fails leaves nothing behind.
//! - No place is used twice while the daemon lives.
//! - Zeros are nobody's: holes, padding, and what was to become a header.
//! - Of records of one id the one with the highest sequence counts; others are remains.
//!
//! Read in this order: `record`, `store`, `disk`, `append`, `restore`, `scan`, `compact`; `directory` has the
//! system calls.

mod append;
mod compact;
mod directory;
mod disk;
mod error;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod record;
mod restore;
mod scan;
mod store;
#[cfg(test)]
mod tests;
mod usage;

pub use error::SpillError;
pub use record::{Header, Place, Recovered};
pub use store::{Item, Pending, SpillStore};
pub use usage::Usage;

/// A file is appended to until it has this many bytes.
const FILE_SIZE: u64 = 64 << 20;

/// A longer record has a file of its own.
const OWN_FILE: u64 = FILE_SIZE / 4;

/// Records at least this long start on a page, so that all their pages can be punched out.
const ALIGN_FROM: u64 = 64 << 10;

/// Files are read and written in steps of at most this many bytes, through a buffer that stays in
/// the processor's cache: what is written is what was checksummed, even if a client of the creator's
/// uid alters the object at that moment.
const CHUNK: usize = 256 << 10;
