//! The table of operations, and the futures that watch them.
//!
//! Owns, for every operation from its creation to its completion: the buffer (and through it the
//! buffer's owner and registration) and the context block that the provider scribbles in. Engine
//! thread only. Invariants: a context block never moves and is freed with the table alone, so a
//! provider that reports a completion late touches valid memory; a block is reused only when no
//! completion that names it can be outstanding.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

use crate::endpoint::EndpointId;
use crate::error::FabricError;
use crate::ffi;
use crate::memory::Slice;
use crate::peer::{Peer, Target};

/// Kinds of operation, as errors name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// A message to a peer.
    Send,
    /// A buffer posted for a message.
    Receive,
    /// A one-sided read of a peer's memory.
    Read,
    /// A one-sided write to a peer's memory.
    Write,
    /// Cutting a slice, or copying to or from one.
    Slice,
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpKind::Send => "send",
            OpKind::Receive => "receive",
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Slice => "slice",
        })
    }
}

/// A posted or queued operation. Resolves when its buffer may be used again; a read's data is then
/// here, a write's data is then at the peer. Dropping it cancels nothing.
#[must_use = "an operation may fail"]
pub struct Op(Rc<Shared>);

impl Op {
    /// One that has failed before it began.
    pub(crate) fn failed(error: FabricError) -> Self {
        let shared = Rc::new(Shared::default());
        shared.resolve(Err(error));
        Op(shared)
    }

    pub(crate) fn new() -> (Self, Rc<Shared>) {
        let shared = Rc::new(Shared::default());
        (Op(Rc::clone(&shared)), shared)
    }

    /// The outcome, if there is one yet.
    pub fn result(&self) -> Option<Result<(), FabricError>> {
        self.0.result.borrow().clone()
    }
}

impl Future for Op {
    type Output = Result<(), FabricError>;

    fn poll(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        match self.result() {
            Some(result) => Poll::Ready(result),
            None => {
                *self.0.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Op").field(&self.0.result.borrow()).finish()
    }
}

/// What an [`Op`] and its table entry share.
#[derive(Default)]
pub(crate) struct Shared {
    result: RefCell<Option<Result<(), FabricError>>>,
    waker: RefCell<Option<Waker>>,
}

impl Shared {
    /// Sets the outcome, unless there is one, and wakes the task. May run the executor's code: hold no
    /// borrow of the domain's state.
    pub(crate) fn resolve(&self, result: Result<(), FabricError>) {
        self.result.borrow_mut().get_or_insert(result);
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What an operation does at the other end.
#[derive(Clone, Copy)]
pub(crate) enum Request {
    Receive,
    Send,
    Read { address: u64, key: u64 },
    Write { address: u64, key: u64, immediate: Immediate },
}

/// How a writer's value gets to the peer.
#[derive(Clone, Copy, Default)]
pub(crate) enum Immediate {
    #[default]
    None,
    /// With the data.
    With(u32),
    /// By an empty write, once the data is there.
    After(u32),
}

impl Request {
    pub(crate) fn kind(self) -> OpKind {
        match self {
            Request::Receive => OpKind::Receive,
            Request::Send => OpKind::Send,
            Request::Read { .. } => OpKind::Read,
            Request::Write { .. } => OpKind::Write,
        }
    }
}

/// An entry of the table.
pub(crate) struct Operation {
    pub(crate) request: Request,
    pub(crate) endpoint: EndpointId,
    /// None for receives: anyone may send.
    pub(crate) peer: Option<Peer>,
    pub(crate) slice: Slice,
    /// None for receives: they are reported as events.
    pub(crate) shared: Option<Rc<Shared>>,
    /// Where it was posted to, if it was: the provider will report a completion.
    pub(crate) posted: Option<Target>,
}

impl Operation {
    /// One that nobody waits for.
    pub(crate) fn internal(request: Request, endpoint: EndpointId, slice: Slice) -> Self {
        Operation { request, endpoint, peer: None, slice, shared: None, posted: None }
    }

    pub(crate) fn kind(&self) -> OpKind {
        self.request.kind()
    }

    /// What is still to be done after this part of it has succeeded.
    pub(crate) fn next_part(&self) -> Option<Operation> {
        let Request::Write { address, key, immediate: Immediate::After(value) } = self.request else {
            return None;
        };
        Some(Operation {
            request: Request::Write { address, key, immediate: Immediate::With(value) },
            endpoint: self.endpoint,
            peer: self.peer,
            slice: self.slice.slice(0, 0).ok()?,
            shared: self.shared.clone(),
            posted: None,
        })
    }

    /// Ends it: releases the buffer, then tells whoever waits. Hold no borrow of the domain's state.
    pub(crate) fn finish(self, result: Result<(), FabricError>) {
        drop(self.slice);
        if let Some(shared) = self.shared {
            shared.resolve(result);
        }
    }

    /// Hands the operation to the provider. `target` is the peer's address-vector entry.
    ///
    /// # Safety
    /// `endpoint` is open. `context` is this operation's block, and both stay where they are until the
    /// completion arrives or the endpoint is closed.
    pub(crate) unsafe fn post(
        &self,
        endpoint: NonNull<ffi::fid_ep>,
        target: u64,
        context: *mut c_void,
    ) -> Result<(), i64> {
        let endpoint = endpoint.as_ptr();
        let (buffer, len) = (self.slice.as_ptr().cast::<c_void>(), self.slice.len());
        let mut descriptor = self.slice.region().descriptor();
        // SAFETY: the caller vouches for endpoint and context; the slice lies within a registered
        // region that it keeps alive; the structures built here are only read during the call.
        let code = unsafe {
            match self.request {
                Request::Receive => ffi::fi_recv(endpoint, buffer, len, descriptor, target, context),
                Request::Send => ffi::fi_send(endpoint, buffer, len, descriptor, target, context),
                Request::Read { address, key } => {
                    ffi::fi_read(endpoint, buffer, len, descriptor, target, address, key, context)
                }
                Request::Write { address, key, immediate } => {
                    let local = ffi::iovec { iov_base: buffer, iov_len: len };
                    let remote = ffi::fi_rma_iov { addr: address, len, key };
                    let message = ffi::fi_msg_rma {
                        msg_iov: &local,
                        desc: &mut descriptor,
                        iov_count: 1,
                        addr: target,
                        rma_iov: &remote,
                        rma_iov_count: 1,
                        context,
                        data: match immediate {
                            Immediate::With(value) => value.into(),
                            Immediate::None | Immediate::After(_) => 0,
                        },
                    };
                    // By default a write completes when it is queued. Ours completes when the peer's
                    // side has it.
                    let mut flags = ffi::PLASMON_COMPLETION | ffi::PLASMON_TRANSMIT_COMPLETE;
                    if let Immediate::With(_) = immediate {
                        flags |= ffi::PLASMON_REMOTE_CQ_DATA;
                    }
                    ffi::fi_writemsg(endpoint, &message, flags)
                }
            }
        };
        if code == 0 { Ok(()) } else { Err(code as i64) }
    }
}

/// The block a provider may use while it works on an operation (FI_CONTEXT2), and its place in the
/// table.
#[repr(C)]
struct ContextBlock {
    /// First, because its address is what the provider is given.
    scratch: ffi::fi_context2,
    index: usize,
}

struct Slot {
    /// From a `Box`; a raw pointer, because the provider writes through copies of it.
    block: NonNull<ContextBlock>,
    operation: Option<Operation>,
}

/// All operations of a domain that are not finished.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Emptied by a closed endpoint; a last completion may still lie in the completion queue.
    stale: Vec<usize>,
}

impl Table {
    /// Stores an operation and returns its index.
    pub(crate) fn insert(&mut self, operation: Operation) -> usize {
        if let Some(index) = self.free.pop() {
            self.slots[index].operation = Some(operation);
            return index;
        }
        let index = self.slots.len();
        let block = Box::new(ContextBlock { scratch: ffi::fi_context2::default(), index });
        let block = NonNull::from(Box::leak(block));
        self.slots.push(Slot { block, operation: Some(operation) });
        index
    }

    /// The context to give to the provider.
    pub(crate) fn context(&self, index: usize) -> *mut c_void {
        self.slots[index].block.as_ptr().cast()
    }

    /// The index behind a context that the provider reports; `None` for a null one, which ofi_rxm uses
    /// for failures that belong to no operation, and for remote writes.
    ///
    /// # Safety
    /// `context` is null or came from [`Table::context`] of this table.
    pub(crate) unsafe fn index(context: *const c_void) -> Option<usize> {
        let block = context.cast::<ContextBlock>();
        // SAFETY: blocks are freed with the table only; providers write to `scratch` alone.
        (!block.is_null()).then(|| unsafe { (*block).index })
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Operation> {
        self.slots.get_mut(index)?.operation.as_mut()
    }

    /// Takes out an operation that the provider has finished with, or has never seen.
    pub(crate) fn remove(&mut self, index: usize) -> Option<Operation> {
        let operation = self.slots.get_mut(index)?.operation.take()?;
        self.free.push(index);
        Some(operation)
    }

    /// Takes out everything of an endpoint that has been closed.
    pub(crate) fn remove_endpoint(&mut self, endpoint: EndpointId) -> Vec<Operation> {
        let mut removed = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(operation) = slot.operation.take_if(|it| it.endpoint == endpoint) {
                let reusable = if operation.posted.is_some() { &mut self.stale } else { &mut self.free };
                reusable.push(index);
                removed.push(operation);
            }
        }
        removed
    }

    /// Takes out what the provider has never seen of an endpoint.
    pub(crate) fn remove_queued(&mut self, endpoint: EndpointId) -> Vec<Operation> {
        let mut removed = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let queued = |it: &mut Operation| it.endpoint == endpoint && it.posted.is_none();
            if let Some(operation) = slot.operation.take_if(queued) {
                self.free.push(index);
                removed.push(operation);
            }
        }
        removed
    }

    /// The reads of an endpoint that are under way: address and buffer.
    pub(crate) fn posted_reads(&self, endpoint: EndpointId) -> impl Iterator<Item = (u64, &Slice)> {
        let operations = self.slots.iter().filter_map(|slot| slot.operation.as_ref());
        let reads = operations.filter(move |it| it.endpoint == endpoint && it.kind() == OpKind::Read);
        reads.filter_map(|it| Some((it.posted?.address, &it.slice)))
    }

    /// The completion queue has been seen empty: blocks of closed endpoints are free.
    pub(crate) fn queue_is_empty(&mut self) {
        self.free.append(&mut self.stale);
    }

    /// Those who wait for the operations that `concerned` picks.
    pub(crate) fn waiters(&self, concerned: impl Fn(&Operation) -> bool) -> Vec<(OpKind, Rc<Shared>)> {
        let operations = self.slots.iter().filter_map(|slot| slot.operation.as_ref());
        let concerned = operations.filter(|operation| concerned(operation));
        concerned.filter_map(|it| Some((it.kind(), Rc::clone(it.shared.as_ref()?)))).collect()
    }

    /// Number of operations that are queued or under way.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len() - self.stale.len()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        for slot in &self.slots {
            // SAFETY: made by Box; the domain drops its table after the endpoints and the completion
            // queue are closed, so no one else has the pointer.
            drop(unsafe { Box::from_raw(slot.block.as_ptr()) });
        }
    }
}
