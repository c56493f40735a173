//! Subscriptions: a client that watches this node's objects gets the existing ones first, then the events.
//!
//! Engine thread only. A subscriber that does not read is told how many events it missed, at the place
//! where it missed them; it holds up no other client. Events leave at the end of the turn. Other nodes get
//! the events by [`feeds`](super::feeds).
//!
//! The objects that are there are told one share of the table after the other. Until a share is reached, the
//! events of its objects are left out: the share then says what became of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::vec::IntoIter;

use futures::FutureExt;
use futures::channel::oneshot;
use plasmon::ObjectId;
use plasmon::wire::{Event, MAX_IDS, MAX_NAME, Reply};

use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::net::frame::Envelope;
use crate::net::network::Network;
use crate::object::{Happening, Table};
use crate::sessions::Sessions;
use crate::sessions::feeds::Feeds;
use crate::store::Store;

/// Maximum number of events kept for a subscriber that is behind with reading.
pub(super) const MAX_QUEUED_EVENTS: usize = 1 << 16;
/// Number of frames for one subscriber in a turn.
const TURN_FRAMES: usize = 16;
/// Number of objects after which a look at the table ends with the share that it has reached.
const MAX_LOOKED_AT: usize = 1 << 14;
/// Number of bytes of an encoded event beside its name, and a few more.
pub(super) const EVENT_BYTES: usize = 64;

/// What a subscriber is still to be told.
pub(super) struct Queue {
    tenant: u32,
    /// The next share of the table to be looked at.
    share: usize,
    /// Objects of the last such share that were not told yet.
    existing: IntoIter<ObjectId>,
    happened: VecDeque<Rc<Event>>,
    /// Number of events that were not kept since there was no room.
    missed: u64,
}

impl Queue {
    /// What a subscriber of this user who begins now is to be told.
    pub(super) fn new(tenant: u32) -> Self {
        Self { tenant, share: 0, existing: Vec::new().into_iter(), happened: VecDeque::new(), missed: 0 }
    }

    /// Whether the subscriber is this user's.
    pub(super) fn is_of(&self, tenant: u32) -> bool {
        self.tenant == tenant
    }

    /// Number of events that are kept.
    pub(super) fn kept(&self) -> usize {
        self.happened.len()
    }

    /// Takes note of an event. Returns whether it is kept, which takes room.
    pub(super) fn note(&mut self, one: &Happening, has_room: bool) -> bool {
        // What is in a share that comes later is told with it.
        if one.share >= self.share || !one.is_for(self.tenant) {
            return false;
        }
        // After a missed event, all events are missed until the subscriber has caught up, so that a gap has
        // one place.
        let keeps = has_room && self.missed == 0 && self.happened.len() < MAX_QUEUED_EVENTS;
        match keeps {
            true => self.happened.push_back(Rc::clone(&one.event)),
            false => self.missed += 1,
        }
        keeps
    }

    pub(super) fn is_idle(&self) -> bool {
        self.existing.len() == 0
            && self.share == Table::SHARDS
            && self.happened.is_empty()
            && self.missed == 0
    }

    /// The next events, at most `most`, in at most so many bytes. There may be none although more follow,
    /// since the user sees few of the objects or those have gone.
    pub(super) fn next(&mut self, objects: &Table, most: usize, mut bytes: usize) -> Vec<Event> {
        let (mut events, mut looked_at) = (Vec::new(), 0);
        while events.len() < most && bytes >= EVENT_BYTES + MAX_NAME {
            if let Some(event) = self.take(objects) {
                let name = match &event {
                    Event::Sealed { name, .. } | Event::Deleted { name, .. } => name.len(),
                    Event::Gap { .. } => 0,
                };
                bytes = bytes.saturating_sub(EVENT_BYTES + name);
                events.push(event);
            } else if self.share < Table::SHARDS && looked_at < MAX_LOOKED_AT {
                looked_at += objects.sealed_in(self.share).count();
                let seen = objects.sealed_in(self.share).filter(|one| one.visible_to(self.tenant));
                self.existing = seen.map(|one| one.id()).collect::<Vec<_>>().into_iter();
                self.share += 1;
            } else {
                break;
            }
        }
        events
    }

    /// Takes the next event that is known without a look at another share of the table.
    fn take(&mut self, objects: &Table) -> Option<Event> {
        let visible = |id| objects.get(&id).filter(|one| one.visible_to(self.tenant));
        if let Some(replica) = self.existing.by_ref().find_map(visible) {
            return Some(Happening::sealed(replica));
        }
        if self.share < Table::SHARDS {
            return None;
        }
        let event = self.happened.pop_front().map(Rc::unwrap_or_clone);
        let missed = || (self.missed > 0).then(|| Event::Gap { missed: std::mem::take(&mut self.missed) });
        event.or_else(missed)
    }
}

/// One client's subscription.
struct Subscription {
    request: u64,
    queue: Queue,
    /// Those who wait until the client has read. They are told when these go.
    waiting: Vec<oneshot::Sender<()>>,
}

/// The subscriptions of clients.
pub(super) struct Subscriptions {
    store: Rc<Store>,
    sessions: Rc<Sessions>,
    by_client: RefCell<HashMap<ClientKey, Subscription>>,
    /// The feeds of other nodes.
    pub(super) feeds: Feeds,
}

impl Subscriptions {
    pub(super) fn new(sessions: &Rc<Sessions>, network: &Rc<Network>) -> Self {
        let (store, sessions) = (Rc::clone(&sessions.store), Rc::clone(sessions));
        let feeds = Feeds::new(&store, network);
        Self { store, sessions, by_client: RefCell::default(), feeds }
    }

    /// Begins a subscription; the client's former one ends.
    pub(crate) fn subscribe(&self, client: ClientKey, request: u64) {
        self.store.objects.borrow_mut().happenings.get_or_insert_default();
        let queue = Queue::new(self.sessions.client(client, |client| client.uid));
        let subscription = Subscription { request, queue, waiting: Vec::new() };
        self.by_client.borrow_mut().insert(client, subscription);
    }

    /// Whether a client has a subscription.
    pub(crate) fn has(&self, client: ClientKey) -> bool {
        self.by_client.borrow().contains_key(&client)
    }

    /// Takes another node's question for the next events of a feed.
    pub(crate) fn on_watch(&self, asked: Envelope, feed: u64, begins: bool, most: u32) {
        // What has happened comes before a further look at the table.
        self.note();
        self.feeds.ask(asked, feed, begins, most as usize);
    }

    /// Returns a future that ends when a subscriber is not behind with reading, or has gone.
    pub(crate) fn room(&self, client: ClientKey) -> impl Future<Output = ()> + use<> {
        let (sender, receiver) = oneshot::channel();
        let behind = self.sessions.client(client, |client| client.session.is_behind());
        if let Some(subscription) = self.by_client.borrow_mut().get_mut(&client).filter(|_| behind) {
            subscription.waiting.push(sender);
        }
        receiver.map(drop)
    }

    /// Ends the subscription of a client that has gone.
    pub(crate) fn end(&self, client: ClientKey) {
        self.by_client.borrow_mut().remove(&client);
    }

    /// Hands what has happened to all who watch.
    fn note(&self) {
        let happened: Vec<Happening> = {
            let mut objects = self.store.objects.borrow_mut();
            objects.happenings.as_mut().map(std::mem::take).unwrap_or_default()
        };
        if happened.is_empty() {
            return;
        }
        for Subscription { queue, .. } in self.by_client.borrow_mut().values_mut() {
            happened.iter().for_each(|one| _ = queue.note(one, true));
        }
        self.feeds.note(&happened);
    }

    /// Tells subscribers the events; returns whether one has more to hear at once.
    pub(crate) fn tell(&self) -> bool {
        self.note();
        let mut subscriptions = self.by_client.borrow_mut();
        if subscriptions.is_empty() && self.feeds.is_empty() {
            // The last one has gone: events need not be noted any more.
            self.store.objects.borrow_mut().happenings = None;
            return false;
        }
        let mut more = false;
        subscriptions.retain(|&key, subscription| {
            let Some(mut behind) = self.sessions.client_mut(key, |client| client.session.is_behind()) else {
                return false;
            };
            let Subscription { request, queue, waiting } = subscription;
            let mut frames = 0;
            while !behind && frames < TURN_FRAMES && !queue.is_idle() {
                let events = queue.next(&self.store.objects.borrow(), MAX_IDS, usize::MAX);
                if !events.is_empty() {
                    let node = self.sessions.kernel.node;
                    self.sessions.reply(key, *request, &Reply::Events { node, events });
                }
                frames += 1;
                behind = self.sessions.client(key, |client| client.session.is_behind());
            }
            more |= !behind && !queue.is_idle();
            if !behind {
                waiting.clear();
            }
            true
        });
        more
    }
}
