//! Following the cluster: the events of the control thread, and the views of the members.
//!
//! Owns no state; it changes [`Cluster`]. Engine thread only. Membership changes first; the engine then tells
//! each room above by a [`Change`], and each room decides what that means for it. A node that is not a member
//! any more *fences* itself: it drops its peers and its part of the directory, and serves nobody its objects.

use std::rc::Rc;
use std::time::Duration;

use plasmon::NodeId;
use tracing::{debug, info, warn};

use super::Cluster;
use super::shards::ShardMap;
use crate::control::Event;
use crate::control::records::settling_time;
use crate::kernel::random::HashSet;
use crate::net::members::{Incarnation, Member, View};

/// Minimum time in which a node has to join anew, however short the lease.
const MIN_REJOIN_PATIENCE: Duration = Duration::from_secs(5);

/// A change of the membership, for the rooms above.
pub(crate) enum Change {
    /// This node follows another view.
    View(ViewChange),
    /// Records of volumes have changed.
    Records,
    /// Members join that have followed these coordinators' nodes before this one.
    FormerLives(Vec<NodeId>),
    /// This node is not a member any more.
    Fenced {
        /// The members that this node knew.
        gone: Vec<NodeId>,
    },
}

/// A view that this node follows from now on, compared with the one before.
pub(crate) struct ViewChange {
    /// Whether a membership of this node begins: peers know nothing of this incarnation.
    pub(crate) begins: bool,
    /// Whether there were views in between, which this node does not know.
    skips: bool,
    /// Members that are not members any more, or are members in another incarnation.
    pub(crate) gone: Vec<NodeId>,
    /// Members that were not members before, or not in this incarnation.
    pub(crate) fresh: HashSet<NodeId>,
    /// All members.
    pub(crate) alive: HashSet<NodeId>,
    /// The keepers of the shards before.
    pub(crate) former: Rc<ShardMap>,
    /// Whether this node never had another member in its view before.
    pub(crate) was_solo: bool,
}

impl ViewChange {
    /// Whether a member remembers what it knew in the view before. A new incarnation does not. Any other
    /// member has let go of what it did not have to keep in a view that this node did not see.
    pub(crate) fn remembers(&self, member: NodeId) -> bool {
        !self.skips && !self.fresh.contains(&member)
    }

    /// For every shard, the place at which each of its keepers stood in the view before, if that keeper
    /// remembers what it kept.
    pub(crate) fn former_places<'a>(
        &'a self,
        shards: &'a ShardMap,
    ) -> impl Iterator<Item = [Option<usize>; 2]> + 'a {
        shards.former_places(&self.former, |node| self.remembers(node))
    }

    /// Whether every shard has the same keepers as in the view before, and they remember what they kept.
    pub(crate) fn moves_nothing(&self, shards: &Rc<ShardMap>) -> bool {
        !self.skips && self.fresh.is_empty() && Rc::ptr_eq(shards, &self.former)
    }
}

impl Cluster {
    /// Acts on events of the control thread that concern the members.
    pub(crate) fn on_event(self: &Rc<Self>, event: Event) -> Option<Change> {
        match event {
            Event::Joined { incarnation, view, coordinator, records } => {
                if self.coordinator.replace(coordinator).is_some() || self.fencings.get() > 0 {
                    let settles = settling_time(self.kernel.config.lease);
                    self.settling_until.set(Some(self.kernel.clock.now() + settles));
                }
                self.volumes.give_up();
                self.volumes.begin(records);
                let own = |member: &&Member| Some(member.node) == coordinator;
                let at = view.members.iter().find(own).map(|member| member.listen.clone());
                self.coordinator_at.replace(at);
                self.connected.set(true);
                if self.fenced.replace(false) {
                    info!("this node is a member again, as incarnation {incarnation}");
                }
                self.join(incarnation, view)
            }
            // A view that was sent before this node was fenced is not valid any more.
            Event::View { view, skips } if !self.fenced() => self.follow(view, false, skips),
            Event::Records(news) if !self.fenced() => {
                self.volumes.follow(news);
                Some(Change::Records)
            }
            Event::FormerLives(lives) => Some(Change::FormerLives(lives)),
            Event::View { .. } | Event::Records(_) => None,
            Event::Proposed(proposed) => {
                self.volumes.complete(proposed);
                None
            }
            Event::Answers(true) => {
                self.connected.set(true);
                None
            }
            Event::Answers(false) => {
                self.lose_coordinator();
                None
            }
            Event::CoordinatorLost => {
                let loss = self.lose_coordinator();
                let cluster = Rc::clone(self);
                self.kernel.spawn(async move { cluster.outlive_coordinator(loss).await });
                None
            }
            Event::Expelled => {
                self.lose_coordinator();
                self.fence()
            }
            Event::Link { device, state } => {
                self.network.set_link(&device, state);
                None
            }
            Event::Stop(_) | Event::Failed(_) | Event::Asked(_) => None,
        }
    }

    /// Whether members and the records of their volumes may be missing, because this node has become a member
    /// again lately: others that were members before may be about to join again as well.
    pub(crate) fn is_settling(&self) -> bool {
        self.settling_until.get().is_some_and(|until| self.kernel.clock.now() < until)
    }

    /// Acts on the passing of time: this node's membership may have ended, or the coordinator's node may be
    /// gone.
    pub(crate) fn on_time(&self) -> Option<Change> {
        if self.has_lapsed() {
            return self.fence();
        }
        let without = self.outlived.take()?;
        let mut view = self.view();
        view.members.retain(|member| member.node != without);
        self.follow(view, false, false)
    }

    /// Notes that the coordinator does not answer; returns the number of such losses.
    fn lose_coordinator(&self) -> u64 {
        let losses = &self.losses;
        self.volumes.give_up();
        if self.connected.replace(false) {
            losses.set(losses.get() + 1);
        }
        losses.get()
    }

    /// Fences this node: it ignores its peers, keeps no directory, and waits to be a member again.
    fn fence(&self) -> Option<Change> {
        if self.fenced.replace(true) {
            return None;
        }
        self.fencings.set(self.fencings.get() + 1);
        self.withhold();
        warn!(
            "this node is not a member any more: until it is one again, it serves its objects to nobody, \
             since they may be deleted meanwhile"
        );
        let gone = self.network.follow(self.epoch(), &[]);
        self.view.borrow_mut().members.retain(|member| member.node == self.own);
        self.shards.replace(Rc::new(ShardMap::alone(self.own)));
        Some(Change::Fenced { gone })
    }

    /// Stops serving this node's objects.
    pub(crate) fn withhold(&self) {
        self.withheld.set(true);
        self.store.objects.borrow_mut().shared.live(Duration::ZERO);
    }

    /// Serves this node's objects again.
    pub(crate) fn serve_again(&self) {
        self.withheld.set(false);
        self.store.objects.borrow_mut().shared.live(self.table_life());
        self.wake_watchers();
    }

    /// Ends the waits for a change of members, when all rooms have followed it.
    pub(crate) fn wake_watchers(&self) {
        for watcher in self.watchers.take() {
            // A watcher that has gone needs no news.
            let _ = watcher.send(());
        }
    }

    /// Takes the coordinator's node for dead if it stays away for a lease, or 5 s. It does not do so at
    /// once, since this node may have been away, and is then a member again soon.
    async fn outlive_coordinator(&self, loss: u64) {
        self.kernel.clock.sleep(self.kernel.config.lease.max(MIN_REJOIN_PATIENCE)).await;
        let Some(coordinator) = self.coordinator.get() else { return };
        if self.connected() || self.losses.get() != loss {
            return;
        }
        let at = self.coordinator_at.borrow().clone().unwrap_or_default();
        warn!(
            node = %coordinator,
            "the coordinator's node is gone: the other members go on without it. Until it is back at the \
             same address (`plasmon serve --listen {at}`), no node can join, and no further death is noticed"
        );
        self.outlived.set(Some(coordinator));
    }

    /// Starts as a member, for the first time or anew: peers know nothing of this incarnation.
    fn join(&self, incarnation: Incarnation, view: View) -> Option<Change> {
        self.kernel.incarnation.set(incarnation);
        self.network.follow(self.epoch(), &[]);
        self.view.borrow_mut().members.clear();
        self.follow(view, true, false)
    }

    fn follow(&self, view: View, begins: bool, skips: bool) -> Option<Change> {
        let nodes: Vec<NodeId> = view.members.iter().map(|member| member.node).collect();
        let former = Rc::clone(&self.shards.borrow());
        let shards = match former.is_of(&nodes) {
            true => Rc::clone(&former),
            false => Rc::new(former.follow(&nodes)?),
        };
        let (epoch, members) = (view.epoch, nodes.len());
        // The first view is part of the start, of which the node tells where it serves.
        match begins {
            true => debug!(epoch, members, "following a new view of the cluster"),
            false => info!(epoch, members, "following a new view of the cluster"),
        }
        let gone = self.network.follow(view.epoch, &view.members);
        if !gone.is_empty() && self.kernel.config.secret_file.is_some() {
            self.rekeying.begin(&self.store.arena.borrow());
        }
        let now = self.kernel.clock.now();
        self.note_epoch(view.epoch);
        let place = view.members.iter().filter(|member| member.node < self.own).count();
        self.kernel.lives.note_place(place, view.members.len());
        let before = self.view.replace(view);
        self.shards.replace(shards);
        self.followed.set(Some(now));
        let known: HashSet<_> =
            before.members.iter().map(|member| (member.node, member.incarnation)).collect();
        let fresh: HashSet<NodeId> = {
            let view = self.view.borrow();
            let fresh = view.members.iter().filter(|one| !known.contains(&(one.node, one.incarnation)));
            fresh.map(|member| member.node).collect()
        };
        let was_solo = self.solo.replace(self.solo.get() && nodes.len() == 1);
        self.store.set_solo(self.solo.get());
        self.note_dead(&gone, now);
        self.former.replace((before.members.len() > 1).then(|| Rc::clone(&former)));
        let alive = nodes.into_iter().collect();
        let change = ViewChange { begins, skips, gone, fresh, alive, former, was_solo };
        self.note_moved(&change);
        Some(Change::View(change))
    }
}
