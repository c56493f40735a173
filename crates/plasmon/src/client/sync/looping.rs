//! Waits for locks and barriers for an event loop: each is begun by the socket that the loop watches, and its
//! result is taken when the reply has come.
//!
//! Owns the calls under way. Any thread, none of which waits here. A wait that is given up is withdrawn, and
//! a lock that is granted all the same is unlocked.

use std::time::{Duration, Instant};

use super::barriers::{Barrier, index_of};
use super::locks::{Asking, Guard, Lock};
use super::{Came, Limits, by_socket};
use crate::client::connection::{Undo, silent};
use crate::client::{Client, Pending};
use crate::wire::SyncCall;
use crate::{Error, Result};

/// Wait that was begun for an event loop. Dropping it gives the wait up.
struct Awaited {
    call: Pending,
    began: Instant,
}

/// Wait for a lock that was begun for an event loop. Dropping it gives the wait up.
pub struct AwaitedGuard {
    // The call is given up before its ticket is forgotten.
    awaited: Awaited,
    asking: Asking,
}

/// Wait at a barrier that was begun for an event loop. Dropping it gives the wait up, which breaks the
/// barrier.
pub struct AwaitedPassage {
    awaited: Awaited,
    barrier: Barrier,
}

impl Awaited {
    fn begin(client: &Client, call: SyncCall, timeout: Option<Duration>) -> Result<Self> {
        let limits = Limits::of(timeout);
        let request = by_socket(call, limits.timeout_us());
        let ends = (limits.due, limits.longest);
        let call = client.connection.begin(&request, Undo::Cancel, Vec::new(), false, ends)?;
        Ok(Self { call, began: Instant::now() })
    }

    /// Result of the call. The outer error means that the daemon has not answered.
    fn came(self) -> Result<Result<Came>> {
        Ok(self.call.called()?.map(Came::from))
    }

    fn late(&self, client: &Client) -> Error {
        silent(client.connection.path(), self.began.elapsed())
    }
}

impl Lock {
    /// Begins to take the lock, as [`Lock::take`] does, for the event loop that watches this client
    /// ([`Client::watch`]). The loop gives the wait up when [`AwaitedGuard::patience`] is over.
    ///
    /// # Errors
    /// `Disconnected`. The errors of the wait come with its result.
    pub fn await_guard(&self, timeout: Option<Duration>) -> Result<AwaitedGuard> {
        let asking = Asking::new(self)?;
        let awaited = Awaited::begin(asking.client(), asking.call(), timeout)?;
        Ok(AwaitedGuard { awaited, asking })
    }
}

impl AwaitedGuard {
    /// Number of the call, as [`Turn::finished`](crate::Turn::finished) lists it.
    pub fn number(&self) -> u64 {
        self.awaited.call.number()
    }

    /// Time from now after which the loop asks again. Zero means that the loop is to give the wait up by
    /// [`AwaitedGuard::late`]. `None` if the wait has no end.
    pub fn patience(&mut self) -> Option<Duration> {
        self.awaited.call.patience()
    }

    /// Guard that the wait brought, when its reply has come.
    ///
    /// # Errors
    /// As [`Lock::take`]. `Invalid` if the reply has not come yet.
    pub fn guard(self) -> Result<Guard> {
        let Self { awaited, asking } = self;
        asking.guard(awaited.came())
    }

    /// Gives up the wait, whose reply has not come in time. Returns the wait's error.
    pub fn late(self) -> Error {
        self.awaited.late(self.asking.client())
    }
}

impl Barrier {
    /// Begins to wait at the barrier, as [`Barrier::wait`] does, for the event loop that watches this client.
    /// The loop gives the wait up when [`AwaitedPassage::patience`] is over.
    ///
    /// # Errors
    /// `Disconnected`. The errors of the wait come with its result.
    pub fn await_passage(&self, timeout: Option<Duration>) -> Result<AwaitedPassage> {
        let awaited = Awaited::begin(self.client(), self.call(), timeout)?;
        Ok(AwaitedPassage { awaited, barrier: self.clone() })
    }
}

impl AwaitedPassage {
    /// Number of the call, as [`Turn::finished`](crate::Turn::finished) lists it.
    pub fn number(&self) -> u64 {
        self.awaited.call.number()
    }

    /// Time from now after which the loop asks again. Zero means that the loop is to give the wait up by
    /// [`AwaitedPassage::late`]. `None` if the wait has no end.
    pub fn patience(&mut self) -> Option<Duration> {
        self.awaited.call.patience()
    }

    /// Place of this party among all parties, when the reply has come.
    ///
    /// # Errors
    /// As [`Barrier::wait`]. `Invalid` if the reply has not come yet.
    pub fn index(self) -> Result<u64> {
        self.awaited.came()?.and_then(|came| index_of(self.barrier.client(), &came))
    }

    /// Gives up the wait, whose reply has not come in time. Returns the wait's error.
    pub fn late(self) -> Error {
        self.awaited.late(self.barrier.client())
    }
}
