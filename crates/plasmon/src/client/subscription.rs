//! Subscriptions to the objects of a node, or of all nodes.
//!
//! Owns a connection apart from the client's. The thread that asks for the next event reads it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Client;
use super::connection::{check_process, disconnected, malformed, unexpected};
use super::fork::Process;
use super::handshake::{Until, stream_to};
use crate::wire::{Event, Header, Receiver, Reply, Request, send_with_descriptors};
use crate::{Error, ErrorKind, NodeId, Result};

/// Time between two checks whether a wait was interrupted.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Subscription to the objects of a node: first an event for each object that is there, as if it were sealed
/// now, then an event for each object that is sealed or leaves the node. No event is lost silently: a
/// subscriber that does not read for long gets an [`Event::Gap`]. A subscription does not work in a forked
/// child.
///
/// A subscription to the whole cluster has the events of every node in this form. A node that is out of
/// reach gives an [`Event::Gap`] of 0 events, and so does one that comes, before the events for the objects
/// that are there. After such a gap, nothing that was told of the node before is certain.
pub struct Subscription {
    socket: UnixStream,
    receiver: Receiver,
    events: VecDeque<(NodeId, Event)>,
    path: PathBuf,
    process: Process,
}

impl Subscription {
    pub(super) fn open(client: &Client, name: &str, cluster: bool) -> Result<Self> {
        let mut interrupt = || client.interrupt.as_ref().is_some_and(|interrupt| interrupt());
        let until = Until::new(client.patience, Some(&mut interrupt));
        let at = client.connection.at();
        let (path, (socket, receiver)) = (at.path(), stream_to(at, name, until)?);
        let mut frame = BytesMut::new();
        Request::Subscribe { cluster }.encode(1, &mut frame);
        // The buffer of a new socket takes these few bytes at once, or the connection is broken.
        match send_with_descriptors(&socket, &frame, &[]) {
            Ok(sent) if sent == frame.len() => {}
            Ok(_) => return Err(disconnected(path, None)),
            Err(error) => return Err(disconnected(path, Some(&error))),
        }
        Ok(Self {
            socket,
            receiver,
            events: VecDeque::new(),
            path: path.to_owned(),
            process: Process::this(),
        })
    }

    /// Waits for the next event, and says of which node it is. Returns `None` if none came within the
    /// time-out; without a time-out the call waits without limit. The call asks `interrupt` about every 50 ms
    /// whether to end.
    ///
    /// # Errors
    /// `Disconnected` if the daemon has gone. `Interrupted` after `interrupt` returned `true`.
    pub fn next(
        &mut self,
        timeout: Option<Duration>,
        mut interrupt: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Option<(NodeId, Event)>> {
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
                Reply::Events { node, events } => {
                    self.events.extend(events.into_iter().map(|event| (node, event)));
                }
                Reply::Failed { error, .. } => return Err(error),
                _ => return Err(unexpected("a frame that has no events")),
            }
        }
    }
}

impl AsFd for Subscription {
    /// Descriptor that is readable when an unread event may have come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if self.process.is_this() {
            // A forked child may hold the socket open. An error means that the socket is closed already.
            let _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("socket", &self.path).finish()
    }
}
