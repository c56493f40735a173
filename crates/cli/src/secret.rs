//! `plasmon secret`: a new secret for a cluster.

use crate::args::Secret;
use crate::failure::Failure;
use crate::secret_file;

/// Writes a new secret into a file. A file that exists stays as it is.
pub(crate) fn secret(args: &Secret) -> Result<(), Failure> {
    secret_file::make(&args.file).map_err(Failure::file("create", &args.file))
}
