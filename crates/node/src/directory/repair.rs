//! Publishing again to keepers: holders tell keepers what a change of members left unknown to them.
//!
//! Owns [`Repair`]. Engine thread only. A keeper is *settled* in a shard when it was told of all objects
//! of the shard that are here, and has kept the shard ever since. One walk over the objects settles all
//! keepers. The walk takes one lot of objects in each turn, so that gets go on meanwhile, and waits until
//! keepers have taken the news. The news for a keeper are gathered until they fill a message, or until
//! many objects were looked at: after a death among a hundred nodes, each keeper is told of few objects.
//! A view that comes during a walk does not restart the walk, but makes it longer by one round. The
//! keepers of the newest view are told what is left.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use plasmon::{NodeId, ObjectId};

use crate::directory::Directory;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::HashMap;
use crate::membership::shards::{SHARDS, ShardMap, shard_of};
use crate::net::frame::Message;
use crate::net::frame::{Holding, MAX_ENTRIES};
use crate::object::Table;

/// Number of objects looked at in a turn.
const LOT_OBJECTS: usize = 256;
/// The pause between two lots, so that gets are hardly slowed down.
const LOT_PAUSE: Duration = Duration::from_millis(1);
/// The maximum time of all pauses of a walk.
const MAX_PAUSE_TIME: Duration = Duration::from_secs(2);
/// Number of objects looked at until all gathered news are told.
pub(crate) const ROUND_OBJECTS: usize = 256 * LOT_OBJECTS;

/// The progress of publishing again.
pub(crate) struct Repair {
    settled: RefCell<Settled>,
    /// Number of shares of the table that the walk has still to pass; 0 if there is no walk.
    left: Cell<usize>,
}

/// The keepers that know all objects of this node.
struct Settled {
    /// The keepers of the last view that was followed; none before the first.
    shards: Option<Rc<ShardMap>>,
    /// For each shard, whether its first and its second keeper know all objects of this node.
    known: Vec<[bool; 2]>,
}

impl Default for Repair {
    fn default() -> Self {
        let settled = Settled { shards: None, known: vec![[false; 2]; SHARDS] };
        Self { settled: RefCell::new(settled), left: Cell::new(0) }
    }
}

impl Repair {
    /// Follows a view: a keeper stays settled if it has kept a shard without a break. Returns
    /// whether any keeper is not settled.
    pub(crate) fn follow(&self, shards: &Rc<ShardMap>, knows: impl Fn(NodeId) -> bool) -> bool {
        let mut settled = self.settled.borrow_mut();
        if let Some(former) = settled.shards.replace(Rc::clone(shards)) {
            let places = shards.former_places(&former, knows);
            for (known, places) in settled.known.iter_mut().zip(places) {
                *known = places.map(|place| place.is_some_and(|place| known[place]));
            }
        }
        let seconds = shards.has_seconds();
        settled.known.iter().any(|[first, second]| !first || (seconds && !second))
    }

    fn is_settled(&self, id: &ObjectId, keeper: NodeId) -> bool {
        let settled = self.settled.borrow();
        let Some(shards) = &settled.shards else { return false };
        let place = shards.keepers(id).iter().position(|one| one == keeper);
        place.is_some_and(|place| settled.known[shard_of(id)][place])
    }

    /// Whether a keeper is still to be told of an object on this node.
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

    /// Notes that all keepers were told.
    pub(crate) fn settle(&self, shards: &Rc<ShardMap>) {
        let mut settled = self.settled.borrow_mut();
        settled.shards = Some(Rc::clone(shards));
        settled.known.fill([true; 2]);
    }
}

/// Returns how long a walk past `objects` objects pauses in all.
pub(crate) fn rests(objects: usize) -> Duration {
    MAX_PAUSE_TIME.min(lots(objects) * LOT_PAUSE)
}

fn lots(objects: usize) -> u32 {
    objects.div_ceil(LOT_OBJECTS).max(1) as u32
}

/// Objects that keepers are still to be told of, by keeper.
#[derive(Default)]
pub(crate) struct Untold {
    by_keeper: HashMap<NodeId, Vec<ObjectId>>,
    /// Number of objects looked at since all gathered news were told.
    looked: usize,
    /// Number of objects looked at since the last pause.
    since_pause: usize,
}

impl Untold {
    /// Returns how long to pause after `more` objects, of `of` on this node.
    fn pause(&mut self, more: usize, of: usize) -> Duration {
        self.since_pause += more;
        if self.since_pause < LOT_OBJECTS {
            return Duration::ZERO;
        }
        self.since_pause = 0;
        rests(of) / lots(of)
    }

    /// Takes the objects that fill messages, or every object with `all`, as one list for each message.
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
    /// Tells the keepers of a new view what they cannot know. `knows` says whether a member knows what it
    /// was told in the view before.
    pub(crate) fn repair_after(self: &Rc<Self>, knows: impl Fn(NodeId) -> bool) {
        let to_learn = self.repair.follow(&self.cluster.shards.borrow(), knows);
        if to_learn && !is_planted(Bug::KeeperNotTold) {
            self.walk();
        }
    }

    /// Publishes all objects again to keepers whose queue had no room for a message.
    pub(crate) fn republish_to(self: &Rc<Self>, keepers: &[NodeId]) {
        if keepers.is_empty() || self.cluster.fenced() {
            return;
        }
        self.tell_serving(keepers);
        if self.repair.follow(&self.cluster.shards.borrow(), |node| !keepers.contains(&node)) {
            self.walk();
        }
    }

    /// Whether a walk is under way.
    pub(crate) fn repairs(&self) -> bool {
        self.repair.left.get() > 0
    }

    /// Starts a walk, or extends the present one by a full round.
    fn walk(self: &Rc<Self>) {
        // The share that the walk is passing was begun before, so a full round takes one share more.
        if self.repair.left.replace(Table::SHARDS + 1) > 0 {
            return;
        }
        let directory = Rc::clone(self);
        self.kernel.spawn(async move {
            let (mut share, mut untold) = (0, Untold::default());
            let repair = &directory.repair;
            while repair.left.get() > 0 {
                if directory.cluster.fenced() {
                    // The next membership begins a walk over all objects.
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

    /// Looks through one share of the table for objects of which unsettled keepers are to be told.
    async fn tell_of_share(&self, share: usize, untold: &mut Untold) {
        let ids: Vec<_> = self.store.objects.borrow().sealed_in(share).map(|replica| replica.id()).collect();
        for lot in ids.chunks(LOT_OBJECTS) {
            if self.cluster.fenced() {
                return;
            }
            self.repair.gather(&self.cluster.shards.borrow(), lot, untold);
            self.tell_untold(untold.take(false)).await;
            // Other tasks get their turn, on this node and on the keepers.
            let pause = untold.pause(lot.len(), self.store.objects.borrow().len());
            self.kernel.clock.sleep(pause).await;
        }
    }

    /// Publishes objects to keepers, as fast as they take the news.
    async fn tell_untold(&self, messages: Vec<(NodeId, Vec<ObjectId>)>) {
        for (keeper, ids) in messages {
            // Since the objects were gathered, an object may have gone or been created anew, and
            // the node may be a keeper no more.
            let holdings: Vec<_> = {
                let (objects, shards) = (self.store.objects.borrow(), self.cluster.shards.borrow());
                let untold = ids.iter().filter(|id| self.repair.is_untold(&shards, id, keeper));
                untold.filter_map(|id| objects.get(id).map(|replica| Holding::of(replica))).collect()
            };
            if !holdings.is_empty() {
                // A node that withholds its objects was no member a moment ago.
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
