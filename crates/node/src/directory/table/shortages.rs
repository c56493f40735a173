//! Objects that too few nodes keep, as the directory knows them. Engine thread only; the state is
//! that of `Table`.

use std::time::Instant;

use plasmon::{NodeId, ObjectId};

use super::Table;

/// An object that too few nodes keep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) id: ObjectId,
    pub(crate) life: u64,
    /// The user who created the object.
    pub(crate) creator: u32,
    /// Number of nodes that are to keep the object.
    pub(crate) copies: u16,
    /// The nodes that keep the object.
    pub(crate) keeping: Vec<NodeId>,
    /// The nodes that hold the object and may drop it.
    pub(crate) cached: Vec<NodeId>,
}

impl Table {
    /// Takes at most `most` objects of which this node is to have replicas made. An object is not
    /// returned again before the time `again`. An object is left out while no bytes come through to
    /// the first node that keeps it (`moves`).
    pub(crate) fn take_short(
        &mut self,
        now: Instant,
        again: Instant,
        most: usize,
        mine: impl Fn(&ObjectId) -> bool,
        moves: impl Fn(NodeId) -> bool,
    ) -> Vec<Shortage> {
        if self.sweep.is_some() {
            return Vec::new();
        }
        let (entries, members) = (&self.entries, self.concerns.members);
        let shorts = &mut self.concerns.shorts;
        shorts.retain(|id, _| entries.get(id).is_some_and(|entry| entry.is_short(members)));
        let is_due = |next: &Option<Instant>| next.is_some_and(|next| next <= now);
        let may_come = |id: &ObjectId| {
            let holder = entries.get(id).and_then(|entry| entry.keeping().next().map(|holder| holder.node));
            holder.is_none_or(&moves)
        };
        let due = shorts.iter_mut().filter(|(id, next)| is_due(next) && mine(id) && may_come(id)).take(most);
        let shortage = |(id, next): (&ObjectId, &mut Option<Instant>)| {
            *next = Some(again);
            let entry = entries.get(id)?;
            let cached = entry.holders().iter().filter(|holder| !holder.role.stays());
            Some(Shortage {
                id: *id,
                life: entry.life()?,
                creator: entry.holders().first()?.ownership.user,
                copies: entry.copies(),
                keeping: entry.keeping().map(|holder| holder.node).collect(),
                cached: cached.map(|holder| holder.node).collect(),
            })
        };
        due.filter_map(shortage).collect()
    }

    /// Sets the time from which an object may be looked at again, if too few nodes still keep the object.
    pub(crate) fn look_again(&mut self, id: &ObjectId, at: Instant) {
        if let Some(next) = self.concerns.shorts.get_mut(id) {
            *next = Some(at);
        }
    }

    /// Whether enough nodes would keep an object without `nodes`, as far as this keeper knows.
    pub(crate) fn suffices_without(&mut self, id: &ObjectId, nodes: &[NodeId]) -> bool {
        self.settle(id);
        let members = self.concerns.members;
        self.entries.get(id).is_some_and(|entry| !entry.lost && !entry.is_short_without(nodes, members))
    }

    /// Number of nodes that are to keep an object, as far as this keeper knows.
    pub(crate) fn copies(&mut self, id: &ObjectId) -> u16 {
        self.settle(id);
        self.entries.get(id).map_or(0, super::Entry::copies)
    }

    /// Number of objects that too few nodes keep, as far as this keeper knows.
    pub(crate) fn short(&self) -> usize {
        self.concerns.shorts.len()
    }

    /// Whether an object still has this life, and too few nodes keep it.
    pub(crate) fn lacks(&mut self, id: &ObjectId, life: u64) -> bool {
        self.settle(id);
        let members = self.concerns.members;
        self.entries.get(id).is_some_and(|entry| entry.life() == Some(life) && entry.is_short(members))
    }
}
