//! Subscriptions: a client that watches this node's objects gets the existing ones first, then the events.
//!
//! Engine thread only. A subscriber that does not read is told how many events it missed, at the place
//! where it missed them; it holds up no other client. Events leave at the end of the turn.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::IntoIter;

use plasmon::ObjectId;
use plasmon::wire::{Event, MAX_IDS, Reply};

use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::object::Happening;
use crate::sessions::Sessions;
use crate::store::Store;

/// Maximum number of events kept for a subscriber that is behind with reading.
const MAX_QUEUED_EVENTS: usize = 1 << 16;
/// Number of frames for one subscriber in a turn.
const TURN_FRAMES: usize = 16;

/// One client's subscription.
struct Subscription {
    request: u64,
    /// Objects that existed when the subscription began and were not told yet.
    existing: IntoIter<ObjectId>,
    happened: VecDeque<Event>,
    /// Number of events that were not kept since `happened` was full.
    missed: u64,
}

impl Subscription {
    fn keep(&mut self, event: Event) {
        // After a missed event, all events are missed until the subscriber has caught up, so that a gap has
        // one place.
        if self.missed > 0 || self.happened.len() >= MAX_QUEUED_EVENTS {
            self.missed += 1;
        } else {
            self.happened.push_back(event);
        }
    }

    fn is_idle(&self) -> bool {
        self.existing.len() == 0 && self.happened.is_empty() && self.missed == 0
    }

    /// The events of the next frame; `sealed` describes an object that still exists.
    fn next(&mut self, sealed: impl Fn(&ObjectId) -> Option<Event>) -> Vec<Event> {
        let mut events: Vec<_> = self.existing.by_ref().take(MAX_IDS).filter_map(|id| sealed(&id)).collect();
        if self.existing.len() == 0 {
            let room = MAX_IDS - events.len();
            events.extend(self.happened.drain(..room.min(self.happened.len())));
            if self.happened.is_empty() && self.missed > 0 && events.len() < MAX_IDS {
                events.push(Event::Gap { missed: std::mem::take(&mut self.missed) });
            }
        }
        events
    }
}

/// The subscriptions of clients.
pub(super) struct Subscriptions {
    store: Rc<Store>,
    sessions: Rc<Sessions>,
    by_client: RefCell<HashMap<ClientKey, Subscription>>,
}

impl Subscriptions {
    pub(super) fn new(sessions: &Rc<Sessions>) -> Self {
        let (store, sessions) = (Rc::clone(&sessions.store), Rc::clone(sessions));
        Self { store, sessions, by_client: RefCell::default() }
    }

    /// Begins a subscription; the client's former one ends.
    pub(crate) fn subscribe(&self, client: ClientKey, request: u64) {
        // Earlier events of this turn are for the present subscribers.
        self.tell();
        let tenant = self.sessions.client(client, |client| client.uid);
        let mut objects = self.store.objects.borrow_mut();
        objects.happenings.get_or_insert_default();
        let seen = objects.sealed().filter(|replica| replica.visible_to(tenant));
        let existing: Vec<_> = seen.map(|replica| replica.id()).collect();
        let subscription =
            Subscription { request, existing: existing.into_iter(), happened: VecDeque::new(), missed: 0 };
        self.by_client.borrow_mut().insert(client, subscription);
    }

    /// Ends the subscription of a client that has gone.
    pub(crate) fn end(&self, client: ClientKey) {
        self.by_client.borrow_mut().remove(&client);
    }

    /// Tells subscribers the events; returns whether one has more to hear at once.
    pub(crate) fn tell(&self) -> bool {
        let mut subscriptions = self.by_client.borrow_mut();
        if subscriptions.is_empty() {
            // The last subscriber has gone: events need not be noted any more.
            self.store.objects.borrow_mut().happenings = None;
            return false;
        }
        let happened: Vec<Happening> = {
            let mut objects = self.store.objects.borrow_mut();
            objects.happenings.as_mut().map(std::mem::take).unwrap_or_default()
        };
        let mut more = false;
        subscriptions.retain(|&key, subscription| {
            let Some((tenant, behind)) =
                self.sessions.client_mut(key, |client| (client.uid, client.session.is_behind()))
            else {
                return false;
            };
            for happening in &happened {
                if happening.owner.is_none_or(|owner| owner == tenant) {
                    subscription.keep(happening.event.clone());
                }
            }
            let mut frames = 0;
            let mut behind = behind;
            while !behind && frames < TURN_FRAMES && !subscription.is_idle() {
                let objects = self.store.objects.borrow();
                let seen = |id: &ObjectId| objects.get(id).filter(|one| one.visible_to(tenant));
                let sealed = |id: &ObjectId| Some(Happening::sealed(seen(id)?).event);
                let events = subscription.next(sealed);
                drop(objects);
                if !events.is_empty() {
                    self.sessions.reply(key, subscription.request, &Reply::Events(events));
                }
                frames += 1;
                behind = self.sessions.client(key, |client| client.session.is_behind());
            }
            more |= !behind && !subscription.is_idle();
            true
        });
        if subscriptions.is_empty() {
            self.store.objects.borrow_mut().happenings = None;
        }
        more
    }
}
