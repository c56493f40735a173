//! An opened fabric: its domain, its completion queue, and the state of everything made from them.
//!
//! Owns these objects, and drives them: see [`Domain::poll`]. Engine thread only. Invariants: libfabric's
//! objects are closed children first, by field order and because children hold the domain; the state
//! is never borrowed while foreign code runs (a waker, the drop of a buffer's owner), because that code may
//! call this module again.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::access::Access;
use crate::error::FabricError;
use crate::event::Event;
use crate::link::Link;
use crate::memory::{Memory, Region, Registrar};
use crate::provider::Provider;
use crate::state::{State, Stats};

/// Opened fabric. A clone is cheap. The fabric is closed when the last clone, endpoint and region are gone.
#[derive(Clone)]
pub struct Domain(Rc<Inner>);

/// Objects and state of a domain, shared by its clones, endpoints and regions.
pub(crate) struct Inner {
    /// Opened provider. As the first field, it is closed before the state is dropped.
    pub(crate) link: Link,
    /// Provider that was opened.
    pub(crate) provider: Provider,
    /// State of the domain. As it is the last field, contexts and retired memory outlive everything that may
    /// touch them.
    pub(crate) state: RefCell<State>,
}

impl Domain {
    /// Opens a provider. Endpoints, regions and peers belong to the domain, so a provider is opened once.
    pub fn open(provider: &Provider) -> Result<Domain, FabricError> {
        let link = Link::open(provider)?;
        tracing::debug!(
            provider = provider.name(),
            domain = provider.domain(),
            reason = provider.reason(),
            can_sleep = link.wait_descriptor().is_some(),
            "fabric opened"
        );
        Ok(Domain(Rc::new(Inner { link, provider: provider.clone(), state: RefCell::default() })))
    }

    /// Returns the provider that was opened.
    pub fn provider(&self) -> &Provider {
        &self.0.provider
    }

    /// Registers all of `memory`, for operations of this process and with the rights that `access` grants to
    /// peers.
    ///
    /// `memory` is kept as long as the region. A provider that serves peers in software (tcp) needs the
    /// memory for longer, because an access that has begun goes on after the registration has ended. For such
    /// a provider, the memory of a region that granted access is kept until the endpoints that were open are
    /// closed; see [`Stats::retired_bytes`].
    pub fn register(&self, memory: Rc<dyn Memory>, access: Access) -> Result<Rc<Region>, FabricError> {
        let (base, len) = (memory.base(), memory.len());
        // SAFETY: the range is mapped as long as `memory` lives, which the region sees to.
        let (registration, remote) = unsafe { self.0.link.register(&self.0.provider, (base, len), access) }?;
        let mut state = self.0.state.borrow_mut();
        state.stats.registrations += 1;
        state.stats.regions += 1;
        state.stats.registered_bytes += len as u64;
        let registrar = Rc::clone(&self.0) as Rc<dyn Registrar>;
        Ok(Region::new(registrar, registration, memory, access, remote))
    }

    /// Makes progress, for this process and its peers: finishes operations and wakes their futures, posts
    /// queued operations, and appends to `events`. Returns the number of things that happened; 0 means idle.
    /// The call never blocks. An error means that the completion queue itself is broken.
    pub fn poll(&self, events: &mut Vec<Event>) -> Result<usize, FabricError> {
        let happened = self.0.link.drain(&self.0.provider, &self.0.state, events)?;
        self.settle();
        Ok(happened + self.retry())
    }

    /// Returns the descriptor to sleep on; when it is readable, [`Domain::poll`] is to be called. Returns
    /// `None` if the provider must be polled. The descriptor is level-triggered, and valid as long as the
    /// domain.
    pub fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.link.wait_descriptor()
    }

    /// Whether it is safe to sleep on [`Domain::wait_descriptor`] now. Ask right before sleeping; if false,
    /// poll again. A domain of a memory network has no descriptor: it is safe if nothing was delivered that
    /// the domain has not polled.
    pub fn try_wait(&self) -> bool {
        self.0.link.try_wait()
    }

    /// Returns the longest time to sleep on [`Domain::wait_descriptor`]. There is a limit while operations
    /// are queued, as the provider may become able to take them at any time without a sign.
    pub fn sleep_limit(&self) -> Option<Duration> {
        let mut state = self.0.state.borrow_mut();
        if state.stats.queued == 0 {
            return None;
        }
        state.endpoints.next_retry(Instant::now())
    }

    /// Returns the statistics of the domain: counters since it was opened, and gauges of the present.
    pub fn stats(&self) -> Stats {
        let state = self.0.state.borrow();
        let in_flight = state.operations.len() as u64;
        Stats { in_flight, retired_bytes: state.retired_bytes(), ..state.stats }
    }

    /// Returns objects and state of the domain, for endpoints.
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

    /// Drops the retired memory that no open endpoint can still touch. To be called when an endpoint has been
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
