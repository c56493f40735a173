//! Error type of the client: a kind for programs and a message for people.
//!
//! Owns no state. Any thread. Invariant: every error has both.

use std::fmt;

/// Result of a call of the client.
pub type Result<T> = std::result::Result<T, Error>;

crate::wire::codes! {
    /// Kind of an error, for a program to act on. A number that only a newer daemon knows reads as
    /// `Internal`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ErrorKind: u16 else Internal {
        /// An object of this id exists already or is being created.
        1 Exists,
        /// No object of this id is known.
        2 NotFound,
        /// The call did not finish within its time-out.
        3 TimedOut,
        /// The store has no room: its objects are pinned or have no other replica.
        4 Full,
        /// The object existed, and every node that held it is gone.
        5 Lost,
        /// The object is larger than the whole store.
        6 TooLarge,
        /// An argument or a frame is invalid.
        7 Invalid,
        /// This user may not do that to this object.
        8 NotAllowed,
        /// The client has as many requests under way as the daemon permits.
        9 Busy,
        /// The daemon cannot be reached, its connection broke, or it is leaving the cluster.
        10 Disconnected,
        /// The caller interrupted the call (a signal, Ctrl-C).
        11 Interrupted,
        /// The daemon failed internally; its log says more.
        12 Internal,
        /// The object's bytes are not those that were sealed: the file that it was spilled to is damaged.
        13 Damaged,
        /// Fewer nodes hold the object than were asked for. The object stays where it is.
        14 TooFew,
        /// The outcome is unknown because a node that decides it does not answer. The change may have
        /// happened, or may happen later.
        15 OutcomeUnknown,
    }
}

/// Error of the client: what happened, to which object, node or path, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// Makes an error of this kind with this message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Kind of the error, for a program to act on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Message of the error, for a person to read.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
