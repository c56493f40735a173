//! Feeds: this node's events for other nodes, whose clients have subscribed to the whole cluster.
//!
//! Owns the feeds. Engine thread only. A feed is for one user and begins with the objects that are there. The
//! node at its other end asks for every batch, so it is sent no more than it has room for. A feed ends when
//! that node says so, is gone, or has not asked for [`LEASE`]; no feed lives for ever. Invariant: a node
//! reaches no feeds but its own, which keep [`MAX_KEPT`] events together.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::{Error, ErrorKind, NodeId};

use crate::kernel::random::HashMap;
use crate::net::frame::{Envelope, FRAME_MAX_BYTES, HEADER_LEN, MAX_ENTRIES, Message};
use crate::net::network::Network;
use crate::object::{Happening, Table};
use crate::sessions::queue::{EVENT_BYTES, MAX_QUEUED_EVENTS, Queue};
use crate::store::Store;

/// Maximum number of subscriptions to the whole cluster that the clients of a node have.
pub(super) const MAX_FOLLOWERS: usize = 64;
/// Maximum number of feeds of one node, with those that the node may have left behind.
const MAX_FEEDS: usize = 2 * MAX_FOLLOWERS;
/// Maximum number of events that all feeds of one node keep.
const MAX_KEPT: usize = 4 * MAX_QUEUED_EVENTS;
/// Number of bytes for the events in a frame.
const BATCH_BYTES: usize = FRAME_MAX_BYTES - HEADER_LEN - EVENT_BYTES;
/// Time for which a question waits for an event, before it is answered without any.
const HOLD: Duration = Duration::from_secs(2);
/// Time for which a feed lives without a question.
const LEASE: Duration = Duration::from_secs(30);

/// The events of which one user of another node is still to be told.
struct Feed {
    queue: Queue,
    /// The question that waits for events, and the number of events that it takes.
    asked: Option<(Envelope, usize)>,
    /// Time at which the feed was last asked for, or answered.
    since: Instant,
}

/// The feeds: for each node that has asked for feeds, by the numbers that the node has given them.
pub(super) struct Feeds {
    store: Rc<Store>,
    network: Rc<Network>,
    askers: RefCell<HashMap<NodeId, HashMap<u64, Feed>>>,
}

impl Feeds {
    pub(super) fn new(store: &Rc<Store>, network: &Rc<Network>) -> Self {
        Self { store: Rc::clone(store), network: Rc::clone(network), askers: RefCell::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.askers.borrow().is_empty()
    }

    /// Takes a question for at most `most` events of a feed, which the question may begin. It is answered
    /// when there are events, or at once if `most` is 0.
    pub(super) fn ask(&self, asked: Envelope, number: u64, begins: bool, most: usize) {
        let mut askers = self.askers.borrow_mut();
        let feeds = askers.entry(asked.from).or_default();
        let since = self.store.kernel.clock.now();
        if begins {
            if feeds.len() >= MAX_FEEDS && !feeds.contains_key(&number) {
                let text = format!("node {} has {MAX_FEEDS} feeds of events here: end some", asked.from);
                return self.refuse(&asked, ErrorKind::Busy, text);
            }
            self.store.objects.borrow_mut().happenings.get_or_insert_default();
            feeds.insert(number, Feed { queue: Queue::new(asked.user), asked: None, since });
        }
        match feeds.get_mut(&number).filter(|feed| feed.queue.is_of(asked.user)) {
            Some(feed) => {
                feed.since = since;
                feed.asked = Some((asked, most.min(MAX_ENTRIES)));
                self.answer(feed, &self.store.objects.borrow());
            }
            None => {
                let text = format!("feed {number} of node {} has ended here: begin another", asked.from);
                self.refuse(&asked, ErrorKind::NotFound, text);
            }
        }
    }

    fn refuse(&self, asked: &Envelope, kind: ErrorKind, text: String) {
        self.network.answer(asked, Message::Refused { error: Error::new(kind, text) });
    }

    /// Answers the question of a feed, if there are events or the question wants none.
    fn answer(&self, feed: &mut Feed, objects: &Table) {
        let Feed { queue, asked, since } = feed;
        let Some((question, most)) = asked.take_if(|(_, most)| *most == 0 || !queue.is_idle()) else {
            return;
        };
        let events = queue.next(objects, most, BATCH_BYTES);
        *since = self.store.kernel.clock.now();
        self.network.answer(&question, Message::Watched { events });
    }

    /// Ends a feed, as the node at its other end says.
    pub(super) fn end(&self, node: NodeId, number: u64) {
        self.askers.borrow_mut().get_mut(&node).and_then(|feeds| feeds.remove(&number));
    }

    /// Ends the feeds of nodes that are gone.
    pub(super) fn on_gone(&self, gone: &[NodeId]) {
        self.askers.borrow_mut().retain(|node, _| !gone.contains(node));
    }

    /// Keeps events for the feeds, and answers the questions that wait for events.
    pub(super) fn note(&self, happened: &[Happening]) {
        for feeds in self.askers.borrow_mut().values_mut() {
            let mut kept: usize = feeds.values().map(|feed| feed.queue.kept()).sum();
            for feed in feeds.values_mut() {
                for one in happened {
                    kept += usize::from(feed.queue.note(one, kept < MAX_KEPT));
                }
                self.answer(feed, &self.store.objects.borrow());
            }
        }
    }

    /// Answers the questions that have waited for long, and ends the feeds that nobody asks for.
    pub(super) fn on_tick(&self, now: Instant) {
        self.askers.borrow_mut().retain(|_, feeds| {
            feeds.retain(|_, feed| {
                let quiet = now.saturating_duration_since(feed.since);
                if let Some((question, _)) = feed.asked.take_if(|_| quiet >= HOLD) {
                    self.network.answer(&question, Message::Watched { events: Vec::new() });
                    feed.since = now;
                }
                feed.asked.is_some() || quiet < LEASE
            });
            !feeds.is_empty()
        });
    }
}
