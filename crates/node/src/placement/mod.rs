//! Placement of objects: how many nodes keep an object ([`replication`]), moving and spreading objects
//! ([`distribution`]), draining a node ([`drain`]), and deleting objects whose time is over ([`expiry`])
//! or whose client has gone ([`owned`]). Objects that replace others get their copies *ahead* ([`ahead`]). A
//! node gives away objects that are to lie elsewhere ([`giving`]), and says what ends with it when it stops
//! ([`stopping`]). [`turns`] limits the number of objects that one node moves at a time.
//!
//! Owns [`Placement`]. Engine thread only.

pub(crate) mod ahead;
pub(crate) mod distribution;
pub(crate) mod drain;
pub(crate) mod expiry;
mod giving;
mod owned;
pub(crate) mod replication;
mod service;
mod stopping;
mod turns;

use std::rc::Rc;

use self::ahead::Ahead;
use self::drain::Drain;
use self::expiry::Expiry;
use self::giving::Giving;
use self::owned::Owned;
use self::replication::Replication;
use crate::directory::Directory;
use crate::kernel::Kernel;
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::store::Store;
use crate::transfer::Transfer;

/// The state of this node's placement.
pub(crate) struct Placement {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<Network>,
    pub(crate) store: Rc<Store>,
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) directory: Rc<Directory>,
    pub(crate) transfer: Rc<Transfer>,
    replication: Replication,
    pub(crate) drain: Drain,
    expiry: Expiry,
    giving: Giving,
    owned: Owned,
    ahead: Ahead,
}

impl Placement {
    pub(crate) fn new(transfer: &Rc<Transfer>) -> Self {
        Self {
            kernel: Rc::clone(&transfer.kernel),
            network: Rc::clone(&transfer.network),
            store: Rc::clone(&transfer.store),
            cluster: Rc::clone(&transfer.cluster),
            directory: Rc::clone(&transfer.directory),
            transfer: Rc::clone(transfer),
            replication: Replication::new(transfer),
            drain: Drain::new(transfer),
            expiry: Expiry::default(),
            giving: Giving::new(transfer),
            owned: Owned::default(),
            ahead: Ahead::default(),
        }
    }
}
