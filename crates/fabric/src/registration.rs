//! Registrations of memory, at libfabric or in a memory network.
//!
//! Owns one registration for each [`Registration`]. Engine thread only. Invariant: a registration is closed
//! exactly once, by the drop of the region that holds it.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::libfabric;
use crate::memory_network;

/// Registration of a region.
pub(crate) enum Registration {
    /// Registration at libfabric.
    Libfabric(libfabric::Registration),
    /// Registration in a memory network.
    Memory(memory_network::Registration),
}

impl Registration {
    /// Returns the descriptor by which operations of this process name the region to the provider. The
    /// descriptor stays the same as long as the registration is open.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        match self {
            Registration::Libfabric(registration) => registration.descriptor(),
            Registration::Memory(_) => ptr::null_mut(),
        }
    }

    /// Ends the registration. Returns 0, or libfabric's negative code. To be called once, when no operation
    /// of this process uses the region any more.
    pub(crate) fn close(&mut self) -> c_int {
        match self {
            Registration::Libfabric(registration) => registration.close(),
            Registration::Memory(registration) => {
                registration.close();
                0
            }
        }
    }
}
