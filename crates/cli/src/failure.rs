//! Why a command failed, and the exit code that says so.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use plasmon::ErrorKind;

/// A command's failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The store refused or could not be reached.
    #[error("{0}")]
    Store(#[from] plasmon::Error),
    /// A file or stream failed.
    #[error("cannot {action} {path}: {source}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// Nothing of these names is known.
    #[error("no such object: {0}")]
    Absent(String),
    /// Other users' objects.
    #[error("not deleted: {0}")]
    Refused(String),
    /// The daemon's program is not beside this one.
    #[error("{0} is missing: plasmon and plasmon-node are installed together, in one directory")]
    NoDaemon(PathBuf),
    /// A file changed under the command's hands.
    #[error("{path} changed while it was read: it had {expected} bytes; nothing was stored")]
    Changed { path: PathBuf, expected: u64 },
    /// A wait for more objects than were named.
    #[error("--count {count} is more than the number of objects named, {objects}")]
    CountOf { count: usize, objects: usize },
    /// A wait was over before enough objects came.
    #[error("{came} of {count} objects came within the time")]
    TooFew { came: usize, count: usize },
    /// A broadcast did not come to all.
    #[error("{0}")]
    Unreached(String),
    /// A measurement towards other nodes, of which there are none.
    #[error(
        "there is no other node to measure towards: this one is alone in its cluster; start one with \
         `plasmon serve --join`"
    )]
    Alone,
    /// The doctor has told what they are.
    #[error("{0} of what the doctor found are problems")]
    Problems(usize),
}

impl Failure {
    /// Names the file that an operation failed on.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// The codes of `plasmon --help`.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::CountOf { .. } => 2,
            Self::Absent(_) => 3,
            Self::TooFew { .. } => 4,
            Self::Unreached(_) => 10,
            Self::Alone => 11,
            Self::Store(error) => match error.kind() {
                ErrorKind::NotFound => 3,
                ErrorKind::TimedOut => 4,
                ErrorKind::Exists => 5,
                ErrorKind::Full | ErrorKind::TooLarge => 6,
                ErrorKind::Disconnected => 7,
                ErrorKind::Lost => 8,
                ErrorKind::Damaged => 9,
                ErrorKind::TooFew => 10,
                ErrorKind::OutcomeUnknown => 12,
                _ => 1,
            },
            Self::File { .. }
            | Self::Refused(_)
            | Self::NoDaemon(_)
            | Self::Changed { .. }
            | Self::Problems(_) => 1,
        })
    }
}
