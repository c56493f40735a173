//! Objects of a node that was no member for a while and comes back. Engine thread only; the state
//! is that of `Table`.
//!
//! While the node was away, another object of the id may have been created. The new object stays, and the
//! one that comes back is dropped, whichever of the two is published here first, and also if the new one
//! is lost or deleted by now. If two lives of an id come back, each keeper keeps the life of the later
//! epoch ([`is_later`]). If both are of one epoch, the first keeper has the life dropped of which it
//! hears later. The second keeper drops neither, else both lives might be dropped.

use std::time::Instant;

use plasmon::{NodeId, ObjectId};

use super::Table;
use crate::kernel::lives::is_later;
use crate::net::frame::{Holding, Kind, Withdrawal};
use crate::object::Role;

impl Table {
    /// Notes that a node has come back, and serves none of its objects until it says that it does.
    pub(crate) fn note_returning(&mut self, node: NodeId) {
        self.returning.insert(node);
    }

    /// Notes that a node serves its objects again.
    pub(crate) fn note_serving(&mut self, node: NodeId) {
        self.returning.remove(&node);
    }

    /// Forgets the nodes that are no members.
    pub(crate) fn forget_returning(&mut self, is_member: impl Fn(&NodeId) -> bool) {
        self.returning.retain(is_member);
    }

    /// Whether all known holders of an object have come back and do not serve yet. Such an object
    /// may have been deleted.
    pub(crate) fn doubts(&mut self, id: &ObjectId, user: u32) -> bool {
        if self.returning.is_empty() {
            return false;
        }
        self.settle(id);
        self.holders_of(id, user).next().is_some()
            && self.holders_of(id, user).all(|node| self.returning.contains(&node))
    }

    /// Whether an object that has come back with a node was created anew meanwhile: a later life is
    /// known, which may have ended since, or another node is the primary of another life. A primary
    /// that has come back as well counts if its life is later, or if both lives are of one epoch
    /// and this keeper `is_first`.
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

    /// Decides between two deeds of a name that two nodes published, neither of which came back. One
    /// of the two was made by a coordinator's node that began anew, before the other members joined.
    /// The later deed stays. Returns whether the deed of `node` is refused, and the node and the
    /// life of the other deed if that is taken out.
    pub(crate) fn judge_rival(
        &mut self,
        node: NodeId,
        holding: &Holding,
        is_first: bool,
        now: Instant,
    ) -> (bool, Option<(NodeId, u64)>) {
        if (holding.kind, holding.standing.role()) != (Kind::Deed, Role::Primary) {
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

    /// Takes out replicas of other lives than that of a primary that was published, if it is the one that is
    /// handed out. Such a replica came back before the primary was known. One of a later life stays, and one
    /// that its node keeps stays unless its life is earlier. Returns the nodes and the lives.
    pub(crate) fn displace_replicas(&mut self, primary: &Holding, now: Instant) -> Vec<(NodeId, u64)> {
        let entry = self.entries.get(&primary.id).filter(|entry| entry.life() == Some(primary.life));
        let is_displaced = |holder: &&super::Holder| match holder.role {
            _ if holder.life == primary.life => false,
            Role::Primary => false,
            Role::Cached => !is_later(holder.life, primary.life),
            Role::Kept => is_later(primary.life, holder.life),
        };
        let holders = entry.map(super::Entry::holders).unwrap_or_default();
        let displaced: Vec<_> =
            holders.iter().filter(is_displaced).map(|holder| (holder.node, holder.life)).collect();
        for (node, _) in &displaced {
            self.withdrawn(*node, primary.id, Withdrawal::Evicted, now);
        }
        displaced
    }

    /// Notes that a replica has come back with its node.
    pub(crate) fn note_returned(&mut self, node: NodeId, id: &ObjectId) {
        let holders = self.entries.get_mut(id).map(|entry| &mut entry.holders);
        if let Some(holder) = holders.and_then(|all| all.iter_mut().find(|holder| holder.node == node)) {
            holder.returned = true;
            self.any_returned = true;
        }
    }

    /// Takes out a primary that has come back with its node, if another node is the primary of
    /// another life: of a later life, if this one has come back too. Returns the node and the life
    /// of the primary that is taken out.
    pub(crate) fn displace_returned(
        &mut self,
        node: NodeId,
        holding: &Holding,
        returned: bool,
        now: Instant,
    ) -> Option<(NodeId, u64)> {
        if !self.any_returned || (holding.standing.role() != Role::Primary && !returned) {
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
