//! *relayed-read*: an object goes to many nodes at once. Each node reads from another node the bytes that
//! this one has so far, so all links are busy at the same time. This is the child's side;
//! [`relay`](super::relay) is the parent's. Owns [`Feeds`]. Engine thread only.
//!
//! A node that was ordered to have an object asks its *parent* with a fetch of the stage *relayed*. A
//! parent that has the object offers it as always. A parent that is about to have it offers the memory into
//! which it reads the object, and reports repeatedly how far it has come. The child reads those bytes, and
//! passes them on itself. A parent that gives up says so, and the child then fetches the object like any
//! other.
//!
//! Invariant: a node seals what it read only after its parent has said that it has sealed. Until then the
//! bytes may belong to an attempt that fails, and the memory may be used for something else.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use plasmon::{NodeId, UsedProtocol};
use tokio::sync::Notify;

use super::failure::{Failure, STALLED};
use super::landing::Landing;
use super::lease::Lease;
use super::pieces::cut;
use super::reading::{Here, Offer, in_window};
use super::record::Trace;
use super::relay::Passer;
use super::rooms::ONE_MESSAGE_BYTES;
use crate::kernel::Kernel;
use crate::kernel::random::HashMap;
use crate::memory::Piece;
use crate::net::calls::Call;
use crate::net::frame::{Envelope, Message, Passing, Stage};
use crate::transfer::Transfer;

/// How long a parent may take until it has memory to read from.
const OFFER_PATIENCE: Duration = Duration::from_secs(15);
/// How long a parent may report no progress. The parent may be waiting for its own parent.
const PASSED_PATIENCE: Duration = Duration::from_secs(2 * STALLED.as_secs());

/// The reports of parents.
pub(super) struct Feeds {
    kernel: Rc<Kernel>,
    /// How far each parent has come, by the parent and the request.
    by_parent: RefCell<HashMap<(NodeId, u64), Rc<Reported>>>,
}

/// Report of a parent. Tasks that wait for more bytes are woken in the order of waiting, unlike with
/// `tokio::sync::watch`, whose order is random.
struct Reported {
    feed: Cell<Feed>,
    changed: Notify,
}

impl Reported {
    fn set(&self, feed: Feed) {
        self.feed.set(feed);
        self.changed.notify_waiters();
    }
}

/// The progress of a parent.
#[derive(Debug, Clone, Copy)]
struct Feed {
    bytes: u64,
    state: Passing,
}

/// The reports of one parent. They are no longer taken when this value is dropped.
struct Following {
    feeds: Rc<Feeds>,
    key: (NodeId, u64),
    reported: Rc<Reported>,
}

impl Feeds {
    pub(super) fn new(kernel: &Rc<Kernel>) -> Self {
        Self { kernel: Rc::clone(kernel), by_parent: RefCell::default() }
    }

    /// Takes a parent's report of its progress.
    pub(super) fn report(&self, from: NodeId, request: u64, bytes: u64, state: Passing) {
        if let Some(reported) = self.by_parent.borrow().get(&(from, request)) {
            let feed = reported.feed.get();
            // The end that a parent reports is final.
            if feed.state == Passing::Under {
                reported.set(Feed { bytes: feed.bytes.max(bytes), state });
            }
        }
    }

    /// Ends the feeds of parents that have gone.
    pub(super) fn abandon(&self, gone: &[NodeId]) {
        for ((parent, _), reported) in self.by_parent.borrow().iter() {
            if gone.contains(parent) {
                reported.set(Feed { state: Passing::Failed, ..reported.feed.get() });
            }
        }
    }
}

impl Following {
    fn begin(feeds: &Rc<Feeds>, parent: NodeId, request: u64) -> Self {
        let feed = Cell::new(Feed { bytes: 0, state: Passing::Under });
        let reported = Rc::new(Reported { feed, changed: Notify::new() });
        feeds.by_parent.borrow_mut().insert((parent, request), Rc::clone(&reported));
        Self { feeds: Rc::clone(feeds), key: (parent, request), reported }
    }

    /// Waits until the parent has the first `bytes` bytes.
    async fn has(&self, bytes: u64) -> Result<(), Failure> {
        self.until(|feed| feed.bytes >= bytes || feed.state == Passing::Sealed).await
    }

    async fn is_sealed(&self) -> Result<(), Failure> {
        self.until(|feed| feed.state == Passing::Sealed).await
    }

    async fn until(&self, enough: impl Fn(&Feed) -> bool) -> Result<(), Failure> {
        let gave_up = || Failure::Holder("it gave up what it was passing on".into());
        loop {
            let changed = self.reported.changed.notified();
            let seen = self.reported.feed.get();
            match seen.state {
                Passing::Failed => return Err(gave_up()),
                _ if enough(&seen) => return Ok(()),
                _ => {}
            }
            let due = Some(self.feeds.kernel.clock.now() + PASSED_PATIENCE);
            if self.feeds.kernel.clock.bounded(due, changed).await.is_none() {
                return Err(Failure::Holder(format!("it passed nothing on for {PASSED_PATIENCE:?}")));
            }
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.feeds.by_parent.borrow_mut().remove(&self.key);
    }
}

impl Transfer {
    /// Reads an object from a node that has it or is about to have it.
    pub(super) async fn relayed(self: &Rc<Self>, parent: NodeId, trace: &mut Trace) -> Result<(), Failure> {
        let mut call = Call::open(&self.network, Some(parent));
        let following = Following::begin(&self.feeds, parent, call.request());
        let (room, wish) = self.wish(call.request(), ONE_MESSAGE_BYTES);
        let asked_at = self.kernel.clock.now();
        let (id, stage) = (trace.id, Stage::Relayed);
        let fetch = Message::Fetch { id, life: 0, stage, wish, others: Vec::new() };
        if !call.send(parent, trace.user, fetch) {
            return Err(Failure::gone());
        }
        let answer = self.kernel.clock.bounded(Some(asked_at + OFFER_PATIENCE), call.answer()).await;
        let answer = answer
            .ok_or_else(|| Failure::Holder(format!("it did not offer it within {OFFER_PATIENCE:?}")))?;
        let Envelope { from, request, message, .. } = answer.ok_or_else(Failure::gone)?;
        match message {
            Message::Offer { head, lease_ms, pieces, .. } => {
                trace.answered(from, UsedProtocol::RelayedRead, head.len(), "it goes to many nodes at once");
                let lease = Lease::new(&self.leases, from, request, lease_ms, asked_at);
                self.take_passing(Offer { head, pieces, lease }, &following, trace).await
            }
            Message::Eager { head, bytes } => {
                trace.answered(from, UsedProtocol::Eager, head.len(), "it fits a message");
                let mut pieces = room.pieces_of(from);
                pieces.push(bytes);
                self.take_eager(head, &pieces, trace).await
            }
            Message::Stream { head, lease_ms } => {
                let lease = Lease::new(&self.leases, from, request, lease_ms, asked_at);
                self.take_stream(head, lease, trace).await
            }
            Message::Refused { error } => Err(Failure::Holder(error.message().to_owned())),
            other => Err(Failure::Holder(format!("an answer of the wrong kind: {other:?}"))),
        }
    }

    /// Reads a parent's bytes as they come, and passes them on.
    async fn take_passing(
        self: &Rc<Self>,
        offer: Offer,
        following: &Following,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        offer.check(trace.id)?;
        let (landing, passer) = offer.lease.during(self.read_passing(&offer, following, trace)).await?;
        offer.lease.check()?;
        trace.moved();
        self.records.count_rendezvous(&offer.head);
        self.land(offer.head, landing, &trace.wanted).await?;
        if let Some(passer) = passer {
            passer.seal();
        }
        Ok(())
    }

    async fn read_passing(
        self: &Rc<Self>,
        offer: &Offer,
        following: &Following,
        trace: &mut Trace,
    ) -> Result<(Rc<Landing>, Option<Passer>), Failure> {
        let _slot = self.slots.take(offer.lease.holder).await;
        let landing = self.landing(&offer.head, &trace.target, &trace.wanted).await?;
        trace.allocated();
        let passer = Passer::begin(&self.relays, &offer.head, &landing);
        let here = Here { landing: &landing, arrived: &trace.arrived() };
        let plan = self.tuner.choose(offer.lease.holder, 0).plan;
        let pieces: Vec<_> = cut(landing.pieces()).collect();
        let prefix = RefCell::new(Prefix::new(&pieces));
        let read = |(number, (at, into)): (usize, (u64, Piece))| {
            let (passer, prefix) = (&passer, &prefix);
            async move {
                following.has(at + into.len).await?;
                let reads = self.read_piece(offer, (at, into), plan.chunk, here).await?;
                if let (Some(bytes), Some(passer)) = (prefix.borrow_mut().done(number), passer) {
                    passer.advance(bytes);
                }
                Ok(reads)
            }
        };
        trace.read(in_window(pieces.into_iter().enumerate().map(read), plan.window).await?);
        following.is_sealed().await?;
        Ok((landing, passer))
    }
}

/// Tracks how many bytes of an object are there from its beginning on, although its pieces come in any order.
struct Prefix {
    ends: Vec<u64>,
    done: Vec<bool>,
    first: usize,
}

impl Prefix {
    fn new(pieces: &[(u64, Piece)]) -> Self {
        let ends: Vec<_> = pieces.iter().map(|(at, piece)| at + piece.len).collect();
        Self { done: vec![false; ends.len()], ends, first: 0 }
    }

    /// Notes that a piece is there. Returns the length of the complete beginning if that has grown.
    fn done(&mut self, number: usize) -> Option<u64> {
        self.done[number] = true;
        let before = self.first;
        while self.done.get(self.first) == Some(&true) {
            self.first += 1;
        }
        (self.first > before).then(|| self.ends[self.first - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_is_what_is_there_from_the_beginning() {
        let piece = |len| Piece { segment: 0, offset: 0, len };
        let mut prefix = Prefix::new(&[(0, piece(10)), (10, piece(10)), (20, piece(5))]);
        assert_eq!(prefix.done(1), None);
        assert_eq!(prefix.done(0), Some(20));
        assert_eq!(prefix.done(2), Some(25));
    }
}
