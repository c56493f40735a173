//! How objects leave the directory: the nodes that have to drop a deleted object, and the lives that have
//! ended.
//!
//! Engine thread only; the state is that of `Table`. Every node that may come to hold an object without
//! asking here again is known: its *holders* have published it; its *readers* were sent to a holder, or
//! remember where it was. A deletion *begins* by holding back every request for the object. The
//! deletion is *ended*, and its lives are buried, when all holders and readers have dropped the object.
//! In between the object exists for every node that asks, and cannot be fetched: no node learns that
//! the object is gone before all have dropped it. Only the first keeper begins a deletion on its own;
//! the second keeper does so for the first.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use plasmon::{NodeId, ObjectId};
use smallvec::SmallVec;

use super::{SHORTAGE_GRACE, Table};
use crate::kernel::random::HashSet;
use crate::net::frame::Withdrawal;
use crate::object::Ownership;

/// How long a deletion is remembered. A node that was away may come back with a deleted object.
pub(super) const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(3600);
/// Maximum number of tombstones; the oldest are forgotten first.
const MAX_TOMBSTONES: usize = 1 << 18;

/// An object that is being deleted.
pub(super) struct Leaving {
    /// The keeper that leads the deletion.
    by: NodeId,
    /// The lives that end.
    lives: SmallVec<[u64; 1]>,
    /// Nodes that withdrew their replicas since the deletion began. The table applies these
    /// withdrawals when the deletion is over.
    withdrawn: Vec<(NodeId, Withdrawal)>,
}

/// How the deletion of an object begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing is known of the object here.
    Unknown,
    /// The object belongs to another user.
    NotAllowed(Ownership),
    /// The deletion has begun: no node is sent to the object any more.
    Begun {
        /// The lives that end.
        lives: Vec<u64>,
        /// The nodes that hold the object, or may be about to.
        nodes: Vec<NodeId>,
    },
}

impl Table {
    /// Notes that a node may fetch an object from now on without asking here again.
    pub(crate) fn note_reader(&mut self, id: ObjectId, node: NodeId) {
        let readers = self.readers.entry(id).or_default();
        if !readers.contains(&node) {
            readers.push(node);
        }
    }

    pub(super) fn forget_reader(&mut self, id: &ObjectId, node: NodeId) {
        if let Some(readers) = self.readers.get_mut(id) {
            readers.retain(|reader| *reader != node);
            if readers.is_empty() {
                self.readers.remove(id);
            }
        }
    }

    /// Removes a holder that no longer has its replica. Without another holder the object is lost,
    /// unless the object was deleted.
    pub(crate) fn withdrawn(&mut self, node: NodeId, id: ObjectId, how: Withdrawal, now: Instant) {
        if let Some(leaving) = self.leaving.get_mut(&id) {
            return leaving.withdrawn.push((node, how));
        }
        if self.is_unpublished(&id, node) {
            // The node says this of the former object. What it says of the successor comes behind its
            // publication.
            return;
        }
        self.settle(&id);
        match how {
            Withdrawal::Remembered if self.entries.get(&id).is_some() => self.note_reader(id, node),
            Withdrawal::Remembered => {}
            Withdrawal::Evicted | Withdrawal::Deleted => self.forget_reader(&id, node),
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        // More replicas are not made at once, because a node that made room with the object would
        // do so again.
        let restored = (how == Withdrawal::Deleted).then_some(now + SHORTAGE_GRACE);
        self.concerns.retain(entry, now, restored, |holder| holder.node != node);
        // The node dropped the object because it was deleted, perhaps before the node had published it.
        if how == Withdrawal::Deleted && entry.lost && entry.holders.iter().any(|holder| holder.node == node)
        {
            self.entries.remove(&id);
            self.readers.remove(&id);
        }
    }

    /// Begins the deletion of an object for a user, led by the keeper `by`. If the object is lost, its
    /// lives that the user may delete are buried at once.
    pub(crate) fn begin_end(&mut self, id: ObjectId, user: u32, by: NodeId, now: Instant) -> Ending {
        self.settle(&id);
        let readers = self.readers.get(&id).map(SmallVec::as_slice).unwrap_or_default();
        let Some(entry) = self.entries.get(&id) else {
            return Ending::Unknown;
        };
        let own = || entry.holders.iter().filter(|holder| holder.ownership.may_change(user));
        let lives: BTreeSet<u64> = own().map(|holder| holder.life).collect();
        if lives.is_empty() {
            let seen = entry.holders.iter().find(|holder| holder.ownership.visible_to(user));
            return Ending::NotAllowed(seen.unwrap_or(&entry.holders[0]).ownership);
        }
        let nodes = own().map(|holder| holder.node).chain(readers.iter().copied()).collect();
        if entry.lost {
            lives.into_iter().for_each(|life| self.bury(id, life, now));
            return Ending::Unknown;
        }
        lives.iter().for_each(|life| self.end_too(id, *life, by));
        Ending::Begun { lives: lives.into_iter().collect(), nodes }
    }

    /// Whether an object is known with this life.
    pub(crate) fn has_life(&mut self, id: &ObjectId, life: u64) -> bool {
        self.settle(id);
        self.entries.get(id).is_some_and(|entry| entry.holders.iter().any(|holder| holder.life == life))
    }

    /// Adds a life to the deletion of an object, or begins the deletion.
    pub(crate) fn end_too(&mut self, id: ObjectId, life: u64, by: NodeId) {
        let new = || Leaving { by, lives: SmallVec::new(), withdrawn: Vec::new() };
        let leaving = self.leaving.entry(id).or_insert_with(new);
        leaving.by = by;
        if !leaving.lives.contains(&life) {
            leaving.lives.push(life);
        }
    }

    /// Whether an object is being deleted, so that no node is sent to it.
    pub(crate) fn is_leaving(&self, id: &ObjectId) -> bool {
        self.leaving.contains_key(id)
    }

    /// Ends the deletion of an object that the keeper `by` leads, whether complete or given up.
    pub(crate) fn end_over(&mut self, id: &ObjectId, by: NodeId, now: Instant) {
        if self.leaving.get(id).is_none_or(|leaving| leaving.by != by) {
            return;
        }
        let leaving = self.leaving.remove(id).expect("just seen");
        for (node, how) in leaving.withdrawn {
            // A later life of the object that the node holds by now stays.
            let holders = self.entries.get(id).map(|entry| entry.holders.as_slice()).unwrap_or_default();
            if holders.iter().any(|holder| holder.node == node && leaving.lives.contains(&holder.life)) {
                self.withdrawn(node, *id, how, now);
            }
        }
    }

    /// Gives up the deletions that their leader may no longer lead.
    pub(crate) fn give_up_ends(&mut self, leads: impl Fn(&ObjectId, NodeId) -> bool, now: Instant) {
        let given_up = self.leaving.iter().filter(|(id, leaving)| !leads(id, leaving.by));
        let given_up: Vec<_> = given_up.map(|(id, leaving)| (*id, leaving.by)).collect();
        given_up.iter().for_each(|(id, by)| self.end_over(id, *by, now));
    }

    /// Forgets the readers of objects that had no entry at this look and at the last one.
    pub(super) fn forget_stray_readers(&mut self) {
        if self.sweep.is_some() {
            return;
        }
        let known = |id: &ObjectId| self.entries.get(id).is_some();
        let strays: HashSet<_> = self.readers.keys().filter(|id| !known(id)).copied().collect();
        self.readers.retain(|id, _| !(strays.contains(id) && self.strays.contains(id)));
        self.strays = strays;
    }

    /// Whether a life of an object has ended, or is about to.
    pub(super) fn has_ended(&self, id: &ObjectId, life: u64) -> bool {
        self.tombstones.get(id).is_some_and(|lives| lives.contains(&life))
            || self.leaving.get(id).is_some_and(|leaving| leaving.lives.contains(&life))
    }

    /// Buries a life of an object: replicas of this life are turned away from now on.
    pub(crate) fn bury(&mut self, id: ObjectId, life: u64, now: Instant) {
        self.note_known(&id, life, None);
        self.tombstones.entry(id).or_default().push(life);
        self.buried.push_back((now, id, life));
        if self.buried.len() > MAX_TOMBSTONES {
            self.unbury();
        }
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.holders.retain(|holder| holder.life != life);
            if entry.holders.is_empty() {
                self.entries.remove(&id);
            }
        }
        if self.entries.get(&id).is_none() {
            // The readers have dropped the object, and ask again.
            self.readers.remove(&id);
        }
    }

    /// Forgets the oldest burial.
    fn unbury(&mut self) {
        if let Some((_, id, life)) = self.buried.pop_front()
            && let Some(lives) = self.tombstones.get_mut(&id)
        {
            // Only one entry is removed: a life that was buried again stays buried.
            lives.iter().position(|buried| *buried == life).map(|at| lives.swap_remove(at));
            if lives.is_empty() {
                self.tombstones.remove(&id);
            }
        }
    }

    /// Forgets the burials whose time is over.
    pub(super) fn unbury_before(&mut self, now: Instant) {
        while self.buried.front().is_some_and(|(at, ..)| *at + TOMBSTONE_LIFETIME <= now) {
            self.unbury();
        }
    }

    /// Whether a life of the object was ended by a deletion since a time.
    pub(crate) fn has_ended_since(&self, id: &ObjectId, since: Instant) -> bool {
        let recent = self.buried.iter().rev().take_while(|(at, ..)| *at >= since);
        self.deleted(id) && recent.into_iter().any(|(_, buried, _)| buried == id)
    }

    /// Whether a life of the object was ended by a deletion that is still remembered.
    pub(crate) fn deleted(&self, id: &ObjectId) -> bool {
        self.tombstones.contains_key(id)
    }
}
