//! The unix socket of the node: it takes its path at the start, and removes it at the end.
//!
//! Owns the listening socket and its path. Any thread; used at the start and at the end. A path is taken
//! under a lock of its directory, so that two starts at once cannot both find a stale socket there. The
//! kernel drops that lock with the process, so it leaves nothing behind. A daemon that yields goes on from
//! `plasmon.sock` to `plasmon-2.sock` and so on, under the same lock, to the first path at which no daemon
//! serves. The first daemon of a cluster leaves its address beside the socket: a person who finds a dead
//! socket learns there how to start the daemon again.
//!
//! Invariant: below a folder that everybody may write, such as `/tmp`, each folder and link on the way to the
//! socket belongs to root or to this daemon's user, and is writable by nobody else. A user who could exchange
//! one of them could serve in this daemon's place.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Component, Path, PathBuf};

use plasmon::Socket;
use plasmon::wire::{Peer, peer_of};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

/// Number of paths that a daemon which yields tries.
const MAX_PATHS: usize = 1000;
/// Number of links that the kernel follows.
const MAX_LINKS: u32 = 40;

/// Why the socket cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another daemon serves at the path.
    #[error(
        "another daemon serves at {socket}, {daemon}; stop it, or choose another path with --socket (or \
         unset PLASMON_SOCKET, if that names this one)"
    )]
    InUse {
        /// The path of the socket.
        socket: PathBuf,
        /// The process of the other daemon, or the user of its socket.
        daemon: String,
    },
    /// The path is too long for a socket.
    #[error("{0}")]
    TooLong(plasmon::Error),
    /// A file that is not a socket is at the path.
    #[error("{0} exists and is not a socket; it was left alone: choose another path with --socket")]
    NotSocket(PathBuf),
    /// Another user has made a folder on the way to the path.
    #[error(
        "will not serve at {socket}: {place} is user {owner}'s, who could put another daemon there; choose \
         another path with --socket, or have {place} removed"
    )]
    Foreign {
        /// The path of the socket.
        socket: PathBuf,
        /// The folder or link.
        place: PathBuf,
        /// The user of the folder or link.
        owner: u32,
    },
    /// Other users may write to a folder on the way to the path.
    #[error(
        "will not serve at {socket}: others may write {place} (its mode is {mode:03o}) and put another \
         daemon there; take that from them (chmod go-w {place}), or choose another path with --socket"
    )]
    Shared {
        /// The path of the socket.
        socket: PathBuf,
        /// The folder that others may write.
        place: PathBuf,
        /// The permissions of the folder.
        mode: u32,
    },
    /// The system refuses an operation.
    #[error("cannot {action} {path}: {source}")]
    System {
        /// The operation that was refused.
        action: &'static str,
        /// The path of the operation.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// A bound socket; its path is removed when it is dropped.
pub(crate) struct Listener {
    pub(crate) socket: UnixListener,
    path: PathBuf,
    inode: u64,
    /// Whether a socket that nobody served lay at the path.
    succeeds: bool,
}

impl Listener {
    /// Binds `path` with `mode`, and replaces a stale socket. If another daemon serves at `path`, one that
    /// `yields` binds another path beside it.
    pub(crate) fn bind(path: &Path, mode: u32, yields: bool) -> Result<Self, ListenError> {
        let system = |action, path: &Path| {
            let path = path.to_owned();
            move |source| ListenError::System { action, path, source }
        };
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Socket::check_length(path).map_err(ListenError::TooLong)?;
        check_way(path, directory)?;
        if !directory.exists() {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700 | search_of(mode));
            builder.create(directory).map_err(system("create the directory", directory))?;
            // Another process may have made the folder first.
            check_way(path, directory)?;
        }
        let way = fs::metadata(directory).map_err(system("look at", directory))?.mode();
        if way & search_of(mode) != search_of(mode) {
            tracing::warn!(
                directory = %directory.display(),
                "other users whom --socket-mode lets in cannot reach the socket: its directory has mode \
                 {:o}; allow them to search it, or name another socket with --socket",
                way & 0o777
            );
        }
        let lock = File::open(directory).map_err(system("open the directory", directory))?;
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| system("lock the directory", directory)(error.into()))?;
        let (path, succeeds) = if yields { free_path(path)? } else { (path.to_owned(), make_way(path)?) };
        let path = &path;
        let socket = UnixListener::bind(path).map_err(system("bind the socket", path))?;
        socket.set_nonblocking(true).map_err(system("listen on", path))?;
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(system("set the mode of", path))?;
        let inode = fs::symlink_metadata(path).map_err(system("look at", path))?.ino();
        Ok(Self { socket, path: path.to_owned(), inode, succeeds })
    }

    /// The path that was bound.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the socket took the place of one that a killed node had left.
    pub(crate) fn succeeds(&self) -> bool {
        self.succeeds
    }

    /// Leaves beside the socket the address at which other nodes find this node, for a later start after a
    /// death. A node that is not the first of its cluster leaves none, and removes the address of another
    /// node. The file goes with the socket.
    pub(crate) fn leave_address(&self, address: Option<SocketAddr>) {
        let file = Socket::address_file(&self.path);
        // In a folder that everybody may write, a link may stand at this path, and must not be followed.
        let _ = fs::remove_file(&file);
        let Some(address) = address else { return };
        let made = File::options().write(true).create_new(true).open(&file);
        if let Err(error) = made.and_then(|mut made| writeln!(made, "{address}")) {
            tracing::warn!("cannot leave this node's address in {}: {error}", file.display());
        }
    }
}

/// Returns the rights to search a directory that are needed by the users who may write to a socket of this
/// mode.
fn search_of(mode: u32) -> u32 {
    (mode & 0o022) >> 1
}

/// Refuses a folder for the socket that another user than root and this one could exchange. Parts of the
/// path that do not exist are not checked.
fn check_way(socket: &Path, folder: &Path) -> Result<(), ListenError> {
    let names =
        |path: &Path| path.components().map(|part| part.as_os_str().to_owned()).collect::<Vec<OsString>>();
    let failed =
        |path: &Path, source| ListenError::System { action: "look at", path: path.to_owned(), source };
    let absolute = std::path::absolute(folder).map_err(|error| failed(folder, error))?;
    let mut ahead = VecDeque::from(names(&absolute));
    let (mut place, mut links) = (PathBuf::new(), 0);
    // The last folder on the way that everybody may write.
    let mut open: Option<PathBuf> = None;
    while let Some(name) = ahead.pop_front() {
        // The way to this folder has been checked; the way back up from it may be another one.
        if Path::new(&name).components().next() == Some(Component::ParentDir) {
            place.pop();
            continue;
        }
        let next = place.join(name);
        let found = match fs::symlink_metadata(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found.map_err(|error| failed(&next, error))?,
        };
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        let socket = socket.to_owned();
        let in_the_open = open.as_ref().is_some_and(|open| place.starts_with(open));
        if in_the_open && owner != 0 && owner != geteuid().as_raw() {
            return Err(ListenError::Foreign { socket, place: next, owner });
        }
        if found.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(failed(&next, io::Error::from_raw_os_error(libc::ELOOP)));
            }
            let target = fs::read_link(&next).map_err(|error| failed(&next, error))?;
            names(&target).into_iter().rev().for_each(|name| ahead.push_front(name));
            continue;
        }
        // In a folder with the sticky bit, others can add files and exchange nothing.
        let sticky = mode & 0o1000 != 0;
        if in_the_open && mode & 0o022 != 0 && !sticky {
            return Err(ListenError::Shared { socket, place: next, mode: mode & 0o777 });
        }
        if !in_the_open && mode & 0o002 != 0 {
            open = Some(next.clone());
        }
        place = next;
    }
    Ok(())
}

/// The path itself, or the first one beside it, at which no daemon serves, and whether a socket lay there.
fn free_path(path: &Path) -> Result<(PathBuf, bool), ListenError> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let end = path.extension().map(|end| format!(".{}", end.to_string_lossy())).unwrap_or_default();
    let further = (2..=MAX_PATHS).map(|number| path.with_file_name(format!("{stem}-{number}{end}")));
    let mut refused = None;
    for path in std::iter::once(path.to_owned()).chain(further) {
        match make_way(&path) {
            Ok(succeeds) => return Ok((path, succeeds)),
            Err(in_use @ ListenError::InUse { .. }) => _ = refused.get_or_insert(in_use),
            Err(error) => return Err(error),
        }
    }
    Err(refused.expect("there is a path at least"))
}

/// Removes a socket that nobody serves, and returns whether there was one; refuses any other file that is in
/// the way.
fn make_way(path: &Path) -> Result<bool, ListenError> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(false);
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotSocket(path.to_owned()));
    }
    let daemon = match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return fs::remove_file(path).map(|()| true).map_err(|source| ListenError::System {
                action: "remove the stale socket",
                path: path.to_owned(),
                source,
            });
        }
        // The other daemon has just ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(_) => format!("which user {} has made", found.uid()),
        Ok(stream) => match peer_of(&stream) {
            Ok(Peer { uid, pid: Some(pid), .. }) => {
                format!("process {} of user {uid}", pid.as_raw_nonzero())
            }
            _ => format!("a process of user {}", found.uid()),
        },
    };
    Err(ListenError::InUse { socket: path.to_owned(), daemon })
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only this listener's own socket is removed: somebody may have put another one at the path.
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
        if ours {
            // The file exists only if this node is the first of its cluster.
            let _ = fs::remove_file(Socket::address_file(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    const STRANGER: u32 = 1234;

    /// A folder that everybody may write, like `/tmp`.
    fn open_place() -> (tempfile::TempDir, PathBuf) {
        let own = tempfile::tempdir().unwrap();
        let open = folder(own.path().join("open"), 0o1777);
        (own, open)
    }

    /// Makes a folder that is not below one that everybody may write. `None` if the test has no such place.
    fn closed_place() -> Option<tempfile::TempDir> {
        let own = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let is_closed = |place: &PathBuf| {
            let mode = |place: &Path| fs::metadata(place).map(|found| found.permissions().mode());
            place.ancestors().all(|place| mode(place).is_ok_and(|mode| mode & 0o002 == 0))
        };
        let places = [Some(own), std::env::home_dir()].into_iter().flatten();
        let mut closed = places.filter_map(|place| fs::canonicalize(place).ok()).filter(is_closed);
        closed.find_map(|place| tempfile::tempdir_in(place).ok())
    }

    fn folder(path: PathBuf, mode: u32) -> PathBuf {
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn refusal(folder: &Path) -> ListenError {
        let path = folder.join("plasmon.sock");
        let refused = Listener::bind(&path, 0o600, false).map(drop).unwrap_err();
        assert!(fs::symlink_metadata(&path).is_err(), "{refused}");
        refused
    }

    fn serves(folder: &Path) {
        Listener::bind(&folder.join("plasmon.sock"), 0o600, false).map(drop).unwrap();
    }

    #[test]
    fn a_folder_that_is_made_lets_in_whom_the_socket_lets_in() {
        let own = tempfile::tempdir().expect("a temporary folder");
        for (mode, expected) in [(0o600, 0o700), (0o660, 0o710), (0o666, 0o711)] {
            let folder = own.path().join(format!("{mode:o}"));
            let _listener = Listener::bind(&folder.join("s"), mode, false).expect("bind");
            let made = fs::metadata(&folder).expect("it was made").mode() & 0o777;
            assert_eq!(made, expected, "{mode:o}");
        }
    }

    #[test]
    fn one_that_yields_takes_the_first_path_that_is_free() {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("plasmon.sock");
        let bind = |yields| Listener::bind(&path, 0o600, yields);
        let at = |name: &str| own.path().join(name);
        let first = bind(true).unwrap();
        let second = bind(true).unwrap();
        let third = bind(true).unwrap();
        assert_eq!(
            [&first, &second, &third].map(|bound| bound.path().to_owned()),
            [path.clone(), at("plasmon-2.sock"), at("plasmon-3.sock")]
        );
        let refused = bind(false).map(drop).unwrap_err();
        let own_id = std::process::id().to_string();
        assert!(
            matches!(&refused, ListenError::InUse { daemon, .. } if daemon.contains(&own_id)),
            "{refused}"
        );
        assert!(!second.succeeds());
        drop(second);
        // A daemon that was killed leaves its socket.
        drop(UnixListener::bind(at("plasmon-2.sock")).unwrap());
        let next = bind(true).unwrap();
        assert_eq!((next.path(), next.succeeds()), (&*at("plasmon-2.sock"), true));
        drop(next);
        fs::write(at("plasmon-2.sock"), "precious").unwrap();
        let refused = bind(true).map(drop).unwrap_err();
        assert!(matches!(refused, ListenError::NotSocket(_)), "{refused}");
    }

    #[test]
    fn the_address_lies_beside_the_socket_and_follows_no_link() {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("s");
        let (file, victim) = (Socket::address_file(&path), own.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &file).unwrap();
        let listener = Listener::bind(&path, 0o600, false).unwrap();
        listener.leave_address(Some("10.0.0.1:4740".parse().unwrap()));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&file).unwrap(), "10.0.0.1:4740\n");
        listener.leave_address(None);
        assert!(!file.exists(), "the address is another node's");
        listener.leave_address(Some("10.0.0.1:4741".parse().unwrap()));
        drop(listener);
        assert!(!file.exists() && !path.exists());
    }

    #[test]
    fn starts_at_once_take_a_path_each() {
        const STARTS: usize = 8;
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("plasmon.sock");
        // One of the starts alone takes over the socket that a killed daemon left.
        drop(UnixListener::bind(&path).unwrap());
        let bound: Vec<_> = std::thread::scope(|scope| {
            let start = || scope.spawn(|| Listener::bind(&path, 0o600, true).unwrap());
            let starts: Vec<_> = std::iter::repeat_with(start).take(STARTS).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        let paths: std::collections::BTreeSet<_> = bound.iter().map(Listener::path).collect();
        assert_eq!(paths.len(), STARTS);
        assert!(paths.contains(&*path));
        bound.iter().for_each(|one| _ = UnixStream::connect(one.path()).unwrap());
    }

    #[test]
    fn a_folder_in_the_open_is_this_users_alone() {
        let (_own, open) = open_place();
        serves(&open);
        serves(&open.join("new"));
        serves(&open.join("new/newer"));
        for mode in [0o720, 0o702] {
            let shared = folder(open.join(format!("{mode:o}")), mode);
            let refused = refusal(&shared);
            assert!(matches!(&refused, ListenError::Shared { place, .. } if *place == shared), "{refused}");
            assert!(matches!(refusal(&folder(shared.join("own"), 0o700)), ListenError::Shared { .. }));
            fs::set_permissions(&shared, Permissions::from_mode(0o755)).unwrap();
            serves(&shared);
            serves(&shared.join("own"));
        }
    }

    #[test]
    fn a_folder_that_only_some_may_write_is_their_affair() {
        let Some(own) = closed_place() else {
            eprintln!("Everybody may write above the test's folder and its user's: not tested.");
            return;
        };
        serves(&folder(own.path().join("group"), 0o770));
        serves(&folder(own.path().join("all"), 0o777));
    }

    #[test]
    fn what_somebody_else_made_in_the_open_is_not_used() {
        if !geteuid().is_root() {
            eprintln!("Only root can give folders to others: not tested.");
            return;
        }
        let (own, open) = open_place();
        let private = folder(own.path().join("private"), 0o700);
        let theirs = folder(open.join("folder"), 0o755);
        let link = open.join("link");
        symlink(&private, &link).unwrap();
        serves(&link);
        serves(&link.join("../private"));
        for place in [&theirs, &link] {
            std::os::unix::fs::lchown(place, Some(STRANGER), None).unwrap();
            for way in [place.clone(), place.join("below"), place.join("../new")] {
                let refused = refusal(&way);
                let by = matches!(
                    &refused,
                    ListenError::Foreign { place: found, owner: STRANGER, .. } if found == place
                );
                assert!(by, "{refused}");
            }
        }
        assert!(!private.join("below").exists(), "a folder was made where a stranger's link leads");
        chown(&theirs, Some(0), None).unwrap();
        serves(&theirs);
    }

    #[test]
    fn links_that_lead_nowhere_are_an_error() {
        let own = tempfile::tempdir().unwrap();
        symlink(own.path().join("b"), own.path().join("a")).unwrap();
        symlink(own.path().join("a"), own.path().join("b")).unwrap();
        assert!(matches!(refusal(&own.path().join("a")), ListenError::System { .. }));
    }
}
