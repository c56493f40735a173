//! Mappings: regions of other nodes to which clients of this node have handles. Owns [`Mappings`]. Engine
//! thread only.
//!
//! Invariants: the home counts the mappings that it gave this node, and keeps the memory of a region until
//! all of them were left. A mapping is left when its handle or its region has gone, and no operation of the
//! fabric reads by it any more. A mapping that comes after the call is over is left at once. So this node
//! never reads memory that belongs to another region by then. When either of the two nodes becomes a member
//! anew, both forget the mappings between them. A mapping that is lost is never left, since the home may
//! count another by then.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::rc::{Rc, Weak};

use hashbrown::HashTable;
use plasmon::region::RegionState;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::frames::{Desk, RegionFrame, RightsChange};
use crate::kernel::random::Keyed;
use crate::net::frame::Location;
use crate::net::network::Network;
use crate::net::sending::stream_to;

/// A region of another node, as this node knows it. The home counts the mapping until it is left. This node
/// leaves the mapping of a region that was freed when no operation of the fabric reads by it, and never
/// leaves one that was lost. Other mappings are left when they are dropped.
pub(crate) struct Mapping {
    table: Rc<Table>,
    pub(super) home: NodeId,
    desk: u32,
    /// The owner of the region.
    pub(super) owner: u32,
    life: u64,
    pub(super) len: u64,
    pub(super) id: ObjectId,
    /// Number of operations of the fabric that read by the mapping.
    reads: Cell<u32>,
    /// The name of the region, for errors.
    pub(super) name: Box<str>,
    /// The places of the region's bytes, once somebody has asked.
    located: Cell<Option<Rc<Vec<Location>>>>,
    /// Number of times that the home has asked this node to stop reading, or has revoked rights. The number
    /// wraps.
    pub(super) relocations: Cell<u32>,
    /// Number of changes of the rights that the home has told, which wraps.
    pub(super) changes: Cell<u16>,
    pub(super) state: Cell<RegionState>,
    /// Whether the home has said that the region lives elsewhere.
    departed: Cell<bool>,
}

/// A node may have a million mappings. With the counts of an `Rc` and malloc's header a mapping takes 128
/// bytes, beside its name, its handle and its place in the table. The next larger size of malloc is 144.
const _: () = assert!(size_of::<Mapping>() <= 104);

impl Drop for Mapping {
    fn drop(&mut self) {
        self.table.forget(self);
        // The mapping of a region that was freed was left already, when no operation read by it any more.
        if self.state.get() == RegionState::Live {
            self.leave();
        }
    }
}

/// A mapping by which an operation of the fabric reads until this is dropped.
struct Reading(Rc<Mapping>);

impl Drop for Reading {
    fn drop(&mut self) {
        let mapping = &self.0;
        mapping.reads.set(mapping.reads.get() - 1);
        if mapping.reads.get() == 0 && mapping.state.get() == RegionState::Freed {
            mapping.leave();
        }
    }
}

impl Mapping {
    /// The region's place at its home.
    pub(super) fn desk(&self) -> Desk {
        Desk { number: self.desk, life: self.life }
    }

    /// Returns where the region's bytes lie, if this node knows their places.
    pub(super) fn located(&self) -> Option<Rc<Vec<Location>>> {
        let located = self.located.take();
        self.located.set(located.clone());
        located
    }

    /// Notes where the bytes of the region lie. `None` if the home has to be asked.
    pub(super) fn set_located(&self, located: Option<Rc<Vec<Location>>>) {
        self.located.set(located);
    }

    /// Refuses an operation on a region that was freed or lost.
    ///
    /// # Errors
    /// `Freed` or `Lost`.
    pub(super) fn ensure(&self) -> Result<(), Error> {
        match self.state.get() {
            RegionState::Live => Ok(()),
            RegionState::Freed => Err(freed(&self.name)),
            RegionState::Lost => Err(self.lost()),
        }
    }

    /// Keeps the mapping for an operation of the fabric, which reads the home's memory. Dropping the result
    /// ends the read.
    ///
    /// # Errors
    /// `Freed` or `Lost`.
    pub(super) fn keep(self: &Rc<Self>) -> Result<Rc<dyn Any>, Error> {
        self.ensure()?;
        self.reads.set(self.reads.get() + 1);
        Ok(Rc::new(Reading(Rc::clone(self))))
    }

    /// Whether the region has to be looked for: the mapping's home is not its home any more.
    pub(super) fn is_stale(&self) -> bool {
        self.departed.get() || self.state.get() != RegionState::Live
    }

    /// Notes that the region was freed. The mapping is left when no operation of the fabric needs it.
    fn end(&self) {
        self.state.set(RegionState::Freed);
        if self.reads.get() == 0 {
            self.leave();
        }
    }

    fn leave(&self) {
        leave(&self.table.network, self.home, self.desk(), 1);
    }

    /// Makes the error for a region whose home has gone.
    pub(super) fn lost(&self) -> Error {
        let text = format!(
            "region '{}' is lost: its home, node {}, has left the cluster; make it anew",
            self.name, self.home
        );
        Error::new(ErrorKind::Lost, text)
    }
}

/// Tells the home of a region that this node gives up mappings of it.
pub(super) fn leave(network: &Network, home: NodeId, desk: Desk, count: u32) {
    // A home that has gone counts no mappings.
    network.tell(home, RegionFrame::Leave { desk, count });
}

/// Makes the error for a region that was freed.
pub(super) fn freed(name: &str) -> Error {
    Error::new(
        ErrorKind::Freed,
        format!("region '{name}' was freed: unmap it, and map it again if it was made anew"),
    )
}

/// Mappings of this node to regions that have not gone, by home and desk. A region may have several mappings,
/// each of one handle.
struct Table {
    network: Rc<Network>,
    hasher: Keyed,
    /// Mappings of this node. A mapping removes itself when it is dropped.
    rows: RefCell<HashTable<Weak<Mapping>>>,
}

impl Table {
    fn hash(&self, home: NodeId, desk: Desk) -> u64 {
        self.hasher.hash_one((home, desk))
    }

    /// Returns the mappings of a region, which stay in the table while the caller has them.
    fn of(&self, home: NodeId, desk: Desk) -> Vec<Rc<Mapping>> {
        let rows = self.rows.borrow();
        let those = rows.iter_hash(self.hash(home, desk)).filter_map(Weak::upgrade);
        those.filter(|one| one.is_of(home, desk)).collect()
    }

    fn enter(&self, mapping: &Rc<Mapping>) {
        let again = |one: &Weak<Mapping>| one.upgrade().map_or(0, |one| self.hash(one.home, one.desk()));
        let hash = self.hash(mapping.home, mapping.desk());
        self.rows.borrow_mut().insert_unique(hash, Rc::downgrade(mapping), again);
    }

    /// Takes a mapping out of the table. The mapping may be about to be dropped.
    fn forget(&self, mapping: &Mapping) {
        let hash = self.hash(mapping.home, mapping.desk());
        let found = |one: &Weak<Mapping>| std::ptr::eq(one.as_ptr(), mapping);
        if let Ok(row) = self.rows.borrow_mut().find_entry(hash, found) {
            row.remove();
        }
    }
}

impl Mapping {
    fn is_of(&self, home: NodeId, desk: Desk) -> bool {
        (self.home, self.desk()) == (home, desk)
    }
}

/// The mappings of this node.
pub(super) struct Mappings(Rc<Table>);

impl Mappings {
    /// Makes the mappings of a node. There are none at first.
    pub(super) fn new(network: &Rc<Network>) -> Self {
        let table = Table { network: Rc::clone(network), hasher: Keyed::default(), rows: RefCell::default() };
        Self(Rc::new(table))
    }

    /// Enters a mapping that a home has given. `stream` is the stream on which the home was asked: if it is
    /// over, the mapping is lost already.
    pub(super) fn enter(
        &self,
        (home, stream): (NodeId, Option<u32>),
        (id, name): (ObjectId, &str),
        (desk, len, owner, changes): (Desk, u64, u32, u16),
    ) -> Rc<Mapping> {
        let is_over = stream_to(&self.0.network, home) != stream;
        let mapping = Rc::new(Mapping {
            table: Rc::clone(&self.0),
            home,
            desk: desk.number,
            owner,
            life: desk.life,
            len,
            id,
            reads: Cell::default(),
            name: name.into(),
            located: Cell::default(),
            relocations: Cell::default(),
            changes: Cell::new(changes),
            state: Cell::new(if is_over { RegionState::Lost } else { RegionState::Live }),
            departed: Cell::default(),
        });
        if !is_over {
            self.0.enter(&mapping);
        }
        mapping
    }

    /// Notes that a region has ended, because this node freed it or the home says so. Returns one of the
    /// mappings.
    pub(super) fn end(&self, home: NodeId, desk: Desk) -> Option<Rc<Mapping>> {
        let ended = self.0.of(home, desk);
        for one in &ended {
            self.0.forget(one);
            one.end();
        }
        ended.into_iter().next()
    }

    /// Notes that a region lives elsewhere, as its former home says. Returns one of the mappings.
    pub(super) fn depart(&self, home: NodeId, desk: Desk) -> Option<Rc<Mapping>> {
        let those = self.0.of(home, desk);
        those.iter().for_each(|one| one.departed.set(true));
        those.into_iter().next()
    }

    /// Notes a change of rights, as the home says. Returns one of the mappings.
    pub(super) fn govern(&self, home: NodeId, desk: Desk, change: &RightsChange) -> Option<Rc<Mapping>> {
        if !change.is_grant {
            self.relocate(home, desk);
        }
        let those = self.0.of(home, desk);
        those.iter().for_each(|one| one.changes.set(change.number));
        those.into_iter().next()
    }

    /// Notes that the bytes of a region may lie elsewhere, so that the home has to be asked again.
    pub(super) fn relocate(&self, home: NodeId, desk: Desk) {
        for one in self.0.of(home, desk) {
            one.relocations.set(one.relocations.get().wrapping_add(1));
            one.set_located(None);
        }
    }

    /// Whether an operation of the fabric reads the memory of a region at its home.
    pub(super) fn are_read(&self, home: NodeId, desk: Desk) -> bool {
        self.0.of(home, desk).iter().any(|one| one.reads.get() > 0)
    }

    /// Notes that homes have gone, or have forgotten the mappings that they gave this node. Returns one
    /// mapping of each region.
    pub(super) fn lose(&self, is_gone: impl Fn(&NodeId) -> bool) -> Vec<Rc<Mapping>> {
        let rows = self.0.rows.borrow();
        let lost = rows.iter().filter_map(Weak::upgrade).filter(|one| is_gone(&one.home));
        let mut lost: Vec<_> = lost.collect();
        drop(rows);
        for one in &lost {
            self.0.forget(one);
            one.state.set(RegionState::Lost);
        }
        let mut regions = BTreeSet::new();
        lost.retain(|one| regions.insert((one.home, one.desk())));
        lost
    }

    /// Number of mappings.
    pub(super) fn count(&self) -> usize {
        self.0.rows.borrow().len()
    }
}
