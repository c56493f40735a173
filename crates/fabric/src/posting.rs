//! Hands operations to the provider, or keeps them in order until it will take them.
//!
//! Owns the open endpoints of a domain with their queues. Engine thread only; called with the domain's
//! state borrowed, so nothing here runs foreign code: what failed is returned, to be finished outside.
//! Invariants: an operation is posted only when nothing older waits for the same endpoint and peer;
//! `Stats::queued` counts exactly what lies in the queues.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::domain::{Handle, State, Stats};
use crate::endpoint::EndpointId;
use crate::error::{FabricError, describe, positive};
use crate::ffi;
use crate::operation::{OpKind, Operation, Table};
use crate::peer::{Peer, Peers, Retry, Target};

const TRY_AGAIN: i64 = -(libc::EAGAIN as i64);

/// An operation that the provider refused for good, with the reason.
pub(crate) type Refused = (Operation, FabricError);

/// An open endpoint.
pub(crate) struct EndpointState {
    // Closed in this order.
    pub(crate) ep: Handle<ffi::fid_ep>,
    /// The addresses of its peers. Not shared with other endpoints: forgetting an address closes the
    /// connections to it of every endpoint that uses the vector.
    pub(crate) addresses: Handle<ffi::fid_av>,
    pub(crate) peers: Peers,
    /// Peers with a queue.
    pub(crate) blocked: Vec<Peer>,
    /// Receive buffers that the provider has no room for.
    receives: VecDeque<usize>,
    receive_retry: Retry,
    /// Addresses to be forgotten when no read from them is under way.
    pub(crate) leaving: Vec<u64>,
    /// Dropped by its owner; to be closed when no read is under way.
    pub(crate) closing: bool,
}

impl EndpointState {
    /// What was queued has been taken out of the table.
    pub(crate) fn forget_queues(&mut self) {
        self.peers = Peers::default();
        self.blocked.clear();
        self.receives.clear();
    }
}

/// The open endpoints of a domain.
#[derive(Default)]
pub(crate) struct Endpoints {
    open: BTreeMap<EndpointId, EndpointState>,
    next: u32,
}

impl Endpoints {
    pub(crate) fn insert(&mut self, ep: Handle<ffi::fid_ep>, addresses: Handle<ffi::fid_av>) -> EndpointId {
        let id = EndpointId(self.next);
        self.next += 1;
        let state = EndpointState {
            ep,
            addresses,
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

    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut EndpointState> {
        self.open.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: EndpointId) -> Option<EndpointState> {
        self.open.remove(&id)
    }

    pub(crate) fn ids(&self) -> Vec<EndpointId> {
        self.open.keys().copied().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The number that the next endpoint gets.
    pub(crate) fn next_id(&self) -> u32 {
        self.next
    }

    /// The number of the oldest endpoint that is open.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.open.keys().next().map(|id| id.0)
    }

    /// Time until the first queue should be tried again.
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

/// What became of an attempt to post.
pub(crate) enum Outcome {
    Posted,
    Again,
    Refused(i64),
}

impl Outcome {
    pub(crate) fn is_posted(&self) -> bool {
        matches!(self, Outcome::Posted)
    }

    fn is_refused(&self) -> bool {
        matches!(self, Outcome::Refused(_))
    }
}

impl State {
    /// Posts a new operation, or queues it behind older ones.
    pub(crate) fn submit(&mut self, operation: Operation) -> Option<Refused> {
        let State { operations, endpoints, stats, .. } = self;
        let kind = operation.kind();
        let Some(endpoint) = endpoints.get_mut(operation.endpoint) else {
            return Some((operation, FabricError::Closed { operation: kind }));
        };
        let mut of_nobody = false;
        let (target, queue, retry, refused) = match operation.peer {
            None => (Target::ANYONE, &mut endpoint.receives, &mut endpoint.receive_retry, &mut of_nobody),
            Some(peer) => match endpoint.peers.get_mut(peer) {
                Some(state) => (state.target, &mut state.queue, &mut state.retry, &mut state.refused),
                None => {
                    let text = "it has been disconnected".to_owned();
                    return Some((operation, FabricError::PeerGone { operation: kind, text }));
                }
            },
        };
        let peer = operation.peer;
        let index = operations.insert(operation);
        if !queue.is_empty() {
            queue.push_back(index);
            stats.queued += 1;
            return None;
        }
        let outcome = attempt(operations, stats, &endpoint.ep, target, index);
        *refused = outcome.is_refused();
        match outcome {
            Outcome::Posted => None,
            Outcome::Again => {
                queue.push_back(index);
                retry.refused(Instant::now());
                endpoint.blocked.extend(peer);
                stats.queued += 1;
                None
            }
            Outcome::Refused(code) => refuse(operations, stats, index, code),
        }
    }

    /// Tries the head of every queue that is due, and what follows it, until the provider says "try
    /// again". Returns the number posted, and what was refused.
    pub(crate) fn retry_queued(&mut self, now: Instant) -> (usize, Vec<Refused>) {
        let State { operations, endpoints, stats, .. } = self;
        let (mut posted, mut refused) = (0, Vec::new());
        for EndpointState { ep, peers, blocked, receives, receive_retry, .. } in endpoints.open.values_mut() {
            let mut flush = |target, queue: &mut VecDeque<usize>, retry: &mut Retry, none: &mut bool| {
                while let Some(index) = queue.front().copied().filter(|_| retry.is_due(now)) {
                    let outcome = attempt(operations, stats, ep, target, index);
                    *none = outcome.is_refused();
                    match outcome {
                        Outcome::Posted => posted += 1,
                        Outcome::Again => return retry.refused(now),
                        Outcome::Refused(code) => {
                            refused.extend(refuse(operations, stats, index, code));
                        }
                    }
                    queue.pop_front();
                    stats.queued -= 1;
                    retry.encourage();
                }
            };
            flush(Target::ANYONE, receives, receive_retry, &mut false);
            blocked.retain(|peer| match peers.get_mut(*peer) {
                Some(state) => {
                    flush(state.target, &mut state.queue, &mut state.retry, &mut state.refused);
                    !state.queue.is_empty()
                }
                None => false,
            });
        }
        (posted, refused)
    }

    /// An operation of this endpoint and peer has come back, so there is room for another.
    pub(crate) fn encourage(&mut self, endpoint: EndpointId, peer: Option<Peer>) {
        let Some(endpoint) = self.endpoints.get_mut(endpoint) else { return };
        match peer {
            None => endpoint.receive_retry.encourage(),
            Some(peer) => {
                if let Some(state) = endpoint.peers.get_mut(peer) {
                    state.retry.encourage();
                }
            }
        }
    }
}

/// One call of the provider for the operation at `index`.
pub(crate) fn attempt(
    operations: &mut Table,
    stats: &mut Stats,
    ep: &Handle<ffi::fid_ep>,
    target: Target,
    index: usize,
) -> Outcome {
    let context = operations.context(index);
    let Some(operation) = operations.get_mut(index) else {
        return Outcome::Refused(-i64::from(libc::EINVAL));
    };
    // SAFETY: the endpoint is open as long as its state; context and slice stay in the table until the
    // completion, or until the endpoint has been closed.
    match unsafe { operation.post(ep.pointer(), target.address, context) } {
        Ok(()) => {
            operation.posted = Some(target);
            *match operation.kind() {
                OpKind::Send => &mut stats.sends,
                OpKind::Read => &mut stats.reads,
                OpKind::Write => &mut stats.writes,
                OpKind::Receive | OpKind::Slice => &mut stats.receives,
            } += 1;
            Outcome::Posted
        }
        Err(TRY_AGAIN) => {
            stats.retries += 1;
            Outcome::Again
        }
        Err(code) => Outcome::Refused(code),
    }
}

/// Takes a refused operation out of the table.
fn refuse(operations: &mut Table, stats: &mut Stats, index: usize, code: i64) -> Option<Refused> {
    let operation = operations.remove(index)?;
    stats.failed += 1;
    let code = positive(code);
    let error = FabricError::operation(operation.kind(), code, describe(code), operation.slice.len());
    Some((operation, error))
}
