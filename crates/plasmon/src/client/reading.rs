//! Calls that find objects: get, wait, contains, and questions about objects and nodes.
//!
//! Owns no state. Any thread. Invariant: an object is returned only while this client has it pinned.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::connection::{Interrupt, Ticket, Undo, unexpected};
use super::due::{Due, due, rest};
use super::fast::Looked;
use super::object::Object;
use super::{Client, by_chunks, longest_of_get};
use crate::overview::Overview;
use crate::status::Status;
use crate::transfer::{Calibration, Explanation, Location};
use crate::wire::{MAX_IDS, MAX_WAIT_IDS, Presence, Request, replies, requests};
use crate::{Error, ErrorKind, NodeId, ObjectId, Result};

impl Client {
    /// Waits until the objects are sealed, on any node, and brings them to this host. Returns one result an
    /// id, in order. Without a time-out the call waits without limit. An object in this host's memory takes
    /// no system call.
    ///
    /// With a time-out of zero the call waits for no object to be created. The call brings the objects that
    /// exist, however long that takes. For each other object the node that keeps its entry is asked once;
    /// that node asks a node that is creating the object. An object whose id was drawn at random for it may
    /// be missed for the time of a message after its seal.
    ///
    /// # Errors
    /// For one object, among the results: `TimedOut`, `Lost`, `Damaged`, `NotAllowed`, `Full` and others.
    /// With a time-out of zero `NotFound` if the object is not in the cluster, and `TimedOut` if the node
    /// that knows this, or the daemon, does not answer within one second. For the call: `Disconnected`.
    pub fn get(&self, ids: &[ObjectId], timeout: Option<Duration>) -> Result<Vec<Result<Object>>> {
        match &self.interrupt {
            Some(interrupt) => self.get_all(ids, timeout, Some(&mut || interrupt())),
            None => self.get_all(ids, timeout, None),
        }
    }

    /// Gets objects as [`Client::get`] does, and asks `interrupt` about every 50 ms whether to end.
    /// `interrupt` runs on the calling thread.
    ///
    /// # Errors
    /// As [`Client::get`]. `Interrupted` after `interrupt` returned `true`.
    pub fn get_interruptible(
        &self,
        ids: &[ObjectId],
        timeout: Option<Duration>,
        interrupt: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Result<Object>>> {
        self.get_all(ids, timeout, Some(interrupt))
    }

    /// Gets objects as [`Client::get`] does, with `None` for each that is not in the cluster at the end of
    /// the time-out. Objects that did not come in time cost one more question, and up to one more second.
    ///
    /// # Errors
    /// As [`Client::get`]. `TimedOut` for one object means that nobody knows whether it is in the cluster.
    pub fn get_existing(
        &self,
        ids: &[ObjectId],
        timeout: Option<Duration>,
    ) -> Result<Vec<Result<Option<Object>>>> {
        let mut results = self.get(ids, timeout)?;
        if timeout != Some(Duration::ZERO) {
            let is_late = |at: &usize| matches!(&results[*at], Err(it) if it.kind() == ErrorKind::TimedOut);
            let late: Vec<usize> = (0..ids.len()).filter(is_late).collect();
            let again: Vec<_> = late.iter().map(|at| ids[*at]).collect();
            for (at, result) in late.into_iter().zip(self.get(&again, Some(Duration::ZERO))?) {
                results[at] = result;
            }
        }
        let existing = |result: Result<Object>| match result {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        };
        Ok(results.into_iter().map(existing).collect())
    }

    /// Gets objects of this node alone, from its memory or its disk. Returns one result an id, in order.
    ///
    /// # Errors
    /// For one object, among the results: `NotFound`, `Damaged`, `NotAllowed`, `Full` and others. For the
    /// call: `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn get_local(&self, ids: &[ObjectId]) -> Result<Vec<Result<Object>>> {
        let mut interrupt = || self.interrupt.as_ref().is_some_and(|interrupt| interrupt());
        let local = |ids| Request::Get { timeout_us: 0, verify: self.verifies, ids };
        self.get_by(ids, local, (due(Some(Duration::ZERO)), self.due_of_answer()), Some(&mut interrupt))
    }

    /// Gets an object that is in this host's memory. `None` if the object is not there, or if the daemon has
    /// to be asked. The call takes no system call and less than a microsecond.
    #[inline]
    pub fn get_here(&self, id: &ObjectId) -> Option<Object> {
        match self.connection.fast()?.get(self.connection.arena(), id) {
            Looked::Here(view, pin) => Some(Object::fast(Arc::clone(&self.connection), *id, view, pin)),
            _ => None,
        }
    }

    fn get_all(
        &self,
        ids: &[ObjectId],
        timeout: Option<Duration>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Vec<Result<Object>>> {
        let longest = longest_of_get(self, timeout);
        let request = |ids| get_request(self, ids, timeout, longest);
        self.get_by(ids, request, (due(timeout), longest), interrupt)
    }

    /// Gets objects that are not in this host's memory by requests, at most until `due`, or `longest` as long
    /// as the daemon lives.
    fn get_by(
        &self,
        ids: &[ObjectId],
        request: impl Fn(Vec<ObjectId>) -> Request,
        (due, longest): (Due, Due),
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<Vec<Result<Object>>> {
        let mut results: Vec<Option<Result<Object>>> =
            ids.iter().map(|id| self.get_here(id).map(Ok)).collect();
        let mut asked: Vec<usize> = (0..ids.len()).filter(|at| results[*at].is_none()).collect();
        let renewed = match asked.first().map(|first| bring_tables_up_to_date(self, &ids[*first], due)) {
            Some(Err(error)) if error.kind() != ErrorKind::TimedOut => return Err(error),
            renewed => renewed == Some(Ok(true)),
        };
        if renewed {
            asked.retain(|at| {
                results[*at] = self.get_here(&ids[*at]).map(Ok);
                results[*at].is_none()
            });
        }
        // All requests are sent before the first reply is awaited, so that they share the time-out.
        let requests: Vec<(&[usize], Ticket<'_>)> = asked
            .chunks(MAX_IDS)
            .map(|places| {
                let request = request(places.iter().map(|at| ids[*at]).collect());
                let ticket = self.connection.send(&request, Undo::Release)?;
                Ok((places, ticket.while_alive(longest)))
            })
            .collect::<Result<_>>()?;
        for (places, ticket) in requests {
            let interrupt = interrupt.as_mut().map(|interrupt| &mut **interrupt as Interrupt<'_>);
            let objects = match ticket.wait(due, interrupt) {
                Ok(reply) => self.connection.only::<requests::Get>(reply)?.objects,
                // Objects that other requests brought, or that were here, are still returned.
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    places.iter().for_each(|at| results[*at] = Some(Err(error.clone().about(ids[*at]))));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let told = self.connection.one_each(places, objects)?;
            let objects = Object::take_over(&self.connection, places.iter().map(|at| &ids[*at]), told)?;
            places.iter().zip(objects).for_each(|(at, object)| results[*at] = Some(object));
        }
        let missing = || Err(unexpected("fewer results than requested"));
        let results = results.into_iter().map(|result| result.unwrap_or_else(missing));
        Ok(results.map(|result| compared(self, result?)).collect())
    }

    /// Waits until `count` of the objects are in this host's memory or cannot come. Returns for each id, in
    /// order, whether the object is in memory. At most 65,536 ids. For more than 1,024 ids, a daemon that
    /// lives gets the time that it needs to look them up, beyond the time-out. `interrupt` works as in
    /// [`Client::get_interruptible`].
    ///
    /// # Errors
    /// `Invalid` for more than 65,536 ids. `Busy` if this client waits for too many objects already.
    /// `Interrupted` after `interrupt` returned `true`. `Disconnected`, or `TimedOut` if the daemon does not
    /// answer.
    pub fn wait(
        &self,
        ids: &[ObjectId],
        count: usize,
        timeout: Option<Duration>,
        interrupt: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Vec<bool>> {
        if ids.len() > MAX_WAIT_IDS {
            let text = format!("one wait takes at most {MAX_WAIT_IDS} objects, not {}", ids.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        // The daemon needs time of its own to look so many objects up, and keeps the time-out then.
        let longest = if ids.len() > MAX_IDS { self.due_of_answer() } else { None };
        let due = due(timeout);
        let (timeout_us, count) = (microseconds(timeout), count.min(ids.len()) as u32);
        let request = Request::Wait { timeout_us, count, ids: ids.to_vec() };
        let ticket = self.connection.send(&request, Undo::Cancel)?.while_alive(longest);
        let reply = ticket.wait(due, interrupt.map(|interrupt| interrupt as Interrupt<'_>))?;
        let replies::Waited(here) = self.connection.only::<requests::Wait>(reply)?;
        self.connection.one_each(ids, here)
    }

    /// Presence of the objects: one answer an id, in order. An object on this host takes no system call.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn contains(&self, ids: &[ObjectId]) -> Result<Vec<Presence>> {
        let mut answers: Vec<_> = ids.iter().map(|id| self.presence_here(id)).collect();
        let asked: Vec<usize> = (0..ids.len()).filter(|at| answers[*at].is_none()).collect();
        if let Some(first) = asked.first() {
            bring_tables_up_to_date(self, &ids[*first], self.due_of_answer())?;
            let unknown: Vec<_> = asked.iter().map(|at| ids[*at]).collect();
            let told =
                by_chunks(self, &unknown, |ids| requests::Contains { ids }, |replies::Contains(told)| told)?;
            asked.iter().zip(told).for_each(|(at, presence)| answers[*at] = Some(presence));
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or(Presence::Absent)).collect())
    }

    /// Presence of an object, if this host's memory tells. `None` if the daemon has to be asked. The call
    /// takes no system call and less than a microsecond.
    #[inline]
    pub fn presence_here(&self, id: &ObjectId) -> Option<Presence> {
        match self.connection.fast()?.contains(id) {
            Ok(true) => Some(Presence::Here),
            Ok(false) => Some(Presence::Absent),
            Err(_) => None,
        }
    }

    /// Marks objects of this host as just used, so that they are evicted later.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn refresh(&self, ids: &[ObjectId]) -> Result<()> {
        for ids in ids.chunks(MAX_IDS) {
            self.ask(requests::Refresh { ids: ids.to_vec() }, Undo::Nothing)?;
        }
        Ok(())
    }

    /// Status report of the node.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer. `Internal` if its report cannot be read.
    pub fn status(&self) -> Result<Status> {
        report(&self.status_json()?)
    }

    /// Overview of every node of the cluster. A node that does not answer within 2 s has a row with the
    /// reason.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer. `Internal` if its report cannot be read.
    pub fn overview(&self) -> Result<Overview> {
        report(&self.overview_json()?)
    }

    /// Overview of the cluster as the daemon wrote it: JSON, possibly with fields of a newer release.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn overview_json(&self) -> Result<String> {
        Ok(self.ask(requests::Overview, Undo::Nothing)?.json)
    }

    /// Explains how an object came to this node, as far as the node remembers.
    ///
    /// # Errors
    /// `NotAllowed` for a private object of another user. `Disconnected`, or `TimedOut` if the daemon does
    /// not answer.
    pub fn explain(&self, id: ObjectId) -> Result<Explanation> {
        report(&self.explain_json(id)?)
    }

    /// Explanation as [`Client::explain`] returns it, as the daemon wrote it: JSON, possibly with fields of a
    /// newer release.
    ///
    /// # Errors
    /// `NotAllowed` for a private object of another user. `Disconnected`, or `TimedOut` if the daemon does
    /// not answer.
    pub fn explain_json(&self, id: ObjectId) -> Result<String> {
        Ok(self.ask(requests::Explain { id }, Undo::Nothing)?.json)
    }

    /// Nodes that hold an object; this node is first if it does. The list may lag behind seals and evictions
    /// by some milliseconds.
    ///
    /// # Errors
    /// `TimedOut` or `Disconnected` if the keeper of the object's shard does not answer.
    pub fn locations(&self, id: ObjectId) -> Result<Vec<Location>> {
        report(&self.ask(requests::Locations { id }, Undo::Nothing)?.json)
    }

    /// Begins to bring objects to this node, so that a later get finds them here. The call returns at once
    /// and pins nothing. The node goes on when this client is gone. For objects that do not exist yet it
    /// waits as long as `timeout` says; with zero it brings only those that exist.
    ///
    /// # Errors
    /// `Busy` if the node is bringing too many objects already. `TimedOut` if the node does not answer within
    /// the time-out: it may bring them all the same.
    pub fn prefetch(&self, ids: &[ObjectId], timeout: Duration) -> Result<()> {
        let timeout_us = microseconds(Some(timeout));
        let (longest, answer) = (longest_of_get(self, Some(timeout)), self.due_of_answer());
        let due = due(Some(timeout)).into_iter().chain(answer).min();
        for ids in ids.chunks(MAX_IDS) {
            let prefetch = requests::Prefetch { timeout_us, ids: ids.to_vec() };
            let ticket = self.connection.send(&prefetch.into(), Undo::Nothing)?.while_alive(longest);
            self.answer_to::<requests::Prefetch>(ticket, due)?;
        }
        Ok(())
    }

    /// Makes the node measure the best transfer parameters towards a peer and use them from then on. The
    /// measurement takes one or two seconds.
    ///
    /// # Errors
    /// `Disconnected` if there is no such node or it ends. `Full` if there is no memory for the measurement.
    pub fn calibrate(&self, peer: NodeId) -> Result<Calibration> {
        report(&self.ask(requests::Calibrate { peer }, Undo::Nothing)?.json)
    }

    /// Status report of the node as the daemon wrote it: JSON, possibly with fields of a newer release.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn status_json(&self) -> Result<String> {
        let replies::Status(json) = self.ask(requests::Status, Undo::Nothing)?;
        Ok(json)
    }
}

/// Asks the daemon for new parts of the object tables, if their lack keeps this object from being found.
/// Returns whether it asked.
fn bring_tables_up_to_date(client: &Client, id: &ObjectId, due: Due) -> Result<bool> {
    if !lacks_tables(client, id) {
        return Ok(false);
    }
    client.ask_until(requests::Tables, Undo::Nothing, due)?;
    Ok(true)
}

/// Whether a client lacks new parts of the object tables, which keeps this object from being found.
pub(super) fn lacks_tables(client: &Client, id: &ObjectId) -> bool {
    let outdated = |fast: &super::fast::Fast| matches!(fast.contains(id), Err(Looked::Outdated));
    client.connection.fast().is_some_and(outdated)
}

/// Reads a JSON report of the daemon.
pub(super) fn report<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| {
        Error::new(
            ErrorKind::Internal,
            format!(
                "the daemon's report cannot be read: {error}. Install the same release of client and daemon"
            ),
        )
    })
}

/// Request of a client for objects with this time-out. `longest` is the end of a call with a time-out of
/// zero.
pub(super) fn get_request(
    client: &Client,
    ids: Vec<ObjectId>,
    timeout: Option<Duration>,
    longest: Due,
) -> Request {
    let verify = client.verifies;
    if timeout != Some(Duration::ZERO) {
        return Request::Get { timeout_us: microseconds(timeout), verify, ids };
    }
    Request::Seek { timeout_us: microseconds(rest(longest)), verify, ids }
}

/// Object as a client returns it: compared with the digest of its seal if the client compares objects.
pub(super) fn compared(client: &Client, object: Object) -> Result<Object> {
    if client.verifies {
        object.verify()?;
    }
    Ok(object)
}

/// Time-out in microseconds, as frames carry it.
pub(super) fn microseconds(timeout: Option<Duration>) -> u64 {
    timeout
        .map_or(u64::MAX, |timeout| u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX).min(u64::MAX - 1))
}
