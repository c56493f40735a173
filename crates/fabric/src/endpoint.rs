//! Endpoints, where operations are made and checked.
//!
//! Owns an endpoint's address and number; the domain's state owns the rest of an endpoint. Engine thread
//! only. Invariants: operations are handed to the provider in order for each peer; every range is checked
//! against its region before it is handed on. [`Domain::endpoint`] is here rather than in `domain`, because
//! an endpoint holds its domain and the domain does not know the type.

use std::fmt;

use crate::access::RemoteRegion;
use crate::closing::Ended;
use crate::domain::Domain;
use crate::error::FabricError;
use crate::memory::{Slice, check_range};
use crate::memory_network;
use crate::names::{EndpointId, OpKind, Peer};
use crate::operation::{Completion, Immediate, Op, Operation, Request};
use crate::provider::Origin;
use crate::state::{EndpointState, State};

/// Longest message, in bytes, that ofi_rxm copies into its buffers. The receiver reads longer messages.
const LAYERED_EAGER_BYTES: usize = 16 << 10;

/// Reliable-datagram endpoint, with one address and any number of peers.
///
/// Dropping an endpoint ends its operations with [`FabricError::Closed`], closes the endpoint, and releases
/// the operations' buffers. With the tcp of libfabric 1.17, closing and releasing wait for reads under way,
/// and happen in a later [`Domain::poll`].
pub struct Endpoint {
    domain: Domain,
    id: EndpointId,
    address: Vec<u8>,
}

impl Domain {
    /// Opens an endpoint. All endpoints of a domain (for example one for small and one for bulk data) share
    /// its completion queue.
    pub fn endpoint(&self) -> Result<Endpoint, FabricError> {
        Endpoint::open(self)
    }
}

impl Endpoint {
    fn open(domain: &Domain) -> Result<Endpoint, FabricError> {
        let inner = domain.inner();
        let (port, address) = inner.link.port(&inner.provider)?;
        let id = inner.state.borrow_mut().endpoints.insert(port);
        Ok(Endpoint { domain: domain.clone(), id, address })
    }

    /// Returns the number of the endpoint, as events name it.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Returns the domain that the endpoint belongs to.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Returns the fabric address of the endpoint: the bytes that a peer passes to its [`Endpoint::connect`].
    pub fn address(&self) -> Vec<u8> {
        self.address.clone()
    }

    /// Returns the length of the longest message or one-sided operation, in bytes.
    pub fn max_message(&self) -> usize {
        self.domain.provider().max_message()
    }

    /// Returns the length in bytes up to which the provider sends a message without the delay of a
    /// completion.
    pub fn inject_size(&self) -> usize {
        self.domain.provider().inject_size()
    }

    /// Returns the length in bytes up to which messages of one endpoint to one peer arrive in the order in
    /// which they were sent, without a further round trip. A longer message may be overtaken by later ones.
    pub fn eager_size(&self) -> usize {
        match self.domain.provider().is_layered() {
            true => LAYERED_EAGER_BYTES,
            false => self.inject_size(),
        }
    }

    /// Adds a peer by the address that its [`Endpoint::address`] returned. The first operation makes the
    /// connection to the peer, and waits for it.
    ///
    /// Connecting twice to one address adds two peers that share a connection. Disconnecting one of them ends
    /// the operations that the other has under way, though not its later operations.
    pub fn connect(&self, address: &[u8]) -> Result<Peer, FabricError> {
        self.check_address(address)?;
        let mut state = self.domain.inner().state.borrow_mut();
        let Some(endpoint) = state.endpoints.get_mut(self.id) else {
            return Err(FabricError::Closed { operation: OpKind::Send });
        };
        match endpoint.port.insert_address(address) {
            Ok(entry) => Ok(endpoint.peers.insert(self.id, entry, address)),
            Err(0) => Err(self.invalid_address("the provider does not take it".to_owned())),
            Err(code) => Err(FabricError::call("fi_av_insert", code)),
        }
    }

    /// Forgets a peer and closes the connection to it. All operations towards the peer end at once with
    /// [`FabricError::PeerGone`]. Buffers that the provider already has are kept until it releases them,
    /// which a later [`Domain::poll`] finds out. With the tcp of libfabric 1.17, reads that are under way
    /// delay the closing and the release until the peer answers them or its connection breaks.
    pub fn disconnect(&self, peer: Peer) {
        self.part(peer, false);
    }

    /// Disconnects, as [`Endpoint::disconnect`] does, a peer that may be sending messages longer than
    /// [`Endpoint::eager_size`]. With the tcp of libfabric 1.17 the connection stays open until the peer
    /// closes it: see [`Endpoint::receive`].
    pub fn shun(&self, peer: Peer) {
        self.part(peer, true);
    }

    /// Forgets a peer. A `shunned` peer keeps its connection where closing it might crash the provider.
    fn part(&self, peer: Peer, shunned: bool) {
        let inner = self.domain.inner();
        let mut state = inner.state.borrow_mut();
        let State { operations, endpoints, stats, .. } = &mut *state;
        let Some(endpoint) = endpoints.get_mut(self.id).filter(|_| peer.endpoint == self.id) else {
            return;
        };
        let Some(gone) = endpoint.peers.remove(peer) else { return };
        endpoint.blocked.retain(|blocked| *blocked != peer);
        let queued: Vec<_> = gone.queue.iter().filter_map(|it| operations.remove(*it)).collect();
        stats.queued -= queued.len() as u64;
        stats.failed += queued.len() as u64;
        let waiters = operations.waiters(|operation| operation.peer == Some(peer));
        if !(shunned && inner.provider.must_read_to_the_end()) {
            state.forget(&inner.provider, self.id, &gone);
        }
        drop(state);
        let ended = Ended { operations: queued, waiters };
        ended.finish(|operation| FabricError::PeerGone { operation, text: "it was disconnected".to_owned() });
    }

    /// Posts a buffer for one message from any peer. The buffer comes back in an [`Event`](crate::Event).
    /// Buffers are used in the order in which they are posted.
    ///
    /// With the tcp of libfabric 1.17, peers are to keep to [`Endpoint::eager_size`]: the provider fetches
    /// longer messages with reads of its own, and may crash if a connection is closed during such a read.
    pub fn receive(&self, slice: Slice) -> Result<(), FabricError> {
        self.check_domain(OpKind::Receive, &slice)?;
        let operation = Operation {
            request: Request::Receive,
            endpoint: self.id,
            peer: None,
            slice,
            shared: None,
            posted: None,
        };
        let mut state = self.domain.inner().state.borrow_mut();
        match state.submit(operation) {
            None => Ok(()),
            Some((operation, error)) => {
                drop(state);
                operation.finish(Ok(()));
                Err(error)
            }
        }
    }

    /// Sends a message. The future resolves when the buffer may be used again. The message may still get lost
    /// if the connection breaks, so a caller that needs an answer has to wait for the answer, with a
    /// deadline.
    ///
    /// A message longer than [`Endpoint::eager_size`] is read from the slice by the receiver. On verbs, the
    /// slice then has to lie in a region with [`Access::remote_read`](crate::Access::remote_read).
    pub fn send(&self, peer: Peer, slice: Slice) -> Op {
        let provider = self.domain.provider();
        let uses_region = provider.uses_local_regions();
        let readable = slice.region().access().remote_read;
        let (len, limit) = (slice.len(), self.eager_size());
        if provider.is_layered() && uses_region && !readable && len > limit {
            return Op::failed(FabricError::TooLong { operation: OpKind::Send, len, limit });
        }
        self.operate(peer, slice, Request::Send)
    }

    /// Reads `into.len()` bytes at `offset` of the peer's region `from`.
    pub fn read(&self, peer: Peer, into: Slice, from: RemoteRegion, offset: u64) -> Op {
        match remote_address(OpKind::Read, from, offset, into.len()) {
            Ok(address) => self.operate(peer, into, Request::Read { address, key: from.key }),
            Err(error) => Op::failed(error),
        }
    }

    /// Writes all of `from` to the peer's region `to` at `offset`. The future resolves when the data is at
    /// the peer.
    ///
    /// With an immediate value, the peer gets an [`Event::RemoteWrite`](crate::Event::RemoteWrite). Over tcp,
    /// the value follows the data in a write of its own, which costs another round trip. Over verbs, a write
    /// with a value is refused: see [`Provider::carries_immediates`](crate::Provider::carries_immediates).
    pub fn write(
        &self,
        peer: Peer,
        from: Slice,
        to: RemoteRegion,
        offset: u64,
        immediate: Option<u32>,
    ) -> Op {
        let provider = self.domain.provider();
        if immediate.is_some() && !provider.carries_immediates() {
            let provider = provider.name().to_owned();
            return Op::failed(FabricError::Unsupported { provider, feature: "immediate data" });
        }
        let immediate = match immediate {
            None => Immediate::None,
            Some(value) if provider.must_split_writes() && !from.is_empty() => Immediate::After(value),
            Some(value) => Immediate::With(value),
        };
        self.write_as(peer, from, (to, offset), immediate, Completion::Acknowledged)
    }

    /// Writes all of `from` to the peer's region `to` at `offset`, for a message that follows by the same
    /// endpoint: if the message arrives by the same connection, the data has arrived before it. The future
    /// resolves when `from` may be used again. The data may still get lost if the connection breaks.
    ///
    /// Over tcp, the peer sends no acknowledgement, which would wake this side.
    pub fn hand_over(&self, peer: Peer, from: Slice, to: RemoteRegion, offset: u64) -> Op {
        self.write_as(peer, from, (to, offset), Immediate::None, Completion::HandedOver)
    }

    fn write_as(
        &self,
        peer: Peer,
        from: Slice,
        (to, offset): (RemoteRegion, u64),
        immediate: Immediate,
        completion: Completion,
    ) -> Op {
        match remote_address(OpKind::Write, to, offset, from.len()) {
            Ok(address) => {
                let request = Request::Write { address, key: to.key, immediate, completion };
                self.operate(peer, from, request)
            }
            Err(error) => Op::failed(error),
        }
    }

    /// Tries the connection to a peer by an empty write, if nothing else would tell that the connection is
    /// broken. Over verbs, a connection that the peer has closed while there was no link stays in use on this
    /// side until an operation fails. Until then, the peer's attempts to make a new connection are refused.
    ///
    /// The write costs the peer's processor nothing. `nothing` is an empty slice of a region of this domain.
    /// Returns `None`, without a write, if the provider reports connections that end, or if operations
    /// towards the peer wait for the provider to take them.
    pub fn probe(&self, peer: Peer, nothing: Slice) -> Option<Op> {
        let mut state = self.domain.inner().state.borrow_mut();
        let idle = |endpoint: &mut EndpointState| {
            endpoint.peers.get_mut(peer).is_some_and(|state| state.queue.is_empty())
        };
        if !self.domain.provider().breaks_connections()
            || !nothing.is_empty()
            || !state.endpoints.get_mut(self.id).is_some_and(idle)
        {
            return None;
        }
        drop(state);
        // The provider looks at no key of a write without bytes.
        let (immediate, completion) = (Immediate::None, Completion::Acknowledged);
        Some(self.operate(peer, nothing, Request::Write { address: 0, key: 0, immediate, completion }))
    }

    /// Checks and submits an operation towards a peer.
    fn operate(&self, peer: Peer, slice: Slice, request: Request) -> Op {
        let kind = request.kind();
        let (len, limit) = (slice.len(), self.max_message());
        if len > limit {
            return Op::failed(FabricError::TooLong { operation: kind, len, limit });
        }
        if let Err(error) = self.check_domain(kind, &slice) {
            return Op::failed(error);
        }
        if peer.endpoint != self.id {
            let text = "it belongs to another endpoint".to_owned();
            return Op::failed(FabricError::PeerGone { operation: kind, text });
        }
        let (op, shared) = Op::new();
        let operation = Operation {
            request,
            endpoint: self.id,
            peer: Some(peer),
            slice,
            shared: Some(shared),
            posted: None,
        };
        let failed = self.domain.inner().state.borrow_mut().submit(operation);
        if let Some((operation, error)) = failed {
            operation.finish(Err(error));
        }
        op
    }

    /// Checks that a slice is registered with this endpoint's domain. Another domain's region has no
    /// descriptor that this endpoint's provider could use.
    fn check_domain(&self, operation: OpKind, slice: &Slice) -> Result<(), FabricError> {
        if slice.region().is_registered_with(self.domain.inner()) {
            return Ok(());
        }
        Err(FabricError::Provider {
            operation: operation.to_string(),
            code: libc::EINVAL,
            name: "EINVAL",
            text: "the slice is registered with another domain".to_owned(),
        })
    }

    /// Checks that an address looks like an address of this endpoint's provider.
    fn check_address(&self, address: &[u8]) -> Result<(), FabricError> {
        if address.len() != self.address.len() {
            let (found, wanted) = (address.len(), self.address.len());
            return Err(self.invalid_address(format!("{found} bytes instead of {wanted}")));
        }
        let fault = match self.domain.provider().origin() {
            Origin::Libfabric(info) => info.address_fault(&self.address, address),
            Origin::Memory(..) => memory_network::address_fault(address),
        };
        fault.map_or(Ok(()), |fault| Err(self.invalid_address(fault.to_owned())))
    }

    /// Returns the error for a peer's address that cannot be used, with the reason.
    fn invalid_address(&self, reason: String) -> FabricError {
        FabricError::InvalidAddress { provider: self.domain.provider().name().to_owned(), reason }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let inner = self.domain.inner();
        let ended = inner.state.borrow_mut().close(&inner.provider, self.id);
        ended.finish(|operation| FabricError::Closed { operation });
        self.domain.release_retired();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Returns the address of `offset` in a peer's region. Fails unless `len` bytes at `offset` lie within the
/// region.
fn remote_address(
    operation: OpKind,
    region: RemoteRegion,
    offset: u64,
    len: usize,
) -> Result<u64, FabricError> {
    check_range(operation, offset, len as u64, region.len)?;
    check_range(operation, region.base, offset + len as u64, u64::MAX)?;
    Ok(region.base + offset)
}
