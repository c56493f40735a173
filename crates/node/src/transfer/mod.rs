//! Moving objects between arenas: serving them, fetching them, and the leases in between.
//!
//! Engine thread only. A holder answers a fetch with the object itself (*eager*, when it fits a
//! message) or with its location and a lease (*rendezvous*): the requester then reads it, arena to
//! arena, on the bulk lane. The holder cannot see those reads, so its pin is a lease that the reader
//! renews while it reads. Both clocks only measure spans: the reader counts from before it asked,
//! the holder from when it answered, so that bytes read before the reader's end of the lease are
//! certainly the object's.

mod fetch;
mod pool;
mod serve;

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use plasmon::status::TransferStatus;
use plasmon::{NodeId, ObjectId};
use tokio::sync::Semaphore;

use self::fetch::WeakFetch;
pub(crate) use self::pool::Pool;
pub(crate) use self::serve::not_visible;
use crate::object::Pin;

/// How long a reader may read without renewing.
const LEASE: Duration = Duration::from_secs(10);
/// Bytes of one read: small enough that reads of several objects share the lane fairly.
const CHUNK: u64 = 1 << 20;
/// Reads of one object under way.
const READS: usize = 4;
/// Objects being read at once.
const OBJECTS: usize = 8;

/// Transfers of this node.
pub(crate) struct Transfer {
    /// Objects pinned for peers: by the peer and its request.
    leases: RefCell<HashMap<(NodeId, u64), Lease>>,
    /// Fetches under way: gets of one object by one user share one.
    fetches: RefCell<HashMap<(ObjectId, u32), WeakFetch>>,
    /// Room on the bulk lane.
    slots: Semaphore,
    counters: RefCell<TransferStatus>,
}

/// A pin for a peer, which ends by itself.
struct Lease {
    /// Held for its drop.
    _pin: Pin,
    until: Instant,
}

impl Transfer {
    pub(crate) fn new() -> Self {
        Self {
            leases: RefCell::default(),
            fetches: RefCell::default(),
            slots: Semaphore::new(OBJECTS),
            counters: RefCell::default(),
        }
    }

    /// Notes bytes that the CPU copied.
    pub(crate) fn count_copy(&self, bytes: u64) {
        self.counters.borrow_mut().cpu_copied_bytes += bytes;
    }

    /// The counters, now.
    pub(crate) fn status(&self) -> TransferStatus {
        let alive = |fetch: &&WeakFetch| fetch.upgrade().is_some_and(|fetch| fetch.peek().is_none());
        TransferStatus {
            leases: self.leases.borrow().len() as u64,
            fetching: self.fetches.borrow().values().filter(alive).count() as u64,
            ..self.counters.borrow().clone()
        }
    }

    /// Ends the leases whose readers have not renewed.
    pub(crate) fn expire(&self, now: Instant) {
        self.leases.borrow_mut().retain(|_, lease| lease.until > now);
        self.fetches.borrow_mut().retain(|_, fetch| fetch.upgrade().is_some());
    }
}
