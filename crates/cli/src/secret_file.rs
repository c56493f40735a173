//! New files with secrets of clusters.
//!
//! Owns no state. Any thread. Both programs of this crate make such files. Invariant: a file appears whole,
//! readable by its owner alone, and takes the place of no other file.

use std::io::{self, Write};
use std::path::Path;

use tempfile::NamedTempFile;

const SECRET_BYTES: usize = 32;

/// Writes a new secret into a file that does not exist yet.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    let mut bytes = [0_u8; SECRET_BYTES];
    getrandom::fill(&mut bytes)?;
    let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push('\n');
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // The mode of a temporary file is 0600.
    let mut file = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all())?;
    file.persist_noclobber(path).map(drop).map_err(|kept| kept.error)
}
