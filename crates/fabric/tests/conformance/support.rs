//! Parts that all tests use: mapped memory, a node with two lanes, and a loop that drives domains.

use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon_fabric::{
    Access, Domain, Endpoint, EndpointId, Event, FabricError, Memory, MemoryNetwork, Op, Provider, Region,
    Slice,
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Sizes in bytes around every known threshold, as far as the provider moves as much at once.
pub(crate) fn sizes(lane: &Endpoint) -> [usize; 8] {
    [0, 1, 4095, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, 1 << 20, (64 << 20) + 7]
        .map(|size| size.min(lane.max_message()))
}

/// Time after which a wait counts as a hang. The longest test takes a few seconds.
const HANG_PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// Address that nodes listen on.
pub(crate) fn source() -> String {
    variable("PLASMON_TEST_SOURCE", "127.0.0.1")
}

/// Whether the provider cannot close a connection during a read. The tcp of libfabric 1.17 would crash.
pub(crate) fn reads_to_the_end(provider: &Provider) -> bool {
    provider.name().starts_with("tcp") && plasmon_fabric::version() < (1, 18)
}

/// Makes nodes stop serving their peers, or serve them again. On real networks it is enough not to poll the
/// nodes. In memory all nodes of a test are on one host, which is separated from itself.
pub(crate) fn hang(provider: &Provider, hangs: bool) {
    if let Some(network) = provider.memory_network() {
        network.partition(0, 0, hangs);
    }
}

/// Pages that are unmapped when dropped, so that a later use is a crash rather than luck.
pub(crate) struct Pages {
    base: NonNull<u8>,
    len: usize,
}

impl Pages {
    pub(crate) fn new(len: usize) -> Rc<Pages> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) };
        let base = NonNull::new(base.expect("memory for the test").cast()).expect("mapped");
        Rc::new(Pages { base, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and not used any more.
        unsafe { munmap(self.base.as_ptr().cast(), self.len) }.expect("unmap");
    }
}

// SAFETY: base and length never change, the mapping is private to the value and lives as long, and no
// reference to its bytes is ever made.
unsafe impl Memory for Pages {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// Domain with a lane for small messages and a lane for bulk data.
pub(crate) struct Node {
    pub(crate) small: Endpoint,
    pub(crate) bulk: Endpoint,
    pub(crate) domain: Domain,
}

impl Node {
    pub(crate) fn new(provider: &Provider) -> Node {
        let domain = Domain::open(provider).expect("domain");
        let small = domain.endpoint().expect("small lane");
        let bulk = domain.endpoint().expect("bulk lane");
        Node { small, bulk, domain }
    }

    /// Maps and registers fresh memory of `len` bytes.
    pub(crate) fn memory(&self, len: usize, access: Access) -> Rc<Region> {
        self.domain.register(Pages::new(len.max(1)), access).expect("register")
    }

    /// Makes a slice of fresh memory that holds `bytes`.
    pub(crate) fn holding(&self, bytes: &[u8]) -> Slice {
        self.filled(bytes, Access::LOCAL)
    }

    /// Makes a slice of fresh memory that holds `bytes`, and that may be sent whatever its length.
    pub(crate) fn message(&self, bytes: &[u8]) -> Slice {
        self.filled(bytes, Access::REMOTE_READ)
    }

    fn filled(&self, bytes: &[u8], access: Access) -> Slice {
        let slice = whole(&self.memory(bytes.len(), access), bytes.len());
        slice.copy_from_slice(bytes).expect("fits");
        slice
    }

    /// Makes a slice of fresh memory, all zero.
    pub(crate) fn empty(&self, len: usize) -> Slice {
        whole(&self.memory(len, Access::LOCAL), len)
    }
}

/// First `len` bytes of a region, as a slice.
pub(crate) fn whole(region: &Rc<Region>, len: usize) -> Slice {
    region.slice(0, len).expect("within")
}

/// Returns bytes in which every position matters, and which are different for every seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Compares bytes without printing megabytes.
pub(crate) fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}: length");
    let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    assert_eq!(differs, None, "{what}: first byte that differs");
}

/// Driver that polls domains in turn and keeps their events.
pub(crate) struct Driver<'a> {
    domains: Vec<&'a Domain>,
    pub(crate) events: VecDeque<Event>,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(nodes: &[&'a Node]) -> Driver<'a> {
        Driver { domains: nodes.iter().map(|node| &node.domain).collect(), events: VecDeque::new() }
    }

    pub(crate) fn of(domains: &[&'a Domain]) -> Driver<'a> {
        Driver { domains: domains.to_vec(), events: VecDeque::new() }
    }

    /// Memory network of the domains, if they are on one.
    fn network(&self) -> Option<&'a MemoryNetwork> {
        self.domains.first().and_then(|domain| domain.provider().memory_network())
    }

    /// Polls each domain once. Before that, the time of a memory network moves to what is due next.
    pub(crate) fn step(&mut self) {
        if let Some(network) = self.network()
            && let Some(due) = network.next_due()
        {
            network.advance(due);
        }
        self.poll();
    }

    /// Polls each domain once, without moving any time.
    pub(crate) fn poll(&mut self) {
        let mut events = Vec::new();
        for domain in &self.domains {
            domain.poll(&mut events).expect("poll");
        }
        self.events.extend(events);
    }

    /// Polls until `done` returns something.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut VecDeque<Event>) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + HANG_PATIENCE;
        loop {
            self.step();
            let idle = self.network().is_some_and(|network| network.next_due().is_none());
            if let Some(value) = done(&mut self.events) {
                return value;
            }
            // Operations that `done` posted are due, or else nothing will ever be.
            let still = self.network().is_some_and(|network| network.next_due().is_none());
            assert!(!(idle && still), "nothing is under way: {what}");
            assert!(Instant::now() < deadline, "hangs: {what}");
        }
    }

    /// Polls for a while, to see things that should not happen.
    pub(crate) fn linger(&mut self, time: Duration) {
        if let Some(network) = self.network() {
            let end = network.now() + time;
            while network.next_due().is_some_and(|due| due <= end) {
                self.step();
            }
            return network.advance(end);
        }
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step();
        }
    }

    /// Waits for an operation, and returns its result.
    pub(crate) fn outcome(&mut self, op: &Op) -> Result<(), FabricError> {
        self.until("an operation", |_| op.result())
    }

    /// Waits for operations that have to succeed.
    pub(crate) fn succeed(&mut self, ops: &[Op]) {
        for op in ops {
            self.outcome(op).expect("operation");
        }
    }

    /// Waits for the next message, and returns the endpoint, the buffer and the message's bytes.
    pub(crate) fn message(&mut self) -> (EndpointId, Slice, Vec<u8>) {
        let event = self.until("a message", |events| events.pop_front());
        match event {
            Event::Received { endpoint, slice, len, .. } => {
                let mut bytes = slice.to_vec();
                bytes.truncate(len);
                (endpoint, slice, bytes)
            }
            other => panic!("expected a message, got {other:?}"),
        }
    }
}
