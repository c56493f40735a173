//! The directory: which nodes hold which objects, and which keeper decides about each.
//!
//! Engine thread only. [`Directory`] is made of owners. An owner names none that this list has after it:
//! - [`table`] is a keeper's part of the directory.
//! - [`Arrivals`] knows which objects come to this node, and where earlier ones were.
//! - [`Asking`] asks first keepers about their objects, and members about what they hold.
//! - [`Deletion`] deletes objects: as the node that asks ([`removal`]), as their first keeper, and
//!   by the first keeper's order.
//! - [`Claims`] decides which node may create an object.
//! - [`Guards`] has the lives that may be replaced any moment, on the nodes that hold them.
//! - [`Replacement`] replaces objects, as their first keeper.
//! - [`Writer`] has the objects that are to take the place of others, on the node that asks.
//! - [`News`] tells keepers what this node holds.
//!
//! The directory itself finds holders ([`finding`]), says whether objects exist ([`deciding`]), follows views
//! ([`following`], [`early`]), and tells new keepers again what this node holds ([`repair`]).

pub(crate) mod arrivals;
mod asking;
pub(crate) mod claims;
pub(crate) mod deciding;
pub(crate) mod deletion;
pub(crate) mod early;
pub(crate) mod finding;
pub(crate) mod following;
pub(crate) mod guards;
pub(crate) mod news;
pub(crate) mod removal;
pub(crate) mod repair;
pub(crate) mod replacement;
mod service;
pub(crate) mod simulation;
pub(crate) mod table;
pub(crate) mod writer;

use std::cell::RefCell;
use std::rc::Rc;

use plasmon::ObjectId;

use self::arrivals::Arrivals;
use self::asking::Asking;
use self::claims::Claims;
use self::deletion::Deletion;
use self::early::Early;
use self::guards::Guards;
use self::news::News;
use self::repair::Repair;
use self::replacement::Replacement;
use self::table::Table;
use self::writer::Writer;
use crate::kernel::Kernel;
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::store::Store;

/// The directory on this node: what it knows of objects, and what it decides about them as a keeper.
pub(crate) struct Directory {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<Network>,
    pub(crate) store: Rc<Store>,
    pub(crate) cluster: Rc<Cluster>,
    /// The entries of the shards that this node keeps.
    pub(crate) table: Rc<RefCell<Table>>,
    /// The fetches of this node, and the places of objects that were fetched.
    pub(crate) arrivals: Rc<Arrivals>,
    asking: Rc<Asking>,
    /// The deletions of objects.
    pub(crate) deletion: Rc<Deletion>,
    /// The lives of objects that may be replaced any moment.
    pub(crate) guards: Rc<Guards>,
    /// The replacements that this node leads.
    pub(crate) replacement: Rc<Replacement>,
    /// The objects of this node that are to take the place of others.
    pub(crate) writer: Rc<Writer>,
    /// The claims of ids, which decide who may create an object.
    pub(crate) claims: Rc<Claims>,
    /// The keepers that have yet to be told again of this node's objects.
    repair: Repair,
    /// Messages of nodes that follow a later view.
    early: Early,
    /// News of this node's objects for other nodes.
    pub(crate) news: Rc<News>,
}

impl Directory {
    pub(crate) fn new(
        kernel: &Rc<Kernel>,
        network: &Rc<Network>,
        store: &Rc<Store>,
        cluster: &Rc<Cluster>,
    ) -> Self {
        let (table, arrivals): (Rc<RefCell<Table>>, Rc<Arrivals>) = (Rc::default(), Rc::default());
        let asking = Rc::new(Asking {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            cluster: Rc::clone(cluster),
            table: Rc::clone(&table),
        });
        let deletion = Rc::new(Deletion::new(&asking, store, &table, &arrivals));
        let claims = Rc::new(Claims::new(&asking, &deletion));
        let guards = Rc::new(Guards::new(&asking, store, &arrivals));
        let replacement = Rc::new(Replacement::new(&deletion));
        let writer = Writer::new(&replacement, &claims, &guards, (store, &table, &arrivals));
        Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            store: Rc::clone(store),
            cluster: Rc::clone(cluster),
            table,
            claims,
            guards,
            replacement,
            writer: Rc::new(writer),
            deletion,
            asking,
            news: Rc::new(News::new(kernel, network, store, cluster, &arrivals)),
            arrivals,
            repair: Repair::default(),
            early: Early::default(),
        }
    }

    /// Whether the cluster has an object that this user may see; `None` if this node cannot tell alone.
    pub(crate) fn known_here(&self, id: &ObjectId, user: u32) -> Option<bool> {
        let tells = self.cluster.solo() || self.cluster.keepers(id).first == self.kernel.node;
        let mut table = self.table.borrow_mut();
        (tells && !table.doubts(id, user)).then(|| table.knows(id, user))
    }

    /// Whether this node, as a keeper, knows that no holder of an object is left.
    pub(crate) fn has_lost(&self, id: &ObjectId) -> bool {
        self.table.borrow_mut().last_holders(id).next().is_some()
    }

    /// Whether this node remembers that the object was deleted.
    pub(crate) fn deleted(&self, id: &ObjectId) -> bool {
        self.table.borrow().deleted(id)
    }
}
