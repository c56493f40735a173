//! News for clients of this node about the regions to which they have handles. Owns [`Watches`]. Engine
//! thread only.
//!
//! A client begins a *watch* on its own connection, and *follows* it on another one, which brings the events.
//! A watch knows each region of the client: its home, how many changes of its rights were told, and whether
//! it has ended. News from elsewhere is compared with that, so news that comes twice, late, or from a former
//! home gives no event, and news that is missing gives a gap.
//!
//! Invariants: a watch keeps at most [`MAX_KEPT`] events, and an event that is not kept is counted in a gap
//! at one place of the sequence. A change of rights is told to the user whose rights they are, and to the
//! masters of the region. No other user is told.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

use plasmon::region::{RegionEvent, RegionState};
use plasmon::wire::Reply;
use plasmon::{Error, ErrorKind, NodeId};

use super::frames::RightsChange;
use super::handles::{At, Life};
use crate::kernel::ClientKey;
use crate::kernel::random::{HashMap, HashSet, random_u64};
use crate::object::ROOT;
use crate::sessions::Sessions;

/// Maximum number of events kept for a watch. A client that misses some looks at its regions itself.
const MAX_KEPT: usize = 1 << 12;
/// Maximum number of watches of a client.
const MAX_WATCHES: usize = 16;
/// Maximum number of regions that a client's tasks look for at the same time.
const MAX_SEARCHED: usize = 64;
/// Maximum number of events in a frame.
const FRAME_EVENTS: usize = 64;
/// Maximum number of frames that a watch sends in a turn.
const TURN_FRAMES: usize = 16;

/// A region of a client, as the client was told of the region.
struct Known {
    handles: BTreeSet<u32>,
    home: NodeId,
    /// Number of changes of the region's rights that the watch knows of. The number wraps.
    changes: u16,
    has_ended: bool,
}

impl Known {
    fn new(at: &At, own: NodeId) -> Self {
        Self { handles: BTreeSet::new(), home: home(at, own), changes: at.changes(), has_ended: false }
    }
}

fn home(at: &At, own: NodeId) -> NodeId {
    match at {
        At::Here(_) => own,
        At::There(mapping) => mapping.home,
    }
}

/// Events of a watch that are still to be told.
#[derive(Default)]
struct Queue {
    kept: VecDeque<RegionEvent>,
    /// Number of events that were not kept because there was no room.
    missed: u64,
}

impl Queue {
    fn note(&mut self, event: RegionEvent) {
        // After a missed event, all events are missed until the client has caught up, so that a gap has one
        // place.
        match self.missed == 0 && self.kept.len() < MAX_KEPT {
            true => self.kept.push_back(event),
            false => self.missed += 1,
        }
    }

    /// Takes the next events, at most `most`. A gap counts as an event.
    fn take(&mut self, most: usize) -> Vec<RegionEvent> {
        let count = most.min(self.kept.len());
        let mut events: Vec<_> = self.kept.drain(..count).collect();
        if self.missed > 0 && events.len() < most {
            events.push(RegionEvent::Gap { missed: std::mem::take(&mut self.missed) });
        }
        events
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.missed == 0
    }
}

/// A client that watches its regions.
struct Watcher {
    client: ClientKey,
    user: u32,
}

/// A client's watch over its regions.
struct Watch {
    watcher: Watcher,
    known: HashMap<Life, Known>,
    queue: Queue,
    /// Connection that brings the events, with the number of its request. `None` until one follows the watch.
    follower: Option<(ClientKey, u64)>,
}

impl Watch {
    /// Returns the node on which a region lives, if it has not ended, as far as the client was told.
    fn home_of(&self, life: Life) -> Option<NodeId> {
        self.known.get(&life).filter(|known| !known.has_ended).map(|known| known.home)
    }
}

/// Regions that this node looks for on behalf of one client.
#[derive(Default)]
struct Search {
    /// All regions that are looked for.
    regions: HashSet<Life>,
    /// Regions that no task looks for so far.
    waiting: VecDeque<Life>,
    /// Number of tasks that look for regions.
    tasks: usize,
}

/// Watches of the clients of this node, by their keys.
pub(super) struct Watches {
    own: NodeId,
    watches: RefCell<HashMap<u64, Watch>>,
    /// Regions that are looked for, by the client that watches them.
    searches: RefCell<HashMap<ClientKey, Search>>,
}

impl Watches {
    /// Makes the watches of a node. There are none at first.
    pub(super) fn new(own: NodeId) -> Self {
        Self { own, watches: RefCell::default(), searches: RefCell::default() }
    }

    /// Begins a watch over the regions to which a client has handles, or will have. Returns the key of the
    /// watch.
    ///
    /// # Errors
    /// `Busy` when the client has too many watches.
    pub(super) fn begin(&self, client: ClientKey, user: u32, handles: &[(u32, At)]) -> Result<u64, Error> {
        let mut watches = self.watches.borrow_mut();
        if watches.values().filter(|watch| watch.watcher.client == client).count() >= MAX_WATCHES {
            let text = format!(
                "this client has the events of its regions told {MAX_WATCHES} times already: close one"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let mut known = HashMap::<Life, Known>::default();
        for (handle, at) in handles {
            let known = known.entry(at.life()).or_insert_with(|| Known::new(at, self.own));
            known.handles.insert(*handle);
            if !at.is_stale() {
                (known.home, known.changes) = (home(at, self.own), at.changes());
            }
        }
        let key = random_u64();
        watches.insert(
            key,
            Watch { watcher: Watcher { client, user }, known, queue: Queue::default(), follower: None },
        );
        Ok(key)
    }

    /// Lets a connection of the same user follow a watch: it is told the events.
    ///
    /// # Errors
    /// `NotFound` if there is no such watch, or if another connection follows the watch.
    pub(super) fn follow(&self, key: u64, user: u32, follower: (ClientKey, u64)) -> Result<(), Error> {
        let mut watches = self.watches.borrow_mut();
        match watches.get_mut(&key).filter(|watch| watch.watcher.user == user && watch.follower.is_none()) {
            Some(watch) => {
                watch.follower = Some(follower);
                Ok(())
            }
            None => {
                let text = "no client of this user has begun to gather events under this number: ask again";
                Err(Error::new(ErrorKind::NotFound, text))
            }
        }
    }

    /// Ends the watches of a client that has gone, and the watches that this client followed. Returns the
    /// other connections that followed watches of the client, with the numbers of their requests.
    pub(super) fn end(&self, client: ClientKey) -> Vec<(ClientKey, u64)> {
        let mut followers = Vec::new();
        self.watches.borrow_mut().retain(|_, watch| {
            let follows = watch.follower.is_some_and(|(follower, _)| follower == client);
            if watch.watcher.client == client && !follows {
                followers.extend(watch.follower);
            }
            watch.watcher.client != client && !follows
        });
        followers
    }

    /// Sends events to the connections that follow watches. Returns whether one of them can be sent more at
    /// once.
    pub(super) fn tell(&self, sessions: &Sessions) -> bool {
        let mut more = false;
        for watch in self.watches.borrow_mut().values_mut() {
            let (Some((key, request)), queue) = (watch.follower, &mut watch.queue) else { continue };
            let is_behind = || sessions.client(key, |client| client.session.is_behind());
            for _ in 0..TURN_FRAMES {
                if queue.is_empty() || is_behind() {
                    break;
                }
                let events = queue.take(FRAME_EVENTS);
                sessions.reply(key, request, &Reply::RegionEvents(events));
            }
            more |= !queue.is_empty() && !is_behind();
        }
        more
    }
}

impl Watches {
    /// Notes a client's new handle.
    pub(super) fn note_opened(&self, client: ClientKey, handle: u32, at: &At) {
        for watch in self.watches.borrow_mut().values_mut().filter(|watch| watch.watcher.client == client) {
            let known = watch.known.entry(at.life()).or_insert_with(|| Known::new(at, self.own));
            known.handles.insert(handle);
        }
    }

    /// Notes that a client has given up a handle.
    pub(super) fn note_closed(&self, client: ClientKey, handle: u32, at: &At) {
        for watch in self.watches.borrow_mut().values_mut().filter(|watch| watch.watcher.client == client) {
            let Some(known) = watch.known.get_mut(&at.life()) else { continue };
            known.handles.remove(&handle);
            if known.handles.is_empty() {
                watch.known.remove(&at.life());
            }
        }
    }

    /// Notes that a region of a client was found. Tells the client where the region is, if the client thought
    /// that it was elsewhere or had ended, and tells a gap if changes of rights were missed.
    pub(super) fn note_found(&self, client: ClientKey, at: &At) {
        let home = home(at, self.own);
        self.note(at.life(), |watch, known| {
            if watch.client != client {
                return Vec::new();
            }
            let moves = std::mem::replace(&mut known.home, home) != home;
            let returns = std::mem::replace(&mut known.has_ended, false);
            // The place that was found may be older than changes that were told since.
            let missed = ahead(at.changes(), known.changes) > 0;
            if missed {
                known.changes = at.changes();
            }
            let moved = (moves || returns).then(|| moved(at, home));
            moved.into_iter().chain(missed.then_some(RegionEvent::Gap { missed: 0 })).collect()
        });
    }

    /// Tells that a region has moved from its home `from` to the node `to`. Watches that know another home
    /// ignore that.
    pub(super) fn tell_moved(&self, at: &At, from: NodeId, to: NodeId) {
        self.note(at.life(), |_, known| {
            if known.has_ended || known.home != from || to == from {
                return Vec::new();
            }
            known.home = to;
            vec![moved(at, to)]
        });
    }

    /// Tells that a region has ended. `from` is the home that says this: a watch that knows another home
    /// ignores it. `None` tells all watches.
    pub(super) fn tell_end(&self, at: &At, from: Option<NodeId>, state: RegionState) {
        self.note(at.life(), |_, known| {
            if known.has_ended || from.is_some_and(|from| from != known.home) {
                return Vec::new();
            }
            known.has_ended = true;
            let (region, owner) = (at.name().into(), at.owner());
            vec![match state {
                RegionState::Lost => RegionEvent::Lost { region, owner },
                _ => RegionEvent::Freed { region, owner },
            }]
        });
    }

    /// Tells a change of the rights to a region, as the region's home says, to the users whom the change
    /// concerns.
    pub(super) fn tell_change(&self, at: &At, change: &RightsChange) {
        let &RightsChange { number, user, is_grant, rights, ref masters } = change;
        let owner = at.owner();
        self.note(at.life(), |watch, known| {
            // A home goes on counting where the home before has ended. News of a new home may come before
            // this node knows that the region lives there.
            let ahead = ahead(number, known.changes);
            if known.has_ended || ahead <= 0 {
                return Vec::new();
            }
            known.changes = number;
            let is_master = watch.user == owner || watch.user == ROOT || masters.contains(&watch.user);
            let concerns = is_master || user.is_none_or(|user| user == watch.user);
            let event = concerns.then(|| {
                let region = at.name().into();
                match is_grant {
                    true => RegionEvent::Granted { region, owner, user, rights },
                    false => RegionEvent::Revoked { region, owner, user, rights },
                }
            });
            let gap = (ahead > 1).then_some(RegionEvent::Gap { missed: 0 });
            gap.into_iter().chain(event).collect()
        });
    }

    /// Asks `tell` for the events of each watch that knows a region, and queues the events.
    fn note(&self, life: Life, tell: impl Fn(&Watcher, &mut Known) -> Vec<RegionEvent>) {
        for Watch { watcher, known, queue, .. } in self.watches.borrow_mut().values_mut() {
            let events = known.get_mut(&life).map(|known| tell(watcher, known)).unwrap_or_default();
            events.into_iter().for_each(|event| queue.note(event));
        }
    }
}

/// Searches for regions that are not where a watch knew them.
impl Watches {
    /// Returns the clients that watch a region which has not ended, as far as the clients were told.
    pub(super) fn watchers(&self, life: Life) -> Vec<ClientKey> {
        let watches = self.watches.borrow();
        watches
            .values()
            .filter(|watch| watch.home_of(life).is_some())
            .map(|watch| watch.watcher.client)
            .collect()
    }

    /// Returns the node on which a client was told that a region lives. `None` if the client does not watch
    /// the region any more, or was told that the region has ended.
    pub(super) fn home_of(&self, client: ClientKey, life: Life) -> Option<NodeId> {
        let watches = self.watches.borrow();
        watches.values().filter(|watch| watch.watcher.client == client).find_map(|watch| watch.home_of(life))
    }

    /// Returns a client's handles to a region, as a watch of the client knows them.
    pub(super) fn handles(&self, client: ClientKey, life: Life) -> Vec<u32> {
        let watches = self.watches.borrow();
        let mut own = watches.values().filter(|watch| watch.watcher.client == client);
        own.find_map(|watch| watch.known.get(&life))
            .into_iter()
            .flat_map(|known| &known.handles)
            .copied()
            .collect()
    }

    /// Begins to look for a region on behalf of a client. Returns whether the caller has to start another
    /// task.
    pub(super) fn begin_search(&self, client: ClientKey, life: Life) -> bool {
        let mut searches = self.searches.borrow_mut();
        let own = searches.entry(client).or_default();
        if own.regions.insert(life) {
            own.waiting.push_back(life);
        }
        let is_more = own.tasks < MAX_SEARCHED && !own.waiting.is_empty();
        own.tasks += usize::from(is_more);
        is_more
    }

    /// Returns the next region that a task is to look for. `None` ends the task.
    pub(super) fn next_searched(&self, client: ClientKey) -> Option<Life> {
        let mut searches = self.searches.borrow_mut();
        let own = searches.get_mut(&client)?;
        let next = own.waiting.pop_front();
        own.tasks -= usize::from(next.is_none());
        if own.tasks == 0 {
            searches.remove(&client);
        }
        next
    }

    /// Notes that a region is not looked for any more.
    pub(super) fn end_search(&self, client: ClientKey, life: Life) {
        self.searches.borrow_mut().get_mut(&client).map(|own| own.regions.remove(&life));
    }
}

/// Returns how many changes of rights lie between two of their numbers, which wrap. Negative if `number` is
/// older.
fn ahead(number: u16, than: u16) -> i16 {
    number.wrapping_sub(than).cast_signed()
}

fn moved(at: &At, home: NodeId) -> RegionEvent {
    RegionEvent::Moved { region: at.name().into(), owner: at.owner(), home }
}
