//! The unix socket of the node: taking its path, and giving it back.
//!
//! A path is taken under a lock of its directory, so that two starts at once cannot both find a
//! stale socket there. The kernel drops that lock with the process, and nothing else is left behind.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Why the socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A daemon serves there.
    #[error("another daemon serves at {0}; stop it, or choose another path with --socket")]
    InUse(PathBuf),
    /// Something that is no socket is there.
    #[error("{0} exists and is not a socket; it was left alone: choose another path with --socket")]
    NotSocket(PathBuf),
    /// The system refuses.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// A bound socket; its path disappears with it.
pub(super) struct Listener {
    pub(super) socket: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Binds `path`, over a stale socket if need be, with `mode`.
    pub(super) fn bind(path: &Path, mode: u32) -> Result<Self, ListenError> {
        let system = |action, path: &Path| {
            let path = path.to_owned();
            move |source| ListenError::System { action, path, source }
        };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !directory.exists() {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(directory).map_err(system("create the directory", directory))?;
        }
        let lock = File::open(directory).map_err(system("open the directory", directory))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| system("lock the directory", directory)(error.into()))?;
        make_way(path)?;
        let socket = UnixListener::bind(path).map_err(system("bind the socket", path))?;
        socket.set_nonblocking(true).map_err(system("listen on", path))?;
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(system("set the mode of", path))?;
        let inode = fs::symlink_metadata(path).map_err(system("look at", path))?.ino();
        Ok(Self { socket, path: path.to_owned(), inode })
    }
}

/// Removes a socket that nobody serves; refuses everything else that is in the way.
fn make_way(path: &Path) -> Result<(), ListenError> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotSocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|source| ListenError::System {
                action: "remove the stale socket",
                path: path.to_owned(),
                source,
            })
        }
        _ => Err(ListenError::InUse(path.to_owned())),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only what this listener made: someone may have moved it away and put another there.
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}
