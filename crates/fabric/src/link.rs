//! Opened providers of either transport.
//!
//! Owns the open objects of a provider, for each [`Link`]. Engine thread only. Invariant: the state of the
//! domain is not borrowed while a link reports completions, because that wakes futures and releases
//! buffers.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::access::{Access, RemoteRegion};
use crate::completion::Completions;
use crate::error::{FabricError, describe};
use crate::event::Event;
use crate::libfabric;
use crate::memory_network::{self, Report};
use crate::port::Port;
use crate::provider::{Origin, Provider};
use crate::registration::Registration;
use crate::state::State;

/// Opened provider.
pub(crate) enum Link {
    /// Provider of libfabric.
    Libfabric(libfabric::Link),
    /// Host of a memory network.
    Memory(memory_network::Link),
}

impl Link {
    /// Opens a provider.
    pub(crate) fn open(provider: &Provider) -> Result<Self, FabricError> {
        match provider.origin() {
            Origin::Libfabric(info) => libfabric::Link::open(info).map(Link::Libfabric),
            Origin::Memory(network, host) => Ok(Link::Memory(memory_network::Link::open(network, *host))),
        }
    }

    /// Opens an endpoint. Returns the endpoint with its fabric address.
    pub(crate) fn port(&self, provider: &Provider) -> Result<(Port, Vec<u8>), FabricError> {
        match self {
            Link::Libfabric(link) => {
                let (port, address) = link.port(provider)?;
                Ok((Port::Libfabric(port), address))
            }
            Link::Memory(link) => {
                let (port, address) = link.port();
                Ok((Port::Memory(port), address))
            }
        }
    }

    /// Registers `len` bytes at `base`.
    ///
    /// # Safety
    /// The bytes stay mapped, and no Rust reference to them is used, until the registration is closed.
    pub(crate) unsafe fn register(
        &self,
        provider: &Provider,
        (base, len): (NonNull<u8>, usize),
        access: Access,
    ) -> Result<(Registration, RemoteRegion), FabricError> {
        match self {
            Link::Libfabric(link) => {
                // SAFETY: the caller vouches for the range.
                let (registration, remote) = unsafe { link.register(provider, (base, len), access) }?;
                Ok((Registration::Libfabric(registration), remote))
            }
            Link::Memory(link) => {
                // SAFETY: the caller vouches for the range.
                let (registration, remote) = unsafe { link.register((base, len), access) };
                Ok((Registration::Memory(registration), remote))
            }
        }
    }

    /// Finishes the operations that the transport reports, and returns the number of reports. `state` is the
    /// state of the link's own domain. The call runs foreign code, so the caller holds no borrow of `state`.
    pub(crate) fn drain(
        &self,
        provider: &Provider,
        state: &RefCell<State>,
        events: &mut Vec<Event>,
    ) -> Result<usize, FabricError> {
        let mut completions = Completions::new(provider, state, events);
        match self {
            Link::Libfabric(link) => link.queue().drain(&mut completions),
            Link::Memory(link) => Ok(drain_memory(link, &mut completions)),
        }
    }

    /// Returns the descriptor to sleep on. `None` if the provider must be polled.
    pub(crate) fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Link::Libfabric(link) => link.wait_descriptor(),
            Link::Memory(_) => None,
        }
    }

    /// Whether it is safe to sleep now, because there is nothing to poll.
    pub(crate) fn try_wait(&self) -> bool {
        match self {
            Link::Libfabric(link) => link.try_wait(),
            Link::Memory(link) => link.is_quiet(),
        }
    }
}

/// Finishes the operations that a memory network has delivered to a domain.
fn drain_memory(link: &memory_network::Link, completions: &mut Completions<'_>) -> usize {
    let mut happened = 0;
    while let Some(report) = link.next_report() {
        match report {
            Report::Done { index, len } => completions.succeeded(index, len, None),
            Report::Failed { index, code } => completions.failed(index, code, describe(code)),
            Report::Written { immediate, len } => completions.written(immediate, len),
        }
        happened += 1;
    }
    completions.queue_is_empty();
    happened
}
