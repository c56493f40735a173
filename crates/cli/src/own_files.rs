//! Files that a node keeps among the state files of its user: the calibration, and the secret of clusters.
//!
//! Owns no state. Any thread. The folder is `plasmon` in `$XDG_STATE_HOME`, else in `~/.local/state`.
//! Invariant: the secret is this user's own, and no start replaces it.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::secret_file;

/// Advice for a user whose secret cannot be made or read.
const INSTEAD: &str = "name another file with --secret-file FILE, or add --listen 127.0.0.1 to serve without \
                       a secret, for every user of this host and no other host";

/// Reason why this user's secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnSecretError {
    #[error(
        "there is no place for the cluster's secret, because neither XDG_STATE_HOME nor HOME is set; \
         {INSTEAD}"
    )]
    NoPlace,
    #[error("cannot make the cluster's secret {path}: {source}; {INSTEAD}")]
    Make { path: PathBuf, source: io::Error },
    #[error("{path} would be the cluster's secret, and is user {owner}'s, who could join; {INSTEAD}")]
    Foreign { path: PathBuf, owner: u32 },
}

/// Default path of the calibration.
pub(crate) fn calibration() -> Option<PathBuf> {
    state_file("calibration.json")
}

/// Path of this user's secret, which is made if it does not exist.
pub(crate) fn secret() -> Result<PathBuf, OwnSecretError> {
    let path = state_file("secret").ok_or(OwnSecretError::NoPlace)?;
    match standing(&path) {
        Ok(owner) if owner == geteuid().as_raw() => Ok(path),
        Ok(owner) => Err(OwnSecretError::Foreign { path, owner }),
        Err(source) => Err(OwnSecretError::Make { path, source }),
    }
}

/// Owner of the file of a secret, which is made if it does not exist.
fn standing(path: &Path) -> io::Result<u32> {
    let owner = || fs::metadata(path).map(|found| found.uid());
    match owner() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        found => return found,
    }
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    match secret_file::make(path) {
        // Another node of this user was faster, and this one takes the same secret.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    owner()
}

fn state_file(name: &str) -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")))?;
    std::path::absolute(state.join("plasmon").join(name)).ok()
}
