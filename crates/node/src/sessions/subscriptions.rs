//! Subscriptions: a client that watches this node's objects gets the existing ones first, then the events.
//!
//! Owns the subscriptions. Engine thread only. A subscriber that does not read is told how many events it
//! missed, at the place where it missed them. Invariant: no subscriber holds up another client. Events leave
//! at the end of the turn. Other nodes get the events by [`feeds`](super::feeds).

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use futures::FutureExt;
use futures::channel::oneshot;
use plasmon::wire::{MAX_IDS, Reply};

use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::net::frame::Envelope;
use crate::net::network::Network;
use crate::object::Happening;
use crate::sessions::Sessions;
use crate::sessions::feeds::Feeds;
use crate::sessions::queue::Queue;
use crate::store::Store;

/// Maximum number of frames for one subscriber in a turn.
const TURN_FRAMES: usize = 16;

/// One client's subscription.
struct Subscription {
    request: u64,
    queue: Queue,
    /// Tasks that wait until the client has read its replies. Dropping these senders ends their waits.
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

    /// Begins a client's subscription. A former one of the client ends.
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
        // Events that happened before come before a further look at the table.
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

    /// Hands new events to all subscriptions and feeds.
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

    /// Sends subscribers their events. Returns whether one of them has more to hear at once.
    pub(crate) fn tell(&self) -> bool {
        self.note();
        let mut subscriptions = self.by_client.borrow_mut();
        if subscriptions.is_empty() && self.feeds.is_empty() {
            // No subscriber is left, so events need not be noted any more.
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
