//! The state of a node, all of it, on the engine thread.
//!
//! Tasks and handlers share one [`Core`] behind an `Rc`. Each part sits in a cell of its own that is
//! borrowed for the length of a call and never across an await.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::rc::Rc;
use std::time::Instant;

use bytesize::ByteSize;
use futures::executor::LocalSpawner;
use futures::task::LocalSpawnExt;
use plasmon::{Error, ErrorKind, NodeId};

use super::client::{Client, ClientKey};
use super::clock::Clock;
use crate::cluster::{Cluster, Envelope, Holding, Network};
use crate::config::Config;
use crate::memory::{AllocError, Arena, Extent, Zone};
use crate::object::{Replica, Table};
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
    pub(crate) arena: RefCell<Arena>,
    pub(crate) objects: RefCell<Table>,
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
    pub(crate) fn seal(&self, replica: Rc<Replica>) {
        let holding = Holding::of(&replica);
        self.objects.borrow_mut().seal(replica);
        self.publish(holding);
    }

    /// Room in the arena; cached replicas make way for it.
    ///
    /// # Errors
    /// `TooLarge` for what can never fit, `Full` when what remains may not be dropped.
    pub(crate) fn allocate(&self, zone: Zone, len: u64) -> Result<Extent, Error> {
        loop {
            let allocated = self.arena.borrow_mut().allocate(zone, len);
            self.network.follow_arena(&mut self.arena.borrow_mut());
            let error = match allocated {
                Ok(extent) => return Ok(extent),
                // What dropping every cached replica could not make room for costs none of them.
                Err(error @ AllocError::Full { .. }) if self.could_hold(len) => {
                    let evicted = self.objects.borrow_mut().evict_one();
                    if let Some(id) = evicted {
                        self.unpublish(id, false);
                        continue;
                    }
                    error
                }
                Err(error) => error,
            };
            return Err(self.no_room(len, &error));
        }
    }

    /// Whether dropping every cached replica could make room.
    fn could_hold(&self, len: u64) -> bool {
        let (primary, _, unsealed) = self.objects.borrow().bytes();
        len <= self.arena.borrow().capacity().saturating_sub(primary + unsealed)
    }

    /// Why there is no room, and what holds it.
    fn no_room(&self, len: u64, error: &AllocError) -> Error {
        let size = |bytes| ByteSize::b(bytes).display().iec();
        match error {
            AllocError::TooLarge { capacity, .. } => Error::new(
                ErrorKind::TooLarge,
                format!(
                    "an object of {} cannot fit: the whole store has {}; start the node with more --memory",
                    size(len),
                    size(*capacity)
                ),
            ),
            AllocError::Full { free_total, largest_run, .. } => {
                let (primary, cached, unsealed) = self.objects.borrow().bytes();
                Error::new(
                    ErrorKind::Full,
                    format!(
                        "the store is full: {} wanted, {} free in segments that such an object may use ({} in \
                         one piece); primaries hold {}, unsealed objects {}, cached replicas {} (what is \
                         pinned of them stays); delete objects, release what is held, or start the node with \
                         more --memory",
                        size(len),
                        size(*free_total),
                        size(*largest_run),
                        size(primary),
                        size(unsealed),
                        size(cached)
                    ),
                )
            }
            other => Error::new(ErrorKind::Internal, format!("cannot allocate {}: {other}", size(len))),
        }
    }
}
