//! The archive that a guest's kernel unpacks when it boots: busybox, the modules and `e2e/guest/init`.
//!
//! Owns no state. The thread that starts guests. Invariant: the archive is packed anew for every run, from
//! the kernel that was prepared.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::GuestError;
use super::kernel::Kernel;

/// First program of a guest.
const INIT: &str = include_str!("../../guest/init");

/// Makes the archive in `folder` and gives its path.
pub(super) fn write(kernel: &Kernel, folder: &Path) -> Result<PathBuf, GuestError> {
    let root = folder.join("initramfs");
    for name in ["", "bin", "dev", "proc", "sys", "modules"] {
        let path = root.join(name);
        fs::create_dir(&path).map_err(GuestError::file("make", &path))?;
    }
    let copy = |from: &Path, to: &Path| match fs::copy(from, to) {
        Ok(_) => Ok(()),
        Err(error) => Err(GuestError::file("copy", from)(error)),
    };
    copy(&kernel.busybox(), &root.join("bin/busybox"))?;
    let mut order = String::new();
    for (name, path) in kernel.modules() {
        copy(&path, &root.join(format!("modules/{name}.ko")))?;
        order.push_str(&format!("{name}\n"));
    }
    let write = |name: &str, text: &str, mode: u32| {
        let path = root.join(name);
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(mode)))
            .map_err(GuestError::file("write", &path))
    };
    write("modules/order", &order, 0o644)?;
    write("init", INIT, 0o755)?;
    pack(&root, &folder.join("initramfs.cpio"))
}

/// Packs all files below `root` into `archive`.
fn pack(root: &Path, archive: &Path) -> Result<PathBuf, GuestError> {
    let out = File::create(archive).map_err(GuestError::file("write", archive))?;
    let mut command = Command::new("sh");
    command.args(["-c", "find . | bin/busybox cpio -o -H newc"]).current_dir(root);
    let output = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).output();
    let output = output.map_err(|source| GuestError::Program { program: "sh".to_owned(), source })?;
    if output.status.success() {
        return Ok(archive.to_owned());
    }
    let output = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(GuestError::Command { command: "busybox cpio".to_owned(), output })
}
