//! The spill directory: its lock and the system calls on its files. Owns [`Directory`], which is used by
//! the thread that opens the store, and then by the spill thread.
//!
//! Invariants: the lock is held as long as a [`Directory`] lives; files are reached through the directory's
//! descriptor, so that a new name of the directory changes nothing; only this uid may write in the directory.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::SpillError;
use super::record::{self, FIRST_RECORD_AT};

const LOCK: &str = "lock";
/// Directories of the host in which disks are usually mounted. A missing directory in one of them
/// is a disk that is not mounted.
const MOUNT_PARENTS: [&str; 3] = ["/", "/mnt", "/media"];

/// The spill directory, locked.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    descriptor: File,
    lock: File,
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A child that was just forked has the file until it executes its program, so closing the file here
        // would not release the lock at once. If the call fails, the lock is released by the close alone.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

impl Directory {
    /// Locks the directory, and makes it if it is absent. An absent directory is not made if it looks like
    /// a disk that is not mounted or like a slip of the pen: objects would silently fill another disk.
    pub(super) fn open(path: &Path) -> Result<Directory, SpillError> {
        let failed =
            |action| move |source: io::Error| SpillError::Directory { dir: path.to_owned(), action, source };
        if is_mount_point(path) && !path.exists() {
            let why = "disks are mounted in the directory above it";
            return Err(SpillError::Absent { dir: path.to_owned(), why });
        }
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let why = "the directory above it does not exist either";
                return Err(SpillError::Absent { dir: path.to_owned(), why });
            }
            made => made.map_err(failed("create"))?,
        }
        let descriptor = File::open(path).map_err(failed("open"))?;
        let stat = rustix::fs::fstat(&descriptor).map_err(|error| failed("examine")(error.into()))?;
        let uid = rustix::process::geteuid().as_raw();
        if stat.st_uid != uid || stat.st_mode & 0o022 != 0 {
            let (owner, mode) = (stat.st_uid, stat.st_mode & 0o7777);
            return Err(SpillError::Exposed { dir: path.to_owned(), owner, mode, uid });
        }
        let path = fs::canonicalize(path).map_err(failed("find"))?;
        let lock = lock(&descriptor, &path)?;
        Ok(Directory { path, descriptor, lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Number of bytes that are free on the directory's disk; 0 if the system does not say.
    pub(super) fn free(&self) -> u64 {
        rustix::fs::fstatvfs(&self.descriptor).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// The path of a file, for messages.
    pub(super) fn file_path(&self, number: u32) -> PathBuf {
        self.path.join(file_name(number))
    }

    /// The numbers of all spill files, lowest first.
    pub(super) fn list(&self) -> Result<Vec<u32>, SpillError> {
        let failed = |error: Errno| SpillError::Directory {
            dir: self.path.clone(),
            action: "list",
            source: error.into(),
        };
        let mut numbers = Vec::new();
        for entry in Dir::read_from(&self.descriptor).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            numbers.extend(number_of(OsStr::from_bytes(entry.file_name().to_bytes())));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Opens a file for reading and writing.
    pub(super) fn open_file(&self, number: u32) -> io::Result<File> {
        // NONBLOCK avoids a wait if a pipe has this name.
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.descriptor, file_name(number), flags, Mode::empty())?;
        Ok(File::from(file))
    }

    /// Makes a file that has no record yet.
    pub(super) fn create_file(&self, number: u32, salt: u64) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(rustix::fs::openat(&self.descriptor, file_name(number), flags, mode)?);
        let mut page = [0; FIRST_RECORD_AT as usize];
        let header = record::encode_file(salt);
        for at in record::FILE_HEADERS_AT {
            page[at as usize..][..header.len()].copy_from_slice(&header);
        }
        match file.write_all_at(&page, 0) {
            Ok(()) => Ok(file),
            Err(error) => {
                self.unlink(number)?;
                Err(error)
            }
        }
    }

    /// Removes a file.
    pub(super) fn unlink(&self, number: u32) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.descriptor, file_name(number), AtFlags::empty())?)
    }
}

/// Whether a path is where a disk is usually mounted.
fn is_mount_point(path: &Path) -> bool {
    path.parent().and_then(Path::to_str).is_some_and(|parent| MOUNT_PARENTS.contains(&parent))
}

/// Takes the lock of a directory, and writes this process's number into it.
fn lock(directory: &File, path: &Path) -> Result<File, SpillError> {
    let failed = |source| SpillError::Directory { dir: path.to_owned(), action: "lock", source };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, LOCK, flags, Mode::RUSR | Mode::WUSR);
    let mut file = File::from(file.map_err(|error| failed(error.into()))?);
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // The number only improves a message, so a full disk is no reason to refuse.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            Ok(file)
        }
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            Err(SpillError::InUse { dir: path.to_owned(), pid })
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// Number of bytes that a file takes on disk.
pub(super) fn disk_bytes(file: &File) -> io::Result<u64> {
    Ok(rustix::fs::fstat(file)?.st_blocks as u64 * 512)
}

/// Frees the disk space of a range of a file, which reads as zeros afterwards.
pub(super) fn punch(file: &File, at: u64, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, at, len)?)
}

/// Fills `into` from `at` on as far as the file goes; returns the number of bytes.
pub(super) fn read_up_to(file: &File, mut at: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match file.read_at(&mut into[filled..], at) {
            Ok(0) => break,
            Ok(count) => (filled, at) = (filled + count, at + count as u64),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn file_name(number: u32) -> String {
    format!("{number}.spill")
}

/// The number of a spill file, if `name` is one that [`file_name`] gives.
fn number_of(name: &OsStr) -> Option<u32> {
    let number = name.to_str()?.strip_suffix(".spill")?.parse().ok()?;
    (file_name(number).as_str() == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_free_though_a_forked_child_has_its_lock() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("spill");
        let directory = Directory::open(&path).unwrap();
        assert!(matches!(Directory::open(&path), Err(SpillError::InUse { .. })));
        let of_a_child = directory.lock.try_clone().unwrap();
        drop(directory);
        Directory::open(&path).unwrap();
        drop(of_a_child);
    }
}
