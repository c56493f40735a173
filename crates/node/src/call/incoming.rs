//! Calls that have come to this node, from its own clients and from other nodes. Owns [`Incoming`].
//! Engine thread only.
//!
//! Invariants: a call is answered once. It is given to one thread of a server at most, and to none
//! once its time is over or its caller has gone. A call that was given to no thread is answered as
//! one that was not carried out. A call that was given to a thread and not answered is answered as
//! one whose outcome is not known.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::channel::oneshot;
use plasmon::{Error, ErrorKind, NodeId};

use super::Calls;
use super::bodies::{Body, Told};
use super::frames::CallFrame;
use crate::kernel::clock::Clock;
use crate::net::frame::{Envelope, Message};

/// The outcome of a call that a function has answered.
pub(super) struct Ended {
    pub(super) body: Body,
    /// Time in which the call waited for a thread.
    pub(super) queue: Duration,
    /// Time that the function took.
    pub(super) function: Duration,
}

/// The caller that waits for the answer.
pub(super) enum Asker {
    /// A client of this node.
    Here(oneshot::Sender<Result<Ended, Error>>),
    /// A client of another node, which has sent this frame.
    There(Box<Envelope>),
}

/// A call that has come.
pub(super) struct Incoming {
    calls: Weak<Calls>,
    clock: Rc<Clock>,
    /// Place of the function in the list of the service.
    pub(super) function: u16,
    pub(super) user: u32,
    /// Node of the caller.
    pub(super) from: NodeId,
    pub(super) body: Rc<Body>,
    /// Time at which the caller stops waiting.
    pub(super) due: Instant,
    arrived: Instant,
    begun: Cell<Option<Instant>>,
    one_way: bool,
    asker: RefCell<Option<Asker>>,
    gone: Cell<bool>,
}

/// Facts about a call that are known before the call comes to a port.
pub(super) struct Arriving {
    pub(super) user: u32,
    pub(super) from: NodeId,
    pub(super) body: Rc<Body>,
    pub(super) due: Instant,
    pub(super) one_way: bool,
    pub(super) asker: Asker,
}

/// Makes the error for a call that was not carried out here, and may be carried out by another node.
pub(super) fn nobody_here(node: NodeId) -> Error {
    let text = format!("no server of this service is on node {node} any more; the function was not run");
    Error::new(ErrorKind::NotHere, text)
}

impl Incoming {
    pub(super) fn new(calls: &Rc<Calls>, function: u16, arriving: Arriving) -> Rc<Self> {
        Self::with(Rc::downgrade(calls), &calls.kernel.clock, function, arriving)
    }

    /// Makes a call. Answers to other nodes are sent by `calls`.
    pub(super) fn with(calls: Weak<Calls>, clock: &Rc<Clock>, function: u16, arriving: Arriving) -> Rc<Self> {
        let Arriving { user, from, body, due, one_way, asker } = arriving;
        Rc::new(Self {
            calls,
            clock: Rc::clone(clock),
            function,
            user,
            from,
            body,
            due,
            arrived: clock.now(),
            begun: Cell::default(),
            one_way,
            asker: RefCell::new(Some(asker)),
            gone: Cell::default(),
        })
    }

    /// Whether no caller waits for the answer, so that the function need not run.
    pub(super) fn caller_gone(&self) -> bool {
        let has_gone = |asker: &Asker| matches!(asker, Asker::Here(sender) if sender.is_canceled());
        let asker = self.asker.borrow();
        // The caller of a one-way call that was accepted does not wait, and the function still runs.
        self.gone.get() || asker.as_ref().map_or(!self.one_way, has_gone)
    }

    /// Notes that the caller no longer waits. A call that no thread has is not run any more, and is
    /// answered so.
    pub(super) fn give_up(&self) {
        if self.asker.borrow().is_some() {
            self.gone.set(true);
            if !self.is_begun() {
                self.refuse_late();
            }
        }
    }

    /// Answers that no thread was given the call in time.
    pub(super) fn refuse_late(&self) {
        let text = "no thread of a server took the call within its time-out; the function was not run";
        self.answer(Err(Error::new(ErrorKind::TimedOut, text)));
    }

    /// Whether a thread of a server has the call.
    pub(super) fn is_begun(&self) -> bool {
        self.begun.get().is_some()
    }

    /// Notes that a thread of a server has the call.
    pub(super) fn begin(&self, now: Instant) {
        self.begun.set(Some(now));
    }

    /// Tells the sender of a call without a reply that a server has it, once its data are here.
    pub(super) fn accept(&self) {
        if self.one_way {
            self.answer(Ok(Body::carried(Bytes::new())));
        }
    }

    /// Answers the call, unless it has been answered.
    pub(super) fn answer(&self, result: Result<Body, Error>) {
        let Some(asker) = self.asker.take() else { return };
        // The caller's node may use the room in the window again once it has the answer.
        self.body.leave_window();
        let now = self.clock.now();
        let begun = self.begun.get().unwrap_or(now);
        let ended = result.map(|body| Ended {
            body,
            queue: begun.saturating_duration_since(self.arrived),
            function: now.saturating_duration_since(begun),
        });
        match asker {
            // The caller may have gone.
            Asker::Here(sender) => drop(sender.send(ended)),
            Asker::There(asked) => {
                if let Some(calls) = self.calls.upgrade() {
                    calls.return_to(&asked, ended);
                }
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.asker.get_mut().is_some() {
            let Some(node) = self.calls.upgrade().map(|calls| calls.kernel.node) else { return };
            let lost = || Error::new(ErrorKind::OutcomeUnknown, format!("node {node} has lost the call"));
            self.answer(Err(if self.is_begun() { lost() } else { nobody_here(node) }));
        }
    }
}

impl Calls {
    /// Sends the outcome of a call to the node of its caller.
    fn return_to(&self, asked: &Envelope, ended: Result<Ended, Error>) {
        let to = asked.reply_to;
        if !self.cluster.is_member(to) {
            // No caller waits on that node, and it would not say that it is done with a reply that was lent.
            return;
        }
        let told = ended.and_then(|ended| match self.told(&ended.body, to) {
            Ok(told) => Ok((told, ended)),
            Err(error) => {
                let text = format!("the function was run, and its reply cannot be sent: {error}");
                Err(Error::new(ErrorKind::OutcomeUnknown, text))
            }
        });
        match told {
            Ok((told, Ended { body, queue, function })) => {
                let (written, Told { data, pieces, written: kept }) = (told.place(), told);
                let lent = if body.is_lent() { self.lend(to, body, kept) } else { 0 };
                let [queue_ns, function_ns] =
                    [queue, function].map(|time| time.as_nanos().try_into().unwrap_or(u64::MAX));
                let returned = CallFrame::Returned { data, pieces, written, lent, queue_ns, function_ns };
                self.network.answer(asked, returned);
            }
            Err(error) => self.network.answer(asked, Message::Refused { error }),
        }
    }
}
