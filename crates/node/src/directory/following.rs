//! What a new view means for the directory. Engine thread only.
//!
//! The part of a shard that is no longer kept here is swept out, a share of the entries a turn; what keepers
//! cannot know is published to them anew ([`repair`](super::repair)); claims are made again. A node that was
//! no member for a while gives nobody what it holds until the keepers have seen all of it.

use std::rc::Rc;
use std::time::Duration;

use futures::future::join_all;
use plasmon::{NodeId, ObjectId};
use tracing::info;

use super::Directory;
use super::finding::lost;
use super::repair::LAST_REPEAT;
use super::table::Waiter;
use crate::kernel::random::{HashMap, HashSet};
use crate::membership::shards::shard_of;
use crate::membership::views::ViewChange;
use crate::net::calls::Call;
use crate::net::frame::{Heir, MAX_ENTRIES, Message};

/// How often a node looks whether the keepers have seen all that it holds.
const SEEN_INTERVAL: Duration = Duration::from_millis(5);
/// How long word of a member is waited for before it is asked again.
const WORD_PATIENCE: Duration = Duration::from_secs(2);

impl Directory {
    /// Follows a new view.
    pub(crate) fn on_view(self: &Rc<Self>, change: &ViewChange) {
        if change.begins {
            // To a new membership peers say all of it again.
            self.early.forget();
        }
        let (cluster, fresh) = (&self.cluster, &change.fresh);
        // Who leads a deletion tells anew whom it concerns when the keepers have changed.
        let leads = |id: &ObjectId, leader| {
            let keepers = cluster.keepers(id);
            keepers.first == leader && keepers.contains(self.kernel.node) && !fresh.contains(&leader)
        };
        self.table.borrow_mut().give_up_ends(leads, self.kernel.clock.now());
        self.table.borrow_mut().forget_returning(|node| change.alive.contains(node) && !fresh.contains(node));
        self.sweep_directory(change.alive.clone());
        self.enroll_again();
        if !cluster.solo() {
            self.repair_after(fresh, change.was_solo);
            self.repeat_to(change.again.clone());
        }
        let was_solo = change.was_solo && !cluster.solo();
        self.follow_claims(&change.former, fresh, |node| change.alive.contains(&node), was_solo);
        if change.begins {
            if cluster.withholds() {
                self.serve_when_seen();
            }
            if cluster.losses() > 0 {
                // The others end the connections of this node's former life when they hear of this one.
                self.repeat_to(change.alive.iter().copied().collect());
            }
        }
        self.follow_early();
    }

    /// Drops this node's part of the directory, since this node is no member any more.
    pub(crate) fn on_fenced(&self) {
        let mut table = self.table.borrow_mut();
        table.follow(|_| false, HashSet::from_iter([self.kernel.node]), self.kernel.clock.now());
        // Whoever waited here asks another keeper.
        table.finish();
        table.forget_returning(|_| false);
        self.early.forget();
    }

    /// Gives nobody what a former daemon left on this node's disk before the keepers have seen it.
    pub(crate) fn withhold_recovered(self: &Rc<Self>) {
        if !self.cluster.solo() {
            self.cluster.withhold();
            self.serve_when_seen();
        }
    }

    /// Gives what is here again, when the keepers have been told of all of it, and have had dropped what they
    /// remember as deleted.
    fn serve_when_seen(self: &Rc<Self>) {
        let (directory, incarnation) = (Rc::clone(self), self.kernel.incarnation.get());
        let ended = move |directory: &Self| {
            directory.cluster.fenced() || directory.kernel.incarnation.get() != incarnation
        };
        self.kernel.spawn(async move {
            if directory.cluster.losses() > 0 {
                // What was told on connections of the former membership is told again then.
                directory.kernel.clock.sleep(LAST_REPEAT).await;
            }
            loop {
                // What is to be told has left by then.
                directory.kernel.clock.sleep(SEEN_INTERVAL).await;
                if directory.repairs() && !ended(&directory) {
                    continue;
                }
                let epoch = directory.cluster.epoch();
                let others = directory.cluster.others(&[directory.kernel.node]);
                join_all(others.iter().map(|node| directory.hear_from(*node, epoch))).await;
                if ended(&directory) {
                    // The next membership sees to it.
                    return;
                }
                if !directory.repairs() && directory.cluster.epoch() == epoch {
                    break;
                }
            }
            info!("what this node holds is given out again: all keepers have seen it");
            directory.cluster.serve_again();
            directory.tell_serving(&directory.cluster.others(&[]));
        });
    }

    /// Tells nodes that this one gives out what it holds.
    pub(super) fn tell_serving(&self, nodes: &[NodeId]) {
        if !self.cluster.withholds() {
            nodes.iter().for_each(|node| _ = self.network.tell(*node, Message::Serve));
        }
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

    /// Has the directory follow the members that there are now, a share of its entries a turn.
    fn sweep_directory(self: &Rc<Self>, alive: HashSet<NodeId>) {
        let kept: Vec<bool> =
            self.cluster.shards.borrow().iter().map(|keepers| keepers.contains(self.kernel.node)).collect();
        let kept_here = move |id: &ObjectId| kept[shard_of(id)];
        let lost = self.table.borrow_mut().follow(kept_here, alive, self.kernel.clock.now());
        self.tell_lost(lost);
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

    /// The directory is to have followed the members of now, before those of a later view are heard of.
    pub(crate) fn finish_sweep(&self) {
        let lost = self.table.borrow_mut().finish();
        self.tell_lost(lost);
    }

    /// Tells those who waited for objects that are lost.
    fn tell_lost(&self, waiters: Vec<(ObjectId, Waiter)>) {
        for (id, waiter) in waiters {
            let message = Message::Refused { error: lost(id) };
            self.network.send(
                waiter.node,
                self.network.envelope(waiter.request, waiter.node, waiter.tenant, message),
            );
        }
    }

    /// Lets go of what has expired in the directory, and sees to objects without a primary.
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
