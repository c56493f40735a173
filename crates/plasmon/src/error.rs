//! What can go wrong for a client, in one type: a kind to act on and a message to read.

use std::fmt;

/// What a call of the client gives back.
pub type Result<T> = std::result::Result<T, Error>;

/// What happened, for a program to act on. The numbers stand on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An object of this id is there already, or is being created.
    Exists = 1,
    /// Nothing of this id is known.
    NotFound = 2,
    /// It did not happen within the time-out.
    TimedOut = 3,
    /// The store has no room: what it holds is pinned or exists nowhere else.
    Full = 4,
    /// The object existed, and every node that held it is gone.
    Lost = 5,
    /// The object is larger than the whole store.
    TooLarge = 6,
    /// An argument or a frame does not make sense.
    Invalid = 7,
    /// This user may not do that to this object.
    NotAllowed = 8,
    /// The daemon limits what one client may have under way, and this is over the limit.
    Busy = 9,
    /// The daemon cannot be reached, the connection to it broke, or it is on its way out of the cluster.
    Disconnected = 10,
    /// The caller asked the wait to end (a signal, Ctrl-C).
    Interrupted = 11,
    /// The daemon failed inside; its log says more.
    Internal = 12,
    /// The object's bytes are not those that were sealed: a file it was spilled to is damaged.
    Damaged = 13,
    /// Fewer nodes hold the object than was asked for; it stays where it is.
    TooFew = 14,
}

impl ErrorKind {
    const ALL: [ErrorKind; 14] = [
        Self::Exists,
        Self::NotFound,
        Self::TimedOut,
        Self::Full,
        Self::Lost,
        Self::TooLarge,
        Self::Invalid,
        Self::NotAllowed,
        Self::Busy,
        Self::Disconnected,
        Self::Interrupted,
        Self::Internal,
        Self::Damaged,
        Self::TooFew,
    ];

    /// The kind behind a number of the wire; numbers of a newer daemon read as `Internal`.
    pub fn from_wire(code: u16) -> Self {
        let known = Self::ALL.into_iter().find(|kind| *kind as u16 == code);
        known.unwrap_or(Self::Internal)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_wire(kind as u16), kind);
        }
        assert_eq!(ErrorKind::from_wire(999), ErrorKind::Internal);
    }
}
