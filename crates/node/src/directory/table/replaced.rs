//! How objects are replaced in the directory. Engine thread only; the state is that of `Table`.
//!
//! While an object is *being replaced*, its first keeper gives the former life, until it holds askers back
//! for the moment of the switch; the second keeper gives nothing. At the switch the former lives are buried,
//! and the entry has the successor. The successor's nodes have yet to publish it then. What these nodes say
//! of their former replicas meanwhile does not touch the successor.

use std::time::Instant;

use plasmon::{NodeId, ObjectId};
use smallvec::SmallVec;

use super::{Holder, Published, Table, Waiter};
use crate::kernel::lives::is_later;
use crate::net::frame::{Holding, Standing, Successor, Withdrawal};
use crate::object::Ownership;

/// An object that is being replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Replacing {
    /// The keeper that leads the replacement.
    by: NodeId,
    /// The turn of that keeper.
    turn: u64,
    /// Whether this node gives the former life to askers.
    gives: bool,
}

/// The life of an object that is given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) life: u64,
    pub(crate) copies: u16,
    pub(crate) ownership: Ownership,
}

impl Table {
    /// Notes that an object is being replaced. This node gives the former life meanwhile if it leads.
    pub(crate) fn begin_replacing(&mut self, id: ObjectId, by: NodeId, turn: u64, leads: bool) {
        self.replacing.insert(id, Replacing { by, turn, gives: leads });
    }

    /// Notes whether askers get the former life of an object that this node replaces.
    pub(crate) fn give_former(&mut self, id: &ObjectId, gives: bool) {
        if let Some(replacing) = self.replacing.get_mut(id) {
            replacing.gives = gives;
        }
    }

    /// Notes that the replacement of an object is over that the keeper `by` leads.
    pub(crate) fn end_replacing(&mut self, id: &ObjectId, by: NodeId) {
        if self.replacing.get(id).is_some_and(|replacing| replacing.by == by) {
            self.replacing.remove(id);
        }
    }

    /// Gives up the replacements that their leader may no longer lead.
    pub(crate) fn give_up_replacing(&mut self, leads: impl Fn(&ObjectId, NodeId) -> bool) {
        self.replacing.retain(|id, replacing| leads(id, replacing.by));
    }

    /// The keeper that leads the replacement of an object.
    pub(crate) fn replaced_by(&self, id: &ObjectId) -> Option<NodeId> {
        self.replacing.get(id).map(|replacing| replacing.by)
    }

    /// Whether askers are not sent to an object now, since it is about to be replaced.
    pub(crate) fn holds_back(&self, id: &ObjectId) -> bool {
        self.replacing.get(id).is_some_and(|replacing| !replacing.gives)
    }

    /// The life that is given out of an object that is not lost: the latest, if there are several.
    pub(crate) fn given(&mut self, id: &ObjectId) -> Option<Given> {
        self.settle(id);
        let entry = self.entries.get(id).filter(|entry| !entry.lost)?;
        let first = entry.primary().or(entry.holders().first())?;
        let latest =
            |best: &'_ Holder, one: &'_ Holder| if is_later(one.life, best.life) { *one } else { *best };
        let holder = entry.holders().iter().fold(*first, |best, one| latest(&best, one));
        Some(Given { life: holder.life, copies: entry.copies(), ownership: holder.ownership })
    }

    /// The lives of an object that is not lost, each with a node that holds it, and the nodes that may come
    /// to hold it by what they know.
    pub(crate) fn may_hold(&mut self, id: &ObjectId) -> (Vec<(u64, NodeId)>, Vec<NodeId>) {
        self.settle(id);
        let holders = self.entries.get(id).map(|entry| entry.holders()).unwrap_or_default();
        let lives = holders.iter().map(|holder| (holder.life, holder.node)).collect();
        (lives, self.readers.get(id).map(|readers| readers.to_vec()).unwrap_or_default())
    }

    /// Whether a life of an object has ended by a deletion or a replacement that is over.
    pub(crate) fn is_buried(&self, id: &ObjectId, life: u64) -> bool {
        self.tombstones.get(id).is_some_and(|lives| lives.contains(&life))
    }

    /// Whether a life of an object has ended, or is about to by a deletion.
    pub(crate) fn is_over(&self, id: &ObjectId, life: u64) -> bool {
        self.has_ended(id, life)
    }

    /// Buries lives of an object, and enters their successor, which its nodes may have yet to publish. Of its
    /// nodes only those `there` are left; without any the object is lost. Returns the waiters for the object.
    pub(crate) fn switch(
        &mut self,
        lives: &[u64],
        successor: &Successor,
        there: &[NodeId],
        now: Instant,
    ) -> Vec<Waiter> {
        let Successor { holding, node, .. } = *successor;
        self.replacing.remove(&holding.id);
        for life in lives.iter().filter(|life| **life != holding.life) {
            self.bury(holding.id, *life, now);
        }
        let known = self.entries.get(&holding.id).is_some_and(|entry| {
            entry.holders().iter().any(|holder| (holder.node, holder.life) == (node, holding.life))
        });
        if known {
            return Vec::new();
        }
        let Published::Welcome(waiters) = self.publish(node, holding, now) else { return Vec::new() };
        let kept = Holding { standing: Standing::Kept, ..holding };
        for other in there.iter().filter(|other| **other != node) {
            self.publish(*other, kept, now);
        }
        if !there.contains(&node) {
            self.withdrawn(node, holding.id, Withdrawal::Evicted, now);
        }
        if !there.is_empty() {
            self.unpublished.insert(holding.id, (SmallVec::from_slice(there), holding.life));
        }
        waiters
    }

    /// Whether a node has yet to publish the successor that it has of an object.
    pub(super) fn is_unpublished(&self, id: &ObjectId, node: NodeId) -> bool {
        self.unpublished.get(id).is_some_and(|(nodes, _)| nodes.contains(&node))
    }

    /// Notes that a life of an object was published by a node, or has ended.
    pub(super) fn note_known(&mut self, id: &ObjectId, life: u64, node: Option<NodeId>) {
        let Some((nodes, awaited)) = self.unpublished.get_mut(id) else { return };
        if *awaited != life {
            return;
        }
        nodes.retain(|has| node.is_some_and(|node| node != *has));
        if nodes.is_empty() {
            self.unpublished.remove(id);
        }
    }
}
