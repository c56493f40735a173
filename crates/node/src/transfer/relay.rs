//! *relayed-read*: an object goes to many nodes at once, each reading from another what that has got so far, so that all
//! links are busy at the same time. Engine thread only.
//!
//! A node that was ordered to asks its *parent* with a fetch of the stage *relayed*. One that has the object offers it as
//! always. One that is about to have it offers the memory it is being read into, as soon as there is some, and says again
//! and again how many bytes from the beginning have come (*passed*); the child reads those, and passes them on itself.
//! Nobody seals what he read before his parent says that it has sealed: until then the bytes may be those of an attempt
//! that fails, and the memory may become something else's. A parent that gives up says so, and the child fetches the
//! object as anybody would.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::{Either, Shared, select, try_join_all};
use plasmon::{NodeId, ObjectId, Protocol};
use tokio::sync::watch;
use tracing::debug;

use super::chunks::chunks;
use super::fetch::{Outcome, fetch};
use super::landing::{Landing, Target};
use super::lease::{Kept, LEASE_MS, Lease, Owed};
use super::record::Trace;
use super::rendezvous::{Here, Offer, part};
use super::{Failure, STALLED};
use crate::cluster::{Call, Envelope, Message, Passing, Stage};
use crate::engine::Core;
use crate::memory::{Piece, Run};
use crate::object::{Head, Pin};

/// How long a node that was asked for an object may be about to be ordered to have it.
const EXPECTED: Duration = Duration::from_secs(10);
/// How long a parent may take until it has memory to read from.
const OFFERED: Duration = Duration::from_secs(15);
/// Nodes that may wait for one object here.
const WAITING: usize = 4096;
/// Bytes that go from node to node at a time.
const PIECE: u64 = 1 << 20;

/// Objects that this node passes on while it reads them, and what it reads from others that do.
#[derive(Default)]
pub(super) struct Relays {
    relays: RefCell<HashMap<ObjectId, Relay>>,
    feeds: RefCell<HashMap<(NodeId, u64), watch::Sender<Feed>>>,
}

/// An object that others are to read from this node.
struct Relay {
    /// Where it is being read into, once it is.
    arrival: Option<Arrival>,
    /// Those who asked before that.
    waiting: Vec<Envelope>,
    /// When they are told that nothing will come.
    until: Instant,
}

struct Arrival {
    head: Head,
    run: Run,
    /// Bytes from the beginning that are there.
    bytes: u64,
    readers: Vec<(NodeId, u64)>,
}

/// How far a parent has come.
#[derive(Debug, Clone, Copy)]
struct Feed {
    bytes: u64,
    state: Passing,
}

impl Relays {
    /// Those who waited for too long.
    fn overdue(&self, now: Instant) -> Vec<Envelope> {
        let mut overdue = Vec::new();
        self.relays.borrow_mut().retain(|_, relay| {
            let stays = relay.arrival.is_some() || relay.until > now;
            if !stays {
                overdue.append(&mut relay.waiting);
            }
            stays
        });
        overdue
    }
}

/// An object that is being passed on. Its end without a seal is told to those who read it.
struct Passer {
    core: Rc<Core>,
    id: ObjectId,
}

impl Passer {
    /// Lets those who wait read what comes.
    fn begin(core: &Rc<Core>, head: &Head, landing: &Landing) -> Option<Self> {
        let run = landing.run()?;
        let mut relays = core.transfer.relays.relays.borrow_mut();
        let relay = relays.entry(head.id).or_insert_with(|| Relay::expected(core.clock.now()));
        if relay.arrival.is_some() {
            // It comes here twice, and is passed on once.
            return None;
        }
        relay.arrival = Some(Arrival { head: head.clone(), run, bytes: 0, readers: Vec::new() });
        let waiting = std::mem::take(&mut relay.waiting);
        drop(relays);
        waiting.iter().for_each(|asked| core.offer_passing(asked, head.id));
        Some(Self { core: Rc::clone(core), id: head.id })
    }

    /// So many bytes from the beginning are there.
    fn advance(&self, bytes: u64) {
        let mut relays = self.core.transfer.relays.relays.borrow_mut();
        let Some(arrival) = relays.get_mut(&self.id).and_then(|relay| relay.arrival.as_mut()) else { return };
        arrival.bytes = bytes;
        for (reader, request) in &arrival.readers {
            let passed = Message::Passed { request: *request, bytes, state: Passing::Under };
            self.core.tell(*reader, passed);
        }
    }

    /// It is sealed: who reads it reads an object from now on, if it is where it was read into.
    fn seal(self) {
        let core = Rc::clone(&self.core);
        let replica = core.objects.borrow().get(&self.id).cloned();
        let Some(arrival) = self.take() else { return };
        let there = replica.and_then(|replica| Pin::new(&replica));
        let there = there.filter(|pin| {
            let run = pin.run();
            (run.offset(), run.len()) == (arrival.run.offset(), arrival.run.len())
        });
        core.end_passing(&arrival, there.as_ref());
    }

    fn take(&self) -> Option<Arrival> {
        self.core.transfer.relays.relays.borrow_mut().remove(&self.id)?.arrival
    }
}

impl Drop for Passer {
    fn drop(&mut self) {
        if let Some(arrival) = self.take() {
            self.core.end_passing(&arrival, None);
        }
    }
}

impl Relay {
    fn expected(now: Instant) -> Self {
        Self { arrival: None, waiting: Vec::new(), until: now + EXPECTED }
    }
}

/// What comes of a parent, until it is dropped.
struct Following {
    core: Rc<Core>,
    key: (NodeId, u64),
    feed: watch::Receiver<Feed>,
}

impl Following {
    fn begin(core: &Rc<Core>, parent: NodeId, request: u64) -> Self {
        let (sender, feed) = watch::channel(Feed { bytes: 0, state: Passing::Under });
        core.transfer.relays.feeds.borrow_mut().insert((parent, request), sender);
        Self { core: Rc::clone(core), key: (parent, request), feed }
    }

    /// Waits until the parent has so many bytes.
    async fn has(&self, bytes: u64) -> Result<(), Failure> {
        self.until(|feed| feed.bytes >= bytes || feed.state == Passing::Sealed).await
    }

    async fn is_sealed(&self) -> Result<(), Failure> {
        self.until(|feed| feed.state == Passing::Sealed).await
    }

    async fn until(&self, enough: impl Fn(&Feed) -> bool) -> Result<(), Failure> {
        let gave_up = || Failure::Holder("it gave up what it was passing on".into());
        let mut feed = self.feed.clone();
        loop {
            let seen = *feed.borrow_and_update();
            match seen.state {
                Passing::Failed => return Err(gave_up()),
                _ if enough(&seen) => return Ok(()),
                _ => {}
            }
            let due = Some(self.core.clock.now() + 2 * STALLED);
            match self.core.clock.bounded(due, feed.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) => return Err(gave_up()),
                None => return Err(Failure::Holder(format!("it passed nothing on for {:?}", 2 * STALLED))),
            }
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.core.transfer.relays.feeds.borrow_mut().remove(&self.key);
    }
}

impl Core {
    /// Brings an object here from a node that has it, or is about to, and from any other if that fails. Gets of the
    /// object join it.
    pub(crate) fn fetch_from(self: &Rc<Self>, id: ObjectId, tenant: u32, parent: NodeId) -> Shared<Outcome> {
        let core = Rc::clone(self);
        self.share_fetch(id, tenant, move || {
            Box::pin(async move {
                if matches!(core.config.protocol, Protocol::Auto | Protocol::Read) {
                    let mut trace = Trace::begin(&core, id, tenant, &Target::Replica);
                    match core.relayed(id, tenant, parent, &mut trace).await {
                        Ok(()) => {
                            trace.finish();
                            return Ok(());
                        }
                        Err(Failure::Here(error)) => return Err(error),
                        Err(Failure::Holder(reason)) => {
                            trace.failed();
                            debug!(
                                "object {id} does not come from node {parent}: {reason}; trying elsewhere"
                            );
                        }
                    }
                }
                fetch(core, id, tenant, Target::Replica).await
            })
        })
    }

    /// Whether a long object is on its way here.
    pub(crate) fn moves_here(&self, id: &ObjectId, tenant: u32) -> bool {
        self.transfer.moving.borrow().contains_key(&(*id, tenant))
    }

    async fn relayed(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
        parent: NodeId,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        let gone = || Failure::Holder("it has left the cluster".into());
        let mut call = Call::open(self, Some(parent));
        let following = Following::begin(self, parent, call.request());
        let asked_at = self.clock.now();
        let fetch = Message::Fetch { id, stage: Stage::Relayed, avoid: Vec::new(), wish: self.wish() };
        if !call.send(parent, tenant, fetch) {
            return Err(gone());
        }
        let answer = self.clock.bounded(Some(asked_at + OFFERED), call.answer()).await;
        let answer =
            answer.ok_or_else(|| Failure::Holder(format!("it did not offer it within {OFFERED:?}")))?;
        let Envelope { from, request, message, .. } = answer.ok_or_else(gone)?;
        match message {
            Message::Offer { head, lease_ms, pieces, .. } => {
                trace.answered(from, "relayed-read", head.len(), "it goes to many nodes at once");
                let lease = Lease::new(self, from, request, lease_ms, asked_at);
                self.take_passing(id, Offer { head, pieces, lease }, &following, trace).await
            }
            Message::Eager { head, bytes } => {
                trace.answered(from, "eager", head.len(), "it fits a message");
                self.take_eager(id, head, &bytes, &Target::Replica, trace).await
            }
            Message::Refused { error } => Err(Failure::Holder(error.message().to_owned())),
            other => Err(Failure::Holder(format!("an answer of the wrong kind: {other:?}"))),
        }
    }

    /// Reads what a parent has, as it comes, and passes it on.
    async fn take_passing(
        self: &Rc<Self>,
        id: ObjectId,
        offer: Offer,
        following: &Following,
        trace: &mut Trace,
    ) -> Result<(), Failure> {
        offer.check(id)?;
        let (landing, passer) = {
            let reading = std::pin::pin!(self.read_passing(&offer, following, trace));
            match select(reading, std::pin::pin!(offer.lease.keep())).await {
                Either::Left((read, _)) => read?,
                Either::Right((failure, _)) => return Err(failure),
            }
        };
        offer.lease.check()?;
        trace.moved();
        self.count_rendezvous(&offer.head);
        let landed = self.land(&offer.head, landing, &Target::Replica);
        if let (Ok(()), Some(passer)) = (&landed, passer) {
            passer.seal();
        }
        landed
    }

    async fn read_passing(
        self: &Rc<Self>,
        offer: &Offer,
        following: &Following,
        trace: &mut Trace,
    ) -> Result<(Rc<Landing>, Option<Passer>), Failure> {
        let _slot = self.transfer.slots.acquire().await.expect("the semaphore is never closed");
        let landing = self.landing(&offer.head, &Target::Replica).await?;
        trace.allocated();
        let passer = Passer::begin(self, &offer.head, &landing);
        let here = Here { landing: &landing, arrived: &trace.arrived() };
        let holder = offer.lease.holder;
        let plan = self.choose_plan(holder, 0).plan;
        let work = work(landing.pieces());
        let (next, prefix) = (Cell::new(0), RefCell::new(Prefix::new(&work)));
        let lane = || async {
            let mut reads = 0;
            loop {
                let number = next.replace(next.get() + 1);
                let Some((at, into)) = work.get(number).copied() else { return Ok::<u64, Failure>(reads) };
                following.has(at + into.len).await?;
                for (from, into) in
                    chunks(&part(&offer.pieces, at, into.len), std::iter::once(into), plan.chunk)
                {
                    reads += 1;
                    self.read(holder, from, into, here).await?;
                }
                if let (Some(bytes), Some(passer)) = (prefix.borrow_mut().done(number), &passer) {
                    passer.advance(bytes);
                }
            }
        };
        let reads: u64 = try_join_all((0..plan.window).map(|_| lane())).await?.into_iter().sum();
        trace.read(reads);
        following.is_sealed().await?;
        Ok((landing, passer))
    }

    /// A node wants to read an object here that is not, or not yet.
    pub(super) fn relay_to(self: &Rc<Self>, asked: &Envelope, id: ObjectId) {
        let arrives = {
            let mut relays = self.transfer.relays.relays.borrow_mut();
            let relay = relays.entry(id).or_insert_with(|| Relay::expected(self.clock.now()));
            if relay.arrival.is_none() && relay.waiting.len() < WAITING {
                relay.waiting.push(asked.clone());
            }
            relay.arrival.is_some()
        };
        if arrives {
            self.offer_passing(asked, id);
        }
    }

    /// Offers memory that an object is being read into.
    fn offer_passing(&self, asked: &Envelope, id: ObjectId) {
        let mut relays = self.transfer.relays.relays.borrow_mut();
        let Some(arrival) = relays.get_mut(&id).and_then(|relay| relay.arrival.as_mut()) else { return };
        if !arrival.head.visible_to(asked.tenant) {
            let error = super::not_visible(id, asked.tenant);
            return self.answer(asked, Message::Refused { error });
        }
        let (head, bytes) = (arrival.head.clone(), arrival.bytes);
        self.count_served("relayed-read", &head);
        self.keep_for(asked, Kept::Passing(arrival.run.clone()), Owed::Nothing);
        arrival.readers.push((asked.reply_to, asked.request));
        let pieces = self.locate(&arrival.run);
        drop(relays);
        let others = Vec::new();
        self.answer(asked, Message::Offer { head, lease_ms: LEASE_MS, pieces, stamp: None, others });
        self.tell(asked.reply_to, Message::Passed { request: asked.request, bytes, state: Passing::Under });
    }

    /// Tells the readers of what was passed on that it is an object now, which they keep, or that it will be none.
    fn end_passing(&self, arrival: &Arrival, sealed: Option<&Pin>) {
        let bytes = arrival.run.len();
        let mut leases = self.transfer.leases.borrow_mut();
        for key @ (reader, request) in &arrival.readers {
            let state = match (sealed.and_then(|pin| Pin::new(pin.replica())), leases.get_mut(key)) {
                (Some(pin), Some(lease)) => {
                    lease.kept = Kept::Object(pin);
                    Passing::Sealed
                }
                _ => {
                    leases.remove(key);
                    Passing::Failed
                }
            };
            self.tell(*reader, Message::Passed { request: *request, bytes, state });
        }
    }

    /// What this node was ordered to have is here, or will not be: those who waited for it are told.
    pub(crate) fn serve_waiting(self: &Rc<Self>, id: ObjectId) {
        let waiting = {
            let mut relays = self.transfer.relays.relays.borrow_mut();
            match relays.get(&id) {
                Some(relay) if relay.arrival.is_none() => relays.remove(&id).map(|relay| relay.waiting),
                _ => None,
            }
        };
        self.serve_at_last(waiting.unwrap_or_default());
    }

    /// Answers those who have waited, with the object or without.
    fn serve_at_last(self: &Rc<Self>, waiting: Vec<Envelope>) {
        for asked in waiting {
            if let Message::Fetch { id, wish, avoid, .. } = asked.message.clone() {
                // What is not here by now is refused.
                let here = self.objects.borrow().get(&id).is_some();
                let stage = if here { Stage::Relayed } else { Stage::Direct };
                self.serve(
                    &Envelope { message: Message::Fetch { id, wish, avoid, stage }, ..asked },
                    id,
                    wish,
                    &[],
                );
            }
        }
    }

    /// Says that all of an object that was just offered is there.
    pub(super) fn pass_whole(&self, asked: &Envelope) {
        let passed = Message::Passed { request: asked.request, bytes: u64::MAX, state: Passing::Sealed };
        self.tell(asked.reply_to, passed);
    }

    /// A parent says how far it has come.
    pub(crate) fn take_passed(&self, from: NodeId, request: u64, bytes: u64, state: Passing) {
        if let Some(feed) = self.transfer.relays.feeds.borrow().get(&(from, request)) {
            feed.send_modify(|feed| {
                // It does not take back what it has said.
                if feed.state == Passing::Under {
                    *feed = Feed { bytes: feed.bytes.max(bytes), state };
                }
            });
        }
    }

    /// Parents that have gone pass nothing on.
    pub(crate) fn abandon_feeds(&self, gone: &[NodeId]) {
        for ((parent, _), feed) in self.transfer.relays.feeds.borrow().iter() {
            if gone.contains(parent) {
                feed.send_modify(|feed| feed.state = Passing::Failed);
            }
        }
    }

    /// Tells those who wait in vain; to be called now and then.
    pub(crate) fn tend_relays(self: &Rc<Self>) {
        let overdue = self.transfer.relays.overdue(self.clock.now());
        self.serve_at_last(overdue);
    }
}

/// An object's memory in pieces that go from node to node, each with where in the object it begins.
fn work(memory: Vec<Piece>) -> Vec<(u64, Piece)> {
    let mut work = Vec::new();
    let mut at = 0;
    for whole in memory {
        let mut done = 0;
        while done < whole.len {
            let len = PIECE.min(whole.len - done);
            work.push((at, Piece { offset: whole.offset + done, len, ..whole }));
            at += len;
            done += len;
        }
    }
    work
}

/// How much of an object is there from its beginning on, although its pieces come in any order.
struct Prefix {
    ends: Vec<u64>,
    done: Vec<bool>,
    first: usize,
}

impl Prefix {
    fn new(work: &[(u64, Piece)]) -> Self {
        let ends: Vec<_> = work.iter().map(|(at, piece)| at + piece.len).collect();
        Self { done: vec![false; ends.len()], ends, first: 0 }
    }

    /// A piece is there; says how many bytes are, if that are more now.
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
    fn pieces_make_up_the_object_and_cross_no_border() {
        let memory = [(1, 100, 2 * PIECE + 5), (2, 0, 10), (3, 7, PIECE)];
        let memory: Vec<_> =
            memory.into_iter().map(|(segment, offset, len)| Piece { segment, offset, len }).collect();
        let work = work(memory.clone());
        let mut at = 0;
        for (start, piece) in &work {
            assert_eq!(*start, at);
            assert!(piece.len > 0 && piece.len <= PIECE);
            let whole = memory.iter().find(|whole| whole.segment == piece.segment).expect("one of them");
            assert!(piece.offset >= whole.offset && piece.offset + piece.len <= whole.offset + whole.len);
            at += piece.len;
        }
        assert_eq!(at, 3 * PIECE + 15);
    }

    #[test]
    fn what_is_passed_on_is_what_is_there_from_the_beginning() {
        let piece = |len| Piece { segment: 0, offset: 0, len };
        let mut prefix = Prefix::new(&[(0, piece(10)), (10, piece(10)), (20, piece(5))]);
        assert_eq!(prefix.done(1), None);
        assert_eq!(prefix.done(0), Some(20));
        assert_eq!(prefix.done(2), Some(25));
    }
}
