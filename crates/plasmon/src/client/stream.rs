//! Streams of events, which the daemon sends on a connection of their own.
//!
//! A [`Stream`] owns its connection. The thread that asks for the next event reads the connection. A stream
//! does not work in a forked child.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Client;
use super::connection::{CHECK_INTERVAL, check_process, disconnected, malformed, unexpected};
use super::fork::Process;
use super::handshake::{Until, stream_to};
use crate::wire::{Header, Receiver, Reply, Request, send_with_descriptors};
use crate::{Error, ErrorKind, Result};

/// Takes the events out of a reply. It is an error if the reply is of another kind.
type Take<T> = fn(Reply) -> Result<Vec<T>>;

/// Connection that brings events, as the answers to one request.
pub(super) struct Stream<T> {
    socket: UnixStream,
    receiver: Receiver,
    events: VecDeque<T>,
    take: Take<T>,
    path: PathBuf,
    process: Process,
    /// Number of requests so far.
    requests: u64,
}

impl<T> Stream<T> {
    /// Connects to the daemon of a client, and makes the request.
    pub(super) fn open(client: &Client, name: &str, request: &Request, take: Take<T>) -> Result<Self> {
        let mut interrupt = || client.interrupt.as_ref().is_some_and(|interrupt| interrupt());
        let until = Until::new(client.patience, Some(&mut interrupt));
        let at = client.connection.at();
        let (path, (socket, receiver)) = (at.path(), stream_to(at, name, until)?);
        let (path, process) = (path.to_owned(), Process::this());
        let mut stream = Self { socket, receiver, events: VecDeque::new(), take, path, process, requests: 0 };
        stream.send(request)?;
        Ok(stream)
    }

    /// Makes a request of a few bytes on the connection, which has no further answer.
    pub(super) fn send(&mut self, request: &Request) -> Result<()> {
        self.requests += 1;
        send(&self.socket, &self.path, self.requests, request)
    }

    /// Makes a sender of further requests, for another thread.
    pub(super) fn sender(&self) -> Result<Sender> {
        let socket = self.socket.try_clone().map_err(|error| disconnected(&self.path, Some(&error)))?;
        Ok(Sender { socket, path: self.path.clone() })
    }

    /// Waits for the next event. Returns `None` if none came within the time-out; without a time-out the call
    /// waits without limit. The call asks `interrupt` about every 50 ms whether to end.
    pub(super) fn next(
        &mut self,
        timeout: Option<Duration>,
        mut interrupt: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Option<T>> {
        check_process(self.process, &self.path)?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.receive()? {
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let nap = left.into_iter().chain(interrupt.is_some().then_some(CHECK_INTERVAL)).min();
            let nap = nap.and_then(|nap| Timespec::try_from(nap).ok());
            // If a signal interrupts poll, the loop checks its state and waits again.
            let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], nap.as_ref());
            if interrupt.as_mut().is_some_and(|interrupt| interrupt()) {
                return Err(Error::new(ErrorKind::Interrupted, "the wait was interrupted"));
            }
        }
    }

    /// Path of the daemon's socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the bytes that have come. Returns whether there were any.
    fn receive(&mut self) -> Result<bool> {
        match self.receiver.receive(&self.socket) {
            Ok(0) => return Err(disconnected(&self.path, None)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(error) => return Err(disconnected(&self.path, Some(&error))),
        }
        loop {
            let frame = Header::take_frame(&mut self.receiver.buffer);
            let Some((header, body)) = frame.map_err(|error| malformed(&self.path, &error))? else {
                return Ok(true);
            };
            match Reply::decode(&header, body).map_err(|error| malformed(&self.path, &error))? {
                Reply::Failed { error, .. } => {
                    // Nothing follows: further calls find that the connection has ended.
                    let _ = self.socket.shutdown(Shutdown::Both);
                    return Err(error);
                }
                reply => self.events.extend((self.take)(reply)?),
            }
        }
    }
}

/// Sender of requests without an answer on a [`Stream`]. A sender does not keep the stream from ending.
pub(super) struct Sender {
    socket: UnixStream,
    path: PathBuf,
}

impl Sender {
    /// Makes a request of a few bytes, under a number that nobody looks at.
    pub(super) fn send(&self, request: &Request) -> Result<()> {
        send(&self.socket, &self.path, u64::MAX, request)
    }
}

/// Sends a request whole. The buffer of the socket takes these few bytes at once, or the connection is
/// broken.
fn send(socket: &UnixStream, path: &Path, number: u64, request: &Request) -> Result<()> {
    let mut frame = BytesMut::new();
    request.encode(number, &mut frame);
    match send_with_descriptors(socket, &frame, &[]) {
        Ok(sent) if sent == frame.len() => Ok(()),
        Ok(_) => Err(disconnected(path, None)),
        Err(error) => Err(disconnected(path, Some(&error))),
    }
}

/// Error for a reply that has no events.
pub(super) fn no_events() -> Error {
    unexpected("a frame that has no events")
}

impl<T> AsFd for Stream<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<T> Drop for Stream<T> {
    fn drop(&mut self) {
        if self.process.is_this() {
            // A forked child may hold the socket open. An error means that the socket is closed already.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}
