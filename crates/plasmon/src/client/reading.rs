//! Finding objects: get, wait, contains, and what is asked about them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::connection::{Interrupt, Ticket, Undo, unexpected};
use super::fast::Looked;
use super::object::Object;
use super::{Client, GRACE, patience};
use crate::overview::Overview;
use crate::status::Status;
use crate::transfer::{Calibration, Explanation, Location};
use crate::wire::{MAX_IDS, MAX_WAIT, ObjectInfo, Presence, Reply, Request};
use crate::{Error, ErrorKind, NodeId, ObjectId, Result};

impl Client {
    /// Waits until the objects are sealed, wherever that is, and brings them to this host: one
    /// result an id, in order. Without a time-out it waits for ever; a time-out of zero takes
    /// only what is on this node. What is in this host's memory already takes no system call.
    ///
    /// # Errors
    /// For one object, among the results: `TimedOut` (`NotFound` if it had no time), `Lost`, `Damaged`,
    /// `NotAllowed`, `Full` and others. For the call: `Disconnected`; `TimedOut` when the daemon itself is
    /// silent 10 s after the time-out.
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
        if !asked.is_empty() && self.bring_tables_up_to_date(&ids[asked[0]])? {
            asked.retain(|at| {
                results[*at] = self.get_here(&ids[*at]).map(Ok);
                results[*at].is_none()
            });
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout.checked_add(GRACE)?));
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
            let objects = match ticket.wait(deadline, interrupt)? {
                Reply::Got { objects, .. } if objects.len() == places.len() => objects,
                _ => return Err(self.connection.fail(unexpected("something else than these objects"))),
            };
            for (at, object) in places.iter().zip(objects) {
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
    fn bring_tables_up_to_date(&self, id: &ObjectId) -> Result<bool> {
        if !self.lacks_tables(id) {
            return Ok(false);
        }
        match self.call(&Request::Tables, Undo::Nothing)? {
            Reply::Tables { .. } => Ok(true),
            _ => Err(self.connection.fail(unexpected("something else than its tables"))),
        }
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
    /// `Invalid` for more ids than that; `Busy` when this client waits for too many others; `Interrupted`; `Disconnected`, or `TimedOut` when the daemon is
    /// silent.
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
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout.checked_add(GRACE)?));
        let (timeout_us, count) = (microseconds(timeout), count.min(ids.len()) as u32);
        let request = Request::Wait { timeout_us, count, ids: ids.to_vec() };
        let ticket = self.connection.send(&request, Undo::Cancel)?;
        match ticket.wait(deadline, interrupt.map(|interrupt| interrupt as Interrupt<'_>))? {
            Reply::Waited(here) if here.len() == ids.len() => Ok(here),
            _ => Err(self.connection.fail(unexpected("something else than what is there"))),
        }
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
            self.bring_tables_up_to_date(&ids[*first])?;
            let unknown: Vec<_> = asked.iter().map(|at| ids[*at]).collect();
            let told = self.by_chunks(
                &unknown,
                |ids| Request::Contains { ids },
                |reply| match reply {
                    Reply::Contains(presence) => Some(presence),
                    _ => None,
                },
            )?;
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
            super::done(self.call(&Request::Refresh { ids: ids.to_vec() }, Undo::Nothing)?)?;
        }
        Ok(())
    }

    /// The objects on this node that this user may see, the oldest first. What comes or goes meanwhile may be
    /// among them or not.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn list(&self) -> Result<Vec<ObjectInfo>> {
        let frames = self.finish_all(self.connection.send(&Request::List, Undo::Nothing)?, patience())?;
        let mut rows = Vec::new();
        for frame in frames {
            match frame {
                Reply::List { objects, .. } => rows.extend(objects),
                _ => return Err(self.connection.fail(unexpected("something else than a list"))),
            }
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
        match self.call(&Request::Overview, Undo::Nothing)? {
            Reply::Report { json, .. } => Ok(json),
            _ => Err(self.connection.fail(unexpected("something else than an overview"))),
        }
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
        match self.call(&Request::Explain { id }, Undo::Nothing)? {
            Reply::Report { json, .. } => Ok(json),
            _ => Err(self.connection.fail(unexpected("something else than an explanation"))),
        }
    }

    /// The nodes that hold an object, this one first if it does. What was sealed or dropped in the last
    /// milliseconds may not be known yet.
    ///
    /// # Errors
    /// `TimedOut` or `Disconnected` when the node that keeps the directory does not answer.
    pub fn locations(&self, id: ObjectId) -> Result<Vec<Location>> {
        match self.call(&Request::Locations { id }, Undo::Nothing)? {
            Reply::Report { json, .. } => report(&json),
            _ => Err(self.connection.fail(unexpected("something else than locations"))),
        }
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
            match self.call(&Request::Prefetch { timeout_us, ids: ids.to_vec() }, Undo::Nothing)? {
                Reply::Done { .. } => {}
                _ => return Err(self.connection.fail(unexpected("something else than that it begins"))),
            }
        }
        Ok(())
    }

    /// Has the node measure what is best towards another, and put it in force. That takes a second or two.
    ///
    /// # Errors
    /// `Disconnected` when there is no such node or it goes; `Full` when there is no memory for it.
    pub fn calibrate(&self, peer: NodeId) -> Result<Calibration> {
        match self.call(&Request::Calibrate { peer }, Undo::Nothing)? {
            Reply::Report { json, .. } => report(&json),
            _ => Err(self.connection.fail(unexpected("something else than a calibration"))),
        }
    }

    /// The state of the node as the daemon wrote it: JSON, perhaps with fields of a newer release.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn status_json(&self) -> Result<String> {
        match self.call(&Request::Status, Undo::Nothing)? {
            Reply::Status(json) => Ok(json),
            _ => Err(self.connection.fail(unexpected("something else than its state"))),
        }
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
