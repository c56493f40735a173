//! Bugs that are put in on purpose, to see that the simulation finds their like. Owns, in tests, the bug that
//! each thread has put in. Outside of tests there are no such bugs.

/// A bug that is put in on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "outside of tests no bug is put in"))]
pub(crate) enum Bug {
    /// A keeper grants an id that it has granted to another node.
    ClaimGrantedTwice,
    /// A node says that it keeps a replica that it does not have.
    ReplicaNotMade,
    /// A drained node leaves with what it holds.
    DrainedTooSoon,
    /// A node does not compare what comes with the digest of its seal.
    NotCompared,
    /// The next window for a peer is made of the memory of a spoilt one, whose key still lives.
    WindowUsedAgain,
    /// A holder does not tell the new keepers of a shard what it holds.
    KeeperNotTold,
    /// A home grants locks before it knows which are held.
    LockNotTakenOver,
    /// A keeper that replaces an object does not wait for one of the guards.
    GuardNotAwaited,
    /// A node gives a guarded object without asking.
    GuardedGivenUnasked,
    /// What a replacement expects to be there is compared at its begin alone.
    ExpectedOnceCompared,
    /// The second keeper of an object that is being replaced sends nodes to the former object by itself.
    SecondKeeperAnswers,
    /// A keeper answers the node of a new object before it has switched to it.
    ShownBeforeSwitch,
    /// A keeper gives up a replacement after the second keeper may have switched.
    WayBack,
    /// A node confirms a guard that a keeper of a later view orders.
    GuardOfLaterView,
    /// A node that put an object and keeps it beside others does not know how many are to keep it.
    CopiesForgotten,
}

/// Whether this bug was put in: never, outside of tests.
#[cfg(not(test))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}

#[cfg(test)]
pub(crate) use tests::{is_planted, plant};

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Puts a bug in for this thread; `None` takes it out.
    pub(crate) fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Whether this bug was put in.
    pub(crate) fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
