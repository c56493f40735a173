//! Moving objects between arenas: serving them, fetching them, and the leases in between.
//!
//! Engine thread only. A holder answers a fetch with the object itself (*eager*, when it fits a
//! message) or with its location and a lease (*rendezvous*): the requester then reads it, arena to
//! arena, on the bulk lane. The holder cannot see those reads, so its pin is a lease that the reader
//! renews while it reads. Both clocks only measure spans: the reader counts from before it asked,
//! the holder from when it answered, so that bytes read before the reader's end of the lease are
//! certainly the object's. What was fetched once is remembered ([`known`]): it is asked for without the
//! directory, or read without anybody, and a stamp at the holder says whether it was still there.
//!
//! Read in this order: [`fetch`] asks and chooses; [`eager`], [`rendezvous`], [`known`], [`relay`], [`send`], [`register`]
//! and [`socket`] bring the bytes, each by its protocol; [`lease`] and [`serve`] are the two ends of a lease;
//! [`record`] remembers what happened, [`tuning`] what is best, which [`calibrate`] measures.

mod calibrate;
mod chunks;
mod eager;
mod fetch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod known;
mod landing;
mod lease;
mod pool;
mod record;
mod register;
mod registrations;
mod relay;
mod rendezvous;
mod send;
mod serve;
mod socket;
mod tuning;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::status::TransferStatus;
use plasmon::{Error, NodeId, ObjectId};
use plasmon_fabric::{Domain, FabricError, Region};
use tokio::sync::Semaphore;

use self::fetch::WeakFetch;
use self::known::Known;
pub(crate) use self::landing::{Given, GivenMemory};
use self::lease::Granted;
pub(crate) use self::pool::Pools;
use self::record::{Moving, Records};
pub(crate) use self::registrations::Adopted;
use self::registrations::Registrations;
use self::relay::Relays;
use self::send::Incoming;
use self::serve::not_served;
pub(crate) use self::serve::not_visible;
use self::socket::Service;
pub(crate) use self::tuning::Tunings;
use crate::engine::Waker;
use crate::memory::ForeignMemory;

/// How long a chunk may take, and how long one may wait for the next part of an object that is sent.
const STALLED: Duration = Duration::from_secs(10);
/// Objects being read at once.
const OBJECTS: usize = 8;

/// Transfers of this node.
pub(crate) struct Transfer {
    /// What is kept for peers: by the peer and its request.
    leases: RefCell<HashMap<(NodeId, u64), Granted>>,
    /// Fetches under way: gets of one object by one user share one.
    fetches: RefCell<HashMap<(ObjectId, u32), WeakFetch>>,
    /// Objects that come in pieces: by the holder and the request.
    incoming: RefCell<HashMap<(NodeId, u64), Incoming>>,
    relays: Relays,
    known: RefCell<Known>,
    records: RefCell<Records>,
    /// Long objects that are on their way: by the object and the user.
    moving: RefCell<HashMap<(ObjectId, u32), Moving>>,
    tunings: RefCell<Tunings>,
    registrations: RefCell<Registrations>,
    /// Objects that were asked for ahead and are on their way.
    pub(crate) prefetched: Rc<Cell<usize>>,
    /// Room on the bulk lane.
    slots: Semaphore,
    /// Made when the protocol is first used.
    socket: OnceCell<Service>,
    waker: Waker,
    counters: RefCell<TransferStatus>,
}

/// Why an attempt at a holder failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The holder is to blame: another may do better.
    #[error("{0}")]
    Holder(String),
    /// This node is to blame: no holder will do better.
    #[error("{0}")]
    Here(Error),
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        Self::Holder(error.to_string())
    }
}

impl Transfer {
    pub(crate) fn new(tunings: Tunings, waker: Waker) -> Self {
        Self {
            leases: RefCell::default(),
            fetches: RefCell::default(),
            incoming: RefCell::default(),
            relays: Relays::default(),
            known: RefCell::new(known::known()),
            records: RefCell::new(record::records()),
            moving: RefCell::default(),
            tunings: RefCell::new(tunings),
            registrations: RefCell::new(Registrations::new()),
            prefetched: Rc::default(),
            slots: Semaphore::new(OBJECTS),
            socket: OnceCell::new(),
            waker,
            counters: RefCell::default(),
        }
    }

    /// Notes bytes that the CPU copied.
    pub(crate) fn count_copy(&self, bytes: u64) {
        self.counters.borrow_mut().cpu_copied_bytes += bytes;
    }

    /// Whether an object is being read.
    pub(crate) fn moves(&self) -> bool {
        self.slots.available_permits() < OBJECTS
    }

    /// The counters, now.
    pub(crate) fn status(&self) -> TransferStatus {
        let alive = |fetch: &&WeakFetch| fetch.upgrade().is_some_and(|fetch| fetch.peek().is_none());
        TransferStatus {
            leases: self.leases.borrow().len() as u64,
            fetching: self.fetches.borrow().values().filter(alive).count() as u64,
            frames_dropped: self.socket.get().map_or(0, Service::garbage),
            registrations: self.registrations.borrow().status(),
            ..self.counters.borrow().clone()
        }
    }

    /// Takes up memory of a client's own.
    pub(crate) fn adopt(&self, memory: ForeignMemory) -> Adopted {
        self.registrations.borrow_mut().adopt(memory)
    }

    /// What the fabric may write of it.
    fn registration(&self, on: (usize, &Domain), adopted: &Adopted) -> Result<Rc<Region>, FabricError> {
        self.registrations.borrow_mut().region(on, adopted)
    }

    /// Ends the leases whose readers have not renewed.
    pub(crate) fn expire(&self, now: Instant) {
        self.leases.borrow_mut().retain(|_, lease| lease.until > now);
        self.fetches.borrow_mut().retain(|_, fetch| fetch.upgrade().is_some());
        self.registrations.borrow_mut().tidy();
    }
}
