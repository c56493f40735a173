//! The requests of clients. Engine thread only.
//!
//! A request that can be answered at once is answered at once. A request that has to wait becomes a task of
//! its client, and ends with the client. A request that fails leaves everything as it was.
//!
//! [`writing`] makes objects, [`reading`] finds them, [`listing`] lists them, [`removing`] deletes and
//! evicts them, [`sharing`] hands out descriptors, and [`lending`] lends memory to work in. [`placement`]
//! puts objects where they are wanted, [`transfer`] tells and asks how they move, and [`overseeing`] asks
//! the other nodes.

mod lending;
mod listing;
mod overseeing;
mod placement;
mod reading;
mod removing;
mod service;
mod sharing;
mod transfer;
mod writing;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures::future::abortable;
use plasmon::wire::{MAX_WAIT, Reply, Request, WireError};
use plasmon::{Error, ErrorKind, ObjectId};

use crate::kernel::ClientKey;
use crate::service::{Answer, Asked, Outcome};
use crate::sessions::Sessions;

pub(super) use lending::Lent;
pub(super) use sharing::cannot_share;
pub(super) use writing::INLINE_MAX;

/// Maximum weight of the requests of one client that are under way, in objects.
const MAX_WEIGHT_UNDER_WAY: usize = MAX_WAIT;
/// The weight of a request that walks the table, in objects.
const WALK_WEIGHT: usize = 128;

impl Sessions {
    /// Has a client's request answered or begun. Returns its cost, in simple requests.
    ///
    /// # Errors
    /// When no client sends such a request: the connection ends.
    pub(crate) fn request(self: &Rc<Self>, asked: Asked) -> Result<usize, WireError> {
        let cost = match &asked.request {
            Request::Get { ids, .. }
            | Request::Wait { ids, .. }
            | Request::Prefetch { ids, .. }
            | Request::Refresh { ids } => ids.len().max(1),
            Request::List | Request::Status | Request::Overview | Request::Subscribe => WALK_WEIGHT,
            _ => 1,
        };
        let (client, number) = (asked.session, asked.number);
        match self.services.on_request(asked)? {
            Answer::Now(outcome) => self.respond(client, number, outcome),
            Answer::Later { weight, task } => self.answer_in_time(client, number, weight, task),
            Answer::Silent => {}
        }
        Ok(cost)
    }

    fn hello(&self, client: ClientKey, name: String) -> Reply {
        self.client_mut(client, |client| {
            client.name = name;
            client.greeted = true;
        });
        let user = self.client(client, |client| client.uid);
        let arena = self.store.arena.borrow();
        Reply::Hello {
            node: self.kernel.node,
            segment_size: arena.segment_size(),
            segments: arena.segment_count(),
            inline_max: INLINE_MAX,
            user,
            capacity: arena.capacity(),
        }
    }

    fn set_options(&self, client: ClientKey, name: Option<String>, quota: Option<u64>) -> Reply {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            self.client_mut(client, |client| client.name = name);
        }
        if let Some(quota) = quota {
            self.store.quotas.borrow_mut().limit_client(client, Some(quota).filter(|quota| *quota > 0));
        }
        Reply::Done
    }

    fn respond(&self, client: ClientKey, request: u64, outcome: Outcome) {
        match outcome {
            Ok((reply, descriptors)) => self.send_reply(client, request, &reply, descriptors),
            Err(error) => self.reply(client, request, &Reply::Failed { error }),
        }
    }

    /// Answers at once if that is possible, or else when the task is done.
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

    /// Runs a request that has to wait, for so many objects; it ends with its client.
    fn wait(
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
            // An aborted task was removed from the list already: its number may be another request's by
            // now.
            if task.await.is_ok() {
                sessions.client_mut(client, |client| client.waiting.remove(&request));
            }
            sessions.arrive(client, objects);
        });
    }

    /// Adds to a client's weight under way; `false` if that would be too much.
    fn set_out(&self, client: ClientKey, objects: usize) -> bool {
        let counted = self.client_mut(client, |client| {
            let room = client.under_way + objects <= MAX_WEIGHT_UNDER_WAY;
            client.under_way += if room { objects } else { 0 };
            room
        });
        counted == Some(true)
    }

    /// Subtracts what [`Sessions::set_out`] has added.
    fn arrive(&self, client: ClientKey, objects: usize) {
        self.client_mut(client, |client| client.under_way -= objects);
    }

    /// Ends a request that waits; its reply says that it was interrupted.
    fn cancel(&self, client: ClientKey, request: u64) {
        let waiting = self.client_mut(client, |client| client.waiting.remove(&request));
        if let Some(waiting) = waiting.flatten() {
            waiting.abort();
            let error = Error::new(ErrorKind::Interrupted, "the client no longer waits");
            self.reply(client, request, &Reply::Failed { error });
        }
    }
}

fn exists(id: ObjectId, what: &str) -> Error {
    let text = format!("object {id} {what}; objects never change: use another id, or delete it first");
    Error::new(ErrorKind::Exists, text)
}

fn busy() -> Error {
    let text =
        format!("this client waits for {MAX_WEIGHT_UNDER_WAY} objects already; let some of them come first");
    Error::new(ErrorKind::Busy, text)
}
