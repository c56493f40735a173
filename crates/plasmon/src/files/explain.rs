//! Places of the bytes of a file, for programs that show them.
//!
//! Owns no state. Any thread. Invariant: the sections are in order and do not overlap.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Error, Result, Volume};
use crate::wire::files::{Errno, FileKind, Section};

impl Volume {
    /// Returns the sections of the file that a path leads to, in the order of their offsets. The bytes of the
    /// file lie in its sections; elsewhere are holes. Bytes that another session has not committed yet are
    /// not among them.
    ///
    /// # Errors
    /// `IsFolder` for a folder and `Invalid` for any other inode that is no file; errors of `open(2)`, with
    /// the path.
    pub fn sections(&self, path: impl AsRef<Path>) -> Result<Vec<Section>> {
        let path = path.as_ref();
        let name = path.as_os_str().as_bytes();
        let found = self.metadata(path)?;
        match found.kind {
            FileKind::File => {}
            FileKind::Folder => return Err(Error::new(Errno::IsFolder).at(name)),
            _ => return Err(Error::new(Errno::Invalid).at(name)),
        }
        self.0.settle(found.inode)?;
        self.sections_of(found.inode).map_err(|error| error.at(name))
    }
}
