//! Locks that all workers take: of two guards one is valid at most, whatever breaks, and tokens are never
//! given twice.
//!
//! All workers are threads of this process, so they see each other's guards. A worker that gets a lock looks
//! at its own guard, at the others, and at its own again. If its own was valid before and after, no other may
//! have been valid in between.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plasmon::sync::LockOptions;
use plasmon::{Client, ErrorKind, Guard};
use plasmon_e2e::PATIENCE;
use plasmon_e2e::wait::patiently;

use super::worker::Worker;

/// Number of locks.
pub(super) const LOCKS: usize = 3;
/// Time that a handle, or the end of a guard, may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Guards of a lock.
#[derive(Default)]
struct Held {
    guards: Vec<Arc<Guard>>,
    tokens: BTreeSet<u128>,
}

/// Guards of all locks.
#[derive(Default)]
pub(super) struct Locks([Mutex<Held>; LOCKS]);

impl Locks {
    /// Notes a guard, and compares it with the others.
    fn enter(&self, lock: usize, guard: &Arc<Guard>) {
        let mut held = self.0[lock].lock().unwrap();
        assert!(held.tokens.insert(guard.token()), "token {:#x} was given twice", guard.token());
        held.guards.push(Arc::clone(guard));
        drop(held);
        self.look(lock, guard);
    }

    /// Compares a guard with the others.
    fn look(&self, lock: usize, guard: &Arc<Guard>) {
        let held = self.0[lock].lock().unwrap();
        let before = guard.is_valid();
        let others = held.guards.iter().filter(|other| !Arc::ptr_eq(other, guard));
        let other = others.into_iter().find(|other| other.is_valid());
        if let Some(other) = other.filter(|_| before && guard.is_valid()) {
            panic!("lock {lock} has two holders: {guard:?} and {other:?}");
        }
    }

    fn leave(&self, lock: usize, guard: &Arc<Guard>) {
        self.0[lock].lock().unwrap().guards.retain(|other| !Arc::ptr_eq(other, guard));
    }

    /// Number of guards so far.
    pub(super) fn given(&self) -> usize {
        self.0.iter().map(|held| held.lock().unwrap().tokens.len()).sum()
    }
}

fn options(timeout: Duration) -> LockOptions {
    LockOptions { ttl: Duration::from_secs(1), timeout: Some(timeout), ..LockOptions::default() }
}

fn named(lock: usize) -> String {
    format!("chaos {lock}")
}

impl Worker {
    /// Takes a lock, holds it for a while, and unlocks it, or lets its guard go.
    pub(super) fn lock(&mut self, lock: usize, patience: Duration, span: Duration, quietly: bool) {
        let take = |client: &Client| client.lock(&named(lock), &options(patience));
        let guard = match self.call("lock", patience + LIMIT, take) {
            Ok(guard) => Arc::new(guard),
            Err(error) => {
                let fits = [ErrorKind::Busy, ErrorKind::TimedOut, ErrorKind::Disconnected];
                assert!(fits.contains(&error.kind()), "lock: {:?}: {error}", error.kind());
                return;
            }
        };
        let ground = Arc::clone(&self.ground);
        ground.locks.enter(lock, &guard);
        let began = Instant::now();
        while began.elapsed() < span {
            ground.locks.look(lock, &guard);
            std::thread::yield_now();
        }
        if !quietly {
            let unlocked = self.call("unlock", LIMIT, |_| guard.unlock());
            let fits = [ErrorKind::Fenced, ErrorKind::TimedOut, ErrorKind::Disconnected];
            if let Err(error) = unlocked {
                assert!(fits.contains(&error.kind()), "unlock: {:?}: {error}", error.kind());
            }
        }
        ground.locks.leave(lock, &guard);
    }
}

/// Checks that every lock, which nobody holds now, can be had on every node.
pub(super) fn look(locks: &Locks, clients: &[Client]) {
    for (lock, client) in (0..LOCKS).flat_map(|lock| clients.iter().map(move |client| (lock, client))) {
        let taken = patiently(PATIENCE, || client.lock(&named(lock), &options(Duration::from_secs(1))));
        let guard = taken.unwrap_or_else(|error| panic!("lock {lock}: {:?}: {error}", error.kind()));
        let guard = Arc::new(guard);
        locks.enter(lock, &guard);
        // A machine that is busy for longer than the time to live takes the lock away.
        let _ = guard.unlock();
        locks.leave(lock, &guard);
    }
}
