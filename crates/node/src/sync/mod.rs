//! Locks and barriers: names of which one client in the cluster has each at a time, or several that share
//! it, and names at which clients wait for each other.
//!
//! Owns [`Locks`]. Engine thread only. Each lock has a *home*, a node that follows from the view
//! ([`places`]). The home keeps the queue of the lock ([`lock`], [`names`], [`home`]) and learns which locks
//! are held before it grants any ([`takeover`]), and which were abandoned ([`abandoned`]). The node of a
//! client has its *tickets* ([`tickets`], [`asking`]): calls that wait, and guards, whose leases it renews
//! ([`keeping`]). [`guard`](crate::guard) has what the client sees of its guards. [`life`] is the record that
//! a coordinator's node leaves for the next one. Barriers have homes as well ([`barrier`], [`gathering`]);
//! the nodes of their clients add these up ([`meetings`]).

mod abandoned;
mod asking;
mod barrier;
mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod gathering;
mod handles;
mod home;
mod keeping;
mod life;
mod lock;
mod meetings;
mod names;
mod places;
mod service;
mod takeover;
mod tickets;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use self::gathering::Barriers;
use self::handles::Handles;
use self::home::Home;
use self::meetings::Meetings;
use self::places::Places;
use self::tickets::Tickets;
use crate::guard::Guards;
use crate::kernel::random::HashMap;
use crate::kernel::{ClientKey, Kernel};
use crate::membership::Cluster;
use crate::net::network::Network;
use crate::sessions::Sessions;

/// The locks and barriers of this node: those of its clients, and those whose home it is.
pub(crate) struct Locks {
    /// A reference to this owner itself, for events that come without a reference.
    own: Weak<Self>,
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    cluster: Rc<Cluster>,
    sessions: Rc<Sessions>,
    guards: Rc<Guards>,
    places: Rc<Places>,
    handles: Handles,
    tickets: Tickets,
    home: Home,
    meetings: Meetings,
    barriers: Barriers,
    /// For each client, the last time at which it said that it is alive.
    alive: RefCell<HashMap<ClientKey, u64>>,
    /// Whether a task looks after the tickets.
    is_keeping: Cell<bool>,
    /// Number of guards that clients were given so far.
    granted: Cell<u64>,
    /// Number of guards that clients have lost so far.
    lost: Cell<u64>,
}

impl Locks {
    /// Makes the locks of a node. It `succeeds` a node that was killed if that has left its socket.
    pub(crate) fn new(
        cluster: &Rc<Cluster>,
        sessions: &Rc<Sessions>,
        guards: &Rc<Guards>,
        succeeds: bool,
    ) -> Rc<Self> {
        let (kernel, network) = (&sessions.kernel, &sessions.store.network);
        let places = Rc::new(Places::new(cluster));
        Rc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            cluster: Rc::clone(cluster),
            sessions: Rc::clone(sessions),
            guards: Rc::clone(guards),
            handles: Handles::default(),
            tickets: Tickets::default(),
            meetings: Meetings::default(),
            barriers: Barriers::default(),
            home: Home::new(kernel, network, &places, succeeds),
            places,
            alive: RefCell::default(),
            is_keeping: Cell::new(false),
            granted: Cell::new(0),
            lost: Cell::new(0),
        })
    }

    fn now(&self) -> u64 {
        self.kernel.clock.boot_ns()
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.home.end();
    }
}
