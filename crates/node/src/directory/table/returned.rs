//! Objects of a node that was no member for a while and comes back. Engine thread only.
//!
//! Others may have created an id anew meanwhile, as the object was not there. That one stays; the one that
//! comes back is dropped, whichever of the two is published here first, and also if the new one is lost or
//! deleted by now. Of two lives that come back, the one of the later epoch stays, by the word of either
//! keeper ([`is_later`]). If both are of one epoch, the first keeper has the life dropped of which it hears
//! later. The other keeper drops neither, so that not both are.

use std::time::Instant;

use plasmon::{NodeId, ObjectId};

use super::Table;
use crate::kernel::lives::is_later;
use crate::net::frame::{Holding, Kind, Withdrawal};
use crate::object::Role;

impl Table {
    /// Notes that a node has come back, and gives nobody what it holds until it says so.
    pub(crate) fn note_returning(&mut self, node: NodeId) {
        self.returning.insert(node);
    }

    /// Notes that a node gives out what it holds.
    pub(crate) fn note_serving(&mut self, node: NodeId) {
        self.returning.remove(&node);
    }

    /// Forgets the nodes that are no members.
    pub(crate) fn forget_returning(&mut self, is_member: impl Fn(&NodeId) -> bool) {
        self.returning.retain(is_member);
    }

    /// Whether all holders that are known of an object have come back, and give nobody what they hold yet: it
    /// may have been deleted.
    pub(crate) fn doubts(&mut self, id: &ObjectId, user: u32) -> bool {
        if self.returning.is_empty() {
            return false;
        }
        self.settle(id);
        self.holders_of(id, user).next().is_some()
            && self.holders_of(id, user).all(|node| self.returning.contains(&node))
    }

    /// Whether an object that has come back with a node was created anew: a later life is known, which may
    /// have ended since, or another node is the primary of another life. A primary that has come back as well
    /// counts if it is later, or if it is of the same epoch and this keeper `is_first`.
    pub(crate) fn is_replaced(&mut self, node: NodeId, holding: &Holding, is_first: bool) -> bool {
        self.settle(&holding.id);
        let ended = self.tombstones.get(&holding.id);
        if ended.is_some_and(|lives| lives.iter().any(|life| is_later(*life, holding.life))) {
            return true;
        }
        let Some(entry) = self.entries.get(&holding.id) else { return false };
        if entry.lost {
            return entry.holders.iter().any(|last| is_later(last.life, holding.life));
        }
        let replaces = |primary: &super::Holder| {
            let in_any_order = is_first && !is_later(holding.life, primary.life);
            let is_replaced = !primary.returned || is_later(primary.life, holding.life) || in_any_order;
            primary.node != node && primary.life != holding.life && is_replaced
        };
        entry.kind == holding.kind && entry.primary().is_some_and(replaces)
    }

    /// Whether another node has a deed of this name, and neither came back: one of them was made by a
    /// coordinator's node that was started anew, before the others were members of its cluster. The later
    /// stays. Takes out the earlier, if that is known here, and gives its node and its life.
    pub(crate) fn judge_rival(
        &mut self,
        node: NodeId,
        holding: &Holding,
        is_first: bool,
        now: Instant,
    ) -> (bool, Option<(NodeId, u64)>) {
        if (holding.kind, holding.role) != (Kind::Deed, Role::Primary) {
            return (false, None);
        }
        self.settle(&holding.id);
        let entry = self.entries.get(&holding.id).filter(|entry| entry.kind == Kind::Deed && !entry.lost);
        let rival = entry.and_then(|entry| entry.primary()).map(|primary| (primary.node, primary.life));
        let Some((other, life)) = rival.filter(|(other, life)| *other != node && *life != holding.life)
        else {
            return (false, None);
        };
        if is_later(holding.life, life) && !self.has_ended(&holding.id, holding.life) {
            self.withdrawn(other, holding.id, Withdrawal::Evicted, now);
            return (false, Some((other, life)));
        }
        (is_first || is_later(life, holding.life), None)
    }

    /// Notes that a replica has come back with its node.
    pub(crate) fn note_returned(&mut self, node: NodeId, id: &ObjectId) {
        let holders = self.entries.get_mut(id).map(|entry| &mut entry.holders);
        if let Some(holder) = holders.and_then(|all| all.iter_mut().find(|holder| holder.node == node)) {
            holder.returned = true;
            self.any_returned = true;
        }
    }

    /// Takes out a primary that has come back with its node, since another node is the primary of a later
    /// life, or has come back with a later one; gives its node and its life.
    pub(crate) fn displace_returned(
        &mut self,
        node: NodeId,
        holding: &Holding,
        returned: bool,
        now: Instant,
    ) -> Option<(NodeId, u64)> {
        if !self.any_returned || (holding.role != Role::Primary && !returned) {
            return None;
        }
        self.settle(&holding.id);
        let entry = self.entries.get(&holding.id).filter(|entry| entry.kind == holding.kind)?;
        let former = entry.primary()?;
        let (other, life) = (former.node, former.life);
        if other == node
            || life == holding.life
            || !former.returned
            || (returned && !is_later(holding.life, life))
            || self.has_ended(&holding.id, holding.life)
        {
            return None;
        }
        self.withdrawn(other, holding.id, Withdrawal::Evicted, now);
        Some((other, life))
    }
}
