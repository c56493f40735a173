//! Following the cluster: new views, and what the directory is told anew then.
//!
//! Engine thread only. On a new view every holder publishes again what the new keepers cannot know, which is all
//! the repair a lost shard needs.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use tracing::{info, warn};

use super::frame::{Holding, MAX_ENTRIES};
use super::news::{Batches, Change};
use super::shards::ShardMap;
use super::{Event, Incarnation, Message, View};
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
                self.join(incarnation, view);
            }
            Event::View(view) => self.follow(view),
            Event::CoordinatorLost => {
                self.cluster.connected.set(false);
                let loss = self.cluster.losses.get() + 1;
                self.cluster.losses.set(loss);
                let core = Rc::clone(self);
                self.spawn(async move { core.outlive_coordinator(loss).await });
            }
            Event::Link { device, state } => self.network.set_link(&device, state),
            Event::Stop(_) | Event::Failed(_) | Event::Asked(_) => {}
        }
    }

    /// Takes the coordinator's node for dead if it stays away for a lease, or 5 s. Not at once: it may be this
    /// node that was away, and then it is a member again in a moment.
    async fn outlive_coordinator(self: &Rc<Self>, loss: u64) {
        self.clock.sleep(self.config.lease.max(REJOIN)).await;
        let coordinator = self.cluster.coordinator.get();
        if self.cluster.connected() || self.cluster.losses.get() != loss {
            return;
        }
        warn!(
            node = %coordinator,
            "the coordinator's node is gone: the other members go on without it, nobody can \
             join until it is back"
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
        self.follow(view);
    }

    fn follow(self: &Rc<Self>, view: View) {
        let nodes: Vec<NodeId> = view.members.iter().map(|member| member.node).collect();
        let Some(shards) = ShardMap::new(&nodes) else {
            return;
        };
        info!(epoch = view.epoch, members = nodes.len(), "following a new view of the cluster");
        let cluster = &self.cluster;
        let gone = self.network.follow(self.node, &view.members);
        cluster.abandon(&gone);
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
        let was_solo = cluster.solo.replace(cluster.solo.get() && nodes.len() == 1);
        self.objects.borrow_mut().shared.set_solo(cluster.solo.get());
        let lost_waiters = cluster.directory.borrow_mut().follow(
            |id| cluster.keepers(id).contains(self.node),
            |node| nodes.contains(&node),
            self.clock.now(),
        );
        for (id, waiter) in lost_waiters {
            let message = Message::Refused { error: lost(id) };
            self.send(waiter.node, self.envelope(waiter.request, waiter.node, waiter.tenant, message));
        }
        if !cluster.solo.get() {
            self.republish(&old_shards, &fresh, was_solo);
        }
        for watcher in cluster.watchers.take() {
            // Whoever stopped watching needs no news.
            let _ = watcher.send(());
        }
        for envelope in self.network.admit_strangers(self.clock.now()) {
            self.dispatch(envelope);
        }
    }

    /// Tells the keepers of this view what they cannot know from the one before.
    fn republish(&self, old: &ShardMap, fresh: &HashSet<NodeId>, all: bool) {
        let mut batches = Batches::default();
        for replica in self.objects.borrow().sealed() {
            let before = old.keepers(&replica.id());
            for keeper in self.cluster.keepers(&replica.id()).iter() {
                if all || fresh.contains(&keeper) || !before.contains(keeper) {
                    batches.add(keeper, Change::Publish(Holding::of(replica)));
                }
            }
        }
        batches.send(self);
    }

    /// Publishes again to keepers that may have missed something.
    pub(crate) fn republish_to(&self, keepers: &[NodeId]) {
        if keepers.is_empty() {
            return;
        }
        let mut batches = Batches::default();
        for replica in self.objects.borrow().sealed() {
            for keeper in self.cluster.keepers(&replica.id()).iter().filter(|one| keepers.contains(one)) {
                batches.add(keeper, Change::Publish(Holding::of(replica)));
            }
        }
        batches.send(self);
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
