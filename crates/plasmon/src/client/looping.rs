//! Calls for event loops: calls that one function begins and another finishes.
//!
//! Owns no state; [`Pending`] has that of a call. Any thread.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::connection::{Pending, Turn, Undo};
use super::due::due;
use super::reading::{get_request, lacks_tables, microseconds};
use super::{Client, longest_of_get};
use crate::wire::{MAX_IDS, MAX_WAIT_IDS, Request};
use crate::{Error, ErrorKind, ObjectId, Result};

impl Client {
    /// Descriptors for an event loop to watch: the connection's socket and a bell. When either is readable,
    /// or the first writable after [`Turn::unsent`], the loop calls [`Client::turn`]. Call this before
    /// beginning any call.
    ///
    /// # Errors
    /// `Internal` if this process cannot have more descriptors. `Disconnected` in a forked child.
    pub fn watch(&self) -> Result<(OwnedFd, OwnedFd)> {
        self.connection.watch()
    }

    /// Takes a turn of an event loop: reads what has come, without waiting. Failures of the connection are
    /// errors of the calls under way, not of this one.
    ///
    /// # Errors
    /// `Disconnected` in a forked child.
    pub fn turn(&self) -> Result<Turn> {
        self.connection.turn()
    }

    /// Begins a call that does what [`Client::get`] does, for at most 1,024 objects. The loop gives it up
    /// when [`Pending::patience`] is over. This client does not compare the objects that the call returns,
    /// even if it is a verifying client: [`Object::verify`](crate::Object::verify) compares one.
    ///
    /// # Errors
    /// `Disconnected`. `Invalid` for more than 1,024 objects.
    pub fn begin_get(&self, ids: &[ObjectId], timeout: Option<Duration>) -> Result<Pending> {
        at_most(MAX_IDS, ids)?;
        let longest = longest_of_get(self, timeout);
        let request = get_request(self, ids.to_vec(), timeout, longest);
        let outdated = ids.first().is_some_and(|id| lacks_tables(self, id));
        self.connection.begin(&request, Undo::Release, ids.to_vec(), outdated, (due(timeout), longest))
    }

    /// Begins a call that does what [`Client::wait`] does. The loop gives it up when
    /// [`Pending::patience`] is over.
    ///
    /// # Errors
    /// `Disconnected`. `Invalid` for more than 65,536 objects.
    pub fn begin_wait(&self, ids: &[ObjectId], count: usize, timeout: Option<Duration>) -> Result<Pending> {
        at_most(MAX_WAIT_IDS, ids)?;
        let (timeout_us, count) = (microseconds(timeout), count.min(ids.len()) as u32);
        let request = Request::Wait { timeout_us, count, ids: ids.to_vec() };
        self.connection.begin(&request, Undo::Cancel, ids.to_vec(), false, (due(timeout), None))
    }
}

fn at_most(most: usize, ids: &[ObjectId]) -> Result<()> {
    if ids.len() <= most {
        return Ok(());
    }
    let text = format!("one call takes at most {most} objects, not {}", ids.len());
    Err(Error::new(ErrorKind::Invalid, text))
}
