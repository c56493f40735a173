//! Guards: lives of objects that may be replaced any moment, on the nodes that hold them or bring them here.
//!
//! Owns [`Guards`]. Engine thread only. The first keeper that replaces an object orders every node that may
//! hold the former life to *guard* it: the replica stays, hidden from clients, and whoever wants it asks the
//! keeper first whether it is still the one. A fetch of this life that is under way ends in a guarded
//! replica. The keeper switches to the successor when all nodes have confirmed. Invariants: a node confirms a
//! guard only of the first keeper by its own view, and in no older view than the keeper's. A guarded replica
//! goes to another node only by a request that this keeper forwards.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::{NodeId, ObjectId};
use smallvec::SmallVec;

use super::arrivals::Arrivals;
use super::asking::Asking;
use crate::kernel::lives::is_later;
use crate::kernel::planted::{Bug, is_planted};
use crate::kernel::random::HashMap;
use crate::membership::Cluster;
use crate::net::frame::{Envelope, Message, Stage, Withdrawal, ask};
use crate::store::Store;

/// How long a guard stands until its node asks by itself whether it still has to.
const ASK_AFTER: Duration = Duration::from_secs(3);

/// The guards of this node.
pub(crate) struct Guards {
    cluster: Rc<Cluster>,
    asking: Rc<Asking>,
    store: Rc<Store>,
    arrivals: Rc<Arrivals>,
    guards: RefCell<HashMap<ObjectId, Guard>>,
}

/// Lives of an object that this node guards.
struct Guard {
    lives: SmallVec<[u64; 1]>,
    /// The keeper that gave the order, the epoch of its view, and its turn.
    by: NodeId,
    epoch: u64,
    turn: u64,
    /// When this node asks whether it still has to guard the object.
    ask_at: Instant,
}

impl Guards {
    pub(super) fn new(asking: &Rc<Asking>, store: &Rc<Store>, arrivals: &Rc<Arrivals>) -> Self {
        Self {
            cluster: Rc::clone(&asking.cluster),
            asking: Rc::clone(asking),
            store: Rc::clone(store),
            arrivals: Rc::clone(arrivals),
            guards: RefCell::default(),
        }
    }

    /// Guards lives of an object by order of its first keeper, or lifts the guard of a turn.
    pub(crate) fn on_guard(&self, asked: &Envelope, order: &ask::Guard) {
        let ask::Guard { id, lives, turn, lifts } = order;
        if *lifts {
            let is_it = |guard: &Guard| (guard.by, guard.turn) == (asked.from, *turn);
            if self.guards.borrow().get(id).is_some_and(is_it) {
                self.lift(id);
            }
            return self.asking.network.answer(asked, Message::Done);
        }
        let follows = asked.epoch <= self.cluster.epoch() && self.cluster.keepers(id).first == asked.from;
        if !follows && !is_planted(Bug::GuardOfLaterView) || self.cluster.fenced() {
            return self.asking.network.answer(asked, self.asking.not_the_keeper());
        }
        let now = self.asking.kernel.clock.now();
        let (by, epoch) = (asked.from, asked.epoch);
        let is_newer = |guard: &Guard| (guard.epoch, guard.turn) > (epoch, *turn);
        if !self.guards.borrow().get(id).is_some_and(is_newer) {
            let guard =
                Guard { lives: SmallVec::from_slice(lives), by, epoch, turn: *turn, ask_at: now + ASK_AFTER };
            self.guards.borrow_mut().insert(*id, guard);
        }
        self.arrivals.forget_place(id);
        if let Some(replica) = self.store.objects.borrow().get(id).filter(|one| lives.contains(&one.life)) {
            replica.guard(true);
        }
        self.asking.network.answer(asked, Message::Done);
    }

    /// Whether a life of an object that comes to this node is to be guarded.
    pub(crate) fn covers(&self, id: &ObjectId, life: u64) -> bool {
        self.guards.borrow().get(id).is_some_and(|guard| guard.lives.contains(&life))
    }

    /// Whether a guarded life of an object may go to the node that a request is for.
    pub(crate) fn lets_go(&self, asked: &Envelope, id: &ObjectId, life: u64) -> bool {
        let Message::Fetch { stage: Stage::Forwarded, life: wanted, .. } = asked.message else {
            return false;
        };
        let by_keeper = |guard: &Guard| {
            guard.by == asked.from
                && self.cluster.keepers(id).first == asked.from
                && asked.epoch <= self.cluster.epoch()
                && self.cluster.kept_since(id, guard.epoch)
        };
        wanted == life && self.guards.borrow().get(id).is_some_and(by_keeper)
    }

    /// Takes note of what the first keeper says is given now of an object: a guard is lifted, or its life has
    /// ended.
    pub(crate) fn heard(&self, id: &ObjectId, current: Option<u64>, lifted: Option<(u64, u64)>) {
        let here = self.store.objects.borrow().get(id).filter(|one| one.is_guarded()).map(|one| one.life);
        let Some(here) = here else { return };
        match current {
            Some(life) if life == here => {
                let may_go = |guard: &Guard| lifted.is_some_and(|to| (guard.epoch, guard.turn) <= to);
                if self.guards.borrow().get(id).is_none_or(may_go) {
                    self.lift(id);
                }
            }
            Some(life) if is_later(life, here) => self.end(id, here),
            _ => {}
        }
    }

    /// Removes the replica of a life that was replaced.
    fn end(&self, id: &ObjectId, life: u64) {
        self.arrivals.end_life(id, life);
        self.store.remove(id);
        self.store.unpublish(*id, Withdrawal::Deleted);
        self.guards.borrow_mut().remove(id);
    }

    /// Lifts the guard of an object, and wakes those who wait for it.
    fn lift(&self, id: &ObjectId) {
        self.guards.borrow_mut().remove(id);
        let mut objects = self.store.objects.borrow_mut();
        if let Some(replica) = objects.get(id) {
            replica.guard(false);
            objects.wake(id);
        }
    }

    /// Forgets guards of what neither is here nor comes. Returns the objects of which this node has to ask
    /// whether they are still guarded: for long, or by a keeper that is not the first any more.
    pub(crate) fn take_doubtful(&self, now: Instant) -> Vec<ObjectId> {
        let objects = self.store.objects.borrow();
        let mut guards = self.guards.borrow_mut();
        guards.retain(|id, _| {
            // A later keeper that knows already that a life is over does not name it.
            objects.get(id).is_some_and(|one| one.is_guarded()) || self.arrivals.is_bringing(id)
        });
        let mut doubtful = Vec::new();
        for (id, guard) in guards.iter_mut() {
            if guard.ask_at <= now || self.cluster.keepers(id).first != guard.by {
                guard.ask_at = now + ASK_AFTER;
                doubtful.push(*id);
            }
        }
        doubtful
    }
}
