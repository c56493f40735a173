//! Errors of guests.
//!
//! Owns no state. Any thread.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reason why a guest did not do its job, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A program of the host is missing or does not start.
    #[error("cannot run {program}: {source}; scripts/setup.sh --rdma installs what guests need")]
    Program {
        /// Name of the program.
        program: String,
        /// Reason why the program did not start.
        source: io::Error,
    },
    /// A program of the host failed.
    #[error("{command} failed: {output}")]
    Command {
        /// Command with its arguments.
        command: String,
        /// Text that the command printed.
        output: String,
    },
    /// A package lacks a part that guests need.
    #[error("the kernel package {package} has no {what}; Debian 12's is known to work")]
    Kernel {
        /// Name of the package.
        package: String,
        /// Part that was looked for in the package.
        what: String,
    },
    /// The disk has no room for the guests' kernel.
    #[error(
        "the disk is full: {free} MiB are free for {}, and fetching the guests' kernel takes up to {needed}; \
         make room (`cargo clean` gives back what was built), or set CARGO_TARGET_DIR to a folder elsewhere",
        .folder.display()
    )]
    DiskFull {
        /// Folder that the kernel was to be kept in.
        folder: PathBuf,
        /// Free room in MiB.
        free: u64,
        /// Room in MiB that fetching the kernel takes at most.
        needed: u64,
    },
    /// A file cannot be used.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// Verb for what was to be done with the file.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Reason why the file cannot be used.
        source: io::Error,
    },
    /// A guest's machine ended before its program did.
    #[error("guest {number} ended without an exit code; the end of its console:\n{console}")]
    Ended {
        /// Number of the guest.
        number: usize,
        /// Last lines of the guest's kernel and of QEMU.
        console: String,
    },
    /// The time of the job is over.
    #[error("the guests were not done after {} s; the end of the console:\n{console}", .limit.as_secs())]
    TooLate {
        /// Time limit of the job.
        limit: Duration,
        /// Last lines of the guests that were still running.
        console: String,
    },
}

impl GuestError {
    /// Makes a function that turns an `io::Error` about the file `path` into this error.
    pub(super) fn file(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::File { action, path, source }
    }
}
