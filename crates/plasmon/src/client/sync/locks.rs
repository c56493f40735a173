//! Locks: handles by which they are taken, and guards by which they are held.
//!
//! Owns a handle, or the ticket of one guard. Any thread. Dropping a guard unlocks, and waits for the answer
//! for [`DROP_TIMEOUT`] at most.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Came, DROP_TIMEOUT, Limits, check_name, wait};
use crate::client::Client;
use crate::client::calling::Calls;
use crate::client::connection::{Connection, Undo, unexpected};
use crate::client::due::{Due, due, rest};
use crate::client::reading::microseconds;
use crate::shared::{CallPayload, CallRequest, Manner};
use crate::sync::{LockOptions, MAX_TTL, MIN_TTL};
use crate::text::printable;
use crate::wire::{BySlot, Locked, Request, SlotResult, SyncCall, requests};
use crate::{Class, Error, ErrorKind, Result};

/// Handle to a lock: a name of the cluster that one process holds at a time, or several that share it.
///
/// [`Lock::new`] makes one. Any number of threads may use it at a time, and clones share the handle. Callers
/// that wait get the lock in the order in which they asked; callers that share the lock get it together.
#[derive(Clone)]
pub struct Lock {
    client: Client,
    handle: Arc<Handle>,
}

/// Handle to a lock, which ends when this value is dropped. Guards of the lock stay.
struct Handle {
    connection: Arc<Connection>,
    number: u32,
    name: Arc<str>,
    ttl: Duration,
    shared: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.connection.send_and_forget(&Request::CloseLock { lock: self.number });
    }
}

/// Possession of a lock. Dropping it unlocks.
///
/// A guard is valid as long as its lease is, which the client renews by itself while the process runs. If the
/// process is stopped, or its node is cut off, the lease ends and somebody else gets the lock. So a program
/// asks [`Guard::is_valid`] before it does what only the holder may do, and gives the guard to
/// [`Region::write_fenced`](crate::Region::write_fenced), which refuses a write that comes too late all the
/// same.
#[must_use = "the lock is unlocked at once if its guard is dropped"]
pub struct Guard {
    client: Client,
    name: Arc<str>,
    ticket: u64,
    word: u32,
    token: u128,
    abandoned: bool,
    /// Whether the guard was unlocked.
    over: AtomicBool,
}

impl Lock {
    /// Makes a handle to a lock. The lock belongs to this user, or to all users if the options say so. Locks
    /// of two users with the same name are two locks.
    ///
    /// # Errors
    /// `Invalid` for a name of 0 or more than 255 bytes, and for a time to live that is not within 0.1 s and
    /// 60 s. `Busy` for too many handles. `Disconnected`, or `TimedOut` if the daemon does not answer within
    /// `options.timeout`.
    pub fn new(client: &Client, name: &str, options: &LockOptions) -> Result<Self> {
        Self::until(client, name, options, Limits::of(options.timeout))
    }

    /// Makes a handle as [`Lock::new`] does, within the limits of the wait for the lock.
    pub(super) fn until(client: &Client, name: &str, options: &LockOptions, limits: Limits) -> Result<Self> {
        check_name("lock", name)?;
        let LockOptions { ttl, shared, public, .. } = *options;
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            let text = format!(
                "the time to live (ttl) of lock '{}' is {MIN_TTL:?} to {MAX_TTL:?}, not {ttl:?}",
                printable(name)
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let due = limits.due.or_else(|| client.due_of_answer());
        let connection = &client.connection;
        Calls(client).slots(due)?;
        if !connection.holds.has_leases() {
            let asked = client.ask_until(requests::OpenLeases, Undo::Nothing, due);
            // Of two threads that ask, the daemon may refuse one, after it has answered the other.
            if !connection.holds.has_leases() {
                return Err(asked.map_or_else(|error| error, |_| unexpected("leases that cannot be used")));
            }
        }
        let ttl_ms = ttl.as_millis() as u32;
        let open = requests::OpenLock { name: name.to_owned(), public, ttl_ms };
        let number = client.ask_until(open, Undo::CloseLock, due)?.lock;
        let (connection, name) = (Arc::clone(connection), name.into());
        let handle = Handle { connection, number, name, ttl, shared };
        Ok(Self { client: client.clone(), handle: Arc::new(handle) })
    }

    /// Name of the lock.
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// Takes the lock, and waits for it as long as `timeout` says: for ever with `None`, not at all with
    /// zero.
    ///
    /// # Errors
    /// `Busy` if the lock is held and the time-out is zero. `TimedOut` if it was not free in time.
    /// `Interrupted`. `Disconnected`. The lock is not held after an error.
    pub fn take(&self, timeout: Option<Duration>) -> Result<Guard> {
        self.take_until(Limits::of(timeout))
    }

    pub(super) fn take_until(&self, limits: Limits) -> Result<Guard> {
        let asking = Asking::new(self)?;
        let came = wait(&self.client, asking.call(), limits);
        asking.guard(came)
    }
}

/// Ticket of a lock that is asked for. The keeper says that the process is alive until this value is dropped
/// without a guard, or until the guard has ended. Without an answer the ticket is withdrawn.
pub(super) struct Asking {
    lock: Lock,
    ticket: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Asked,
    Refused,
    Granted,
}

impl Asking {
    pub(super) fn new(lock: &Lock) -> Result<Self> {
        let Handle { connection, ttl, .. } = &*lock.handle;
        // A forked child has no thread that keeps tickets.
        connection.check_process()?;
        let ticket = connection.holds.ticket();
        connection.holds.keeper.begin(connection, ticket, *ttl);
        Ok(Self { lock: lock.clone(), ticket, stage: Stage::Asked })
    }

    pub(super) fn client(&self) -> &Client {
        &self.lock.client
    }

    pub(super) fn call(&self) -> SyncCall {
        let Handle { number, shared, .. } = *self.lock.handle;
        SyncCall::Lock { lock: number, ticket: self.ticket, shared }
    }

    /// Guard that was granted for the ticket. The outer error of `came` means that the daemon may not have
    /// answered.
    pub(super) fn guard(mut self, came: Result<Result<Came>>) -> Result<Guard> {
        let Handle { connection, name, .. } = &*self.lock.handle;
        let answer = came.map_err(|error| match error.kind() {
            ErrorKind::Interrupted => {
                let text = format!("the wait for lock '{}' was interrupted", printable(name));
                Error::new(ErrorKind::Interrupted, text)
            }
            _ => error,
        })?;
        self.stage = Stage::Refused;
        let came = answer?;
        let Some(Locked { word, abandoned, token }) = Locked::of_values(came.values, &came.payload) else {
            return Err(connection.fail(unexpected("a lock without a token")));
        };
        let (client, name, ticket) = (self.lock.client.clone(), Arc::clone(name), self.ticket);
        self.stage = Stage::Granted;
        Ok(Guard { client, name, ticket, word, token, abandoned, over: AtomicBool::new(false) })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let connection = &self.lock.handle.connection;
        if self.stage == Stage::Granted || connection.check_process().is_err() {
            return;
        }
        connection.holds.keeper.end(self.ticket);
        if self.stage == Stage::Asked {
            connection.holds.keeper.withdraw(connection, self.ticket);
        }
    }
}

impl Guard {
    /// Name of the lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Token of the guard, larger than the token of every earlier guard of this lock. The store of the
    /// protected data can refuse a token smaller than one that it has seen.
    pub fn token(&self) -> u128 {
        self.token
    }

    /// Whether the lock is held now. The check reads memory and the clock, and makes no call. The process may
    /// be stopped, and the lock lost, right after the check.
    pub fn is_valid(&self) -> bool {
        let connection = &self.client.connection;
        // A forked child and a connection that has ended have no slots.
        let of_use = !self.over.load(Ordering::Relaxed) && connection.slots().is_some();
        of_use && connection.holds.is_valid(self.word)
    }

    /// Whether the holder before died or lost the lock, instead of unlocking it: changes of that holder may
    /// be half done.
    pub fn abandoned(&self) -> bool {
        self.abandoned
    }

    /// Unlocks. An error says that the lock was not held until now, or that this is not known. A further call
    /// does nothing.
    ///
    /// # Errors
    /// `Fenced` if the lease had ended before: others may have held the lock since. `TimedOut`, `Interrupted`
    /// or `Disconnected` if it is not known whether the lock was held; the lock is free a second after its
    /// time to live at the latest.
    pub fn unlock(&self) -> Result<()> {
        self.end(&self.client, self.client.due_of_answer())
    }

    /// Ticket of the guard, for a call of this client. `Invalid` if the client has another connection than
    /// the guard, `Fenced` if the guard is not valid any more.
    pub(in crate::client) fn ticket_for(&self, client: &Client) -> Result<u64> {
        let name = printable(&self.name);
        if !Arc::ptr_eq(&self.client.connection, &client.connection) {
            let text = format!("the guard of lock '{name}' is another client's: take the lock with this one");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.is_valid() {
            return Ok(self.ticket);
        }
        let text = format!("the guard of lock '{name}' is not valid any more: nothing was written");
        Err(Error::new(ErrorKind::Fenced, text))
    }

    fn end(&self, client: &Client, due: Due) -> Result<()> {
        let connection = &self.client.connection;
        connection.check_process()?;
        if self.over.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        connection.holds.keeper.end(self.ticket);
        let (opcode, arguments) = SyncCall::Unlock { ticket: self.ticket }.encode();
        let timeout_us = microseconds(rest(due));
        let request = CallRequest {
            opcode,
            class: Class::chosen(),
            timeout_us,
            arguments,
            payload: CallPayload::EMPTY,
        };
        let begun = Calls(client).begin(&request, Manner { far: false, goes_on: true }, due)?;
        Calls(client).finish(begun, due)?.into_result().map(drop)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let quiet = Client { interrupt: None, ..self.client.clone() };
        // A forked child does not have the lock. After another error the lease ends by itself.
        let _ = self.end(&quiet, due(Some(DROP_TIMEOUT)));
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("lock", &self.name)
            .field("token", &self.token)
            .field("valid", &self.is_valid())
            .finish()
    }
}
