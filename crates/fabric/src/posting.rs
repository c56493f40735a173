//! Hands operations to the provider, or queues them in order until the provider takes them.
//!
//! Owns no state: the functions work on the domain's [`State`]. Engine thread only. The caller has borrowed
//! the state, so nothing here runs foreign code: failed operations are returned, to be finished outside.
//! Invariants: an operation is posted only when no older one waits for the same endpoint and peer;
//! `Stats::queued` counts exactly the operations in the queues.

use std::collections::VecDeque;
use std::time::Instant;

use crate::error::{FabricError, describe, positive};
use crate::names::{EndpointId, OpKind, Peer, Target};
use crate::operation::Operation;
use crate::peer::Retry;
use crate::port::Port;
use crate::state::{EndpointState, State, Stats};
use crate::table::Table;

/// Code by which a provider says "try again".
const TRY_AGAIN: i64 = -(libc::EAGAIN as i64);

/// Operation that the provider refused for good, with the reason.
pub(crate) type Refused = (Operation, FabricError);

/// Outcome of an attempt to post an operation.
pub(crate) enum Outcome {
    /// The provider has taken the operation.
    Posted,
    /// The provider has no room, or no connection yet.
    Again,
    /// The provider refused the operation with this negative code.
    Refused(i64),
}

impl Outcome {
    /// Whether the provider has taken the operation.
    pub(crate) fn is_posted(&self) -> bool {
        matches!(self, Outcome::Posted)
    }

    /// Whether the provider refused the operation for good.
    fn is_refused(&self) -> bool {
        matches!(self, Outcome::Refused(_))
    }
}

impl State {
    /// Posts a new operation, or queues it behind older ones. Returns the operation if it failed.
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
        let outcome = attempt(operations, stats, &endpoint.port, target, index);
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

    /// Tries to post every queue that is due, from its head, until the provider says "try again". Returns the
    /// number of operations posted, and the operations that the provider refused.
    pub(crate) fn retry_queued(&mut self, now: Instant) -> (usize, Vec<Refused>) {
        let State { operations, endpoints, stats, .. } = self;
        let (mut posted, mut refused) = (0, Vec::new());
        for EndpointState { port, peers, blocked, receives, receive_retry, .. } in endpoints.iter_mut() {
            let mut flush = |target, queue: &mut VecDeque<usize>, retry: &mut Retry, none: &mut bool| {
                while let Some(index) = queue.front().copied().filter(|_| retry.is_due(now)) {
                    let outcome = attempt(operations, stats, port, target, index);
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

    /// Makes the next try of a queue due at once: the queue of `peer`, or else the endpoint's queue of
    /// receive buffers. To be called when an operation of that queue has come back, since there is then room
    /// for another.
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

/// Asks the provider once to take the operation at `index`.
pub(crate) fn attempt(
    operations: &mut Table,
    stats: &mut Stats,
    port: &Port,
    target: Target,
    index: usize,
) -> Outcome {
    let context = operations.context(index);
    let Some(operation) = operations.get_mut(index) else {
        return Outcome::Refused(-i64::from(libc::EINVAL));
    };
    // SAFETY: the endpoint is open as long as its state; context and slice stay in the table until the
    // completion, or until the endpoint has been closed.
    match unsafe { port.post(operation, target.address, index, context) } {
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

/// Takes the operation at `index`, which the provider refused with the negative `code`, out of the table.
fn refuse(operations: &mut Table, stats: &mut Stats, index: usize, code: i64) -> Option<Refused> {
    let operation = operations.remove(index)?;
    stats.failed += 1;
    let code = positive(code);
    let error = FabricError::operation(operation.kind(), code, describe(code), operation.slice.len());
    Some((operation, error))
}
