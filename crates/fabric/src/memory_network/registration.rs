//! Registrations in a memory network.
//!
//! Owns one registration for each [`Registration`]. Engine thread only. Invariant: a region is out of reach
//! once its registration is closed.

use std::ptr::NonNull;

use super::network::MemoryNetwork;
use super::wires::Registered;
use crate::access::{Access, RemoteRegion};

/// Registration of a region.
pub(crate) struct Registration {
    network: MemoryNetwork,
    domain: u32,
    key: u64,
}

impl Registration {
    /// Registers `len` bytes at `base` with a domain, with a key that is drawn from the seed.
    ///
    /// # Safety
    /// The bytes stay mapped, and no Rust reference to them is used, until the registration is closed.
    pub(super) unsafe fn open(
        network: &MemoryNetwork,
        domain: u32,
        (base, len): (NonNull<u8>, usize),
        access: Access,
    ) -> (Self, RemoteRegion) {
        let mut wires = network.wires();
        let mut key = wires.random.next();
        while wires.domains.get(&domain).is_some_and(|domain| domain.regions.contains_key(&key)) {
            key = wires.random.next();
        }
        if let Some(domain) = wires.domains.get_mut(&domain).filter(|domain| !domain.dead) {
            domain.regions.insert(key, Registered { base, len, access });
        }
        drop(wires);
        (
            Registration { network: network.clone(), domain, key },
            RemoteRegion { base: 0, key, len: len as u64 },
        )
    }

    /// Ends the registration.
    pub(crate) fn close(&mut self) {
        let mut wires = self.network.wires();
        if let Some(domain) = wires.domains.get_mut(&self.domain) {
            domain.regions.remove(&self.key);
        }
    }
}
