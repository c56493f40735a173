//! Errors of spilling and restoring objects, with advice. Owns no state. Any thread.

use std::io;
use std::path::PathBuf;

use bytesize::ByteSize;
use plasmon::ObjectId;

/// Why an object cannot be spilled or read back, or why there is no spill store.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    /// The directory cannot be used.
    #[error(
        "cannot {action} the spill directory {}: {source}; give --spill-dir a directory that the daemon may \
         write",
        .dir.display()
    )]
    Directory {
        /// The path of the directory.
        dir: PathBuf,
        /// The operation that failed.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The directory does not exist, and is not made.
    #[error(
        "the spill directory {dir} does not exist, and is not made, since {why}: mount its disk, correct \
         --spill-dir, or make it with `mkdir -p -m 700 {dir}`",
        dir = .dir.display()
    )]
    Absent {
        /// The path of the directory.
        dir: PathBuf,
        /// Why the directory is not made.
        why: &'static str,
    },
    /// Other users could put objects into the directory.
    #[error(
        "the spill directory {} belongs to uid {owner} and has mode {mode:o}: it must belong to the daemon's \
         uid {uid} and be writable by nobody else (`chown {uid}`, `chmod 700`)",
        .dir.display()
    )]
    Exposed {
        /// The path of the directory.
        dir: PathBuf,
        /// The owner of the directory.
        owner: u32,
        /// The permission bits of the directory.
        mode: u32,
        /// The daemon's effective uid.
        uid: u32,
    },
    /// Another daemon uses the directory.
    #[error(
        "the spill directory {} is in use by another daemon{}: give every daemon a --spill-dir of its own",
        .dir.display(), .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The path of the directory.
        dir: PathBuf,
        /// The other daemon's process, if it is known.
        pid: Option<u32>,
    },
    /// The spill thread cannot be started.
    #[error("cannot start the spill thread: {0}; raise the limit of processes (`ulimit -u`)")]
    Thread(#[source] io::Error),
    /// The disk has no room for a batch: the whole batch stays in memory.
    #[error(
        "no room for {} ({bytes} bytes) more in the spill directory {}, where {} are free: {source}; free \
         disk space or delete objects",
        ByteSize(*bytes), .dir.display(), ByteSize(*free)
    )]
    NoSpace {
        /// The path of the directory.
        dir: PathBuf,
        /// Number of bytes of the batch, with its record headers.
        bytes: u64,
        /// Number of bytes that are free on the disk.
        free: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The batch could not be written: the whole batch stays in memory.
    #[error("cannot write {bytes} bytes to the spill directory {}: {source}; check the disk", .dir.display())]
    Write {
        /// The path of the directory.
        dir: PathBuf,
        /// Number of bytes of the batch, with its record headers.
        bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Header and bytes of an object do not belong together.
    #[error("object {id} cannot be spilled: {reason}; this is a bug in Plasmon, please report it")]
    Unfit {
        /// The id of the object.
        id: ObjectId,
        /// The contradiction.
        reason: &'static str,
    },
    /// The object's record on disk is not what was written.
    #[error(
        "spilled object {id} is lost: {reason} (at {offset} in {}); delete it and put it again, and check \
         the disk",
        .file.display()
    )]
    Damaged {
        /// The id of the object.
        id: ObjectId,
        /// The object's file.
        file: PathBuf,
        /// Offset in bytes at which the record starts.
        offset: u64,
        /// The damage.
        reason: &'static str,
    },
    /// The object's record is as it was written, but its bytes are not those of the object that was sealed.
    #[error(
        "spilled object {id} is lost: it is not what was sealed, its digest is {found:016x} and was \
         {sealed:016x} \
         (at {offset} in {}). Its record is whole: it was altered in memory before it was written, or \
         sealed with a wrong digest; delete it and put it again",
        .file.display()
    )]
    Altered {
        /// The id of the object.
        id: ObjectId,
        /// The object's file.
        file: PathBuf,
        /// Offset in bytes at which the record starts.
        offset: u64,
        /// The digest made at the seal.
        sealed: u64,
        /// The digest of the bytes in the record.
        found: u64,
    },
    /// The object's record could not be read; a later attempt may succeed.
    #[error(
        "cannot read spilled object {id} (at {offset} in {}): {source}; try again, and check the disk",
        .file.display()
    )]
    Read {
        /// The id of the object.
        id: ObjectId,
        /// The object's file.
        file: PathBuf,
        /// Offset in bytes at which the record starts.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The spill thread has ended.
    #[error("the spill thread has ended: restart the daemon, and see its log for why")]
    Stopped,
}
