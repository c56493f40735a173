//! The completion queue of libfabric.
//!
//! Owns the queue of a domain and the descriptor to sleep on. Engine thread only. Invariant: an entry is only
//! sorted and translated here; [`Completions`] gets every entry once and acts on it.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;

use super::ffi;
use super::handle::Handle;
use crate::completion::Completions;
use crate::error::{FabricError, describe, string};
use crate::table::Table;

/// Number of completions that the queue is asked to hold: a multiple of the operations usually in flight.
const QUEUE_ENTRIES: usize = 4096;
/// Number of entries that are read at once.
const BATCH_ENTRIES: usize = 32;
/// Largest number of batches that one poll reads, so that the caller gets a turn.
const MAX_BATCHES_PER_POLL: usize = 16;
/// Largest number of errors that one poll reads, so that the poll of a broken queue ends.
const MAX_ERRORS_PER_POLL: usize = 256;

/// Completion queue of a domain.
pub(crate) struct CompletionQueue {
    queue: Handle<ffi::fid_cq>,
    /// Descriptor to sleep on, which the queue owns. Queues that must be polled have none.
    wait: Option<RawFd>,
}

impl CompletionQueue {
    /// Opens the queue of `domain`, with a descriptor to sleep on if the provider has one.
    pub(crate) fn open(domain: &Handle<ffi::fid_domain>) -> Result<Self, FabricError> {
        let open_queue = |wait_obj| {
            let mut attributes = ffi::fi_cq_attr {
                size: QUEUE_ENTRIES,
                format: ffi::fi_cq_format_FI_CQ_FORMAT_DATA,
                wait_obj,
                ..Default::default()
            };
            // SAFETY: the domain is open and outlives the queue; the attributes are only read during the
            // call.
            Handle::open("fi_cq_open", |queue| unsafe {
                ffi::fi_cq_open(domain.as_ptr(), &mut attributes, queue, ptr::null_mut())
            })
        };
        match open_queue(ffi::fi_wait_obj_FI_WAIT_FD) {
            Ok(queue) => {
                let wait = wait_descriptor(&queue);
                Ok(Self { queue, wait })
            }
            // A provider that cannot be waited for is polled.
            Err(_) => Ok(Self { queue: open_queue(ffi::fi_wait_obj_FI_WAIT_NONE)?, wait: None }),
        }
    }

    /// Returns the handle of the queue, for binding endpoints to the queue.
    pub(super) fn handle(&self) -> &Handle<ffi::fid_cq> {
        &self.queue
    }

    /// Returns the descriptor to sleep on. `None` if the provider must be polled.
    pub(crate) fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the completion queue owns the descriptor and lives as long as `self`.
        self.wait.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Whether it is safe to sleep on the descriptor now. `fabric` is the fabric that the queue belongs to.
    pub(crate) fn try_wait(&self, fabric: &Handle<ffi::fid_fabric>) -> bool {
        if self.wait.is_none() {
            return false;
        }
        let mut fid = self.queue.fid();
        // SAFETY: both objects are open; the array of one is only read.
        unsafe { ffi::fi_trywait(fabric.as_ptr(), &mut fid, 1) == 0 }
    }

    /// Reads the entries of the queue, and returns the number of entries read. `completions` are of the
    /// queue's own domain, from whose table the contexts in the queue come. The call runs foreign code, so
    /// the caller holds no borrow of the domain's state.
    pub(crate) fn drain(&self, completions: &mut Completions<'_>) -> Result<usize, FabricError> {
        let mut entries = [const { MaybeUninit::<ffi::fi_cq_data_entry>::uninit() }; BATCH_ENTRIES];
        let (mut happened, mut batches, mut errors) = (0, 0, 0);
        while batches < MAX_BATCHES_PER_POLL && errors < MAX_ERRORS_PER_POLL {
            let buffer = entries.as_mut_ptr().cast();
            // SAFETY: the queue is open, was opened for entries of this type, and there is room for
            // BATCH_ENTRIES.
            let count = unsafe { ffi::fi_cq_read(self.queue.as_ptr(), buffer, BATCH_ENTRIES) } as i64;
            match usize::try_from(count) {
                Ok(0) => return Ok(happened),
                Ok(count) => {
                    for entry in entries.iter().take(count) {
                        // SAFETY: libfabric has filled the first `count` entries.
                        succeeded(completions, unsafe { entry.assume_init_ref() });
                    }
                    happened += count;
                    batches += 1;
                    // Another read would look at every connection again, before the caller sees these
                    // entries.
                    if count < BATCH_ENTRIES {
                        return Ok(happened);
                    }
                }
                Err(_) if count == -i64::from(libc::EAGAIN) => {
                    completions.queue_is_empty();
                    return Ok(happened);
                }
                Err(_) if count == -i64::from(ffi::PLASMON_EAVAIL) => {
                    happened += usize::from(self.read_error(completions));
                    errors += 1;
                }
                Err(_) => return Err(FabricError::call("fi_cq_read", count)),
            }
        }
        Ok(happened)
    }

    /// Reads one error entry. Returns false if there was none.
    fn read_error(&self, completions: &mut Completions<'_>) -> bool {
        let mut entry = ffi::fi_cq_err_entry::default();
        // SAFETY: the queue is open; a zeroed entry asks for error data in the provider's own memory.
        let count = unsafe { ffi::fi_cq_readerr(self.queue.as_ptr(), &mut entry, 0) };
        if count != 1 {
            return false;
        }
        let text = self.error_text(completions, &entry);
        // SAFETY: every context given to the provider came from this domain's table.
        match unsafe { Table::index(entry.op_context) } {
            Some(index) => completions.failed(index, refine(completions.provider().name(), &entry), text),
            None => tracing::debug!(code = entry.err, text, "the fabric reports a failure of no operation"),
        }
        true
    }

    /// Returns the description of a failure: the general text, followed by the provider's text if it says
    /// more.
    fn error_text(&self, completions: &Completions<'_>, entry: &ffi::fi_cq_err_entry) -> String {
        let general = describe(entry.err);
        // Where connections are sockets, the provider's number is whatever `errno` was, and misleads.
        if entry.prov_errno == 0 || !completions.provider().is_rdma() {
            return general;
        }
        // ofi_rxm looks the text up through one of the queue's endpoints and crashes if there is none.
        if !completions.has_endpoints() {
            return general;
        }
        // SAFETY: the queue is open; the error data belongs to the entry just read; no buffer is offered,
        // so the provider returns a static string, its own buffer, or null.
        let text = unsafe {
            string(ffi::fi_cq_strerror(
                self.queue.as_ptr(),
                entry.prov_errno,
                entry.err_data,
                ptr::null_mut(),
                0,
            ))
        };
        match text {
            Some(text) if !text.is_empty() && text != general => format!("{general}; {text}"),
            _ => general,
        }
    }
}

/// Returns the descriptor to sleep on of a queue that was opened with one.
fn wait_descriptor(queue: &Handle<ffi::fid_cq>) -> Option<RawFd> {
    let mut fd: RawFd = -1;
    // SAFETY: the queue is open; FI_GETWAIT with FI_WAIT_FD stores an int.
    let code = unsafe { ffi::fi_control(queue.fid(), ffi::PLASMON_GETWAIT, (&raw mut fd).cast()) };
    (code == 0 && fd >= 0).then_some(fd)
}

/// Hands an entry of the queue to `completions`.
fn succeeded(completions: &mut Completions<'_>, entry: &ffi::fi_cq_data_entry) {
    let has_data = entry.flags & ffi::PLASMON_REMOTE_CQ_DATA != 0;
    // Only 32 bits are portable, so the other bits are not interpreted.
    let immediate = has_data.then_some(entry.data as u32);
    if entry.flags & ffi::PLASMON_REMOTE_WRITE != 0 {
        if let Some(immediate) = immediate {
            completions.written(immediate, entry.len);
        }
        return;
    }
    // SAFETY: every context given to the provider came from this domain's table.
    if let Some(index) = unsafe { Table::index(entry.op_context) } {
        completions.succeeded(index, entry.len, immediate);
    }
}

/// Returns the positive error number of a failure. The verbs provider reports EIO for every failure and keeps
/// the reason in a number of its own, an `ibv_wc_status`.
fn refine(provider: &str, entry: &ffi::fi_cq_err_entry) -> i32 {
    if !provider.starts_with("verbs") {
        return entry.err;
    }
    match entry.prov_errno {
        1 => ffi::PLASMON_ETRUNC,   // local length error
        5 => libc::ECANCELED,       // flushed: the connection broke
        9..=11 => libc::EACCES,     // remote: invalid request, access, operation
        12 | 13 => libc::ETIMEDOUT, // retries exhausted
        _ => entry.err,
    }
}
