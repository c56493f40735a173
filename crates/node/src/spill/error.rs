//! What can go wrong with objects on disk, and what to do about it.

use std::io;
use std::path::PathBuf;

use bytesize::ByteSize;
use plasmon::ObjectId;

/// An object cannot be spilled or brought back, or there can be no spill store.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    /// The directory cannot be used.
    #[error(
        "cannot {action} the spill directory {}: {source}; give --spill-dir a directory that the daemon may \
         write",
        .dir.display()
    )]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Others could put objects of their own making there.
    #[error(
        "the spill directory {} belongs to uid {owner} and has mode {mode:o}: it must belong to the daemon's \
         uid {uid} and be writable by nobody else (`chown {uid}`, `chmod 700`)",
        .dir.display()
    )]
    Exposed {
        /// The directory.
        dir: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// The daemon's effective uid.
        uid: u32,
    },
    /// Another daemon spills there.
    #[error(
        "the spill directory {} is in use by another daemon{}: give every daemon a --spill-dir of its own",
        .dir.display(), .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The other daemon's process, if it said.
        pid: Option<u32>,
    },
    /// The thread that does the work cannot be had.
    #[error("cannot start the spill thread: {0}; raise the limit of processes (`ulimit -u`)")]
    Thread(#[source] io::Error),
    /// No room on disk: the whole batch stays in memory.
    #[error(
        "no room for {} ({bytes} bytes) more in the spill directory {}, where {} are free: {source}; free \
         disk space or delete objects",
        ByteSize(*bytes), .dir.display(), ByteSize(*free)
    )]
    NoSpace {
        /// The directory.
        dir: PathBuf,
        /// Bytes of the batch, with its record headers.
        bytes: u64,
        /// Bytes that the disk has for others.
        free: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The batch could not be written: all of it stays in memory.
    #[error("cannot write {bytes} bytes to the spill directory {}: {source}; check the disk", .dir.display())]
    Write {
        /// The directory.
        dir: PathBuf,
        /// Bytes of the batch, with its record headers.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Header and bytes of an object do not belong together.
    #[error("object {id} cannot be spilled: {reason}; this is a bug in Plasmon, please report it")]
    Unfit {
        /// The object.
        id: ObjectId,
        /// Why not.
        reason: &'static str,
    },
    /// The object's record is not what was written.
    #[error(
        "spilled object {id} is lost: {reason} (at {offset} in {}); delete it and put it again, and check \
         the disk",
        .file.display()
    )]
    Damaged {
        /// The object.
        id: ObjectId,
        /// Its file.
        file: PathBuf,
        /// Where its record starts, in bytes.
        offset: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The object's record is what was written, and not what was sealed.
    #[error(
        "spilled object {id} is lost: it is not what was sealed, its digest is {found:016x} and was \
         {sealed:016x} \
         (at {offset} in {}). Its record is whole: it was altered in memory before it was written, or \
         sealed with a wrong digest; delete it and put it again",
        .file.display()
    )]
    Altered {
        /// The object.
        id: ObjectId,
        /// Its file.
        file: PathBuf,
        /// Where its record starts, in bytes.
        offset: u64,
        /// The digest made at its seal.
        sealed: u64,
        /// The digest of what its record holds.
        found: u64,
    },
    /// The object's record could not be read; a later attempt may succeed.
    #[error(
        "cannot read spilled object {id} (at {offset} in {}): {source}; try again, and check the disk",
        .file.display()
    )]
    Read {
        /// The object.
        id: ObjectId,
        /// Its file.
        file: PathBuf,
        /// Where its record starts, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The thread is gone.
    #[error("the spill thread has ended: restart the daemon, and see its log for why")]
    Stopped,
}
