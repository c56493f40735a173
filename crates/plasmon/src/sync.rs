//! Locks and barriers as programs see them: their options and limits, and what a list of them tells.
//!
//! Owns no state. Any thread. A lock has one holder in the cluster, or several who share it. A barrier is
//! where a number of parties wait for each other.
//!
//! ```no_run
//! use plasmon::region::Rights;
//! use plasmon::sync::LockOptions;
//!
//! let client = plasmon::Client::connect(plasmon::Socket::find())?;
//! let table = client.map_region("table", Rights::READ_WRITE, None)?;
//! let guard = client.lock("table", &LockOptions::default())?;
//! // Nobody else holds the lock here. If this process is stopped for too long, nothing is written.
//! table.write_fenced(0, b"mine", &guard)?;
//! guard.unlock()?;
//! # Ok::<(), plasmon::Error>(())
//! ```

use std::time::Duration;

#[cfg(not(loom))]
pub use crate::client::{AwaitedGuard, AwaitedPassage, Barrier, Guard, Lock, LockList};
use crate::wire::{AtMost, MAX_NAME_BYTES};
use crate::{NodeId, ObjectId};

/// Shortest time to live of the lease of a lock.
pub const MIN_TTL: Duration = Duration::from_millis(100);
/// Longest time to live of the lease of a lock.
pub const MAX_TTL: Duration = Duration::from_secs(60);
/// Time to live of the lease of a lock if nothing else is asked for.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// Largest number of parties of a barrier.
pub const MAX_PARTIES: u32 = 1_000_000;
/// Largest number of holders that a row of a list names.
pub const SHOWN_HOLDERS: usize = 64;

/// Options of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    /// Time to live of the lease, 0.1 s to 60 s. If the process that holds the lock is stopped, or its node
    /// is cut off, the lock passes on after this time. The lease of a process that runs is renewed.
    pub ttl: Duration,
    /// Whether the lock is shared with others that ask for it as shared.
    pub shared: bool,
    /// Whether the lock belongs to all users. Otherwise the lock belongs to this user, and locks of other
    /// users may have the same name.
    pub public: bool,
    /// Time to wait for the lock. `None` has no limit, zero does not wait.
    pub timeout: Option<Duration>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { ttl: DEFAULT_TTL, shared: false, public: false, timeout: None }
    }
}

crate::wire::codes! {
    /// Kind of a row of a list of locks and barriers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum SyncKind: u8 {
        /// A lock.
        0 Lock,
        /// A barrier.
        1 Barrier,
    }
}

crate::wire::record! {
    /// Client that holds a lock.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LockHolder {
        /// Node of the client.
        pub node: NodeId,
        /// Process id of the client on its host.
        pub pid: u32,
        /// User of the client.
        pub uid: u32,
        /// Token of the client's guard.
        pub token: u128,
        /// Time since the lock was granted, in milliseconds. Time before the lock's home took it over is
        /// not counted.
        pub age_ms: u64,
    }
}

crate::wire::record! {
    /// Row of a list of locks and barriers.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LockInfo {
        /// Name of the lock or barrier.
        pub name: String as AtMost<MAX_NAME_BYTES>,
        /// Whether the row is about a lock or a barrier.
        pub kind: SyncKind,
        /// User to whom the lock or barrier belongs. `None` if it belongs to all users.
        pub owner: Option<u32>,
        /// Node that decides about the lock or barrier.
        pub home: NodeId,
        /// Whether those who hold the lock share it.
        pub shared: bool,
        /// Clients that hold the lock, those with the smallest tokens first.
        pub holders: Vec<LockHolder> as AtMost<SHOWN_HOLDERS>,
        /// Number of clients that hold the lock, or have a handle to the barrier.
        pub held: u32,
        /// Number of calls that wait for the lock or at the barrier.
        pub waiting: u32,
        /// Number of parties of the barrier. 0 for a lock.
        pub parties: u32,
        /// Number of times that the barrier was passed. 0 for a lock.
        pub generation: u64,
        /// Client that held the lock last, if it died or lost the lock, and nobody has been told so yet. The
        /// age is the time since then. The process id is 0 if it is not known.
        pub abandoned: Option<LockHolder>,
    }
}

/// Id of the lock with this name: of the user `owner`, or of all users if `owner` is `None`. No two locks
/// have the same id.
pub fn lock_id(owner: Option<u32>, name: &str) -> ObjectId {
    id_of("lock", owner, name)
}

/// Id of the barrier with this name: of the user `owner`, or of all users if `owner` is `None`.
pub fn barrier_id(owner: Option<u32>, name: &str) -> ObjectId {
    id_of("barrier", owner, name)
}

fn id_of(kind: &str, owner: Option<u32>, name: &str) -> ObjectId {
    match owner {
        Some(owner) => ObjectId::of_kind(&format!("{kind} of {owner}"), name),
        None => ObjectId::of_kind(kind, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_owners_and_names_make_ids_of_their_own() {
        let ids = [
            lock_id(None, "a"),
            lock_id(Some(7), "a"),
            lock_id(Some(70), "a"),
            lock_id(Some(7), "0a"),
            barrier_id(None, "a"),
            barrier_id(Some(7), "a"),
            ObjectId::from_name("a"),
        ];
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(ids.iter().position(|other| other == id), Some(at));
        }
    }
}
