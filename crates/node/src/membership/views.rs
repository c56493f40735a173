//! Following the cluster: new views, and what the directory is told anew then.
//!
//! Engine thread only. On a new view every holder publishes again what the new keepers cannot know
//! ([`repair`](crate::directory::repair)), which is all that a lost shard needs. A node that is no member any more *fences*
//! itself: it lets go of its peers and of its part of the directory, and only what is here is still served here.

use crate::kernel::random::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use tracing::{info, warn};

use super::shards::{ShardMap, shard_of};
use crate::control::Event;
use crate::directory::repair::LAST_REPEAT;
use crate::directory::table::Waiter;
use crate::engine::Core;
use crate::net::calls::Call;
use crate::net::frame::Message;
use crate::net::frame::{Heir, MAX_ENTRIES};
use crate::net::members::{Incarnation, View};

/// What joining anew is given at least, however short the lease.
const MIN_REJOIN_PATIENCE: Duration = Duration::from_secs(5);

/// How often a node looks whether the keepers have seen all that it holds.
const SEEN_INTERVAL: Duration = Duration::from_millis(5);
/// How long word of a member is waited for before it is asked again.
const WORD_PATIENCE: Duration = Duration::from_secs(2);

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
                self.kernel.spawn(async move { core.outlive_coordinator(loss).await });
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
        self.withhold();
        warn!(
            "this node is no member any more: until it is one again it gives nobody what it holds, since that may be \
             deleted meanwhile"
        );
        let gone = self.network.follow(cluster.epoch(), &[]);
        {
            let mut directory = cluster.directory.borrow_mut();
            directory.follow(|_| false, HashSet::from_iter([self.kernel.node]), self.kernel.clock.now());
            // Whoever waited here asks another keeper.
            directory.finish();
        }
        self.abandon_feeds(&gone);
        cluster.early.forget();
        cluster.view.borrow_mut().members.retain(|member| member.node == self.kernel.node);
        cluster.shards.replace(ShardMap::alone(self.kernel.node));
        self.wake_watchers();
    }

    /// Gives nobody what is here from now on.
    fn withhold(&self) {
        self.cluster.withheld.set(true);
        self.store.objects.borrow_mut().shared.live(Duration::ZERO);
    }

    /// Gives nobody what a former daemon left on this node's disk before the keepers have seen it.
    pub(crate) fn withhold_recovered(self: &Rc<Self>) {
        if !self.cluster.solo() {
            self.withhold();
            self.serve_when_seen();
        }
    }

    /// Gives what is here again, when the keepers have been told of all of it, and have had dropped what they remember as
    /// deleted.
    fn serve_when_seen(self: &Rc<Self>) {
        let (core, incarnation) = (Rc::clone(self), self.kernel.incarnation.get());
        let ended = move |core: &Self| core.cluster.fenced() || core.kernel.incarnation.get() != incarnation;
        self.kernel.spawn(async move {
            if core.cluster.losses() > 0 {
                // What was told on connections of the former membership is told again then.
                core.kernel.clock.sleep(LAST_REPEAT).await;
            }
            loop {
                // What is to be told has left by then.
                core.kernel.clock.sleep(SEEN_INTERVAL).await;
                if core.repairs() && !ended(&core) {
                    continue;
                }
                let epoch = core.cluster.epoch();
                let others = core.others(&[core.kernel.node]);
                join_all(others.iter().map(|node| core.hear_from(*node, epoch))).await;
                if ended(&core) {
                    // The next membership sees to it.
                    return;
                }
                if !core.repairs() && core.cluster.epoch() == epoch {
                    break;
                }
            }
            info!("what this node holds is given out again: all keepers have seen it");
            core.cluster.withheld.set(false);
            core.store.objects.borrow_mut().shared.live(core.cluster.table_life(core.kernel.clock.now()));
            core.wake_watchers();
        });
    }

    /// Waits for word of a member that follows this epoch: what it had to say before has arrived then.
    async fn hear_from(self: &Rc<Self>, node: NodeId, epoch: u64) {
        while self.cluster.is_member(node) && self.cluster.epoch() == epoch {
            let mut call = Call::open(&self.network, Some(node));
            call.send(node, 0, Message::Hold { ids: Vec::new() });
            let due = Some(self.kernel.clock.now() + WORD_PATIENCE);
            let answer = self.kernel.clock.bounded(due, call.answer()).await.flatten();
            if answer.is_some_and(|answer| answer.epoch >= epoch) {
                return;
            }
            self.kernel.clock.sleep(SEEN_INTERVAL).await;
        }
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
        self.kernel.clock.sleep(self.kernel.config.lease.max(MIN_REJOIN_PATIENCE)).await;
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
        self.kernel.incarnation.set(incarnation);
        self.network.follow(self.cluster.epoch(), &[]);
        self.cluster.view.borrow_mut().members.clear();
        self.cluster.early.forget();
        let others: Vec<_> = view.members.iter().map(|member| member.node).collect();
        self.follow(view);
        if self.cluster.withholds() {
            self.serve_when_seen();
        }
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
        let gone = self.network.follow(view.epoch, &view.members);
        if !gone.is_empty() && self.kernel.config.secret_file.is_some() {
            cluster.rekeying.begin(&self.store.arena.borrow());
        }
        let before = cluster.view.replace(view);
        let old_shards = cluster.shards.replace(shards);
        cluster.followed.set(Some(self.kernel.clock.now()));
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
        self.store.set_solo(cluster.solo.get());
        cluster.note_dead(&gone, self.kernel.clock.now());
        cluster.note_moved(&old_shards, &fresh);
        // Who leads a deletion tells anew whom it concerns when the keepers have changed.
        let leads = |id: &ObjectId, leader| {
            let keepers = cluster.keepers(id);
            keepers.first == leader && keepers.contains(self.kernel.node) && !fresh.contains(&leader)
        };
        cluster.directory.borrow_mut().give_up_ends(leads, self.kernel.clock.now());
        self.sweep_directory(alive.clone());
        self.enroll_again();
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
        cluster.former.replace((before.members.len() > 1).then_some(old_shards));
        self.wake_watchers();
        self.follow_early();
        for envelope in self.network.admit_strangers(self.kernel.clock.now()) {
            self.dispatch(envelope);
        }
    }

    /// Has the directory follow the members that there are now, a share of its entries a turn.
    fn sweep_directory(self: &Rc<Self>, alive: HashSet<NodeId>) {
        let kept: Vec<bool> =
            self.cluster.shards.borrow().iter().map(|keepers| keepers.contains(self.kernel.node)).collect();
        let kept_here = move |id: &ObjectId| kept[shard_of(id)];
        let lost = self.cluster.directory.borrow_mut().follow(kept_here, alive, self.kernel.clock.now());
        self.tell_lost(lost);
        let (core, epoch) = (Rc::clone(self), self.cluster.epoch());
        self.kernel.spawn(async move {
            // The next view has a task of its own.
            while core.cluster.epoch() == epoch {
                let Some(lost) = core.cluster.directory.borrow_mut().sweep() else { return };
                core.tell_lost(lost);
                core.kernel.clock.sleep(Duration::ZERO).await;
            }
        });
    }

    /// The directory is to have followed the members of now, before those of a later view are heard of.
    pub(crate) fn finish_sweep(&self) {
        let lost = self.cluster.directory.borrow_mut().finish();
        self.tell_lost(lost);
    }

    /// Tells those who waited for objects that are lost.
    fn tell_lost(&self, waiters: Vec<(ObjectId, Waiter)>) {
        for (id, waiter) in waiters {
            let message = Message::Refused { error: lost(id) };
            self.network.send(waiter.node, self.network.envelope(waiter.request, waiter.node, waiter.tenant, message));
        }
    }

    /// Lets go of what has expired in the directory, and sees to objects without a primary.
    pub(crate) fn tend_directory(&self) {
        let mut by_node: HashMap<NodeId, Vec<Heir>> = HashMap::default();
        for (node, heir) in self.cluster.directory.borrow_mut().expire(self.kernel.clock.now()) {
            by_node.entry(node).or_default().push(heir);
        }
        for (node, heirs) in by_node {
            for heirs in heirs.chunks(MAX_ENTRIES) {
                self.network.tell(node, Message::Promote { heirs: heirs.to_vec() });
            }
        }
    }
}

/// What a waiter is told of an object whose holders are all gone.
pub(crate) fn lost(id: ObjectId) -> Error {
    Error::new(
        ErrorKind::Lost,
        format!(
            "object {id} is lost: every node that held it is gone; create it again, under another id or this"
        ),
    )
}
