//! Finding objects: get, wait, contains, and what is asked about them.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::Client;
use super::connection::{Interrupt, Ticket, Undo, unexpected};
use super::due::{Due, due};
use super::fast::Looked;
use super::object::Object;
use crate::overview::Overview;
use crate::status::Status;
use crate::transfer::{Calibration, Explanation, Location};
use crate::wire::{MAX_IDS, MAX_WAIT, ObjectInfo, Presence, Request, replies, requests};
use crate::{Error, ErrorKind, NodeId, ObjectId, Result};

impl Client {
    /// Waits until the objects are sealed, wherever that is, and brings them to this host: one
    /// result an id, in order. Without a time-out it waits for ever; a time-out of zero takes
    /// only what is on this node. What is in this host's memory already takes no system call.
    ///
    /// # Errors
    /// For one object, among the results: `TimedOut` (`NotFound` if it had no time), `Lost`, `Damaged`,
    /// `NotAllowed`, `Full` and others; `TimedOut` also when the daemon is silent at the time-out, or after a
    /// second if that is zero. For the call: `Disconnected`.
    pub fn get(&self, ids: &[ObjectId], timeout: Option<Duration>) -> Result<Vec<Result<Object>>> {
        match &self.interrupt {
            Some(interrupt) => self.get_all(ids, timeout, Some(&mut || interrupt())),
            None => self.get_all(ids, timeout, None),
        }
    }

    /// Waits as [`Client::get`] does, and asks `interrupt` about every 50 ms whether to go on; it
    /// runs on the calling thread.
    ///
    /// # Errors
    /// As [`Client::get`], and `Interrupted` once `interrupt` returned `true`.
    pub fn get_interruptible(
        &self,
        ids: &[ObjectId],
        timeout: Option<Duration>,
        interrupt: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Result<Object>>> {
        self.get_all(ids, timeout, Some(interrupt))
    }

    /// An object that is in this host's memory; nothing if it is not, or the daemon has to be asked. Takes
    /// no system call, and a fraction of a microsecond.
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
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<Vec<Result<Object>>> {
        let mut results: Vec<Option<Result<Object>>> =
            ids.iter().map(|id| self.get_here(id).map(Ok)).collect();
        let mut asked: Vec<usize> = (0..ids.len()).filter(|at| results[*at].is_none()).collect();
        let due = if asked.is_empty() { None } else { self.due_of_get(ids, timeout) };
        let renewed = match asked.first().map(|first| self.bring_tables_up_to_date(&ids[*first], due)) {
            Some(Err(error)) if error.kind() != ErrorKind::TimedOut => return Err(error),
            renewed => renewed == Some(Ok(true)),
        };
        if renewed {
            asked.retain(|at| {
                results[*at] = self.get_here(&ids[*at]).map(Ok);
                results[*at].is_none()
            });
        }
        let timeout_us = microseconds(timeout);
        // All at once, so that they share the time.
        let requests: Vec<(&[usize], Ticket<'_>)> = asked
            .chunks(MAX_IDS)
            .map(|places| {
                let ids = places.iter().map(|at| ids[*at]).collect();
                let request = Request::Get { timeout_us, ids };
                Ok((places, self.connection.send(&request, Undo::Release)?))
            })
            .collect::<Result<_>>()?;
        for (places, ticket) in requests {
            let interrupt = interrupt.as_mut().map(|interrupt| &mut **interrupt as Interrupt<'_>);
            let objects = match ticket.wait(due, interrupt) {
                Ok(reply) => self.connection.only::<requests::Get>(reply)?.objects,
                // What others brought, or was here, is not lost for that.
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    places.iter().for_each(|at| results[*at] = Some(Err(error.clone())));
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (at, object) in places.iter().zip(self.connection.one_each(places, objects)?) {
                results[*at] = Some(match object {
                    Ok(span) => {
                        let view = self.connection.arena().view(span);
                        let view = view.map_err(|error| self.connection.fail(error))?;
                        Ok(Object::counted(Arc::clone(&self.connection), ids[*at], view))
                    }
                    Err(error) => Err(error),
                });
            }
        }
        let missing = || Err(unexpected("less than it was asked for"));
        Ok(results.into_iter().map(|result| result.unwrap_or_else(missing)).collect())
    }

    /// Asks for new parts of the object tables, if that is what keeps this object from being found.
    fn bring_tables_up_to_date(&self, id: &ObjectId, due: Due) -> Result<bool> {
        if !self.lacks_tables(id) {
            return Ok(false);
        }
        self.ask_until(requests::Tables, Undo::Nothing, due)?;
        Ok(true)
    }

    /// Whether there are new parts of the object tables, which keep this object from being found.
    pub(super) fn lacks_tables(&self, id: &ObjectId) -> bool {
        let outdated = |fast: &super::fast::Fast| matches!(fast.contains(id), Err(Looked::Outdated));
        self.connection.fast().is_some_and(outdated)
    }

    /// Waits until `count` of the objects are in memory on this host, or cannot come: says of each
    /// whether it is, in order. At most 65,536 ids. `interrupt` is asked as by [`Client::get_interruptible`].
    ///
    /// # Errors
    /// `Invalid` for more ids than that; `Busy` when this client waits for too many others; `Interrupted`;
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn wait(
        &self,
        ids: &[ObjectId],
        count: usize,
        timeout: Option<Duration>,
        interrupt: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Vec<bool>> {
        if ids.len() > MAX_WAIT {
            let text = format!("one wait is for at most {MAX_WAIT} objects, not {}", ids.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let due = due(timeout);
        let (timeout_us, count) = (microseconds(timeout), count.min(ids.len()) as u32);
        let request = Request::Wait { timeout_us, count, ids: ids.to_vec() };
        let ticket = self.connection.send(&request, Undo::Cancel)?;
        let reply = ticket.wait(due, interrupt.map(|interrupt| interrupt as Interrupt<'_>))?;
        let replies::Waited(here) = self.connection.only::<requests::Wait>(reply)?;
        self.connection.one_each(ids, here)
    }

    /// Where the objects are: one answer an id, in order. What is on this host takes no system call.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn contains(&self, ids: &[ObjectId]) -> Result<Vec<Presence>> {
        let fast = |id| match self.connection.fast()?.contains(id) {
            Ok(true) => Some(Presence::Here),
            Ok(false) => Some(Presence::Absent),
            Err(_) => None,
        };
        let mut answers: Vec<_> = ids.iter().map(fast).collect();
        let asked: Vec<usize> = (0..ids.len()).filter(|at| answers[*at].is_none()).collect();
        if let Some(first) = asked.first() {
            self.bring_tables_up_to_date(&ids[*first], self.due_of_answer())?;
            let unknown: Vec<_> = asked.iter().map(|at| ids[*at]).collect();
            let told =
                self.by_chunks(&unknown, |ids| requests::Contains { ids }, |replies::Contains(told)| told)?;
            asked.iter().zip(told).for_each(|(at, presence)| answers[*at] = Some(presence));
        }
        Ok(answers.into_iter().map(|answer| answer.unwrap_or(Presence::Absent)).collect())
    }

    /// Marks objects of this host as used just now, so that they leave memory later.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn refresh(&self, ids: &[ObjectId]) -> Result<()> {
        for ids in ids.chunks(MAX_IDS) {
            self.ask(requests::Refresh { ids: ids.to_vec() }, Undo::Nothing)?;
        }
        Ok(())
    }

    /// The objects on this node that this user may see, the oldest first. What comes or goes meanwhile may be
    /// among them or not.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn list(&self) -> Result<Vec<ObjectInfo>> {
        let frames =
            self.finish_all(self.connection.send(&Request::List, Undo::Nothing)?, self.due_of_answer())?;
        let mut rows = Vec::new();
        for frame in frames {
            rows.extend(self.connection.only::<requests::List>(frame)?.objects);
        }
        rows.sort_unstable_by_key(|row| (std::cmp::Reverse(row.age_ms), row.id));
        Ok(rows)
    }

    /// The state of the node.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent; `Internal` when its report cannot
    /// be read.
    pub fn status(&self) -> Result<Status> {
        report(&self.status_json()?)
    }

    /// The state of every node of the cluster, in short. A node that does not answer within two seconds has a
    /// row that says so.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent; `Internal` when its report cannot
    /// be read.
    pub fn overview(&self) -> Result<Overview> {
        report(&self.overview_json()?)
    }

    /// The same as the daemon wrote it: JSON, perhaps with fields of a newer release.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn overview_json(&self) -> Result<String> {
        Ok(self.ask(requests::Overview, Undo::Nothing)?.json)
    }

    /// How an object came to this node, as far as the node remembers.
    ///
    /// # Errors
    /// `NotAllowed` for another user's private object.
    pub fn explain(&self, id: ObjectId) -> Result<Explanation> {
        report(&self.explain_json(id)?)
    }

    /// The same as the daemon wrote it: JSON, perhaps with fields of a newer release.
    ///
    /// # Errors
    /// `NotAllowed` for another user's private object.
    pub fn explain_json(&self, id: ObjectId) -> Result<String> {
        Ok(self.ask(requests::Explain { id }, Undo::Nothing)?.json)
    }

    /// The nodes that hold an object, this one first if it does. What was sealed or dropped in the last
    /// milliseconds may not be known yet.
    ///
    /// # Errors
    /// `TimedOut` or `Disconnected` when the node that keeps the directory does not answer.
    pub fn locations(&self, id: ObjectId) -> Result<Vec<Location>> {
        report(&self.ask(requests::Locations { id }, Undo::Nothing)?.json)
    }

    /// Begins to bring objects to this node, so that a later get finds them here. Returns at once, pins
    /// nothing, and goes on when this client is gone; objects that do not exist yet are waited for as long as
    /// `timeout` says.
    ///
    /// # Errors
    /// `Busy` when the node brings too many already.
    pub fn prefetch(&self, ids: &[ObjectId], timeout: Duration) -> Result<()> {
        let timeout_us = microseconds(Some(timeout));
        for ids in ids.chunks(MAX_IDS) {
            self.ask(requests::Prefetch { timeout_us, ids: ids.to_vec() }, Undo::Nothing)?;
        }
        Ok(())
    }

    /// Has the node measure what is best towards another, and put it in force. That takes a second or two.
    ///
    /// # Errors
    /// `Disconnected` when there is no such node or it goes; `Full` when there is no memory for it.
    pub fn calibrate(&self, peer: NodeId) -> Result<Calibration> {
        report(&self.ask(requests::Calibrate { peer }, Undo::Nothing)?.json)
    }

    /// The state of the node as the daemon wrote it: JSON, perhaps with fields of a newer release.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn status_json(&self) -> Result<String> {
        let replies::Status(json) = self.ask(requests::Status, Undo::Nothing)?;
        Ok(json)
    }
}

/// What the daemon says of itself.
pub(super) fn report<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| {
        Error::new(
            ErrorKind::Internal,
            format!("the daemon's report cannot be read: {error}. Install the same release of both"),
        )
    })
}

/// A time-out as frames have it.
pub(super) fn microseconds(timeout: Option<Duration>) -> u64 {
    timeout
        .map_or(u64::MAX, |timeout| u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX).min(u64::MAX - 1))
}
