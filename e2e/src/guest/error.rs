//! Why a guest did not do what it was asked to.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is in the way, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// A program of the host is missing, or does not start.
    #[error("cannot run {program}: {source}; scripts/setup.sh --rdma installs what guests need")]
    Program {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A program of the host failed.
    #[error("{command} failed: {output}")]
    Command {
        /// With its arguments.
        command: String,
        /// What it printed.
        output: String,
    },
    /// The package does not have what is needed.
    #[error("the kernel package {package} has no {what}; Debian 12's is known to work")]
    Kernel {
        /// The package.
        package: String,
        /// What was looked for in it.
        what: String,
    },
    /// There is no room for the kernel.
    #[error(
        "the disk is full: {free} MiB are free for {}, and fetching the guests' kernel takes up to {needed}; \
         make room (`cargo clean` gives back what was built), or set CARGO_TARGET_DIR to a folder elsewhere",
        .folder.display()
    )]
    DiskFull {
        /// Where it was to be kept.
        folder: PathBuf,
        /// MiB that are free.
        free: u64,
        /// MiB that it takes.
        needed: u64,
    },
    /// A file cannot be used.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// What was to be done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A guest's machine ended before its program did.
    #[error("guest {number} ended without an exit code; the end of its console:\n{console}")]
    Ended {
        /// Which guest.
        number: usize,
        /// The last lines of its kernel and of QEMU.
        console: String,
    },
    /// The time is up.
    #[error("the guests were not done after {} s; the end of the console:\n{console}", .limit.as_secs())]
    TooLate {
        /// The job's time limit.
        limit: Duration,
        /// The last lines of a guest that was still running.
        console: String,
    },
}

impl GuestError {
    /// Makes an error of what happened to a file.
    pub(super) fn file(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::File { action, path, source }
    }
}
