//! The state of a node, all of it, on the engine thread.
//!
//! Tasks and handlers share one [`Core`] behind an `Rc`. Each part sits in a cell of its own that is
//! borrowed for the length of a call and never across an await.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::rc::Rc;
use std::time::Instant;

use futures::executor::LocalSpawner;
use futures::task::LocalSpawnExt;
use plasmon::{Error, NodeId};
use rustix::fd::OwnedFd;

use super::client::{Client, ClientKey};
use super::clock::Clock;
use super::expiry::Expiry;
use super::quotas::Quotas;
use super::room::Room;
use super::spilling::{Failing, Restoring};
use super::status::Recent;
use super::subscriptions::Subscription;
use crate::cluster::{Cluster, Envelope, Holding, Network};
use crate::config::Config;
use crate::memory::Arena;
use crate::numa::Binding;
use crate::object::{Replica, Sealing, Table};
use crate::spill::SpillStore;
use crate::transfer::Transfer;

/// A node's state.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) node: NodeId,
    pub(crate) incarnation: Cell<u64>,
    /// `host:port` of the control connection.
    pub(crate) listen: String,
    pub(crate) started: Instant,
    pub(crate) clock: Rc<Clock>,
    pub(crate) numa: Binding,
    pub(crate) arena: RefCell<Arena>,
    pub(crate) objects: RefCell<Table>,
    pub(super) room: Room,
    pub(crate) quotas: RefCell<Quotas>,
    /// Where primaries go when memory is short.
    pub(super) spill: Option<SpillStore>,
    pub(super) spill_failure: RefCell<Option<Failing>>,
    pub(super) restoring: RefCell<Restoring>,
    pub(super) recent: RefCell<Option<Recent>>,
    pub(super) subscriptions: RefCell<HashMap<ClientKey, Subscription>>,
    pub(super) expiry: Expiry,
    pub(crate) network: Network,
    pub(crate) cluster: Cluster,
    pub(crate) transfer: Transfer,
    pub(crate) clients: RefCell<HashMap<ClientKey, Client>>,
    pub(super) next_client: Cell<ClientKey>,
    /// Clients with replies of this turn.
    pub(super) unsent: RefCell<Vec<ClientKey>>,
    /// Frames from this node to itself.
    pub(crate) loopback: RefCell<VecDeque<Envelope>>,
    pub(super) spawner: LocalSpawner,
    /// Everything the engine sleeps on.
    pub(super) epoll: Rc<OwnedFd>,
}

impl Core {
    /// Runs a task on the engine's executor.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        // The executor outlives the core; only its end refuses tasks.
        if self.spawner.spawn_local(task).is_err() {
            tracing::debug!("a task came after the end of the engine");
        }
    }

    /// Seals an object on this node: waiters wake, the directory learns of it.
    ///
    /// # Errors
    /// When there is no room for it in the table of clients.
    pub(crate) fn seal(&self, new: Sealing) -> Result<Rc<Replica>, Error> {
        let replica = self.objects.borrow_mut().seal(new)?;
        self.publish(Holding::of(&replica));
        Ok(replica)
    }
}
