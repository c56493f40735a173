//! Who knows where objects are, and who decides about them: the keepers of their shards.
//!
//! Engine thread only. [`table`] is a keeper's part of the directory; [`news`] tells keepers what this node
//! holds, and [`repair`] tells them again when they have changed; [`early`] holds back what others say of a
//! later view. A keeper decides alone about its objects ([`deciding`]): who may create one ([`claims`]), and
//! when one has ended ([`deletion`]).

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

/// What this node knows of where objects are, and what it decides about them as a keeper.
pub(crate) struct Directory {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<Network>,
    pub(crate) store: Rc<Store>,
    pub(crate) cluster: Rc<Cluster>,
    /// The entries of the shards that are kept here.
    pub(crate) table: RefCell<Table>,
    claims: Claims,
    /// Objects that this node deletes as their first keeper.
    deleting: RefCell<HashSet<ObjectId>>,
    /// News of this node's objects that keepers have not been told yet.
    repair: Repair,
    /// What nodes say that have followed a later view already.
    early: Early,
    /// What other nodes are to be told of this one's objects.
    news: News,
    /// Fetches under way.
    under_way: UnderWay,
    /// Where objects were that came here.
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

    /// Whether the cluster has an object that this user may see, if this node can tell by itself.
    pub(crate) fn known_here(&self, id: &ObjectId, tenant: u32) -> Option<bool> {
        let tells = self.cluster.solo() || self.cluster.keepers(id).first == self.kernel.node;
        let mut table = self.table.borrow_mut();
        (tells && !table.doubts(id, tenant)).then(|| table.knows(id, tenant))
    }

    /// Until when clients of daemons that have died may read an object of which no living node knows. A later
    /// death of a node that did not hold it changes nothing: members that die one after the other keep nobody
    /// waiting for ever.
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
