//! Moving objects between arenas: serving them, fetching them, and the leases in between.
//!
//! Owns [`Transfer`]. Engine thread only. A holder answers a fetch with the object itself (*eager*, up to
//! a limit) or with its location and a lease (*rendezvous*): the requester then reads the object, arena
//! to arena, on the bulk lane. The holder cannot see those reads, so its pin is a lease that the reader
//! renews while it reads. Both clocks only measure spans: the reader counts from before it asked, the
//! holder from when it answered, so bytes read before the reader's end of the lease are certainly the
//! object's. The place of a fetched object is remembered ([`read_first`]). When the object is needed
//! again, its holder is asked without the directory, or its bytes are read without asking any node; then
//! a stamp at the holder tells whether the object was still there.
//!
//! This file composes the other files. A file imports only from files on floors below its own, and from
//! files that the table names before it on the same floor:
//!
//! | floor | files |
//! |---|---|
//! | 7 | [`service`]: transfers as a service, with their frames and their reactions to events |
//! | 6 | [`serve`]: the holder's answer to a fetch; [`calibrate`]: measuring what is best |
//! | 5 | [`asking`]: requests of a get to the keepers; [`fetch`]: a get from the first request to the seal |
//! | 5 | [`short`]: batches of short objects |
//! | 4 | protocols: [`eager`], [`push`], [`striped_read`], [`read`], [`read_first`], [`relay`] |
//! | 4 | further protocols: [`send`], [`relayed_read`], [`read_register`], [`socket`] |
//! | 4 | [`plain`]: bytes that are no object's, and copies within this node; [`range`]: ranges of objects |
//! | 3 | [`reading`]: one-sided reads, a limited number at a time |
//! | 2 | [`record`]: the history of fetches; [`tuning`]: the best parameters towards a peer |
//! | 2 | [`written`]: bytes that are written to a window of another node |
//! | 1 | [`landing`]: the memory that the bytes come to, and the seal; [`lease`]: both sides of a lease |
//! | 0 | [`pieces`]: cutting objects; [`rooms`]: pieces that come before their answer |
//! | 0 | [`comparing`], [`checking`]: digests; [`slots`]: places at holders; [`failure`]: why attempts fail |

mod asking;
mod bringing;
mod calibrate;
mod checking;
mod comparing;
mod eager;
mod failure;
mod fetch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod landing;
mod lease;
mod pieces;
mod plain;
mod push;
pub(crate) mod range;
mod read;
mod read_first;
mod read_register;
mod reading;
mod record;
mod relay;
mod relayed_read;
mod rooms;
mod send;
mod serve;
mod service;
mod short;
mod slots;
mod socket;
mod striped_read;
mod tuning;
mod written;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use plasmon::status::TransferStatus;
use plasmon::{NodeId, ObjectId, Protocol};
use plasmon_fabric::{Domain, FabricError, Region};

pub(crate) use self::bringing::bring_unsealed;
pub(crate) use self::checking::check;
use self::fetch::SharedFetch;
pub(crate) use self::landing::{Given, GivenMemory};
#[cfg(test)]
pub(crate) use self::lease::LEASE;
use self::lease::Leases;
pub(crate) use self::pieces::{locate, part, whole};
pub(crate) use self::plain::{in_turns, read_given, read_run};
use self::push::Pushes;
use self::record::Records;
use self::relay::Relays;
use self::relayed_read::Feeds;
use self::rooms::{Room, Rooms};
use self::send::Incoming;
use self::short::Batches;
use self::slots::Slots;
use self::socket::SocketThread;
use self::tuning::Tuner;
pub(crate) use self::tuning::Tunings;
pub(crate) use self::written::{Come, Written, come_plain, write_plain};
use crate::config::PushBy;
use crate::directory::Directory;
use crate::kernel::Kernel;
use crate::kernel::random::HashMap;
use crate::kernel::waker::Waker;
use crate::membership::Cluster;
use crate::memory::ForeignMemory;
use crate::net::frame::Wish;
use crate::net::network::Network;
use crate::net::registrations::Adopted;
use crate::net::registrations::Registrations;
use crate::store::{Lessor, Store};

/// The transfers of this node, and the leases that it has given.
pub(crate) struct Transfer {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<Network>,
    pub(crate) store: Rc<Store>,
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) directory: Rc<Directory>,
    leases: Rc<Leases>,
    pushes: Pushes,
    /// The fetches under way. All gets of one object by one user share one fetch.
    fetches: RefCell<HashMap<(ObjectId, u32), SharedFetch>>,
    /// Objects that come in parts, by the holder and the request.
    incoming: RefCell<HashMap<(NodeId, u64), Incoming>>,
    /// Pieces that have come before their answers.
    rooms: Rc<Rooms>,
    batches: Rc<Batches>,
    relays: Rc<Relays>,
    feeds: Rc<Feeds>,
    /// Records of fetches and of answers to fetches.
    pub(crate) records: Rc<Records>,
    tuner: Tuner,
    registrations: RefCell<Registrations>,
    /// Number of prefetched objects that are still being fetched.
    pub(crate) prefetched: Rc<Cell<u64>>,
    /// The places at holders.
    slots: Slots,
    /// Number of replicas whose memory is being filled, or may still be written to.
    landings: Rc<Cell<u64>>,
    /// The thread of sockets, which is started when the protocol is first used.
    socket: OnceCell<SocketThread>,
    waker: Waker,
    /// The buffer through which bytes of this node are copied.
    copied: Cell<Vec<u8>>,
}

impl Transfer {
    pub(crate) fn new(directory: &Rc<Directory>, tunings: Tunings, waker: Waker) -> Self {
        let Directory { kernel, network, store, cluster, .. } = &**directory;
        let leases = Rc::new(Leases::new(kernel, network, &directory.news));
        let lessor = Rc::downgrade(&(Rc::clone(&leases) as Rc<dyn Lessor>));
        // The first lessor stays, because a store has one `Transfer`.
        store.lessor.get_or_init(|| lessor);
        let records = Rc::new(Records::new(kernel, network, store));
        Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            store: Rc::clone(store),
            cluster: Rc::clone(cluster),
            directory: Rc::clone(directory),
            fetches: RefCell::default(),
            incoming: RefCell::default(),
            rooms: Rc::default(),
            batches: Rc::default(),
            relays: Rc::new(Relays::new(store, &leases, &records)),
            feeds: Rc::new(Feeds::new(kernel)),
            leases,
            pushes: Pushes::default(),
            records,
            tuner: Tuner::new(kernel, cluster, tunings),
            registrations: RefCell::new(Registrations::new()),
            prefetched: Rc::default(),
            slots: Slots::default(),
            landings: Rc::default(),
            socket: OnceCell::new(),
            waker,
            copied: Cell::default(),
        }
    }

    /// Makes room for an answer in messages of at most `most` bytes. Returns the room, and the wish that
    /// tells a holder how the object is to come.
    fn wish(&self, request: u64, most: u32) -> (Room, Wish) {
        let room = self.rooms.make(request, self.tuner.eager_max().min(most));
        let push_max = self.push_max().min(most);
        let wish = Wish { protocol: self.kernel.config.protocol, eager_max: room.bytes, push_max };
        (room, wish)
    }

    /// Number of bytes up to which objects are to come to windows of this node.
    fn push_max(&self) -> u32 {
        match (self.kernel.config.protocol, self.kernel.config.push) {
            (Protocol::Auto, PushBy::Auto | PushBy::Write) => self.tuner.push_max(),
            _ => 0,
        }
    }

    /// Whether a node's objects may come to a window of this node: the provider survives the death of a
    /// writer, or the operator vouches for that.
    fn may_push(&self, node: NodeId) -> bool {
        let domain = || self.network.domain(self.network.fabric_to(node));
        match self.kernel.config.push {
            PushBy::Auto => domain().provider().survives_cut_writes(),
            PushBy::Write => true,
            PushBy::Messages => false,
        }
    }

    /// Opens a window for a node if the `len` bytes that came from it might have been pushed. Later
    /// objects of that node then come to the window.
    fn expect_pushes(&self, from: NodeId, len: u64) {
        if len <= u64::from(self.push_max()) && self.may_push(from) {
            self.network.open_window(from);
        }
    }

    /// Whether an object is being read.
    pub(crate) fn moves(&self) -> bool {
        self.slots.taken() > 0
    }

    /// Returns the present counters.
    pub(crate) fn status(&self) -> TransferStatus {
        let alive = |(fetch, ..): &&SharedFetch| fetch.upgrade().is_some_and(|fetch| fetch.peek().is_none());
        TransferStatus {
            leases: self.leases.granted.borrow().len() as u64,
            fetching: self.fetches.borrow().values().filter(alive).count() as u64,
            queued: self.slots.waiting(),
            frames_dropped: self.socket.get().map_or(0, SocketThread::garbage),
            registrations: self.registrations.borrow().status(),
            ..self.records.counters.borrow().clone()
        }
    }

    /// Takes a client's own memory into use.
    pub(crate) fn adopt(&self, memory: ForeignMemory) -> Adopted {
        self.registrations.borrow_mut().adopt(memory)
    }

    /// Returns the registration of a client's memory with a fabric.
    fn registration(&self, on: (usize, &Domain), adopted: &Adopted) -> Result<Rc<Region>, FabricError> {
        self.registrations.borrow_mut().region(on, adopted)
    }

    /// Ends the leases that their readers have not renewed, and forgets what has ended.
    pub(crate) fn expire(&self, now: Instant) {
        self.leases.expire(now);
        self.pushes.expire(now);
        self.fetches.borrow_mut().retain(|_, (fetch, ..)| fetch.upgrade().is_some());
        self.registrations.borrow_mut().tidy();
        self.slots.tidy();
    }
}

/// Number of objects that a node has written to windows and that are not released.
#[cfg(test)]
pub(crate) fn pushes_under_way(transfer: &Transfer) -> usize {
    transfer.pushes.under_way()
}

/// A node that an object is being pushed to, or from which one comes in several messages.
#[cfg(test)]
pub(crate) fn pushes_with(transfer: &Transfer) -> Option<NodeId> {
    transfer.pushes.any_owner().or_else(|| transfer.rooms.any_holder())
}
