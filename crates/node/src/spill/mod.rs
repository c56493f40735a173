//! Sealed objects on disk: primaries leave memory for files when it is short, and come back on a get, also
//! after a restart of the daemon.
//!
//! This module owns the directory given with `--spill-dir`, its files, and the thread `plasmon-spill`,
//! which alone touches them. The engine holds a [`SpillStore`] (not `Send`), makes requests, and gets
//! futures. An object for which no memory has room can be read in parts. No call of a [`SpillStore`] does
//! file I/O, with two exceptions: opening the store reads what a former daemon left, and dropping it waits
//! for the requests under way.
//!
//! **Promises.** The files are an extension of memory, not a database: nothing is synced, so they survive
//! the daemon, whatever kills it, but not a power cut. Damage is noticed, and damaged bytes are never
//! returned as an object: every record has checksums of itself and of its payload, and an object that is
//! read back is compared with the digest of its seal, if one was made. Whoever reads it in parts compares
//! them. Damage costs the objects that it
//! hits, not their neighbours. Requests that the thread had not begun when the daemon was killed have not
//! happened: an object that was deleted at the last moment may come back.
//!
//! **Files.** `<dir>/<number>.spill`, written once from front to back: objects follow each other until a
//! file has 64 MiB; an object of more than 16 MiB has a file to itself. A restarted daemon appends to none
//! of its predecessor's files.
//!
//! ```text
//! file:    0     header: magic, version, salt, checksum      2048  the header again
//!          4096  record, record, ... each at a multiple of 8, of 4096 if of 64 KiB or more
//! record:  0     state: live or dead       8   checksum of 16.. up to the payload
//!          16    version, flags (1 private, 2 terms behind the name, 4 everybody's to change),
//!                length of the name (2 bytes), of the metadata (4)
//!          24    length of the data        32  checksum of the payload
//!          40    sequence                  48  life       56  created       64  digest
//!          72    user (4), id (20)       96  name       then payload: data, metadata
//! ```
//!
//! All numbers are little-endian; name and payload are padded to 8 bytes. Checksums are XXH3-64. The
//! checksum of a record is seeded with the file's salt and the record's offset, so that a scan that
//! searches behind damage does not take bytes of an object for a record.
//!
//! **Space.** A forgotten record is marked dead. Once dead neighbours cover whole pages, these are punched
//! out, on a filesystem that can punch holes. A file without a live record is unlinked. A file whose live
//! records are less than a quarter of its disk space is emptied: its records are moved behind the others
//! when the thread has nothing else to do. A move is not visible outside: a [`Place`] is valid until it is
//! forgotten.
//!
//! Invariants:
//! - A record is written before its place is returned. A batch that fails leaves nothing behind, unless
//!   its removal fails as well, which is logged.
//! - No place is used twice while the daemon lives.
//! - Zeros belong to no record: they are holes, padding, or headers that were never written.
//! - Of several records of one id, the one with the highest sequence counts; the others are remains.
//!
//! Read in this order: `record`, `store`, `disk`, `append`, `restore`, `scan`, `compact`; `directory` has
//! the system calls.

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
#[cfg(test)]
pub(crate) use store::SteppedDisk;
pub use store::{Item, Pending, SpillStore};
pub use usage::Usage;

/// Number of bytes up to which records are appended to a file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Length in bytes above which a record has a file of its own.
const OWN_FILE_BYTES: u64 = MAX_FILE_BYTES / 4;

/// Length in bytes from which a record starts on a page, so that all of its pages can be punched out.
const ALIGN_FROM_BYTES: u64 = 64 << 10;

/// Maximum number of bytes of a step in which files are read and written, through a buffer that stays in
/// the processor's cache. So the bytes that are written are those that were checksummed, even if a client
/// with the creator's uid changes the object at that moment.
const CHUNK_BYTES: usize = 256 << 10;
