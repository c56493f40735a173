//! An opened fabric: its domain, its completion queue, and the state of everything made from them.
//!
//! Owns all of it, and drives it: see [`Domain::poll`]. Engine thread only. Invariants: libfabric's
//! objects are closed children first, by field order and because children hold the domain; the state
//! is never borrowed while foreign code runs (a waker, the drop of a buffer's owner), because that code may
//! call this module again.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::completion::CompletionQueue;
use crate::error::FabricError;
use crate::event::Event;
use crate::ffi;
use crate::handle::Handle;
use crate::memory::{Access, Memory, Region, Registrar, RemoteRegion};
use crate::provider::Provider;
use crate::state::{State, Stats};

/// Number of attempts to find a free random key. One attempt is nearly always enough.
const KEY_ATTEMPTS: usize = 8;

/// Opened fabric. It is cheap to clone, and closed when the last clone, endpoint and region are gone.
#[derive(Clone)]
pub struct Domain(Rc<Inner>);

/// Objects and state of a domain, shared by its clones, endpoints and regions.
pub(crate) struct Inner {
    // The objects are closed in this order.
    /// Completion queue of all endpoints.
    pub(crate) queue: CompletionQueue,
    /// Domain at libfabric.
    pub(crate) domain: Handle<ffi::fid_domain>,
    /// Fabric at libfabric that the domain belongs to.
    fabric: Handle<ffi::fid_fabric>,
    /// Provider that was opened.
    pub(crate) provider: Provider,
    /// State of the domain. It is the last field: contexts and retired memory outlive everything that may
    /// touch them.
    pub(crate) state: RefCell<State>,
}

impl Domain {
    /// Opens a provider. Open it once: endpoints, regions and peers belong to the domain.
    pub fn open(provider: &Provider) -> Result<Domain, FabricError> {
        let info = provider.info();
        // SAFETY: `info` is a complete entry of fi_getinfo, attribute structures are only read during the
        // call.
        let fabric = Handle::open("fi_fabric", |fabric| unsafe {
            ffi::fi_fabric((*info).fabric_attr, fabric, ptr::null_mut())
        })?;
        // SAFETY: `info` is a complete entry of fi_getinfo; the domain is opened on a fabric that is open and
        // outlives it.
        let domain = Handle::open("fi_domain", |domain| unsafe {
            ffi::fi_domain(fabric.as_ptr(), info, domain, ptr::null_mut())
        })?;
        let queue = CompletionQueue::open(&domain)?;
        tracing::info!(
            provider = provider.name(),
            domain = provider.domain(),
            reason = provider.reason(),
            can_sleep = queue.wait_descriptor().is_some(),
            "fabric opened"
        );
        Ok(Domain(Rc::new(Inner {
            queue,
            domain,
            fabric,
            provider: provider.clone(),
            state: RefCell::default(),
        })))
    }

    /// Provider that was opened.
    pub fn provider(&self) -> &Provider {
        &self.0.provider
    }

    /// Registers all of `memory`, for operations of this process and with the rights that `access` grants to
    /// peers.
    ///
    /// `memory` is kept as long as the region. A provider that serves peers in software (tcp) needs the
    /// memory for longer: an access that has begun goes on after the registration has ended. The memory of a
    /// region that granted access is then kept until the endpoints that were open are closed; see
    /// [`Stats::retired_bytes`].
    pub fn register(&self, memory: Rc<dyn Memory>, access: Access) -> Result<Rc<Region>, FabricError> {
        let (base, len) = (memory.base(), memory.len());
        let attributes = self.0.provider.domain_attributes();
        let choose_key = attributes.mr_mode & ffi::PLASMON_MR_PROV_KEY == 0;
        let key_mask = match attributes.mr_key_size {
            size @ 1..=7 => (1 << (8 * size)) - 1,
            _ => u64::MAX,
        };
        let mut code = 0;
        for _ in 0..KEY_ATTEMPTS {
            let key = if choose_key { random()? & key_mask } else { 0 };
            let mut mr = ptr::null_mut();
            // SAFETY: the range is mapped as long as `memory` lives, which the region sees to.
            code = unsafe {
                ffi::fi_mr_reg(
                    self.0.domain.as_ptr(),
                    base.as_ptr().cast(),
                    len,
                    access.flags(self.0.provider.is_layered()),
                    0,
                    key,
                    0,
                    &mut mr,
                    ptr::null_mut(),
                )
            };
            if let (0, Some(mr)) = (code, NonNull::new(mr)) {
                let virtual_addresses = attributes.mr_mode & ffi::PLASMON_MR_VIRT_ADDR != 0;
                let remote = RemoteRegion {
                    base: if virtual_addresses { base.as_ptr() as u64 } else { 0 },
                    // SAFETY: the registration is open.
                    key: unsafe { ffi::fi_mr_key(mr.as_ptr()) },
                    len: len as u64,
                };
                let mut state = self.0.state.borrow_mut();
                state.stats.registrations += 1;
                state.stats.regions += 1;
                state.stats.registered_bytes += len as u64;
                let registrar = Rc::clone(&self.0) as Rc<dyn Registrar>;
                return Ok(Region::new(registrar, mr, memory, access, remote));
            }
            if code != -ffi::PLASMON_ENOKEY {
                break;
            }
        }
        let call = format!("fi_mr_reg of {len} bytes");
        Err(self.0.provider.memory_error(&call, code))
    }

    /// Makes progress, for this process and its peers: finishes operations and wakes their futures, posts
    /// queued operations, and appends to `events`. Returns the number of things that happened; 0 means idle.
    /// The call never blocks. An error means that the completion queue itself is broken.
    pub fn poll(&self, events: &mut Vec<Event>) -> Result<usize, FabricError> {
        let happened = self.0.queue.drain(&self.0.provider, &self.0.state, events)?;
        self.settle();
        Ok(happened + self.retry())
    }

    /// Descriptor to sleep on: call [`Domain::poll`] when it is readable. Returns `None` if the provider must
    /// be polled. The descriptor is level-triggered, and valid as long as the domain.
    pub fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.queue.wait_descriptor()
    }

    /// Whether it is safe to sleep on [`Domain::wait_descriptor`] now. Ask right before sleeping; if false,
    /// poll again.
    pub fn try_wait(&self) -> bool {
        self.0.queue.try_wait(&self.0.fabric)
    }

    /// Longest time to sleep on [`Domain::wait_descriptor`]. There is a limit while operations are queued, as
    /// the provider may become able to take them at any time without a sign.
    pub fn sleep_limit(&self) -> Option<Duration> {
        let mut state = self.0.state.borrow_mut();
        if state.stats.queued == 0 {
            return None;
        }
        state.endpoints.next_retry(Instant::now())
    }

    /// Statistics of the domain: counters since it was opened, and gauges of the present.
    pub fn stats(&self) -> Stats {
        let state = self.0.state.borrow();
        let in_flight = state.operations.len() as u64;
        Stats { in_flight, retired_bytes: state.retired_bytes(), ..state.stats }
    }

    /// Objects and state of the domain, for endpoints.
    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// Tries to post the operations that the provider did not take before. Returns the number of operations
    /// posted or failed.
    fn retry(&self) -> usize {
        let mut state = self.0.state.borrow_mut();
        if state.stats.queued == 0 {
            return 0;
        }
        let (posted, failed) = state.retry_queued(Instant::now());
        drop(state);
        let happened = posted + failed.len();
        for (operation, error) in failed {
            operation.finish(Err(error));
        }
        happened
    }

    /// Closes the connections and endpoints whose closing was put off and is harmless by now.
    fn settle(&self) {
        let mut state = self.0.state.borrow_mut();
        if state.lingering == 0 {
            return;
        }
        let released = state.settle();
        drop(state);
        drop(released);
        self.release_retired();
    }

    /// Drops the retired memory that no open endpoint can still touch. Call it when an endpoint has been
    /// closed.
    pub(crate) fn release_retired(&self) {
        let released = self.0.state.borrow_mut().release_retired();
        drop(released);
    }
}

impl Registrar for Inner {
    fn unregistered(&self, memory: Rc<dyn Memory>, len: usize, access: Access, code: std::ffi::c_int) {
        let mut state = self.state.borrow_mut();
        state.stats.regions -= 1;
        state.stats.registered_bytes -= len as u64;
        if code != 0 {
            let error = FabricError::call("fi_close of a region", code);
            tracing::error!(%error, "its memory is kept until the domain is closed");
            state.retire_for_good(memory);
        } else if access.is_remote() && !self.provider.is_rdma() && !state.endpoints.is_empty() {
            state.retire(memory);
        } else {
            drop(state);
            drop(memory);
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("provider", &self.0.provider).finish_non_exhaustive()
    }
}

/// Draws a random key for a region.
fn random() -> Result<u64, FabricError> {
    getrandom::u64().map_err(|_| FabricError::call("drawing a random region key", -libc::EIO))
}
