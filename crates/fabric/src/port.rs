//! Endpoints as the transports have them.
//!
//! Owns one endpoint of a transport for each [`Port`]. Engine thread only. Invariant: an operation is handed
//! to the transport with one branch, and without an allocation of its own.

use std::ffi::c_void;

use crate::libfabric;
use crate::memory_network;
use crate::operation::Operation;

/// Endpoint of a transport.
pub(crate) enum Port {
    /// Endpoint at libfabric.
    Libfabric(libfabric::Port),
    /// Endpoint of a memory network.
    Memory(memory_network::Port),
}

impl Port {
    /// Enters a peer's fabric address and returns its entry. The error is libfabric's negative code, or 0 if
    /// the provider does not take the address. `name` is as long as the endpoint's own address.
    pub(crate) fn insert_address(&self, name: &[u8]) -> Result<u64, i32> {
        match self {
            Port::Libfabric(port) => port.insert_address(name),
            Port::Memory(port) => port.insert_address(name),
        }
    }

    /// Removes the entry of a peer's address, which closes the connections to the address. An entry is
    /// removed once for each insertion.
    pub(crate) fn remove_address(&self, address: u64) {
        match self {
            Port::Libfabric(port) => port.remove_address(address),
            Port::Memory(port) => port.remove_address(address),
        }
    }

    /// Closes the endpoint. Returns true if the transport touches none of its buffers from now on.
    pub(crate) fn close(self) -> bool {
        match self {
            Port::Libfabric(port) => port.close(),
            Port::Memory(port) => {
                port.close();
                true
            }
        }
    }

    /// Hands the operation at `index` of the table to the transport. `target` is the entry of the peer's
    /// address. The error is libfabric's negative code.
    ///
    /// # Safety
    /// `context` is the operation's block. The operation stays at `index` of the table, and its block where
    /// it is, until the completion arrives or the endpoint is closed.
    #[inline]
    pub(crate) unsafe fn post(
        &self,
        operation: &Operation,
        target: u64,
        index: usize,
        context: *mut c_void,
    ) -> Result<(), i64> {
        match self {
            // SAFETY: the caller vouches for operation and context.
            Port::Libfabric(port) => unsafe { port.post(operation, target, context) },
            Port::Memory(port) => {
                // SAFETY: the caller vouches for the operation, and with it for its buffer.
                unsafe { port.post(operation, target, index) };
                Ok(())
            }
        }
    }
}
