//! The operations under way in a memory network, and the schedule of their events.
//!
//! Owns the state of every host, endpoint and connection. Engine thread only. The state runs no foreign code
//! and holds no counted reference to anything of a domain, so every call may borrow it. Invariants: the
//! names of ports are never reused; a [`Lane`] has exactly one `Arrive` in the schedule, or held back, for
//! each pending operation, and one `Answer` for each operation to be answered, so that operations are served
//! in the order in which they were posted, whatever their delays.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ptr::NonNull;
use std::time::Duration;

use super::faults::{Faults, Random, mix};
use crate::access::Access;

/// Divisor of the range of delays: an operation comes behind the one before it by at most the quotient.
const GAPS_PER_SPREAD: u32 = 64;

/// Name of an endpoint of the network: the number of its host, and a number of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct PortName(pub(super) u64);

impl PortName {
    /// Returns the name of the endpoint `number` on `host`.
    pub(super) fn new(host: u32, number: u32) -> Self {
        PortName(u64::from(host) << 32 | u64::from(number))
    }

    /// Returns the host of the endpoint.
    pub(super) fn host(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the number of the endpoint.
    pub(super) fn number(self) -> u32 {
        self.0 as u32
    }
}

/// Report that a domain gets when it polls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    /// The operation at `index` of the domain's table is done; a receive got `len` bytes.
    Done { index: usize, len: usize },
    /// The operation at `index` failed with a positive error number.
    Failed { index: usize, code: i32 },
    /// A peer wrote `len` bytes with an immediate value.
    Written { immediate: u32, len: usize },
}

/// Memory that is registered.
pub(super) struct Registered {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    pub(super) access: Access,
}

/// Domain that is open.
pub(super) struct Domain {
    pub(super) host: u32,
    /// Whether the host was killed, so that nothing comes in or goes out any more.
    pub(super) dead: bool,
    /// Registrations by their keys.
    pub(super) regions: BTreeMap<u64, Registered>,
    /// Reports that the domain has not polled, each with the endpoint that it is for.
    pub(super) reports: VecDeque<(PortName, Report)>,
}

/// Endpoint that is open.
pub(super) struct Endpoint {
    pub(super) domain: u32,
    /// Receive buffers: index of the operation, address and length.
    pub(super) receives: VecDeque<(usize, *mut u8, usize)>,
    /// Messages that have come in and wait for a buffer.
    pub(super) waiting: VecDeque<Box<[u8]>>,
}

/// Request of an operation under way.
#[derive(Clone, Copy)]
pub(super) enum Request {
    Send,
    Read { address: u64, key: u64 },
    Write { address: u64, key: u64, immediate: Option<u32>, acknowledged: bool },
}

/// Operation under way on a lane.
pub(super) struct Flight {
    pub(super) number: u64,
    pub(super) index: usize,
    pub(super) request: Request,
    /// Buffer of the operation, which may be touched until the operation is reported.
    pub(super) buffer: *mut u8,
    pub(super) len: usize,
    /// Bytes of a read that were copied at an earlier moment.
    pub(super) copied: usize,
    /// Bytes of a send or a write that was reported before it arrived.
    pub(super) message: Option<Box<[u8]>>,
    /// Whether the operation has been reported.
    pub(super) reported: bool,
    /// Whether the connection is to break on this operation.
    pub(super) cuts: bool,
}

impl Flight {
    /// Returns the bytes that are on their way: the bytes of the buffer, until the operation is reported.
    pub(super) fn bytes(&self) -> *const u8 {
        self.message.as_deref().map_or(self.buffer.cast_const(), <[u8]>::as_ptr)
    }
}

/// Way from one endpoint to another: one direction of a connection.
#[derive(Default)]
pub(super) struct Lane {
    /// Number of the connection. Events scheduled for another connection are void.
    pub(super) connection: u64,
    /// Whether something has arrived by the connection. Before that, the peer may not exist.
    pub(super) established: bool,
    /// Operations that have not arrived, oldest first.
    pub(super) pending: VecDeque<Flight>,
    /// Operations that were served and are to be answered, oldest first.
    pub(super) served: VecDeque<Flight>,
    /// Moment of the last scheduled arrival.
    pub(super) last_arrival: Duration,
    /// Moment of the last scheduled answer.
    pub(super) last_answer: Duration,
    /// Number of arrivals that a partition holds back.
    pub(super) held_arrivals: usize,
    /// Number of answers that a partition holds back.
    pub(super) held_answers: usize,
    /// Number of the `GiveUp` that is scheduled, while a partition holds operations or answers back.
    pub(super) watch: Option<u64>,
    /// Whether the far side has given the connection up, which the near side does not know.
    pub(super) doomed: bool,
    /// Moment at which the near side learns that the former connection is broken, and the reason. Operations
    /// posted before are lost as well.
    pub(super) notice: (Duration, i32),
}

/// Names of the near and the far endpoint of a lane.
pub(super) type LaneName = (PortName, PortName);

/// Event that is scheduled.
pub(super) enum Due {
    /// The oldest pending operation of a connection arrives.
    Arrive(LaneName, u64),
    /// The answer to the oldest served operation of a connection arrives.
    Answer(LaneName, u64),
    /// The send of a message is reported, whether or not the message has arrived.
    Early(LaneName, u64, u64),
    /// An operation of an endpoint fails.
    Fail(PortName, usize, i32),
    /// Patience with a partition is over.
    GiveUp(LaneName, u64),
    /// Writes that have come by a broken connection land.
    Land(LaneName, Vec<LateWrite>),
}

/// Write, or the first bytes of a write, that has come by a broken connection.
pub(super) struct LateWrite {
    pub(super) address: u64,
    pub(super) key: u64,
    /// Length of the whole write.
    pub(super) len: usize,
    pub(super) immediate: Option<u32>,
    /// Bytes that have come.
    pub(super) bytes: Box<[u8]>,
}

impl LateWrite {
    /// Takes over the first `part` bytes of a write. Returns `None` for other operations.
    pub(super) fn of(flight: &Flight, part: usize) -> Option<Self> {
        let Request::Write { address, key, immediate, .. } = flight.request else { return None };
        let part = part.min(flight.len);
        let mut bytes = Vec::<u8>::with_capacity(part);
        // SAFETY: the bytes may be read, as those of any flight; the vector has room for `part` of them and
        // all are written.
        unsafe {
            flight.bytes().copy_to_nonoverlapping(bytes.as_mut_ptr(), part);
            bytes.set_len(part);
        }
        Some(LateWrite { address, key, len: flight.len, immediate, bytes: bytes.into() })
    }
}

/// State of a memory network.
pub(super) struct Wires {
    pub(super) now: Duration,
    pub(super) faults: Faults,
    pub(super) random: Random,
    pub(super) schedule: BTreeMap<(Duration, u64), Due>,
    pub(super) domains: BTreeMap<u32, Domain>,
    pub(super) ports: BTreeMap<PortName, Endpoint>,
    pub(super) lanes: BTreeMap<LaneName, Lane>,
    /// Pairs of hosts that are separated, the smaller number first.
    pub(super) partitions: BTreeSet<(u32, u32)>,
    /// Hosts that have ever existed.
    pub(super) hosts: BTreeSet<u32>,
    /// Digest of all reports so far.
    pub(super) fingerprint: u64,
    numbers: u64,
    names: u32,
}

impl Wires {
    /// Returns the state of a network without hosts.
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Wires {
            now: Duration::ZERO,
            faults,
            random: Random::new(seed),
            schedule: BTreeMap::new(),
            domains: BTreeMap::new(),
            ports: BTreeMap::new(),
            lanes: BTreeMap::new(),
            partitions: BTreeSet::new(),
            hosts: BTreeSet::new(),
            fingerprint: seed,
            numbers: 0,
            names: 0,
        }
    }

    /// Returns a new number, larger than all numbers that were returned before.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Returns the number of a new domain or endpoint.
    pub(super) fn name(&mut self) -> u32 {
        self.names += 1;
        self.names
    }

    /// Draws the time that an operation or an answer takes to cross the network.
    pub(super) fn delay(&mut self) -> Duration {
        self.random.between(self.faults.delay_min, self.faults.delay_max)
    }

    /// Schedules an event.
    pub(super) fn schedule(&mut self, at: Duration, due: Due) {
        let number = self.number();
        self.schedule.insert((at, number), due);
    }

    /// Schedules an arrival on a lane, behind all others.
    pub(super) fn schedule_arrival(&mut self, name: LaneName) {
        let last = self.lanes.get(&name).map_or(Duration::ZERO, |lane| lane.last_arrival);
        let at = self.moment_after(last);
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        lane.last_arrival = at;
        let connection = lane.connection;
        self.schedule(at, Due::Arrive(name, connection));
    }

    /// Schedules an answer on a lane, behind all others.
    pub(super) fn schedule_answer(&mut self, name: LaneName) {
        let last = self.lanes.get(&name).map_or(Duration::ZERO, |lane| lane.last_answer);
        let at = self.moment_after(last);
        let Some(lane) = self.lanes.get_mut(&name) else { return };
        lane.last_answer = at;
        let connection = lane.connection;
        self.schedule(at, Due::Answer(name, connection));
    }

    /// Draws the moment at which an operation that departs now has crossed the network. The moment is at
    /// least a little after `last`, that of the operation before, so that a domain may poll between the two.
    fn moment_after(&mut self, last: Duration) -> Duration {
        let at = self.now + self.delay();
        if at > last {
            return at;
        }
        let spread = self.faults.delay_max.saturating_sub(self.faults.delay_min);
        last + self.random.between(Duration::ZERO, spread / GAPS_PER_SPREAD)
    }

    /// Whether nothing goes between the ends of a lane.
    pub(super) fn is_separated(&self, (near, far): LaneName) -> bool {
        self.partitions.contains(&pair(near.host(), far.host()))
    }

    /// Hands a report to the domain of `port`, if the endpoint is open.
    pub(super) fn report(&mut self, port: PortName, report: Report) {
        let Some(endpoint) = self.ports.get(&port) else { return };
        let Some(domain) = self.domains.get_mut(&endpoint.domain) else { return };
        let words = match report {
            Report::Done { index, len } => [1, index as u64, len as u64],
            Report::Failed { index, code } => [2, index as u64, code as u64],
            Report::Written { immediate, len } => [3, u64::from(immediate), len as u64],
        };
        for word in [self.now.as_nanos() as u64, port.0].into_iter().chain(words) {
            self.fingerprint = mix(self.fingerprint ^ word).wrapping_add(word);
        }
        domain.reports.push_back((port, report));
    }

    /// Returns the address of `len` bytes at `address` of the region `key` of the domain of `port`. `None`
    /// unless the bytes lie within a region that grants this access.
    pub(super) fn reach(
        &self,
        port: PortName,
        key: u64,
        address: u64,
        len: usize,
        may: impl Fn(Access) -> bool,
    ) -> Option<*mut u8> {
        let domain = self.domains.get(&self.ports.get(&port)?.domain)?;
        let region = domain.regions.get(&key).filter(|region| may(region.access))?;
        let start = usize::try_from(address).ok()?;
        let end = start.checked_add(len)?;
        // SAFETY: the start lies within the region, or right at its end.
        (end <= region.len).then(|| unsafe { region.base.as_ptr().add(start) })
    }
}

/// Returns the pair of two hosts, the smaller number first.
pub(super) fn pair(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}
