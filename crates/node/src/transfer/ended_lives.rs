//! Which lives of objects have ended while they were on their way here: the fetches under way, by object.
//! Engine thread only.
//!
//! A keeper that deletes an object tells everybody who may come to hold it. Bytes that are under way then may
//! still be given to those who asked for them before; they become no replica, which would be found by whoever
//! asks later. So every fetch is noted from before it asks anybody until it is over.

use crate::kernel::random::HashMap;
use std::cell::RefCell;
use std::rc::Rc;

use plasmon::ObjectId;
use smallvec::SmallVec;

use super::Transfer;
use crate::engine::Core;

/// Fetches under way, by object.
#[derive(Default)]
pub(super) struct UnderWay(RefCell<HashMap<ObjectId, Fetches>>);

#[derive(Default)]
struct Fetches {
    count: usize,
    /// Lives that have ended since the first of them began.
    ended: SmallVec<[u64; 1]>,
}

/// A fetch that is noted for as long as this lives.
pub(super) struct Noted {
    core: Rc<Core>,
    id: ObjectId,
}

impl Noted {
    pub(super) fn begin(core: &Rc<Core>, id: ObjectId) -> Self {
        core.transfer.under_way.0.borrow_mut().entry(id).or_default().count += 1;
        Self { core: Rc::clone(core), id }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut under_way = self.core.transfer.under_way.0.borrow_mut();
        if let Some(fetches) = under_way.get_mut(&self.id) {
            fetches.count -= 1;
            if fetches.count == 0 {
                under_way.remove(&self.id);
            }
        }
    }
}

impl Transfer {
    /// A life of an object has ended: nothing that is under way of it becomes a replica, and where it was is
    /// forgotten.
    pub(crate) fn end_life(&self, id: &ObjectId, life: u64) {
        self.known.borrow_mut().pop(id);
        if let Some(fetches) = self.under_way.0.borrow_mut().get_mut(id)
            && !fetches.ended.contains(&life)
        {
            fetches.ended.push(life);
        }
    }

    /// Whether a life of an object has ended while it was on its way here.
    pub(super) fn has_ended(&self, id: &ObjectId, life: u64) -> bool {
        self.under_way.0.borrow().get(id).is_some_and(|fetches| fetches.ended.contains(&life))
    }

    /// Whether this node may bring an object here without asking its keeper first.
    pub(crate) fn may_bring(&self, id: &ObjectId) -> bool {
        self.known.borrow().contains(id) || self.under_way.0.borrow().contains_key(id)
    }

    /// Objects that are on their way here.
    pub(crate) fn bringing(&self) -> Vec<ObjectId> {
        self.under_way.0.borrow().keys().copied().collect()
    }
}
