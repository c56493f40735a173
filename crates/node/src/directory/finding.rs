//! Finding a holder: a keeper forwards a request for an object to a node that holds it. Owns no
//! state. Engine thread only.

use std::rc::Rc;
use std::time::Duration;

use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Directory;
use super::deletion::NO_LIFE;
use super::table::{Lookup, Published, Waiter};
use crate::net::frame::{Envelope, Heir, Holding, Life, Message, Stage, Standing, Wish, Withdrawal, ask};
use crate::net::network::Network;
use crate::object::Role;

/// How long a request to a keeper waits for an answer.
const ASK_PATIENCE: Duration = Duration::from_secs(5);

impl Directory {
    /// Forwards a request for an object to a holder, or keeps the request until there is one.
    pub(crate) fn on_find(
        self: &Rc<Self>,
        asked: &Envelope,
        (id, missed): (ObjectId, bool),
        avoid: &[NodeId],
        wish: Wish,
    ) {
        let Envelope { from, request, reply_to, user, .. } = *asked;
        let first = self.cluster.keepers(&id).first;
        let keeps = self.cluster.keepers(&id).contains(self.kernel.node);
        let is_replaced = {
            let table = self.table.borrow();
            table.holds_back(&id) && table.replaced_by(&id) != Some(self.kernel.node)
        };
        if !keeps || is_replaced {
            // Entries that are left here of a shard that moved are not valid, and of an object that is being
            // replaced the first keeper alone knows which life is given. It gets the request, unless a keeper
            // has forwarded it already; the asker then asks again.
            let again = self.network.envelope(request, reply_to, user, asked.message.clone());
            _ = from == reply_to && self.network.send(first, again);
            return;
        }
        let waiter = Waiter { node: reply_to, request, user, wish };
        let now = self.kernel.clock.now();
        let found = self.table.borrow_mut().fetch(id, waiter, avoid, now);
        match found {
            Lookup::Holder(holder, others) => self.forward(holder, id, waiter, others),
            // A new object may have been sealed while its publication is on the way. The first
            // keeper knows which node creates the object.
            Lookup::Lost if first != self.kernel.node && from == reply_to => {
                let missed = Message::Find { id, missed: true, wish, avoid: avoid.to_vec() };
                self.network.send(first, self.network.envelope(request, reply_to, user, missed));
            }
            Lookup::Lost if self.claims.claimer(&id).is_some() => {
                self.table.borrow_mut().await_object(id, waiter, now);
            }
            Lookup::Lost => self.network.answer(asked, Message::Refused { error: lost(id) }),
            Lookup::Waiting if missed => self.on_missed(asked.clone(), id),
            Lookup::Waiting => {}
        }
    }

    /// Forwards a request for short objects to their holders. The asker is told at once which
    /// objects have no known holder.
    pub(crate) fn on_find_short(&self, asked: &Envelope, ids: &[ObjectId]) {
        let Envelope { request, reply_to, user, .. } = *asked;
        let (mut missing, mut found) = (Vec::new(), Vec::<(NodeId, Vec<ObjectId>)>::new());
        for id in ids {
            // Entries that are left here of a shard that moved are not valid.
            let keeps = self.cluster.keepers(id).contains(self.kernel.node);
            let holder = keeps.then(|| self.table.borrow_mut().holder_for(id, reply_to)).flatten();
            match (holder, found.iter_mut().find(|(node, _)| Some(*node) == holder)) {
                (None, _) => missing.push(*id),
                (Some(_), Some((_, lot))) => lot.push(*id),
                (Some(holder), None) => found.push((holder, vec![*id])),
            }
        }
        for (holder, ids) in found {
            let fetch = Message::FetchShort { ids };
            self.network.send(holder, self.network.envelope(request, reply_to, user, fetch));
        }
        if !missing.is_empty() {
            self.network.tell(reply_to, Message::Short { request, objects: Vec::new(), missing });
        }
    }

    /// Takes note of what a node holds.
    pub(crate) fn on_publish(self: &Rc<Self>, envelope: &Envelope, holdings: &[Holding], returned: bool) {
        // A node that follows an older view may take this node for a keeper although it no longer is
        // one; that node tells the right keepers when it follows the next view. A node with a later view
        // knows the keepers better than this node.
        let behind = envelope.epoch < self.cluster.epoch();
        if envelope.epoch > self.cluster.epoch() {
            self.finish_sweep();
        }
        let kept = |one: &&Holding| !behind || self.cluster.keepers(&one.id).contains(self.kernel.node);
        if returned {
            self.table.borrow_mut().note_returning(envelope.from);
        }
        holdings.iter().filter(kept).for_each(|one| self.published(envelope.from, *one, returned));
    }

    /// Takes note of what a node holds no longer.
    pub(crate) fn on_unpublish(&self, from: NodeId, how: Withdrawal, ids: &[ObjectId]) {
        let (mut table, now) = (self.table.borrow_mut(), self.kernel.clock.now());
        ids.iter().for_each(|id| table.withdrawn(from, *id, how, now));
    }

    /// Forwards a request to a holder, which answers the asker.
    fn forward(self: &Rc<Self>, holder: NodeId, id: ObjectId, waiter: Waiter, others: Vec<NodeId>) {
        let life = self.table.borrow().life_of(&id).unwrap_or(NO_LIFE);
        forward_to(&self.network, (holder, life), id, waiter, others);
    }

    /// Returns the order that tells a primary the number of nodes that are to keep its object. `None` unless
    /// the node has come back with the object, or found it on its disk, and says a smaller number.
    fn raised(&self, holder: NodeId, holding: &Holding, returned: bool) -> Option<Heir> {
        let comes_back = returned || holding.standing == Standing::Heir;
        if !comes_back || holding.standing.role() != Role::Primary {
            return None;
        }
        let Holding { id, life, .. } = *holding;
        let mut table = self.table.borrow_mut();
        let copies = table.copies(&id);
        let known = table.holders(&id, holding.ownership.user);
        let is_raised = copies > holding.copies.max(1) && table.life_of(&id) == Some(life);
        (is_raised && known.iter().all(|(node, _)| *node != holder)).then_some(Heir { id, life, copies })
    }

    /// Enters a publication, and forwards the requests of the nodes that waited for the object.
    fn published(self: &Rc<Self>, holder: NodeId, holding: Holding, returned: bool) {
        let now = self.kernel.clock.now();
        let is_first = self.cluster.keepers(&holding.id).first == self.kernel.node;
        let raised = self.raised(holder, &holding, returned);
        let (published, displaced) = {
            let mut table = self.table.borrow_mut();
            let mut displaced = table.displace_objects(&holding);
            displaced.extend(table.displace_returned(holder, &holding, returned, now));
            let is_replaced = returned && table.is_replaced(holder, &holding, is_first);
            let (is_earlier, rival) = match is_replaced {
                true => (true, None),
                false => table.judge_rival(holder, &holding, is_first, now),
            };
            displaced.extend(rival);
            match is_earlier {
                true => (Published::Stale, displaced),
                false => {
                    let published = table.publish(holder, holding, now);
                    if published != Published::Stale && holding.standing.role() == Role::Primary {
                        displaced.extend(table.displace_replicas(&holding, now));
                    }
                    (published, displaced)
                }
            }
        };
        if returned {
            self.table.borrow_mut().note_returned(holder, &holding.id);
        }
        for (node, life) in displaced {
            self.network.tell(node, Message::Drop { lives: vec![(holding.id, life)] });
        }
        if holding.standing.role() == Role::Primary {
            self.claims.published(holder, &holding.id);
        }
        match published {
            Published::Welcome(waiters) => {
                if let Some(heir) = raised {
                    self.network.tell(holder, Message::Promote { heirs: vec![heir] });
                }
                for waiter in waiters.into_iter().filter(|waiter| waiter.node != holder) {
                    self.forward(holder, holding.id, waiter, Vec::new());
                }
            }
            Published::Stale => {
                self.network.tell(holder, Message::Drop { lives: vec![(holding.id, holding.life)] });
            }
        }
    }

    /// Answers which lives of objects are on this node. An object of this node that is to take the place of
    /// another may be there already, without the other: the answer waits until this node knows.
    pub(crate) fn on_hold(self: &Rc<Self>, asked: Envelope, ids: Vec<ObjectId>, withheld: bool) {
        let doubtful = if withheld { Vec::new() } else { self.writer.doubtful(&ids) };
        let is_here = |id| self.life_here(id, asked.user).is_some();
        if doubtful.iter().all(|(id, _)| is_here(id)) {
            return self.tell_held(&asked, &ids, withheld);
        }
        let directory = Rc::clone(self);
        self.kernel.spawn(async move {
            for (id, life) in doubtful {
                directory.writer.until_known(id, life).await;
            }
            directory.tell_held(&asked, &ids, withheld);
        });
    }

    fn tell_held(&self, asked: &Envelope, ids: &[ObjectId], withheld: bool) {
        // Objects that are withheld may have been deleted while this node was no member.
        let tells = withheld || !self.cluster.withholds();
        let lives = ids.iter().map(|id| self.life_here(id, asked.user).filter(|_| tells)).collect();
        self.network.answer(asked, Message::Held { lives });
    }

    /// The life of an object on this node, if a user may see it.
    fn life_here(&self, id: &ObjectId, user: u32) -> Option<Life> {
        let objects = self.store.objects.borrow();
        let replica = objects.get(id).filter(|replica| replica.ownership().seen_by(id, user))?;
        Some(Life { life: replica.life, ownership: replica.ownership(), copies: replica.copies() })
    }

    /// Asks a keeper which nodes hold an object, and then the other keeper if the first one knows of none.
    pub(crate) async fn holders(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
    ) -> Result<Vec<(NodeId, Role)>, Error> {
        self.cluster.ensure_member()?;
        let (mut holders, mut lost) = (Vec::new(), None);
        for attempt in 0..2 {
            let keeper = self.cluster.keeper(&id, attempt);
            match self.network.ask(keeper, user, ask::Locate { id }, ASK_PATIENCE).await {
                Ok(located) => holders = located.holders,
                // The other keeper may know of a later life, or of nothing.
                Err(error) if error.kind() == ErrorKind::Lost => lost = Some(error),
                Err(error) if attempt == 1 || error.kind() == ErrorKind::Internal => return Err(error),
                Err(_) => {}
            }
            if !holders.is_empty() {
                return Ok(holders);
            }
        }
        lost.map_or(Ok(holders), Err)
    }
}

/// Sends the request of a waiter for a life of an object to a holder, which answers.
pub(super) fn forward_to(
    network: &Network,
    (holder, life): (NodeId, u64),
    id: ObjectId,
    waiter: Waiter,
    others: Vec<NodeId>,
) {
    let message = Message::Fetch { id, life, stage: Stage::Forwarded, wish: waiter.wish, others };
    let envelope = network.envelope(waiter.request, waiter.node, waiter.user, message);
    // If the holder has just gone, the asker notices and asks again.
    network.send(holder, envelope);
}

/// The error for a waiter whose object has lost all its holders.
pub(super) fn lost(id: ObjectId) -> Error {
    Error::new(
        ErrorKind::Lost,
        format!(
            "object {id} is lost: every node that held it is gone; put it again, under this name or id or \
             another"
        ),
    )
}
