//! What can go wrong for a client, in one type: a kind to act on and a message to read.

use std::fmt;

/// What a call of the client gives back.
pub type Result<T> = std::result::Result<T, Error>;

crate::wire::codes! {
    /// What happened, for a program to act on. Numbers of a newer daemon read as `Internal`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ErrorKind: u16 else Internal {
        /// An object of this id is there already, or is being created.
        1 Exists,
        /// Nothing of this id is known.
        2 NotFound,
        /// It did not happen within the time-out.
        3 TimedOut,
        /// The store has no room: what it holds is pinned or exists nowhere else.
        4 Full,
        /// The object existed, and every node that held it is gone.
        5 Lost,
        /// The object is larger than the whole store.
        6 TooLarge,
        /// An argument or a frame does not make sense.
        7 Invalid,
        /// This user may not do that to this object.
        8 NotAllowed,
        /// The daemon limits what one client may have under way, and this is over the limit.
        9 Busy,
        /// The daemon cannot be reached, the connection to it broke, or it is on its way out of the cluster.
        10 Disconnected,
        /// The caller asked the wait to end (a signal, Ctrl-C).
        11 Interrupted,
        /// The daemon failed inside; its log says more.
        12 Internal,
        /// The object's bytes are not those that were sealed: a file it was spilled to is damaged.
        13 Damaged,
        /// Fewer nodes hold the object than was asked for; it stays where it is.
        14 TooFew,
        /// It may have happened or not, or happen later: a node that knows does not answer.
        15 OutcomeUnknown,
    }
}

/// An error of the client: what happened, to which object, node or path, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of a kind with its message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What happened, for a program to act on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What happened, for a person to read.
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
