//! Operations: the requests that they make, and the futures that callers watch.
//!
//! Owns, for every [`Operation`], the buffer and through it the buffer's owner and registration. Engine
//! thread only. Invariants: an operation keeps its buffer until it is finished, whether or not anyone holds
//! the [`Op`]; the result of an `Op` is set once.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

use crate::error::FabricError;
use crate::memory::Slice;
use crate::names::{EndpointId, OpKind, Peer, Target};

/// Future of a posted or queued operation. The future resolves when the operation's buffer may be used again.
/// Then the data of a read is in the buffer, and the data of a write is at the peer. Dropping the future
/// cancels nothing.
#[must_use = "an operation may fail"]
pub struct Op(Rc<Shared>);

impl Op {
    /// Makes the future of an operation that failed before it was posted.
    pub(crate) fn failed(error: FabricError) -> Self {
        let shared = Rc::new(Shared::default());
        shared.resolve(Err(error));
        Op(shared)
    }

    /// Makes a future without a result, and the state of the future that the operation keeps.
    pub(crate) fn new() -> (Self, Rc<Shared>) {
        let shared = Rc::new(Shared::default());
        (Op(Rc::clone(&shared)), shared)
    }

    /// Returns the result of the operation, and `None` until the operation is finished.
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

/// Result and waker of an operation, shared by its [`Op`] and its [`Operation`].
#[derive(Default)]
pub(crate) struct Shared {
    result: RefCell<Option<Result<(), FabricError>>>,
    waker: RefCell<Option<Waker>>,
}

impl Shared {
    /// Sets the result, unless it is set already, and wakes the waiting task. The call may run the executor's
    /// code, so the caller holds no borrow of the domain's state.
    pub(crate) fn resolve(&self, result: Result<(), FabricError>) {
        self.result.borrow_mut().get_or_insert(result);
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Request that an operation makes of the provider.
#[derive(Clone, Copy)]
pub(crate) enum Request {
    /// Receive a message from any peer.
    Receive,
    /// Send a message.
    Send,
    /// Read at an address of a peer's region.
    Read { address: u64, key: u64 },
    /// Write at an address of a peer's region.
    Write { address: u64, key: u64, immediate: Immediate, completion: Completion },
}

/// Moment at which a write is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// The data is at the peer, and the peer has acknowledged it.
    Acknowledged,
    /// The buffer may be used again. The data may still get lost, as a message may.
    HandedOver,
}

/// Immediate value of a write, and the way in which the value gets to the peer.
#[derive(Clone, Copy, Default)]
pub(crate) enum Immediate {
    /// The write carries no value.
    #[default]
    None,
    /// The value goes with the data.
    With(u32),
    /// The value follows in an empty write, once the data is at the peer.
    After(u32),
}

impl Request {
    /// Returns the kind of the operation that makes this request.
    pub(crate) fn kind(self) -> OpKind {
        match self {
            Request::Receive => OpKind::Receive,
            Request::Send => OpKind::Send,
            Request::Read { .. } => OpKind::Read,
            Request::Write { .. } => OpKind::Write,
        }
    }
}

/// Operation that is queued or under way.
pub(crate) struct Operation {
    pub(crate) request: Request,
    pub(crate) endpoint: EndpointId,
    /// Peer of the operation. Receives have no peer: any peer may send.
    pub(crate) peer: Option<Peer>,
    pub(crate) slice: Slice,
    /// State of the operation's future. Receives have no future: they are reported as events.
    pub(crate) shared: Option<Rc<Shared>>,
    /// Target that the operation was posted to. Once it is set, the provider will report a completion.
    pub(crate) posted: Option<Target>,
}

impl Operation {
    /// Makes an operation without a future, towards no known peer.
    pub(crate) fn internal(request: Request, endpoint: EndpointId, slice: Slice) -> Self {
        Operation { request, endpoint, peer: None, slice, shared: None, posted: None }
    }

    /// Returns the kind of the operation.
    pub(crate) fn kind(&self) -> OpKind {
        self.request.kind()
    }

    /// Returns the operation that is to follow when this one has succeeded: the empty write that carries an
    /// immediate value.
    pub(crate) fn next_part(&self) -> Option<Operation> {
        let Request::Write { address, key, immediate: Immediate::After(value), completion } = self.request
        else {
            return None;
        };
        Some(Operation {
            request: Request::Write { address, key, immediate: Immediate::With(value), completion },
            endpoint: self.endpoint,
            peer: self.peer,
            slice: self.slice.slice(0, 0).ok()?,
            shared: self.shared.clone(),
            posted: None,
        })
    }

    /// Finishes the operation: releases the buffer, then resolves the future with `result`. The call may run
    /// foreign code, so the caller holds no borrow of the domain's state.
    pub(crate) fn finish(self, result: Result<(), FabricError>) {
        drop(self.slice);
        if let Some(shared) = self.shared {
            shared.resolve(result);
        }
    }
}
