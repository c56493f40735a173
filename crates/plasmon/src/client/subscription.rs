//! Subscriptions to the objects of a node, or of all nodes.
//!
//! Owns a connection apart from the client's ([`stream`](super::stream)). The thread that asks for the next
//! event reads the connection.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::Client;
use super::stream::{Stream, no_events};
use crate::wire::{Event, Reply, Request};
use crate::{NodeId, Result};

/// Subscription to the objects of a node: first an event for each object that is there, as if it were sealed
/// now, then an event for each object that is sealed or leaves the node. No event is lost silently: a
/// subscriber that does not read for long gets an [`Event::Gap`]. A subscription does not work in a forked
/// child.
///
/// A subscription to the whole cluster has the events of every node in this form. A node that is out of reach
/// gives an [`Event::Gap`] of 0 events. A node that comes gives such a gap too, before the events for the
/// objects that are there. After such a gap, nothing that was told of the node before is certain.
pub struct Subscription(Stream<(NodeId, Event)>);

impl Subscription {
    pub(super) fn open(client: &Client, name: &str, cluster: bool) -> Result<Self> {
        let take = |reply| match reply {
            Reply::Events { node, events } => Ok(events.into_iter().map(|event| (node, event)).collect()),
            _ => Err(no_events()),
        };
        Stream::open(client, name, &Request::Subscribe { cluster }, take).map(Self)
    }

    /// Waits for the next event, and returns it with its node. Returns `None` if none came within the
    /// time-out; without a time-out the call waits without limit. The call asks `interrupt` about every 50 ms
    /// whether to end.
    ///
    /// # Errors
    /// `Disconnected` if the daemon has gone. `Interrupted` after `interrupt` returned `true`.
    pub fn next(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Option<(NodeId, Event)>> {
        self.0.next(timeout, interrupt)
    }
}

impl AsFd for Subscription {
    /// Descriptor that is readable when an unread event may have come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("socket", &self.0.path()).finish()
    }
}
