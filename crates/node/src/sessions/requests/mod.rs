//! What clients may ask, request by request. Engine thread only.
//!
//! A request that can be answered at once is; one that has to wait becomes a task of its client,
//! which ends with it. A request that fails leaves everything as it was.
//!
//! [`writing`] makes objects, [`reading`] finds them, [`listing`] lists them, [`removing`] takes them away,
//! [`sharing`] hands out descriptors, [`lending`] memory to work in, [`copies`] puts objects where they are wanted,
//! [`overseeing`] looks at the other nodes.

mod copies;
mod lending;
mod listing;
mod moving;
mod overseeing;
mod reading;
mod removing;
mod sharing;
mod writing;

use std::future::Future;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::abortable;
use plasmon::wire::{MAX_WAIT, Reply, Request};
use plasmon::{Error, ErrorKind, ObjectId};

use crate::engine::Core;
use crate::kernel::ClientKey;

pub(super) use lending::Lent;
pub(super) use sharing::cannot_share;
pub(super) use writing::INLINE_MAX;

/// What the requests of one client may weigh that are not done yet, in objects.
const MAX_WEIGHT_UNDER_WAY: usize = MAX_WAIT;
/// What a request costs that walks the table.
const WALK_WEIGHT: usize = 128;

/// A reply with the descriptors it announces, or why there is none.
type Answer = Result<(Reply, Vec<Arc<OwnedFd>>), Error>;

impl Core {
    /// Answers a client's request, or starts what will. Returns what it cost, in simple requests.
    pub(super) fn request(
        self: &Rc<Self>,
        client: ClientKey,
        request: u64,
        asked: Request,
        file: Option<OwnedFd>,
    ) -> usize {
        let cost = match &asked {
            Request::Get { ids, .. }
            | Request::Wait { ids, .. }
            | Request::Prefetch { ids, .. }
            | Request::Refresh { ids } => ids.len().max(1),
            Request::List | Request::Status | Request::Overview | Request::Subscribe => WALK_WEIGHT,
            _ => 1,
        };
        match asked {
            Request::Hello { name } => self.answer_now(client, request, Ok(self.hello(client, name))),
            Request::Put { object, digest, room_us, data } => {
                let weight = writing::weight(data.len());
                let put = Rc::clone(self).put(client, object, digest, Duration::from_micros(room_us), data);
                self.answer_in_time(client, request, weight, put);
            }
            Request::Create { object, data_len, metadata_len, room_us } => {
                let room = Duration::from_micros(room_us);
                let create = Rc::clone(self).create(client, object, (data_len, metadata_len), room);
                self.answer_in_time(client, request, 1, create);
            }
            Request::Seal { id, digest, data } => {
                let weight = writing::weight(data.len());
                self.answer_in_time(
                    client,
                    request,
                    weight,
                    Rc::clone(self).seal_for(client, id, digest, data),
                );
            }
            Request::Abort { id } => {
                let aborted = self.abort(client, id);
                self.answer_now(client, request, aborted.map(|()| Reply::Done));
            }
            Request::Get { timeout_us, ids } => self.get(client, request, timeout_us, ids),
            Request::Wait { timeout_us, count, ids } => {
                self.wait_for(client, request, timeout_us, count as usize, ids);
            }
            Request::Release { offsets } => self.release(client, &offsets),
            Request::Contains { ids } => self.contains(client, request, ids),
            Request::Refresh { ids } => self.answer_now(client, request, Ok(self.refresh(client, &ids))),
            Request::Delete { ids } => self.delete(client, request, ids),
            Request::Evict { bytes } => {
                let bytes = self.evict(bytes);
                self.answer_now(client, request, Ok(Reply::Evicted { bytes }));
            }
            Request::List => self.list(client, request),
            Request::Status => self.answer_now(client, request, Ok(Reply::Status(self.status_json()))),
            Request::Overview => {
                let overview = plain(Rc::clone(self).overview());
                self.answer_in_time(client, request, WALK_WEIGHT, overview);
            }
            Request::Options { name, quota } => {
                let reply = self.set_options(client, name, quota);
                self.answer_now(client, request, Ok(reply));
            }
            Request::Subscribe => self.subscribe(client, request),
            Request::Channel => self.respond(client, request, self.open_channel(client)),
            Request::Tables => self.respond(client, request, self.share_tables(client)),
            Request::Explain { id } => self.answer_now(client, request, self.explain_to(client, &id)),
            Request::Locations { id } => {
                let located = plain(Rc::clone(self).locations(client, id));
                self.answer_in_time(client, request, 1, located);
            }
            Request::Prefetch { timeout_us, ids } => {
                self.answer_now(client, request, self.prefetch(client, timeout_us, &ids));
            }
            Request::Calibrate { peer } => {
                let calibrated = plain(Rc::clone(self).calibrate_to(peer));
                self.answer_in_time(client, request, WALK_WEIGHT, calibrated);
            }
            Request::Lend { len, private, room_us } => {
                let room = Duration::from_micros(room_us);
                self.answer_in_time(client, request, 1, Rc::clone(self).lend_to(client, len, private, room));
            }
            Request::Adopt { len } => {
                // Requests come with as many as they have.
                let adopted = file.map(|file| self.adopt(client, len, &file));
                let missing =
                    || Err(Error::new(ErrorKind::Invalid, "memory to register came without its file"));
                self.answer_now(client, request, adopted.unwrap_or_else(missing));
            }
            Request::GiveBack { buffer } => self.take_back(client, buffer),
            Request::GetInto { timeout_us, id, buffer, at, room } => {
                let place = (buffer, at, room);
                let got = plain(Rc::clone(self).get_into(client, timeout_us, id, place));
                self.answer_in_time(client, request, 1, got);
            }
            Request::PutFrom { object, digest, buffer, data_len } => {
                let put = Rc::clone(self).put_from(client, object, digest, (buffer, data_len));
                self.answer_in_time(client, request, 1, put);
            }
            Request::Replicate { timeout_us, id, copies } => {
                let made = plain(Rc::clone(self).replicate_for(client, timeout_us, id, copies));
                self.answer_in_time(client, request, 1, made);
            }
            Request::Migrate { timeout_us, id, node } => {
                let moved = plain(Rc::clone(self).migrate_for(client, timeout_us, id, node));
                self.answer_in_time(client, request, 1, moved);
            }
            Request::Drain { node, step } => {
                let drained = plain(Rc::clone(self).drain_for(client, node, step));
                self.answer_in_time(client, request, 1, drained);
            }
            Request::Broadcast { timeout_us, id, nodes } => {
                let done = plain(Rc::clone(self).broadcast_for(client, timeout_us, id, nodes));
                self.answer_in_time(client, request, 1, done);
            }
            Request::Pin { timeout_us, id } => {
                let pinned = plain(Rc::clone(self).pin_for(client, timeout_us, id));
                self.answer_in_time(client, request, 1, pinned);
            }
            Request::Unpin { id } => {
                self.unpin_for(client, &id);
                self.answer_now(client, request, Ok(Reply::Done));
            }
            Request::Cancel { request } => self.cancel(client, request),
        }
        cost
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

    fn answer_now(&self, client: ClientKey, request: u64, answer: Result<Reply, Error>) {
        self.respond(client, request, answer.map(|reply| (reply, Vec::new())));
    }

    fn respond(&self, client: ClientKey, request: u64, answer: Answer) {
        match answer {
            Ok((reply, descriptors)) => self.send_reply(client, request, &reply, descriptors),
            Err(error) => self.reply(client, request, &Reply::Failed { error }),
        }
    }

    /// Answers at once if that is possible, else when the task is done.
    fn answer_in_time(
        self: &Rc<Self>,
        client: ClientKey,
        request: u64,
        weight: usize,
        task: impl Future<Output = Answer> + 'static,
    ) {
        let mut task = Box::pin(task);
        // Whoever is not ready is asked again by the executor, with a waker that wakes.
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => self.respond(client, request, answer),
            Poll::Pending => {
                let core = Rc::clone(self);
                self.wait(client, request, weight, async move {
                    let answer = task.await;
                    core.respond(client, request, answer);
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
        let core = Rc::clone(self);
        self.kernel.spawn(async move {
            // Whoever aborted it has taken it off the list: the id may be another request's by now.
            if task.await.is_ok() {
                core.client_mut(client, |client| client.waiting.remove(&request));
            }
            core.arrive(client, objects);
        });
    }

    /// Counts what a client has under way, if that is not too much.
    fn set_out(&self, client: ClientKey, objects: usize) -> bool {
        let counted = self.client_mut(client, |client| {
            let room = client.under_way + objects <= MAX_WEIGHT_UNDER_WAY;
            client.under_way += if room { objects } else { 0 };
            room
        });
        counted == Some(true)
    }

    /// What [`Core::set_out`] counted is done.
    fn arrive(&self, client: ClientKey, objects: usize) {
        self.client_mut(client, |client| client.under_way -= objects);
    }

    /// Ends a request that waits; its last word is that it was interrupted.
    fn cancel(&self, client: ClientKey, request: u64) {
        let waiting = self.client_mut(client, |client| client.waiting.remove(&request));
        if let Some(waiting) = waiting.flatten() {
            waiting.abort();
            let error = Error::new(ErrorKind::Interrupted, "the client no longer waits");
            self.reply(client, request, &Reply::Failed { error });
        }
    }
}

/// An answer without descriptors.
async fn plain(reply: impl Future<Output = Result<Reply, Error>>) -> Answer {
    Ok((reply.await?, Vec::new()))
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
