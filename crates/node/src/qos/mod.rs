//! Classes of service on the way to other nodes: which work may go now, and which waits.
//!
//! Owns the gates towards the peers, and the counts of each class. Engine thread only. [`bucket`], [`rate`],
//! [`policy`] and [`gate`] are state machines without time of their own.
//!
//! The node that begins an operation decides about it, alone and for each peer: the reader about a read, the
//! sender about a message. Invariants: a read that waits goes on when it may, when its class has no limit any
//! more, or is dropped; with `off` nothing waits.

mod bucket;
mod gate;
mod policy;
mod rate;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use plasmon::status::{ClassStatus, ClassesStatus};
use plasmon::{Class, NodeId};

use self::gate::{Gate, Wait};
pub(crate) use self::policy::Way;
use crate::config::Qos as Mode;
use crate::kernel::random::HashMap;
use crate::kernel::{Kernel, class};

/// Shortest length in bytes to which reads of low class are cut.
const LEAST_CHUNK_BYTES: u64 = 8 << 10;
/// Step in bytes of the lengths of cut reads.
const CHUNK_STEP_BYTES: u64 = 4 << 10;

/// The gates of this node.
pub(crate) struct Qos {
    kernel: Rc<Kernel>,
    mode: Mode,
    gates: RefCell<HashMap<NodeId, Gate>>,
    /// Peers whose round trips are to be measured.
    probes: RefCell<Vec<NodeId>>,
    counts: [Counts; 3],
}

/// Work that was done for a class.
#[derive(Default)]
struct Counts {
    operations: Cell<u64>,
    sent: Cell<u64>,
    received: Cell<u64>,
    waits: Cell<u64>,
    waited: Cell<Duration>,
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

/// Permission for a read, which counts as under way until the permit is dropped.
pub(crate) struct Permit {
    /// The network's classes, and the peer that is read from; `None` with the mode *off*.
    of: Option<(Rc<Qos>, NodeId)>,
    class: Class,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some((qos, node)) = self.of.take() {
            qos.over(node, self.class, self.bytes);
        }
    }
}

/// The wait of a read for its turn. A turn that has come to a read that was given up meanwhile is given back.
struct Awaited<'a> {
    qos: &'a Rc<Qos>,
    node: NodeId,
    class: Class,
    turn: oneshot::Receiver<()>,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if self.turn.try_recv() == Ok(Some(())) {
            self.qos.over(self.node, self.class, 0);
        }
    }
}

impl Qos {
    pub(crate) fn new(kernel: &Rc<Kernel>) -> Self {
        Self {
            kernel: Rc::clone(kernel),
            mode: kernel.config.qos,
            gates: RefCell::default(),
            probes: RefCell::default(),
            counts: Default::default(),
        }
    }

    /// Notes an operation of a client.
    pub(crate) fn begun(&self, class: Class) {
        add(&self.counts[class.rank()].operations, 1);
    }

    /// Returns the length in bytes of the next read for the work at hand: at most `chunk`, less if low work
    /// is limited.
    pub(crate) fn chunk(&self, node: NodeId, chunk: u64) -> u64 {
        if self.mode != Mode::Priority || class::current() != Class::Low {
            return chunk;
        }
        let gates = self.gates.borrow();
        let wanted = gates.get(&node).and_then(|gate| gate.policy.chunk(self.kernel.clock.now()));
        let cut = |bytes: f64| {
            (bytes as u64 / CHUNK_STEP_BYTES * CHUNK_STEP_BYTES).max(LEAST_CHUNK_BYTES).min(chunk)
        };
        wanted.map_or(chunk, cut)
    }

    /// Waits until the work at hand may read `bytes` bytes at a peer.
    pub(crate) async fn read(self: &Rc<Self>, node: NodeId, bytes: u64) -> Permit {
        let class = class::current();
        add(&self.counts[class.rank()].received, bytes);
        if self.mode == Mode::Off {
            return Permit { of: None, class, bytes };
        }
        let now = self.kernel.clock.now();
        let wait = {
            let mut gates = self.gates.borrow_mut();
            let gate = gates.entry(node).or_default();
            if class == Class::High {
                self.note_high(node, gate, (Way::In, bytes), now);
            }
            gate.read(self.mode, class, bytes, now)
        };
        if let Some(turn) = wait {
            self.go_on(node);
            let mut awaited = Awaited { qos: self, node, class, turn };
            // The wait also ends if the gate is gone: the read goes on.
            let _ = (&mut awaited.turn).await;
            let counts = &self.counts[class.rank()];
            add(&counts.waits, 1);
            let waited = self.kernel.clock.now().saturating_duration_since(now);
            counts.waited.set(counts.waited.get() + waited);
        }
        Permit { of: Some((Rc::clone(self), node)), class, bytes }
    }

    fn over(self: &Rc<Self>, node: NodeId, class: Class, bytes: u64) {
        let now = self.kernel.clock.now();
        if let Some(gate) = self.gates.borrow_mut().get_mut(&node) {
            gate.end(class, bytes, now);
            if class == Class::High {
                self.note_high(node, gate, (Way::In, 0), now);
            }
        }
        self.go_on(node);
    }

    /// Begins the reads that may begin, and has a task look again when time lets others begin.
    fn go_on(self: &Rc<Self>, node: NodeId) {
        let now = self.kernel.clock.now();
        let mut gates = self.gates.borrow_mut();
        let Some(gate) = gates.get_mut(&node) else { return };
        let due = gate.go_on(self.mode, now);
        let Some(due) = due.filter(|_| !gate.is_watched) else { return };
        gate.is_watched = true;
        drop(gates);
        let qos = Rc::clone(self);
        self.kernel.spawn(async move {
            let mut due = Some(due);
            while let Some(at) = due {
                qos.kernel.clock.until(at).await;
                let now = qos.kernel.clock.now();
                due = qos.gates.borrow_mut().get_mut(&node).and_then(|gate| {
                    let due = gate.go_on(qos.mode, now);
                    gate.is_watched = due.is_some();
                    due
                });
            }
        });
    }

    fn note_high(&self, node: NodeId, gate: &mut Gate, (way, bytes): (Way, u64), now: Instant) {
        if self.mode != Mode::Priority {
            return;
        }
        gate.policy.high(now);
        gate.policy.moved(way, bytes, now);
        if !std::mem::replace(&mut gate.is_probed, true) {
            self.probes.borrow_mut().push(node);
        }
    }

    /// Notes a frame of `bytes` bytes to a peer, or from it.
    pub(crate) fn frame(&self, node: NodeId, class: Class, way: Way, bytes: u64) {
        let counts = &self.counts[class.rank()];
        add(if way == Way::In { &counts.received } else { &counts.sent }, bytes);
        if class == Class::High && self.mode == Mode::Priority {
            let mut gates = self.gates.borrow_mut();
            let now = self.kernel.clock.now();
            self.note_high(node, gates.entry(node).or_default(), (way, bytes), now);
        }
    }

    /// Whether classes are kept apart by anything but their order.
    pub(crate) fn is_on(&self) -> bool {
        self.mode != Mode::Off
    }

    /// Whether each class has lanes and messages of its own.
    pub(crate) fn keeps_apart(&self) -> bool {
        self.mode == Mode::Separate
    }

    /// Whether a message of a class may be sent now, while `under_way` messages of the class are under way.
    /// If the message has to wait for a time, `due` becomes that time, unless it is earlier already.
    pub(crate) fn may_send(
        &self,
        node: NodeId,
        class: Class,
        under_way: usize,
        due: &mut Option<Instant>,
        now: Instant,
    ) -> bool {
        let mut gates = self.gates.borrow_mut();
        let Some(gate) = gates.get_mut(&node).filter(|_| self.mode == Mode::Priority) else {
            return Gate::default().may_send(self.mode, class, under_way, now).is_ok();
        };
        match gate.may_send(self.mode, class, under_way, now) {
            Ok(()) => true,
            Err(Wait::Turn) => false,
            Err(Wait::Until(at)) => {
                *due = Some(due.map_or(at, |due| due.min(at)));
                false
            }
        }
    }

    /// Notes that a message of low class is sent.
    pub(crate) fn sent_low(&self, node: NodeId, bytes: u64, now: Instant) {
        if let Some(gate) = self.gates.borrow_mut().get_mut(&node) {
            gate.sent_low(bytes, now);
        }
    }

    /// Whether the work at hand is limited in what it sends to a peer.
    pub(crate) fn limits(&self, node: NodeId) -> bool {
        class::current() == Class::Low && self.limit(node, Way::Out).is_some()
    }

    fn limit(&self, node: NodeId, way: Way) -> Option<f64> {
        if self.mode != Mode::Priority {
            return None;
        }
        self.gates.borrow().get(&node)?.policy.limit(way, self.kernel.clock.now())
    }

    /// Takes the peers whose round trips are to be measured from now on, until [`Qos::probed`] returns
    /// `false`.
    pub(crate) fn take_probes(&self) -> Vec<NodeId> {
        self.probes.take()
    }

    /// Notes how long a short message took to a peer and back; `None` if it did not come back. Returns
    /// whether to measure on.
    pub(crate) fn probed(&self, node: NodeId, took: Option<Duration>) -> bool {
        let now = self.kernel.clock.now();
        let mut gates = self.gates.borrow_mut();
        let Some(gate) = gates.get_mut(&node) else { return false };
        if let Some(took) = took {
            gate.policy.round_trip(took, now);
        }
        gate.is_probed = gate.policy.is_busy(now);
        gate.is_probed
    }

    /// Forgets peers that have gone. Reads that wait for such a peer go on.
    pub(crate) fn forget(&self, gone: &[NodeId]) {
        self.gates.borrow_mut().retain(|node, _| !gone.contains(node));
    }

    /// Returns the figures of the classes for the report.
    pub(crate) fn status(&self) -> ClassesStatus {
        let now = self.kernel.clock.now();
        let gates = self.gates.borrow();
        let limits = gates
            .values()
            .flat_map(|gate| [Way::In, Way::Out].into_iter().filter_map(|way| gate.policy.limit(way, now)));
        let limit = limits.filter(|_| self.mode == Mode::Priority).reduce(f64::min);
        let of = |class: Class| {
            let counts = &self.counts[class.rank()];
            ClassStatus {
                operations: counts.operations.get(),
                sent_bytes: counts.sent.get(),
                received_bytes: counts.received.get(),
                waits: counts.waits.get(),
                waited_seconds: counts.waited.get().as_secs_f64(),
            }
        };
        ClassesStatus {
            qos: self.mode.name().into(),
            low_limit: limit.map_or(0, |limit| limit as u64),
            high: of(Class::High),
            normal: of(Class::Normal),
            low: of(Class::Low),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use futures::FutureExt;
    use futures::task::noop_waker_ref;

    use super::*;
    use crate::config::Config;
    use crate::kernel::clock::Clock;
    use crate::kernel::tasks::Tasks;

    #[test]
    fn a_turn_that_comes_to_a_read_that_was_given_up_is_given_back() {
        let config = Config { qos: Mode::Separate, ..Config::new(1 << 20, "a socket of a test") };
        let clock = Clock::with_source(Instant::now, Duration::ZERO);
        let kernel = Rc::new(Kernel::new(config, "10.0.0.1:1".into(), clock, &Tasks::new()));
        let (qos, node) = (Rc::new(Qos::new(&kernel)), NodeId::from_bytes([1; 16]));
        let begun = || qos.read(node, 1).now_or_never();
        let mut under_way: Vec<_> = std::iter::from_fn(begun).collect();
        let most = under_way.len();
        for _ in 0..2 * most {
            let mut given_up = Box::pin(qos.read(node, 1));
            assert!(matches!(
                given_up.as_mut().poll(&mut Context::from_waker(noop_waker_ref())),
                Poll::Pending
            ));
            under_way.pop();
            drop(given_up);
            under_way.extend(begun());
            assert_eq!(under_way.len(), most);
        }
    }
}
