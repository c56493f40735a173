//! Where objects lie: how many nodes keep one ([`copies`]), moving and spreading them ([`placing`]), a node
//! that leaves ([`drain`]), and objects whose time is over ([`expiry`]).
//!
//! Engine thread only.

pub(crate) mod copies;
pub(crate) mod drain;
pub(crate) mod expiry;
pub(crate) mod placing;
mod service;

use std::rc::Rc;

use self::copies::Copies;
use self::drain::Drain;
use self::expiry::Expiry;
use crate::directory::Directory;
use crate::kernel::Kernel;
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::store::Store;
use crate::transfer::Transfer;

/// Where objects are to lie, as far as this node sees to it.
pub(crate) struct Placement {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<Network>,
    pub(crate) store: Rc<Store>,
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) directory: Rc<Directory>,
    pub(crate) transfer: Rc<Transfer>,
    copies: Copies,
    drain: Drain,
    expiry: Expiry,
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
            copies: Copies::new(),
            drain: Drain::default(),
            expiry: Expiry::default(),
        }
    }
}
