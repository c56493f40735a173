//! News for clients of this node about the regions to which they have handles. Engine thread only.
//!
//! A client begins a *watch* on its own connection, and *follows* it on another one, which brings the events.
//! A watch knows each region of the client: its home, how many changes of its rights were told, and whether
//! it has ended. News from elsewhere is compared with that, so news that comes twice, late, or from a former
//! home gives no event, and news that is missing gives a gap.
//!
//! Invariants: a watch keeps at most [`MAX_KEPT`] events, and an event that is not kept is counted, at one
//! place of the sequence. A change of rights is told to the user whose rights they are, and to the masters of
//! the region, who decide about them: to no other user, whom the rights of others do not concern.

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
/// Maximum number of regions that are looked for at the same time, for one client.
const MAX_SETTLING: usize = 64;
/// Number of events in a frame, and of frames for one watch in a turn.
const FRAME_EVENTS: usize = 64;
const TURN_FRAMES: usize = 16;

/// A region of a client, as the client was told of it.
struct Known {
    handles: BTreeSet<u32>,
    home: NodeId,
    /// Number of changes of its rights, which wraps.
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

/// The events that are still to be told.
#[derive(Default)]
struct Queue {
    kept: VecDeque<RegionEvent>,
    /// Number of events that were not kept since there was no room.
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

    /// Takes the next events, at most so many.
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
    /// The connection that brings the events, with the number of its request.
    follower: Option<(ClientKey, u64)>,
}

impl Watch {
    /// Node of a region that has not ended, as far as the client was told.
    fn home_of(&self, life: Life) -> Option<NodeId> {
        self.known.get(&life).filter(|known| !known.has_ended).map(|known| known.home)
    }
}

/// The regions that are looked for, for one client.
#[derive(Default)]
struct Settling {
    /// All regions that are looked for.
    regions: HashSet<Life>,
    /// Regions that no task looks for so far.
    waiting: VecDeque<Life>,
    /// Number of tasks.
    tasks: usize,
}

/// The watches of the clients of this node, by their keys.
pub(super) struct Watches {
    own: NodeId,
    watches: RefCell<HashMap<u64, Watch>>,
    /// The regions that are looked for, by the clients for which they are.
    settling: RefCell<HashMap<ClientKey, Settling>>,
}

impl Watches {
    /// Makes the watches of a node, of which there are none.
    pub(super) fn new(own: NodeId) -> Self {
        Self { own, watches: RefCell::default(), settling: RefCell::default() }
    }

    /// Begins a watch over the regions to which a client has handles, or will have; returns its key.
    ///
    /// # Errors
    /// `Busy` when the client has too many.
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

    /// Has the events of a watch told on a connection of the same user.
    ///
    /// # Errors
    /// `NotFound` if there is no such watch, or another connection has its events told.
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

    /// Ends the watches of a client that has gone, and those whose events it was told. Returns the other
    /// connections that were told the events of its regions, with the numbers of their requests.
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

    /// Tells the events; returns whether a client has more to hear at once.
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

    /// Tells a client where a region was found, if the client thought it elsewhere or lost, and whether
    /// changes of its rights were missed.
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

    /// Tells that a region has moved, as its former home says.
    pub(super) fn tell_moved(&self, at: &At, from: NodeId, to: NodeId) {
        self.note(at.life(), |_, known| {
            if known.has_ended || known.home != from || to == from {
                return Vec::new();
            }
            known.home = to;
            vec![moved(at, to)]
        });
    }

    /// Tells that a region has ended, as this home of it says, or all that is known.
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

    /// Tells those whom it concerns that rights to a region have changed, as its home says.
    pub(super) fn tell_change(&self, at: &At, change: &RightsChange) {
        let &RightsChange { number, user, is_grant, rights, ref masters } = change;
        let owner = at.owner();
        self.note(at.life(), |watch, known| {
            // Homes go on counting where the one before has ended, so a new home may be heard before it is
            // known that the region lives there.
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

    /// Has each watch that knows a region keep what it is to tell.
    fn note(&self, life: Life, tell: impl Fn(&Watcher, &mut Known) -> Vec<RegionEvent>) {
        for Watch { watcher, known, queue, .. } in self.watches.borrow_mut().values_mut() {
            let events = known.get_mut(&life).map(|known| tell(watcher, known)).unwrap_or_default();
            events.into_iter().for_each(|event| queue.note(event));
        }
    }
}

/// Regions that are looked for, since they are not where a watch knew them.
impl Watches {
    /// The clients that watch a region which has not ended, as far as they were told.
    pub(super) fn watchers(&self, life: Life) -> Vec<ClientKey> {
        let watches = self.watches.borrow();
        watches
            .values()
            .filter(|watch| watch.home_of(life).is_some())
            .map(|watch| watch.watcher.client)
            .collect()
    }

    /// Where a client was told that a region lives; `None` if it watches no such region any more, or was told
    /// its end.
    pub(super) fn home_of(&self, client: ClientKey, life: Life) -> Option<NodeId> {
        let watches = self.watches.borrow();
        watches.values().filter(|watch| watch.watcher.client == client).find_map(|watch| watch.home_of(life))
    }

    /// A client's handles to a region.
    pub(super) fn handles(&self, client: ClientKey, life: Life) -> Vec<u32> {
        let watches = self.watches.borrow();
        let mut own = watches.values().filter(|watch| watch.watcher.client == client);
        own.find_map(|watch| watch.known.get(&life))
            .into_iter()
            .flat_map(|known| &known.handles)
            .copied()
            .collect()
    }

    /// Has a region looked for, for a client; returns whether another task is to do that.
    pub(super) fn begin_settling(&self, client: ClientKey, life: Life) -> bool {
        let mut settling = self.settling.borrow_mut();
        let own = settling.entry(client).or_default();
        if own.regions.insert(life) {
            own.waiting.push_back(life);
        }
        let is_more = own.tasks < MAX_SETTLING && !own.waiting.is_empty();
        own.tasks += usize::from(is_more);
        is_more
    }

    /// The next region that a task is to look for; `None` ends the task.
    pub(super) fn next_settling(&self, client: ClientKey) -> Option<Life> {
        let mut settling = self.settling.borrow_mut();
        let own = settling.get_mut(&client)?;
        let next = own.waiting.pop_front();
        own.tasks -= usize::from(next.is_none());
        if own.tasks == 0 {
            settling.remove(&client);
        }
        next
    }

    /// Notes that a region is not looked for any more.
    pub(super) fn end_settling(&self, client: ClientKey, life: Life) {
        self.settling.borrow_mut().get_mut(&client).map(|own| own.regions.remove(&life));
    }
}

/// How many changes of rights lie between two of their numbers, which wrap. Negative if the first is older.
fn ahead(number: u16, than: u16) -> i16 {
    number.wrapping_sub(than).cast_signed()
}

fn moved(at: &At, home: NodeId) -> RegionEvent {
    RegionEvent::Moved { region: at.name().into(), owner: at.owner(), home }
}
