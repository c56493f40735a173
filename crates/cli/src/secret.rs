//! `plasmon secret`: makes a new secret for a cluster.
//!
//! Owns no state. Main thread. Invariant: a file that exists stays as it is.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::failure::Failure;
use crate::secret_file;

/// Arguments of `plasmon secret`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Writes 32 random bytes, in hexadecimal digits, into a new file that only this user can read. Copy it to \
every host in a way that keeps it secret, and start every node with --secret-file FILE. Any host with \
the file may join.")]
pub(crate) struct Secret {
    /// File to write, which must not exist yet
    pub(crate) file: PathBuf,
}

/// Writes a new secret into a file. A file that exists stays as it is.
pub(crate) fn secret(args: &Secret) -> Result<(), Failure> {
    secret_file::make(&args.file).map_err(Failure::file("create", &args.file))
}
