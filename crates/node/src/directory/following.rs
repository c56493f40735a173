//! How the directory follows a new view. Owns no state. Engine thread only.
//!
//! Entries of shards that are no longer kept here are removed, one share of the entries in each
//! turn. Holders publish again what the new keepers cannot know ([`repair`](super::repair)), and
//! claims are made again. A node that was not a member for a while serves its objects to nobody
//! until the keepers have seen all of them.

use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use plasmon::{NodeId, ObjectId};
use tracing::info;

use super::Directory;
use super::finding::lost;
use super::table::Waiter;
use crate::kernel::random::{HashMap, HashSet};
use crate::membership::shards::shard_of;
use crate::membership::views::ViewChange;
use crate::net::calls::Call;
use crate::net::frame::{Heir, MAX_ENTRIES, Message};

/// Interval at which a node checks whether the keepers have seen all that it holds.
const SEEN_INTERVAL: Duration = Duration::from_millis(5);
/// How long a request for a sign of life waits before the member is asked again.
const WORD_PATIENCE: Duration = Duration::from_secs(2);

impl Directory {
    /// Follows a new view.
    pub(crate) fn on_view(self: &Rc<Self>, change: &ViewChange) {
        if change.begins {
            // Peers send all news again to a new membership. They did not tell the former one what they
            // dropped since it has ended.
            self.early.forget_before(self.cluster.epoch());
            self.forget_entries();
        }
        self.early.forget_from(&change.gone);
        let (cluster, fresh) = (&self.cluster, &change.fresh);
        // When the keepers have changed, the leader of a deletion enlists the new ones.
        let leads = |id: &ObjectId, leader| {
            let keepers = cluster.keepers(id);
            keepers.first == leader && keepers.contains(self.kernel.node) && change.remembers(leader)
        };
        self.table.borrow_mut().give_up_ends(leads, self.kernel.clock.now());
        self.table.borrow_mut().give_up_replacing(leads);
        self.table.borrow_mut().forget_returning(|node| change.alive.contains(node) && !fresh.contains(node));
        self.sweep_directory(change);
        self.deletion.enroll_again();
        if !cluster.solo() {
            self.repair_after(|node| !change.was_solo && change.remembers(node));
        }
        let was_solo = change.was_solo && !cluster.solo();
        self.claims.follow(change, was_solo);
        if change.begins && cluster.withholds() {
            self.serve_when_seen();
        }
        self.follow_early();
    }

    /// Drops this node's part of the directory, because this node is not a member any more.
    pub(crate) fn on_fenced(&self) {
        self.forget_entries();
        self.table.borrow_mut().forget_returning(|_| false);
        self.early.forget_before(u64::MAX);
    }

    /// Forgets who holds what. What was deleted is remembered.
    fn forget_entries(&self) {
        let mut table = self.table.borrow_mut();
        table.follow(|_| false, HashSet::from_iter([self.kernel.node]), self.kernel.clock.now());
        // Nodes that waited here ask another keeper.
        table.finish();
    }

    /// Withholds the objects that a former daemon left on this node's disk until the keepers have
    /// seen those objects.
    pub(crate) fn withhold_recovered(self: &Rc<Self>) {
        if !self.cluster.solo() {
            self.cluster.withhold();
            self.serve_when_seen();
        }
    }

    /// Serves the objects of this node again when the keepers have been told of all of them, and this
    /// node has dropped those objects that the keepers remember as deleted.
    fn serve_when_seen(self: &Rc<Self>) {
        let (directory, incarnation) = (Rc::clone(self), self.kernel.incarnation.get());
        let ended = move |directory: &Self| {
            directory.cluster.fenced() || directory.kernel.incarnation.get() != incarnation
        };
        self.kernel.spawn(async move {
            loop {
                // The pending news have left by then.
                directory.kernel.clock.sleep(SEEN_INTERVAL).await;
                if directory.repairs() && !ended(&directory) {
                    continue;
                }
                let epoch = directory.cluster.epoch();
                let others = directory.cluster.others(&[directory.kernel.node]);
                join_all(others.iter().map(|node| directory.hear_from(*node, epoch))).await;
                if ended(&directory) {
                    // The next membership serves the objects again.
                    return;
                }
                if !directory.repairs() && directory.cluster.epoch() == epoch {
                    break;
                }
            }
            info!("this node serves its objects again: all keepers have seen them");
            directory.cluster.serve_again();
            directory.tell_serving(&directory.cluster.others(&[]));
        });
    }

    /// Tells nodes that this node serves its objects, unless it withholds them.
    pub(super) fn tell_serving(&self, nodes: &[NodeId]) {
        if !self.cluster.withholds() {
            nodes.iter().for_each(|node| _ = self.network.tell(*node, Message::Serve));
        }
    }

    /// Waits for a message of a member that follows this epoch. Everything that the member sent
    /// before has then arrived.
    async fn hear_from(self: &Rc<Self>, node: NodeId, epoch: u64) {
        while self.cluster.is_member(node) && self.cluster.epoch() == epoch {
            let mut call = Call::open(&self.network, Some(node));
            call.send(node, 0, Message::Hold { ids: Vec::new(), withheld: false });
            let due = Some(self.kernel.clock.now() + WORD_PATIENCE);
            let answer = self.kernel.clock.bounded(due, call.answer()).await.flatten();
            if answer.is_some_and(|answer| answer.epoch >= epoch) {
                return;
            }
            self.kernel.clock.sleep(SEEN_INTERVAL).await;
        }
    }

    /// Has the directory follow the present members, one share of the entries in each turn.
    fn sweep_directory(self: &Rc<Self>, change: &ViewChange) {
        let kept: Rc<[bool]> = self.cluster.shards.borrow().kept_by(self.kernel.node).collect();
        let follow = |alive| {
            let kept = Rc::clone(&kept);
            let kept_here = move |id: &ObjectId| kept[shard_of(id)];
            let lost = self.table.borrow_mut().follow(kept_here, alive, self.kernel.clock.now());
            self.tell_lost(lost);
        };
        let mut alive = change.alive.clone();
        alive.retain(|node| !change.gone.contains(node));
        if alive.len() < change.alive.len() {
            // A member in another incarnation tells again what it holds, and not what it holds no longer.
            follow(alive);
        }
        follow(change.alive.clone());
        let (directory, epoch) = (Rc::clone(self), self.cluster.epoch());
        self.kernel.spawn(async move {
            // The next view has a task of its own.
            while directory.cluster.epoch() == epoch {
                let Some(lost) = directory.table.borrow_mut().sweep() else { return };
                directory.tell_lost(lost);
                directory.kernel.clock.sleep(Duration::ZERO).await;
            }
        });
    }

    /// Finishes the sweep for the present members before a later view is followed.
    pub(crate) fn finish_sweep(&self) {
        let lost = self.table.borrow_mut().finish();
        self.tell_lost(lost);
    }

    /// Tells nodes that the objects for which they waited are lost.
    fn tell_lost(&self, waiters: Vec<(ObjectId, Waiter)>) {
        for (id, waiter) in waiters {
            let message = Message::Refused { error: lost(id) };
            self.network
                .send(waiter.node, self.network.envelope(waiter.request, waiter.node, waiter.user, message));
        }
    }

    /// Drops what has expired in the directory, and finds a primary for objects without one.
    pub(crate) fn tend_directory(&self) {
        let mut by_node: HashMap<NodeId, Vec<Heir>> = HashMap::default();
        for (node, heir) in self.table.borrow_mut().expire(self.kernel.clock.now()) {
            by_node.entry(node).or_default().push(heir);
        }
        for (node, heirs) in by_node {
            for heirs in heirs.chunks(MAX_ENTRIES) {
                self.network.tell(node, Message::Promote { heirs: heirs.to_vec() });
            }
        }
    }
}
