//! Domains of a memory network.
//!
//! Owns one domain for each [`Link`]. Engine thread only. Invariant: a domain is forgotten when its link is
//! dropped, which happens after its endpoints and regions are gone.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;

use super::network::MemoryNetwork;
use super::port::Port;
use super::registration::Registration;
use super::wires::{Domain, Endpoint, PortName, Report};
use crate::access::{Access, RemoteRegion};

/// Domain of a host.
pub(crate) struct Link {
    network: MemoryNetwork,
    host: u32,
    domain: u32,
}

impl Link {
    /// Opens a domain on `host`.
    pub(crate) fn open(network: &MemoryNetwork, host: u32) -> Self {
        let mut wires = network.wires();
        let domain = wires.name();
        let (dead, regions, reports) = (false, BTreeMap::new(), VecDeque::new());
        wires.domains.insert(domain, Domain { host, dead, regions, reports });
        wires.hosts.insert(host);
        drop(wires);
        Link { network: network.clone(), host, domain }
    }

    /// Opens an endpoint. Returns the endpoint with its fabric address.
    pub(crate) fn port(&self) -> (Port, Vec<u8>) {
        let mut wires = self.network.wires();
        let name = PortName::new(self.host, wires.name());
        if wires.domains.get(&self.domain).is_some_and(|domain| !domain.dead) {
            let (receives, waiting) = (VecDeque::new(), VecDeque::new());
            wires.ports.insert(name, Endpoint { domain: self.domain, receives, waiting });
        }
        drop(wires);
        Port::new(self.network.clone(), name)
    }

    /// Registers `len` bytes at `base`, with a key that is drawn from the seed.
    ///
    /// # Safety
    /// The bytes stay mapped, and no Rust reference to them is used, until the registration is closed.
    pub(crate) unsafe fn register(
        &self,
        (base, len): (NonNull<u8>, usize),
        access: Access,
    ) -> (Registration, RemoteRegion) {
        // SAFETY: the caller vouches for the range.
        unsafe { Registration::open(&self.network, self.domain, (base, len), access) }
    }

    /// Whether there is no report that the domain has not seen.
    pub(crate) fn is_quiet(&self) -> bool {
        self.network.wires().domains.get(&self.domain).is_none_or(|domain| domain.reports.is_empty())
    }

    /// Takes the oldest report that the domain has not seen.
    pub(crate) fn next_report(&self) -> Option<Report> {
        let mut wires = self.network.wires();
        Some(wires.domains.get_mut(&self.domain)?.reports.pop_front()?.1)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.network.wires().domains.remove(&self.domain);
    }
}
