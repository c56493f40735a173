//! The kernel: what all rooms of a node share, such as time, waking the engine, and numbers that name things.
//!
//! Owns the [`Kernel`], which all rooms share. Engine thread only, except for [`waker`], [`random`] and
//! [`seldom`], which any thread may use. The kernel knows nothing of objects, peers or clients.

pub(crate) mod class;
pub(crate) mod clock;
pub(crate) mod counted;
pub(crate) mod index;
pub(crate) mod lives;
pub(crate) mod planted;
pub(crate) mod random;
pub(crate) mod seldom;
pub(crate) mod tasks;
pub(crate) mod waker;

use std::cell::Cell;
use std::future::Future;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Instant;

use plasmon::NodeId;

use self::clock::Clock;
use self::lives::Lives;
use self::tasks::{Spawner, Tasks};
use crate::config::Config;

/// The number of a client's session. It is never used again.
pub(crate) type ClientKey = NonZeroU64;

/// The state that all rooms share: the node's identity, its settings, its time, and its tasks.
pub(crate) struct Kernel {
    /// The settings that the node was started with.
    pub(crate) config: Config,
    /// The id of this node, drawn at its start.
    pub(crate) node: NodeId,
    /// The incarnation of this node's membership; a later one is larger.
    pub(crate) incarnation: Cell<u64>,
    /// Address of the control connection, `host:port`.
    pub(crate) listen: String,
    /// Time at which the node was started.
    pub(crate) started: Instant,
    /// The node's clock with its timers.
    pub(crate) clock: Rc<Clock>,
    /// The stock of lives for new objects.
    pub(crate) lives: Lives,
    /// The executor of the engine thread's tasks.
    spawner: Spawner,
}

impl Kernel {
    /// Makes the kernel of a node with a new id, whose tasks are among these.
    pub(crate) fn new(config: Config, listen: String, clock: Rc<Clock>, tasks: &Tasks) -> Self {
        let mut node = [0; 16];
        random::fill(&mut node);
        Self {
            node: NodeId::from_bytes(node),
            // A later start of a node has a larger incarnation.
            incarnation: Cell::new(clock.unix_ms()),
            listen,
            started: clock.now(),
            clock,
            lives: Lives::default(),
            spawner: tasks.spawner(),
            config,
        }
    }

    /// Runs a task on the engine thread.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        // The executor refuses a task only when the engine has ended.
        if !self.spawner.spawn(task) {
            tracing::debug!("a task came after the end of the engine");
        }
    }
}
