//! What the directory says of objects that too few nodes keep. Engine thread only.

use std::time::Instant;

use plasmon::{NodeId, ObjectId};

use super::Table;

/// An object that too few nodes keep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) id: ObjectId,
    pub(crate) life: u64,
    /// The user who created it.
    pub(crate) creator: u32,
    /// How many are to keep it.
    pub(crate) copies: u16,
    /// Those that do.
    pub(crate) keeping: Vec<NodeId>,
    /// Those that hold it, and may drop it.
    pub(crate) cached: Vec<NodeId>,
}

impl Table {
    /// Objects of which replicas are to be made, `most` of them, as far as this node is to see to them; they
    /// are not told again before `again`.
    pub(crate) fn take_short(
        &mut self,
        now: Instant,
        again: Instant,
        most: usize,
        mine: impl Fn(&ObjectId) -> bool,
    ) -> Vec<Shortage> {
        if self.sweep.is_some() {
            return Vec::new();
        }
        let (entries, members) = (&self.entries, self.concerns.members);
        let shorts = &mut self.concerns.shorts;
        shorts.retain(|id, _| entries.get(id).is_some_and(|entry| entry.is_short(members)));
        let is_due = |next: &Option<Instant>| next.is_some_and(|next| next <= now);
        let due = shorts.iter_mut().filter(|(id, next)| is_due(next) && mine(id)).take(most);
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

    /// An object may be looked at again from that moment on, if too few nodes keep it still.
    pub(crate) fn look_again(&mut self, id: &ObjectId, at: Instant) {
        if let Some(next) = self.concerns.shorts.get_mut(id) {
            *next = Some(at);
        }
    }

    /// Whether as many nodes as are to keep an object do so without these, as far as is known here.
    pub(crate) fn suffices_without(&mut self, id: &ObjectId, nodes: &[NodeId]) -> bool {
        self.settle(id);
        let members = self.concerns.members;
        self.entries.get(id).is_some_and(|entry| !entry.lost && !entry.is_short_without(nodes, members))
    }

    /// How many objects too few nodes keep, as far as is known.
    pub(crate) fn short(&self) -> usize {
        self.concerns.shorts.len()
    }

    /// Whether too few nodes keep an object still, in that life.
    pub(crate) fn lacks(&mut self, id: &ObjectId, life: u64) -> bool {
        self.settle(id);
        let members = self.concerns.members;
        self.entries.get(id).is_some_and(|entry| entry.life() == Some(life) && entry.is_short(members))
    }
}
