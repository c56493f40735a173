//! From the path of a socket to a connection.
//!
//! Runs on the thread that connects. Owns the first exchange of frames, `Hello`, and the words for
//! everything that can go wrong before it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::PATIENCE;
use super::connection::{Connection, disconnected, malformed, silent, unexpected};
use super::fast::Fast;
use super::mapping::Arena;
use crate::wire::{Header, MAX_BODY, MAX_NAME, Receiver, Reply, Request, send_with_descriptors};
use crate::{Error, ErrorKind, NodeId, Result};

/// What a frame carries beside data and metadata, with room to spare.
const FRAME_OVERHEAD: usize = 1 << 10;
/// Where a node listens that root runs for everybody.
const HOST_SOCKET: &str = "/run/plasmon/plasmon.sock";
/// Between attempts while the daemon's queue of new connections is full.
const RETRY: Duration = Duration::from_millis(20);

/// A connection, and what the daemon said of itself.
pub(super) struct Greeted {
    pub(super) connection: Connection,
    pub(super) node: NodeId,
    pub(super) inline_max: usize,
    /// Bytes of the store.
    pub(super) capacity: u64,
}

/// Where the daemon of this host listens unless told otherwise.
pub(super) fn default_socket() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let user = rustix::process::geteuid();
    match (variable("PLASMON_SOCKET"), variable("XDG_RUNTIME_DIR")) {
        (Some(path), _) => path.into(),
        (None, Some(directory)) => Path::new(&directory).join("plasmon/plasmon.sock"),
        (None, None) if user.is_root() => HOST_SOCKET.into(),
        (None, None) => format!("/tmp/plasmon-{}/plasmon.sock", user.as_raw()).into(),
    }
}

/// Where a client of this user finds its node: at the default, or where the whole host's is.
pub(super) fn find_socket() -> PathBuf {
    let own = default_socket();
    let named = std::env::var_os("PLASMON_SOCKET").is_some_and(|value| !value.is_empty());
    let host = Path::new(HOST_SOCKET);
    if !named && !own.exists() && host.exists() { host.to_owned() } else { own }
}

/// Connects to the daemon at `path`.
pub(super) fn connect_to(path: &Path, name: &str) -> Result<Greeted> {
    greet(reach(path)?, path, name)
}

/// A connected socket, non-blocking.
fn reach(path: &Path) -> Result<UnixStream> {
    let address = SocketAddrUnix::new(path).map_err(|_| {
        let message =
            format!("'{}' cannot be the path of a socket: it takes at most 107 bytes", path.display());
        Error::new(ErrorKind::Invalid, message)
    })?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| unreachable(path, errno))?;
    let started = Instant::now();
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::AGAIN) if started.elapsed() < PATIENCE => std::thread::sleep(RETRY),
            Err(Errno::AGAIN) => return Err(silent(path, started.elapsed())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(unreachable(path, errno)),
        }
    }
}

/// A connection of its own for something else than calls.
pub(super) fn stream_to(path: &Path, name: &str) -> Result<(UnixStream, Receiver)> {
    let socket = reach(path)?;
    let mut receiver = Receiver::default();
    say_hello(&socket, &mut receiver, path, name)?;
    Ok((socket, receiver))
}

/// Exchanges `Hello` over a connected, non-blocking socket, and asks for what can be shared.
pub(super) fn greet(socket: UnixStream, path: &Path, name: &str) -> Result<Greeted> {
    let mut receiver = Receiver::default();
    let reply = say_hello(&socket, &mut receiver, path, name)?;
    let Reply::Hello { node, segment_size, segments, inline_max } = reply else {
        return Err(unexpected("something else than a greeting"));
    };
    let arena = Arc::new(Arena::reserve(segment_size, segments)?);
    let fast = share(&socket, &mut receiver, path)?;
    let connection = Connection::new(socket, path.to_owned(), arena, fast, receiver);
    let inline_max = (inline_max as usize).min(MAX_BODY - FRAME_OVERHEAD);
    Ok(Greeted { connection, node, inline_max, capacity: segment_size * u64::from(segments) })
}

/// Asks for the tables and a channel. Without them everything works, and takes longer.
fn share(socket: &UnixStream, receiver: &mut Receiver, path: &Path) -> Result<Option<Fast>> {
    let mut frame = BytesMut::new();
    Request::Channel.encode(0, &mut frame);
    match exchange(socket, receiver, path, &frame)? {
        (Reply::Channel { parts }, descriptors) => Ok(Fast::open(&parts, descriptors).ok()),
        (Reply::Failed { .. }, _) => Ok(None),
        _ => Err(unexpected("something else than what it shares")),
    }
}

fn say_hello(socket: &UnixStream, receiver: &mut Receiver, path: &Path, name: &str) -> Result<Reply> {
    let mut cut = name.len().min(MAX_NAME);
    while !name.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut hello = BytesMut::new();
    Request::Hello { name: name[..cut].to_owned() }.encode(0, &mut hello);
    match exchange(socket, receiver, path, &hello)?.0 {
        Reply::Failed { error, .. } => Err(error),
        reply => Ok(reply),
    }
}

/// Sends a frame and waits for its reply, the only one there can be.
fn exchange(
    socket: &UnixStream,
    receiver: &mut Receiver,
    path: &Path,
    frame: &[u8],
) -> Result<(Reply, Vec<OwnedFd>)> {
    let started = Instant::now();
    // The buffer of a new socket takes these few bytes at once, or the connection is no good.
    match send_with_descriptors(socket, frame, &[]) {
        Ok(sent) if sent == frame.len() => {}
        Ok(_) => return Err(disconnected(path, None)),
        // What the daemon said before it hung up is still to be read.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => return Err(disconnected(path, Some(&error))),
    }
    let (header, body) = loop {
        let frame = Header::take_frame(&mut receiver.buffer).map_err(|error| malformed(path, &error))?;
        if let Some(frame) = frame {
            break frame;
        }
        let left = PATIENCE.checked_sub(started.elapsed()).ok_or_else(|| silent(path, PATIENCE))?;
        let timeout = Timespec::try_from(left).ok();
        // Interrupted by a signal it waits again.
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref());
        match receiver.receive(socket) {
            Ok(0) => return Err(disconnected(path, None)),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(disconnected(path, Some(&error))),
        }
    };
    let reply = Reply::decode(&header, body).map_err(|error| malformed(path, &error))?;
    Ok((reply, receiver.take_descriptors(header.descriptors.into())))
}

fn unreachable(path: &Path, errno: Errno) -> Error {
    let path = path.display();
    let (kind, message) = match errno {
        Errno::NOENT | Errno::NOTDIR => (
            ErrorKind::Disconnected,
            format!(
                "no node listens at {path}: there is no such socket. Start a node (`plasmon serve --socket \
                 {path}`), or name the socket of a running one (PLASMON_SOCKET)"
            ),
        ),
        Errno::CONNREFUSED => (
            ErrorKind::Disconnected,
            format!(
                "nothing answers at {path}: the node that listened there is gone. Start it again (`plasmon \
                 serve --socket {path}`)"
            ),
        ),
        Errno::ACCESS | Errno::PERM => (
            ErrorKind::NotAllowed,
            format!(
                "this user may not connect to {path}: permission denied. Ask whoever runs that node for \
                 access to the socket, or start a node of your own (`plasmon serve --socket ...`)"
            ),
        ),
        other => (
            ErrorKind::Disconnected,
            format!(
                "cannot connect to {path}: {other}. See whether the node runs (`plasmon serve --socket \
                 {path}`)"
            ),
        ),
    };
    Error::new(kind, message)
}
