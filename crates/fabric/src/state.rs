//! The state of an open domain: its counters, operations, endpoints and retired memory.
//!
//! Owns the open endpoints with their queues, and memory that a peer may still be writing to. Engine thread
//! only. The state lies in a `RefCell` of the domain, and is never borrowed while foreign code runs: values
//! to be finished or released are returned. Invariant: the numbers of endpoints grow. `posting` and
//! `closing` say what happens to the state.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::memory::Memory;
use crate::names::{EndpointId, Peer};
use crate::peer::{Peers, Retry};
use crate::port::Port;
use crate::table::Table;

/// Statistics of a domain: counters since it was opened, and gauges of the present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of registrations made.
    pub registrations: u64,
    /// Number of regions that are registered now.
    pub regions: u64,
    /// Number of bytes of the regions that are registered now.
    pub registered_bytes: u64,
    /// Number of bytes of dropped regions whose memory is kept because a peer may still be using it.
    pub retired_bytes: u64,
    /// Number of messages handed to the provider.
    pub sends: u64,
    /// Number of receive buffers handed to the provider.
    pub receives: u64,
    /// Number of messages that came in.
    pub received: u64,
    /// Number of reads handed to the provider.
    pub reads: u64,
    /// Number of writes handed to the provider.
    pub writes: u64,
    /// Number of operations that succeeded.
    pub completed: u64,
    /// Number of operations that failed.
    pub failed: u64,
    /// Number of times that the provider said "try again".
    pub retries: u64,
    /// Number of operations that are queued or under way, receive buffers included.
    pub in_flight: u64,
    /// Number of operations that are queued, because the provider has not taken them yet.
    pub queued: u64,
}

/// State of a domain.
#[derive(Default)]
pub(crate) struct State {
    /// Operations that are not finished.
    pub(crate) operations: Table,
    /// Endpoints that are open.
    pub(crate) endpoints: Endpoints,
    /// Statistics. The gauges `in_flight` and `retired_bytes` are computed when they are asked for.
    pub(crate) stats: Stats,
    /// Number of connections and endpoints whose closing has been put off.
    pub(crate) lingering: usize,
    /// Memory of dropped regions that peers may still be writing to.
    retired: Vec<Retired>,
}

/// Memory of a dropped region that a peer may still be writing to.
pub(crate) struct Retired {
    memory: Rc<dyn Memory>,
    /// Limit of endpoint numbers: the memory is kept until every endpoint numbered below it is closed.
    /// Without a limit, the memory is kept until the domain is closed.
    endpoints_below: Option<u32>,
}

impl State {
    /// Returns the number of bytes of retired memory.
    pub(crate) fn retired_bytes(&self) -> u64 {
        self.retired.iter().map(|it| it.memory.len() as u64).sum()
    }

    /// Keeps `memory` until the domain is closed.
    pub(crate) fn retire_for_good(&mut self, memory: Rc<dyn Memory>) {
        self.retired.push(Retired { memory, endpoints_below: None });
    }

    /// Keeps `memory` until the endpoints that are open now are closed.
    pub(crate) fn retire(&mut self, memory: Rc<dyn Memory>) {
        let endpoints_below = Some(self.endpoints.next_id());
        // Memory that was registered several times is kept once.
        let same = |it: &Retired| Rc::as_ptr(&it.memory).cast::<()>() == Rc::as_ptr(&memory).cast::<()>();
        self.retired.retain(|it| it.endpoints_below.is_none() || !same(it));
        self.retired.push(Retired { memory, endpoints_below });
    }

    /// Takes out the retired memory that no open endpoint can still touch. The caller drops the memory with
    /// no borrow of the state.
    pub(crate) fn release_retired(&mut self) -> Vec<Retired> {
        let oldest = self.endpoints.oldest();
        self.retired
            .extract_if(.., |it| match it.endpoints_below {
                Some(limit) => oldest.is_none_or(|oldest| oldest >= limit),
                None => false,
            })
            .collect()
    }
}

/// State of an open endpoint.
pub(crate) struct EndpointState {
    /// Endpoint at the transport, with the addresses of its peers.
    pub(crate) port: Port,
    /// Peers that the endpoint has connected to.
    pub(crate) peers: Peers,
    /// Peers with operations in their queues.
    pub(crate) blocked: Vec<Peer>,
    /// Indices of the receive buffers that the provider has no room for, oldest first.
    pub(crate) receives: VecDeque<usize>,
    /// Schedule of the attempts to post the head of `receives`.
    pub(crate) receive_retry: Retry,
    /// Entries of addresses that are to be forgotten when no read from them is under way.
    pub(crate) leaving: Vec<u64>,
    /// Whether the owner has dropped the endpoint, which is then closed when no read is under way.
    pub(crate) closing: bool,
}

impl EndpointState {
    /// Forgets the peers and all queues, after the queued operations have been taken out of the table.
    pub(crate) fn forget_queues(&mut self) {
        self.peers = Peers::default();
        self.blocked.clear();
        self.receives.clear();
    }
}

/// Table of the open endpoints of a domain.
#[derive(Default)]
pub(crate) struct Endpoints {
    open: BTreeMap<EndpointId, EndpointState>,
    next: u32,
}

impl Endpoints {
    /// Adds an endpoint, and returns its number.
    pub(crate) fn insert(&mut self, port: Port) -> EndpointId {
        let id = EndpointId(self.next);
        self.next += 1;
        let state = EndpointState {
            port,
            peers: Peers::default(),
            blocked: Vec::new(),
            receives: VecDeque::new(),
            receive_retry: Retry::default(),
            leaving: Vec::new(),
            closing: false,
        };
        self.open.insert(id, state);
        id
    }

    /// Returns the state of an endpoint, if the endpoint is open.
    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut EndpointState> {
        self.open.get_mut(&id)
    }

    /// Takes out the state of an endpoint. Dropping the state closes the endpoint.
    pub(crate) fn remove(&mut self, id: EndpointId) -> Option<EndpointState> {
        self.open.remove(&id)
    }

    /// Returns the numbers of all open endpoints, oldest first.
    pub(crate) fn ids(&self) -> Vec<EndpointId> {
        self.open.keys().copied().collect()
    }

    /// Returns the states of all open endpoints, oldest first.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut EndpointState> {
        self.open.values_mut()
    }

    /// Whether no endpoint is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the number that the next endpoint will have.
    pub(crate) fn next_id(&self) -> u32 {
        self.next
    }

    /// Returns the number of the oldest open endpoint.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.open.keys().next().map(|id| id.0)
    }

    /// Returns the time until the first blocked queue is to be tried again. `None` if no queue is blocked.
    pub(crate) fn next_retry(&mut self, now: Instant) -> Option<Duration> {
        let mut soonest: Option<Duration> = None;
        let mut consider = |wait: Duration| soonest = Some(soonest.map_or(wait, |it| it.min(wait)));
        for endpoint in self.open.values_mut() {
            if !endpoint.receives.is_empty() {
                consider(endpoint.receive_retry.wait(now));
            }
            for peer in &endpoint.blocked {
                if let Some(state) = endpoint.peers.get_mut(*peer) {
                    consider(state.retry.wait(now));
                }
            }
        }
        soonest
    }
}
