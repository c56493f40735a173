//! What a node does with a frame. Engine thread only; nothing here waits.

use std::rc::Rc;
use std::time::Duration;

use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Core;
use crate::directory::table::{Lookup, Published, Waiter};
use crate::membership::views::lost;
use crate::net::frame::{Envelope, Message};
use crate::net::frame::{Holding, MAX_ENTRIES, Stage, ask};
use crate::object::{Replica, Role};

/// How long keepers are waited for.
const ASK_PATIENCE: Duration = Duration::from_secs(5);

impl Core {
    /// Acts on a member's frame.
    pub(crate) fn dispatch(self: &Rc<Self>, envelope: Envelope) {
        self.cluster.trust(&envelope.from);
        if envelope.message.is_answer() {
            if let Some(Envelope { from, request, message, .. }) = self.network.complete(envelope)
                && message.comes_with_a_lease()
            {
                // Whoever asked has given up: the holder need not keep it for him.
                self.network.tell(from, Message::Release { requests: vec![request] });
            }
            return;
        }
        if let Some(envelope) = self.hold_early(envelope) {
            self.act(envelope);
        }
    }

    /// Does what a member asks for, or takes note of what it says.
    pub(crate) fn act(self: &Rc<Self>, envelope: Envelope) {
        let Envelope { from, request, reply_to, tenant, .. } = envelope;
        match &envelope.message {
            Message::Fetch { id, stage: Stage::Asked | Stage::Missed, .. }
                if !self.cluster.keepers(id).contains(self.kernel.node) =>
            {
                // What is left here of a shard that moved says nothing any more. An asker that follows another view than
                // both asks again.
                let asked = self.network.envelope(request, reply_to, tenant, envelope.message.clone());
                _ = from == reply_to && self.network.send(self.cluster.keepers(id).first, asked);
            }
            Message::Fetch { id, stage: stage @ (Stage::Asked | Stage::Missed), avoid, wish } => {
                let waiter = Waiter { node: reply_to, request, tenant, wish: *wish };
                let now = self.kernel.clock.now();
                let found = self.cluster.directory.borrow_mut().fetch(*id, waiter, avoid, now);
                match found {
                    Lookup::Holder(holder, others) => self.forward(holder, *id, waiter, others),
                    // A new one may have been sealed, and its publication be on the way: the first keeper knows who
                    // creates it.
                    Lookup::Lost
                        if self.cluster.keepers(id).first != self.kernel.node && from == reply_to =>
                    {
                        let (stage, avoid) = (Stage::Missed, avoid.clone());
                        let missed = Message::Fetch { id: *id, stage, avoid, wish: *wish };
                        let missed = self.network.envelope(request, reply_to, tenant, missed);
                        self.network.send(self.cluster.keepers(id).first, missed);
                    }
                    Lookup::Lost if self.cluster.claimer(id).is_some() => {
                        self.cluster.directory.borrow_mut().await_object(*id, waiter, now);
                    }
                    Lookup::Lost => self.network.answer(&envelope, Message::Refused { error: lost(*id) }),
                    Lookup::Waiting if *stage == Stage::Missed => self.on_missed(envelope.clone(), *id),
                    Lookup::Waiting => {}
                }
            }
            Message::Fetch { id, avoid, wish, .. } => self.serve(&envelope, *id, *wish, avoid),
            Message::Probe { of, len } => self.on_probe(&envelope, *of, *len),
            Message::Lend { len } => self.on_lend(&envelope, *len),
            Message::Ready { request } => self.stream(from, *request),
            Message::Part { request, at, bytes } => self.take_part(from, *request, *at, bytes),
            Message::Forget { id } => {
                self.cluster.directory.borrow_mut().forget(id, reply_to, request);
            }
            Message::Renew { lease } => self.renew(&envelope, *lease),
            Message::Release { requests } => self.release_leases(from, requests),
            Message::Publish { holdings } => {
                // Whoever follows an older view may take this node for a keeper that it is not any more; with the
                // next view it tells those who are. One that is ahead of this node knows better.
                let behind = envelope.epoch < self.cluster.epoch();
                if envelope.epoch > self.cluster.epoch() {
                    self.finish_sweep();
                }
                let kept =
                    |one: &&Holding| !behind || self.cluster.keepers(&one.id).contains(self.kernel.node);
                holdings.iter().filter(kept).for_each(|one| self.published(from, *one));
            }
            Message::Unpublish { how, ids } => {
                let (mut directory, now) = (self.cluster.directory.borrow_mut(), self.kernel.clock.now());
                ids.iter().for_each(|id| directory.withdrawn(from, *id, *how, now));
            }
            Message::Delete { lives } => self.on_delete(envelope.clone(), lives.clone()),
            Message::Enlist { lives } => self.on_enlist(&envelope, lives),
            Message::Bury { lives } => self.on_bury(&envelope, lives),
            Message::Drop { lives } => self.on_drop(&envelope, lives),
            Message::Hold { ids } => self.on_hold(&envelope, ids),
            Message::Enroll { id } => self.on_enroll(&envelope, *id),
            Message::Promote { heirs } => heirs.iter().for_each(|heir| self.inherit(heir)),
            Message::Claim { id, probe } => self.on_claim(&envelope, *id, *probe),
            Message::Unclaim { ids } => self.on_unclaim(from, ids),
            Message::Affirm { ids } => self.on_affirm(from, ids),
            Message::Taken { ids } => self.on_taken(ids),
            Message::Acquire { order } => self.on_order(envelope.clone(), *order),
            Message::Migrate { id, to } => self.on_migrate(envelope.clone(), *id, *to),
            Message::HandOver { id, life, to, keep } => {
                self.on_hand_over(envelope.clone(), (*id, *life), *to, *keep);
            }
            Message::Passed { request, bytes, state } => self.take_passed(from, *request, *bytes, *state),
            Message::Locate { id } => {
                let mut holders = self.cluster.directory.borrow_mut().holders(id, tenant);
                holders.truncate(MAX_ENTRIES);
                self.network.answer(&envelope, Message::Located { holders });
            }
            Message::Query { ids } => self.on_query(envelope.clone(), ids.clone()),
            Message::Report => {
                let json = self.summary_json().into();
                self.network.answer(&envelope, Message::Reported { json });
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
        let envelope = self.network.envelope(waiter.request, waiter.node, waiter.tenant, message);
        if holder == self.kernel.node {
            self.serve(&envelope, id, wish, &others);
        } else {
            // A holder that has just gone is noticed by the asker, who asks again.
            self.network.send(holder, envelope);
        }
    }

    /// A node holds an object: those who waited for it are sent there.
    fn published(self: &Rc<Self>, holder: NodeId, holding: Holding) {
        let now = self.kernel.clock.now();
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
                self.network.tell(holder, Message::Drop { lives: vec![(holding.id, holding.life)] });
            }
        }
    }

    /// Remembers the end of a replica's life that this node's own client ended.
    pub(crate) fn bury(&self, replica: &Replica) {
        let (id, life) = (replica.id(), replica.life);
        self.cluster.directory.borrow_mut().bury(id, life, self.kernel.clock.now());
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
            match self.network.ask(keeper, tenant, ask::Locate { id }, ASK_PATIENCE).await {
                Ok(located) => holders = located.holders,
                Err(error) if attempt == 1 || error.kind() == ErrorKind::Internal => return Err(error),
                Err(_) => {}
            }
            if !holders.is_empty() {
                break;
            }
        }
        Ok(holders)
    }
}
