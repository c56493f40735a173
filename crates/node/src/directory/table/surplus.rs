//! Objects that have more than one primary, as the directory knows them. Engine thread only; the
//! state is that of `Table`.
//!
//! A node that was no member for a while may come back with a primary that another node has replaced
//! meanwhile. Both stay until the first keeper has one of them hand over to the other: an heir to any other,
//! so that an object ends with the node where somebody has put it, or moved it to.

use std::time::{Duration, Instant};

use plasmon::{NodeId, ObjectId};

use super::{Entry, Holder, Table};
use crate::object::Role;

/// How long an object may have several primaries: one may be about to hand over to another.
const SURPLUS_GRACE: Duration = Duration::from_secs(10);

impl Entry {
    /// The primaries of the life that is handed out.
    fn primaries(&self) -> impl Iterator<Item = &Holder> {
        let life = self.life();
        let primary = move |holder: &&Holder| holder.role == Role::Primary && Some(holder.life) == life;
        self.holders().iter().filter(primary)
    }

    /// Whether there is more than one primary of the life that is handed out.
    pub(super) fn has_surplus(&self) -> bool {
        self.primaries().nth(1).is_some()
    }
}

impl Table {
    /// Notes that an object may have several primaries.
    pub(super) fn note_surplus(&mut self, id: ObjectId, now: Instant) {
        self.concerns.surplus.entry(id).or_insert(now + SURPLUS_GRACE);
    }

    /// Takes the objects that have had several primaries for a while and that are this node's to
    /// mend, each with its creator and the primary that is to stay. An object is not returned again
    /// before [`SURPLUS_GRACE`] is over.
    pub(crate) fn take_surplus(
        &mut self,
        now: Instant,
        mine: impl Fn(&ObjectId) -> bool,
    ) -> Vec<(ObjectId, u32, NodeId)> {
        if self.sweep.is_some() {
            return Vec::new();
        }
        let (entries, surplus) = (&self.entries, &mut self.concerns.surplus);
        surplus.retain(|id, _| entries.get(id).is_some_and(Entry::has_surplus));
        let due = surplus.iter_mut().filter(|(id, at)| **at <= now && mine(id));
        let told = |(id, at): (&ObjectId, &mut Instant)| {
            *at = now + SURPLUS_GRACE;
            let stays = entries.get(id)?.primaries().min_by_key(|primary| primary.is_heir)?;
            Some((*id, stays.ownership.user, stays.node))
        };
        due.filter_map(told).collect()
    }
}
