//! Passing an object on while it is being read: the parent's side of *relayed-read*. Owns
//! [`Relays`]. Engine thread only.
//!
//! A node that was ordered to have an object may be asked for it by a fetch of the stage *relayed*. It
//! offers the memory into which it reads the object, as soon as there is such memory, and reports repeatedly
//! how many bytes from the beginning have come (*passed*). Nodes that asked earlier wait for that memory.
//!
//! Invariants: every reader is told an end, either that the object is sealed or that it will not be. A
//! lease on memory that becomes an object becomes a lease on that object; a lease on other memory ends with
//! that memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::{NodeId, ObjectId, UsedProtocol};

use super::landing::Landing;
use super::lease::{Kept, LEASE_MS, Leases, Owed};
use super::pieces::locate;
use super::record::Records;
use crate::kernel::Kernel;
use crate::kernel::random::HashMap;
use crate::memory::Run;
use crate::net::frame::{Envelope, Message, Passing};
use crate::net::network::Network;
use crate::object::{Head, Pin, not_visible};
use crate::store::Store;

/// How long a node that was asked for an object waits for the order to have it.
const EXPECTED_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of nodes that may wait for one object here.
const MOST_WAITING: usize = 4096;

/// Objects that this node passes on while it reads them.
pub(super) struct Relays {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    store: Rc<Store>,
    leases: Rc<Leases>,
    records: Rc<Records>,
    by_object: RefCell<HashMap<ObjectId, Relay>>,
}

/// An object that other nodes are to read from this node.
struct Relay {
    /// The memory into which the object is being read; `None` before the read begins.
    arrival: Option<Arrival>,
    /// Fetches that came before the object was being read.
    waiting: Vec<Envelope>,
    /// Time when the waiting nodes are told that the object will not come.
    until: Instant,
}

/// Memory into which an object is being read, and the readers of this memory.
struct Arrival {
    head: Head,
    run: Run,
    /// Number of bytes, from the beginning of the object, that are there.
    bytes: u64,
    readers: Vec<(NodeId, u64)>,
}

impl Relays {
    pub(super) fn new(store: &Rc<Store>, leases: &Rc<Leases>, records: &Rc<Records>) -> Self {
        Self {
            kernel: Rc::clone(&store.kernel),
            network: Rc::clone(&store.network),
            store: Rc::clone(store),
            leases: Rc::clone(leases),
            records: Rc::clone(records),
            by_object: RefCell::default(),
        }
    }

    /// Removes and returns the fetches that waited for too long.
    pub(super) fn overdue(&self) -> Vec<Envelope> {
        let (mut overdue, now) = (Vec::new(), self.kernel.clock.now());
        self.by_object.borrow_mut().retain(|_, relay| {
            let stays = relay.arrival.is_some() || relay.until > now;
            if !stays {
                overdue.append(&mut relay.waiting);
            }
            stays
        });
        overdue
    }

    /// Removes and returns the fetches that wait for an object, unless it is being read by now.
    pub(super) fn end_waiting(&self, id: &ObjectId) -> Vec<Envelope> {
        let mut relays = self.by_object.borrow_mut();
        match relays.get(id) {
            Some(relay) if relay.arrival.is_none() => {
                relays.remove(id).map(|relay| relay.waiting).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// Answers a node that wants to read an object that this node does not have, or does not have yet.
    pub(super) fn on_fetch(&self, asked: &Envelope, id: ObjectId) {
        let arrives = {
            let mut relays = self.by_object.borrow_mut();
            let relay = relays.entry(id).or_insert_with(|| Relay::expected(self.kernel.clock.now()));
            if relay.arrival.is_none() && relay.waiting.len() < MOST_WAITING {
                relay.waiting.push(asked.clone());
            }
            relay.arrival.is_some()
        };
        if arrives {
            self.offer(asked, id);
        }
    }

    /// Offers memory into which an object is being read.
    fn offer(&self, asked: &Envelope, id: ObjectId) {
        let mut relays = self.by_object.borrow_mut();
        let Some(arrival) = relays.get_mut(&id).and_then(|relay| relay.arrival.as_mut()) else { return };
        if !arrival.head.visible_to(asked.user) {
            let error = not_visible(id, asked.user);
            return self.network.answer(asked, Message::Refused { error });
        }
        let (head, bytes) = (arrival.head.clone(), arrival.bytes);
        self.records.count_served(UsedProtocol::RelayedRead, &head);
        self.leases.keep(asked, Kept::Passing(arrival.run.clone()), Owed::Nothing);
        arrival.readers.push((asked.reply_to, asked.request));
        let pieces = locate(&self.store, &arrival.run);
        drop(relays);
        let others = Vec::new();
        self.network.answer(asked, Message::Offer { head, lease_ms: LEASE_MS, pieces, stamp: None, others });
        self.network
            .tell(asked.reply_to, Message::Passed { request: asked.request, bytes, state: Passing::Under });
    }

    /// Tells the readers of passed memory either that it is an object now, on which they keep a
    /// lease, or that it will not be one.
    fn end(&self, arrival: &Arrival, sealed: Option<&Pin>) {
        let bytes = arrival.run.len();
        let mut leases = self.leases.granted.borrow_mut();
        for key @ (reader, request) in &arrival.readers {
            let state = match (sealed.and_then(|pin| Pin::new(pin.replica())), leases.get_mut(key)) {
                (Some(pin), Some(lease)) => {
                    lease.kept = Kept::Object(pin);
                    Passing::Sealed
                }
                _ => {
                    leases.remove(key);
                    Passing::Failed
                }
            };
            self.network.tell(*reader, Message::Passed { request: *request, bytes, state });
        }
    }

    /// Tells a reader that all bytes of an object that was just offered are there.
    pub(super) fn pass_whole(&self, asked: &Envelope) {
        let passed = Message::Passed { request: asked.request, bytes: u64::MAX, state: Passing::Sealed };
        self.network.tell(asked.reply_to, passed);
    }
}

/// An object that is being passed on. If this value is dropped without a seal, the readers are told so.
pub(super) struct Passer {
    relays: Rc<Relays>,
    id: ObjectId,
}

impl Passer {
    /// Lets waiting nodes read the object as it comes. `None` if the object is passed on already,
    /// or if the memory is a client's.
    pub(super) fn begin(all: &Rc<Relays>, head: &Head, landing: &Landing) -> Option<Self> {
        let run = landing.replica()?;
        let mut relays = all.by_object.borrow_mut();
        let relay = relays.entry(head.id).or_insert_with(|| Relay::expected(all.kernel.clock.now()));
        if relay.arrival.is_some() {
            // The object comes here twice, and is passed on once.
            return None;
        }
        relay.arrival = Some(Arrival { head: head.clone(), run, bytes: 0, readers: Vec::new() });
        let waiting = std::mem::take(&mut relay.waiting);
        drop(relays);
        waiting.iter().for_each(|asked| all.offer(asked, head.id));
        Some(Self { relays: Rc::clone(all), id: head.id })
    }

    /// Tells the readers that the first `bytes` bytes are there.
    pub(super) fn advance(&self, bytes: u64) {
        let mut relays = self.relays.by_object.borrow_mut();
        let Some(arrival) = relays.get_mut(&self.id).and_then(|relay| relay.arrival.as_mut()) else { return };
        arrival.bytes = bytes;
        for (reader, request) in &arrival.readers {
            let passed = Message::Passed { request: *request, bytes, state: Passing::Under };
            self.relays.network.tell(*reader, passed);
        }
    }

    /// Ends the passing of a sealed object. If the object lies where it was read into, its readers
    /// read an object from now on.
    pub(super) fn seal(self) {
        let all = Rc::clone(&self.relays);
        let replica = all.store.objects.borrow().get(&self.id).cloned();
        let Some(arrival) = self.take() else { return };
        let there = replica.and_then(|replica| Pin::new(&replica));
        let there = there.filter(|pin| {
            let run = pin.run();
            (run.offset(), run.len()) == (arrival.run.offset(), arrival.run.len())
        });
        all.end(&arrival, there.as_ref());
    }

    fn take(&self) -> Option<Arrival> {
        self.relays.by_object.borrow_mut().remove(&self.id)?.arrival
    }
}

impl Drop for Passer {
    fn drop(&mut self) {
        if let Some(arrival) = self.take() {
            self.relays.end(&arrival, None);
        }
    }
}

impl Relay {
    fn expected(now: Instant) -> Self {
        Self { arrival: None, waiting: Vec::new(), until: now + EXPECTED_WITHIN }
    }
}
