//! The requester's side of a transfer: fetching an object to this node. The state is that of
//! `Transfer`. Engine thread only.
//!
//! One fetch serves all gets of an object by one user, and has the highest class of these gets. The fetch
//! ends when the last of the gets stops waiting. A place where the object was before is tried first
//! ([`read_first`](super::read_first)). Otherwise the object's keepers are asked
//! ([`asking`](super::asking)). The answer of a holder decides by which protocol the object comes.
//!
//! Invariant: the bytes that are sealed here were the object's when its holder gave them, and are of a life
//! that has not ended since.

use std::borrow::Cow;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use futures::future::{FutureExt, Shared, WeakShared};
use plasmon::{Class, Error, ErrorKind, NodeId, ObjectId, Protocol, UsedProtocol};
use tracing::{debug, warn};

use super::asking::{ASK_AGAIN, Answered, Asking};
use super::comparing::Wanted;
use super::failure::Failure;
use super::landing::{Given, Target};
use super::lease::Lease;
use super::pieces::whole;
use super::reading::Offer;
use super::record::Trace;
use super::rooms::MAX_MESSAGES_BYTES;
use crate::directory::arrivals::{Lies, Noted, Place};
use crate::kernel::class;
use crate::net::calls::Call;
use crate::net::frame::{Envelope, Message, Stage, Withdrawal};
use crate::object::Role;
use crate::transfer::Transfer;

/// How long to wait before the keepers are asked again for an object that was deleted during its fetch.
const ASK_ANEW: Duration = Duration::from_millis(2);

pub(crate) type Outcome = Pin<Box<dyn Future<Output = Result<(), Error>>>>;
/// A fetch that other gets may join, whether one of its gets wants the bytes compared, and the
/// highest class of its gets.
pub(super) type SharedFetch = (WeakShared<Outcome>, Wanted, Rc<Cell<Class>>);

impl Transfer {
    /// Fetches an object for a user. The future ends when the object is sealed on this node, or with the
    /// reason why it will never be sealed here. The future has no deadline of its own. With `verify` the
    /// object is compared with the digest of its seal, whatever the setting of this node says.
    pub(crate) fn fetch(self: &Rc<Self>, id: ObjectId, user: u32, verify: bool) -> Shared<Outcome> {
        let transfer = Rc::clone(self);
        self.share_fetch(id, user, verify, move |wanted| {
            Box::pin(async move {
                let is_here =
                    || transfer.store.objects.borrow().get(&id).is_some_and(|one| !one.is_guarded());
                if transfer.batches.await_others(&id, user, &wanted).await && is_here() {
                    return Ok(());
                }
                fetch(transfer, id, user, (Target::Replica, wanted)).await
            })
        })
    }

    /// Returns the fetch of an object for a user that is under way, or begins one.
    fn share_fetch(
        &self,
        id: ObjectId,
        user: u32,
        verify: bool,
        begin: impl FnOnce(Wanted) -> Outcome,
    ) -> Shared<Outcome> {
        let mut fetches = self.fetches.borrow_mut();
        if let Some((fetch, wanted, class)) = fetches.get(&(id, user))
            && let Some(fetch) = fetch.upgrade()
            && fetch.peek().is_none()
        {
            wanted.set(wanted.get() || verify);
            class::raise(class);
            return fetch;
        }
        let wanted = Wanted::new(Cell::new(verify));
        let class = Rc::new(Cell::new(class::current()));
        let fetch: Outcome = Box::pin(class::working(Rc::clone(&class), begin(Rc::clone(&wanted))));
        let fetch = fetch.shared();
        fetches.insert((id, user), (fetch.downgrade().expect("not polled yet"), wanted, class));
        fetch
    }

    /// Fetches an object from a node that has it or is about to have it, or from where a node says
    /// that the object `lies`. If that fails, fetches the object from any other node. Gets of the
    /// object join the fetch.
    pub(crate) fn fetch_from(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
        from: NodeId,
        lies: Option<Rc<Lies>>,
    ) -> Shared<Outcome> {
        let transfer = Rc::clone(self);
        self.share_fetch(id, user, false, move |wanted| {
            Box::pin(async move {
                let target = (Target::Replica, wanted);
                let is_it = lies.as_ref().is_none_or(|lies| {
                    let (head, pieces, _) = &**lies;
                    head.id == id && whole(pieces) == Some(head.len()) && head.visible_to(user)
                });
                if is_it && matches!(transfer.kernel.config.protocol, Protocol::Auto | Protocol::Read) {
                    let mut trace = Trace::begin(&transfer.records, id, user, target.clone());
                    let _noted = Noted::begin(&transfer.directory.arrivals, id);
                    // The directory is not asked for the object, and has to know for a deletion
                    // that this node may get it.
                    transfer.directory.deletion.enroll(id).await?;
                    let why = "its holder said where it lies";
                    let brought = match &lies {
                        Some(lies) => transfer.read_first(from, lies, why, &mut trace).await,
                        None => transfer.relayed(from, &mut trace).await,
                    };
                    match brought {
                        Ok(()) => {
                            trace.finish();
                            return Ok(());
                        }
                        Err(Failure::Here(error)) => return Err(error),
                        Err(reason @ Failure::Damaged { .. }) => _ = trace.told_damaged(&reason),
                        Err(reason) => {
                            trace.failed();
                            debug!("object {id} does not come from node {from}: {reason}; trying elsewhere");
                        }
                    }
                }
                fetch(transfer, id, user, target).await
            })
        })
    }

    /// Whether objects can come from other nodes, also into memory that a client gives.
    pub(crate) fn lands_anywhere(&self) -> bool {
        !self.cluster.solo()
    }

    /// Fetches an object's data into memory that a client gives; `given` then has the length of the data.
    /// The future has no deadline of its own. When it fails or is dropped, [`Transfer::settle`] waits for
    /// the operations that it leaves under way. `verify` is that of [`Transfer::fetch`].
    ///
    /// # Errors
    /// The reason why the object will never come.
    pub(crate) async fn fetch_into(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
        given: &Rc<Given>,
        verify: bool,
    ) -> Result<(), Error> {
        let target = (Target::Given(Rc::clone(given)), Wanted::new(Cell::new(verify)));
        fetch(Rc::clone(self), id, user, target).await
    }

    /// Makes the error for an object of which no node has the bytes that were sealed, as far as the
    /// keepers know. `None` if there are further holders, or if no keeper says which nodes are holders.
    async fn damage(&self, trace: &Trace, damaged: &[NodeId], reason: &Failure) -> Option<Error> {
        let holders = self.directory.holders(trace.id, trace.user).await.ok()?;
        let is_left = |(node, _): &(NodeId, Role)| *node != self.kernel.node && !damaged.contains(node);
        if holders.is_empty() || holders.iter().any(is_left) {
            return None;
        }
        let gave: Vec<_> = damaged.iter().map(NodeId::to_string).collect();
        let text = format!(
            "object {} is damaged: node {} gave it, and {reason}; no other node holds it. Put it again",
            trace.id,
            gave.join(" and node ")
        );
        Some(Error::new(ErrorKind::Damaged, text).about(trace.id))
    }
}

/// Fetches an object from any holder, until it is here or it is certain that it will never be.
async fn fetch(
    transfer: Rc<Transfer>,
    id: ObjectId,
    user: u32,
    target: (Target, Wanted),
) -> Result<(), Error> {
    let mut trace = Trace::begin(&transfer.records, id, user, target);
    let mut noted = Noted::begin(&transfer.directory.arrivals, id);
    match transfer.fetch_known(&mut trace).await {
        None => {}
        Some(Ok(())) => {
            trace.finish();
            return Ok(());
        }
        Some(Err(error)) => return Err(error),
    }
    let mut asking = Asking::new(&transfer, id, user);
    // Nodes that have given other bytes than were sealed.
    let mut damaged = Vec::new();
    loop {
        let answered = asking.next().await;
        let from = answered.answer.from;
        match transfer.take(answered, &mut trace).await {
            Ok(()) => {
                trace.finish();
                return Ok(());
            }
            Err(Failure::Here(error)) => return Err(error),
            Err(Failure::Ended) => {
                debug!("object {id} was deleted while it was on its way here; asking anew");
                trace.failed();
                // Nothing of this fetch is under way: bytes that come from now on were requested
                // after the deletion.
                drop(noted);
                noted = Noted::begin(&transfer.directory.arrivals, id);
                transfer.kernel.clock.sleep(ASK_ANEW).await;
            }
            Err(reason @ Failure::Damaged { .. }) => {
                let is_alone = trace.told_damaged(&reason);
                transfer.settle_target(&trace.target).await?;
                if is_alone {
                    asking.avoid(from);
                    damaged.push(from);
                    if let Some(error) = transfer.damage(&trace, &damaged, &reason).await {
                        return Err(error);
                    }
                }
            }
            Err(Failure::Holder(reason)) => {
                trace.failed();
                transfer.settle_target(&trace.target).await?;
                warn!(object = %id, node = %from, %reason, "an object cannot be fetched; trying elsewhere");
                asking.avoid(from);
            }
        }
    }
}

impl Transfer {
    /// Fetches an object from where it was, if that is known; `None` when the directory is to be asked.
    async fn fetch_known(self: &Rc<Self>, trace: &mut Trace) -> Option<Result<(), Error>> {
        let (id, user) = (trace.id, trace.user);
        if self.kernel.config.protocol != Protocol::Auto
            || self.store.objects.borrow().creation(&id).is_some()
        {
            return None;
        }
        let place = self.directory.arrivals.known.borrow_mut().get(&id).cloned()?;
        if !self.cluster.kept_since(&id, place.epoch) {
            // The present keepers may not know that this node may have the object.
            self.directory.arrivals.known.borrow_mut().pop(&id);
            return None;
        }
        let tried = match &place.at {
            Some(at) if at.0.visible_to(user) => {
                self.read_first(place.holder, at, "it was fetched from there before", trace).await
            }
            _ => self.fetch_direct(place.holder, trace).await,
        };
        trace.stopped();
        match tried {
            Ok(()) => Some(Ok(())),
            Err(Failure::Here(error)) => Some(Err(error)),
            Err(Failure::Ended) => None,
            Err(reason @ Failure::Damaged { .. }) => {
                trace.told_damaged(&reason);
                self.directory.arrivals.known.borrow_mut().pop(&id);
                self.settle_target(&trace.target).await.err().map(Err)
            }
            Err(Failure::Holder(reason)) => {
                debug!("object {id} cannot be fetched from node {}, where it was: {reason}", place.holder);
                self.directory.arrivals.known.borrow_mut().pop(&id);
                self.settle_target(&trace.target).await.err().map(Err)
            }
        }
    }

    /// Asks a holder for an object without the directory.
    async fn fetch_direct(self: &Rc<Self>, holder: NodeId, trace: &mut Trace) -> Result<(), Failure> {
        let mut call = Call::open(&self.network, Some(holder));
        let asked_at = self.kernel.clock.now();
        let (room, wish) = self.wish(call.request(), MAX_MESSAGES_BYTES);
        let (id, others) = (trace.id, Vec::new());
        self.directory.news.release_now(holder);
        if !call.send(holder, trace.user, Message::Fetch { id, life: 0, stage: Stage::Direct, wish, others })
        {
            return Err(Failure::gone());
        }
        match self.kernel.clock.bounded(Some(asked_at + ASK_AGAIN), call.answer()).await {
            Some(Some(answer)) => {
                let pieces = room.pieces_of(answer.from);
                self.take(Answered { answer, pieces, asked_at }, trace).await
            }
            Some(None) => Err(Failure::gone()),
            None => Err(Failure::Holder(format!("it did not answer within {ASK_AGAIN:?}"))),
        }
    }

    /// Fetches an object as a holder's answer says.
    async fn take(self: &Rc<Self>, answered: Answered, trace: &mut Trace) -> Result<(), Failure> {
        let Answered { answer: Envelope { from, request, message, .. }, mut pieces, asked_at } = answered;
        let epoch = self.cluster.epoch();
        let lease = |lease_ms| Lease::new(&self.leases, from, request, lease_ms, asked_at);
        let protocol = self.kernel.config.protocol;
        let asked_for = || Cow::from(format!("{protocol} is asked for"));
        let (life, at) = match message {
            Message::Refused { error } if error.kind() == ErrorKind::NotFound => {
                return Err(Failure::Holder(error.message().to_owned()));
            }
            Message::Refused { error } => return Err(Failure::Here(error)),
            Message::Eager { head, bytes } => {
                let (name, why) = match protocol {
                    Protocol::Send => (UsedProtocol::Send, asked_for()),
                    _ if pieces.is_empty() => (UsedProtocol::Eager, "it fits a message".into()),
                    _ => (UsedProtocol::Eager, format!("it fits {} messages", pieces.len() + 1).into()),
                };
                trace.answered(from, name, head.len(), why);
                if !pieces.is_empty() {
                    self.expect_pushes(from, head.len());
                }
                let life = head.life;
                pieces.push(bytes);
                self.take_eager(head, &pieces, trace).await?;
                (life, None)
            }
            pushed @ Message::Pushed { .. } => {
                let here = self.pushed(from, request, &pushed)?;
                let Message::Pushed { head, pieces, stamp, .. } = pushed else {
                    return Err(Failure::gone());
                };
                trace.answered(
                    from,
                    UsedProtocol::Push,
                    head.len(),
                    "it fits the memory that this node keeps for it",
                );
                let life = head.life;
                let stamp = stamp.filter(|_| whole(&pieces) == Some(head.len()));
                let at = stamp.map(|stamp| Rc::new((head.clone(), pieces, stamp)));
                self.take_pushed(head, here, trace).await?;
                (life, at)
            }
            Message::Offer { head, lease_ms, pieces, stamp, others } => {
                self.expect_pushes(from, head.len());
                let why = match protocol {
                    Protocol::Auto => "it is too large for messages".into(),
                    _ => asked_for(),
                };
                trace.answered(from, UsedProtocol::Read, head.len(), why);
                let at = stamp.map(|stamp| Rc::new((head.clone(), pieces.clone(), stamp)));
                let life = head.life;
                let offer = Offer { head, pieces, lease: lease(lease_ms) };
                let others = if protocol == Protocol::Auto { others.as_slice() } else { &[] };
                self.take_offer(offer, others, trace).await?;
                (life, at)
            }
            Message::Stream { head, lease_ms } => {
                let life = head.life;
                self.take_stream(head, lease(lease_ms), trace).await?;
                (life, None)
            }
            Message::Registered { head, lease_ms, regions } => {
                trace.answered(from, UsedProtocol::ReadRegister, head.len(), asked_for());
                let life = head.life;
                self.take_registered(head, &regions, lease(lease_ms), trace).await?;
                (life, None)
            }
            Message::Dial { head, lease_ms, port, secret } => {
                trace.answered(from, UsedProtocol::Socket, head.len(), asked_for());
                let life = head.life;
                self.take_dialled(head, (port, secret), lease(lease_ms), trace).await?;
                (life, None)
            }
            other => return Err(Failure::Holder(format!("an answer of the wrong kind: {other:?}"))),
        };
        self.remember(trace.id, life, Place { holder: from, epoch, at });
        Ok(())
    }

    /// Remembers where a fetched object is, unless it was deleted meanwhile.
    pub(super) fn remember(&self, id: ObjectId, life: u64, place: Place) {
        if self.directory.arrivals.has_ended(&id, life) || self.directory.guards.covers(&id, life) {
            return;
        }
        let forgotten = self.directory.arrivals.known.borrow_mut().push(id, place);
        if let Some((forgotten, _)) = forgotten.filter(|(forgotten, _)| *forgotten != id)
            && self.store.objects.borrow().get(&forgotten).is_none()
        {
            // The object's keepers need not remember this node any more.
            self.store.unpublish(forgotten, Withdrawal::Evicted);
        }
    }
}
