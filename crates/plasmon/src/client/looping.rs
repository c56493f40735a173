//! Waiting for objects in an event loop: the same calls, begun and finished apart.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::Client;
use super::connection::{Pending, Turn, Undo};
use super::due::due;
use super::reading::microseconds;
use crate::wire::{MAX_IDS, MAX_WAIT, Request};
use crate::{Error, ErrorKind, ObjectId, Result};

impl Client {
    /// Descriptors for an event loop: the connection's and a bell's. When either is readable, or the first
    /// writable after [`Turn::unsent`], it takes a [`Client::turn`]. To be called before anything is begun.
    ///
    /// # Errors
    /// When this process can have no more descriptors.
    pub fn watch(&self) -> Result<(OwnedFd, OwnedFd)> {
        self.connection.watch()
    }

    /// Reads what has come, without waiting. What goes wrong with the connection is told by the calls.
    ///
    /// # Errors
    /// `Disconnected` in a forked child.
    pub fn turn(&self) -> Result<Turn> {
        self.connection.turn()
    }

    /// Begins what [`Client::get`] does, of at most 1,024 objects. It is for the loop to give it up in time:
    /// [`Pending::patience`].
    ///
    /// # Errors
    /// `Disconnected`; `Invalid` for more objects.
    pub fn begin_get(&self, ids: &[ObjectId], timeout: Option<Duration>) -> Result<Pending> {
        at_most(MAX_IDS, ids)?;
        let request = Request::Get { timeout_us: microseconds(timeout), ids: ids.to_vec() };
        let outdated = ids.first().is_some_and(|id| self.lacks_tables(id));
        let due = self.due_of_get(ids, timeout);
        self.connection.begin(&request, Undo::Release, ids.to_vec(), outdated, due)
    }

    /// Begins what [`Client::wait`] does, and leaves it to the loop to give it up in time.
    ///
    /// # Errors
    /// `Disconnected`; `Invalid` for more than 65,536 objects.
    pub fn begin_wait(&self, ids: &[ObjectId], count: usize, timeout: Option<Duration>) -> Result<Pending> {
        at_most(MAX_WAIT, ids)?;
        let (timeout_us, count) = (microseconds(timeout), count.min(ids.len()) as u32);
        let request = Request::Wait { timeout_us, count, ids: ids.to_vec() };
        self.connection.begin(&request, Undo::Cancel, ids.to_vec(), false, due(timeout))
    }
}

fn at_most(most: usize, ids: &[ObjectId]) -> Result<()> {
    if ids.len() <= most {
        return Ok(());
    }
    let text = format!("one call is for at most {most} objects, not {}", ids.len());
    Err(Error::new(ErrorKind::Invalid, text))
}
