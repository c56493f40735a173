//! State of a connection: frames to send, and requests whose replies are still to come.
//!
//! Owns the outbox, the open requests and the bell of an event loop. Any thread, under the connection's lock.
//! Invariant: a request is open until its reply was taken, or was undone because its caller gave up.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar};

use bytes::BytesMut;

use super::pending::Bell;
use crate::wire::{Reply, Request};
use crate::{Error, ErrorKind, ObjectId};

/// Frames to send and requests under way of a connection.
#[derive(Default)]
pub(super) struct State {
    /// Whole frames to send. The first may be sent in part.
    pub(super) outbox: BytesMut,
    /// Number of bytes sent before those in the outbox.
    pub(super) sent: u64,
    /// Descriptors to send, each with the position in the byte stream of its frame's first byte.
    pub(super) files: VecDeque<(u64, OwnedFd)>,
    /// Number of the last request.
    pub(super) last_request: u64,
    /// Requests whose replies have not been taken yet, by number.
    pub(super) open: HashMap<u64, Open>,
    /// Objects that calls of `pin` have pinned.
    pub(super) pinned: HashSet<ObjectId>,
    /// Bell that wakes an event loop, if one watches the connection.
    pub(super) bell: Option<Bell>,
    /// Whether a caller reads the socket now.
    pub(super) leading: bool,
    /// Error that ended the connection, if the connection has ended.
    pub(super) broken: Option<Error>,
}

/// Request whose whole reply has not been taken yet.
pub(super) struct Open {
    /// Frames of the reply that have come.
    pub(super) replies: Vec<Reply>,
    /// Whether the whole reply has come.
    pub(super) complete: bool,
    /// Whether no caller waits for the reply.
    pub(super) abandoned: bool,
    /// Whether the request's caller sleeps on `wake`.
    pub(super) asleep: bool,
    /// Action if the reply comes and no caller waits for the reply any more.
    pub(super) undo: Undo,
    /// Condition on which the request's caller sleeps.
    pub(super) wake: Arc<Condvar>,
}

/// Action that undoes a reply after the request's caller has given up.
pub(in crate::client) enum Undo {
    /// Nothing to undo. The request is not cancelled.
    Nothing,
    /// Nothing to undo. The request is cancelled.
    Cancel,
    /// Release the pins that the reply gave. The request is cancelled.
    Release,
    /// Unpin the object, unless another call has pinned it. The request is cancelled.
    Unpin(ObjectId),
    /// Give the lent memory back. The request is cancelled.
    Lend,
    /// Abort the creation. The request is cancelled.
    Abort(ObjectId),
    /// End the handle. The request is cancelled.
    Unmap,
    /// End the port. The request is cancelled.
    Unserve,
    /// End the handle to the service. The request is cancelled.
    Leave,
    /// End the handle to the lock. The request is cancelled.
    CloseLock,
    /// End the handle to the barrier. The request is cancelled.
    CloseBarrier,
}

impl State {
    /// Queues a frame and returns the number of its request. `abandoned` says that no caller waits for the
    /// reply.
    pub(super) fn enqueue(&mut self, request: &Request, undo: Undo, abandoned: bool) -> u64 {
        self.last_request += 1;
        let number = self.last_request;
        request.encode(number, &mut self.outbox);
        if request.is_answered() {
            let (replies, wake) = (Vec::new(), Arc::default());
            let open = Open { replies, complete: false, abandoned, asleep: false, undo, wake };
            self.open.insert(number, open);
        }
        number
    }

    /// Takes a frame of the reply to the request `number`. A frame for no open request ends the connection.
    pub(super) fn deliver(&mut self, number: u64, reply: Reply) {
        let Some(open) = self.open.get_mut(&number) else {
            // Either the daemon tells why it will hang up, or it broke the protocol.
            let error = match reply {
                Reply::Failed { error, .. } => error,
                _ => Error::new(
                    ErrorKind::Internal,
                    "the daemon answered a request that this client did not make",
                ),
            };
            return self.fail(error);
        };
        open.complete = !matches!(reply, Reply::List { more: true, .. });
        open.replies.push(reply);
        if !open.complete {
            return;
        }
        if open.abandoned {
            self.undo(number);
        } else {
            open.wake.notify_one();
            self.ring(number);
        }
    }

    /// Removes a request and returns all frames of its reply.
    pub(super) fn take(&mut self, number: u64) -> Vec<Reply> {
        let Some(open) = self.open.remove(&number) else { return Vec::new() };
        if let (Undo::Unpin(id), Some(Reply::Done)) = (&open.undo, open.replies.last()) {
            self.pinned.insert(*id);
        }
        open.replies
    }

    /// Removes a request whose reply has come, and takes back what the reply gave.
    pub(super) fn undo(&mut self, number: u64) {
        let Some(open) = self.open.remove(&number) else { return };
        match (open.undo, open.replies.last()) {
            (Undo::Release, Some(Reply::Got { objects, .. })) => {
                let offsets: Vec<_> = objects.iter().flatten().map(|span| span.offset).collect();
                if !offsets.is_empty() {
                    self.enqueue(&Request::Release { offsets }, Undo::Nothing, true);
                }
            }
            (Undo::Unpin(id), Some(Reply::Done)) => {
                let wanted = |open: &Open| matches!(open.undo, Undo::Unpin(other) if other == id);
                if !self.pinned.contains(&id)
                    && !self.open.values().any(|open| !open.abandoned && wanted(open))
                {
                    self.enqueue(&Request::Unpin { id }, Undo::Nothing, true);
                }
            }
            (Undo::Lend, Some(Reply::Lent { buffer, .. })) => {
                let buffer = *buffer;
                self.enqueue(&Request::GiveBack { buffer }, Undo::Nothing, true);
            }
            (Undo::Unmap, Some(Reply::RegionMapped { handle, .. })) => {
                let handle = *handle;
                self.enqueue(&Request::UnmapRegion { handle }, Undo::Nothing, true);
            }
            (Undo::Unserve, Some(Reply::Serving { port })) => {
                let port = *port;
                self.enqueue(&Request::Unserve { port }, Undo::Nothing, true);
            }
            (Undo::Leave, Some(Reply::ServiceFound { service, .. })) => {
                let service = *service;
                self.enqueue(&Request::LeaveService { service }, Undo::Nothing, true);
            }
            (Undo::CloseLock, Some(Reply::LockOpened { lock })) => {
                let lock = *lock;
                self.enqueue(&Request::CloseLock { lock }, Undo::Nothing, true);
            }
            (Undo::CloseBarrier, Some(Reply::BarrierOpened { barrier })) => {
                let barrier = *barrier;
                self.enqueue(&Request::CloseBarrier { barrier }, Undo::Nothing, true);
            }
            (Undo::Abort(id), Some(Reply::Created { .. })) => {
                self.enqueue(&Request::Abort { id }, Undo::Nothing, true);
            }
            _ => {}
        }
    }

    /// Ends the connection. All open and all later requests fail with `error`.
    pub(super) fn fail(&mut self, error: Error) {
        self.broken.get_or_insert(error);
        self.outbox.clear();
        self.files.clear();
        self.open.values().for_each(|open| open.wake.notify_one());
        self.ring_all();
    }

    /// Notes whether the caller of the request `number` sleeps.
    pub(super) fn set_asleep(&mut self, number: u64, asleep: bool) {
        if let Some(open) = self.open.get_mut(&number) {
            open.asleep = asleep;
        }
    }

    /// Wakes a sleeping caller to lead, if no caller leads.
    pub(super) fn hand_over(&self) {
        if !self.leading
            && let Some(heir) = self.open.values().find(|open| open.asleep)
        {
            heir.wake.notify_one();
        }
    }
}
