//! What a node does with a frame. Engine thread only; nothing here waits.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use plasmon::{DeleteOutcome, Error, ErrorKind, NodeId, ObjectId};
use tracing::warn;

use super::directory::{Deletion, Lookup, Published, Waiter};
use super::frame::{Holding, MAX_ENTRIES, Stage};
use super::views::lost;
use super::{Envelope, Message};
use crate::engine::Core;
use crate::object::{Replica, Role};

/// How long holders are waited for when an object is deleted.
const DROP_PATIENCE: Duration = Duration::from_secs(3);

/// Where there is no object. No creation draws it.
const NO_LIFE: u64 = 0;
/// How long keepers are waited for.
const ASK_PATIENCE: Duration = Duration::from_secs(5);

impl Core {
    /// Acts on a member's frame.
    pub(crate) fn dispatch(self: &Rc<Self>, envelope: Envelope) {
        self.cluster.trust(&envelope.from);
        if envelope.message.is_answer() {
            if let Some(Envelope { from, request, message, .. }) = self.cluster.complete(envelope)
                && message.comes_with_a_lease()
            {
                // Whoever asked has given up: the holder need not keep it for him.
                self.tell(from, Message::Release { requests: vec![request] });
            }
            return;
        }
        if let Some(envelope) = self.hold_early(envelope) {
            self.act(envelope);
        }
    }

    /// Does what a member asks for, or takes note of what it says.
    pub(super) fn act(self: &Rc<Self>, envelope: Envelope) {
        let Envelope { from, request, reply_to, tenant, .. } = envelope;
        match &envelope.message {
            Message::Fetch { id, stage: Stage::Asked, avoid, wish } => {
                let waiter = Waiter { node: reply_to, request, tenant, wish: *wish };
                let now = self.clock.now();
                let found = self.cluster.directory.borrow_mut().fetch(*id, waiter, avoid, now);
                match found {
                    Lookup::Holder(holder, others) => self.forward(holder, *id, waiter, others),
                    Lookup::Lost => self.answer(&envelope, Message::Refused { error: lost(*id) }),
                    Lookup::Waiting => {}
                }
            }
            Message::Fetch { id, avoid, wish, .. } => self.serve(&envelope, *id, *wish, avoid),
            Message::Probe { of, len } => self.probed(&envelope, *of, *len),
            Message::Ready { request } => self.stream(from, *request),
            Message::Part { request, at, bytes } => self.take_part(from, *request, *at, bytes),
            Message::Forget { id } => self.cluster.directory.borrow_mut().forget(id, reply_to, request),
            Message::Renew { lease } => self.renew(&envelope, *lease),
            Message::Release { requests } => self.release_leases(from, requests),
            Message::Publish { holdings } => {
                // Whoever follows an older view may take this node for a keeper that it is not any more; with the
                // next view it tells those who are. One that is ahead of this node knows better.
                let behind = envelope.epoch < self.cluster.epoch();
                if envelope.epoch > self.cluster.epoch() {
                    self.finish_sweep();
                }
                let kept = |one: &&Holding| !behind || self.cluster.keepers(&one.id).contains(self.node);
                holdings.iter().filter(kept).for_each(|one| self.published(from, *one));
            }
            Message::Unpublish { deleted, ids } => {
                let (mut directory, now) = (self.cluster.directory.borrow_mut(), self.clock.now());
                for id in ids {
                    if *deleted {
                        directory.dropped(from, *id, tenant, now);
                    } else {
                        directory.evicted(from, id, now);
                    }
                }
            }
            Message::Delete { ids } => {
                // Now: a frame that is read next may publish a new life of these.
                let begun = self.begin_deletion(ids, tenant);
                let (core, ids) = (Rc::clone(self), ids.clone());
                self.spawn(async move {
                    let outcomes = core.delete_everywhere(&ids, tenant, begun).await;
                    core.answer(&envelope, Message::Deleted { outcomes });
                });
            }
            Message::Bury { lives } => {
                let (mut directory, now) = (self.cluster.directory.borrow_mut(), self.clock.now());
                lives.iter().for_each(|(id, life)| directory.bury(*id, *life, now));
                drop(directory);
                // It may have come here so lately that the first keeper was not told yet.
                lives.iter().for_each(|(id, life)| self.drop_replica(*id, *life));
                self.answer(&envelope, Message::Done);
            }
            Message::Drop { lives } => {
                lives.iter().for_each(|(id, life)| self.drop_replica(*id, *life));
                self.answer(&envelope, Message::Done);
            }
            Message::Hold { ids } => {
                let lives = ids.iter().map(|id| self.life_here(id, tenant)).collect();
                self.answer(&envelope, Message::Held { lives });
            }
            Message::Promote { ids } => {
                for id in ids {
                    let replica = self.objects.borrow_mut().set_role(id, Role::Primary);
                    if let Some(replica) = replica {
                        self.publish(Holding::of(&replica));
                        self.note_expiry(&replica);
                    }
                }
            }
            Message::Claim { id, probe } => self.on_claim(&envelope, *id, *probe),
            Message::Unclaim { ids } => self.on_unclaim(from, ids),
            Message::Affirm { ids } => self.on_affirm(from, ids),
            Message::Taken { ids } => self.on_taken(ids),
            Message::Acquire { order } => self.on_order(envelope.clone(), *order),
            Message::Migrate { id, to } => self.on_migrate(envelope.clone(), *id, *to),
            Message::Passed { request, bytes, state } => self.take_passed(from, *request, *bytes, *state),
            Message::Locate { id } => {
                let mut holders = self.cluster.directory.borrow_mut().holders(id, tenant);
                holders.truncate(MAX_ENTRIES);
                self.answer(&envelope, Message::Located { holders });
            }
            Message::Query { ids } => {
                let mut directory = self.cluster.directory.borrow_mut();
                let known = ids.iter().map(|id| directory.knows(id, tenant)).collect();
                drop(directory);
                self.answer(&envelope, Message::Found { known });
            }
            Message::Report => {
                let json = self.summary_json().into();
                self.answer(&envelope, Message::Reported { json });
            }
            Message::Drain { step } => self.on_drain(&envelope, *step),
            // Answers were handled above; the network keeps segments and credits to itself.
            _ => {}
        }
    }

    /// Sends a fetch on to a holder, which answers the asker.
    fn forward(self: &Rc<Self>, holder: NodeId, id: ObjectId, waiter: Waiter, others: Vec<NodeId>) {
        let wish = waiter.wish;
        let message = Message::Fetch { id, stage: Stage::Forwarded, avoid: others.clone(), wish };
        let envelope = self.envelope(waiter.request, waiter.node, waiter.tenant, message);
        if holder == self.node {
            self.serve(&envelope, id, wish, &others);
        } else {
            // A holder that has just gone is noticed by the asker, who asks again.
            self.send(holder, envelope);
        }
    }

    /// A node holds an object: those who waited for it are sent there.
    fn published(self: &Rc<Self>, holder: NodeId, holding: Holding) {
        let now = self.clock.now();
        let published = self.cluster.directory.borrow_mut().publish(holder, holding, now);
        if holding.role == Role::Primary {
            self.published_claim(holder, &holding.id);
        }
        match published {
            Published::Welcome(waiters) => {
                for waiter in waiters.into_iter().filter(|waiter| waiter.node != holder) {
                    self.forward(holder, holding.id, waiter, Vec::new());
                }
            }
            Published::Stale => {
                self.tell(holder, Message::Drop { lives: vec![(holding.id, holding.life)] });
            }
        }
    }

    /// Forgets objects, and notes who is to be told.
    fn begin_deletion(&self, ids: &[ObjectId], tenant: u32) -> Begun {
        let mut begun = Begun::default();
        for id in ids {
            let deletion = self.cluster.directory.borrow_mut().delete(*id, tenant, self.clock.now());
            begun.outcomes.push(match deletion {
                Deletion::NotAllowed => DeleteOutcome::NotAllowed,
                Deletion::Unknown => {
                    begun.unknown.push(*id);
                    DeleteOutcome::Absent
                }
                Deletion::Forgotten { holders, lives } => {
                    // A replica of this node's own may not have been published yet.
                    let here = Some(self.life_here(id, tenant)).filter(|life| lives.contains(life));
                    let here = here.map(|life| (self.node, life)).filter(|own| !holders.contains(own));
                    let holders = holders.into_iter().chain(here);
                    holders.for_each(|(holder, life)| begun.drops.add(holder, *id, life));
                    self.other_keepers(id).for_each(|keeper| {
                        lives.iter().for_each(|life| begun.burials.add(keeper, *id, *life));
                    });
                    DeleteOutcome::Deleted
                }
            });
        }
        begun
    }

    /// Has every holder drop objects that were forgotten, and finds those of which nothing was known.
    async fn delete_everywhere(
        self: &Rc<Self>,
        ids: &[ObjectId],
        tenant: u32,
        begun: Begun,
    ) -> Vec<DeleteOutcome> {
        let Begun { mut outcomes, mut drops, mut burials, unknown } = begun;
        self.forget_elsewhere(&unknown, tenant);
        for (holder, id, life) in self.unpublished(&unknown, tenant).await {
            self.cluster.directory.borrow_mut().bury(id, life, self.clock.now());
            drops.add(holder, id, life);
            self.other_keepers(&id).for_each(|keeper| burials.add(keeper, id, life));
            let deleted = ids.iter().zip(&mut outcomes).filter(|(one, _)| **one == id);
            deleted.for_each(|(_, outcome)| *outcome = DeleteOutcome::Deleted);
        }
        let drops = drops.messages(|lives| Message::Drop { lives });
        let burials = burials.messages(|lives| Message::Bury { lives });
        let orders = drops.chain(burials).map(|(node, order)| self.ask(node, tenant, order, DROP_PATIENCE));
        for error in join_all(orders).await.into_iter().filter_map(Result::err) {
            // The node has gone, and its replicas with it; or it learns when it publishes them again.
            warn!("a deletion was not confirmed: {error}");
        }
        outcomes
    }

    /// Has the other keepers forget what this one does not know: one that was a keeper before this one may remember
    /// an object as lost.
    fn forget_elsewhere(&self, ids: &[ObjectId], tenant: u32) {
        let mut by_keeper: HashMap<NodeId, Vec<ObjectId>> = HashMap::new();
        for id in ids {
            self.other_keepers(id).for_each(|keeper| by_keeper.entry(keeper).or_default().push(*id));
        }
        for (keeper, ids) in by_keeper {
            for ids in ids.chunks(MAX_ENTRIES) {
                let forget = Message::Unpublish { deleted: true, ids: ids.to_vec() };
                self.send(keeper, self.envelope(0, self.node, tenant, forget));
            }
        }
    }

    /// Who holds objects that are not known here: a node may have sealed one whose publication is still
    /// on its way.
    async fn unpublished(self: &Rc<Self>, ids: &[ObjectId], tenant: u32) -> Vec<(NodeId, ObjectId, u64)> {
        if ids.is_empty() {
            return Vec::new();
        }
        let members: Vec<_> = self.cluster.view.borrow().members.iter().map(|member| member.node).collect();
        let asked = members.into_iter().map(|member| async move {
            let hold = Message::Hold { ids: ids.to_vec() };
            (member, self.ask(member, tenant, hold, DROP_PATIENCE).await)
        });
        let mut held = Vec::new();
        for (member, answer) in join_all(asked).await {
            if let Ok(Message::Held { lives }) = answer {
                let there = ids.iter().zip(lives).filter(|(_, life)| *life != NO_LIFE);
                held.extend(there.map(|(id, life)| (member, *id, life)));
            }
        }
        held
    }

    /// The life of an object on this node, if a user may see it.
    fn life_here(&self, id: &ObjectId, tenant: u32) -> u64 {
        let objects = self.objects.borrow();
        let replica = objects.get(id).filter(|replica| replica.visible_to(tenant));
        replica.map_or(NO_LIFE, |replica| replica.life)
    }

    /// Both, where this node is none: it may be asked by one that follows another view.
    fn other_keepers(&self, id: &ObjectId) -> impl Iterator<Item = NodeId> {
        self.cluster.keepers(id).iter().filter(|keeper| *keeper != self.node)
    }

    /// Remembers the end of a replica's life that this node's own client ended.
    pub(crate) fn bury(&self, replica: &Replica) {
        let (id, life) = (replica.id(), replica.life);
        self.cluster.directory.borrow_mut().bury(id, life, self.clock.now());
    }

    /// Deletes objects on every node.
    ///
    /// # Errors
    /// When a keeper cannot be asked: some of the objects may still be there.
    pub(crate) async fn delete_in_cluster(
        self: &Rc<Self>,
        ids: &[ObjectId],
        tenant: u32,
    ) -> Result<Vec<DeleteOutcome>, Error> {
        self.cluster.ensure_member()?;
        let mut outcomes = vec![DeleteOutcome::Absent; ids.len()];
        let first = |id: &ObjectId| self.cluster.keepers(id).first;
        let asked = by_keeper(ids, first).into_iter().map(|(keeper, asked)| async move {
            let ids = asked.iter().map(|at| ids[*at]).collect();
            (asked, self.ask(keeper, tenant, Message::Delete { ids }, ASK_PATIENCE).await)
        });
        for (asked, answer) in join_all(asked).await {
            let Message::Deleted { outcomes: answers } = answer? else {
                return Err(Error::new(
                    ErrorKind::Internal,
                    "a keeper answered a deletion with something else",
                ));
            };
            asked.iter().zip(answers).for_each(|(at, answer)| outcomes[*at] = answer);
        }
        Ok(outcomes)
    }

    /// Asks a keeper which nodes hold an object, and the other if that knows of none.
    pub(crate) async fn holders(
        self: &Rc<Self>,
        id: ObjectId,
        tenant: u32,
    ) -> Result<Vec<(NodeId, Role)>, Error> {
        self.cluster.ensure_member()?;
        let mut holders = Vec::new();
        for attempt in 0..2 {
            let keeper = self.cluster.keeper(&id, attempt);
            match self.ask(keeper, tenant, Message::Locate { id }, ASK_PATIENCE).await {
                Ok(Message::Located { holders: known }) => holders = known,
                Ok(_) => {
                    return Err(Error::new(ErrorKind::Internal, "a keeper answered with something else"));
                }
                Err(error) if attempt == 1 => return Err(error),
                Err(_) => {}
            }
            if !holders.is_empty() {
                break;
            }
        }
        Ok(holders)
    }

    /// Asks the keepers whether objects exist anywhere.
    pub(crate) async fn known(self: &Rc<Self>, ids: &[ObjectId], tenant: u32) -> Result<Vec<bool>, Error> {
        self.cluster.ensure_member()?;
        let mut known = vec![false; ids.len()];
        let asked =
            by_keeper(ids, |id| self.cluster.keeper(id, 0)).into_iter().map(|(keeper, asked)| async move {
                let ids = asked.iter().map(|at| ids[*at]).collect();
                (asked, self.ask(keeper, tenant, Message::Query { ids }, ASK_PATIENCE).await)
            });
        for (asked, answer) in join_all(asked).await {
            let Message::Found { known: answers } = answer? else {
                return Err(Error::new(ErrorKind::Internal, "a keeper answered a query with something else"));
            };
            asked.iter().zip(answers).for_each(|(at, answer)| known[*at] = answer);
        }
        Ok(known)
    }

    /// Removes a replica by order of its keeper, if it is of that life.
    fn drop_replica(&self, id: ObjectId, life: u64) {
        let held = self.objects.borrow().get(&id).is_some_and(|replica| replica.life == life);
        if held {
            self.remove(&id);
            self.unpublish(id, true);
        }
    }
}

/// A deletion that the directory has carried out, and the nodes have not.
#[derive(Default)]
struct Begun {
    outcomes: Vec<DeleteOutcome>,
    drops: Orders,
    burials: Orders,
    unknown: Vec<ObjectId>,
}

/// Lives that nodes are to be told of.
#[derive(Default)]
struct Orders(HashMap<NodeId, Vec<(ObjectId, u64)>>);

impl Orders {
    fn add(&mut self, node: NodeId, id: ObjectId, life: u64) {
        self.0.entry(node).or_default().push((id, life));
    }

    /// As messages that fit a frame.
    fn messages(
        self,
        message: impl Fn(Vec<(ObjectId, u64)>) -> Message,
    ) -> impl Iterator<Item = (NodeId, Message)> {
        let lots = self.0.into_iter().flat_map(|(node, lives)| {
            let lots: Vec<_> = lives.chunks(MAX_ENTRIES).map(|lot| (node, lot.to_vec())).collect();
            lots
        });
        lots.map(move |(node, lot)| (node, message(lot)))
    }
}

/// Positions of ids by the keeper to ask, in lots that fit a frame.
fn by_keeper(ids: &[ObjectId], keeper: impl Fn(&ObjectId) -> NodeId) -> Vec<(NodeId, Vec<usize>)> {
    let mut lots: HashMap<NodeId, Vec<usize>> = HashMap::new();
    for (at, id) in ids.iter().enumerate() {
        lots.entry(keeper(id)).or_default().push(at);
    }
    let split = |(keeper, lot): (NodeId, Vec<usize>)| -> Vec<_> {
        lot.chunks(MAX_ENTRIES).map(|lot| (keeper, lot.to_vec())).collect()
    };
    lots.into_iter().flat_map(split).collect()
}
