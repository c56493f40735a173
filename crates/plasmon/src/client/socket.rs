//! Sockets of nodes: where a client finds its node, and whose node it trusts.
//!
//! Owns no state. Any thread. Invariant: the kernel is asked who serves a socket after the client has
//! connected and before it sends a frame. The folder of the default socket may lie in `/tmp`, where any user
//! could have created it first.

use std::env;
use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};

use rustix::process::geteuid;

use crate::wire::Peer;
use crate::{Error, ErrorKind, Result};

/// Folder of the node that serves the whole host. It lies in `/run`, where only root can create it.
const HOST_FOLDER: &str = "/run/plasmon";
/// Environment variable that names the socket.
const VARIABLE: &str = "PLASMON_SOCKET";
/// Maximum number of bytes of the path of a socket, which the kernel sets.
const MAX_PATH_BYTES: usize = 107;
/// Maximum number of bytes that a daemon adds to the default path if another daemon serves there.
const MAX_ADDED_BYTES: usize = "-1000".len();
const ROOT_UID: u32 = 0;
/// Longest text of an address and a port.
const MAX_ADDRESS_BYTES: u64 = 100;
/// User id that the kernel shows for users outside this user namespace, unless it is configured otherwise.
const OVERFLOW_UID: u32 = 65534;
const OVERFLOW_FILE: &str = "/proc/sys/kernel/overflowuid";

/// Socket at which a client looks for its node.
///
/// A socket made from a path is *named*: it was chosen explicitly, so a node of any user is accepted there.
/// [`Socket::find`] and [`Socket::default`] are named only if they come from `$PLASMON_SOCKET`. Otherwise the
/// node must belong to root, to this user, or to the user to whom root gave `/run/plasmon`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    path: PathBuf,
    named: bool,
}

impl<P: AsRef<Path>> From<P> for Socket {
    fn from(path: P) -> Self {
        Self { path: path.as_ref().to_owned(), named: true }
    }
}

impl From<&Socket> for Socket {
    fn from(socket: &Socket) -> Self {
        socket.clone()
    }
}

impl Default for Socket {
    /// Socket at which a daemon of this user listens by default: `$PLASMON_SOCKET`, else
    /// `plasmon/plasmon.sock` in `$XDG_RUNTIME_DIR` if that is short enough, else `/run/plasmon/plasmon.sock`
    /// for root, else `/tmp/plasmon-<uid>/plasmon.sock`.
    fn default() -> Self {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        if let Some(path) = variable(VARIABLE) {
            return Self::from(PathBuf::from(path));
        }
        let runtime = variable("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("plasmon"));
        let user = geteuid();
        let own = || match user.is_root() {
            true => HOST_FOLDER.to_owned(),
            false => format!("/tmp/plasmon-{}", user.as_raw()),
        };
        Self::in_first(runtime, Path::new(&own()))
    }
}

impl Socket {
    /// Socket at which a client finds the node of this host: [`Socket::default`], or
    /// `/run/plasmon/plasmon.sock`, the node of the whole host, if this user has no socket at the default.
    pub fn find() -> Self {
        let (own, host) = (Self::default(), Self::in_folder(Path::new(HOST_FOLDER)));
        if !own.named && !own.is_own() && host.path.exists() { host } else { own }
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the same socket with an absolute path, which stays right if the process changes its folder.
    ///
    /// # Errors
    /// If the current folder is gone.
    pub fn absolute(&self) -> io::Result<Self> {
        Ok(Self { path: absolute(&self.path)?, named: self.named })
    }

    /// Checks that a path is short enough for a socket.
    ///
    /// # Errors
    /// `Invalid`, which says what named the path.
    pub fn check_length(path: &Path) -> Result<()> {
        let len = path.as_os_str().len();
        if len <= MAX_PATH_BYTES {
            return Ok(());
        }
        let by_variable =
            env::var_os(VARIABLE).is_some_and(|named| absolute(named).ok() == absolute(path).ok());
        let advice = match by_variable {
            true => format!("{VARIABLE} names it: set that to a shorter one"),
            false => format!("name a shorter one (--socket, {VARIABLE}, or the argument of connect)"),
        };
        let text = format!(
            "'{}' cannot be the path of a socket: it has {len} bytes, and the system takes at most \
             {MAX_PATH_BYTES}; {advice}",
            path.display()
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Socket in the first of two folders, if its path is short enough there, whatever a daemon adds to it.
    fn in_first(first: Option<PathBuf>, second: &Path) -> Self {
        let fits = |one: &Self| one.path.as_os_str().len() + MAX_ADDED_BYTES <= MAX_PATH_BYTES;
        let first = first.map(|folder| Self::in_folder(&folder)).filter(fits);
        first.unwrap_or_else(|| Self::in_folder(second))
    }

    fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join("plasmon.sock"), named: false }
    }

    /// File beside a socket in which the first node of a cluster leaves the address at which other nodes find
    /// it. If the node dies, it is to be started again with that address.
    pub fn address_file(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(".listen");
        name.into()
    }

    /// Address at which other nodes found the node that listened at `path`, if it was the first of a cluster.
    pub(super) fn former_address(path: &Path) -> Option<SocketAddr> {
        let mut text = String::new();
        fs::File::open(Self::address_file(path))
            .ok()?
            .take(MAX_ADDRESS_BYTES)
            .read_to_string(&mut text)
            .ok()?;
        text.trim().parse().ok()
    }

    /// Command that starts a node at `path`. The command names the socket only if the socket is not the
    /// default.
    pub(super) fn serve(path: &Path) -> String {
        match Self::default().path() == path {
            true => "plasmon serve".to_owned(),
            false => format!("plasmon serve --socket {}", path.display()),
        }
    }

    /// Whether the socket exists, in a folder of this user or root.
    fn is_own(&self) -> bool {
        let folder = self.path.parent().map(fs::symlink_metadata);
        let made = folder.is_some_and(|found| {
            found.is_ok_and(|found| [ROOT_UID, geteuid().as_raw()].contains(&found.uid()))
        });
        made && self.path.exists()
    }

    /// Refuses a node that is neither trusted nor named.
    pub(super) fn check(&self, peer: Peer) -> Result<()> {
        if self.named || is_trusted(peer.uid) {
            return Ok(());
        }
        let path = self.path.display();
        let text = format!(
            "the node at {path} is user {}'s, who is not trusted: it could return false data. To use that \
             node all the same, name its socket (--socket, PLASMON_SOCKET, or the argument of connect); \
             else start a node of your own at another socket",
            peer.uid
        );
        Err(Error::new(ErrorKind::NotAllowed, text))
    }
}

/// Whether a node of this user is accepted at a socket that was not named.
pub(super) fn is_trusted(uid: u32) -> bool {
    uid == ROOT_UID || uid == geteuid().as_raw() || owner_of_host_folder() == Some(uid)
}

/// User to whom root gave `/run/plasmon`, if root created the folder.
fn owner_of_host_folder() -> Option<u32> {
    let folder = Path::new(HOST_FOLDER);
    let parent = fs::metadata(folder.parent()?).ok()?;
    let found = fs::symlink_metadata(folder).ok()?;
    let by_root = parent.uid() == ROOT_UID && parent.mode() & 0o022 == 0 && found.is_dir();
    // All users outside this namespace have the same id, so that id cannot be trusted.
    Some(found.uid()).filter(|uid| by_root && *uid != overflow())
}

fn overflow() -> u32 {
    let told = fs::read_to_string(OVERFLOW_FILE).ok().and_then(|text| text.trim().parse().ok());
    told.unwrap_or(OVERFLOW_UID)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32) -> Peer {
        Peer { uid, gid: uid, pid: None }
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_or_not_chosen() {
        let folder = |len: usize| PathBuf::from(format!("/{}", "d".repeat(len - 1)));
        let (short, own) = (MAX_PATH_BYTES - "/plasmon.sock".len(), Path::new("/tmp/plasmon-1"));
        let taken = |len| Socket::in_first(Some(folder(len)), own).path().starts_with(folder(len));
        assert_eq!([taken(short - MAX_ADDED_BYTES), taken(short - MAX_ADDED_BYTES + 1)], [true, false]);
        assert_eq!(Socket::in_first(None, own).path(), own.join("plasmon.sock"));
        assert_eq!(Socket::check_length(&folder(MAX_PATH_BYTES)), Ok(()));
        let error = Socket::check_length(&folder(130)).expect_err("no socket has such a path");
        for told in ["130 bytes", "at most 107", "--socket", "PLASMON_SOCKET"] {
            assert!(error.message().contains(told), "{error}");
        }
    }

    #[test]
    fn a_node_that_was_not_named_is_roots_or_this_users() {
        let (own, found) = (geteuid().as_raw(), Socket::in_folder(Path::new("/tmp/plasmon-1")));
        for uid in [ROOT_UID, own] {
            assert_eq!(found.check(peer(uid)), Ok(()));
        }
        for uid in [own + 1, overflow()].into_iter().filter(|uid| !is_trusted(*uid)) {
            let error = found.check(peer(uid)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotAllowed);
            let message = error.message();
            assert!(
                message.contains(&format!("user {uid}'s")) && message.contains("/tmp/plasmon-1"),
                "{message}"
            );
            assert_eq!(Socket::from("/tmp/plasmon-1/plasmon.sock").check(peer(uid)), Ok(()));
        }
        assert!(
            own == overflow() || !is_trusted(overflow()),
            "a user of another namespace is taken for one's own"
        );
    }
}
