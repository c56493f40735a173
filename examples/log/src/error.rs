//! Errors of a log.
//!
//! Owns no state. Any thread. Whatever a log has in common with a store has the kind that it has there.

use plasmon::ErrorKind;

/// Result of a call on a log.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why a call on a log failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Trimmed: the position that was to be read is gone.
    #[error("position {position} of log '{log}' was trimmed: the oldest position is {oldest} now")]
    Trimmed {
        /// Name of the log.
        log: String,
        /// Position that was to be read.
        position: u64,
        /// Oldest position that is there still.
        oldest: u64,
    },
    /// Anything else, with the kind that says what to do.
    #[error("{0}")]
    Store(#[from] plasmon::Error),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self::Store(plasmon::Error::new(kind, text))
    }

    /// Kind of the error, for a program to act on. What was trimmed is not found.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Trimmed { .. } => ErrorKind::NotFound,
            Self::Store(error) => error.kind(),
        }
    }

    /// Whether a copy may have gone, so that it is worth looking which there are and going on with those.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Store(error) if is_gone(error) || is_open(error))
    }
}

/// Whether a region is no more.
pub(crate) fn is_gone(error: &plasmon::Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::Freed | ErrorKind::NotFound | ErrorKind::NotHere)
}

/// Whether it is not known what a home has done or will do. Every step of a log may be taken again.
fn is_open(error: &plasmon::Error) -> bool {
    matches!(error.kind(), ErrorKind::OutcomeUnknown | ErrorKind::TimedOut)
}
