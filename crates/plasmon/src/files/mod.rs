//! Files: volumes of the cluster, as programs and mounts use them.
//!
//! [`Volume::attach`] begins a session at the home of a volume. Files are used by their paths
//! ([`Volume::open`], [`File`]), as `std::fs` does, or by the numbers of their inodes, as a mount does. Names
//! and attributes are the home's; bytes lie in immutable objects, which are written and read in the memory of
//! this host's node.
//!
//! ```no_run
//! use plasmon::files::{AttachOptions, OpenOptions, Volume};
//!
//! let client = plasmon::Client::connect(plasmon::Socket::find())?;
//! let volume = Volume::attach(&client, "main", &AttachOptions::default())?;
//! let file = volume.open("/notes", OpenOptions::new().read(true).write(true).create(true))?;
//! file.write_at(b"hello", 0)?;
//! file.sync()?;
//! let mut read = [0; 5];
//! assert_eq!((file.read_at(&mut read, 0)?, &read), (5, b"hello"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Owns sessions, their knowledge of open files, and bytes that are not committed yet. Any thread, and
//! threads of the volume: one looks for bytes that have waited for long; those of the background commit such
//! bytes, put blocks, and commit the first parts of files that are being written. Invariants: a byte that
//! was synced is named by the map at the home; each open is told a failure to commit once, by its next sync
//! or close.

mod ahead;
mod background;
mod blocks;
mod check;
mod commit;
mod credit;
mod error;
mod explain;
mod failures;
mod folders;
mod held;
mod inode;
mod locks;
mod lookahead;
mod map;
mod names;
mod open_folders;
mod opens;
mod path;
mod peek;
mod placing;
mod putting;
mod reader;
mod right;
#[cfg(test)]
mod sample;
mod session;
mod tidy;
mod unlocks;
mod volume;
mod watch;
mod writer;

use std::time::Duration;

pub use blocks::{BLOCK_BYTES, Buffer};
pub use check::{Checked, Finding, Trouble};
pub use error::{Error, Result};
pub use failures::Seen;
pub use names::{Entry, Looked, Page, RenameManner};
pub use path::{DirEntry, File, OpenOptions, ReadDir};
pub use reader::{Part, Parts, Seek};
pub use volume::{Opened, Volume, WriteManner};
pub use watch::{Current, Keep, Watcher};

pub use crate::client::{VolumeList, Volumes, find_place};
pub use crate::wire::files::{
    Actor, Attributes, Change, Errno, FileKind, LockKind, LockRange, MAX_FILE_BYTES, NodeCheck, PLACE_XATTR,
    Place, ROOT_INODE, Section, SetAttributes, Source, Stale, Time, UsageCheck, VolumeChange, VolumeInfo,
    VolumeState, VolumeTerms, VolumeUsage,
};

/// How a volume is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachOptions {
    /// Whether the volume is created if no volume has the name.
    pub create: bool,
    /// Whether the session may only read.
    pub read_only: bool,
    /// Whether the home checks permissions. A mount leaves the check to the kernel. For sessions that are not
    /// trusted the home always checks.
    pub checked: bool,
    /// Whether the session answers questions about folders that it has changed without asking the home, as
    /// long as nobody else changes them.
    pub keeps: bool,
    /// Longest time for which an operation waits for a node that is away, or for nodes that are to keep the
    /// bytes of a file.
    pub patience: Duration,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self {
            create: false,
            read_only: false,
            checked: true,
            keeps: true,
            patience: Duration::from_secs(60),
        }
    }
}
