//! The directory: which nodes hold which objects, and which keeper decides about each.
//!
//! Engine thread only. Modules:
//! - [`table`] is a keeper's part of the directory.
//! - [`news`] tells keepers what this node holds; [`repair`] tells it again to new keepers.
//! - [`early`] holds back messages of nodes that follow a later view.
//! - [`deciding`]: the first keeper decides alone about its objects: which node may create one
//!   ([`claims`]), and when one has ended ([`deletion`]).

pub(crate) mod arrivals;
pub(crate) mod claims;
pub(crate) mod deciding;
pub(crate) mod deletion;
pub(crate) mod early;
pub(crate) mod finding;
pub(crate) mod following;
pub(crate) mod news;
pub(crate) mod removal;
pub(crate) mod repair;
mod service;
#[cfg(feature = "simulation")]
pub(crate) mod simulation;
pub(crate) mod table;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use plasmon::ObjectId;

use self::arrivals::{Known, UnderWay};
use self::claims::Claims;
use self::early::Early;
use self::news::News;
use self::repair::Repair;
use self::table::Table;
use crate::kernel::Kernel;
use crate::kernel::random::HashSet;
use crate::membership::{Cluster, end_of_tables};
use crate::net::network::Network;
use crate::store::Store;

/// The state of the directory on this node: what it knows of objects, and what it decides about them as a
/// keeper.
pub(crate) struct Directory {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<Network>,
    pub(crate) store: Rc<Store>,
    pub(crate) cluster: Rc<Cluster>,
    /// The entries of the shards that this node keeps.
    pub(crate) table: RefCell<Table>,
    claims: Claims,
    /// Objects that this node deletes as their first keeper.
    deleting: RefCell<HashSet<ObjectId>>,
    /// The keepers that have yet to be told again of this node's objects.
    repair: Repair,
    /// Messages of nodes that follow a later view.
    early: Early,
    /// News of this node's objects for other nodes.
    news: News,
    /// Fetches under way.
    under_way: UnderWay,
    /// The places where fetched objects were.
    pub(crate) known: RefCell<Known>,
}

impl Directory {
    pub(crate) fn new(
        kernel: &Rc<Kernel>,
        network: &Rc<Network>,
        store: &Rc<Store>,
        cluster: &Rc<Cluster>,
    ) -> Self {
        Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            store: Rc::clone(store),
            cluster: Rc::clone(cluster),
            table: RefCell::default(),
            claims: Claims::default(),
            deleting: RefCell::default(),
            repair: Repair::default(),
            early: Early::default(),
            news: News::default(),
            under_way: UnderWay::default(),
            known: RefCell::new(arrivals::known()),
        }
    }

    /// Whether the cluster has an object that this user may see; `None` if this node cannot tell alone.
    pub(crate) fn known_here(&self, id: &ObjectId, tenant: u32) -> Option<bool> {
        let tells = self.cluster.solo() || self.cluster.keepers(id).first == self.kernel.node;
        let mut table = self.table.borrow_mut();
        (tells && !table.doubts(id, tenant)).then(|| table.knows(id, tenant))
    }

    /// The time until which clients of dead daemons may read an object that no living node holds. A later
    /// death of a node that did not hold the object does not extend it, so members that die one after the
    /// other keep nobody waiting for ever.
    pub(crate) fn readable_until(&self, id: &ObjectId, now: Instant) -> Option<Instant> {
        let end = if self.deleting.borrow().contains(id) {
            self.cluster.tables_of_the_dead()
        } else {
            let (dead, mut directory) = (self.cluster.dead.borrow(), self.table.borrow_mut());
            let died = directory.last_holders(id).filter_map(|holder| dead.get(&holder).copied());
            died.max().map(end_of_tables)
        };
        end.filter(|end| now < *end)
    }

    /// Whether this node remembers that the object was deleted.
    pub(crate) fn deleted(&self, id: &ObjectId) -> bool {
        self.table.borrow().deleted(id)
    }
}
