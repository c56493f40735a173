//! Endpoints: where operations are made and checked.
//!
//! Owns an endpoint's address and number; the domain's state owns the rest of it. Engine thread only.
//! Invariants: operations are handed to the provider in order for each peer; no range leaves this
//! module that has not been checked against its region. How things end is in `closing`.

use std::fmt;
use std::ptr;

use crate::closing::{Ended, insert_address};
use crate::domain::{Domain, Handle, State};
use crate::error::FabricError;
use crate::ffi;
use crate::memory::{RemoteRegion, Slice, check_range};
use crate::operation::{Immediate, Op, OpKind, Operation, Request};
use crate::peer::Peer;
use crate::posting::EndpointState;

/// ofi_rxm copies messages up to its buffer's size and lets the receiver read longer ones.
const LAYERED_EAGER_SIZE: usize = 16 << 10;
/// No fabric address is longer.
const LONGEST_ADDRESS: usize = 1024;

/// Tells the endpoints of a domain apart; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EndpointId(pub(crate) u32);

/// A reliable-datagram endpoint: one address, any number of peers. Dropping it ends its operations
/// with [`FabricError::Closed`], closes it, and releases their buffers; the last two wait, with the tcp
/// of libfabric 1.17, for reads under way, while the domain goes on being polled.
pub struct Endpoint {
    domain: Domain,
    id: EndpointId,
    address: Vec<u8>,
}

impl Endpoint {
    pub(crate) fn open(domain: &Domain) -> Result<Endpoint, FabricError> {
        let inner = domain.inner();
        let mut attributes = ffi::fi_av_attr { type_: ffi::fi_av_type_FI_AV_TABLE, ..Default::default() };
        // SAFETY: the domain is open; the attributes are only read.
        let addresses = Handle::open("fi_av_open", |av| unsafe {
            ffi::fi_av_open(inner.domain.as_ptr(), &mut attributes, av, ptr::null_mut())
        })?;
        // SAFETY: the domain is open and `info` is the one it was opened with.
        let ep = Handle::open("fi_endpoint", |ep| unsafe {
            let info = inner.provider.info();
            ffi::fi_endpoint(inner.domain.as_ptr(), info, ep, ptr::null_mut())
        })?;
        let check = |call, code: i32| match code {
            0 => Ok(()),
            code => Err(FabricError::locking(call, code, &inner.provider)),
        };
        // SAFETY: all three objects are open; the queue outlives the endpoint, which holds the domain,
        // and so does the address vector, which is closed after it.
        unsafe {
            let flags = ffi::PLASMON_TRANSMIT | ffi::PLASMON_RECV;
            check("fi_ep_bind", ffi::fi_ep_bind(ep.as_ptr(), addresses.fid(), 0))?;
            check("fi_ep_bind", ffi::fi_ep_bind(ep.as_ptr(), inner.queue.fid(), flags))?;
            check("fi_enable", ffi::fi_enable(ep.as_ptr()))?;
        }
        let mut address = vec![0; LONGEST_ADDRESS];
        let mut len = address.len();
        // SAFETY: the buffer has `len` bytes; libfabric stores the address's length.
        let code = unsafe { ffi::fi_getname(ep.fid(), address.as_mut_ptr().cast(), &mut len) };
        check("fi_getname", code)?;
        address.truncate(len);

        let id = inner.state.borrow_mut().endpoints.insert(ep, addresses);
        Ok(Endpoint { domain: domain.clone(), id, address })
    }

    /// Tells this endpoint's events from others'.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// The domain it belongs to.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The bytes that a peer passes to its `connect`.
    pub fn address(&self) -> Vec<u8> {
        self.address.clone()
    }

    /// The longest message or one-sided operation, in bytes.
    pub fn max_message(&self) -> usize {
        self.domain.provider().endpoint_attributes().max_msg_size
    }

    /// Up to this size (bytes) the provider sends without a completion's delay.
    pub fn inject_size(&self) -> usize {
        self.domain.provider().transmit_attributes().inject_size
    }

    /// Up to this size (bytes) messages of one endpoint to one peer arrive in the order in which they
    /// were sent, without a further round trip. A longer one may be overtaken by later ones.
    pub fn eager_size(&self) -> usize {
        match self.domain.provider().is_layered() {
            true => LAYERED_EAGER_SIZE,
            false => self.inject_size(),
        }
    }

    /// Makes a peer of an address that came from its [`Endpoint::address`]. The connection itself is
    /// made by the first operation, which waits for it.
    ///
    /// Connecting twice to one address makes two peers that share a connection: disconnecting one ends
    /// what the other has under way, though not what it does next.
    pub fn connect(&self, address: &[u8]) -> Result<Peer, FabricError> {
        self.check_address(address)?;
        let mut state = self.domain.inner().state.borrow_mut();
        let Some(endpoint) = state.endpoints.get_mut(self.id) else {
            return Err(FabricError::Closed { operation: OpKind::Send });
        };
        match insert_address(&endpoint.addresses, address) {
            Ok(entry) => Ok(endpoint.peers.insert(self.id, entry, address)),
            Err(0) => Err(self.invalid_address("the provider does not take it".to_owned())),
            Err(code) => Err(FabricError::call("fi_av_insert", code)),
        }
    }

    /// Forgets a peer and closes the connection to it. Everything towards it ends at once with
    /// [`FabricError::PeerGone`]; buffers that the provider already has are kept until it lets go, which
    /// a later [`Domain::poll`] finds out. With the tcp of libfabric 1.17, reads that are under way hold
    /// up both until the peer answers them or its connection breaks.
    pub fn disconnect(&self, peer: Peer) {
        self.part(peer, false);
    }

    /// As [`Endpoint::disconnect`], from a peer that may be sending messages longer than [`Endpoint::eager_size`].
    /// With the tcp of libfabric 1.17 the connection then stays open until the peer closes it: see
    /// [`Endpoint::receive`].
    pub fn shun(&self, peer: Peer) {
        self.part(peer, true);
    }

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

    /// Posts a buffer for one message from anyone; it comes back in an
    /// [`Event`](crate::Event). Buffers are used in the order in which they are posted.
    ///
    /// With the tcp of libfabric 1.17, have peers keep to [`Endpoint::eager_size`]: the provider fetches
    /// longer messages with reads of its own, and may crash if such a connection is closed meanwhile.
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

    /// Sends a message. Resolves when the buffer may be used again: the message may still get lost if
    /// the connection breaks, so whoever needs an answer has to wait for one, with a deadline.
    ///
    /// A message longer than [`Endpoint::eager_size`] is read from the slice by the receiver. On verbs
    /// that takes a region with [`Access::remote_read`](crate::Access::remote_read).
    pub fn send(&self, peer: Peer, slice: Slice) -> Op {
        let provider = self.domain.provider();
        let uses_region = provider.domain_attributes().mr_mode & ffi::PLASMON_MR_LOCAL != 0;
        let readable = slice.region().access().remote_read;
        let (len, limit) = (slice.len(), self.eager_size());
        if provider.is_layered() && uses_region && !readable && len > limit {
            return Op::failed(FabricError::TooLong { operation: OpKind::Send, len, limit });
        }
        self.operate(peer, slice, Request::Send)
    }

    /// Reads `into.len()` bytes at `offset` of a peer's region.
    pub fn read(&self, peer: Peer, into: Slice, from: RemoteRegion, offset: u64) -> Op {
        match remote_address(OpKind::Read, from, offset, into.len()) {
            Ok(address) => self.operate(peer, into, Request::Read { address, key: from.key }),
            Err(error) => Op::failed(error),
        }
    }

    /// Writes to a peer's region at `offset`. With an immediate value, the peer is told:
    /// [`Event::RemoteWrite`](crate::Event::RemoteWrite). Resolves when the data is at the peer. Over
    /// tcp, the value follows the data in a write of its own, which costs another round trip; over verbs it
    /// is refused ([`Provider::carries_immediates`](crate::Provider::carries_immediates)).
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
        match remote_address(OpKind::Write, to, offset, from.len()) {
            Ok(address) => self.operate(peer, from, Request::Write { address, key: to.key, immediate }),
            Err(error) => Op::failed(error),
        }
    }

    /// Tries the connection to a peer, if nothing else would tell that it is broken: over verbs, a connection
    /// that the peer has closed while there was no link is in use here until an operation fails, and as long
    /// as it is, the peer's attempts to make a new one are refused. Costs the peer's processor nothing.
    /// `nothing` is an empty slice of a region of this domain. Nothing is tried where a connection that ends says
    /// so by itself, or while operations wait for the provider to take them.
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
        // Without bytes, no key is looked at.
        Some(self.operate(peer, nothing, Request::Write { address: 0, key: 0, immediate: Immediate::None }))
    }

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

    /// A region registered elsewhere has no descriptor that this endpoint's provider could use.
    fn check_domain(&self, operation: OpKind, slice: &Slice) -> Result<(), FabricError> {
        if ptr::eq(slice.region().domain().inner(), self.domain.inner()) {
            return Ok(());
        }
        Err(FabricError::Provider {
            operation: operation.to_string(),
            code: libc::EINVAL,
            name: "EINVAL",
            text: "the slice is registered with another domain".to_owned(),
        })
    }

    fn check_address(&self, address: &[u8]) -> Result<(), FabricError> {
        if address.len() != self.address.len() {
            let (found, wanted) = (address.len(), self.address.len());
            return Err(self.invalid_address(format!("{found} bytes instead of {wanted}")));
        }
        // SAFETY: the provider's entry is complete and immutable.
        let format = unsafe { (*self.domain.provider().info()).addr_format };
        let socket = [ffi::PLASMON_SOCKADDR, ffi::PLASMON_SOCKADDR_IN, ffi::PLASMON_SOCKADDR_IN6];
        if !socket.contains(&format) || address.len() < 8 {
            return Ok(());
        }
        // Socket addresses: family, port, then the host from byte 4 (IPv4) or 8 (IPv6).
        let host = match address.len() {
            len if len >= 24 => &address[8..24],
            _ => &address[4..8],
        };
        if address[..2] != self.address[..2] {
            return Err(self.invalid_address("another address family".to_owned()));
        }
        if address[2..4] == [0, 0] || host.iter().all(|byte| *byte == 0) {
            return Err(self.invalid_address("no port or no host in it".to_owned()));
        }
        Ok(())
    }

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

/// The address of `offset` in a peer's region; an error unless `len` bytes are there.
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
