//! Errors of operations on files, with the number that Linux has for each, a path and a reason.
//!
//! Owns no state. Any thread. Invariant: every error has a number that programs understand.

use std::fmt;

use crate::ErrorKind;
use crate::text::printable;
use crate::wire::files::Errno;

/// Result of an operation on files.
pub type Result<T> = std::result::Result<T, Error>;

/// Error of an operation on files.
///
/// The error is a pointer, so that results of operations that succeed stay small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Told>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    errno: Errno,
    message: Option<String>,
    path: Option<String>,
    /// Whether the bytes that were to be stored still wait, so that another attempt may succeed.
    late: bool,
}

impl Error {
    /// Returns an error with a number alone.
    pub fn new(errno: Errno) -> Self {
        Self(Box::new(Told { errno, message: None, path: None, late: false }))
    }

    /// Returns an error with a number and a message.
    pub fn because(errno: Errno, message: impl Into<String>) -> Self {
        Self(Box::new(Told { errno, message: Some(message.into()), path: None, late: false }))
    }

    /// Returns an error of a store that was not done in time. The bytes wait for another attempt.
    pub(super) fn late(message: impl Into<String>) -> Self {
        let mut error = Self::because(Errno::Io, message);
        error.0.late = true;
        error
    }

    /// Whether the bytes that were to be stored wait for another attempt, for want of room or time.
    pub(super) fn leaves_bytes(&self) -> bool {
        self.0.late || matches!(self.0.errno, Errno::Full | Errno::OverQuota)
    }

    /// Adds the path that the error is about, unless the error has a path already.
    #[must_use]
    pub fn at(mut self, path: &[u8]) -> Self {
        self.0.path.get_or_insert_with(|| printable(&String::from_utf8_lossy(path)).to_string());
        self
    }

    /// Returns the number of the error.
    pub fn errno(&self) -> Errno {
        self.0.errno
    }

    /// Returns an error of the client as the error of an operation on a file.
    pub(super) fn of_client(error: &crate::Error) -> Self {
        let errno = match error.kind() {
            ErrorKind::Full | ErrorKind::TooLarge => Errno::Full,
            ErrorKind::Interrupted => Errno::Interrupted,
            ErrorKind::NotAllowed => Errno::NoAccess,
            _ => Errno::Io,
        };
        Self::because(errno, error.message())
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::new(errno)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.0.path {
            write!(f, "{path}: ")?;
        }
        match &self.0.message {
            Some(message) => f.write_str(message),
            None => write!(f, "{}", std::io::Error::from_raw_os_error(self.0.errno as i32)),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        match error.0.message {
            Some(_) => Self::new(Self::from_raw_os_error(error.errno() as i32).kind(), error),
            None => Self::from_raw_os_error(error.errno() as i32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_path_once() {
        let error = Error::new(Errno::NotFound).at(b"/a").at(b"/b");
        assert_eq!(error.to_string(), "/a: No such file or directory (os error 2)");
        let told = Error::because(Errno::Io, "the bytes are lost").at(b"/a");
        assert_eq!(told.to_string(), "/a: the bytes are lost");
    }

    #[test]
    fn a_full_store_is_a_full_file_system() {
        let full = crate::Error::new(ErrorKind::Full, "no room");
        assert_eq!(Error::of_client(&full).errno(), Errno::Full);
        let gone = crate::Error::new(ErrorKind::Disconnected, "gone");
        assert_eq!(Error::of_client(&gone).errno(), Errno::Io);
    }
}
