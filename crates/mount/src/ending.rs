//! The end of a mount that a signal asks for.
//!
//! Owns the number of the mount's device. Any thread. A mount lives as long as any mount namespace has it,
//! and as long as files in it are open. A copy in another namespace (a container, a unit with folders of its
//! own) is nothing that this process can unmount, so the kernel is told to abort the connection: calls under
//! way and later ones get ENOTCONN there. Invariant: a second signal always ends the mount.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::mounting::{self, MountError, unmount_folder};

/// Folder in which the kernel shows the connections of FUSE.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Mount that a signal may end.
#[derive(Debug, Clone)]
pub struct Ending {
    folder: PathBuf,
    /// Number of the mount's device, as `mountinfo` shows it. None if it could not be found.
    device: Option<String>,
}

impl Ending {
    /// Returns the ending of the mount at an absolute path.
    pub(crate) fn of(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), device: mounting::device_of(folder).ok() }
    }

    /// Unmounts the folder. What is open there goes on until it is closed, unless another mount namespace has
    /// the mount too, or nothing is mounted here any more: then the mount ends now.
    ///
    /// # Errors
    /// If the folder cannot be unmounted, or the connection cannot be aborted: the caller has to exit then,
    /// which ends the mount as well.
    pub fn end(&self) -> Result<(), MountError> {
        match unmount_folder(&self.folder, true) {
            Ok(()) if !self.is_elsewhere() => return Ok(()),
            Ok(()) | Err(MountError::NotMounted(_)) => {}
            Err(error) => return Err(error),
        }
        tracing::info!(
            folder = %self.folder.display(),
            "the mount ends now, although files are open or another mount namespace has it"
        );
        let aborted = self.abort();
        aborted.map_err(|source| MountError::Serving { path: self.folder.clone(), source })
    }

    /// Has the kernel end all that goes on in the mount.
    fn abort(&self) -> io::Result<()> {
        // The mount's device has no major number, and the kernel names connections by the minor one.
        let minor = self.device.as_deref().and_then(|device| device.split_once(':'));
        let (_, minor) = minor.ok_or(io::ErrorKind::NotFound)?;
        fs::write(format!("{CONNECTIONS}/{minor}/abort"), "1")
    }

    /// Whether a process of another mount namespace sees the mount.
    fn is_elsewhere(&self) -> bool {
        let Some(device) = &self.device else { return false };
        let Ok(processes) = fs::read_dir("/proc") else { return false };
        let mut seen = BTreeSet::new();
        processes.flatten().any(|process| {
            let path = process.path();
            // Processes that end meanwhile, and those of others, cannot be looked at.
            let Ok(namespace) = fs::read_link(path.join("ns/mnt")) else { return false };
            let text = seen.insert(namespace).then(|| fs::read(path.join("mountinfo")));
            text.is_some_and(|text| text.is_ok_and(|text| mounting::lists(&text, device)))
        })
    }
}
