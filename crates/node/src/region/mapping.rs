//! Mappings: the regions of other nodes to which clients of this node have handles. Engine thread only.
//!
//! Invariants: the home counts the mappings that it gave this node, and keeps the memory of a region until
//! all of them were left. A mapping is left when its handle has gone, or its region, and no operation of the
//! fabric reads by it any more; one that nobody waits for is left at once. So no read of this node meets
//! memory that is another region's.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use plasmon::region::RegionState;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::frames::{Desk, RegionFrame, RightsChange};
use crate::kernel::random::HashMap;
use crate::net::frame::Location;
use crate::net::network::Network;

/// A mapping as its home counts it. It is left when this is dropped.
struct Counted {
    network: Rc<Network>,
    home: NodeId,
    desk: Desk,
}

impl Drop for Counted {
    fn drop(&mut self) {
        leave(&self.network, self.home, self.desk, 1);
    }
}

/// A region of another node, as this node knows it.
pub(crate) struct Mapping {
    pub(super) home: NodeId,
    pub(super) desk: Desk,
    pub(super) id: ObjectId,
    /// The name of the region, for errors.
    pub(super) name: Box<str>,
    pub(super) len: u64,
    pub(super) owner: u32,
    pub(super) state: Cell<RegionState>,
    /// What the home counts, until the region has gone.
    counted: RefCell<Option<Rc<Counted>>>,
    /// Where the bytes lie, once somebody has asked.
    pub(super) pieces: RefCell<Option<Rc<[Location]>>>,
    /// How often the home has said that they may lie elsewhere.
    pub(super) relocations: Cell<u64>,
    /// Number of changes of the rights that the home has told, which wraps.
    pub(super) changes: Cell<u16>,
    /// Whether the home has said that the region lives elsewhere.
    departed: Cell<bool>,
}

impl Mapping {
    /// Refuses what is done to a region that is not there any more.
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

    /// Keeps the mapping for an operation of the fabric, which reads the home's memory.
    ///
    /// # Errors
    /// `Freed` or `Lost`.
    pub(super) fn keep(&self) -> Result<Rc<dyn Any>, Error> {
        self.ensure()?;
        let counted = self.counted.borrow().clone();
        counted.map(|counted| counted as Rc<dyn Any>).ok_or_else(|| freed(&self.name))
    }

    /// Whether the region has to be looked for: it lives elsewhere, if it lives.
    pub(super) fn is_stale(&self) -> bool {
        self.departed.get() || self.state.get() != RegionState::Live
    }

    /// Notes that the region has gone. The mapping is left when no operation of the fabric needs it.
    fn end(&self, state: RegionState) {
        self.state.set(state);
        drop(self.counted.take());
    }

    /// The error for a region whose home has gone.
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

/// The error for a region that was freed.
pub(super) fn freed(name: &str) -> Error {
    Error::new(
        ErrorKind::Freed,
        format!("region '{name}' was freed: unmap it, and map it again if it was made anew"),
    )
}

/// The mappings of this node, by what their homes know them by.
#[derive(Default)]
pub(super) struct Mappings(RefCell<HashMap<(NodeId, Desk), Those>>);

/// The mappings of one region, each of a handle of its own.
type Those = Vec<Weak<Mapping>>;

impl Mappings {
    /// Enters a mapping that a home has given.
    pub(super) fn enter(
        &self,
        network: &Rc<Network>,
        home: NodeId,
        (id, name): (ObjectId, &str),
        (desk, len, owner, changes): (Desk, u64, u32, u16),
    ) -> Rc<Mapping> {
        let mapping = Rc::new(Mapping {
            counted: RefCell::new(Some(Rc::new(Counted { network: Rc::clone(network), home, desk }))),
            home,
            desk,
            id,
            name: name.into(),
            len,
            owner,
            state: Cell::new(RegionState::Live),
            pieces: RefCell::default(),
            relocations: Cell::default(),
            changes: Cell::new(changes),
            departed: Cell::default(),
        });
        let mut mappings = self.0.borrow_mut();
        let those = mappings.entry((home, desk)).or_default();
        those.retain(|one| one.strong_count() > 0);
        those.push(Rc::downgrade(&mapping));
        mapping
    }

    /// Notes that a region has gone; its home is another's already, or has said so. Returns one of the
    /// mappings.
    pub(super) fn end(&self, home: NodeId, desk: Desk) -> Option<Rc<Mapping>> {
        let ended = self.0.borrow_mut().remove(&(home, desk)).unwrap_or_default();
        let mut ended = ended.iter().filter_map(Weak::upgrade);
        ended.clone().for_each(|one| one.end(RegionState::Freed));
        ended.next()
    }

    /// Notes that a region lives elsewhere, as its home has said. Returns one of the mappings.
    pub(super) fn depart(&self, home: NodeId, desk: Desk) -> Option<Rc<Mapping>> {
        let mappings = self.0.borrow();
        let mut those = mappings.get(&(home, desk))?.iter().filter_map(Weak::upgrade);
        those.clone().for_each(|one| one.departed.set(true));
        those.next()
    }

    /// Notes a change of rights that the home has told. Returns one of the mappings.
    pub(super) fn govern(&self, home: NodeId, desk: Desk, change: &RightsChange) -> Option<Rc<Mapping>> {
        if !change.is_grant {
            self.relocate(home, desk);
        }
        let mappings = self.0.borrow();
        let mut those = mappings.get(&(home, desk))?.iter().filter_map(Weak::upgrade);
        those.clone().for_each(|one| one.changes.set(change.number));
        those.next()
    }

    /// Notes that the home of a region is to be asked again where its bytes lie.
    pub(super) fn relocate(&self, home: NodeId, desk: Desk) {
        if let Some(those) = self.0.borrow().get(&(home, desk)) {
            for one in those.iter().filter_map(Weak::upgrade) {
                one.relocations.set(one.relocations.get() + 1);
                drop(one.pieces.take());
            }
        }
    }

    /// Whether an operation of the fabric reads the memory of a region.
    pub(super) fn are_read(&self, home: NodeId, desk: Desk) -> bool {
        let is_read =
            |one: Rc<Mapping>| one.counted.borrow().as_ref().is_some_and(|it| Rc::strong_count(it) > 1);
        self.0
            .borrow()
            .get(&(home, desk))
            .is_some_and(|those| those.iter().filter_map(Weak::upgrade).any(is_read))
    }

    /// Notes that nodes have gone, and their regions with them. Returns one mapping of each.
    pub(super) fn lose(&self, gone: &[NodeId]) -> Vec<Rc<Mapping>> {
        let mut first = Vec::new();
        let lost = |(home, _): &(NodeId, Desk), those: &mut Those| {
            let is_lost = gone.contains(home);
            if is_lost {
                let mut those = those.iter().filter_map(Weak::upgrade);
                those.clone().for_each(|one| one.end(RegionState::Lost));
                first.extend(those.next());
            }
            !is_lost
        };
        self.0.borrow_mut().retain(lost);
        first
    }

    /// Forgets the mappings that were left.
    pub(super) fn tidy(&self) {
        self.0.borrow_mut().retain(|_, those| {
            those.retain(|one| one.strong_count() > 0);
            !those.is_empty()
        });
    }

    /// Number of mappings.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().values().flatten().filter(|one| one.strong_count() > 0).count()
    }
}
