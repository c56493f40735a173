//! What keepers of the directory are told again: holders publish what a keeper cannot know.
//!
//! Engine thread only. A keeper is *settled* in a shard when it was told of all objects of it that are here,
//! and has kept the shard ever since. One walk over the objects settles everybody: a lot of objects a turn,
//! so that gets go on meanwhile, and no faster than the keepers take it. What a keeper is to be told is
//! gathered until it fills a message, or many objects were looked at: after a death among a hundred nodes,
//! each of them is told of few. A view that comes during a walk does not begin it anew; it makes it longer by
//! one round, and what is still to be told is told to the keepers of the newest view.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use plasmon::{NodeId, ObjectId};
use smallvec::SmallVec;

use crate::directory::Directory;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::{HashMap, HashSet};
use crate::membership::shards::{SHARDS, ShardMap, shard_of};
use crate::net::frame::Message;
use crate::net::frame::{Holding, MAX_ENTRIES};
use crate::object::Table;

/// When everything is told once more to nodes that joined anew: when all will have followed that, and when
/// the slowest will have.
const REPEATS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// When the last of these is under way.
pub(crate) const LAST_REPEAT: Duration = Duration::from_secs(7);
/// Objects looked at in a turn.
const LOT_OBJECTS: usize = 256;
/// Between two lots, so that gets hardly notice; and how long a walk may rest in all.
const LOT_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE_TIME: Duration = Duration::from_secs(2);
/// Objects looked at before everybody is told what was gathered.
pub(crate) const ROUND_OBJECTS: usize = 256 * LOT_OBJECTS;

/// What is still to be told.
pub(crate) struct Repair {
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
    /// Keepers know what they knew, if they have kept a shard without a break. Returns whether any has to
    /// learn.
    pub(crate) fn follow(&self, shards: &ShardMap, knows: impl Fn(NodeId) -> bool) -> bool {
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

    /// Whether a keeper is still to be told of an object that is here.
    fn is_untold(&self, shards: &ShardMap, id: &ObjectId, keeper: NodeId) -> bool {
        shards.keepers(id).contains(keeper) && !self.is_settled(id, keeper)
    }

    /// Gathers what the keepers of these objects are still to be told.
    pub(crate) fn gather(&self, shards: &ShardMap, ids: &[ObjectId], untold: &mut Untold) {
        untold.looked += ids.len();
        for id in ids {
            for keeper in shards.keepers(id).iter().filter(|keeper| !self.is_settled(id, *keeper)) {
                untold.by_keeper.entry(keeper).or_default().push(*id);
            }
        }
    }

    /// Everybody was told.
    pub(crate) fn settle(&self, shards: &ShardMap) {
        for (settled, keepers) in self.settled.borrow_mut().iter_mut().zip(shards.iter()) {
            *settled = keepers.iter().collect();
        }
    }
}

/// How long a walk past so many objects rests, in all.
pub(crate) fn rests(objects: usize) -> Duration {
    MAX_PAUSE_TIME.min(lots(objects) * LOT_PAUSE)
}

fn lots(objects: usize) -> u32 {
    objects.div_ceil(LOT_OBJECTS).max(1) as u32
}

/// What keepers are to be told of.
#[derive(Default)]
pub(crate) struct Untold {
    by_keeper: HashMap<NodeId, Vec<ObjectId>>,
    /// Objects looked at since everybody was told.
    looked: usize,
    /// Objects looked at since the last rest.
    since_pause: usize,
}

impl Untold {
    /// How long to rest after so many objects more of all.
    fn pause(&mut self, more: usize, of: usize) -> Duration {
        self.since_pause += more;
        if self.since_pause < LOT_OBJECTS {
            return Duration::ZERO;
        }
        self.since_pause = 0;
        rests(of) / lots(of)
    }

    /// Takes what fills messages, or all of it; a message at a time.
    pub(crate) fn take(&mut self, all: bool) -> Vec<(NodeId, Vec<ObjectId>)> {
        let all = all || self.looked >= ROUND_OBJECTS;
        let mut messages = Vec::new();
        for (keeper, ids) in &mut self.by_keeper {
            while ids.len() >= MAX_ENTRIES || (all && !ids.is_empty()) {
                messages.push((*keeper, ids.split_off(ids.len().saturating_sub(MAX_ENTRIES))));
            }
        }
        if all {
            *self = Self { since_pause: self.since_pause, ..Self::default() };
        }
        messages
    }
}

impl Directory {
    /// Tells the keepers of a new view what they cannot know: the `fresh` members know nothing, and if this
    /// node was alone before, nobody does.
    pub(crate) fn repair_after(self: &Rc<Self>, fresh: &HashSet<NodeId>, was_alone: bool) {
        let knows = |node| !was_alone && !fresh.contains(&node);
        let to_learn = self.repair.follow(&self.cluster.shards.borrow(), knows);
        if to_learn && !is_planted(Bug::KeeperNotTold) {
            self.walk();
        }
    }

    /// Publishes again to keepers that may have missed something.
    pub(crate) fn republish_to(self: &Rc<Self>, keepers: &[NodeId]) {
        if keepers.is_empty() || self.cluster.fenced() {
            return;
        }
        self.tell_serving(keepers);
        if self.repair.follow(&self.cluster.shards.borrow(), |node| !keepers.contains(&node)) {
            self.walk();
        }
    }

    /// Tells nodes once more, in a while: either side ends its connections with a node that joined anew when
    /// it hears of that, and what was under way is lost without anybody knowing.
    pub(crate) fn repeat_to(self: &Rc<Self>, nodes: Vec<NodeId>) {
        if nodes.is_empty() {
            return;
        }
        let directory = Rc::clone(self);
        self.kernel.spawn(async move {
            for pause in REPEATS {
                directory.kernel.clock.sleep(pause).await;
                directory.republish_to(&nodes);
            }
        });
    }

    /// Whether keepers are being told.
    pub(crate) fn repairs(&self) -> bool {
        self.repair.left.get() > 0
    }

    /// Sets out, or goes on for a full round.
    fn walk(self: &Rc<Self>) {
        // The share that is being passed was begun before.
        if self.repair.left.replace(Table::SHARDS + 1) > 0 {
            return;
        }
        let directory = Rc::clone(self);
        self.kernel.spawn(async move {
            let (mut share, mut untold) = (0, Untold::default());
            let repair = &directory.repair;
            while repair.left.get() > 0 {
                if directory.cluster.fenced() {
                    // The next membership begins with everything.
                    return repair.left.set(0);
                }
                directory.tell_of_share(share, &mut untold).await;
                if repair.left.get() == 1 {
                    directory.tell_untold(untold.take(true)).await;
                }
                share = (share + 1) % Table::SHARDS;
                repair.left.set(repair.left.get() - 1);
            }
            repair.settle(&directory.cluster.shards.borrow());
        });
    }

    /// Looks through one share of the table for what is to be told to those who are not settled.
    async fn tell_of_share(&self, share: usize, untold: &mut Untold) {
        let ids: Vec<_> = self.store.objects.borrow().sealed_in(share).map(|replica| replica.id()).collect();
        for lot in ids.chunks(LOT_OBJECTS) {
            if self.cluster.fenced() {
                return;
            }
            self.repair.gather(&self.cluster.shards.borrow(), lot, untold);
            self.tell_untold(untold.take(false)).await;
            // Others have their turn, on this node and on the keepers'.
            let pause = untold.pause(lot.len(), self.store.objects.borrow().len());
            self.kernel.clock.sleep(pause).await;
        }
    }

    /// Publishes objects to keepers, as fast as they take it.
    async fn tell_untold(&self, messages: Vec<(NodeId, Vec<ObjectId>)>) {
        for (keeper, ids) in messages {
            // Since they were gathered an object may have gone or been made anew, and the keeper be none any
            // more.
            let holdings: Vec<_> = {
                let (objects, shards) = (self.store.objects.borrow(), self.cluster.shards.borrow());
                let untold = ids.iter().filter(|id| self.repair.is_untold(&shards, id, keeper));
                untold.filter_map(|id| objects.get(id).map(|replica| Holding::of(replica))).collect()
            };
            if !holdings.is_empty() {
                // While this node gives out nothing, it was no member a moment ago.
                let message = match self.cluster.withholds() {
                    true => Message::Return { holdings },
                    false => Message::Publish { holdings },
                };
                self.network.tell(keeper, message);
                self.network.drained(keeper).await;
            }
        }
    }
}
