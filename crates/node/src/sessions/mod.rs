//! Clients of this node: their connections, their requests, and the events that they are told.
//!
//! Owns the clients ([`Sessions`]). Engine thread only. [`listener`] makes the socket and [`sockets`] serves
//! its connections; [`connection`] is one of them, and [`client`] the state of its client. [`places`] limits
//! the number of clients, [`sharing`] hands out descriptors, and [`answering`] has requests answered by their
//! services. [`Requests`] stands above [`Sessions`]: [`requests`] answers each kind of request, and
//! [`counting`] counts gets and puts. [`rings`] and [`slots`] serve what comes through shared memory, a
//! [`channel`] for each client. [`waits`] completes entries of rings that wait for other nodes, and keeps
//! [`outcomes`] that the socket has to tell. [`subscriptions`] tells clients what is sealed or deleted, and
//! [`feeds`] tells other nodes; both keep events in a [`queue`]. [`lent`] is memory of a client, and [`pins`]
//! reads what a client pins by itself.

mod answering;
mod channel;
mod classes;
pub(crate) mod client;
mod connection;
pub(crate) mod counting;
mod feeds;
mod lent;
pub(crate) mod listener;
mod outcomes;
mod pins;
pub(crate) mod places;
mod queue;
pub(crate) mod requests;
pub(crate) mod rings;
mod sharing;
pub(crate) mod slots;
pub(crate) mod sockets;
mod subscriptions;
mod waits;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use plasmon::status::{CallsStatus, ConnectionStatus};
use rustix::fd::OwnedFd;

use self::client::Client;
use self::counting::Counting;
use self::places::Places;
pub(crate) use self::requests::Requests;
use self::sockets::FIRST_CLIENT;
use crate::directory::claims::Claims;
use crate::kernel::random::HashMap;
use crate::kernel::{ClientKey, Kernel};
use crate::service::Services;
use crate::store::Store;

/// Maximum number of clients that a report names.
const MAX_NAMED_CLIENTS: usize = 1000;

/// The clients by their numbers. The store shares them, since clients read objects in place.
pub(crate) type Clients = Rc<RefCell<HashMap<ClientKey, Client>>>;

/// The clients of this node.
pub(crate) struct Sessions {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) store: Rc<Store>,
    claims: Rc<Claims>,
    pub(crate) services: Rc<Services>,
    pub(crate) clients: Clients,
    places: Places,
    pub(crate) counting: Counting,
    /// Number of calls that came by slot so far.
    calls_by_slot: Cell<u64>,
    next_client: Cell<ClientKey>,
    /// Clients to which replies were queued in this turn.
    unsent: RefCell<Vec<ClientKey>>,
    /// The epoll set on which the engine sleeps.
    epoll: Rc<OwnedFd>,
}

impl Sessions {
    pub(crate) fn new(
        store: &Rc<Store>,
        claims: &Rc<Claims>,
        services: &Rc<Services>,
        clients: Clients,
        places: Places,
        epoll: Rc<OwnedFd>,
    ) -> Self {
        Self {
            kernel: Rc::clone(&store.kernel),
            store: Rc::clone(store),
            claims: Rc::clone(claims),
            services: Rc::clone(services),
            clients,
            places,
            counting: Counting::default(),
            calls_by_slot: Cell::new(0),
            next_client: Cell::new(FIRST_CLIENT),
            unsent: RefCell::default(),
            epoll,
        }
    }

    /// Gets and puts so far, with those that clients have counted by themselves.
    fn calls(&self) -> CallsStatus {
        let now = self.kernel.clock.now();
        self.clients.borrow().values().for_each(|client| client.add_counts(&self.counting, now));
        self.counting.status()
    }

    fn connections(&self) -> Vec<ConnectionStatus> {
        let quotas = self.store.quotas.borrow();
        let connection = |(key, client): (&ClientKey, &Client)| {
            let (bytes, quota) = quotas.of_client(*key);
            let counted: usize = client.pins.values().map(Vec::len).sum();
            ConnectionStatus {
                name: client.name.clone(),
                pid: client.pid,
                uid: client.uid,
                pins: (counted + client.kept.len()) as u64 + client.count_fast_pins(),
                bytes,
                quota: quota.unwrap_or(0),
            }
        };
        self.clients.borrow().iter().take(MAX_NAMED_CLIENTS).map(connection).collect()
    }
}
