//! What keepers of the directory are told again: holders publish what a keeper cannot know.
//!
//! Engine thread only. A keeper is *settled* in a shard when it was told of all objects of it that are here, and has
//! kept the shard ever since. One walk over the objects settles everybody: a lot of objects a turn, so that
//! gets go on meanwhile, and no faster than the keepers take it. A view that comes during a walk does not begin
//! it anew; it makes it longer by one round, and what is still to be told is told to the keepers of the newest view.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use plasmon::{NodeId, ObjectId};
use smallvec::SmallVec;

use super::frame::Holding;
use super::news::{Batches, Change};
use super::shards::{SHARDS, ShardMap, shard_of};
use crate::engine::Core;
use crate::object::Table;

/// When everything is told once more to nodes that joined anew: when all will have followed that, and when the
/// slowest will have.
const REPEATS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Objects looked at in a turn.
pub(super) const LOT: usize = 1024;

/// What is still to be told.
pub(super) struct Repair {
    /// Of each shard, the keepers that know what is here.
    settled: RefCell<Vec<SmallVec<[NodeId; 2]>>>,
    /// Shares of the table that the walk has still to pass; none if there is no walk.
    left: Cell<usize>,
}

impl Default for Repair {
    fn default() -> Self {
        Self { settled: RefCell::new(vec![SmallVec::new(); SHARDS]), left: Cell::new(0) }
    }
}

impl Repair {
    /// Keepers know what they knew, if they have kept a shard without a break. Returns whether any has to learn.
    pub(super) fn follow(&self, shards: &ShardMap, knows: impl Fn(NodeId) -> bool) -> bool {
        let mut to_learn = false;
        for (settled, keepers) in self.settled.borrow_mut().iter_mut().zip(shards.iter()) {
            settled.retain(|node| keepers.contains(*node) && knows(*node));
            to_learn |= settled.len() < keepers.iter().count();
        }
        to_learn
    }

    fn is_settled(&self, id: &ObjectId, keeper: NodeId) -> bool {
        self.settled.borrow()[shard_of(id)].contains(&keeper)
    }

    /// Of objects that are here, what their keepers are still to be told.
    pub(super) fn untold(&self, shards: &ShardMap, holdings: impl Iterator<Item = Holding>) -> Batches {
        let mut batches = Batches::default();
        for holding in holdings {
            for keeper in shards.keepers(&holding.id).iter() {
                if !self.is_settled(&holding.id, keeper) {
                    batches.add(keeper, Change::Publish(holding));
                }
            }
        }
        batches
    }

    /// Everybody was told.
    pub(super) fn settle(&self, shards: &ShardMap) {
        for (settled, keepers) in self.settled.borrow_mut().iter_mut().zip(shards.iter()) {
            *settled = keepers.iter().collect();
        }
    }
}

impl Core {
    /// Tells the keepers of a new view what they cannot know: the `fresh` members know nothing, and if this node was
    /// alone before, nobody does.
    pub(super) fn repair_after(self: &Rc<Self>, fresh: &HashSet<NodeId>, was_alone: bool) {
        let knows = |node| !was_alone && !fresh.contains(&node);
        if self.cluster.repair.follow(&self.cluster.shards.borrow(), knows) {
            self.walk();
        }
    }

    /// Publishes again to keepers that may have missed something.
    pub(crate) fn republish_to(self: &Rc<Self>, keepers: &[NodeId]) {
        if keepers.is_empty() || self.cluster.fenced() {
            return;
        }
        if self.cluster.repair.follow(&self.cluster.shards.borrow(), |node| !keepers.contains(&node)) {
            self.walk();
        }
    }

    /// Tells nodes once more, in a while: either side ends its connections with a node that joined anew when it hears
    /// of that, and what was under way is lost without anybody knowing.
    pub(super) fn repeat_to(self: &Rc<Self>, nodes: Vec<NodeId>) {
        if nodes.is_empty() {
            return;
        }
        let core = Rc::clone(self);
        self.spawn(async move {
            for pause in REPEATS {
                core.clock.sleep(pause).await;
                core.republish_to(&nodes);
            }
        });
    }

    /// Whether keepers are being told.
    pub(crate) fn repairs(&self) -> bool {
        self.cluster.repair.left.get() > 0
    }

    /// Sets out, or goes on for a full round.
    fn walk(self: &Rc<Self>) {
        // The share that is being passed was begun before.
        if self.cluster.repair.left.replace(Table::SHARDS + 1) > 0 {
            return;
        }
        let core = Rc::clone(self);
        self.spawn(async move {
            let mut share = 0;
            let repair = &core.cluster.repair;
            while repair.left.get() > 0 {
                if core.cluster.fenced() {
                    // The next membership begins with everything.
                    return repair.left.set(0);
                }
                core.tell_of_share(share).await;
                share = (share + 1) % Table::SHARDS;
                repair.left.set(repair.left.get() - 1);
            }
            repair.settle(&core.cluster.shards.borrow());
        });
    }

    /// Publishes what lies in one share of the table to those who are not settled.
    async fn tell_of_share(&self, share: usize) {
        let ids: Vec<_> = self.objects.borrow().sealed_in(share).map(|replica| replica.id()).collect();
        for lot in ids.chunks(LOT) {
            if self.cluster.fenced() {
                return;
            }
            // One may have gone since, or have been made anew.
            let batches = {
                let objects = self.objects.borrow();
                let holdings =
                    lot.iter().filter_map(|id| objects.get(id).map(|replica| Holding::of(replica)));
                self.cluster.repair.untold(&self.cluster.shards.borrow(), holdings)
            };
            let told: SmallVec<[NodeId; 8]> = batches.keepers().collect();
            batches.send(self);
            for keeper in told {
                self.network.drained(keeper).await;
            }
            // Others have their turn.
            self.clock.sleep(Duration::ZERO).await;
        }
    }
}
