//! What comes to this node: the fetches under way, by object, and where objects were that came before. Engine
//! thread only.
//!
//! A keeper that deletes an object tells everybody who may come to hold it. Bytes that are under way then may
//! still be given to those who asked for them before; they become no replica, which would be found by whoever
//! asks later. So every fetch is noted from before it asks anybody until it is over.
//!
//! A remembered place is no truth. An entry that turns out wrong is forgotten, and the keepers are asked.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;

use lru::LruCache;
use plasmon::{NodeId, ObjectId};
use smallvec::SmallVec;

use super::Directory;
use crate::kernel::random::HashMap;
use crate::net::frame::Location;
use crate::object::{Head, Stamp};

/// Objects remembered.
const KEPT_PLACES: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// Where objects were, the last that were fetched.
pub(crate) type Known = LruCache<ObjectId, Place>;

/// Where an object was.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) holder: NodeId,
    /// The epoch in which a keeper knew that this node might come back to it.
    pub(crate) epoch: u64,
    /// What to read, and what says that it is still there; nothing for what came inside a message.
    pub(crate) at: Option<Rc<(Head, Vec<Location>, Stamp)>>,
}

pub(super) fn known() -> Known {
    LruCache::new(KEPT_PLACES)
}

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
pub(crate) struct Noted {
    directory: Rc<Directory>,
    id: ObjectId,
}

impl Noted {
    pub(crate) fn begin(directory: &Rc<Directory>, id: ObjectId) -> Self {
        directory.under_way.0.borrow_mut().entry(id).or_default().count += 1;
        Self { directory: Rc::clone(directory), id }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut under_way = self.directory.under_way.0.borrow_mut();
        if let Some(fetches) = under_way.get_mut(&self.id) {
            fetches.count -= 1;
            if fetches.count == 0 {
                under_way.remove(&self.id);
            }
        }
    }
}

impl Directory {
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
    pub(crate) fn has_ended(&self, id: &ObjectId, life: u64) -> bool {
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
