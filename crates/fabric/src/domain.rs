//! A fabric that has been opened: its domain, its one completion queue, and the state of everything
//! made from them.
//!
//! Owns all of it, and drives it: see [`Domain::poll`]. Engine thread only. Invariants: libfabric's
//! objects are closed children first, by field order and because children hold the domain; the state
//! is never borrowed while foreign code runs (a waker, the drop of a buffer's owner), because that may
//! come back to us.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::completion;
use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::event::Event;
use crate::ffi;
use crate::memory::{Access, Memory, Region, RemoteRegion};
use crate::operation::Table;
use crate::posting::Endpoints;
use crate::provider::Provider;

/// Completions the queue should hold; a multiple of the operations usually in flight.
const QUEUE_SIZE: usize = 4096;
/// Tries to find a free random key; one is nearly always enough.
const KEY_TRIES: usize = 8;

/// Counters of a domain since it was opened, and gauges of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Registrations made.
    pub registrations: u64,
    /// Regions registered now.
    pub regions: u64,
    /// Their bytes.
    pub registered_bytes: u64,
    /// Bytes of dropped regions whose memory is kept because a peer may still be using it.
    pub retired_bytes: u64,
    /// Messages handed to the provider.
    pub sends: u64,
    /// Receive buffers handed to the provider.
    pub receives: u64,
    /// Messages that came in.
    pub received: u64,
    /// Reads handed to the provider.
    pub reads: u64,
    /// Writes handed to the provider.
    pub writes: u64,
    /// Operations that ended well.
    pub completed: u64,
    /// Operations that ended badly.
    pub failed: u64,
    /// Times the provider said "try again".
    pub retries: u64,
    /// Operations queued or under way, receive buffers included.
    pub in_flight: u64,
    /// Of those, the ones the provider has not taken yet.
    pub queued: u64,
}

/// An opened fabric. Cheap to clone; closed when the last clone, endpoint and region are gone.
#[derive(Clone)]
pub struct Domain(Rc<Inner>);

pub(crate) struct Inner {
    // Closed in this order.
    pub(crate) queue: Handle<ffi::fid_cq>,
    pub(crate) domain: Handle<ffi::fid_domain>,
    fabric: Handle<ffi::fid_fabric>,
    pub(crate) provider: Provider,
    wait: Option<RawFd>,
    /// Last: contexts and retired memory outlive everything that may touch them.
    pub(crate) state: RefCell<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) operations: Table,
    pub(crate) endpoints: Endpoints,
    pub(crate) stats: Stats,
    /// Connections and endpoints whose closing has been put off.
    pub(crate) lingering: usize,
    retired: Vec<Retired>,
}

/// Memory of a dropped region that a peer may still be writing to.
struct Retired {
    memory: Rc<dyn Memory>,
    /// Kept until every endpoint numbered below this is closed; `None`: until the domain is closed.
    endpoints_below: Option<u32>,
}

/// An open libfabric object, closed when dropped.
pub(crate) struct Handle<T>(NonNull<T>);

impl<T> Handle<T> {
    /// Opens one with `open`, which is libfabric's function named `call`.
    pub(crate) fn open(
        call: &str,
        open: impl FnOnce(&mut *mut T) -> std::ffi::c_int,
    ) -> Result<Self, FabricError> {
        let mut pointer = ptr::null_mut();
        let code = open(&mut pointer);
        match NonNull::new(pointer) {
            Some(pointer) if code == 0 => Ok(Handle(pointer)),
            _ => Err(FabricError::call(call, code)),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    pub(crate) fn pointer(&self) -> NonNull<T> {
        self.0
    }

    /// Its base object: every `fid_*` structure begins with one.
    pub(crate) fn fid(&self) -> *mut ffi::fid {
        self.0.as_ptr().cast()
    }

    /// Closes it now; true if that worked.
    pub(crate) fn close(self) -> bool {
        // SAFETY: open, and forgotten right here.
        let code = unsafe { ffi::fi_close(self.fid()) };
        std::mem::forget(self);
        if code != 0 {
            tracing::error!(error = %FabricError::call("fi_close", code), "a fabric object stays open");
        }
        code == 0
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: open, and never used again.
        let code = unsafe { ffi::fi_close(self.fid()) };
        if code != 0 {
            tracing::error!(error = %FabricError::call("fi_close", code), "a fabric object stays open");
        }
    }
}

impl Domain {
    /// Opens a provider. Do it once: endpoints, regions and peers belong to the domain.
    pub fn open(provider: &Provider) -> Result<Domain, FabricError> {
        let info = provider.info();
        // SAFETY: (all blocks here) `info` is a complete entry of fi_getinfo, attribute structures are
        // only read during the call, and each object is opened on one that is open and outlives it.
        let fabric = Handle::open("fi_fabric", |fabric| unsafe {
            ffi::fi_fabric((*info).fabric_attr, fabric, ptr::null_mut())
        })?;
        // SAFETY: see above.
        let domain = Handle::open("fi_domain", |domain| unsafe {
            ffi::fi_domain(fabric.as_ptr(), info, domain, ptr::null_mut())
        })?;
        let open_queue = |wait_obj| {
            let mut attributes = ffi::fi_cq_attr {
                size: QUEUE_SIZE,
                format: ffi::fi_cq_format_FI_CQ_FORMAT_DATA,
                wait_obj,
                ..Default::default()
            };
            // SAFETY: see above.
            Handle::open("fi_cq_open", |queue| unsafe {
                ffi::fi_cq_open(domain.as_ptr(), &mut attributes, queue, ptr::null_mut())
            })
        };
        let (queue, wait) = match open_queue(ffi::fi_wait_obj_FI_WAIT_FD) {
            Ok(queue) => {
                let wait = wait_descriptor(&queue);
                (queue, wait)
            }
            // Not every provider can be waited for: those are polled.
            Err(_) => (open_queue(ffi::fi_wait_obj_FI_WAIT_NONE)?, None),
        };
        tracing::info!(
            provider = provider.name(),
            domain = provider.domain(),
            reason = provider.reason(),
            can_sleep = wait.is_some(),
            "fabric opened"
        );
        Ok(Domain(Rc::new(Inner {
            queue,
            domain,
            fabric,
            provider: provider.clone(),
            wait,
            state: RefCell::default(),
        })))
    }

    /// The provider that was opened.
    pub fn provider(&self) -> &Provider {
        &self.0.provider
    }

    /// Registers all of `memory`, for our own operations and for what `access` grants to peers.
    ///
    /// `memory` is kept as long as the region. Where the provider serves peers in software (tcp), that
    /// is not enough: an access that has begun goes on after the registration has ended. The memory of
    /// a region that granted access is then kept until the endpoints that were open are closed; see
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
        for _ in 0..KEY_TRIES {
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
                return Ok(Region::new(self.clone(), mr, memory, access, remote));
            }
            if code != -ffi::PLASMON_ENOKEY {
                break;
            }
        }
        let call = format!("fi_mr_reg of {len} bytes");
        Err(FabricError::locking(&call, code, &self.0.provider))
    }

    /// Opens an endpoint. Several (a lane for small and one for bulk) share the domain's queue.
    pub fn endpoint(&self) -> Result<Endpoint, FabricError> {
        Endpoint::open(self)
    }

    /// Drives everything: progress for peers and for us, finished operations (their futures are
    /// woken), queued operations, receive events. Returns the number of things that happened; 0 means
    /// idle. Never blocks. An error means that the completion queue itself is broken.
    pub fn poll(&self, events: &mut Vec<Event>) -> Result<usize, FabricError> {
        let happened = completion::drain(&self.0, events)?;
        self.settle();
        Ok(happened + self.retry())
    }

    /// The descriptor to sleep on (readable: call [`Domain::poll`]); `None` if the provider must be
    /// polled. Level-triggered; valid as long as the domain.
    pub fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the completion queue owns the descriptor and lives as long as `self`.
        self.0.wait.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Whether it is safe to sleep on the descriptor. Ask right before sleeping; if false, poll again.
    pub fn try_wait(&self) -> bool {
        if self.0.wait.is_none() {
            return false;
        }
        let mut fid = self.0.queue.fid();
        // SAFETY: both objects are open; the array of one is only read.
        unsafe { ffi::fi_trywait(self.0.fabric.as_ptr(), &mut fid, 1) == 0 }
    }

    /// The longest one may sleep on the descriptor: set while operations are queued, as the provider
    /// may take them at any time without saying so.
    pub fn sleep_limit(&self) -> Option<Duration> {
        let mut state = self.0.state.borrow_mut();
        if state.stats.queued == 0 {
            return None;
        }
        state.endpoints.next_retry(Instant::now())
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        let state = self.0.state.borrow();
        let in_flight = state.operations.len() as u64;
        let retired_bytes = state.retired.iter().map(|it| it.memory.len() as u64).sum();
        Stats { in_flight, retired_bytes, ..state.stats }
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// Tries to post what the provider would not take before.
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

    /// Closes what could not be closed before.
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

    /// A region has been closed with `code`: decides how long its memory is kept.
    pub(crate) fn unregistered(
        &self,
        memory: Rc<dyn Memory>,
        len: usize,
        access: Access,
        code: std::ffi::c_int,
    ) {
        let mut state = self.0.state.borrow_mut();
        state.stats.regions -= 1;
        state.stats.registered_bytes -= len as u64;
        if code != 0 {
            let error = FabricError::call("fi_close of a region", code);
            tracing::error!(%error, "its memory is kept until the domain is closed");
            state.retired.push(Retired { memory, endpoints_below: None });
        } else if access.is_remote() && !self.0.provider.is_rdma() && !state.endpoints.is_empty() {
            let endpoints_below = Some(state.endpoints.next_id());
            // Once is enough for memory that was registered several times.
            let same = |it: &Retired| Rc::as_ptr(&it.memory).cast::<()>() == Rc::as_ptr(&memory).cast::<()>();
            state.retired.retain(|it| it.endpoints_below.is_none() || !same(it));
            state.retired.push(Retired { memory, endpoints_below });
        } else {
            drop(state);
            drop(memory);
        }
    }

    /// An endpoint has been closed: lets go of memory that only it could still touch.
    pub(crate) fn release_retired(&self) {
        let mut state = self.0.state.borrow_mut();
        let State { retired, endpoints, .. } = &mut *state;
        let oldest = endpoints.oldest();
        let released: Vec<Retired> = retired
            .extract_if(.., |it| match it.endpoints_below {
                Some(limit) => oldest.is_none_or(|oldest| oldest >= limit),
                None => false,
            })
            .collect();
        drop(state);
        drop(released);
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("provider", &self.0.provider).finish_non_exhaustive()
    }
}

fn wait_descriptor(queue: &Handle<ffi::fid_cq>) -> Option<RawFd> {
    let mut fd: RawFd = -1;
    // SAFETY: the queue is open; FI_GETWAIT with FI_WAIT_FD stores an int.
    let code = unsafe { ffi::fi_control(queue.fid(), ffi::PLASMON_GETWAIT, (&raw mut fd).cast()) };
    (code == 0 && fd >= 0).then_some(fd)
}

fn random() -> Result<u64, FabricError> {
    getrandom::u64().map_err(|_| FabricError::call("drawing a random region key", -libc::EIO))
}
