//! Requests under way: each is handed to its service, and answered at once or by a task of its client.
//!
//! Owns no state; it changes [`Sessions`]. Engine thread only. Invariants: a task ends with its client. A
//! client has a limited weight of tasks under way.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::future::abortable;
use plasmon::wire::{MAX_WAIT_IDS, Reply, Request, WireError};
use plasmon::{Error, ErrorKind};

use super::Sessions;
use crate::kernel::ClientKey;
use crate::service::{Answer, Asked, Outcome};

/// Maximum weight of the requests of one client that are under way, in objects.
const MAX_WEIGHT_UNDER_WAY: usize = MAX_WAIT_IDS;
/// The weight of a request that walks the table, in objects.
pub(super) const WALK_WEIGHT: usize = 128;

impl Sessions {
    /// Answers a client's request, or begins the task that will. Returns its cost, in simple requests.
    ///
    /// # Errors
    /// When no client sends such a request: the connection ends.
    pub(crate) fn request(self: &Rc<Self>, asked: Asked) -> Result<usize, WireError> {
        let cost = match &asked.request {
            Request::Get { ids, .. }
            | Request::Seek { ids, .. }
            | Request::Wait { ids, .. }
            | Request::Prefetch { ids, .. }
            | Request::Refresh { ids } => ids.len().max(1),
            Request::List { .. }
            | Request::Page { .. }
            | Request::Status
            | Request::Overview
            | Request::Subscribe { .. } => WALK_WEIGHT,
            _ => 1,
        };
        let (client, number) = (asked.session, asked.number);
        self.work_as(client, || {
            match self.services.on_request(asked)? {
                Answer::Now(outcome) => self.respond(client, number, outcome),
                Answer::Later { weight, task } => self.answer_in_time(client, number, weight, task),
                Answer::Silent => {}
            }
            Ok(cost)
        })
    }

    fn respond(&self, client: ClientKey, request: u64, outcome: Outcome) {
        match outcome {
            Ok((reply, descriptors)) => self.send_reply(client, request, &reply, descriptors),
            Err(error) => self.reply(client, request, &Reply::Failed { error }),
        }
    }

    /// Answers at once if the task is done at its first poll, or else when the task is done.
    fn answer_in_time(
        self: &Rc<Self>,
        client: ClientKey,
        request: u64,
        weight: usize,
        mut task: Pin<Box<dyn Future<Output = Outcome>>>,
    ) {
        // The executor polls an unfinished task again, with a waker that wakes.
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => self.respond(client, request, answer),
            Poll::Pending => {
                let sessions = Rc::clone(self);
                self.wait(client, request, weight, async move {
                    let answer = task.await;
                    sessions.respond(client, request, answer);
                });
            }
        }
    }

    /// Runs a request that has to wait, for so many objects. The task ends with its client.
    pub(super) fn wait(
        self: &Rc<Self>,
        client: ClientKey,
        request: u64,
        objects: usize,
        task: impl Future<Output = ()> + 'static,
    ) {
        if !self.set_out(client, objects) {
            return self.reply(client, request, &Reply::Failed { error: busy() });
        }
        let (task, handle) = abortable(task);
        self.client_mut(client, |client| client.waiting.insert(request, handle));
        let sessions = Rc::clone(self);
        self.kernel.spawn(async move {
            // An aborted task was removed from the list already. Another request may have its number by now.
            if task.await.is_ok() {
                sessions.client_mut(client, |client| client.waiting.remove(&request));
            }
            sessions.arrive(client, objects);
        });
    }

    /// Adds to a client's weight under way; `false` if that would be too much.
    pub(super) fn set_out(&self, client: ClientKey, objects: usize) -> bool {
        let counted = self.client_mut(client, |client| {
            let room = client.under_way + objects <= MAX_WEIGHT_UNDER_WAY;
            client.under_way += if room { objects } else { 0 };
            room
        });
        counted == Some(true)
    }

    /// Subtracts a weight that [`Sessions::set_out`] has added.
    pub(super) fn arrive(&self, client: ClientKey, objects: usize) {
        self.client_mut(client, |client| client.under_way -= objects);
    }

    /// Ends a request that waits. Its reply says that it was interrupted.
    pub(super) fn cancel(&self, client: ClientKey, request: u64) {
        let waiting = self.client_mut(client, |client| client.waiting.remove(&request));
        if let Some(waiting) = waiting.flatten() {
            waiting.abort();
            let error = Error::new(ErrorKind::Interrupted, "the client no longer waits");
            self.reply(client, request, &Reply::Failed { error });
        }
    }

    /// The deadline of a request; `None` for one that waits for ever.
    pub(crate) fn due(&self, timeout_us: u64) -> Option<Instant> {
        let due = self.kernel.clock.now().checked_add(Duration::from_micros(timeout_us));
        due.filter(|_| timeout_us != u64::MAX)
    }
}

pub(super) fn busy() -> Error {
    let text =
        format!("this client waits for {MAX_WEIGHT_UNDER_WAY} objects already; let some of them come first");
    Error::new(ErrorKind::Busy, text)
}
