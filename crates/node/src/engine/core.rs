//! The state of a node, all of it, on the engine thread.
//!
//! Tasks and handlers share one [`Core`] behind an `Rc`. Each part sits in a cell of its own that is
//! borrowed for the length of a call and never across an await.

use crate::kernel::random::HashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rustix::fd::OwnedFd;

use super::status::Recent;
use crate::kernel::ClientKey;
use crate::kernel::Kernel;
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::numa::Binding;
use crate::placement::expiry::Expiry;
use crate::sessions::client::Client;
use crate::sessions::places::Places;
use crate::sessions::subscriptions::Subscription;
use crate::store::Store;
use crate::transfer::Transfer;

/// A node's state.
pub(crate) struct Core {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) store: Rc<Store>,
    pub(crate) numa: Binding,
    pub(crate) places: Places,
    pub(crate) recent: RefCell<Option<Recent>>,
    pub(crate) subscriptions: RefCell<HashMap<ClientKey, Subscription>>,
    pub(crate) expiry: Expiry,
    pub(crate) network: Rc<Network>,
    pub(crate) cluster: Cluster,
    pub(crate) transfer: Transfer,
    pub(crate) clients: Rc<RefCell<HashMap<ClientKey, Client>>>,
    pub(crate) next_client: Cell<ClientKey>,
    /// Clients with replies of this turn.
    pub(crate) unsent: RefCell<Vec<ClientKey>>,
    /// Everything the engine sleeps on.
    pub(crate) epoll: Rc<OwnedFd>,
}
