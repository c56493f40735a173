//! Failure of a command, with its message and its exit code.
//!
//! Owns no state. Any thread. Invariant: each failure has a message for people and an exit code.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use plasmon::ErrorKind;
use plasmon_mount::{Failed, MountError};

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A call of the client failed.
    #[error("{0}")]
    Store(#[from] plasmon::Error),
    /// A folder cannot be mounted or unmounted.
    #[error("{0}")]
    Mount(#[from] MountError),
    /// The process that was to serve a mount has ended, with the reason `problem`.
    #[error("{problem}")]
    Mounting { problem: String, code: u8 },
    /// A file or a stream failed.
    #[error("cannot {action} {path}: {source}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    /// No objects of these names are known.
    #[error("no such object: {0}")]
    Absent(String),
    /// The objects belong to other users and were not deleted.
    #[error("not deleted: {0}")]
    Refused(String),
    /// The daemon's program is not where it is installed together with this one.
    #[error("{0} is missing: plasmon and plasmon-node are installed together")]
    NoDaemon(PathBuf),
    /// No Python has the package.
    #[error(
        "no Python here has the package plasmon, of which this command runs `python -m {module}` (looked at \
         {looked}): install the package, and call the `plasmon` of its environment"
    )]
    NoPython { module: String, looked: String },
    /// A value of Python was to be written to a terminal.
    #[error(
        "{object} is {what}, and no text: `--as json` prints it, `-o FILE` and `--raw` write its bytes, and \
         in Python `plasmon.connect().get({object:?})` returns it"
    )]
    NoText { object: String, what: String },
    /// The bytes of a value of Python are not what a file's name promises.
    #[error(
        "{object} is {what}, and its bytes are no {kind}: `--as {kind}` writes it so to {path}, `--raw` its \
         bytes; a pickle can run any code, so use `--as` only if you trust who put it"
    )]
    Pickled { object: String, what: String, kind: &'static str, path: PathBuf },
    /// The Python package has not written a value, and has printed why.
    #[error("{path} was not written")]
    Unwritten { path: PathBuf, code: u8 },
    /// A file changed while the command read it.
    #[error("{path} changed while it was read: it had {expected} bytes; nothing was stored")]
    Changed { path: PathBuf, expected: u64 },
    /// A wait is for more objects than were named.
    #[error("--count {count} is more than the number of objects named, {objects}")]
    CountOf { count: usize, objects: usize },
    /// A wait ended before enough objects came.
    #[error("{came} of {count} objects came within the time-out")]
    TooFew { came: usize, count: usize },
    /// Some nodes did not tell what they hold.
    #[error("the list lacks what these nodes alone hold: {0}")]
    Incomplete(String),
    /// A broadcast did not reach all nodes.
    #[error("{0}")]
    Unreached(String),
    /// A measurement needs another node, and there is none.
    #[error(
        "there is no other node to measure towards: this one is alone in its cluster; start one with \
         `plasmon serve --join`"
    )]
    Alone,
    /// No command was given.
    #[error("there is no command to run: write it behind --")]
    NoCommand,
    /// A command cannot be run.
    #[error("cannot run {command}: {source}")]
    Command { command: String, source: io::Error, code: u8 },
    /// The doctor found problems, and has printed them.
    #[error("number of problems that the doctor found: {0}")]
    Problems(usize),
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Volume(error) => Self::Store(error),
            Failed::Mount(error) => Self::Mount(error),
        }
    }
}

impl Failure {
    /// Names the action and the file that failed.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// Exit code of the failure. `plasmon --help` lists the codes that all commands share.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::CountOf { .. } | Self::NoCommand => 2,
            Self::Absent(_) | Self::Mount(MountError::NotMounted(_)) => 3,
            Self::TooFew { .. } | Self::Incomplete(_) => 4,
            Self::Unreached(_) => 10,
            Self::Unwritten { code, .. } | Self::Command { code, .. } | Self::Mounting { code, .. } => *code,
            Self::Alone => 11,
            Self::Store(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::Freed => 3,
                ErrorKind::TimedOut => 4,
                ErrorKind::Exists | ErrorKind::Conflict => 5,
                ErrorKind::Full | ErrorKind::TooLarge => 6,
                ErrorKind::Disconnected => 7,
                ErrorKind::Lost => 8,
                ErrorKind::Damaged => 9,
                ErrorKind::TooFew => 10,
                ErrorKind::OutcomeUnknown | ErrorKind::Fenced | ErrorKind::Broken => 12,
                _ => 1,
            },
            Self::Mount(MountError::Mounted(_)) => 5,
            Self::Mount(_)
            | Self::File { .. }
            | Self::Refused(_)
            | Self::NoDaemon(_)
            | Self::NoPython { .. }
            | Self::NoText { .. }
            | Self::Pickled { .. }
            | Self::Changed { .. }
            | Self::Problems(_) => 1,
        })
    }
}
