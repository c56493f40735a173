//! Calls that an event loop waits for. One thread begins a call, and the loop finishes the call after its
//! reply has come. Owns the bell of the loop, under the lock of the connection's state. Any thread.
//!
//! The loop watches the socket and a bell. When either is readable the loop takes a turn: it leads for a
//! moment, if no other thread does, and learns which of its calls are complete. The bell (an eventfd) rings
//! when another thread has read the reply, and when a frame could not be sent at once. Threads and a loop may
//! share a connection.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::{Connection, State, Undo, unexpected};
use crate::client::Object;
use crate::client::due::Due;
use crate::wire::{Reply, Request, replies, requests};
use crate::{Error, ErrorKind, ObjectId, Result};

/// Bell that tells an event loop that calls of its own are complete.
pub(super) struct Bell {
    file: OwnedFd,
    /// Numbers of the requests that the loop waits for.
    watched: HashSet<u64>,
    /// Numbers of the requests that are complete and not yet reported by a turn.
    finished: Vec<u64>,
}

/// Result of a turn of an event loop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Turn {
    /// Numbers ([`Pending::number`]) of the calls that are complete.
    pub finished: Vec<u64>,
    /// Whether bytes are still to be sent. If so, take a turn when the socket is writable, too.
    pub unsent: bool,
    /// Whether the connection has ended. If so, stop watching its descriptors.
    pub ended: bool,
}

/// Call under way that was begun for an event loop. Dropping it gives the call up.
pub struct Pending {
    connection: Arc<Connection>,
    number: u64,
    ids: Vec<ObjectId>,
    due: Due,
    /// End of the call as long as the daemon lives, if that is later than `due`.
    longest: Due,
}

impl Bell {
    fn ring(&self) {
        // The write fails only if the eventfd's count is full. The loop is woken then anyway.
        let _ = rustix::io::write(&self.file, &1u64.to_ne_bytes());
    }
}

impl State {
    /// Tells the event loop that the reply to the request `number` is complete, if the loop waits for it.
    pub(super) fn ring(&mut self, number: u64) {
        if let Some(bell) = &mut self.bell
            && bell.watched.remove(&number)
        {
            bell.finished.push(number);
            bell.ring();
        }
    }

    /// Tells the event loop that all its calls are complete, because the connection has ended.
    pub(super) fn ring_all(&mut self) {
        if let Some(bell) = &mut self.bell {
            let watched = std::mem::take(&mut bell.watched);
            bell.finished.extend(watched);
            bell.ring();
        }
    }
}

impl Connection {
    /// Descriptors of the socket and the bell, for an event loop to watch.
    pub(in crate::client) fn watch(&self) -> Result<(OwnedFd, OwnedFd)> {
        self.check_process()?;
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Internal, format!("this process cannot watch a connection: {error}"))
        };
        let mut state = self.lock();
        if state.bell.is_none() {
            let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let file = file.map_err(|errno| failed(errno.into()))?;
            state.bell = Some(Bell { file, watched: HashSet::new(), finished: Vec::new() });
        }
        let bell = state.bell.as_ref().map(|bell| bell.file.try_clone());
        let bell = bell.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into())).map_err(failed)?;
        Ok((self.socket.as_fd().try_clone_to_owned().map_err(failed)?, bell))
    }

    /// Sends a request that the event loop waits for. `renew` asks for new parts of the object tables as
    /// well.
    pub(in crate::client) fn begin(
        self: &Arc<Self>,
        request: &Request,
        undo: Undo,
        ids: Vec<ObjectId>,
        renew: bool,
        (due, longest): (Due, Due),
    ) -> Result<Pending> {
        self.check_process()?;
        let mut state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        self.undo_strays(&mut state);
        if renew {
            state.enqueue(&Request::Tables, Undo::Nothing, true);
        }
        let number = state.enqueue(request, undo, false);
        self.flush(&mut state);
        let unsent = !state.outbox.is_empty();
        if let Some(bell) = &mut state.bell {
            bell.watched.insert(number);
            if unsent {
                bell.ring();
            }
        }
        Ok(Pending { connection: Arc::clone(self), number, ids, due, longest })
    }

    /// Takes a turn of the event loop: reads what has come, without waiting.
    pub(in crate::client) fn turn(&self) -> Result<Turn> {
        self.check_process()?;
        let mut state = self.lock();
        if let Some(bell) = &state.bell {
            // The read fails only if the bell has not rung.
            let _ = rustix::io::read(&bell.file, &mut [0u8; 8]);
        }
        if !state.leading && state.broken.is_none() {
            state = self.lead(state, Some(Duration::ZERO));
        }
        // Another caller may have gone to sleep because this thread led.
        state.hand_over();
        let finished = state.bell.as_mut().map(|bell| std::mem::take(&mut bell.finished));
        Ok(Turn {
            finished: finished.unwrap_or_default(),
            unsent: !state.outbox.is_empty(),
            ended: state.broken.is_some(),
        })
    }
}

impl Pending {
    /// Number of the call, as [`Turn::finished`] lists it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Time from now after which the loop asks again. Zero means that the loop is to give the call up. `None`
    /// if the call has no end.
    pub fn patience(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.due.is_some_and(|due| due <= now) {
            self.due = self.connection.later(self.longest, now).or(self.due);
        }
        self.due.map(|due| due.saturating_duration_since(now))
    }

    /// Objects of a call begun with [`Client::begin_get`](crate::Client::begin_get): one result an id, in
    /// order.
    ///
    /// # Errors
    /// As [`Client::get`](crate::Client::get). `Invalid` if the reply has not come yet.
    pub fn objects(self) -> Result<Vec<Result<Object>>> {
        let connection = &self.connection;
        let replies::Got { objects, .. } = connection.only::<requests::Get>(self.reply()?)?;
        let objects = connection.one_each(&self.ids, objects)?;
        Object::take_over(connection, self.ids.iter(), objects)
    }

    /// Presence of the objects of a call begun with [`Client::begin_wait`](crate::Client::begin_wait): for
    /// each id, in order, whether the object is in this host's memory.
    ///
    /// # Errors
    /// As [`Client::wait`](crate::Client::wait). `Invalid` if the reply has not come yet.
    pub fn presence(self) -> Result<Vec<bool>> {
        let replies::Waited(here) = self.connection.only::<requests::Wait>(self.reply()?)?;
        self.connection.one_each(&self.ids, here)
    }

    /// Result of a call that a slot could have made. The inner error is the daemon's refusal.
    ///
    /// # Errors
    /// The outer error means that there is no answer, and that it is unknown what the daemon did. `Invalid`
    /// if the reply has not come yet.
    pub(in crate::client) fn called(self) -> Result<Result<replies::Called>> {
        match self.answer()? {
            Reply::Failed { error } => Ok(Err(error)),
            reply => self.connection.only::<requests::Call>(reply).map(Ok),
        }
    }

    /// Takes the reply. A request that failed is an error.
    fn reply(&self) -> Result<Reply> {
        match self.answer()? {
            Reply::Failed { error } => Err(error),
            reply => Ok(reply),
        }
    }

    /// Takes the daemon's answer. `Invalid` if the answer has not come yet.
    fn answer(&self) -> Result<Reply> {
        self.connection.check_process()?;
        let mut state = self.connection.lock();
        if state.open.get(&self.number).is_some_and(|open| open.complete) {
            return state.take(self.number).into_iter().next_back().ok_or_else(|| unexpected("no reply"));
        }
        let early = || Error::new(ErrorKind::Invalid, "the reply to this call has not come yet");
        Err(state.broken.clone().unwrap_or_else(early))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.connection.check_process().is_err() {
            return;
        }
        if let Some(bell) = &mut self.connection.lock().bell {
            bell.watched.remove(&self.number);
        }
        self.connection.give_up(self.number);
    }
}
