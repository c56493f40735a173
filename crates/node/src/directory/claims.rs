//! Claims: of two nodes that create one id at the same time, one gets it.
//!
//! Owns [`Claims`]. Engine thread only. A node that creates an object under an id that others may know (a
//! name, or an id that the user chose) first claims the id at the first keeper of its shard. The keeper
//! grants the claim if it knows of no object and no other claim. An id drawn at random is not claimed and
//! costs no message. A claim costs no message either when this node is the keeper. A claim ends when the
//! object is published, when its node gives it up, or when its node dies.
//!
//! The members may change while a claim is held. Each node then claims again, at the new first keeper, the
//! ids that it is creating, and does not seal before the answer. A keeper that has just become the first
//! does not know the claims that were granted before. For a while it also asks the second keeper, which
//! usually was the first. One gap remains: an object is sealed under an older view than the other node's
//! claim, and its publication is still on its way. Then both objects are sealed, and readers get the one
//! that was published first.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{Either, select};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::asking::Asking;
use super::deletion::Deletion;
use super::table::Table;
use crate::kernel::Kernel;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::HashMap;
use crate::membership::Cluster;
use crate::membership::views::ViewChange;
use crate::net::calls::Call;
use crate::net::frame::{Envelope, Message, Verdict};
use crate::net::network::Network;
use crate::store::Store;

/// How long one request waits for an answer before the claim is made again.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a claim is repeated. This is longer than the time after which a dead keeper is removed.
const CLAIM_PATIENCE: Duration = Duration::from_secs(30);
/// How long a claim that was held before the view changed waits for a rival claim to be refused.
const RIVAL_PATIENCE: Duration = Duration::from_millis(2500);
/// The pause before a claim is made again.
const CLAIM_PAUSE: Duration = Duration::from_millis(10);

/// The claims that this node made, and the claims that it granted.
pub(crate) struct Claims {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    cluster: Rc<Cluster>,
    asking: Rc<Asking>,
    store: Rc<Store>,
    table: Rc<RefCell<Table>>,
    deletion: Rc<Deletion>,
    own: RefCell<HashMap<ObjectId, Own>>,
    made: Cell<u64>,
    granted: RefCell<HashMap<ObjectId, NodeId>>,
}

/// A claim that this node made.
struct Own {
    /// Number of the claim. An id may be claimed again after it was given up.
    number: u64,
    user: u32,
    state: State,
    /// Tasks that wait until the claim is answered.
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asking,
    /// The claim was held before, and another keeper has yet to learn of it.
    AskingAgain,
    Held,
    /// The claim is lost, because another node was first.
    Lost,
}

/// A claim that is withdrawn when this value is dropped, unless the claim is kept for a creation or
/// fulfilled by an object.
pub(crate) struct Claim {
    claims: Option<Rc<Claims>>,
    id: ObjectId,
}

impl Claim {
    /// Makes a claim of an id that nobody else knows. Such a claim needs no keeper.
    pub(crate) fn of_nobody(id: ObjectId) -> Self {
        Self { claims: None, id }
    }

    /// Keeps the claim until the creation ends.
    pub(crate) fn keep(mut self) {
        self.claims = None;
    }

    /// Ends the claim because the object is sealed.
    pub(crate) fn fulfil(mut self) {
        if let Some(claims) = self.claims.take() {
            claims.fulfil(&self.id);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(claims) = &self.claims {
            claims.release(&self.id);
        }
    }
}

impl Claims {
    pub(super) fn new(asking: &Rc<Asking>, deletion: &Rc<Deletion>) -> Self {
        Self {
            kernel: Rc::clone(&asking.kernel),
            network: Rc::clone(&asking.network),
            cluster: Rc::clone(&asking.cluster),
            asking: Rc::clone(asking),
            store: Rc::clone(&deletion.store),
            table: Rc::clone(&deletion.table),
            deletion: Rc::clone(deletion),
            own: RefCell::default(),
            made: Cell::default(),
            granted: RefCell::default(),
        }
    }

    /// Whether this node decides alone whether an id is taken.
    pub(crate) fn decides_here(&self, id: &ObjectId, now: Instant) -> bool {
        self.cluster.solo()
            || (self.cluster.keepers(id).first == self.kernel.node && !self.cluster.is_unsettled(id, now))
    }

    /// Number of ids that this node claims or has claimed, until their claims end.
    pub(crate) fn count(&self) -> usize {
        self.own.borrow().len()
    }

    /// Returns the node that this keeper lets create an object of this id.
    pub(crate) fn claimer(&self, id: &ObjectId) -> Option<NodeId> {
        self.granted.borrow().get(id).copied()
    }

    /// Returns why `asker` may not have an id; `None` if `asker` may have the id.
    fn against(&self, id: &ObjectId, asker: NodeId, user: u32) -> Option<Verdict> {
        if self.table.borrow_mut().knows(id, user) {
            return Some(Verdict::Exists);
        }
        if self.table.borrow_mut().doubts(id, user) {
            // The keeper knows soon whether the object exists.
            return Some(Verdict::NotKeeper);
        }
        if is_planted(Bug::ClaimGrantedTwice) {
            return None;
        }
        let granted = self.granted.borrow();
        granted.get(id).filter(|claimer| **claimer != asker).map(|_| Verdict::Creating)
    }

    /// Claims an id for a creation that waits at most `patience`; zero stands for the longest time.
    ///
    /// # Errors
    /// `Exists` when the id is taken, `TimedOut` when no keeper can be asked.
    pub(crate) async fn claim(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
        patience: Duration,
    ) -> Result<Claim, Error> {
        if self.cluster.solo() {
            return Ok(Claim::of_nobody(id));
        }
        let state = || self.own.borrow().get(&id).map(|own| own.state);
        while let Some(State::Asking) = state() {
            // The other claim may be refused, which makes the id free.
            self.answered(&id).await;
        }
        if state().is_some() {
            return Err(taken(id, "is being created by another client of this node"));
        }
        self.enter(id, user);
        let claim = Claim { claims: Some(Rc::clone(self)), id };
        let patience = if patience.is_zero() { CLAIM_PATIENCE } else { patience.min(CLAIM_PATIENCE) };
        self.ask_for(id, user, false, patience).await?;
        self.set(&id, State::Held);
        Ok(claim)
    }

    fn enter(&self, id: ObjectId, user: u32) {
        let number = self.made.get() + 1;
        self.made.set(number);
        let own = Own { number, user, state: State::Asking, waiting: Vec::new() };
        self.own.borrow_mut().insert(id, own);
    }

    /// Asks the first keeper until it has decided; if the first keeper changes, asks the new one. With
    /// `again` the claim was held before the view changed, and waits a while for a rival claim to end. This
    /// node may be the second keeper: then the first keeper asks it about the rival claim, which is refused.
    async fn ask_for(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
        again: bool,
        patience: Duration,
    ) -> Result<(), Error> {
        let begun = self.kernel.clock.now();
        let due = begun + patience;
        loop {
            let keeper = self.cluster.keepers(&id).first;
            let next_view = self.cluster.next_view();
            let verdict = if self.cluster.fenced() {
                // The members have to decide, and this node may soon be a member again.
                None
            } else if self.decides_here(&id, self.kernel.clock.now()) {
                Some(self.judge(&id, self.kernel.node, user))
            } else {
                let mut call = Call::open(&self.network, None);
                call.send(keeper, user, Message::Claim { id, probe: false });
                let until = Some(due.min(self.kernel.clock.now() + ANSWER_PATIENCE));
                match self.kernel.clock.bounded(until, select(std::pin::pin!(call.answer()), next_view)).await
                {
                    Some(Either::Left((Some(answer), _))) => match answer.message {
                        Message::Claimed { verdict } => {
                            // The keeper may know that a node with a former life of the id has gone.
                            self.cluster.note_epoch(answer.epoch);
                            Some(verdict)
                        }
                        _ => None,
                    },
                    _ => None,
                }
            };
            match verdict {
                // Another node has become the first keeper, and it has to know the claim.
                Some(Verdict::Granted) if self.cluster.keepers(&id).first != keeper => continue,
                Some(Verdict::Granted) => return Ok(()),
                Some(Verdict::Exists) => return Err(taken(id, "exists already")),
                Some(Verdict::Creating) if !again || self.kernel.clock.now() >= begun + RIVAL_PATIENCE => {
                    return Err(taken(id, "is being created on another node"));
                }
                Some(Verdict::Creating | Verdict::NotKeeper) | None => {}
            }
            if self.kernel.clock.now() >= due {
                let why = match self.cluster.fenced() {
                    true => "this node is not a member of its cluster at the moment".to_owned(),
                    false => format!(
                        "node {keeper}, which decides that, did not answer within {patience:?} and may have \
                         died"
                    ),
                };
                let text = format!(
                    "cannot create object {id}, since no keeper says whether the id is taken: {why}; try \
                     again, or leave id and name to the store"
                );
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            select(self.cluster.next_view(), std::pin::pin!(self.kernel.clock.sleep(CLAIM_PAUSE))).await;
        }
    }

    /// Decides about a claim as the first keeper.
    fn judge(&self, id: &ObjectId, asker: NodeId, user: u32) -> Verdict {
        let against = self.against(id, asker, user);
        let leaving = self.deletion.is_under_way(id) || self.table.borrow().is_leaving(id);
        if against.is_none()
            && (leaving || self.deletion.readable_until(id, self.kernel.clock.now()).is_some())
        {
            return Verdict::NotKeeper;
        }
        let mut granted = self.granted.borrow_mut();
        match against {
            None => {
                granted.insert(*id, asker);
                Verdict::Granted
            }
            Some(Verdict::Creating) => {
                drop(granted);
                self.affirm(id);
                Verdict::Creating
            }
            Some(other) => other,
        }
    }

    /// Asks the node that an id was granted to whether that node still creates the object. Its message
    /// that it gave up may have been lost, or have come before the claim was granted.
    fn affirm(&self, id: &ObjectId) {
        if let Some(claimer) = self.granted.borrow().get(id) {
            self.network.tell(*claimer, Message::Affirm { ids: vec![*id] });
        }
    }

    /// Answers another node's claim.
    pub(crate) fn on_claim(self: &Rc<Self>, asked: &Envelope, id: ObjectId, probe: bool) {
        let cluster = &self.cluster;
        let (asker, user) = (asked.reply_to, asked.user);
        let keepers = cluster.keepers(&id);
        let verdict = if probe {
            // The first keeper may not have been told yet what this node was creating before the view
            // changed.
            let again = self.own.borrow().get(&id).is_some_and(|own| own.state == State::AskingAgain);
            let own = asker != self.kernel.node && again;
            let verdict = self.against(&id, asker, user).or(own.then_some(Verdict::Creating));
            if verdict == Some(Verdict::Creating) {
                self.affirm(&id);
            }
            verdict.unwrap_or(Verdict::Granted)
        } else if keepers.first != self.kernel.node || cluster.epoch() < asked.epoch {
            Verdict::NotKeeper
        } else if cluster.is_unsettled(&id, self.kernel.clock.now()) {
            let (claims, asked) = (Rc::clone(self), asked.clone());
            self.kernel.spawn(async move { claims.judge_after_asking(&asked, id, keepers.second).await });
            return;
        } else {
            self.judge(&id, asker, user)
        };
        self.network.answer(asked, Message::Claimed { verdict });
    }

    /// Decides as a first keeper that may not know all claims: asks every member what objects it holds,
    /// and the second keeper what objects it was creating.
    async fn judge_after_asking(self: &Rc<Self>, asked: &Envelope, id: ObjectId, second: Option<NodeId>) {
        let (asker, user) = (asked.reply_to, asked.user);
        let held = self.asking.held_anywhere(&[id], user).await;
        if !self.cluster.has_sender(asked) {
            return;
        }
        let verdict = match held.as_deref() {
            Some([true]) => Verdict::Exists,
            Some(_) if self.cluster.keepers(&id).first == self.kernel.node => self.judge(&id, asker, user),
            _ => Verdict::NotKeeper,
        };
        match (verdict, second) {
            (Verdict::Granted, Some(second)) => {
                // The second keeper answers the asker.
                let probe = Message::Claim { id, probe: true };
                self.network.send(second, self.network.envelope(asked.request, asker, user, probe));
            }
            _ => self.network.answer(asked, Message::Claimed { verdict }),
        }
    }

    /// Takes note that another node no longer creates these ids.
    pub(crate) fn on_unclaim(&self, from: NodeId, ids: &[ObjectId]) {
        let mut granted = self.granted.borrow_mut();
        for id in ids {
            if granted.get(id) == Some(&from) {
                granted.remove(id);
            }
        }
    }

    /// Answers a keeper that asks whether this node still creates these ids.
    pub(crate) fn on_affirm(&self, from: NodeId, ids: &[ObjectId]) {
        let own = self.own.borrow();
        let ids: Vec<_> = ids.iter().filter(|id| !own.contains_key(id)).copied().collect();
        if !ids.is_empty() {
            self.network.tell(from, Message::Unclaim { ids });
        }
    }

    /// Takes note that another node was first with these ids.
    pub(crate) fn on_taken(&self, ids: &[ObjectId]) {
        ids.iter().for_each(|id| self.set(id, State::Lost));
    }

    /// Ends the claims of an id because its primary was published.
    pub(crate) fn published(&self, holder: NodeId, id: &ObjectId) {
        let claimer = self.granted.borrow_mut().remove(id);
        if let Some(claimer) = claimer.filter(|claimer| *claimer != holder) {
            self.network.tell(claimer, Message::Taken { ids: vec![*id] });
        }
    }

    fn set(&self, id: &ObjectId, state: State) {
        if let Some(own) = self.own.borrow_mut().get_mut(id) {
            if own.state != State::Lost {
                own.state = state;
            }
            // A waiter that has gone need not know.
            for waiting in own.waiting.drain(..) {
                let _ = waiting.send(());
            }
        }
    }

    /// Returns whether a creation may be sealed now; `None` while the claim is being made or made again.
    ///
    /// # Errors
    /// `Exists` when another node was first.
    pub(crate) fn holds(&self, id: &ObjectId) -> Option<Result<(), Error>> {
        match self.own.borrow().get(id).map(|own| own.state) {
            None | Some(State::Held) => Some(Ok(())),
            Some(State::Asking | State::AskingAgain) => None,
            Some(State::Lost) => Some(Err(taken(*id, "was created on another node meanwhile"))),
        }
    }

    /// Waits until the keeper has confirmed this node's claim of an id. Returns at once if no claim
    /// is being made.
    ///
    /// # Errors
    /// `Exists` when another node was first.
    pub(crate) async fn confirm(&self, id: &ObjectId) -> Result<(), Error> {
        loop {
            if let Some(holds) = self.holds(id) {
                return holds;
            }
            self.answered(id).await;
        }
    }

    /// Makes certain that a claim holds, right before the claim is used. A claim that was made while this
    /// node was alone is made again if there are other nodes now, because these do not know the claim.
    ///
    /// # Errors
    /// As [`Claims::claim`].
    pub(crate) async fn ascertain(
        self: &Rc<Self>,
        claim: Claim,
        user: u32,
        patience: Duration,
    ) -> Result<Claim, Error> {
        let is_known = claim.claims.is_some() || self.cluster.solo();
        let claim = if is_known { claim } else { self.claim(claim.id, user, patience).await? };
        self.confirm(&claim.id).await?;
        Ok(claim)
    }

    /// Waits until this node's claim of an id is answered or given up.
    async fn answered(&self, id: &ObjectId) {
        let (sender, answered) = oneshot::channel();
        if let Some(own) = self.own.borrow_mut().get_mut(id) {
            own.waiting.push(sender);
        }
        // A dropped sender means the same as an answer.
        let _ = answered.await;
    }

    /// Ends a claim because the object is sealed. The publication of the object tells the keeper.
    pub(crate) fn fulfil(&self, id: &ObjectId) {
        self.own.borrow_mut().remove(id);
    }

    /// Withdraws the claim of a creation that was given up.
    pub(crate) fn release(&self, id: &ObjectId) {
        if self.own.borrow_mut().remove(id).is_some() {
            let keeper = self.cluster.keepers(id).first;
            if keeper == self.kernel.node {
                self.on_unclaim(self.kernel.node, &[*id]);
            } else {
                self.network.tell(keeper, Message::Unclaim { ids: vec![*id] });
            }
        }
    }

    /// Follows a new view: forgets the claims of dead nodes and of shards that are no longer kept here,
    /// and makes this node's own claims again where their keeper does not know them.
    pub(crate) fn follow(self: &Rc<Self>, change: &ViewChange, was_solo: bool) {
        let cluster = &self.cluster;
        self.granted.borrow_mut().retain(|id, claimer| {
            change.alive.contains(claimer) && cluster.keepers(id).contains(self.kernel.node)
        });
        if was_solo {
            // No keeper was asked while this node was alone.
            let creating: Vec<_> =
                self.store.objects.borrow().creations().map(|one| (one.head.id, one.head.user)).collect();
            creating.into_iter().for_each(|(id, user)| self.enter(id, user));
        }
        let mut again = Vec::new();
        for (id, own) in self.own.borrow_mut().iter_mut() {
            let first = cluster.keepers(id).first;
            let knows = change.former.keepers(id).first == first && change.remembers(first);
            if was_solo || (own.state == State::Held && !knows) {
                own.state = State::AskingAgain;
                again.push((*id, own.number, own.user));
            }
        }
        for (id, number, user) in again {
            let claims = Rc::clone(self);
            self.kernel.spawn(async move {
                let state = match claims.ask_for(id, user, true, CLAIM_PATIENCE).await {
                    Ok(()) => State::Held,
                    Err(error) => {
                        tracing::warn!("cannot renew a claim under the new view: {error}");
                        State::Lost
                    }
                };
                let own = claims.own.borrow().get(&id).map(|own| own.number);
                if own == Some(number) {
                    claims.set(&id, state);
                }
            });
        }
    }
}

fn taken(id: ObjectId, what: &str) -> Error {
    let text =
        format!("object {id} {what}; objects never change: put another name or id, or delete this one first");
    Error::new(ErrorKind::Exists, text)
}
