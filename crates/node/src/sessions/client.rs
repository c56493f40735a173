//! Clients: the pins, memory and waiting requests of one client, however it is connected.
//!
//! Engine thread only. Dropping a [`Client`] removes its pins and aborts its waiting gets. Its unsealed
//! creations are dropped by the table.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::AbortHandle;
use plasmon::wire::{Access, TablePart};
use plasmon::{Class, ObjectId};

use super::channel::Channel;
use super::lent::Lent;
use crate::kernel::ClientKey;
use crate::kernel::random::{HashMap, HashSet};
use crate::object::{FastPins, Pin, Replica};
use crate::service::Session;
use crate::store::{Pinned, Readers};

/// Time within which a new connection has to say hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);

/// A connected client.
pub(crate) struct Client {
    /// The client's connection.
    pub(crate) session: Rc<dyn Session>,
    /// The user of the client.
    pub(crate) uid: u32,
    /// The group and the further groups of the client.
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// The process of the client when it connected.
    pub(crate) pid: u32,
    /// The name that the client gave itself.
    pub(crate) name: String,
    /// Whether the client has said hello.
    pub(crate) greeted: bool,
    /// The class of the client's work.
    pub(crate) class: Class,
    connected: Instant,
    /// The descriptor of the client's process, in the epoll set until the process ends, if the kernel
    /// supports that.
    process: Option<OwnedFd>,
    /// Whether the client's process has ended. A child of it may hold the connection open.
    pub(crate) orphaned: bool,
    /// The objects that the client has pinned, by place, with one pin for each time.
    pub(crate) pins: HashMap<u64, Vec<Pin>>,
    /// The objects that the client wants to stay in memory until it says otherwise.
    pub(crate) kept: HashMap<ObjectId, Pin>,
    /// Versions of the segments whose descriptors the client has.
    pub(crate) granted: HashMap<(u32, Access), u32>,
    /// Memory that the client works in, by number.
    pub(crate) lent: HashMap<u64, Lent>,
    pub(crate) next_lent: u64,
    /// Parts of the object tables whose descriptors the client has.
    pub(crate) parts: HashSet<TablePart>,
    /// The client's page set, once it has asked for one.
    pub(crate) channel: Option<Rc<Channel>>,
    /// The client's requests that wait.
    pub(crate) waiting: HashMap<u64, AbortHandle>,
    /// The weight of the client's requests under way, in objects.
    pub(crate) under_way: usize,
}

impl Client {
    pub(crate) fn new(session: Rc<dyn Session>, pid: u32, connected: Instant) -> Self {
        Self {
            uid: session.user(),
            gid: session.user(),
            groups: Vec::new(),
            session,
            pid,
            name: String::new(),
            greeted: false,
            class: Class::Normal,
            connected,
            process: None,
            orphaned: false,
            pins: HashMap::default(),
            kept: HashMap::default(),
            granted: HashMap::default(),
            lent: HashMap::default(),
            next_lent: 0,
            parts: HashSet::default(),
            channel: None,
            waiting: HashMap::default(),
            under_way: 0,
        }
    }

    /// Keeps the descriptor that tells of the end of the client's process.
    pub(crate) fn follow(&mut self, process: OwnedFd) {
        self.process = Some(process);
    }

    /// Number and bytes of the memory of the arena that the client has borrowed.
    pub(crate) fn lent_bytes(&self) -> (u64, u64) {
        let bytes = |lent: &Lent| match lent {
            Lent::Arena { extent, .. } => Some(extent.len()),
            Lent::Own { .. } => None,
        };
        self.lent.values().filter_map(bytes).fold((0, 0), |(count, sum), len| (count + 1, sum + len))
    }

    /// Whether the client has not said hello in time, and only takes a place.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        !self.greeted && now.saturating_duration_since(self.connected) > HELLO_PATIENCE
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.waiting.values().for_each(AbortHandle::abort);
    }
}

impl Readers for RefCell<HashMap<ClientKey, Client>> {
    fn fast_pins(&self, fast: &mut FastPins) {
        self.borrow().values().for_each(|client| client.fast_pins(fast));
    }

    fn take_accessed(&self, replica: &Replica) -> bool {
        // Every client is asked, since each bit has to be cleared.
        self.borrow().values().fold(false, |accessed, client| accessed | client.take_accessed(replica))
    }

    fn each_pin(&self, see: &mut dyn FnMut(ClientKey, Pinned<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        self.borrow().iter().try_for_each(|(key, client)| {
            client.each_fast_pin(|domain, entry| see(*key, Pinned::Entry(domain, entry)))?;
            let mut pins = client.pins.values().flatten().chain(client.kept.values());
            pins.try_for_each(|pin| see(*key, Pinned::Counted(pin.replica())))
        })
    }

    fn describe(&self, client: ClientKey) -> String {
        self.borrow().get(&client).map_or_else(
            || "a client that has gone".into(),
            |client| format!("client {:?} (process {})", client.name, client.pid),
        )
    }
}
