//! What a node does with a frame. Engine thread only; nothing here waits.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use plasmon::{Error, NodeId, ObjectId};

use super::directory::{Lookup, Published, Waiter};
use super::frame::{Holding, MAX_ENTRIES};
use super::views::lost;
use super::{Envelope, Message};
use crate::engine::Core;
use crate::object::Role;

/// How long holders are waited for when an object is deleted.
const DROP_PATIENCE: Duration = Duration::from_secs(3);

/// How long keepers are waited for.
const ASK_PATIENCE: Duration = Duration::from_secs(5);

/// Enters what a node answered about the ids at these positions.
fn mark(known: &mut [bool], asked: &[usize], answer: Result<Message, Error>) {
    match answer {
        Ok(
            Message::Deleted { known: answers }
            | Message::Dropped { known: answers }
            | Message::Found { known: answers },
        ) => {
            asked.iter().zip(answers).for_each(|(at, answer)| known[*at] |= answer);
        }
        Ok(other) => tracing::warn!("a node answered with something else: {other:?}"),
        Err(error) => tracing::warn!("a node did not say what it knows of some objects: {error}"),
    }
}

impl Core {
    /// Acts on a member's frame.
    pub(crate) fn dispatch(self: &Rc<Self>, envelope: Envelope) {
        if envelope.message.is_answer() {
            if let Some(Envelope { from, request, message: Message::Offer { .. }, .. }) =
                self.cluster.complete(envelope)
            {
                // Whoever asked has given up: the holder need not keep it for him.
                self.tell(from, Message::Release { requests: vec![request] });
            }
            return;
        }
        let Envelope { from, request, reply_to, tenant, .. } = envelope;
        match &envelope.message {
            Message::Fetch { forwarded: true, id, .. } => self.serve(&envelope, *id),
            Message::Fetch { id, except, .. } => {
                let waiter = Waiter { node: reply_to, request, tenant };
                let now = self.clock.now();
                let found = self.cluster.directory.borrow_mut().fetch(*id, waiter, except, now);
                match found {
                    Lookup::Holder(holder) => self.forward(holder, *id, waiter),
                    Lookup::Lost => self.answer(&envelope, Message::Refused { error: lost(*id) }),
                    Lookup::Waiting => {}
                }
            }
            Message::Forget => self.cluster.directory.borrow_mut().forget(reply_to, request),
            Message::Renew { lease } => self.renew(&envelope, *lease),
            Message::Release { requests } => self.release_leases(from, requests),
            Message::Publish { holdings } => holdings.iter().for_each(|one| self.published(from, *one)),
            Message::Unpublish { deleted, ids } => {
                let (mut directory, now) = (self.cluster.directory.borrow_mut(), self.clock.now());
                for id in ids {
                    if *deleted {
                        directory.dropped(from, *id, now);
                    } else {
                        directory.evicted(from, id);
                    }
                }
            }
            Message::Delete { quiet: true, ids } => {
                let (known, _) = self.forget_entries(ids);
                self.answer(&envelope, Message::Deleted { known });
            }
            Message::Delete { ids, .. } => {
                let (core, ids) = (Rc::clone(self), ids.clone());
                self.spawn(async move {
                    let known = core.delete_everywhere(&ids).await;
                    core.answer(&envelope, Message::Deleted { known });
                });
            }
            Message::Drop { cached_only, ids } => {
                let known = ids.iter().map(|id| self.drop_replica(*id, *cached_only)).collect();
                self.answer(&envelope, Message::Dropped { known });
            }
            Message::Promote { ids } => {
                for id in ids {
                    if let Some(replica) = self.objects.borrow().get(id) {
                        replica.promote();
                        self.publish(Holding { id: *id, role: Role::Primary });
                    }
                }
            }
            Message::Query { ids } => {
                let directory = self.cluster.directory.borrow();
                let known = ids.iter().map(|id| directory.knows(id)).collect();
                drop(directory);
                self.answer(&envelope, Message::Found { known });
            }
            // Answers were handled above; the network keeps segments and credits to itself.
            _ => {}
        }
    }

    /// Sends a fetch on to a holder, which answers the asker.
    fn forward(self: &Rc<Self>, holder: NodeId, id: ObjectId, waiter: Waiter) {
        let message = Message::Fetch { id, forwarded: true, except: Vec::new() };
        let envelope = self.envelope(waiter.request, waiter.node, waiter.tenant, message);
        if holder == self.node {
            self.serve(&envelope, id);
        } else {
            // A holder that has just gone is noticed by the asker, who asks again.
            self.send(holder, envelope);
        }
    }

    /// A node holds an object: those who waited for it are sent there.
    fn published(self: &Rc<Self>, holder: NodeId, holding: Holding) {
        let published = self.cluster.directory.borrow_mut().publish(holder, holding);
        match published {
            Published::Welcome(waiters) => {
                for waiter in waiters.into_iter().filter(|waiter| waiter.node != holder) {
                    self.forward(holder, holding.id, waiter);
                }
            }
            Published::Deleted => {
                self.tell(holder, Message::Drop { cached_only: true, ids: vec![holding.id] });
            }
        }
    }

    /// Takes entries out of the directory: which were known, and who holds what.
    fn forget_entries(&self, ids: &[ObjectId]) -> (Vec<bool>, HashMap<NodeId, Vec<ObjectId>>) {
        let (mut known, mut holders) = (Vec::new(), HashMap::<_, Vec<_>>::new());
        let now = self.clock.now();
        let mut directory = self.cluster.directory.borrow_mut();
        for id in ids {
            let entry = directory.delete(*id, now);
            known.push(entry.is_some());
            for holder in entry.into_iter().flatten() {
                holders.entry(holder).or_default().push(*id);
            }
        }
        (known, holders)
    }

    /// Forgets objects and has every holder drop them. Of an object that is not known here a node may
    /// have sealed a replica whose publication is still on its way: all are told to drop it.
    async fn delete_everywhere(self: &Rc<Self>, ids: &[ObjectId]) -> Vec<bool> {
        let (mut known, mut holders) = self.forget_entries(ids);
        for (id, known) in ids.iter().zip(&known) {
            if !known {
                for member in self.cluster.view.borrow().members.iter() {
                    holders.entry(member.node).or_default().push(*id);
                }
            }
        }
        let drops = holders.into_iter().map(|(holder, dropped)| async move {
            let order = Message::Drop { cached_only: false, ids: dropped.clone() };
            (dropped, self.ask(holder, 0, order, DROP_PATIENCE).await)
        });
        for (dropped, answer) in join_all(drops).await {
            let at = |id: &ObjectId| ids.iter().position(|other| other == id);
            mark(&mut known, &dropped.iter().filter_map(at).collect::<Vec<_>>(), answer);
        }
        known
    }

    /// Forgets entries of the directory kept here, and remembers the deletion.
    pub(crate) fn forget(&self, ids: &[ObjectId]) {
        if self.cluster.solo() {
            self.forget_entries(ids);
        }
    }

    /// Deletes objects on every node; returns which were known to their keepers.
    pub(crate) async fn delete_in_cluster(self: &Rc<Self>, ids: &[ObjectId], tenant: u32) -> Vec<bool> {
        let mut known = vec![false; ids.len()];
        let asked = self.by_keeper(ids, true).into_iter().map(|((keeper, quiet), asked)| async move {
            let ids = asked.iter().map(|at| ids[*at]).collect();
            (asked, self.ask(keeper, tenant, Message::Delete { quiet, ids }, ASK_PATIENCE).await)
        });
        for (asked, answer) in join_all(asked).await {
            mark(&mut known, &asked, answer);
        }
        known
    }

    /// Asks the keepers whether objects exist anywhere.
    pub(crate) async fn known(self: &Rc<Self>, ids: &[ObjectId]) -> Vec<bool> {
        let mut known = vec![false; ids.len()];
        let asked = self.by_keeper(ids, false).into_iter().map(|((keeper, _), asked)| async move {
            let ids = asked.iter().map(|at| ids[*at]).collect();
            (asked, self.ask(keeper, 0, Message::Query { ids }, ASK_PATIENCE).await)
        });
        for (asked, answer) in join_all(asked).await {
            mark(&mut known, &asked, answer);
        }
        known
    }

    /// Positions of ids by the keeper to ask, in lots that fit a frame; with `all`, the second
    /// keepers too, marked quiet.
    fn by_keeper(&self, ids: &[ObjectId], all: bool) -> Vec<((NodeId, bool), Vec<usize>)> {
        let mut lots: HashMap<(NodeId, bool), Vec<usize>> = HashMap::new();
        for (at, id) in ids.iter().enumerate() {
            if all {
                let keepers = self.cluster.keepers(id);
                lots.entry((keepers.first, false)).or_default().push(at);
                if let Some(second) = keepers.second {
                    lots.entry((second, true)).or_default().push(at);
                }
            } else {
                lots.entry((self.cluster.keeper(id), false)).or_default().push(at);
            }
        }
        let split = |(key, lot): (_, Vec<usize>)| -> Vec<_> {
            lot.chunks(MAX_ENTRIES).map(|lot| (key, lot.to_vec())).collect()
        };
        lots.into_iter().flat_map(split).collect()
    }

    /// Removes an object by order of its keeper; tells whether there was one.
    fn drop_replica(&self, id: ObjectId, cached_only: bool) -> bool {
        let mut objects = self.objects.borrow_mut();
        let found = objects.get(&id).is_some_and(|replica| !cached_only || replica.role() == Role::Cached);
        if found {
            objects.remove(&id);
            self.unpublish(id, true);
        }
        found
    }
}
