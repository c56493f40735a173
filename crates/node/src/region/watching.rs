//! Requests of clients to watch their regions, and the news that homes send about regions. Owns no state: the
//! watches are in [`events`](super::events). Engine thread only.
//!
//! When a region has left its home, this node looks for the region at once for clients that watch it, because
//! then the next home tells this node of changes. A client that does not watch has its region looked for at
//! its next operation.
//!
//! Invariant: news of a home is taken twice, in two turns, so news that comes in the turn of its mapping is
//! not lost.

use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use plasmon::region::RegionState;
use plasmon::wire::{Reply, Request, Table, WireError};
use plasmon::{Error, ErrorKind, NodeId};

use super::Regions;
use super::frames::{Desk, RegionFrame};
use super::handles::{At, Life};
use crate::kernel::ClientKey;
use crate::service::{Answer, Asked, Service};

/// Pause before a region is looked for again, when it is unknown whether the region still exists.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The requests of clients that watch their regions, as a service.
pub(crate) struct Watching(pub(crate) Rc<Regions>);

impl Service for Watching {
    fn name(&self) -> &'static str {
        "events of regions"
    }

    fn requests(&self) -> RangeInclusive<u8> {
        120..=129
    }

    fn on_request(self: Rc<Self>, asked: Asked) -> Result<Answer, WireError> {
        let Self(regions) = &*self;
        match asked.request {
            Request::WatchRegions => {
                let watched = regions.watch(asked.session);
                Ok(Answer::now(watched.map(|key| Reply::RegionsWatched { key })))
            }
            Request::FollowRegions { key } => {
                let user = regions.user(asked.session);
                match regions.watches.follow(key, user, (asked.session, asked.number)) {
                    Ok(()) => Ok(Answer::Silent),
                    Err(error) => Ok(Answer::now(Err(error))),
                }
            }
            other => Err(WireError::Opcode(other.opcode())),
        }
    }
}

impl Regions {
    /// Begins a watch over the regions of a client, and notes the regions that have ended or moved already.
    /// Returns the key of the watch.
    fn watch(self: &Rc<Self>, client: ClientKey) -> Result<u64, Error> {
        let handles = self.handles.of(client);
        let key = self.watches.begin(client, self.user(client), &handles)?;
        for (_, at) in handles.iter().filter(|(_, at)| at.is_stale()) {
            match at.is_freed() {
                true => self.watches.tell_end(at, None, RegionState::Freed),
                false => self.search(at.life()),
            }
        }
        Ok(key)
    }

    /// Ends the watches of a client that has gone, and tells the connections that followed them.
    pub(super) fn end_watches(&self, client: ClientKey) {
        for (follower, request) in self.watches.end(client) {
            let text = "the client whose regions these are has gone: connect again, and map them";
            let error = Error::new(ErrorKind::Disconnected, text);
            self.sessions.reply(follower, request, &Reply::Failed { error });
        }
    }

    /// Takes the news that the home of a region sends to the nodes that map the region.
    pub(super) fn on_news(self: &Rc<Self>, from: NodeId, news: RegionFrame) {
        self.take_news(from, &news);
        // News may come in the turn of its mapping. The task that asked for the mapping enters it before the
        // task below runs.
        let regions = Rc::clone(self);
        self.kernel.spawn(async move {
            regions.kernel.clock.sleep(Duration::ZERO).await;
            regions.take_news(from, &news);
        });
    }

    fn take_news(self: &Rc<Self>, from: NodeId, news: &RegionFrame) {
        match news {
            RegionFrame::Governed { desk, change } => {
                if let Some(mapping) = self.mappings.govern(from, *desk, change) {
                    self.watches.tell_change(&At::There(mapping), change);
                }
            }
            RegionFrame::Departed { desk, to } => {
                if let Some(mapping) = self.mappings.depart(from, *desk) {
                    let at = At::There(mapping);
                    self.watches.tell_moved(&at, from, *to);
                    self.search(at.life());
                }
            }
            RegionFrame::Gone { desk } => self.end_mappings(from, *desk),
            _ => {}
        }
    }

    /// Ends the mappings of a region that was freed.
    pub(super) fn end_mappings(&self, home: NodeId, desk: Desk) {
        if let Some(mapping) = self.mappings.end(home, desk) {
            self.watches.tell_end(&At::There(mapping), Some(home), RegionState::Freed);
        }
    }

    /// Looks for a region that is not where it was, on behalf of each client that watches the region.
    pub(super) fn search(self: &Rc<Self>, life: Life) {
        for client in self.watches.watchers(life) {
            if self.watches.begin_search(client, life) {
                let regions = Rc::clone(self);
                self.kernel.spawn(async move {
                    while let Some(life) = regions.watches.next_searched(client) {
                        regions.search_for(client, life).await;
                        regions.watches.end_search(client, life);
                    }
                });
            }
        }
    }

    /// Looks for the region of a client's handles until the region is found, or is known to have ended.
    async fn search_for(self: &Rc<Self>, client: ClientKey, life: Life) {
        // The client may have gone, or may have been told the end by other news.
        while let Some(home) = self.watches.home_of(client, life) {
            let handles = self.watches.handles(client, life).into_iter();
            let mut handles =
                handles.filter_map(|handle| Some((handle, self.handles.get(client, handle).ok()?.0)));
            let Some((handle, at)) = handles.find(|(_, at)| at.is_stale()) else { return };
            let found = self.follow(client, handle).await;
            // A node that is no member does not know which regions its cluster has.
            let knows = !self.cluster.withholds() && !self.cluster.fenced();
            match found {
                Ok(()) => {}
                Err(error) if knows && matches!(error.kind(), ErrorKind::Freed | ErrorKind::Lost) => {
                    let is_lost = error.kind() == ErrorKind::Lost || !self.cluster.is_member(home);
                    let state = if is_lost { RegionState::Lost } else { RegionState::Freed };
                    return self.watches.tell_end(&at, None, state);
                }
                Err(_) => self.kernel.clock.sleep(LOOK_AGAIN_AFTER).await,
            }
        }
    }
}
