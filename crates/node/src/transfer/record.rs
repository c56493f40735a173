//! Records of fetches, for `explain` during and after a fetch, and counts by protocol. Engine thread only,
//! except the counter of arrived bytes, which the socket thread uses as well.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lru::LruCache;
use plasmon::status::{ProtocolStatus, TransferStatus};
use plasmon::transfer::{Arriving, Explanation, Fetched};
use plasmon::{NodeId, ObjectId};
use tracing::warn;

use super::comparing::Wanted;
use super::failure::Failure;
use super::landing::Target;
use crate::kernel::Kernel;
use crate::kernel::random::HashMap;
use crate::net::network::Network;
use crate::object::Head;
use crate::store::Store;

/// Maximum number of fetches remembered.
const KEPT_FETCHES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// What was fetched and served, and what is being fetched.
pub(crate) struct Records {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    store: Rc<Store>,
    /// The most recent fetches, by object.
    past: RefCell<LruCache<ObjectId, Fetched>>,
    /// Long objects that are being fetched, by the object and the user.
    moving: RefCell<HashMap<(ObjectId, u32), Moving>>,
    pub(super) counters: RefCell<TransferStatus>,
}

/// The length in bytes from which an object counts as long. A shorter one arrives before anybody can look
/// at its progress.
const LONG_BYTES: u64 = 1 << 20;

/// Number of bytes of an object that have arrived so far. The mover of the bytes counts them, a piece at a
/// time.
#[derive(Debug, Clone, Default)]
pub(super) struct Arrived(Arc<AtomicU64>);

impl Arrived {
    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A long object that is being fetched, visible to `explain`.
#[derive(Debug)]
struct Moving {
    what: Fetched,
    since: Instant,
    arrived: Arrived,
}

/// Removes a fetch from those that `explain` shows, however it ends.
struct Shown {
    records: Rc<Records>,
    key: (ObjectId, u32),
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.records.moving.borrow_mut().remove(&self.key);
    }
}

/// A fetch: what is wanted, and how it goes. Marks are set as it goes on; a later mark replaces an earlier
/// one.
pub(super) struct Trace {
    records: Rc<Records>,
    pub(super) id: ObjectId,
    /// The user for whom the object is fetched.
    pub(super) tenant: u32,
    pub(super) target: Target,
    /// Whether a get wants the object compared.
    pub(super) wanted: Wanted,
    /// Whether one holder alone is to give all bytes: those of several were damaged, nobody knows whose.
    pub(super) alone: bool,
    shown: Option<Shown>,
    arrived: Arrived,
    began: Instant,
    answered: Instant,
    allocated: Instant,
    moved: Instant,
    fetched: Fetched,
}

impl Trace {
    pub(super) fn begin(
        records: &Rc<Records>,
        id: ObjectId,
        tenant: u32,
        (target, wanted): (Target, Wanted),
    ) -> Self {
        let now = records.kernel.clock.now();
        let records = Rc::clone(records);
        let fetched = Fetched::default();
        Self {
            records,
            id,
            tenant,
            target,
            wanted,
            alone: false,
            shown: None,
            arrived: Arrived::default(),
            began: now,
            answered: now,
            allocated: now,
            moved: now,
            fetched,
        }
    }

    /// Notes that a holder has answered, and by which protocol the object comes.
    pub(super) fn answered(&mut self, holder: NodeId, protocol: &str, bytes: u64, why: impl Into<String>) {
        self.answered = self.records.kernel.clock.now();
        let (provider, why_not_better) = match protocol {
            "socket" => ("socket", None),
            _ => {
                let (provider, why) = self.records.network.provider(holder);
                (provider.name(), why)
            }
        };
        self.fetched = Fetched {
            holders: vec![holder.to_string()],
            protocol: protocol.to_owned(),
            why: why.into(),
            provider: provider.to_owned(),
            provider_why: why_not_better.unwrap_or_default(),
            bytes,
            failures: self.fetched.failures,
            into: self.target.name().to_owned(),
            ..Fetched::default()
        };
        // Bytes that a former attempt still counts do not belong to this one.
        self.arrived = Arrived::default();
        self.shown = (bytes >= LONG_BYTES).then(|| self.show());
    }

    fn show(&mut self) -> Shown {
        // A former attempt is removed before this one is entered.
        self.shown = None;
        let key = (self.id, self.tenant);
        let moving = Moving { what: self.fetched.clone(), since: self.began, arrived: self.arrived.clone() };
        self.records.moving.borrow_mut().insert(key, moving);
        Shown { records: Rc::clone(&self.records), key }
    }

    /// The counter for the bytes that arrive.
    pub(super) fn arrived(&self) -> Arrived {
        self.arrived.clone()
    }

    /// Adds to the reason for the protocol.
    pub(super) fn because(&mut self, more: &str) {
        self.fetched.why.push_str(more);
    }

    /// Notes that another holder takes part.
    pub(super) fn also_from(&mut self, holder: NodeId) {
        self.fetched.holders.push(holder.to_string());
        "striped-read".clone_into(&mut self.fetched.protocol);
    }

    pub(super) fn allocated(&mut self) {
        self.allocated = self.records.kernel.clock.now();
    }

    pub(super) fn moved(&mut self) {
        self.moved = self.records.kernel.clock.now();
    }

    pub(super) fn copied(&mut self, bytes: u64) {
        self.fetched.copied_bytes += bytes;
    }

    pub(super) fn registered(&mut self, regions: u64) {
        self.fetched.registrations += regions;
    }

    pub(super) fn read(&mut self, reads: u64) {
        self.fetched.reads += reads;
    }

    /// Notes that an attempt is over, and that nothing comes until a holder answers.
    pub(super) fn stopped(&mut self) {
        self.shown = None;
    }

    /// Notes that the attempt failed.
    pub(super) fn failed(&mut self) {
        self.stopped();
        self.fetched.failures += 1;
        self.records.counters.borrow_mut().fetch_failures += 1;
    }

    /// Notes and tells that the attempt failed because other bytes came than were sealed. Returns whether one
    /// holder gave all of them.
    pub(super) fn told_damaged(&mut self, reason: &Failure) -> bool {
        let (id, from) = (self.id, self.fetched.holders.join(", "));
        warn!(object = %id, node = %from, %reason, "a damaged object came; trying elsewhere");
        self.failed();
        self.records.counters.borrow_mut().damaged += 1;
        let several = self.fetched.holders.len() > 1;
        self.alone |= several;
        !several
    }

    /// Notes that the object is sealed, and counts it.
    pub(super) fn finish(self) {
        let Self { records, id, began, answered, allocated, moved, mut fetched, .. } = self;
        let now = records.kernel.clock.now();
        let span = |from: Instant, to: Instant| to.saturating_duration_since(from).as_nanos() as f64 / 1e3;
        fetched.at_ms = records.kernel.clock.unix_ms();
        fetched.lookup_us = span(began, answered);
        fetched.allocate_us = span(answered, allocated);
        fetched.move_us = span(allocated, moved);
        fetched.seal_us = span(moved, now);
        fetched.total_us = span(began, now);
        records.count(&fetched.protocol, |count| {
            count.fetched += 1;
            count.fetched_bytes += fetched.bytes;
            count.copied_bytes += fetched.copied_bytes;
            count.registrations += fetched.registrations;
            count.reads += fetched.reads;
        });
        records.past.borrow_mut().put(id, fetched);
    }
}

impl Records {
    pub(super) fn new(kernel: &Rc<Kernel>, network: &Rc<Network>, store: &Rc<Store>) -> Self {
        Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            store: Rc::clone(store),
            past: RefCell::new(LruCache::new(KEPT_FETCHES)),
            moving: RefCell::default(),
            counters: RefCell::default(),
        }
    }

    /// Changes the counters of a protocol.
    pub(super) fn count(&self, protocol: &str, change: impl FnOnce(&mut ProtocolStatus)) {
        let mut counters = self.counters.borrow_mut();
        match counters.protocols.get_mut(protocol) {
            Some(count) => change(count),
            None => change(counters.protocols.entry(protocol.to_owned()).or_default()),
        }
    }

    /// Counts bytes that the CPU copied.
    pub(crate) fn count_copy(&self, bytes: u64) {
        self.counters.borrow_mut().cpu_copied_bytes += bytes;
    }

    /// Counts an object that this node served.
    pub(super) fn count_served(&self, protocol: &str, head: &Head) {
        self.count(protocol, |count| {
            count.served += 1;
            count.served_bytes += head.len();
        });
    }

    /// Counts an object that came in messages, of which the CPU copied so many bytes.
    pub(super) fn count_eager(&self, copied: u64) {
        let mut counters = self.counters.borrow_mut();
        counters.eager_fetched += 1;
        counters.eager_fetched_bytes += copied;
        counters.cpu_copied_bytes += copied;
    }

    /// Counts an object that another node wrote here.
    pub(super) fn count_pushed(&self, copied: u64) {
        let mut counters = self.counters.borrow_mut();
        counters.pushed_fetched += 1;
        counters.pushed_fetched_bytes += copied;
        counters.cpu_copied_bytes += copied;
    }

    /// Counts an object that this node has read.
    pub(super) fn count_rendezvous(&self, head: &Head) {
        let mut counters = self.counters.borrow_mut();
        counters.rendezvous_fetched += 1;
        counters.rendezvous_fetched_bytes += head.len();
    }

    /// Whether a holder gives a long object to this node at the moment.
    pub(crate) fn moves_here(&self, id: &ObjectId, tenant: u32) -> bool {
        self.moving.borrow().contains_key(&(*id, tenant))
    }

    /// Explains how an object came to this node, as far as this node remembers, or how far its fetch for a
    /// user is.
    pub(crate) fn explain(&self, id: &ObjectId, tenant: u32) -> Explanation {
        let here = match self.store.objects.borrow().get(id).map(|replica| replica.role()) {
            Some(role) => role.name(),
            None => "absent",
        };
        let fetched = self.past.borrow().peek(id).cloned();
        let arriving = self.moving.borrow().get(&(*id, tenant)).map(|moving| Arriving {
            holders: moving.what.holders.clone(),
            provider: moving.what.provider.clone(),
            protocol: moving.what.protocol.clone(),
            bytes: moving.what.bytes,
            arrived_bytes: moving.arrived.bytes(),
            us: self.kernel.clock.now().saturating_duration_since(moving.since).as_nanos() as f64 / 1e3,
        });
        Explanation { id: id.to_string(), here: here.to_owned(), fetched, arriving }
    }
}
