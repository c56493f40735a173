//! Calls: functions that processes run for others, on the same host or another.
//!
//! Owns [`Calls`]. Engine thread only. A *service* is a name under which processes *serve* functions. Its
//! name is kept by one node, its home ([`names`]), which knows the nodes that have servers ([`joining`]).
//! A server has a *port* at its node ([`ports`]), at which calls wait until one of its threads receives
//! them ([`serving`], [`incoming`]). The node of the caller chooses a node that serves ([`outgoing`]).
//! [`bodies`] moves the bytes of calls and replies.

mod bodies;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod incoming;
mod joining;
mod names;
mod outgoing;
mod ports;
mod service;
mod serving;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use plasmon::NodeId;

use self::bodies::Lent;
use self::incoming::Incoming;
use self::joining::Handles;
use self::names::Names;
use self::outgoing::Outgoing;
use self::serving::Serving;
use crate::directory::Directory;
use crate::kernel::random::HashMap;
use crate::kernel::{ClientKey, Kernel};
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::placement::Placement;
use crate::sessions::{Requests, Sessions};
use crate::transfer::Transfer;

/// A number that only grows.
#[derive(Default)]
struct Count(Cell<u64>);

impl Count {
    fn add(&self, more: u64) {
        self.0.set(self.0.get() + more);
    }
}

/// Numbers of calls since the start of the node.
#[derive(Default)]
struct Counts {
    /// Number of calls that clients of this node made.
    begun: Count,
    /// Number of calls that processes of this node replied to.
    served: Count,
    /// Number of calls that failed in processes of this node.
    failed: Count,
    /// Number of bodies that other nodes have written to windows of this node and that this node
    /// has taken there.
    bodies_written: Count,
    /// Number of bodies that this node has read in the memory of other nodes.
    bodies_read: Count,
}

/// The services of this node's processes, and the calls of its clients.
pub(crate) struct Calls {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    cluster: Rc<Cluster>,
    directory: Rc<Directory>,
    transfer: Rc<Transfer>,
    sessions: Rc<Sessions>,
    requests: Rc<Requests>,
    names: Names,
    serving: Serving,
    handles: Handles,
    outgoing: Outgoing,
    lent: Lent,
    /// The calls of other nodes that are not answered yet, by the calling node and the number that
    /// it gave the call.
    foreign: RefCell<HashMap<(NodeId, u64), Weak<Incoming>>>,
    counts: Counts,
    drawn: Cell<u64>,
}

impl Calls {
    pub(crate) fn new(
        placement: &Rc<Placement>,
        sessions: &Rc<Sessions>,
        requests: &Rc<Requests>,
    ) -> Rc<Self> {
        Rc::new(Self {
            kernel: Rc::clone(&placement.kernel),
            network: Rc::clone(&placement.network),
            cluster: Rc::clone(&placement.cluster),
            directory: Rc::clone(&placement.directory),
            transfer: Rc::clone(&placement.transfer),
            sessions: Rc::clone(sessions),
            requests: Rc::clone(requests),
            names: Names::new(placement),
            serving: Serving::default(),
            handles: Handles::default(),
            outgoing: Outgoing::default(),
            lent: Lent::default(),
            foreign: RefCell::default(),
            counts: Counts::default(),
            drawn: Cell::default(),
        })
    }

    /// Returns a number that was not given out before.
    fn draw(&self) -> u64 {
        let number = self.drawn.get() + 1;
        self.drawn.set(number);
        number
    }

    fn user(&self, client: ClientKey) -> u32 {
        self.sessions.client(client, |client| client.uid)
    }
}
