//! Events of the regions to which a client has handles.
//!
//! Owns a connection apart from the client's ([`stream`](super::stream)), which brings the events. The thread
//! that asks for the next event reads it.

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

/// Events of all regions to which a client has handles at the time, wherever they live and whoever causes
/// them: the client itself, others, or the end of a node. [`Client::region_events`] makes them.
///
/// A region that was freed or lost, or has moved, before the events were asked for is told too, if the client
/// has a handle to it. Other events are those from then on. Several handles to a region give one event. The
/// events of a region are in order. No event is lost silently: where some are missing, there is a
/// [`RegionEvent::Gap`].
///
/// As an iterator it waits for each event without limit. It ends after an error, such as `Disconnected` when
/// the daemon has gone, or the connection of the client: that lasts as long as the client, its clones and
/// its regions. It does not work in a forked child.
pub struct RegionEvents {
    stream: Stream<RegionEvent>,
    ended: bool,
}

impl Client {
    /// Has the events told of all regions to which this client has handles, or will have, on a separate
    /// connection. The events begin with this call.
    ///
    /// # Errors
    /// As [`Client::connect`]. `Busy` if 16 such calls of this client are heard already.
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
