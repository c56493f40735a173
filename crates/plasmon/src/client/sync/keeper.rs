//! Thread that says that the process is alive, so that the daemon renews the leases of its guards.
//!
//! Owns the tickets of guards and of waits for locks, and waits whose callers gave up. Each connection has
//! one such thread. It begins with the first ticket, says that the process is alive a few times in each time
//! to live (a *beat*), and ends when there has been no ticket for two beats, or with the connection. In a
//! stopped process this thread stands still as all others do, so the leases end.
//!
//! The thread holds no connection while it sleeps. Its calls go by the socket, since waits may have all
//! slots.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::by_socket;
use crate::client::calling::Call;
use crate::client::connection::{Connection, Undo};
use crate::client::due::due;
use crate::client::fork::Process;
use crate::client::reading::microseconds;
use crate::wire::SyncCall;
use crate::{ErrorKind, Result};

/// Number of beats in the shortest time to live.
const BEATS: u32 = 3;
/// Shortest time between two beats.
const SHORTEST_BEAT: Duration = Duration::from_millis(10);
/// Time between two looks at waits whose callers gave up.
const STRAY_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Time that the daemon has to answer a beat.
const BEAT_PATIENCE: Duration = Duration::from_secs(1);

/// State that the thread and the callers share. It ends the thread when it is dropped.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    process: Process,
}

/// State under a lock, and the condition on which the thread sleeps.
#[derive(Default)]
struct Shared {
    kept: Mutex<Kept>,
    changed: Condvar,
}

/// Tickets, work for the thread, and whether the thread runs.
#[derive(Default)]
struct Kept {
    /// Time to live of each ticket.
    tickets: HashMap<u64, Duration>,
    /// Whether there was a ticket since the last beat.
    used: bool,
    /// Waits for locks whose callers gave up, with their tickets.
    strays: Vec<(Call, u64)>,
    /// Tickets to unlock.
    unlocks: Vec<u64>,
    /// Time between two beats.
    beat: Duration,
    /// Whether the thread runs.
    runs: bool,
    /// Whether the connection has ended, so that the thread is to end.
    closed: bool,
}

impl Keeper {
    /// Keeps a ticket: as long as there is one, the thread says that the process is alive.
    pub(super) fn begin(&self, connection: &Arc<Connection>, ticket: u64, ttl: Duration) {
        let mut kept = self.shared.kept.lock();
        kept.tickets.insert(ticket, ttl);
        kept.used = true;
        let beat = beat_of(ttl);
        if kept.runs && beat >= kept.beat {
            return;
        }
        kept.beat = beat;
        self.wake(kept, connection);
    }

    /// Forgets a ticket.
    pub(super) fn end(&self, ticket: u64) {
        self.shared.kept.lock().tickets.remove(&ticket);
    }

    /// Ends a wait for a lock whose caller gave up, and the guard that may have come of it.
    pub(super) fn withdraw(&self, connection: &Arc<Connection>, ticket: u64) {
        let mut kept = self.shared.kept.lock();
        kept.unlocks.push(ticket);
        if kept.beat.is_zero() {
            kept.beat = BEAT_PATIENCE;
        }
        self.wake(kept, connection);
    }

    /// Takes over a wait by slot whose caller gives up. The caller withdraws the ticket, and the node may
    /// learn of that before it learns of the wait.
    pub(super) fn adopt(&self, call: Call, ticket: u64) {
        self.shared.kept.lock().strays.push((call, ticket));
    }

    /// Wakes the thread, or starts it.
    fn wake(&self, mut kept: MutexGuard<'_, Kept>, connection: &Arc<Connection>) {
        if kept.runs {
            self.shared.changed.notify_one();
            return;
        }
        let (shared, connection) = (Arc::clone(&self.shared), Arc::downgrade(connection));
        let keeping = move || shared.run(&connection);
        // Without a thread the leases end, as guards say.
        kept.runs = thread::Builder::new().name("plasmon-keeper".to_owned()).spawn(keeping).is_ok();
    }
}

impl Default for Keeper {
    fn default() -> Self {
        Self { shared: Arc::default(), process: Process::this() }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // A forked child has no such thread, which may have held the lock.
        if self.process.is_this() {
            self.shared.kept.lock().closed = true;
            self.shared.changed.notify_one();
        }
    }
}

impl Shared {
    fn run(&self, connection: &Weak<Connection>) {
        let mut next = Instant::now();
        let mut idle = 0;
        let mut kept = self.kept.lock();
        while !kept.closed {
            let beats = Instant::now() >= next;
            let unlocks = std::mem::take(&mut kept.unlocks);
            if beats || !unlocks.is_empty() {
                let alive = MutexGuard::unlocked(&mut kept, || {
                    let Some(connection) = connection.upgrade() else { return false };
                    unlocks.into_iter().all(|ticket| say(&connection, SyncCall::Unlock { ticket }))
                        && (!beats || say(&connection, SyncCall::Keep))
                });
                if !alive {
                    break;
                }
            }
            kept.look_at_strays();
            if beats {
                idle = if kept.is_idle() { idle + 1 } else { 0 };
                if idle >= 2 {
                    break;
                }
                kept.used = false;
                if let Some(least) = kept.tickets.values().min() {
                    kept.beat = beat_of(*least);
                }
                next = Instant::now() + kept.beat;
            }
            let soon = Instant::now() + STRAY_CHECK_INTERVAL;
            let until = if kept.strays.is_empty() { next } else { next.min(soon) };
            if kept.unlocks.is_empty() && !kept.closed {
                self.changed.wait_until(&mut kept, until);
            }
            // A shorter time to live brings the beat forward.
            next = next.min(Instant::now() + kept.beat);
        }
        kept.runs = false;
    }
}

impl Kept {
    fn is_idle(&self) -> bool {
        self.tickets.is_empty() && !self.used && self.strays.is_empty() && self.unlocks.is_empty()
    }

    /// Takes the results of waits whose callers gave up, and has locks that were granted unlocked.
    fn look_at_strays(&mut self) {
        let Self { strays, unlocks, .. } = self;
        for (call, ticket) in strays.extract_if(.., |(call, _)| call.has_come()) {
            if call.take().into_result().is_ok() {
                unlocks.push(ticket);
            }
        }
    }
}

/// Makes a call, and waits for its answer. Returns whether the daemon may still answer further ones.
fn say(connection: &Connection, call: SyncCall) -> bool {
    let said = || -> Result<()> {
        let ticket = connection.send(&by_socket(call, microseconds(Some(BEAT_PATIENCE))), Undo::Nothing)?;
        ticket.wait(due(Some(BEAT_PATIENCE)), None).map(drop)
    };
    said().err().is_none_or(|error| error.kind() != ErrorKind::Disconnected)
}

/// Time between two beats for a ticket with this time to live.
fn beat_of(ttl: Duration) -> Duration {
    (ttl / BEATS).max(SHORTEST_BEAT)
}
