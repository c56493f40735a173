//! Receiver of the completions that a transport reports, which become finished operations and events.
//!
//! Owns no state: it works on the domain's [`State`]. Engine thread only. Invariants: the state is borrowed
//! for one completion at a time, and never while a future is woken or a buffer released; lengths are clamped
//! to the buffer, because the transport is not trusted to keep within it.

use std::cell::RefCell;

use crate::error::FabricError;
use crate::event::Event;
use crate::names::{EndpointId, OpKind};
use crate::operation::Operation;
use crate::provider::Provider;
use crate::state::State;

/// Receiver of the completions of one poll.
pub(crate) struct Completions<'a> {
    provider: &'a Provider,
    state: &'a RefCell<State>,
    events: &'a mut Vec<Event>,
}

impl<'a> Completions<'a> {
    /// Returns a receiver for a domain of `provider` with the state `state`. Events are appended to `events`.
    pub(crate) fn new(provider: &'a Provider, state: &'a RefCell<State>, events: &'a mut Vec<Event>) -> Self {
        Self { provider, state, events }
    }

    /// Returns the provider of the domain.
    pub(crate) fn provider(&self) -> &Provider {
        self.provider
    }

    /// Whether the domain has an endpoint that is open.
    pub(crate) fn has_endpoints(&self) -> bool {
        !self.state.borrow().endpoints.is_empty()
    }

    /// Notes that the transport has no more completions.
    pub(crate) fn queue_is_empty(&mut self) {
        self.state.borrow_mut().operations.queue_is_empty();
    }

    /// Makes the event of a peer's write of `len` bytes with an immediate value.
    pub(crate) fn written(&mut self, immediate: u32, len: usize) {
        self.events.push(Event::RemoteWrite { immediate, len });
    }

    /// Finishes the operation at `index`, which moved `len` bytes, or makes its event.
    pub(crate) fn succeeded(&mut self, index: usize, len: usize, immediate: Option<u32>) {
        let Some(operation) = self.take(index, true) else { return };
        if let Some(next) = operation.next_part() {
            let refused = self.state.borrow_mut().submit(next);
            if let Some((next, error)) = refused {
                next.finish(Err(error));
            }
        } else if operation.kind() == OpKind::Receive {
            let len = len.min(operation.slice.len());
            let (endpoint, slice) = (operation.endpoint, operation.slice);
            if self.is_closing(endpoint) {
                return;
            }
            self.state.borrow_mut().stats.received += 1;
            self.events.push(Event::Received { endpoint, slice, len, immediate });
        } else {
            operation.finish(Ok(()));
        }
    }

    /// Finishes the operation at `index`, which failed with the positive `code`, or makes its event.
    pub(crate) fn failed(&mut self, index: usize, code: i32, text: String) {
        let Some(operation) = self.take(index, false) else {
            tracing::debug!(code, text, "the fabric reports a failure of no operation");
            return;
        };
        let kind = operation.kind();
        let error = FabricError::operation(kind, code, text, operation.slice.len());
        tracing::debug!(peer = ?operation.peer, %error, "operation failed");
        if let (Some(peer), Some(posted), true) =
            (operation.peer, operation.posted, self.provider.breaks_connections())
        {
            self.state.borrow_mut().renew(peer, posted);
        }
        if kind == OpKind::Receive {
            if !self.is_closing(operation.endpoint) {
                self.events.push(Event::ReceiveFailed { slice: operation.slice, error });
            }
        } else {
            operation.finish(Err(error));
        }
    }

    /// Takes the operation at `index` out of the table. Returns `None` if it belonged to an endpoint that has
    /// been closed.
    fn take(&self, index: usize, succeeded: bool) -> Option<Operation> {
        let mut state = self.state.borrow_mut();
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

    /// Whether an endpoint is closed or being closed, so that its owner wants no events.
    fn is_closing(&self, endpoint: EndpointId) -> bool {
        self.state.borrow_mut().endpoints.get_mut(endpoint).is_none_or(|endpoint| endpoint.closing)
    }
}
