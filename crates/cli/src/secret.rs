//! `plasmon secret`: a new secret for a cluster.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use crate::args::Secret;
use crate::failure::Failure;

const SECRET_BYTES: usize = 32;

/// Writes a new secret into a file. A file that exists stays as it is.
pub(crate) fn secret(args: &Secret) -> Result<(), Failure> {
    let mut bytes = [0_u8; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| Failure::file("draw bytes for", &args.file)(error.into()))?;
    let mut text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push('\n');
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.file)
        .map_err(Failure::file("create", &args.file))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(Failure::file("write", &args.file))
}
