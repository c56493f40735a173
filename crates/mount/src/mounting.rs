//! Mounting a folder, changing its mount, and ending it: by the kernel for root, by `fusermount3` for other
//! users.
//!
//! Owns no state. Any thread. Invariant: what is unmounted is a mount of Plasmon.

use std::ffi::CString;
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, openat, stat};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{getegid, geteuid};

use crate::device::Device;

/// File in which the kernel lists the mounts that this process sees.
const MOUNTS: &str = "/proc/self/mountinfo";
/// Type of the file system, as `/proc/mounts` shows it.
const KIND: &str = "fuse.plasmon";
/// Program by which users other than root mount.
const HELPER: &str = "fusermount3";

/// Failure to mount or to unmount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The folder cannot be used.
    #[error("cannot mount at {path}: {source}")]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The path leads to something that is no folder.
    #[error("cannot mount at {0}: it is no folder")]
    NoFolder(PathBuf),
    /// A volume is mounted at this path already.
    #[error("a volume is mounted at {0} already: `plasmon umount` ends that")]
    Mounted(PathBuf),
    /// No volume is mounted at this path.
    #[error("no volume of Plasmon is mounted at {0}")]
    NotMounted(PathBuf),
    /// The kernel has no FUSE, or this process may not use it.
    #[error(
        "cannot open /dev/fuse: {0}; load the kernel's module (modprobe fuse), or give the container the \
         device (--device /dev/fuse)"
    )]
    Device(io::Error),
    /// The kernel refused to mount.
    #[error("cannot mount at {path}: {source}; in a container this takes CAP_SYS_ADMIN")]
    Refused {
        /// Path of the folder.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The program by which users other than root mount is not installed or failed.
    #[error("cannot mount at {path}: {HELPER} {problem}; users other than root need it (package fuse3)")]
    Helper {
        /// Path of the folder.
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },
    /// The volume was mounted to be read only, so its session may not write.
    #[error(
        "the volume at {0} was mounted read-only, and its mount may change nothing: `plasmon umount {0}`, \
         and mount it again"
    )]
    ReadsOnly(PathBuf),
    /// Something in the mounted folder is open to write.
    #[error("{0} cannot be read-only: files there are open to write (lsof {0})")]
    Writes(PathBuf),
    /// Something in the mounted folder is still in use.
    #[error("{0} is in use: close what is open there (lsof {0}), or use --force")]
    Busy(PathBuf),
    /// Requests of the kernel cannot be served.
    #[error("the mount at {path} ends: {source}")]
    Serving {
        /// Path of the folder.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// How a folder is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Source that `/proc/mounts` shows: the name of the volume.
    pub(crate) source: String,
    pub(crate) allow_other: bool,
    pub(crate) read_only: bool,
}

/// Returns the absolute path of a folder on which to mount. If a mount died there, the folder is freed first.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, MountError> {
    let whole = std::path::absolute(path).map_err(|source| refused(path, source))?;
    let found = match stat(&whole) {
        Err(Errno::NOTCONN) if is_mounted(&whole) => {
            unmount_at(&whole, true)?;
            stat(&whole)
        }
        found => found,
    };
    let found: Stat = found.map_err(|error| refused(path, error.into()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(MountError::NoFolder(path.to_owned()));
    }
    let whole = fs::canonicalize(&whole).map_err(|source| refused(path, source))?;
    if is_mounted(&whole) {
        return Err(MountError::Mounted(path.to_owned()));
    }
    Ok(whole)
}

/// Mounts a folder, and returns the device from which the requests for the folder are read.
pub(crate) fn mount_at(folder: &Path, manner: &Manner) -> Result<Device, MountError> {
    if !geteuid().is_root() {
        return mount_by_helper(folder, manner);
    }
    let device = Device::open().map_err(MountError::Device)?;
    let other = if manner.allow_other { ",allow_other" } else { "" };
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{other}",
        device.as_fd().as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw(),
    );
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if manner.read_only {
        flags |= MountFlags::RDONLY;
    }
    // Neither text has a zero: the name of a volume is checked, and the options are made here.
    let text = |text: &str| CString::new(text).unwrap_or_default();
    mount(text(&manner.source).as_c_str(), folder, KIND, flags, text(&options).as_c_str())
        .map_err(|error| MountError::Refused { path: folder.to_owned(), source: error.into() })?;
    Ok(device)
}

/// Ends the mount at a folder. With `force`, open files stay usable until they are closed.
///
/// # Errors
/// If no volume is mounted there, if the folder is in use, or if this user may not end the mount.
pub fn unmount_folder(path: &Path, force: bool) -> Result<(), MountError> {
    let whole = std::path::absolute(path).map_err(|source| refused(path, source))?;
    // The path of a mount that died cannot be resolved beyond its parent.
    let whole = fs::canonicalize(&whole).unwrap_or(whole);
    if !is_mounted(&whole) {
        return Err(MountError::NotMounted(path.to_owned()));
    }
    unmount_at(&whole, force)
}

fn unmount_at(folder: &Path, force: bool) -> Result<(), MountError> {
    if geteuid().is_root() {
        let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return unmount(folder, flags).map_err(|error| match error {
            Errno::BUSY => MountError::Busy(folder.to_owned()),
            error => refused(folder, error.into()),
        });
    }
    let mut command = Command::new(HELPER);
    command.arg(if force { "-uz" } else { "-u" }).arg("--").arg(folder).stdin(Stdio::null());
    let output = command.output().map_err(|error| helper(folder, format!("cannot be run: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(MountError::Busy(folder.to_owned()));
    }
    Err(helper(folder, format!("says: {}", said.trim())))
}

/// Changes whether anything can be written in a mounted folder, as `mount -o remount` does. Programs that
/// have files open go on.
///
/// # Errors
/// If no volume is mounted there, if files are open to write in a folder that is to be read-only, if the
/// volume was mounted to be read only, or if this user may not change mounts.
pub fn remount_folder(path: &Path, read_only: bool, no_exec: bool) -> Result<(), MountError> {
    let whole = fs::canonicalize(path).map_err(|source| refused(path, source))?;
    if !is_mounted(&whole) {
        return Err(MountError::NotMounted(path.to_owned()));
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::NOEXEC, no_exec);
    let remount = |flags| {
        mount_remount(&whole, flags, c"").map_err(|error| match error {
            Errno::BUSY => MountError::Writes(whole.clone()),
            error => refused(&whole, error.into()),
        })
    };
    if read_only {
        return remount(flags | MountFlags::RDONLY);
    }
    remount(flags)?;
    // The kernel knows nothing of the session, which the home refuses to change anything.
    let probe = openat(CWD, &whole, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    if matches!(probe, Err(Errno::ROFS)) {
        remount(flags | MountFlags::RDONLY)?;
        return Err(MountError::ReadsOnly(whole));
    }
    Ok(())
}

/// Mounts a folder by `fusermount3`, which opens the device, and takes the device over.
fn mount_by_helper(folder: &Path, manner: &Manner) -> Result<Device, MountError> {
    let failed = |error: io::Error| helper(folder, format!("cannot be talked to: {error}"));
    let (own, theirs) = UnixStream::pair().map_err(failed)?;
    fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    let mut options = format!("fsname={},subtype=plasmon,default_permissions", escaped(&manner.source));
    if manner.allow_other {
        options.push_str(",allow_other");
    }
    if manner.read_only {
        options.push_str(",ro");
    }
    let child = Command::new(HELPER)
        .args(["-o", &options, "--"])
        .arg(folder)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| helper(folder, format!("cannot be run: {error}")))?;
    drop(theirs);
    let device = receive(&own);
    let output = child.wait_with_output().map_err(failed)?;
    match device {
        Some(device) if output.status.success() => Ok(Device::of(device)),
        _ => Err(helper(folder, format!("says: {}", String::from_utf8_lossy(&output.stderr).trim()))),
    }
}

/// Receives a descriptor from the other end of a socket. `None` if none comes.
fn receive(from: &UnixStream) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    })
}

/// Escapes commas and backslashes of a name for an option of the helper.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace(',', "\\,")
}

/// Whether a volume is mounted at this absolute path.
pub(crate) fn is_mounted(folder: &Path) -> bool {
    fs::read(MOUNTS).is_ok_and(|text| mounts(&text).any(|mounted| mounted.folder == folder))
}

/// Returns the name of the volume in which a path of this host lies, and the path within the volume. `None`
/// if the path lies in no volume.
///
/// # Errors
/// If there is no such path, or the path cannot be looked at.
pub fn volume_of(path: &Path) -> io::Result<Option<(String, PathBuf)>> {
    let whole = fs::canonicalize(path)?;
    let device = stat(&whole)?.st_dev;
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let text = fs::read(MOUNTS)?;
    let within = |mounted: Mounted| {
        let rest = whole.strip_prefix(&mounted.folder).ok()?;
        let depth = mounted.folder.components().count();
        Some((depth, mounted.volume, mounted.root.join(rest)))
    };
    let found = mounts(&text).filter(|mounted| mounted.device == device.as_bytes()).filter_map(within);
    Ok(found.max_by_key(|(depth, ..)| *depth).map(|(_, volume, path)| (volume, path)))
}

/// Mount of a volume, as a line of `mountinfo` describes it.
struct Mounted {
    /// Number of the device, as `mountinfo` shows it.
    device: Vec<u8>,
    /// Path within the volume of the folder that the mount shows.
    root: PathBuf,
    folder: PathBuf,
    volume: String,
}

/// Returns the mounts of volumes among those that this text of `mountinfo` lists.
fn mounts(text: &[u8]) -> impl Iterator<Item = Mounted> + '_ {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        if *fields.get(dash + 1)? != KIND.as_bytes() {
            return None;
        }
        Some(Mounted {
            device: fields.get(2)?.to_vec(),
            root: unescaped(fields.get(3)?),
            folder: unescaped(fields.get(4)?),
            volume: unescaped(fields.get(dash + 2)?).to_string_lossy().into_owned(),
        })
    })
}

/// Returns the path that `mountinfo` shows with spaces and some other bytes as three octal digits.
fn unescaped(shown: &[u8]) -> PathBuf {
    let (mut path, mut rest) = (Vec::with_capacity(shown.len()), shown);
    while let Some((first, others)) = rest.split_first() {
        let digits = (*first == b'\\').then(|| others.get(..3)).flatten();
        let value = digits.and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        match value {
            Some(byte) => {
                path.push(byte);
                rest = &others[3..];
            }
            None => {
                path.push(*first);
                rest = others;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(path))
}

/// Returns the number of the device of the last mount at an absolute path, as `mountinfo` shows it. The
/// folder itself is not looked at, because that would ask the mount and keep the folder in use meanwhile.
pub(crate) fn device_of(folder: &Path) -> io::Result<String> {
    let text = fs::read(MOUNTS)?;
    let last = mounts(&text).filter(|mounted| mounted.folder == folder).last();
    let mounted = last.ok_or(io::ErrorKind::NotFound)?;
    Ok(String::from_utf8_lossy(&mounted.device).into_owned())
}

/// Whether a list of mounts, as `mountinfo` shows it, has one of this device.
pub(crate) fn lists(text: &[u8], device: &str) -> bool {
    mounts(text).any(|mounted| mounted.device == device.as_bytes())
}

/// Sets the read-ahead of the mount at an absolute path in KiB, which only root may do.
pub(crate) fn set_read_ahead(folder: &Path, kib: u32) -> io::Result<()> {
    let device = device_of(folder)?;
    fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), kib.to_string())
}

fn refused(path: &Path, source: io::Error) -> MountError {
    MountError::Folder { path: path.to_owned(), source }
}

fn helper(path: &Path, problem: String) -> MountError {
    MountError::Helper { path: path.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn bytes(path: &Path) -> &[u8] {
        path.as_os_str().as_bytes()
    }

    #[test]
    fn mounts_of_plasmon_are_found_among_others() {
        let text = b"36 35 98:0 / /mnt rw,noatime shared:1 - ext3 /dev/root rw\n\
            40 36 0:45 / /mnt/a\\040b rw,nosuid - fuse.plasmon main rw,user_id=0\n\
            41 36 0:46 / /mnt/c rw - fuse.sshfs host rw\n";
        let found: Vec<Mounted> = mounts(text).collect();
        assert_eq!(found.len(), 1);
        assert_eq!(bytes(&found[0].folder), b"/mnt/a b");
        assert_eq!((found[0].volume.as_str(), &found[0].device[..]), ("main", &b"0:45"[..]));
        assert_eq!(bytes(&found[0].root), b"/");
    }

    #[test]
    fn a_backslash_that_escapes_nothing_stays() {
        assert_eq!(bytes(&unescaped(b"/a\\b\\1")), b"/a\\b\\1");
        assert_eq!(bytes(&unescaped(b"/\\134x")), b"/\\x");
    }

    #[test]
    fn names_are_escaped_for_the_helper() {
        assert_eq!(escaped("a,b\\c"), "a\\,b\\\\c");
    }
}
