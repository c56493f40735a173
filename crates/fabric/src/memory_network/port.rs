//! Endpoints of a memory network, and their addresses.
//!
//! Owns one endpoint for each [`Port`]. Engine thread only. Invariant: an address names its endpoint for
//! ever.

use super::network::MemoryNetwork;
use super::wires::{PortName, Request};
use crate::operation::{self, Completion, Immediate, Operation};

/// First bytes of every address.
const MARK: [u8; 4] = *b"mem:";
/// Length of an address in bytes: the mark, the host and the endpoint's number.
const ADDRESS_BYTES: usize = 12;

/// Endpoint of a memory network.
pub(crate) struct Port {
    network: MemoryNetwork,
    name: PortName,
}

impl Port {
    /// Takes over an endpoint that was opened. Returns the endpoint with its address.
    pub(super) fn new(network: MemoryNetwork, name: PortName) -> (Self, Vec<u8>) {
        let (host, number) = (name.host().to_le_bytes(), name.number().to_le_bytes());
        let address = [MARK, host, number].concat();
        (Port { network, name }, address)
    }

    /// Returns the entry of a peer's address, which is the peer's name. The error is 0 if the bytes are no
    /// address.
    pub(crate) fn insert_address(&self, address: &[u8]) -> Result<u64, i32> {
        parse(address).map(|name| name.0).ok_or(0)
    }

    /// Breaks the connection to a peer.
    pub(crate) fn remove_address(&self, peer: u64) {
        self.network.wires().break_connection(self.name, PortName(peer), Some(self.name));
    }

    /// Closes the endpoint.
    pub(crate) fn close(self) {
        self.network.wires().close(self.name);
    }

    /// Posts the operation at `index` of the domain's table.
    ///
    /// # Safety
    /// The operation stays in the table until it is reported or the endpoint is closed.
    pub(crate) unsafe fn post(&self, operation: &Operation, peer: u64, index: usize) {
        let (buffer, len) = (operation.slice.as_ptr(), operation.slice.len());
        let mut wires = self.network.wires();
        let request = match operation.request {
            operation::Request::Receive => {
                // SAFETY: the operation keeps its buffer; the caller vouches for the operation.
                return unsafe { wires.post_receive(self.name, index, buffer, len) };
            }
            operation::Request::Send => Request::Send,
            operation::Request::Read { address, key } => Request::Read { address, key },
            operation::Request::Write { address, key, immediate, completion } => {
                let immediate = match immediate {
                    Immediate::With(value) => Some(value),
                    Immediate::None | Immediate::After(_) => None,
                };
                Request::Write {
                    address,
                    key,
                    immediate,
                    acknowledged: completion == Completion::Acknowledged,
                }
            }
        };
        // SAFETY: as above.
        unsafe { wires.post((self.name, PortName(peer)), (index, request), (buffer, len)) };
    }
}

/// Returns the fault of a peer's address. `None` if there is no fault.
pub(crate) fn address_fault(address: &[u8]) -> Option<&'static str> {
    parse(address).is_none().then_some("it is not of a memory network")
}

/// Returns the name of the endpoint that an address names.
fn parse(address: &[u8]) -> Option<PortName> {
    let address: &[u8; ADDRESS_BYTES] = address.try_into().ok()?;
    let word = |at: usize| Some(u32::from_le_bytes(address[at..at + 4].try_into().ok()?));
    let name = PortName::new(word(4)?, word(8)?);
    (address[..4] == MARK && name.number() != u32::MAX).then_some(name)
}
