//! Closes connections and endpoints, and replaces broken connections.
//!
//! Owns no state: the functions work on the domain's [`State`]. Engine thread only. The caller has borrowed
//! the state, so values to be released are returned. Invariants: the buffers of an endpoint's operations are
//! released only after the transport has closed the endpoint; with [`Provider::must_read_to_the_end`], no
//! connection is closed on which a read is under way.
//!
//! The second invariant is for the tcp of libfabric 1.17. That version corrupts its memory and then crashes
//! when a connection is closed with part of a read's answer received (pull request 8656 of libfabric,
//! released in 1.18). With 1.17, futures still end at once, but the connection and the buffers are kept until
//! the answer is complete or the connection breaks. To hurry the end, the peer is sent a write that it must
//! refuse, and closes the connection. If the peer's host is gone, TCP gives up on the write after a while.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::error::FabricError;
use crate::names::{EndpointId, OpKind, Peer, Target};
use crate::operation::{Completion, Immediate, Operation, Request, Shared};
use crate::peer::PeerState;
use crate::posting::attempt;
use crate::provider::Provider;
use crate::state::{EndpointState, State};

/// Operations and futures that have ended, to be finished with no borrow of the state.
#[derive(Default)]
pub(crate) struct Ended {
    /// Operations that the provider does not have any more.
    pub(crate) operations: Vec<Operation>,
    /// Futures of operations that the provider may still have.
    pub(crate) waiters: Vec<(OpKind, Rc<Shared>)>,
}

impl Ended {
    /// Finishes all operations and futures. `error` makes the error of each from its kind. The call runs
    /// foreign code, so the caller holds no borrow of the domain's state.
    pub(crate) fn finish(self, error: impl Fn(OpKind) -> FabricError) {
        for (kind, waiter) in self.waiters {
            waiter.resolve(Err(error(kind)));
        }
        for operation in self.operations {
            let kind = operation.kind();
            operation.finish(Err(error(kind)));
        }
    }
}

impl State {
    /// Forgets the address of the removed peer `gone` and closes the connection to it, once that is harmless.
    /// An address stays in the address vector until the vector is closed if no connection to it could even be
    /// begun (there is no route, or the device is gone), or if an operation waits for one: ofi_rxm (1.17 to
    /// 2.6 at least) crashes when it is to close a connection that it has not opened. It has none when the
    /// peer has rejected it, since both sides connected at the same time, and is yet to connect itself.
    pub(crate) fn forget(&mut self, provider: &Provider, endpoint: EndpointId, gone: &PeerState) {
        let address = gone.target.address;
        if (gone.refused || !gone.queue.is_empty()) && provider.is_layered() {
            return;
        }
        if provider.must_read_to_the_end() && self.is_reading(endpoint, Some(address)) {
            self.hurry(endpoint, address);
            if let Some(endpoint) = self.endpoints.get_mut(endpoint) {
                endpoint.leaving.push(address);
                self.lingering += 1;
            }
        } else if let Some(endpoint) = self.endpoints.get_mut(endpoint) {
            endpoint.port.remove_address(address);
        }
    }

    /// Closes the connection `posted` to a peer, on which an operation has failed and which stays broken, so
    /// that the next operation makes a new connection. All other operations on the connection fail now as
    /// well.
    pub(crate) fn renew(&mut self, peer: Peer, posted: Target) {
        let Some(endpoint) = self.endpoints.get_mut(peer.endpoint).filter(|it| !it.closing) else { return };
        let Some(state) = endpoint.peers.get_mut(peer).filter(|state| state.target == posted) else { return };
        if state.refused {
            // There is no connection any more.
            return;
        }
        // The new entry is inserted before the old one is removed: as long as the vector has an entry of the
        // address, the number of the entry stays the peer's.
        match endpoint.port.insert_address(&state.name) {
            Ok(address) => {
                endpoint.port.remove_address(state.target.address);
                state.target = Target { address, connection: posted.connection.wrapping_add(1) };
                tracing::debug!(?peer, "the connection is broken; the next operation makes a new one");
            }
            Err(code) => {
                let error = FabricError::call("fi_av_insert", code);
                tracing::warn!(?peer, %error, "a broken connection cannot be made anew");
            }
        }
    }

    /// Closes an endpoint that its owner has dropped, once that is harmless. Returns the futures of its
    /// operations, which end now.
    pub(crate) fn close(&mut self, provider: &Provider, id: EndpointId) -> Ended {
        let mut ended = Ended {
            operations: self.operations.remove_queued(id),
            waiters: self.operations.waiters(|operation| operation.endpoint == id),
        };
        self.stats.queued -= ended.operations.len() as u64;
        let Some(endpoint) = self.endpoints.get_mut(id) else { return ended };
        endpoint.forget_queues();
        if provider.must_read_to_the_end() && self.is_reading(id, None) {
            let reads = self.operations.posted_reads(id);
            let addresses: BTreeSet<u64> = reads.map(|(address, _)| address).collect();
            addresses.into_iter().for_each(|address| self.hurry(id, address));
            if let Some(endpoint) = self.endpoints.get_mut(id) {
                endpoint.closing = true;
                self.lingering += 1;
            }
        } else {
            ended.operations.extend(self.close_now(id));
        }
        ended
    }

    /// Closes the connections and endpoints whose closing was put off and is harmless by now. Returns the
    /// operations whose buffers may be released.
    pub(crate) fn settle(&mut self) -> Vec<Operation> {
        let mut released = Vec::new();
        for id in self.endpoints.ids() {
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            let closing = endpoint.closing;
            for address in std::mem::take(&mut endpoint.leaving) {
                let reading = self.is_reading(id, Some(address));
                let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
                if reading {
                    endpoint.leaving.push(address);
                } else {
                    endpoint.port.remove_address(address);
                    self.lingering -= 1;
                }
            }
            if closing && !self.is_reading(id, None) {
                released.extend(self.close_now(id));
                self.lingering -= 1;
            }
        }
        released
    }

    /// Closes an endpoint and its address vector. Returns the operations whose buffers may be released.
    fn close_now(&mut self, id: EndpointId) -> Vec<Operation> {
        let Some(endpoint) = self.endpoints.remove(id) else { return Vec::new() };
        let EndpointState { port, leaving, .. } = endpoint;
        self.lingering -= leaving.len();
        // From now on, the provider touches none of the endpoint's buffers.
        if !port.close() {
            // The provider might touch the buffers after all, so the operations stay in the table for ever.
            // Operations hold their regions, and regions hold the domain, so all of that is never freed.
            return Vec::new();
        }
        self.operations.remove_endpoint(id)
    }

    /// Whether a read is under way on an endpoint: from `address`, or from any address if that is `None`.
    fn is_reading(&self, endpoint: EndpointId, address: Option<u64>) -> bool {
        let mut reads = self.operations.posted_reads(endpoint);
        reads.any(|(from, _)| address.is_none_or(|address| address == from))
    }

    /// Makes the peer at `address` close the connection, by a write to a key that the peer does not have.
    fn hurry(&mut self, id: EndpointId, address: u64) {
        let State { operations, endpoints, stats, .. } = self;
        let Some(endpoint) = endpoints.get_mut(id) else { return };
        let mut reads = operations.posted_reads(id).filter(|(from, _)| *from == address);
        let Some(nothing) = reads.next().and_then(|(_, slice)| slice.slice(0, 0).ok()) else { return };
        drop(reads);
        let request = Request::Write {
            address: 0,
            key: u64::MAX,
            immediate: Immediate::None,
            completion: Completion::Acknowledged,
        };
        let index = operations.insert(Operation::internal(request, id, nothing));
        // If the write cannot be posted, the connection only closes later.
        let target = Target { address, connection: 0 };
        if !attempt(operations, stats, &endpoint.port, target, index).is_posted() {
            drop(operations.remove(index));
        }
    }
}
