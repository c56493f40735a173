//! Handshake: the way from the path of a socket to a connection.
//!
//! Owns no state. Runs on the thread that connects. It checks whose daemon listens, exchanges the first
//! frames (`Hello`), and words the errors of a failed attempt. Invariant: no frame is sent before the check.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::connection::{CHECK_INTERVAL, Connection, Interrupt, disconnected, malformed, silent, unexpected};
use super::due::{Due, due_of_connecting};
use super::fast::Fast;
use super::mapping::Arena;
use super::socket::Socket;
use crate::wire::{
    Header, MAX_BODY_BYTES, MAX_NAME_BYTES, Receiver, Reply, Request, peer_of, send_with_descriptors,
};
use crate::{Error, ErrorKind, NodeId, Result};

/// Largest size in bytes of a frame without its data and metadata, with room to spare.
const FRAME_OVERHEAD_BYTES: usize = 1 << 10;
/// Time between two attempts while the daemon's queue of new connections is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Connection with the facts that the daemon told in its greeting.
pub(super) struct Greeted {
    pub(super) connection: Connection,
    pub(super) node: NodeId,
    pub(super) inline_max: usize,
    /// Size of the store in bytes.
    pub(super) capacity: u64,
    pub(super) user: u32,
}

/// End of an attempt to connect.
pub(super) struct Until<'a> {
    started: Instant,
    due: Due,
    interrupt: Option<Interrupt<'a>>,
}

impl<'a> Until<'a> {
    /// Ends the attempt after `timeout`, or the default, and when `interrupt` returns `true`.
    pub(super) fn new(timeout: Option<Duration>, interrupt: Option<Interrupt<'a>>) -> Self {
        Self { started: Instant::now(), due: due_of_connecting(timeout), interrupt }
    }

    /// Longest time to wait until the next check. An attempt that has ended is an error.
    fn nap(&mut self, path: &Path) -> Result<Duration> {
        if self.interrupt.as_mut().is_some_and(|interrupt| interrupt()) {
            return Err(Error::new(ErrorKind::Interrupted, "connecting was interrupted"));
        }
        let left = self.due.map_or(CHECK_INTERVAL, |due| due.saturating_duration_since(Instant::now()));
        if left.is_zero() { Err(silent(path, self.started.elapsed())) } else { Ok(left.min(CHECK_INTERVAL)) }
    }
}

/// Connects to the daemon at a socket.
pub(super) fn connect_to(at: &Socket, name: &str, mut until: Until<'_>) -> Result<Greeted> {
    let (socket, owner) = reach(at, &mut until)?;
    greet(socket, at, owner, name, until)
}

/// Connects a non-blocking socket, and returns it with the user id of its daemon.
fn reach(at: &Socket, until: &mut Until<'_>) -> Result<(UnixStream, u32)> {
    let path = at.path();
    Socket::check_length(path)?;
    let address = SocketAddrUnix::new(path).map_err(|errno| {
        let message = format!("'{}' cannot be the path of a socket: {errno}", path.display());
        Error::new(ErrorKind::Invalid, message)
    })?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| unreachable(path, errno))?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) => std::thread::sleep(until.nap(path)?.min(RETRY_INTERVAL)),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(unreachable(path, errno)),
        }
    }
    let peer = peer_of(&socket).map_err(|error| disconnected(path, Some(&error)))?;
    at.check(peer)?;
    Ok((socket.into(), peer.uid))
}

/// Opens a connection that is used for another purpose than calls, such as a subscription.
pub(super) fn stream_to(at: &Socket, name: &str, mut until: Until<'_>) -> Result<(UnixStream, Receiver)> {
    let (socket, _) = reach(at, &mut until)?;
    let mut receiver = Receiver::default();
    say_hello(&socket, &mut receiver, at.path(), name, &mut until)?;
    Ok((socket, receiver))
}

/// Exchanges `Hello` over a connected, non-blocking socket, and asks for the tables and a channel.
pub(super) fn greet(
    socket: UnixStream,
    at: &Socket,
    owner: u32,
    name: &str,
    mut until: Until<'_>,
) -> Result<Greeted> {
    let mut receiver = Receiver::default();
    let reply = say_hello(&socket, &mut receiver, at.path(), name, &mut until)?;
    let Reply::Hello { node, segment_size, segments, inline_max, user, capacity } = reply else {
        return Err(unexpected("a reply that is no greeting"));
    };
    let arena = Arc::new(Arena::reserve(segment_size, segments)?);
    let fast = share(&socket, &mut receiver, at.path(), &mut until)?;
    let connection = Connection::new(socket, at.clone(), owner, arena, fast, receiver);
    let inline_max = (inline_max as usize).min(MAX_BODY_BYTES - FRAME_OVERHEAD_BYTES);
    Ok(Greeted { connection, node, inline_max, capacity, user })
}

/// Asks for the tables and a channel. A client without them works, but slower.
fn share(
    socket: &UnixStream,
    receiver: &mut Receiver,
    path: &Path,
    until: &mut Until<'_>,
) -> Result<Option<Fast>> {
    let mut frame = BytesMut::new();
    Request::Channel.encode(0, &mut frame);
    match exchange(socket, receiver, path, &frame, until)? {
        (Reply::Channel { parts }, descriptors) => Ok(Fast::open(&parts, descriptors).ok()),
        (Reply::Failed { .. }, _) => Ok(None),
        _ => Err(unexpected("a reply that does not share its tables")),
    }
}

/// Sends `Hello` with a name, cut to [`MAX_NAME_BYTES`] bytes. Returns the reply.
fn say_hello(
    socket: &UnixStream,
    receiver: &mut Receiver,
    path: &Path,
    name: &str,
    until: &mut Until<'_>,
) -> Result<Reply> {
    let mut cut = name.len().min(MAX_NAME_BYTES);
    while !name.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut hello = BytesMut::new();
    Request::Hello { name: name[..cut].to_owned() }.encode(0, &mut hello);
    match exchange(socket, receiver, path, &hello, until)?.0 {
        Reply::Failed { error, .. } => Err(error),
        reply => Ok(reply),
    }
}

/// Sends a frame and waits for its reply. No other reply can be under way.
fn exchange(
    socket: &UnixStream,
    receiver: &mut Receiver,
    path: &Path,
    frame: &[u8],
    until: &mut Until<'_>,
) -> Result<(Reply, Vec<OwnedFd>)> {
    // The buffer of a new socket takes these few bytes at once, or the connection is broken.
    match send_with_descriptors(socket, frame, &[]) {
        Ok(sent) if sent == frame.len() => {}
        Ok(_) => return Err(disconnected(path, None)),
        // The daemon's last message before it hung up may still be unread.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => return Err(disconnected(path, Some(&error))),
    }
    let (header, body) = loop {
        let frame = Header::take_frame(&mut receiver.buffer).map_err(|error| malformed(path, &error))?;
        if let Some(frame) = frame {
            break frame;
        }
        let timeout = Timespec::try_from(until.nap(path)?).ok();
        // If a signal interrupts poll, the loop waits again.
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
    let address = Socket::former_address(path);
    let (serve, path) = (Socket::serve(path), path.display());
    let (kind, message) = match errno {
        Errno::NOENT | Errno::NOTDIR => (
            ErrorKind::Disconnected,
            format!(
                "no node listens at {path}: there is no such socket. Start a node (`{serve}`), or name the \
                 socket of a running one (PLASMON_SOCKET)"
            ),
        ),
        Errno::CONNREFUSED => (
            ErrorKind::Disconnected,
            match address {
                Some(address) => format!(
                    "nothing answers at {path}: the node that listened there is gone. Start it again \
                     (`{serve} --listen {address}`: nodes that had joined it look for it at that address)"
                ),
                None => format!(
                    "nothing answers at {path}: the node that listened there is gone. Start it again \
                     (`{serve}`, with the other arguments that it had)"
                ),
            },
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
            format!("cannot connect to {path}: {other}. See whether the node runs (`{serve}`)"),
        ),
    };
    Error::new(kind, message)
}
