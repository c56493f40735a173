//! Events of the regions to which a client has handles.
//!
//! Owns a connection apart from the client's ([`stream`](super::stream)), which brings the events. The thread
//! that asks for the next event reads the connection.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::Client;
use super::connection::Undo;
use super::stream::{Stream, no_events};
use crate::Result;
use crate::region::RegionEvent;
use crate::wire::{Reply, Request, replies, requests};

/// Name of the connection in the node's list of clients.
const NAME: &str = "events of regions";

/// Events of all regions to which a client has handles at the time of the event. The regions may live on any
/// node, and the client itself, others, or the end of a node may cause the event. [`Client::region_events`]
/// returns them.
///
/// There is also an event for each region that was freed, was lost or has moved before the call of
/// [`Client::region_events`], if the client has a handle to the region. All other events happen after the
/// call. Several handles to a region give one event. The events of a region are in order. No event is lost
/// silently: where some are missing, there is a [`RegionEvent::Gap`].
///
/// The iterator waits for each event without limit. The iterator ends after an error, such as `Disconnected`
/// when the daemon or the client's connection has gone. The connection lasts as long as the client, its
/// clones and its regions. Events do not come in a forked child.
pub struct RegionEvents {
    stream: Stream<RegionEvent>,
    ended: bool,
}

impl Client {
    /// Returns the events of all regions to which this client has handles, or will have. They come on a
    /// separate connection, and begin with this call.
    ///
    /// # Errors
    /// As [`Client::connect`]. `Busy` if this client has the events of 16 such calls already.
    pub fn region_events(&self) -> Result<RegionEvents> {
        let replies::RegionsWatched { key } = self.ask(requests::WatchRegions, Undo::Nothing)?;
        let take = |reply| match reply {
            Reply::RegionEvents(events) => Ok(events),
            _ => Err(no_events()),
        };
        let stream = Stream::open(self, NAME, &Request::FollowRegions { key }, take)?;
        Ok(RegionEvents { stream, ended: false })
    }
}

impl RegionEvents {
    /// Waits for the next event. Returns `None` if none came within the time-out; without a time-out the call
    /// waits without limit. The call asks `interrupt` about every 50 ms whether to end.
    ///
    /// # Errors
    /// `Disconnected` if the daemon or the client's connection has gone. `Interrupted` after `interrupt`
    /// returned `true`.
    pub fn next_within(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Option<RegionEvent>> {
        self.stream.next(timeout, interrupt)
    }
}

impl Iterator for RegionEvents {
    type Item = Result<RegionEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = (!self.ended).then(|| self.stream.next(None, None).transpose()).flatten();
        self.ended |= event.as_ref().is_none_or(Result::is_err);
        event
    }
}

impl AsFd for RegionEvents {
    /// Descriptor that is readable when an unread event may have come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl fmt::Debug for RegionEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionEvents").field("socket", &self.stream.path()).finish()
    }
}
