//! Barriers: handles at which a number of parties wait for each other.
//!
//! Owns a handle. Any thread. The parties are handles, of one process or of several. Dropping a handle waits
//! until the handle has ended everywhere, for [`DROP_TIMEOUT`] at most.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Came, DROP_TIMEOUT, Limits, check_name, wait};
use crate::client::Client;
use crate::client::calling::Calls;
use crate::client::connection::{Connection, Undo, unexpected};
use crate::client::due::{due, rest};
use crate::client::reading::microseconds;
use crate::sync::MAX_PARTIES;
use crate::text::printable;
use crate::wire::{Passed, Request, SlotResult, SyncCall, requests};
use crate::{Error, ErrorKind, Result};

/// Handle to a barrier: a name of the cluster at which a number of parties wait for each other, again and
/// again.
///
/// [`Client::barrier`] makes one. Each handle is a party, and clones share it. A party that dies, ends its
/// handle or waits no longer breaks the barrier for those who wait there.
#[derive(Clone)]
pub struct Barrier {
    client: Client,
    handle: Arc<Handle>,
}

/// Handle to a barrier, which ends when this value is dropped.
struct Handle {
    connection: Arc<Connection>,
    number: u32,
    name: String,
    parties: u32,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let close = Request::CloseBarrier { barrier: self.number };
        // Whoever makes a handle after this finds the barrier closed. A forked child has none to end.
        let closing = self.connection.send(&close, Undo::Nothing);
        let _ = closing.and_then(|closing| closing.wait(due(Some(DROP_TIMEOUT)), None));
    }
}

impl Barrier {
    /// Makes a handle to a barrier of this user, or to one of everybody's if it is `public`.
    ///
    /// # Errors
    /// `Invalid` for a name of 0 or more than 255 bytes, for 0 or more than 1,000,000 parties, and if others
    /// use the barrier with another number of parties. `Busy` for too many handles. `Disconnected`, or
    /// `TimedOut` if a node does not answer, or waits itself for leases of its former life to end, for up to
    /// 61 s after it was killed.
    pub fn new(client: &Client, name: &str, parties: u32, public: bool) -> Result<Self> {
        check_name("barrier", name)?;
        if !(1..=MAX_PARTIES).contains(&parties) {
            let name = printable(name);
            let text = format!("barrier '{name}' cannot have {parties} parties: it has 1 to {MAX_PARTIES}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let due = client.due_of_answer();
        Calls(client).slots(due)?;
        let timeout_us = microseconds(rest(due));
        let open = requests::OpenBarrier { name: name.to_owned(), public, parties, timeout_us };
        let number = client.ask_until(open, Undo::CloseBarrier, due)?.barrier;
        let (connection, name) = (Arc::clone(&client.connection), name.to_owned());
        let handle = Handle { connection, number, name, parties };
        Ok(Self { client: client.clone(), handle: Arc::new(handle) })
    }

    /// Name of the barrier.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// Number of parties.
    pub fn parties(&self) -> u32 {
        self.handle.parties
    }

    /// Waits until all parties have arrived, without limit if `timeout` is `None`. Returns the place of this
    /// party among all parties, from 0. No two parties get the same place.
    ///
    /// # Errors
    /// `Broken` if a party died, left or waited no longer; the error says who. `TimedOut` if not all arrived
    /// in time, and `Interrupted`, both of which break the barrier for the others. `Disconnected`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<u64> {
        wait(&self.client, self.call(), Limits::of(timeout))?.and_then(|came| index_of(&self.client, &came))
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn call(&self) -> SyncCall {
        SyncCall::Arrive { barrier: self.handle.number, ticket: self.handle.connection.holds.ticket() }
    }
}

/// Place of an arrival among those of all parties.
///
/// # Errors
/// `Internal` if the result has no place. The connection ends then.
pub(super) fn index_of(client: &Client, came: &Came) -> Result<u64> {
    match Passed::of_values(came.values, &came.payload) {
        Some(passed) => Ok(passed.index.into()),
        None => Err(client.connection.fail(unexpected("a passage without a place"))),
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier")
            .field("name", &self.name())
            .field("parties", &self.parties())
            .finish_non_exhaustive()
    }
}
