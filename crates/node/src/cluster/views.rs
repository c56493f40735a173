//! Following the cluster: new views, and what the directory is told anew then.
//!
//! Engine thread only. On a new view every holder publishes again what the new keepers cannot know
//! ([`repair`](super::repair)), which is all that a lost shard needs. A node that is no member any more *fences*
//! itself: it lets go of its peers and of its part of the directory, and only what is here is still served here.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use tracing::{info, warn};

use super::directory::Waiter;
use super::frame::MAX_ENTRIES;
use super::shards::{ShardMap, shard_of};
use super::{Event, Incarnation, Message, NEW, View};
use crate::engine::Core;

/// What joining anew is given at least, however short the lease.
const REJOIN: Duration = Duration::from_secs(5);

impl Core {
    /// Acts on news from the control thread that concern the cluster.
    pub(crate) fn on_membership(self: &Rc<Self>, event: Event) {
        match event {
            Event::Joined { incarnation, view, coordinator } => {
                self.cluster.coordinator.set(coordinator);
                self.cluster.connected.set(true);
                if self.cluster.fenced.replace(false) {
                    info!("this node is a member again, as incarnation {incarnation}");
                }
                self.join(incarnation, view);
            }
            // One that was sent before this node was fenced is no truth any more.
            Event::View(view) if !self.cluster.fenced() => self.follow(view),
            Event::View(_) => {}
            Event::Answers(true) => self.cluster.connected.set(true),
            Event::Answers(false) => {
                self.lose_coordinator();
            }
            Event::CoordinatorLost => {
                let loss = self.lose_coordinator();
                let core = Rc::clone(self);
                self.spawn(async move { core.outlive_coordinator(loss).await });
            }
            Event::Expelled => {
                self.lose_coordinator();
                self.fence();
            }
            Event::Link { device, state } => self.network.set_link(&device, state),
            Event::Stop(_) | Event::Failed(_) | Event::Asked(_) => {}
        }
    }

    /// The coordinator does not answer: counts how often that was so.
    fn lose_coordinator(&self) -> u64 {
        let losses = &self.cluster.losses;
        if self.cluster.connected.replace(false) {
            losses.set(losses.get() + 1);
        }
        losses.get()
    }

    /// This node is no member any more: it talks to nobody, keeps no directory, and waits to be one again.
    pub(crate) fn fence(self: &Rc<Self>) {
        let cluster = &self.cluster;
        if cluster.fenced.replace(true) {
            return;
        }
        cluster.fencings.set(cluster.fencings.get() + 1);
        warn!(
            "this node is no member any more: until it is one again it serves no other node, and its clients only \
             what it holds"
        );
        let gone = self.network.follow(self.node, &[]);
        cluster.abandon(&gone);
        {
            let mut directory = cluster.directory.borrow_mut();
            directory.follow(|_| false, HashSet::from([self.node]), self.clock.now());
            // Whoever waited here asks another keeper.
            directory.finish();
        }
        self.abandon_feeds(&gone);
        cluster.view.borrow_mut().members.retain(|member| member.node == self.node);
        cluster.shards.replace(ShardMap::alone(self.node));
        self.wake_watchers();
    }

    fn wake_watchers(&self) {
        for watcher in self.cluster.watchers.take() {
            // Whoever stopped watching needs no news.
            let _ = watcher.send(());
        }
    }

    /// Takes the coordinator's node for dead if it stays away for a lease, or 5 s. Not at once: it may be this
    /// node that was away, and then it is a member again in a moment.
    async fn outlive_coordinator(self: &Rc<Self>, loss: u64) {
        self.clock.sleep(self.config.lease.max(REJOIN)).await;
        let Some(coordinator) = self.cluster.coordinator.get() else { return };
        if self.cluster.connected() || self.cluster.losses.get() != loss {
            return;
        }
        warn!(
            node = %coordinator,
            "the coordinator's node is gone: the other members go on without it. Until it is back, at the same address, \
             nobody can join, and no further death is noticed"
        );
        let mut view = self.cluster.view();
        view.members.retain(|member| member.node != coordinator);
        self.follow(view);
    }

    /// Starts as a member, for the first time or anew: peers know nothing of this incarnation.
    fn join(self: &Rc<Self>, incarnation: Incarnation, view: View) {
        self.incarnation.set(incarnation);
        let gone = self.network.follow(self.node, &[]);
        self.cluster.abandon(&gone);
        self.cluster.view.borrow_mut().members.clear();
        let others: Vec<_> = view.members.iter().map(|member| member.node).collect();
        self.follow(view);
        if self.cluster.losses() > 0 {
            // The others end the connections of this node's former life when they hear of this one.
            self.repeat_to(others);
        }
    }

    fn follow(self: &Rc<Self>, view: View) {
        let nodes: Vec<NodeId> = view.members.iter().map(|member| member.node).collect();
        let Some(shards) = self.cluster.shards.borrow().follow(&nodes) else {
            return;
        };
        let alive: HashSet<_> = nodes.iter().copied().collect();
        info!(epoch = view.epoch, members = nodes.len(), "following a new view of the cluster");
        let cluster = &self.cluster;
        let gone = self.network.follow(self.node, &view.members);
        cluster.abandon(&gone);
        if !gone.is_empty() {
            self.rekey();
        }
        let before = cluster.view.replace(view);
        let old_shards = cluster.shards.replace(shards);
        // A member of this view that was none before, or not in this life.
        let known: HashSet<_> =
            before.members.iter().map(|member| (member.node, member.incarnation)).collect();
        let fresh: HashSet<NodeId> = cluster
            .view
            .borrow()
            .members
            .iter()
            .filter(|member| !known.contains(&(member.node, member.incarnation)))
            .map(|member| member.node)
            .collect();
        let again = |node: &NodeId| before.members.iter().any(|member| member.node == *node);
        let again: Vec<NodeId> = fresh.iter().copied().filter(again).collect();
        let was_solo = cluster.solo.replace(cluster.solo.get() && nodes.len() == 1);
        self.objects.borrow_mut().shared.set_solo(cluster.solo.get());
        self.sweep_directory(alive.clone());
        if !cluster.solo.get() {
            self.repair_after(&fresh, was_solo);
            self.repeat_to(again);
        }
        self.abandon_feeds(&gone);
        self.follow_claims(
            &old_shards,
            &fresh,
            |node| alive.contains(&node),
            was_solo && !cluster.solo.get(),
        );
        let former = (before.members.len() > 1).then_some(old_shards);
        cluster.former.replace(Some((former, self.clock.now() + NEW)));
        self.wake_watchers();
        self.follow_early();
        for envelope in self.network.admit_strangers(self.clock.now()) {
            self.dispatch(envelope);
        }
    }

    /// Has the directory follow the members that there are now, a share of its entries a turn.
    fn sweep_directory(self: &Rc<Self>, alive: HashSet<NodeId>) {
        let kept: Vec<bool> =
            self.cluster.shards.borrow().iter().map(|keepers| keepers.contains(self.node)).collect();
        let kept_here = move |id: &ObjectId| kept[shard_of(id)];
        let lost = self.cluster.directory.borrow_mut().follow(kept_here, alive, self.clock.now());
        self.tell_lost(lost);
        let (core, epoch) = (Rc::clone(self), self.cluster.epoch());
        self.spawn(async move {
            // The next view has a task of its own.
            while core.cluster.epoch() == epoch {
                let Some(lost) = core.cluster.directory.borrow_mut().sweep() else { return };
                core.tell_lost(lost);
                core.clock.sleep(Duration::ZERO).await;
            }
        });
    }

    /// The directory is to have followed the members of now, before those of a later view are heard of.
    pub(super) fn finish_sweep(&self) {
        let lost = self.cluster.directory.borrow_mut().finish();
        self.tell_lost(lost);
    }

    /// Tells those who waited for objects that are lost.
    fn tell_lost(&self, waiters: Vec<(ObjectId, Waiter)>) {
        for (id, waiter) in waiters {
            let message = Message::Refused { error: lost(id) };
            self.send(waiter.node, self.envelope(waiter.request, waiter.node, waiter.tenant, message));
        }
    }

    /// Lets go of what has expired in the directory, and sees to objects without a primary.
    pub(crate) fn tend_directory(&self) {
        let mut by_heir: HashMap<NodeId, Vec<ObjectId>> = HashMap::new();
        for (heir, id) in self.cluster.directory.borrow_mut().expire(self.clock.now()) {
            by_heir.entry(heir).or_default().push(id);
        }
        for (heir, ids) in by_heir {
            for ids in ids.chunks(MAX_ENTRIES) {
                self.tell(heir, Message::Promote { ids: ids.to_vec() });
            }
        }
    }
}

/// What a waiter is told of an object whose holders are all gone.
pub(super) fn lost(id: ObjectId) -> Error {
    Error::new(
        ErrorKind::Lost,
        format!(
            "object {id} is lost: every node that held it is gone; create it again, under another id or this"
        ),
    )
}
