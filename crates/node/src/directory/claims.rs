//! Claims: of two nodes that create one id at the same time, one gets it.
//!
//! Engine thread only. Whoever creates an object under an id that others may know (a name, an id of the
//! user's own) claims it first, at the first keeper of its shard: that grants it if no object and no other
//! claim is known. Ids that were drawn at random are not claimed, and cost no message; nor does a claim whose
//! keeper is this node. The publication of the object ends the claim, or word from its node that it gave up,
//! or that node's death.
//!
//! Membership may change meanwhile. Each node claims again, at the new first keeper, what it is creating, and
//! does not seal before that is answered. A keeper that has just become the first does not know what was
//! granted before: for a while it has the second, which most often was the first, look as well. What remains:
//! an object that was sealed under an older view than the other's claim, and whose publication is still on
//! its way; then both are sealed, and readers get the one that was published first.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use futures::future::{Either, select};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use crate::directory::Directory;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::{HashMap, HashSet};
use crate::membership::shards::ShardMap;
use crate::net::calls::Call;
use crate::net::frame::Verdict;
use crate::net::frame::{Envelope, Message};

/// How long an answer is waited for before the claim is made again.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// How long a claim is made again and again: longer than a dead keeper is taken for a living one.
const CLAIM_PATIENCE: Duration = Duration::from_secs(30);
/// How long one that was held before waits for one that was not, and is about to be refused.
const RIVAL_PATIENCE: Duration = Duration::from_millis(2500);
/// How long to wait before it is made again.
const CLAIM_PAUSE: Duration = Duration::from_millis(10);

/// Claims that this node made, and those that it granted.
#[derive(Default)]
pub(crate) struct Claims {
    own: RefCell<HashMap<ObjectId, Own>>,
    made: Cell<u64>,
    granted: RefCell<HashMap<ObjectId, NodeId>>,
}

/// A claim of this node's.
struct Own {
    /// Which: an id may be claimed again after it was given up.
    number: u64,
    tenant: u32,
    state: State,
    /// Those who wait until it is answered.
    waiting: Vec<oneshot::Sender<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asking,
    /// It was held before, and another keeper is to know of it.
    AskingAgain,
    Held,
    /// Another node was first.
    Lost,
}

/// A claim that is taken back when this is dropped, unless it is kept for a creation or fulfilled by an
/// object.
pub(crate) struct Claim {
    directory: Option<Rc<Directory>>,
    id: ObjectId,
}

impl Claim {
    /// Of an id that nobody else knows.
    pub(crate) fn of_nobody(id: ObjectId) -> Self {
        Self { directory: None, id }
    }

    /// It stands until the creation ends.
    pub(crate) fn keep(mut self) {
        self.directory = None;
    }

    /// The object is there.
    pub(crate) fn fulfil(mut self) {
        if let Some(directory) = self.directory.take() {
            directory.fulfil_claim(&self.id);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            directory.release_claim(&self.id);
        }
    }
}

impl Directory {
    /// Whether nobody has to be asked whether an id is taken.
    pub(crate) fn decides_here(&self, id: &ObjectId, now: Instant) -> bool {
        self.cluster.solo()
            || (self.cluster.keepers(id).first == self.kernel.node && !self.cluster.is_unsettled(id, now))
    }

    /// Claims of this node's now.
    pub(crate) fn claimed(&self) -> usize {
        self.claims.own.borrow().len()
    }

    /// The node that creates an object of this id, as far as this keeper granted it.
    pub(crate) fn claimer(&self, id: &ObjectId) -> Option<NodeId> {
        self.claims.granted.borrow().get(id).copied()
    }

    /// What is known of a claim of `asker`'s; nothing if it may have the id.
    fn against(&self, id: &ObjectId, asker: NodeId, tenant: u32) -> Option<Verdict> {
        if self.table.borrow_mut().knows(id, tenant) {
            return Some(Verdict::Exists);
        }
        if self.table.borrow_mut().doubts(id, tenant) {
            // It is known soon.
            return Some(Verdict::NotKeeper);
        }
        if is_planted(Bug::ClaimGrantedTwice) {
            return None;
        }
        let granted = self.claims.granted.borrow();
        granted.get(id).filter(|claimer| **claimer != asker).map(|_| Verdict::Creating)
    }
}

impl Directory {
    /// Claims an id for a creation.
    ///
    /// # Errors
    /// `Exists` when it is taken, `TimedOut` when no keeper can be asked.
    pub(crate) async fn claim(self: &Rc<Self>, id: ObjectId, tenant: u32) -> Result<Claim, Error> {
        if self.cluster.solo() {
            return Ok(Claim::of_nobody(id));
        }
        let state = |directory: &Self| directory.claims.own.borrow().get(&id).map(|own| own.state);
        while let Some(State::Asking) = state(self) {
            // It may be refused, and the id be free after that.
            self.claim_answered(&id).await;
        }
        if state(self).is_some() {
            return Err(taken(id, "is being created by another client of this node"));
        }
        self.enter_claim(id, tenant);
        let claim = Claim { directory: Some(Rc::clone(self)), id };
        self.ask_for(id, tenant, false).await?;
        self.set_claim(&id, State::Held);
        Ok(claim)
    }

    fn enter_claim(&self, id: ObjectId, tenant: u32) {
        let number = self.claims.made.get() + 1;
        self.claims.made.set(number);
        let own = Own { number, tenant, state: State::Asking, waiting: Vec::new() };
        self.claims.own.borrow_mut().insert(id, own);
    }

    /// Asks the first keeper, whoever that becomes, until it has decided. A claim that was held before waits
    /// a while for one that was not: where this node is the second keeper it is asked about that one, which
    /// is refused then.
    async fn ask_for(self: &Rc<Self>, id: ObjectId, tenant: u32, again: bool) -> Result<(), Error> {
        let begun = self.kernel.clock.now();
        let due = begun + CLAIM_PATIENCE;
        loop {
            let keeper = self.cluster.keepers(&id).first;
            let next_view = self.cluster.next_view();
            let verdict = if self.cluster.fenced() {
                // It is for the members to say, and this node may be one again in a moment.
                None
            } else if self.decides_here(&id, self.kernel.clock.now()) {
                Some(self.judge(&id, self.kernel.node, tenant))
            } else {
                let mut call = Call::open(&self.network, None);
                call.send(keeper, tenant, Message::Claim { id, probe: false });
                let until = Some(self.kernel.clock.now() + ANSWER_PATIENCE);
                match self.kernel.clock.bounded(until, select(std::pin::pin!(call.answer()), next_view)).await
                {
                    Some(Either::Left((Some(Envelope { message: Message::Claimed { verdict }, .. }), _))) => {
                        Some(verdict)
                    }
                    _ => None,
                }
            };
            match verdict {
                // Another is the first by now: it has to know.
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
                    true => "this node is no member of its cluster at the moment".to_owned(),
                    false => format!("node {keeper} did not answer within {CLAIM_PATIENCE:?}"),
                };
                let text = format!(
                    "cannot create object {id}, since nobody says whether the id is taken: {why}; try \
                     again, or leave id and name to the store"
                );
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            select(self.cluster.next_view(), std::pin::pin!(self.kernel.clock.sleep(CLAIM_PAUSE))).await;
        }
    }

    /// Decides as the first keeper.
    fn judge(&self, id: &ObjectId, asker: NodeId, tenant: u32) -> Verdict {
        let against = self.against(id, asker, tenant);
        let leaving = self.deleting.borrow().contains(id) || self.table.borrow().is_leaving(id);
        if against.is_none() && (leaving || self.readable_until(id, self.kernel.clock.now()).is_some()) {
            return Verdict::NotKeeper;
        }
        let mut granted = self.claims.granted.borrow_mut();
        match against {
            None => {
                granted.insert(*id, asker);
                Verdict::Granted
            }
            Some(Verdict::Creating) => {
                // Word that it has given up may have been lost.
                if let Some(claimer) = granted.get(id) {
                    self.network.tell(*claimer, Message::Affirm { ids: vec![*id] });
                }
                Verdict::Creating
            }
            Some(other) => other,
        }
    }

    /// Answers another node's claim.
    pub(crate) fn on_claim(self: &Rc<Self>, asked: &Envelope, id: ObjectId, probe: bool) {
        let cluster = &self.cluster;
        let (asker, tenant) = (asked.reply_to, asked.tenant);
        let keepers = cluster.keepers(&id);
        let verdict = if probe {
            // What it was creating before the first keeper became that, it may not have been told yet.
            let again = self.claims.own.borrow().get(&id).is_some_and(|own| own.state == State::AskingAgain);
            let own = asker != self.kernel.node && again;
            let verdict = self.against(&id, asker, tenant).or(own.then_some(Verdict::Creating));
            verdict.unwrap_or(Verdict::Granted)
        } else if keepers.first != self.kernel.node || cluster.epoch() < asked.epoch {
            Verdict::NotKeeper
        } else if cluster.is_unsettled(&id, self.kernel.clock.now()) {
            let (directory, asked) = (Rc::clone(self), asked.clone());
            self.kernel.spawn(async move { directory.judge_after_asking(&asked, id, keepers.second).await });
            return;
        } else {
            self.judge(&id, asker, tenant)
        };
        self.network.answer(asked, Message::Claimed { verdict });
    }

    /// Decides as a first keeper that may not know all: asks every member what it holds, and the second
    /// keeper what it was creating.
    async fn judge_after_asking(self: &Rc<Self>, asked: &Envelope, id: ObjectId, second: Option<NodeId>) {
        let (asker, tenant) = (asked.reply_to, asked.tenant);
        let verdict = match self.held_anywhere(&[id], tenant).await.as_deref() {
            Some([true]) => Verdict::Exists,
            Some(_) if self.cluster.keepers(&id).first == self.kernel.node => self.judge(&id, asker, tenant),
            _ => Verdict::NotKeeper,
        };
        match (verdict, second) {
            (Verdict::Granted, Some(second)) => {
                // It answers the asker.
                let probe = Message::Claim { id, probe: true };
                self.network.send(second, self.network.envelope(asked.request, asker, tenant, probe));
            }
            _ => self.network.answer(asked, Message::Claimed { verdict }),
        }
    }

    /// Another node does not create these any more.
    pub(crate) fn on_unclaim(&self, from: NodeId, ids: &[ObjectId]) {
        let mut granted = self.claims.granted.borrow_mut();
        for id in ids {
            if granted.get(id) == Some(&from) {
                granted.remove(id);
            }
        }
    }

    /// A keeper asks whether this node still creates these.
    pub(crate) fn on_affirm(&self, from: NodeId, ids: &[ObjectId]) {
        let own = self.claims.own.borrow();
        let ids: Vec<_> = ids.iter().filter(|id| !own.contains_key(id)).copied().collect();
        if !ids.is_empty() {
            self.network.tell(from, Message::Unclaim { ids });
        }
    }

    /// Another node was first with these.
    pub(crate) fn on_taken(&self, ids: &[ObjectId]) {
        ids.iter().for_each(|id| self.set_claim(id, State::Lost));
    }

    /// A primary was published: that ends its claim, and any other.
    pub(crate) fn published_claim(&self, holder: NodeId, id: &ObjectId) {
        let claimer = self.claims.granted.borrow_mut().remove(id);
        if let Some(claimer) = claimer.filter(|claimer| *claimer != holder) {
            self.network.tell(claimer, Message::Taken { ids: vec![*id] });
        }
    }

    fn set_claim(&self, id: &ObjectId, state: State) {
        if let Some(own) = self.claims.own.borrow_mut().get_mut(id) {
            if own.state != State::Lost {
                own.state = state;
            }
            // Who has gone need not know.
            for waiting in own.waiting.drain(..) {
                let _ = waiting.send(());
            }
        }
    }

    /// Whether a creation may be sealed now; nothing while its claim is being made again.
    ///
    /// # Errors
    /// `Exists` when another node was first.
    pub(crate) fn claim_holds(&self, id: &ObjectId) -> Option<Result<(), Error>> {
        match self.claims.own.borrow().get(id).map(|own| own.state) {
            None | Some(State::Held) => Some(Ok(())),
            Some(State::Asking | State::AskingAgain) => None,
            Some(State::Lost) => Some(Err(taken(*id, "was created on another node meanwhile"))),
        }
    }

    /// Waits until a claim that is being made again is answered.
    ///
    /// # Errors
    /// `Exists` when another node was first.
    pub(crate) async fn settle_claim(&self, id: &ObjectId) -> Result<(), Error> {
        loop {
            if let Some(holds) = self.claim_holds(id) {
                return holds;
            }
            self.claim_answered(id).await;
        }
    }

    /// Waits until a claim of this node's is answered, or given up.
    async fn claim_answered(&self, id: &ObjectId) {
        let (sender, answered) = oneshot::channel();
        if let Some(own) = self.claims.own.borrow_mut().get_mut(id) {
            own.waiting.push(sender);
        }
        // Its end means the same.
        let _ = answered.await;
    }

    /// The object is there: its publication tells the keeper.
    pub(crate) fn fulfil_claim(&self, id: &ObjectId) {
        self.claims.own.borrow_mut().remove(id);
    }

    /// A creation was given up.
    pub(crate) fn release_claim(&self, id: &ObjectId) {
        if self.claims.own.borrow_mut().remove(id).is_some() {
            let keeper = self.cluster.keepers(id).first;
            if keeper == self.kernel.node {
                self.on_unclaim(self.kernel.node, &[*id]);
            } else {
                self.network.tell(keeper, Message::Unclaim { ids: vec![*id] });
            }
        }
    }

    /// Follows a new view: forgets the claims of the dead and of shards that are kept elsewhere now, and has
    /// this node's own made again where their keeper does not know them.
    pub(crate) fn follow_claims(
        self: &Rc<Self>,
        old: &ShardMap,
        fresh: &HashSet<NodeId>,
        alive: impl Fn(NodeId) -> bool,
        was_solo: bool,
    ) {
        let cluster = &self.cluster;
        self.claims
            .granted
            .borrow_mut()
            .retain(|id, claimer| alive(*claimer) && cluster.keepers(id).contains(self.kernel.node));
        if was_solo {
            // Nobody was asked then.
            let creating: Vec<_> =
                self.store.objects.borrow().creations().map(|one| (one.head.id, one.head.tenant)).collect();
            creating.into_iter().for_each(|(id, tenant)| self.enter_claim(id, tenant));
        }
        let mut again = Vec::new();
        for (id, own) in self.claims.own.borrow_mut().iter_mut() {
            let first = cluster.keepers(id).first;
            let knows = old.keepers(id).first == first && !fresh.contains(&first);
            if was_solo || (own.state == State::Held && !knows) {
                own.state = State::AskingAgain;
                again.push((*id, own.number, own.tenant));
            }
        }
        for (id, number, tenant) in again {
            let directory = Rc::clone(self);
            self.kernel.spawn(async move {
                let state = match directory.ask_for(id, tenant, true).await {
                    Ok(()) => State::Held,
                    Err(error) => {
                        tracing::warn!("a claim does not stand under the new view: {error}");
                        State::Lost
                    }
                };
                let own = directory.claims.own.borrow().get(&id).map(|own| own.number);
                if own == Some(number) {
                    directory.set_claim(&id, state);
                }
            });
        }
    }
}

fn taken(id: ObjectId, what: &str) -> Error {
    let text = format!("object {id} {what}; objects never change: use another id, or delete it first");
    Error::new(ErrorKind::Exists, text)
}
