//! Homes: which node decides about a lock or barrier. Owns [`Places`]. Engine thread only.
//!
//! The home follows from the view, so that every node knows it without asking. With an embedded
//! coordinator the home is the coordinator's node: no node is fenced by the clock there, so that only one
//! fixed authority is safe. Otherwise the home is the first keeper of the shard of the name: a node that
//! is not a member any more has fenced itself before others hear of it.
//!
//! Invariant: all members that follow the view of an epoch name the same home.

use std::cell::RefCell;
use std::rc::Rc;

use plasmon::{NodeId, ObjectId};

use crate::membership::Cluster;
use crate::membership::shards::{SHARDS, shard_of};
use crate::membership::views::ViewChange;

/// The homes of locks, by shard.
pub(super) struct Places {
    cluster: Rc<Cluster>,
    /// For each shard, the epoch of the last view in which its first keeper became another.
    moved: RefCell<Vec<u64>>,
}

impl Places {
    pub(super) fn new(cluster: &Rc<Cluster>) -> Self {
        Self { cluster: Rc::clone(cluster), moved: RefCell::new(vec![0; SHARDS]) }
    }

    /// Whether one node is the home of all names. No node is fenced by the clock then.
    pub(super) fn is_coordinated(&self) -> bool {
        self.cluster.coordinator.get().is_some()
    }

    /// The home of a name.
    pub(super) fn home(&self, id: &ObjectId) -> NodeId {
        self.cluster.coordinator.get().unwrap_or_else(|| self.cluster.keepers(id).first)
    }

    /// Whether this node is the home of a name.
    pub(super) fn is_here(&self, id: &ObjectId) -> bool {
        self.home(id) == self.cluster.own
    }

    /// The epoch of the last view in which the home of a name became another.
    pub(super) fn moved(&self, id: &ObjectId) -> u64 {
        if self.is_coordinated() { 0 } else { self.moved.borrow()[shard_of(id)] }
    }

    /// Takes note of the names whose home has changed with a view.
    pub(super) fn follow(&self, change: &ViewChange) {
        let epoch = self.cluster.epoch();
        let shards = self.cluster.shards.borrow();
        if change.moves_nothing(&shards) {
            return;
        }
        for (moved, [first, _]) in self.moved.borrow_mut().iter_mut().zip(change.former_places(&shards)) {
            if first != Some(0) {
                *moved = epoch;
            }
        }
    }
}
