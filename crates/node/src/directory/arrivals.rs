//! The fetches of this node that are under way, by object, and the places where fetched objects were.
//! Owns [`Arrivals`]. Engine thread only.
//!
//! A keeper that deletes an object tells every node that may come to hold a replica. Bytes that are
//! under way at that moment may still be given to the clients that asked before. These bytes do not
//! become a replica, because later clients would find that replica. Therefore every fetch is noted
//! from before its first request until its end.
//!
//! A remembered place may be out of date. A place that turns out to be wrong is forgotten, and the
//! keepers are asked.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;

use lru::LruCache;
use plasmon::{NodeId, ObjectId};
use smallvec::SmallVec;

use crate::kernel::random::HashMap;
use crate::net::frame::Location;
use crate::object::{Head, Stamp};

/// Maximum number of remembered places.
const KEPT_PLACES: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// The places where the most recently fetched objects were, by object.
pub(crate) type Known = LruCache<ObjectId, Place>;

/// Places to read an object from at a holder, and the stamp that tells whether the object is still there.
pub(crate) type Lies = (Head, Vec<Location>, Stamp);

/// The place where an object was when this node fetched it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) holder: NodeId,
    /// The epoch in which a keeper knew that this node might fetch the object again.
    pub(crate) epoch: u64,
    /// Places to read the object from; `None` if the object came in messages.
    pub(crate) at: Option<Rc<Lies>>,
}

/// The objects that come to this node from other nodes, and the places where earlier ones were.
pub(crate) struct Arrivals {
    /// The fetches under way, by object.
    under_way: RefCell<HashMap<ObjectId, Fetches>>,
    /// The places where fetched objects were.
    pub(crate) known: RefCell<Known>,
}

#[derive(Default)]
struct Fetches {
    count: usize,
    /// Lives of the object that have ended since the first of its fetches began.
    ended: SmallVec<[u64; 1]>,
}

/// A note that a fetch is under way. The note ends when this value is dropped.
pub(crate) struct Noted {
    arrivals: Rc<Arrivals>,
    id: ObjectId,
}

impl Noted {
    pub(crate) fn begin(arrivals: &Rc<Arrivals>, id: ObjectId) -> Self {
        arrivals.under_way.borrow_mut().entry(id).or_default().count += 1;
        Self { arrivals: Rc::clone(arrivals), id }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut under_way = self.arrivals.under_way.borrow_mut();
        if let Some(fetches) = under_way.get_mut(&self.id) {
            fetches.count -= 1;
            if fetches.count == 0 {
                under_way.remove(&self.id);
            }
        }
    }
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { under_way: RefCell::default(), known: RefCell::new(LruCache::new(KEPT_PLACES)) }
    }
}

impl Arrivals {
    /// Notes that a life of an object has ended: a fetch of that life does not become a replica, and the
    /// remembered place of the object is forgotten.
    pub(crate) fn end_life(&self, id: &ObjectId, life: u64) {
        self.known.borrow_mut().pop(id);
        if let Some(fetches) = self.under_way.borrow_mut().get_mut(id)
            && !fetches.ended.contains(&life)
        {
            fetches.ended.push(life);
        }
    }

    /// Forgets where an object was.
    pub(crate) fn forget_place(&self, id: &ObjectId) {
        self.known.borrow_mut().pop(id);
    }

    /// Whether an object is being fetched.
    pub(crate) fn is_bringing(&self, id: &ObjectId) -> bool {
        self.under_way.borrow().contains_key(id)
    }

    /// Whether a life of an object has ended while it was being fetched.
    pub(crate) fn has_ended(&self, id: &ObjectId, life: u64) -> bool {
        self.under_way.borrow().get(id).is_some_and(|fetches| fetches.ended.contains(&life))
    }

    /// Whether this node may fetch an object without asking a keeper first.
    pub(crate) fn may_bring(&self, id: &ObjectId) -> bool {
        self.known.borrow().contains(id) || self.under_way.borrow().contains_key(id)
    }

    /// The objects that are being fetched.
    pub(crate) fn bringing(&self) -> Vec<ObjectId> {
        self.under_way.borrow().keys().copied().collect()
    }
}
