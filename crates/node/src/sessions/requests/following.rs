//! Subscriptions to the whole cluster: the events of this node, and a feed of every other member.
//!
//! Owns no state but the tasks of subscriptions. Engine thread only. A feed is a series of questions to one
//! node ([`feeds`](crate::sessions::feeds)). The next question leaves when the subscriber was sent the answer
//! to the last and is not behind with reading. So the events for a slow subscriber wait where they happened.
//! Meanwhile the node is asked for no events, which keeps the feed.
//!
//! Invariants: the events of a node come in order. Where events may be missing, the subscriber is told a gap
//! of that node: when the node is not heard any more, and before it is heard again or for the first time,
//! unless it was heard from the beginning.

use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, pending, select};
use futures::stream::{FuturesUnordered, StreamExt};
use plasmon::wire::{Event, Reply};
use plasmon::{Error, ErrorKind, NodeId};
use tracing::debug;

use super::Requests;
use crate::kernel::ClientKey;
use crate::kernel::random::HashSet;
use crate::net::frame::{Envelope, MAX_ENTRIES, Message, ask};
use crate::net::network::Network;
use crate::service::Answer;
use crate::sessions::feeds::MAX_FOLLOWERS;

/// Time within which a node has to answer a question for events. It holds the question for some seconds if
/// there are none.
const EVENTS_PATIENCE: Duration = Duration::from_secs(10);
/// The pause before a node whose feed has ended is asked for another.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause after an answer without events, so that no node keeps this one busy.
const QUIET_PAUSE: Duration = Duration::from_millis(5);
/// Interval of the questions that keep a feed whose subscriber is behind.
const KEEP_INTERVAL: Duration = Duration::from_secs(10);
/// The weight of a subscription to the whole cluster, in objects.
const FOLLOWING_WEIGHT: usize = 64;

/// A client that has subscribed to the whole cluster.
#[derive(Clone, Copy)]
struct Subscriber {
    client: ClientKey,
    request: u64,
    user: u32,
}

/// This node's end of a feed. When it is dropped, the other end is told.
struct Feeding<'a> {
    network: &'a Network,
    node: NodeId,
    feed: u64,
}

impl Drop for Feeding<'_> {
    fn drop(&mut self) {
        self.network.tell(self.node, Message::Unwatch { feed: self.feed });
    }
}

impl Requests {
    /// Begins a client's subscription to this node, or to all nodes.
    pub(super) fn subscribe(self: &Rc<Self>, client: ClientKey, request: u64, cluster: bool) -> Answer {
        if !cluster {
            self.subscriptions.subscribe(client, request);
            return Answer::Silent;
        }
        if self.subscriptions.has(client) {
            let text = "this connection has a subscription already: connect again for another";
            return Answer::now(Err(Error::new(ErrorKind::Invalid, text)));
        }
        // Every subscription to the whole cluster holds the count as well.
        let counted = Rc::clone(&self.followers);
        if Rc::strong_count(&counted) > MAX_FOLLOWERS + 1 {
            let text = format!(
                "node {} has {MAX_FOLLOWERS} subscriptions to the whole cluster, and takes no more: close \
                 one, or subscribe at another node",
                self.kernel.node
            );
            return Answer::now(Err(Error::new(ErrorKind::Busy, text)));
        }
        self.subscriptions.subscribe(client, request);
        let user = self.sessions.client(client, |client| client.uid);
        let following = Rc::clone(self).follow_all(Subscriber { client, request, user });
        self.sessions.wait(client, request, FOLLOWING_WEIGHT, async move {
            following.await;
            drop(counted);
        });
        Answer::Silent
    }

    /// Takes another node's question for events, or refuses it.
    pub(super) fn on_watch(&self, asked: Envelope, feed: u64, begins: bool, most: u32) {
        if begins && self.cluster.withholds() {
            let text = format!("node {} gives nobody its objects at the moment", self.kernel.node);
            return self
                .network
                .answer(&asked, Message::Refused { error: Error::new(ErrorKind::Busy, text) });
        }
        self.subscriptions.on_watch(asked, feed, begins, most);
    }

    /// Tells a subscriber the events of all other members, as they come and go.
    async fn follow_all(self: Rc<Self>, subscriber: Subscriber) {
        let mut followed = HashSet::default();
        // A feed that never ends keeps the list of the others from being at its end.
        let mut feeds = FuturesUnordered::from_iter([pending().boxed_local()]);
        let mut first = true;
        loop {
            let changed = self.cluster.next_view();
            for node in self.cluster.others(&[self.kernel.node]) {
                if followed.insert(node) {
                    feeds.push(Rc::clone(&self).follow(subscriber, node, first).boxed_local());
                }
            }
            first = false;
            if let Either::Right((Some(gone), _)) = select(changed, feeds.next()).await {
                followed.remove(&gone);
            }
        }
    }

    /// Tells a subscriber the events of a node for as long as it is a member; returns the node. With `first`
    /// the subscriber hears the node from the beginning, so no gap comes before the first event.
    async fn follow(self: Rc<Self>, subscriber: Subscriber, node: NodeId, first: bool) -> NodeId {
        let mut heard = first;
        loop {
            let Err(error) = self.feed(subscriber, node, &mut heard).await;
            debug!(%node, %error, "a feed of events has ended");
            if std::mem::take(&mut heard) {
                self.tell_gap(subscriber, node);
            }
            if !self.cluster.is_member(node) {
                return node;
            }
            self.kernel.clock.sleep(RETRY_PAUSE).await;
        }
    }

    /// Tells a subscriber the events of one feed. `heard` says whether the subscriber has heard the node
    /// without a gap.
    ///
    /// # Errors
    /// With what ended the feed.
    async fn feed(
        &self,
        subscriber: Subscriber,
        node: NodeId,
        heard: &mut bool,
    ) -> Result<Infallible, Error> {
        let Subscriber { client, user, .. } = subscriber;
        // A subscriber that reads nothing is not told of feeds that begin and end in the meantime.
        self.subscriptions.room(client).await;
        let feed = self.next_feed.replace(self.next_feed.get() + 1);
        let _feeding = Feeding { network: &self.network, node, feed };
        let ask = |begins, most: usize| {
            let question = ask::Watch { feed, begins, most: most as u32 };
            self.network.ask_held(node, user, question, EVENTS_PATIENCE)
        };
        let mut answer = ask(true, MAX_ENTRIES).await?;
        if !std::mem::replace(heard, true) {
            self.tell_gap(subscriber, node);
        }
        loop {
            match answer.events.is_empty() {
                true => self.kernel.clock.sleep(QUIET_PAUSE).await,
                false => self.tell_events(subscriber, node, answer.events),
            }
            let mut room = pin!(self.subscriptions.room(client));
            let next_keep = || Some(self.kernel.clock.now() + KEEP_INTERVAL);
            while self.kernel.clock.bounded(next_keep(), room.as_mut()).await.is_none() {
                ask(false, 0).await?;
            }
            answer = ask(false, MAX_ENTRIES).await?;
        }
    }

    fn tell_gap(&self, subscriber: Subscriber, node: NodeId) {
        self.tell_events(subscriber, node, vec![Event::Gap { missed: 0 }]);
    }

    fn tell_events(&self, Subscriber { client, request, .. }: Subscriber, node: NodeId, events: Vec<Event>) {
        self.sessions.reply(client, request, &Reply::Events { node, events });
    }
}
