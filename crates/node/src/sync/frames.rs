//! The one list of frames about locks and barriers, which nodes send on behalf of their clients. Owns no
//! state. Any thread. The user of a frame is the user of the client.
//!
//! A call of a client that waits for a lock, and the guard that the call gets, have one number, which the
//! node of the client draws. A time is that of the clock of the node that is named.

use std::ops::RangeInclusive;

use plasmon::sync::{LockHolder, LockInfo};
use plasmon::wire::{AtMost, Each, MAX_NAME_BYTES, record, table};
use plasmon::{Error, NodeId, ObjectId};

use crate::net::frame::carried;

/// Numbers of the frames about locks and barriers.
pub(super) const SYNC_FRAMES: RangeInclusive<u8> = 240..=254;
/// Maximum number of guards in a frame.
pub(super) const MAX_ROWS: usize = 24;
/// Maximum number of waits in a frame.
pub(super) const MAX_WAITS: usize = 256;
/// Maximum number of abandoned locks in a frame.
pub(super) const MAX_LEFT_ROWS: usize = 128;
/// Maximum number of bytes that say why a barrier is broken.
pub(super) const MAX_WHY_BYTES: usize = 512;

record! {
    /// Call of a client that waits for a lock, or guard of a client that holds one.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Row {
        /// The number of the call or guard at its node.
        pub(crate) number: u64,
        pub(crate) name: String as AtMost<MAX_NAME_BYTES>,
        /// The user to whom the lock belongs; none for everybody's.
        pub(crate) owner: Option<u32>,
        pub(crate) shared: bool,
        pub(crate) ttl_ms: u32,
        /// The process and the user of the client.
        pub(crate) pid: u32,
        pub(crate) uid: u32,
        /// Token of the guard; 0 for what waits.
        pub(crate) token: u128,
        /// How long it has waited, or been held, in nanoseconds.
        pub(crate) age_ns: u64,
    }
}

record! {
    /// A wait that goes on, or a guard.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Numbered {
        pub(crate) lock: ObjectId,
        pub(crate) number: u64,
    }
}

record! {
    /// A lock whose last holder died or lost it. The age of that is the time since then.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Abandoned {
        pub(crate) name: String as AtMost<MAX_NAME_BYTES>,
        /// The user to whom the lock belongs; none for everybody's.
        pub(crate) owner: Option<u32>,
        pub(crate) by: LockHolder,
    }
}

record! {
    /// A process with a handle to a barrier.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Party {
        pub(crate) node: NodeId,
        pub(crate) pid: u32,
    }
}

record! {
    /// The clients of a node at a barrier.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Meeting {
        pub(crate) name: String as AtMost<MAX_NAME_BYTES>,
        /// The user to whom the barrier belongs; none for everybody's.
        pub(crate) owner: Option<u32>,
        pub(crate) parties: u32,
        /// The number that the home gave the barrier; 0 before it has.
        pub(crate) life: u64,
        /// Number of handles, and of those that were closed so far.
        pub(crate) handles: u32,
        pub(crate) left: u32,
        /// The process that has had a handle for the longest; 0 if none has.
        pub(crate) pid: u32,
        /// Number of calls that wait, and the generation that they wait for.
        pub(crate) arrived: u32,
        pub(crate) generation: u64,
        /// Indices of the calls that passed last: the first, and their number.
        pub(crate) first: u32,
        pub(crate) count: u32,
        /// Reason for which the barrier is broken, if it is.
        pub(crate) broken: Option<String> as Each<AtMost<MAX_WHY_BYTES>>,
    }
}

table! {
    /// A frame about locks and barriers.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum SyncFrame in ask -> SyncFrame in self {
        /// Asks the home of a lock for it, at this time of the sender. If it has to wait, the call is refused
        /// if it is `eager`, and else waits in the queue of the lock. `again` says that it has waited at a
        /// home before.
        240 Want { row: Row, at_ns: u64, eager: bool, again: bool },
        /// Gives a lock. The lease counts from the last time that the home heard of the wait. The lock was
        /// *abandoned* if its last holder died, or lost it.
        241 Granted { number: u64, at_ns: u64, token: u128, abandoned: bool },
        /// Refuses a lock.
        242 Refused { number: u64, error: Error },
        /// Ends a guard, or a wait. The guard was `lost` if its process has died, or its lease was over. If
        /// it was not `taken`, the node knows of no guard.
        243 Release { what: Numbered, lost: bool, taken: bool } -> Released,
        /// Says that a guard or wait has ended, who holds the lock now, and how many do. For `waits_ms` the
        /// home gives nobody a lock, because leases of its former life may be valid.
        244 Released { holder: Option<LockHolder>, held: u32, waits_ms: u64 },
        /// Renews leases, and says which waits go on, at this time of the sender.
        245 Keep {
            at_ns: u64,
            guards: Vec<Row> as AtMost<MAX_ROWS>,
            waits: Vec<Numbered> as AtMost<MAX_WAITS>,
        } -> Kept,
        /// Says which of the guards and waits the home does not know: guards that are lost, and waits to
        /// be made anew.
        246 Kept { unknown: Vec<u64> as AtMost<{ MAX_ROWS + MAX_WAITS }> },
        /// Asks a member what it holds of the locks whose home is the sender in the view of this epoch: for
        /// the guards from a number on, and for the abandoned locks after an id. 0 and none ask for the first
        /// page.
        247 Tell { epoch: u64, from: u64, after: Option<ObjectId> } -> Told,
        /// Says what the member holds: guards of its clients, and locks whose former home it is and whose
        /// last holder died or lost them. If there are more guards, `next` is the number of the first. The
        /// abandoned locks are in the order of their ids, and there may be `more` of them.
        248 Told {
            guards: Vec<Row> as AtMost<MAX_ROWS>,
            next: Option<u64>,
            abandoned: Vec<Abandoned> as AtMost<MAX_LEFT_ROWS>,
            more: bool,
        },
        /// Asks for the page of the receiver's locks and barriers that begins at a place: 0, or what the page
        /// before said.
        249 List { from: u64 } -> Listed,
        /// Answers a *list*, with the place at which the next page begins, if there is one.
        250 Listed { locks: Vec<LockInfo>, next: Option<u64> },
        /// Tells the home of a barrier of the sender's clients. One that is `opening` asks for leave.
        251 Gather { row: Meeting, opening: bool } -> Joined,
        /// Says which barrier of the name it is, which generation those who come now wait for, and which
        /// party has been there for the longest.
        252 Joined { life: u64, generation: u64, eldest: Option<Party> },
        /// Says that so many calls of the receiver pass a barrier, and the index of the first.
        253 Passed { barrier: ObjectId, life: u64, generation: u64, first: u32, count: u32 },
        /// Says that a barrier is broken, and by whom.
        254 Broken { barrier: ObjectId, life: u64, why: String as AtMost<MAX_WHY_BYTES> },
    }
}
carried!(SyncFrame);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plasmon::wire::{Table, page};

    use super::*;
    use crate::net::frame::Frames;

    #[test]
    fn every_frame_survives_the_wire_and_has_a_number_of_locks() {
        for frame in SyncFrame::draw_all(50, 1) {
            assert!(SYNC_FRAMES.contains(&frame.opcode()));
            assert_eq!(SyncFrame::from_message(frame.clone().into_message()), Ok(frame));
        }
    }

    #[test]
    fn the_page_lists_the_frames() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/sync.md");
        page::check(&path, "sync frames", &page::rows(SyncFrame::ROWS, SyncFrame::ROWS));
    }
}
