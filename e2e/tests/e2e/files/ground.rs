//! Folders on which tests mount, of which other tests' nodes keep no copies.
//!
//! A node of a test has mounts of its own: copies of those that were there when it was started. A mount
//! ends with the last copy, so a test would wait for the nodes of others until its mount ends. These folders
//! lie in one that is shared, which means that the kernel ends the copies with the mount.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use tempfile::{Builder, TempDir};

/// Folder that is shared while a test has a folder in it.
struct Ground(TempDir);

impl Ground {
    /// The folder of all tests.
    fn get() -> Arc<Self> {
        static GROUND: Mutex<Weak<Ground>> = Mutex::new(Weak::new());
        let mut known = GROUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ground) = known.upgrade() {
            return ground;
        }
        let ground = Arc::new(Self(TempDir::new().expect("there is a folder for temporary files")));
        let path = ground.0.path();
        // Users pass through it to folders of their own.
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("the folder is ours");
        mount_bind(path, path).expect("root may mount");
        mount_change(path, MountPropagationFlags::SHARED).expect("it was just mounted");
        *known = Arc::downgrade(&ground);
        ground
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // Mounts that a failed test has left go, too.
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Folder of a test that can be mounted on.
pub(super) struct Folder {
    own: TempDir,
    _ground: Arc<Ground>,
}

impl Folder {
    pub(super) fn new() -> Self {
        let ground = Ground::get();
        let own = Builder::new().tempdir_in(ground.0.path()).expect("the folder is ours");
        Self { own, _ground: ground }
    }

    pub(super) fn path(&self) -> &Path {
        self.own.path()
    }
}
