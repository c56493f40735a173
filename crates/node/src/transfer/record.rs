//! Records of fetches, for `explain` during and after a fetch, and counts by protocol. Owns [`Records`].
//! Engine thread only, except the counter of arrived bytes, which the socket thread uses as well.

use std::borrow::Cow;
use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use plasmon::status::{ProtocolStatus, TransferStatus};
use plasmon::transfer::{Arriving, Explanation, Fetched};
use plasmon::{NodeId, ObjectId, UsedProtocol, Version};
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

/// Records of fetches, of answers to fetches, and of fetches under way.
pub(crate) struct Records {
    kernel: Rc<Kernel>,
    network: Rc<Network>,
    store: Rc<Store>,
    /// The most recent fetches, by object.
    past: RefCell<LruCache<ObjectId, Way>>,
    /// Long objects that are being fetched, by the object and the user.
    moving: RefCell<HashMap<(ObjectId, u32), Moving>>,
    pub(super) counters: RefCell<TransferStatus>,
}

/// The length in bytes from which an object counts as long. The progress of a shorter one is over
/// before it can be looked at.
const LONG_BYTES: u64 = 1 << 20;

/// Number of bytes of an object that have arrived so far. The bytes are counted by the code that
/// moves them, a piece at a time.
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
    way: Way,
    since: Instant,
    arrived: Arrived,
}

/// The way of an object to this node. Its texts are borrowed where possible, because every fetch makes one.
#[derive(Debug, Clone, Default)]
struct Way {
    holder: Option<NodeId>,
    /// The other holders that gave parts of the object.
    further: Vec<NodeId>,
    /// The number of the fabric; `None` if the bytes came through a socket.
    on: Option<usize>,
    why_not_better: Option<String>,
    protocol: Option<UsedProtocol>,
    why: Cow<'static, str>,
    into: &'static str,
    bytes: u64,
    copied_bytes: u64,
    registrations: u64,
    reads: u64,
    failures: u64,
    at_ms: u64,
    lookup: Duration,
    allocate: Duration,
    moving: Duration,
    seal: Duration,
    total: Duration,
}

impl Way {
    fn holders(&self) -> Vec<String> {
        self.holder.iter().chain(&self.further).map(NodeId::to_string).collect()
    }

    fn provider(&self, network: &Network) -> String {
        self.on.map_or("socket", |on| network.domain(on).provider().name()).to_owned()
    }

    fn protocol(&self) -> String {
        self.protocol.map_or("", UsedProtocol::name).to_owned()
    }

    fn told(&self, network: &Network) -> Fetched {
        let us = |time: Duration| time.as_nanos() as f64 / 1e3;
        Fetched {
            at_ms: self.at_ms,
            holders: self.holders(),
            provider: self.provider(network),
            provider_why: self.why_not_better.clone().unwrap_or_default(),
            protocol: self.protocol(),
            why: self.why.clone().into_owned(),
            bytes: self.bytes,
            copied_bytes: self.copied_bytes,
            registrations: self.registrations,
            reads: self.reads,
            into: self.into.to_owned(),
            failures: self.failures,
            lookup_us: us(self.lookup),
            allocate_us: us(self.allocate),
            move_us: us(self.moving),
            seal_us: us(self.seal),
            total_us: us(self.total),
        }
    }
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

/// A fetch: the object that is wanted, and the progress. Marks are set as the fetch goes on; a
/// later mark replaces an earlier one.
pub(super) struct Trace {
    records: Rc<Records>,
    pub(super) id: ObjectId,
    /// The user for whom the object is fetched.
    pub(super) user: u32,
    pub(super) target: Target,
    /// Whether a get wants the object compared.
    pub(super) wanted: Wanted,
    /// Whether one holder alone is to give all bytes, because bytes of several holders were damaged
    /// and the culprit is not known.
    pub(super) alone: bool,
    shown: Option<Shown>,
    arrived: Arrived,
    began: Instant,
    answered: Instant,
    allocated: Instant,
    moved: Instant,
    way: Way,
}

impl Trace {
    pub(super) fn begin(
        records: &Rc<Records>,
        id: ObjectId,
        user: u32,
        (target, wanted): (Target, Wanted),
    ) -> Self {
        let now = records.kernel.clock.now();
        let records = Rc::clone(records);
        Self {
            records,
            id,
            user,
            target,
            wanted,
            alone: false,
            shown: None,
            arrived: Arrived::default(),
            began: now,
            answered: now,
            allocated: now,
            moved: now,
            way: Way::default(),
        }
    }

    /// Notes that a holder has answered, and by which protocol the object comes.
    pub(super) fn answered(
        &mut self,
        holder: NodeId,
        protocol: UsedProtocol,
        bytes: u64,
        why: impl Into<Cow<'static, str>>,
    ) {
        self.answered = self.records.kernel.clock.now();
        let (on, why_not_better) = match protocol {
            UsedProtocol::Socket => (None, None),
            _ => {
                let (on, why) = self.records.network.reached_by(holder);
                (Some(on), why)
            }
        };
        self.way = Way {
            holder: Some(holder),
            on,
            why_not_better,
            protocol: Some(protocol),
            why: why.into(),
            into: self.target.name(),
            bytes,
            failures: self.way.failures,
            ..Way::default()
        };
        // Bytes that a former attempt still counts do not belong to this attempt.
        self.arrived = Arrived::default();
        self.shown = (bytes >= LONG_BYTES).then(|| self.show());
    }

    fn show(&mut self) -> Shown {
        // A former attempt is removed before this attempt is entered.
        self.shown = None;
        let key = (self.id, self.user);
        let moving = Moving { way: self.way.clone(), since: self.began, arrived: self.arrived.clone() };
        self.records.moving.borrow_mut().insert(key, moving);
        Shown { records: Rc::clone(&self.records), key }
    }

    /// The counter for the bytes that arrive.
    pub(super) fn arrived(&self) -> Arrived {
        self.arrived.clone()
    }

    /// Adds a text to the reason for the protocol.
    pub(super) fn because(&mut self, more: &str) {
        self.way.why.to_mut().push_str(more);
    }

    /// Notes that another holder takes part.
    pub(super) fn also_from(&mut self, holder: NodeId) {
        self.way.further.push(holder);
        self.way.protocol = Some(UsedProtocol::StripedRead);
    }

    pub(super) fn allocated(&mut self) {
        self.allocated = self.records.kernel.clock.now();
    }

    pub(super) fn moved(&mut self) {
        self.moved = self.records.kernel.clock.now();
    }

    pub(super) fn copied(&mut self, bytes: u64) {
        self.way.copied_bytes += bytes;
    }

    pub(super) fn registered(&mut self, regions: u64) {
        self.way.registrations += regions;
    }

    pub(super) fn read(&mut self, reads: u64) {
        self.way.reads += reads;
    }

    /// Notes that an attempt is over, and that nothing comes until a holder answers.
    pub(super) fn stopped(&mut self) {
        self.shown = None;
    }

    /// Notes that the attempt failed.
    pub(super) fn failed(&mut self) {
        self.stopped();
        self.way.failures += 1;
        self.records.counters.borrow_mut().fetch_failures += 1;
    }

    /// Notes and logs that the attempt failed because other bytes came than were sealed. Returns
    /// whether one holder gave all of these bytes.
    pub(super) fn told_damaged(&mut self, reason: &Failure) -> bool {
        let (id, from) = (self.id, self.way.holders().join(", "));
        warn!(object = %id, node = %from, %reason, "a damaged object came; trying elsewhere");
        self.failed();
        self.records.counters.borrow_mut().damaged += 1;
        let several = !self.way.further.is_empty();
        self.alone |= several;
        !several
    }

    /// Notes that the object is sealed, and counts it.
    pub(super) fn finish(self) {
        let Self { records, id, began, answered, allocated, moved, mut way, .. } = self;
        let now = records.kernel.clock.now();
        way.at_ms = records.kernel.clock.unix_ms();
        way.lookup = answered.saturating_duration_since(began);
        way.allocate = allocated.saturating_duration_since(answered);
        way.moving = moved.saturating_duration_since(allocated);
        way.seal = now.saturating_duration_since(moved);
        way.total = now.saturating_duration_since(began);
        let count = |count: &mut ProtocolStatus| {
            count.fetched += 1;
            count.fetched_bytes += way.bytes;
            count.copied_bytes += way.copied_bytes;
            count.registrations += way.registrations;
            count.reads += way.reads;
        };
        way.protocol.iter().for_each(|protocol| records.count(*protocol, count));
        records.past.borrow_mut().put(id, way);
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
    pub(super) fn count(&self, protocol: UsedProtocol, change: impl FnOnce(&mut ProtocolStatus)) {
        let mut counters = self.counters.borrow_mut();
        match counters.protocols.get_mut(protocol.name()) {
            Some(count) => change(count),
            None => change(counters.protocols.entry(protocol.name().to_owned()).or_default()),
        }
    }

    /// Counts bytes that the CPU copied.
    pub(crate) fn count_copy(&self, bytes: u64) {
        self.counters.borrow_mut().cpu_copied_bytes += bytes;
    }

    /// Counts an object that this node served.
    pub(super) fn count_served(&self, protocol: UsedProtocol, head: &Head) {
        self.count(protocol, |count| {
            count.served += 1;
            count.served_bytes += head.len();
        });
    }

    /// Counts an object that came in messages, of which the CPU copied `copied` bytes.
    pub(super) fn count_eager(&self, copied: u64) {
        let mut counters = self.counters.borrow_mut();
        counters.eager_fetched += 1;
        counters.eager_fetched_bytes += copied;
        counters.cpu_copied_bytes += copied;
    }

    /// Counts an object that another node wrote to a window here, of which the CPU copied `copied` bytes.
    pub(super) fn count_pushed(&self, copied: u64) {
        let mut counters = self.counters.borrow_mut();
        counters.pushed_fetched += 1;
        counters.pushed_fetched_bytes += copied;
        counters.cpu_copied_bytes += copied;
    }

    /// Counts an object that this node has read from a holder.
    pub(super) fn count_rendezvous(&self, head: &Head) {
        let mut counters = self.counters.borrow_mut();
        counters.rendezvous_fetched += 1;
        counters.rendezvous_fetched_bytes += head.len();
    }

    /// Whether a long object is coming to this node for a user at the moment.
    pub(crate) fn moves_here(&self, id: &ObjectId, user: u32) -> bool {
        self.moving.borrow().contains_key(&(*id, user))
    }

    /// Explains how an object came to this node, as far as this node remembers, or how far its fetch for a
    /// user is.
    pub(crate) fn explain(&self, id: &ObjectId, user: u32) -> Explanation {
        let held = self.store.objects.borrow().get(id).map(|replica| (replica.role(), replica.life));
        let here = held.map_or("absent", |(role, _)| role.name());
        let version = held.map(|(_, life)| Version::from_number(life).to_string());
        let fetched = self.past.borrow().peek(id).map(|way| way.told(&self.network));
        let arriving = self.moving.borrow().get(&(*id, user)).map(|moving| Arriving {
            holders: moving.way.holders(),
            provider: moving.way.provider(&self.network),
            protocol: moving.way.protocol(),
            bytes: moving.way.bytes,
            arrived_bytes: moving.arrived.bytes(),
            us: self.kernel.clock.now().saturating_duration_since(moving.since).as_nanos() as f64 / 1e3,
        });
        Explanation { id: id.to_string(), here: here.to_owned(), version, fetched, arriving }
    }
}
