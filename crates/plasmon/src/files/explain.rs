//! Where the bytes of a file lie, for whoever wants to know.
//!
//! Owns no state. Any thread. Invariant: the sections are in order and do not overlap.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::session::unexpected;
use super::{Error, Result, Volume};
use crate::wire::files::{Errno, FileKind, FileOperation, FileOutcome, Section};

impl Volume {
    /// Sections of the file that a path leads to, in the order of their offsets: its bytes lie in them, and
    /// elsewhere are holes. Bytes that another session has not committed yet are not among them.
    ///
    /// # Errors
    /// `IsFolder` for a folder and `Invalid` for what is no file otherwise; those of `open(2)`, with the
    /// path.
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
        let (mut sections, mut end) = (Vec::<Section>::new(), 0);
        loop {
            let map = FileOperation::Map { inode: found.inode, from: end };
            let (outcome, _) = self.0.ask(&self.actor(), map).map_err(|error| error.at(name))?;
            let FileOutcome::Map { map, .. } = outcome else { return Err(unexpected()) };
            // The first section of a page may be the last one of the page before.
            let known = sections.last().map_or(0, |last| last.offset.saturating_add(last.len));
            sections.extend(map.sections.into_iter().filter(|section| section.offset >= known));
            match map.next {
                None => return Ok(sections),
                Some(next) if next > end => end = next,
                Some(_) => return Err(unexpected()),
            }
        }
    }
}
