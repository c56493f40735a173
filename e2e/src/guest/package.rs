//! Debian packages, of which only the files that guests need are unpacked.
//!
//! Owns no state. The thread that prepares a kernel. A kernel's package is 400 MB unpacked, of which guests
//! need 20 MB. apt fetches the package and checks its signatures, and the needed files go from the archive
//! straight into place. Invariant: nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::GuestError;

/// Bytes that fetching and unpacking takes at most, with some to spare.
const ROOM_BYTES: u64 = 256 << 20;

/// Checks that the disk of `folder` has room for packages.
pub(super) fn check_room(folder: &Path) -> Result<(), GuestError> {
    let file_system = rustix::fs::statvfs(folder);
    let file_system =
        file_system.map_err(|error| GuestError::file("ask for room in", folder)(error.into()))?;
    enough(folder, file_system.f_bavail * file_system.f_frsize)
}

/// Checks that `free` bytes are enough for packages.
fn enough(folder: &Path, free: u64) -> Result<(), GuestError> {
    if free >= ROOM_BYTES {
        return Ok(());
    }
    Err(GuestError::DiskFull { folder: folder.to_owned(), free: free >> 20, needed: ROOM_BYTES >> 20 })
}

/// Fetches a package, and unpacks the files whose paths match a pattern. Gives the folder in `work` that they
/// are in. The patterns are those of tar; `*` matches no slash.
pub(super) fn unpack(package: &str, patterns: &[&str], work: &Path) -> Result<PathBuf, GuestError> {
    eprintln!("guest: fetching {package}");
    let folder = work.join(package);
    let unpacked = folder.join("unpacked");
    fs::create_dir_all(&unpacked).map_err(GuestError::file("make", &unpacked))?;
    command("apt-get", &["download", package], &folder)?;
    let archive = fs::read_dir(&folder).map_err(GuestError::file("list", &folder))?.find_map(|entry| {
        Some(entry.ok()?.path()).filter(|path| path.extension().is_some_and(|it| it == "deb"))
    });
    let archive = archive.ok_or_else(|| GuestError::Kernel {
        package: package.to_owned(),
        what: "archive after its download".to_owned(),
    })?;

    let mut reader = Command::new("dpkg-deb");
    reader.arg("--fsys-tarfile").arg(&archive).stdin(Stdio::null()).stdout(Stdio::piped());
    let missing = |program: &str| {
        let program = program.to_owned();
        |source| GuestError::Program { program, source }
    };
    let mut reading = reader.stderr(Stdio::null()).spawn().map_err(missing("dpkg-deb"))?;
    let mut writer = Command::new("tar");
    writer.args(["--extract", "--no-same-owner", "--wildcards", "--no-wildcards-match-slash", "--directory"]);
    writer.arg(&unpacked).args(patterns);
    writer.stdin(reading.stdout.take().map_or_else(Stdio::null, Stdio::from));
    let written = writer.output().map_err(missing("tar"));
    // The reader's output is closed by now, so that the reader ends even if tar has failed.
    let read = reading.wait().map_err(missing("dpkg-deb"))?;
    let written = written?;
    if !(read.success() && written.status.success()) {
        // The disk may have filled up meanwhile, and that error says more than tar's.
        check_room(&unpacked)?;
        return Err(GuestError::Command {
            command: format!("dpkg-deb --fsys-tarfile {} | tar --extract", archive.display()),
            output: String::from_utf8_lossy(&written.stderr).trim().to_owned(),
        });
    }
    Ok(unpacked)
}

/// Runs a program of the host in `folder`, and gives the text that it printed.
pub(super) fn command(program: &str, args: &[&str], folder: &Path) -> Result<String, GuestError> {
    let output = Command::new(program).args(args).current_dir(folder).output();
    let output = output.map_err(|source| GuestError::Program { program: program.to_owned(), source })?;
    if !output.status.success() {
        return Err(GuestError::Command {
            command: format!("{program} {}", args.join(" ")),
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_called_so() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        assert!(enough(folder.path(), ROOM_BYTES).is_ok());
        let error = enough(folder.path(), 5 << 20).expect_err("it is too little").to_string();
        assert!(error.starts_with("the disk is full: 5 MiB are free"), "{error}");
        assert!(error.contains(&folder.path().display().to_string()), "{error}");
    }
}
