//! An opened provider of libfabric: its fabric, its domain and its completion queue.
//!
//! Owns these three objects. Engine thread only. Invariant: libfabric's objects are closed children first,
//! by field order; endpoints and regions keep the link open through their domain.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use super::ffi;
use super::handle::Handle;
use super::info::Info;
use super::port::Port;
use super::queue::CompletionQueue;
use super::registration::{Refusal, Registration};
use crate::access::{Access, RemoteRegion};
use crate::error::FabricError;
use crate::provider::Provider;

/// Opened provider.
pub(crate) struct Link {
    // The objects are closed in this order.
    /// Completion queue of all endpoints.
    pub(super) queue: CompletionQueue,
    /// Domain at libfabric.
    pub(super) domain: Handle<ffi::fid_domain>,
    /// Fabric at libfabric that the domain belongs to.
    fabric: Handle<ffi::fid_fabric>,
    /// Description of the provider.
    pub(super) info: Rc<Info>,
}

impl Link {
    /// Opens the provider that `info` describes.
    pub(crate) fn open(info: &Rc<Info>) -> Result<Self, FabricError> {
        // SAFETY: `info` is a complete entry of fi_getinfo, attribute structures are only read during the
        // call.
        let fabric = Handle::open("fi_fabric", |fabric| unsafe {
            ffi::fi_fabric((*info.as_ptr()).fabric_attr, fabric, ptr::null_mut())
        })?;
        // SAFETY: `info` is a complete entry of fi_getinfo; the domain is opened on a fabric that is open and
        // outlives it.
        let domain = Handle::open("fi_domain", |domain| unsafe {
            ffi::fi_domain(fabric.as_ptr(), info.as_ptr(), domain, ptr::null_mut())
        })?;
        let queue = CompletionQueue::open(&domain)?;
        Ok(Link { queue, domain, fabric, info: Rc::clone(info) })
    }

    /// Returns the completion queue of the link.
    pub(crate) fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Opens an endpoint. Returns the endpoint with its fabric address.
    pub(crate) fn port(&self, provider: &Provider) -> Result<(Port, Vec<u8>), FabricError> {
        Port::open(&self.domain, self.queue.handle(), &self.info, provider)
    }

    /// Registers `len` bytes at `base`.
    ///
    /// # Safety
    /// The bytes stay mapped until the registration is closed.
    pub(crate) unsafe fn register(
        &self,
        provider: &Provider,
        (base, len): (NonNull<u8>, usize),
        access: Access,
    ) -> Result<(Registration, RemoteRegion), FabricError> {
        let rendezvous = provider.is_layered();
        // SAFETY: the caller vouches for the range.
        let opened = unsafe { Registration::open(&self.domain, &self.info, (base, len), access, rendezvous) };
        opened.map_err(|refusal| match refusal {
            Refusal::Code(code) => provider.memory_error(&format!("fi_mr_reg of {len} bytes"), code),
            Refusal::NoKey(error) => error,
        })
    }

    /// Returns the descriptor to sleep on. `None` if the provider must be polled.
    pub(crate) fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.queue.wait_descriptor()
    }

    /// Whether it is safe to sleep on the descriptor now.
    pub(crate) fn try_wait(&self) -> bool {
        self.queue.try_wait(&self.fabric)
    }
}
