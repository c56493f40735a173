//! Memory network as its owner sees it.
//!
//! Owns the wires. Engine thread only. Invariant: the wires are borrowed for one call at a time, and run no
//! foreign code.

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use super::NAME;
use super::faults::Faults;
use super::wires::Wires;

/// Network in memory, for hosts that live in one thread of one process. Clones are cheap and stand for one
/// network.
///
/// [`MemoryNetwork::provider`] gives each host a provider, which is opened and used as any other. Time is
/// virtual: nothing arrives except in [`MemoryNetwork::advance`], and the next
/// [`Domain::poll`](crate::Domain::poll) sees it. All events follow from the seed, the [`Faults`] and the
/// order of all calls.
///
/// A simulation polls all domains, lets their tasks run until nothing happens any more, and then advances to
/// [`MemoryNetwork::next_due`] or to its own next timer, whichever is earlier.
///
/// A host serves its peers' reads and writes whether or not it polls, as a network card would. A host that is
/// separated from others acts like one that hangs.
#[derive(Clone)]
pub struct MemoryNetwork {
    name: Rc<str>,
    wires: Rc<RefCell<Wires>>,
}

impl MemoryNetwork {
    /// Makes a network without hosts, at the time zero.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self::named(NAME, seed, faults)
    }

    /// Makes a network as [`MemoryNetwork::new`] does, whose providers have this name. A host that is on
    /// several networks tells them apart by the name.
    pub fn named(name: &str, seed: u64, faults: Faults) -> Self {
        MemoryNetwork { name: name.into(), wires: Rc::new(RefCell::new(Wires::new(seed, faults))) }
    }

    /// Returns the name of the network's providers.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Changes some of the delays and faults, for operations that are posted or arrive from now on.
    pub fn change_faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.wires().faults);
    }

    /// Replaces the delays and faults for operations that are posted or arrive from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.wires().faults = faults;
    }

    /// Moves the time to `now`, and delivers in order the events that are due until then. A time that has
    /// passed delivers the events that are due at the present.
    pub fn advance(&self, now: Duration) {
        self.wires().advance(now);
    }

    /// Returns the present time of the network.
    pub fn now(&self) -> Duration {
        self.wires().now
    }

    /// Returns the time at which the next event is due. `None` if nothing is under way, or if partitions hold
    /// everything back. The event may turn out to be void.
    pub fn next_due(&self) -> Option<Duration> {
        self.wires().schedule.keys().next().map(|(at, _)| *at)
    }

    /// Separates two hosts, or joins them again. Nothing goes between separated hosts, and nothing is lost:
    /// operations wait until the hosts are joined, or fail after [`Faults::patience`]. A connection that one
    /// side has given up or closed meanwhile is broken for the other when the hosts are joined. A host may be
    /// separated from itself.
    pub fn partition(&self, a_host: u32, b_host: u32, separated: bool) {
        self.wires().partition(a_host, b_host, separated);
    }

    /// Breaks all connections between two hosts. Of the operations under way, a prefix of each direction of
    /// each connection arrives, and all operations fail, also those whose message or data has arrived. Each
    /// side notices after a delay of its own; later operations make new connections.
    pub fn cut(&self, a_host: u32, b_host: u32) {
        self.wires().cut(a_host, b_host);
    }

    /// Has writes that have come by broken connections land now, however late they are
    /// ([`Faults::late_write_max`]).
    pub fn land_late_writes(&self) {
        self.wires().land_late_writes();
    }

    /// Kills a host, as if its process had died. The domains of the host never learn anything again, and may
    /// be dropped at any time. Operations of its peers fail after a delay, and later operations find no
    /// host. A domain that is opened afterwards on a provider of the same host is the host's next life.
    pub fn kill(&self, host: u32) {
        self.wires().kill(host);
    }

    /// Returns a digest of everything that was reported to domains so far, with the times. Equal runs have
    /// equal digests.
    pub fn fingerprint(&self) -> u64 {
        self.wires().fingerprint
    }

    /// Borrows the state of the network.
    pub(super) fn wires(&self) -> RefMut<'_, Wires> {
        self.wires.borrow_mut()
    }
}

impl fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNetwork").field("now", &self.now()).finish_non_exhaustive()
    }
}
