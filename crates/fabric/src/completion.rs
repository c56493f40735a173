//! Reads the completion queue and turns its entries into finished operations and events.
//!
//! Engine thread only. The state is borrowed for one entry at a time and never while a future is woken
//! or a buffer released. Lengths are clamped to the buffer: a provider's word is not trusted to be
//! within it.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use crate::domain::Inner;
use crate::endpoint::EndpointId;
use crate::error::{FabricError, describe, string};
use crate::event::Event;
use crate::ffi;
use crate::operation::{OpKind, Operation, Table};

/// Entries read at once.
const BATCH: usize = 32;
/// Batches a poll reads before the caller gets a turn.
const MOST_BATCHES: usize = 16;
/// Errors of a broken queue that one poll reads, so that it ends.
const MOST_ERRORS: usize = 256;

/// Reads what is there and returns the number of entries.
pub(crate) fn drain(inner: &Inner, events: &mut Vec<Event>) -> Result<usize, FabricError> {
    let mut entries = [const { MaybeUninit::<ffi::fi_cq_data_entry>::uninit() }; BATCH];
    let (mut happened, mut batches, mut errors) = (0, 0, 0);
    while batches < MOST_BATCHES && errors < MOST_ERRORS {
        // SAFETY: the queue is open, was opened for entries of this type, and there is room for BATCH.
        let count =
            unsafe { ffi::fi_cq_read(inner.queue.as_ptr(), entries.as_mut_ptr().cast(), BATCH) } as i64;
        match usize::try_from(count) {
            Ok(0) => return Ok(happened),
            Ok(count) => {
                for entry in entries.iter().take(count) {
                    // SAFETY: libfabric has filled the first `count` entries.
                    succeeded(inner, unsafe { entry.assume_init_ref() }, events);
                }
                happened += count;
                batches += 1;
                // Asking once more would look at every connection again, before anybody sees what has come.
                if count < BATCH {
                    return Ok(happened);
                }
            }
            Err(_) if count == -i64::from(libc::EAGAIN) => {
                inner.state.borrow_mut().operations.queue_is_empty();
                return Ok(happened);
            }
            Err(_) if count == -i64::from(ffi::PLASMON_EAVAIL) => {
                happened += usize::from(read_error(inner, events));
                errors += 1;
            }
            Err(_) => return Err(FabricError::call("fi_cq_read", count)),
        }
    }
    Ok(happened)
}

fn succeeded(inner: &Inner, entry: &ffi::fi_cq_data_entry, events: &mut Vec<Event>) {
    let has_data = entry.flags & ffi::PLASMON_REMOTE_CQ_DATA != 0;
    // Only 32 bits are portable; the rest is not ours to interpret.
    let immediate = has_data.then_some(entry.data as u32);
    if entry.flags & ffi::PLASMON_REMOTE_WRITE != 0 {
        if let Some(immediate) = immediate {
            events.push(Event::RemoteWrite { immediate, len: entry.len });
        }
        return;
    }
    let Some(operation) = take(inner, entry.op_context, true) else { return };
    if let Some(next) = operation.next_part() {
        let refused = inner.state.borrow_mut().submit(next);
        if let Some((next, error)) = refused {
            next.finish(Err(error));
        }
    } else if operation.kind() == OpKind::Receive {
        let len = entry.len.min(operation.slice.len());
        let (endpoint, slice) = (operation.endpoint, operation.slice);
        if is_closing(inner, endpoint) {
            return;
        }
        inner.state.borrow_mut().stats.received += 1;
        events.push(Event::Received { endpoint, slice, len, immediate });
    } else {
        operation.finish(Ok(()));
    }
}

/// Reads one error entry; false if there was none.
fn read_error(inner: &Inner, events: &mut Vec<Event>) -> bool {
    let mut entry = ffi::fi_cq_err_entry::default();
    // SAFETY: the queue is open; a zeroed entry asks for error data in the provider's own memory.
    let count = unsafe { ffi::fi_cq_readerr(inner.queue.as_ptr(), &mut entry, 0) };
    if count != 1 {
        return false;
    }
    let text = error_text(inner, &entry);
    let Some(operation) = take(inner, entry.op_context, false) else {
        tracing::debug!(code = entry.err, text, "the fabric reports a failure of no operation");
        return true;
    };
    let code = refine(inner.provider.name(), &entry);
    let kind = operation.kind();
    let error = FabricError::operation(kind, code, text, operation.slice.len());
    tracing::debug!(peer = ?operation.peer, %error, "operation failed");
    if let (Some(peer), Some(posted), true) =
        (operation.peer, operation.posted, inner.provider.breaks_connections())
    {
        inner.state.borrow_mut().renew(peer, posted);
    }
    if kind == OpKind::Receive {
        if is_closing(inner, operation.endpoint) {
            return true;
        }
        events.push(Event::ReceiveFailed { slice: operation.slice, error });
    } else {
        operation.finish(Err(error));
    }
    true
}

/// Takes the operation behind a context out of the table. `None` for contexts of no operation, and of
/// endpoints that have been closed.
fn take(inner: &Inner, context: *const c_void, succeeded: bool) -> Option<Operation> {
    // SAFETY: every context given to the provider came from this domain's table.
    let index = unsafe { Table::index(context) }?;
    let mut state = inner.state.borrow_mut();
    let operation = state.operations.remove(index)?;
    match succeeded {
        true if operation.next_part().is_some() => {}
        true => state.stats.completed += 1,
        false => state.stats.failed += 1,
    }
    if state.stats.queued > 0 {
        state.encourage(operation.endpoint, operation.peer);
    }
    Some(operation)
}

/// Whether the endpoint's owner has dropped it and wants no events of it.
fn is_closing(inner: &Inner, endpoint: EndpointId) -> bool {
    inner.state.borrow_mut().endpoints.get_mut(endpoint).is_none_or(|endpoint| endpoint.closing)
}

/// The general and the provider's own description of a failure.
fn error_text(inner: &Inner, entry: &ffi::fi_cq_err_entry) -> String {
    let general = describe(entry.err);
    // Where connections are sockets, the provider's number is whatever `errno` was, and misleads.
    if entry.prov_errno == 0 || !inner.provider.is_rdma() {
        return general;
    }
    // ofi_rxm looks the text up through one of the queue's endpoints and crashes if there is none.
    if inner.state.borrow().endpoints.is_empty() {
        return general;
    }
    // SAFETY: the queue is open; the error data belongs to the entry just read; no buffer is offered,
    // so the provider returns a static string, its own buffer, or null.
    let text = unsafe {
        string(ffi::fi_cq_strerror(
            inner.queue.as_ptr(),
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

/// The verbs provider reports EIO and keeps the reason in its own number, an `ibv_wc_status`.
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
