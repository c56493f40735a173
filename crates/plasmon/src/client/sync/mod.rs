//! Locks and barriers of a client: guards that say whether they are valid, and calls that wait for others.
//!
//! Owns, for each connection, the numbers of its tickets, the words of its leases, and the thread that says
//! that the process is alive ([`keeper`]). Any thread. Handles are made and ended by the socket; a lock is
//! taken and released by slot. Calls that wait use at most [`MAX_SLOT_WAITS`] slots, so that an unlock finds
//! a free slot. Further calls wait by the socket, as calls of event loops do ([`looping`]).
//!
//! Invariant: a lock that was granted after its caller gave up is unlocked.

mod barriers;
mod keeper;
mod locks;
mod looping;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

pub use self::barriers::Barrier;
pub use self::locks::{Guard, Lock};
pub use self::looping::{AwaitedGuard, AwaitedPassage};

use self::keeper::Keeper;
use super::calling::Calls;
use super::connection::{Undo, unexpected};
use super::due::{Due, due, rest_of};
use super::paging::pages;
use super::reading::microseconds;
use super::vigil::Vigil;
use super::{Client, finish_all};
use crate::shared::{CallPayload, CallRequest, CallResult, ClientLeases, Manner, VALUES};
use crate::sync::{LockInfo, LockOptions};
use crate::wire::{BySlot, MAX_NAME_BYTES, Request, SyncCall, replies, requests};
use crate::{Class, Error, ErrorKind, NodeId, Result};

/// Largest number of slots in which calls of a connection wait for locks and barriers.
const MAX_SLOT_WAITS: u32 = 128;

/// Longest time that dropping a guard or a barrier blocks until the home knows.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time in which a node finds out whether a lock is free, if the call is not to wait for the lock.
const EAGER_PATIENCE: Duration = Duration::from_secs(5);

/// List of the locks and barriers of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockList {
    /// Locks and barriers by their names.
    pub locks: Vec<LockInfo>,
    /// Nodes that did not tell all their rows, each with the reason: the list lacks what they decide about.
    pub missing: Vec<(NodeId, Error)>,
}

impl LockList {
    /// Lists the locks and barriers of the cluster by their names, and the nodes that do not answer. A lock
    /// that nobody holds or waits for is in no list, unless its last holder died or lost it.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn of(client: &Client) -> Result<Self> {
        let ask = |node, from| requests::ListLocks { node, from };
        let (mut locks, missing) = pages(client, ask, |page| (page.locks, page.next))?;
        locks.sort_unstable_by(|one, other| (&one.name, one.home).cmp(&(&other.name, other.home)));
        Ok(Self { locks, missing })
    }
}

impl Client {
    /// Takes a lock, which one process of the cluster holds at a time, or several that share it. Waits as
    /// [`LockOptions::timeout`] says. Dropping the guard unlocks.
    ///
    /// A program that takes the same lock again and again makes a [`Lock`] once.
    ///
    /// # Errors
    /// As [`Lock::new`] and [`Lock::take`].
    pub fn lock(&self, name: &str, options: &LockOptions) -> Result<Guard> {
        let limits = Limits::of(options.timeout);
        Lock::until(self, name, options, limits)?.take_until(limits)
    }

    /// Makes a handle to a barrier, at which `parties` handles wait for each other. The barrier is this
    /// user's ([`Barrier::new`] makes one of everybody's).
    ///
    /// # Errors
    /// As [`Barrier::new`].
    pub fn barrier(&self, name: &str, parties: u32) -> Result<Barrier> {
        Barrier::new(self, name, parties, false)
    }
}

/// Locks and barriers of a connection.
#[derive(Default)]
pub(super) struct Holds {
    /// Last ticket that was given out.
    last_ticket: AtomicU64,
    /// Words that say until when leases are valid, once they have been asked for.
    leases: OnceLock<ClientLeases>,
    /// Number of calls that wait in slots.
    slot_waits: AtomicU32,
    keeper: Keeper,
}

impl Holds {
    /// Takes over the words of the leases. A daemon gives a client its words once.
    pub(super) fn take_leases(&self, leases: ClientLeases) {
        let _ = self.leases.set(leases);
    }

    /// Whether the words of the leases have come.
    fn has_leases(&self) -> bool {
        self.leases.get().is_some()
    }

    /// Whether the lease of a word is valid now.
    fn is_valid(&self, word: u32) -> bool {
        self.leases.get().is_some_and(|leases| leases.is_valid(word))
    }

    fn ticket(&self) -> u64 {
        self.last_ticket.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Result of a call that waited: values, and the payload.
struct Came {
    values: [u64; VALUES],
    payload: Bytes,
}

impl From<replies::Called> for Came {
    fn from(called: replies::Called) -> Self {
        let mut values = [0; VALUES];
        values.iter_mut().zip(called.values).for_each(|(value, told)| *value = told);
        Self { values, payload: called.payload }
    }
}

/// Makes a call that waits for others, by slot if few such calls wait, else by the socket.
///
/// A call that is given up is cancelled. The outer error means that the daemon may not have answered, and
/// that a lock may have been granted all the same. The inner error is the daemon's refusal.
fn wait(client: &Client, call: SyncCall, limits: Limits) -> Result<Result<Came>> {
    let connection = &client.connection;
    connection.check_process()?;
    let waits = &connection.holds.slot_waits;
    let nth = waits.fetch_add(1, Ordering::Relaxed);
    let came = if nth < MAX_SLOT_WAITS {
        wait_by_slot(client, call, limits)
    } else {
        wait_by_socket(client, call, limits)
    };
    waits.fetch_sub(1, Ordering::Relaxed);
    came
}

fn wait_by_slot(client: &Client, call: SyncCall, limits: Limits) -> Result<Result<Came>> {
    let Limits { due, longest, .. } = limits;
    let (opcode, arguments) = call.encode();
    let timeout_us = limits.timeout_us();
    let request =
        CallRequest { opcode, class: Class::chosen(), timeout_us, arguments, payload: CallPayload::EMPTY };
    let mut begun = Calls(client).begin(&request, Manner { far: false, goes_on: false }, due)?;
    let mut vigil = Vigil::new(client, due).while_alive(longest);
    if !begun.comes(&mut || vigil.goes_on()) {
        let error = vigil.error();
        if let SyncCall::Lock { ticket, .. } = call {
            client.connection.holds.keeper.adopt(begun, ticket);
        }
        return Err(error);
    }
    let came =
        |result: CallResult| Came { values: result.values, payload: Bytes::copy_from_slice(&result.payload) };
    Ok(begun.take().into_result().map(came))
}

fn wait_by_socket(client: &Client, call: SyncCall, limits: Limits) -> Result<Result<Came>> {
    let request = by_socket(call, limits.timeout_us());
    let ticket = client.connection.send(&request, Undo::Cancel)?.while_alive(limits.longest);
    let reply = match finish_all(client, ticket, limits.due) {
        Ok(mut replies) => replies.pop().ok_or_else(|| unexpected("no reply"))?,
        Err(error) if error.kind() == ErrorKind::Busy => return Ok(Err(error)),
        Err(error) => return Err(error),
    };
    client.connection.only::<requests::Call>(reply).map(|called| Ok(Came::from(called)))
}

/// Time-out of a wait, and its ends.
#[derive(Clone, Copy)]
struct Limits {
    timeout: Option<Duration>,
    due: Due,
    /// End of the wait as long as the daemon lives, if that is later than `due`.
    longest: Due,
}

impl Limits {
    /// Limits of a wait that begins now. With a time-out of zero it goes on for [`EAGER_PATIENCE`] while the
    /// daemon lives, because the message to the home takes time.
    fn of(timeout: Option<Duration>) -> Self {
        let eager = timeout.filter(Duration::is_zero).map(|_| EAGER_PATIENCE);
        Self { timeout, due: due(timeout), longest: eager.and_then(|eager| due(Some(eager))) }
    }

    /// Time-out to send for what is left.
    fn timeout_us(&self) -> u64 {
        microseconds(self.timeout.map(|timeout| rest_of(timeout, self.due)))
    }
}

/// Request that makes by the socket a call that slots can make.
fn by_socket(call: SyncCall, timeout_us: u64) -> Request {
    let (operation, arguments) = call.encode();
    let class = Class::chosen();
    Request::Call { operation, class, timeout_us, arguments: arguments.to_vec(), payload: Bytes::new() }
}

fn check_name(what: &str, name: &str) -> Result<()> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    let text =
        format!("the name of a {what} has 1 to {MAX_NAME_BYTES} bytes, and this one has {}", name.len());
    Err(Error::new(ErrorKind::Invalid, text))
}
