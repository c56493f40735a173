//! The locks whose home this node is. Owns [`Home`]. Engine thread only.
//!
//! Invariants: a lock is granted only while this node is its home and has taken it over ([`Takeover`]).
//! Tokens that this node mints grow, and are larger than those of former homes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use plasmon::sync::{LockInfo, MAX_TTL, MIN_TTL, lock_id};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::abandoned::{Abandoned, Leaver, Left};
use super::frames::{self, Numbered, Row, SyncFrame, ask};
use super::life::Life;
use super::lock::{Claim, End, Heard, Lock, Said, nanos};
use super::names::Names;
use super::places::Places;
use super::takeover::Takeover;
use crate::kernel::Kernel;
use crate::kernel::random::HashSet;
use crate::membership::views::ViewChange;
use crate::net::network::Network;

/// The origin of what a node says about a call or a guard.
pub(super) struct Source {
    pub(super) node: NodeId,
    /// Time that the clock of the node showed.
    pub(super) at_ns: u64,
}

/// The locks of this home.
pub(super) struct Home {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    places: Rc<Places>,
    pub(super) takeover: Takeover,
    pub(super) life: RefCell<Life>,
    locks: RefCell<Names>,
    /// Locks whose last holder died or lost them, and that no call wants here.
    left: RefCell<Abandoned>,
    /// Guards that ended while this node took locks over.
    released: RefCell<HashSet<(NodeId, u64)>>,
    minted: Cell<u64>,
    /// Earliest time at which a call or a guard may be late.
    next_late: Cell<u64>,
}

impl Home {
    pub(super) fn new(
        kernel: &Rc<Kernel>,
        network: &Rc<Network>,
        places: &Rc<Places>,
        succeeds: bool,
    ) -> Self {
        Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            places: Rc::clone(places),
            takeover: Takeover::default(),
            life: RefCell::new(Life::of(&kernel.config.socket, succeeds)),
            locks: RefCell::default(),
            left: RefCell::default(),
            released: RefCell::default(),
            minted: Cell::default(),
            next_late: Cell::new(u64::MAX),
        }
    }

    fn now(&self) -> u64 {
        self.kernel.clock.boot_ns()
    }

    /// Whether this node may grant a lock.
    pub(super) fn is_ready(&self, id: &ObjectId) -> bool {
        self.places.is_here(id) && self.takeover.has(self.places.moved(id))
    }

    /// Refuses to decide about a name that has another home.
    ///
    /// # Errors
    /// `NotHere`.
    pub(super) fn ensure_here(&self, id: &ObjectId) -> Result<(), Error> {
        if self.places.is_here(id) {
            return Ok(());
        }
        let text = format!("node {} is not the home of the lock, as far as it knows", self.kernel.node);
        Err(Error::new(ErrorKind::NotHere, text))
    }

    /// Takes note of a call that wants a lock.
    ///
    /// # Errors
    /// `NotHere` if this node is not the home; `Full` if too many calls wait for the lock, or if the user or
    /// this home has too many locks.
    pub(super) fn want(&self, from: &Source, row: Row, eager: bool, again: bool) -> Result<(), Error> {
        let id = lock_id(row.owner, &row.name);
        self.ensure_here(&id)?;
        let mut locks = self.locks.borrow_mut();
        locks.ensure_room(&id, row.uid, self.kernel.node)?;
        let left = self.left.borrow_mut().remove(&id).filter(|left| left.mine);
        let (name, owner) = (row.name.clone(), row.owner);
        let lock = locks.get_or_insert(id, || Lock::new(name, owner, row.uid));
        lock.abandoned = lock.abandoned.or(left.map(|left| left.by));
        let claim = claim(from, &row, eager, self.now());
        self.note_claim(&claim);
        let said = lock.want(claim, again)?;
        drop(locks);
        self.say(said);
        self.advance(&id);
        Ok(())
    }

    /// Ends a guard or a wait.
    pub(super) fn release(&self, node: NodeId, Numbered { lock, number }: Numbered, end: End) {
        if self.takeover.is_under_way() {
            self.released.borrow_mut().insert((node, number));
        }
        let now = self.now();
        let mut locks = self.locks.borrow_mut();
        let ended = locks.get_mut(&lock).is_some_and(|one| one.release(node, number, end, now));
        drop(locks);
        if ended {
            self.advance(&lock);
        }
    }

    /// Returns for how many nanoseconds this home still decides nothing, because leases of its former life
    /// may be valid.
    pub(super) fn waits_ns(&self, id: &ObjectId) -> u64 {
        match self.places.is_coordinated() && !self.is_ready(id) {
            true => self.life.borrow().until().saturating_sub(self.now()),
            false => 0,
        }
    }

    /// Says who holds a lock, and how long this home still gives nobody a lock.
    pub(super) fn released(&self, id: &ObjectId) -> ask::Released {
        let now = self.now();
        let (holder, held) = self.locks.borrow().get(id).map_or((None, 0), |lock| lock.holder(now));
        ask::Released { holder, held, waits_ms: self.waits_ns(id) / 1_000_000 }
    }

    /// Takes note that a guard goes on; returns whether the guard is known.
    pub(super) fn keep_guard(&self, from: &Source, row: &Row) -> bool {
        let id = lock_id(row.owner, &row.name);
        let now = self.now();
        let heard = {
            let mut locks = self.locks.borrow_mut();
            locks.get_mut(&id).map(|lock| lock.hear(from.node, row.number, from.at_ns, now))
        };
        if let Some(Heard::Holds(_)) = heard {
            return true;
        }
        // A coordinator's node that has begun anew does not know the guards of its former life, but
        // grants nothing yet.
        self.places.is_coordinated() && !self.is_ready(&id) && self.adopt(from, row)
    }

    /// Takes note that a wait goes on; returns whether the wait is known.
    pub(super) fn keep_wait(&self, from: &Source, Numbered { lock, number }: Numbered) -> bool {
        let now = self.now();
        let heard = {
            let mut locks = self.locks.borrow_mut();
            locks.get_mut(&lock).map(|lock| lock.hear(from.node, number, from.at_ns, now))
        };
        match heard {
            Some(Heard::Waits) => true,
            // The node was told of the grant, and did not take it.
            Some(Heard::Holds(said)) => {
                self.say([said]);
                true
            }
            Some(Heard::Unknown) | None => false,
        }
    }

    /// Takes note of a guard that a former home has granted; returns whether it fits the known guards.
    pub(super) fn adopt(&self, from: &Source, row: &Row) -> bool {
        let id = lock_id(row.owner, &row.name);
        if self.released.borrow().contains(&(from.node, row.number)) {
            return false;
        }
        let claim = claim(from, row, false, self.now());
        let mut locks = self.locks.borrow_mut();
        let lock = locks.get_or_insert(id, || Lock::new(row.name.clone(), row.owner, row.uid));
        if let Heard::Holds(_) = lock.hear(from.node, row.number, from.at_ns, claim.heard) {
            return true;
        }
        let fits = lock.has_place_for(&claim);
        if fits {
            self.note_claim(&claim);
            lock.adopt(claim);
        } else {
            tracing::warn!(lock = row.name, node = %from.node, "two members say that they hold a lock");
        }
        fits
    }

    /// Takes note that, according to its former home, the last holder of a lock died or lost it.
    pub(super) fn adopt_abandoned(&self, left: frames::Abandoned) {
        let id = lock_id(left.owner, &left.name);
        let by = Leaver::of(&left.by, self.now());
        match self.locks.borrow_mut().get_mut(&id) {
            Some(lock) if lock.holders().is_empty() => lock.abandoned = lock.abandoned.or(Some(by)),
            Some(_) => {}
            None => self.leave(id, (left.name, left.owner), by),
        }
    }

    /// Remembers that the last holder of a lock died or lost it.
    fn leave(&self, id: ObjectId, (name, owner): (String, Option<u32>), by: Leaver) {
        let (moved, mine) = (self.places.moved(&id), self.places.is_here(&id));
        self.left.borrow_mut().insert(id, Left { name, owner, by, moved, mine });
    }

    /// Gives a lock to the calls whose turn it is, if this node may.
    fn advance(&self, id: &ObjectId) {
        if !self.is_ready(id) {
            if self.places.is_here(id) {
                self.takeover.want();
            }
            return;
        }
        let said = {
            let mut locks = self.locks.borrow_mut();
            let Some(lock) = locks.get_mut(id) else { return };
            let noted = lock.longest_wait().map_or(Ok(()), |ttl_ns| self.note_lease(ttl_ns));
            let said = match noted {
                Ok(()) => lock.advance(self.now(), || self.mint()),
                Err(error) => {
                    tracing::warn!(%error, "nobody gets a lock");
                    lock.refuse_waiting(&error)
                }
            };
            let idle = if lock.is_idle() { locks.remove(id) } else { None };
            if let Some((idle, by)) = idle.and_then(|idle| idle.abandoned.map(|by| (idle, by))) {
                self.leave(*id, (idle.name().to_owned(), idle.owner()), by);
            }
            said
        };
        self.say(said);
    }

    /// Makes sure, before a lease is given, that the next life of a coordinator's node will know of it.
    ///
    /// # Errors
    /// `Internal` if the file of this life cannot be written.
    pub(super) fn note_lease(&self, ttl_ns: u64) -> Result<(), Error> {
        if !self.places.is_coordinated() {
            return Ok(());
        }
        self.life.borrow_mut().note(self.now(), ttl_ns.min(nanos(MAX_TTL)), self.takeover.epoch())
    }

    /// Returns a token that is larger than all former tokens of this home and of its predecessors.
    fn mint(&self) -> u128 {
        let minted = self.minted.get() + 1;
        self.minted.set(minted);
        u128::from(self.takeover.epoch()) << 64 | u128::from(minted)
    }

    fn say(&self, said: impl IntoIterator<Item = Said>) {
        for said in said {
            let (node, frame) = match said {
                Said::Granted { node, number, at_ns, token, abandoned } => {
                    (node, SyncFrame::Granted { number, at_ns, token, abandoned })
                }
                Said::Refused { node, number, error } => (node, SyncFrame::Refused { number, error }),
            };
            // A node that has gone needs no frame. Its guards end with their leases.
            self.network.tell(node, crate::net::frame::Frames::into_message(frame));
        }
    }

    /// Gives all locks to the calls whose turn it is.
    pub(super) fn advance_all(&self) {
        let ids: Vec<_> = self.locks.borrow().iter().map(|(id, _)| *id).collect();
        ids.iter().for_each(|id| self.advance(id));
    }

    /// Ends a takeover: everything that members hold was told. If members have gone (`has_lost`), a
    /// lock that is free although calls waited for it at former homes counts as abandoned: its
    /// holder may have gone with them.
    pub(super) fn end_takeover(&self, began: u64, has_lost: bool) {
        self.released.borrow_mut().clear();
        if has_lost {
            let mut locks = self.locks.borrow_mut();
            for (id, lock) in locks.iter_mut() {
                if self.places.is_here(id) && lock.has_old_waits(began) {
                    lock.lose_unknown(self.kernel.node, self.now());
                }
            }
        }
        self.advance_all();
    }

    /// Follows a view: nodes have gone, and this node may have become or ceased to be the home of locks.
    pub(super) fn follow(&self, change: &ViewChange, epoch: u64) {
        let (coordinated, now) = (self.places.is_coordinated(), self.now());
        let mut locks = self.locks.borrow_mut();
        self.left.borrow_mut().retain(|id, left| {
            let moves = self.places.moved(id) == epoch && left.moved < epoch;
            let stays = left.mine || !moves;
            if moves {
                (left.moved, left.mine) = (epoch, self.places.is_here(id));
            }
            stays
        });
        let mut free = Vec::new();
        locks.retain(|id, lock| {
            // Guards of a gone node end here at once only if nodes are fenced by the clock: such a node
            // has ended its guards before others hear of its end.
            if lock.drop_nodes(&change.gone, !coordinated, now) {
                free.push(*id);
            }
            let stays = self.places.is_here(id) && (coordinated || self.places.moved(id) < epoch);
            if let Some(by) = lock.abandoned.filter(|_| !stays && !self.places.is_here(id)) {
                self.leave(*id, (lock.name().to_owned(), lock.owner()), by);
            }
            stays
        });
        drop(locks);
        free.iter().for_each(|id| self.advance(id));
    }

    /// Takes note of former coordinators' nodes. If one of them is unknown, nothing is granted until all
    /// leases are over that it may have given.
    pub(super) fn meet(&self, nodes: &[NodeId]) {
        if self.life.borrow_mut().meet(nodes, self.now()) {
            self.takeover.reset();
        }
    }

    /// Notes the end of this node. It leaves no wait for the next life if all guards end with it.
    pub(super) fn end(&self) {
        let (mut life, now) = (self.life.borrow_mut(), self.now());
        // A home that has not waited out its former life does not know the guards of that life.
        let knows = self.takeover.has(0) || life.until() <= now;
        if knows && !self.is_held_elsewhere() {
            life.end(now);
        }
    }

    /// Forgets all locks, because this node is no member any more.
    pub(super) fn clear(&self) {
        self.locks.borrow_mut().clear();
        self.left.borrow_mut().clear();
        self.takeover.reset();
    }

    /// Returns locks whose home is `asker` now and was this node before, and whose last holder died
    /// or lost them: the first ones after an id, in the order of their ids, and whether more may come.
    pub(super) fn abandoned_for(
        &self,
        asker: NodeId,
        after: Option<ObjectId>,
    ) -> (Vec<frames::Abandoned>, bool) {
        self.left.borrow().page(after, self.now(), |id, left| {
            !left.mine && left.moved == self.places.moved(id) && self.places.home(id) == asker
        })
    }

    /// Ends the calls and guards of which this home has not heard for too long.
    pub(super) fn on_tick(&self) {
        let now = self.now();
        self.rest(now);
        self.left.borrow_mut().forget(now);
        if now < self.next_late.get() {
            return;
        }
        let mut free = Vec::new();
        let mut next = u64::MAX;
        let mut locks = self.locks.borrow_mut();
        for (id, lock) in locks.iter_mut() {
            if lock.drop_late(now) {
                free.push(*id);
            }
            next = next.min(lock.next_late());
        }
        drop(locks);
        self.next_late.set(next);
        free.iter().for_each(|id| self.advance(id));
    }

    /// Lets the next life of a coordinator's node begin without a wait, if no client holds a lock.
    fn rest(&self, now: u64) {
        // A home that has not taken over does not know which locks are held.
        let mut life = self.life.borrow_mut();
        if self.places.is_coordinated() && self.takeover.has(0) && life.leaves_a_wait(now) {
            let is_held = self.locks.borrow().iter().any(|(_, lock)| !lock.holders().is_empty());
            life.rest(now, is_held);
        }
    }

    /// Takes note of the time after which a call or guard is late if nothing is heard of it.
    fn note_claim(&self, claim: &Claim) {
        self.next_late.set(self.next_late.get().min(claim.late_after()));
    }

    /// Number of locks that are held or waited for, and of abandoned ones.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.locks.borrow().len(), self.left.borrow().count())
    }

    /// Whether clients of other nodes hold locks.
    pub(super) fn is_held_elsewhere(&self) -> bool {
        let own = self.kernel.node;
        let locks = self.locks.borrow();
        locks.iter().any(|(_, lock)| lock.holders().iter().any(|claim| claim.node != own))
    }

    /// Returns the locks that a user may know.
    pub(super) fn rows(&self, user: u32) -> Vec<(ObjectId, LockInfo)> {
        let (locks, left, now) = (self.locks.borrow(), self.left.borrow(), self.now());
        let seen = locks.iter().filter(|(_, lock)| lock.is_seen_by(user));
        let seen = seen.map(|(id, lock)| (*id, lock.info(self.kernel.node, now)));
        seen.chain(left.rows(self.kernel.node, user, now)).collect()
    }
}

fn claim(from: &Source, row: &Row, eager: bool, now: u64) -> Claim {
    let ttl = Duration::from_millis(row.ttl_ms.into());
    let ttl = ttl.clamp(MIN_TTL, MAX_TTL);
    Claim {
        node: from.node,
        number: row.number,
        shared: row.shared,
        ttl_ns: nanos(ttl),
        pid: row.pid,
        uid: row.uid,
        since: now.saturating_sub(row.age_ns),
        heard: now,
        at_ns: from.at_ns,
        eager,
        token: row.token,
        follows: None,
    }
}
