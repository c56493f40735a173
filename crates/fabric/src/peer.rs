//! The peers of one endpoint, and the operations that wait to be posted to each.
//!
//! Owns the numbers of an endpoint's entries in the address vector, and for each peer the queue of operations
//! that the provider would not take yet. Engine thread only. Invariants: a queue keeps the order in which
//! operations were made; a [`Peer`] whose slot has been reused is recognised by its generation.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::names::{EndpointId, Peer, Target};

/// Time for which a blocked queue is tried at every poll. Connecting within a rack takes less.
const EAGER_RETRY: Duration = Duration::from_millis(20);
/// First interval between tries of a queue that stays blocked for longer than [`EAGER_RETRY`]. The intervals
/// grow, because every try may be a connection attempt that a dead peer's host refuses at once.
const FIRST_DELAY: Duration = Duration::from_millis(1);
/// Longest interval between tries of a blocked queue.
const LONGEST_DELAY: Duration = Duration::from_millis(50);

/// Schedule of the attempts to post the head of a blocked queue.
#[derive(Default)]
pub(crate) struct Retry {
    blocked_since: Option<Instant>,
    next: Option<Instant>,
    delay: Duration,
}

impl Retry {
    /// Notes that the provider said "try again" at `now`.
    pub(crate) fn refused(&mut self, now: Instant) {
        let since = *self.blocked_since.get_or_insert(now);
        if now.duration_since(since) >= EAGER_RETRY {
            self.delay = (self.delay * 2).clamp(FIRST_DELAY, LONGEST_DELAY);
            self.next = Some(now + self.delay);
        }
    }

    /// Makes the next try due at once. To be called when an operation was posted or has come back, since a
    /// try may then succeed.
    pub(crate) fn encourage(&mut self) {
        *self = Retry::default();
    }

    /// Whether the queue is to be tried at `now`.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// Returns the time for which the engine may sleep before the next try. The time is never zero, as a
    /// connection that opens wakes the engine anyway.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now)).max(FIRST_DELAY)
    }
}

/// State that an endpoint keeps of a peer.
pub(crate) struct PeerState {
    /// Target of operations towards the peer.
    pub(crate) target: Target,
    /// Fabric address of the peer, as bytes.
    pub(crate) name: Box<[u8]>,
    /// Indices of the operations to be posted, oldest first.
    pub(crate) queue: VecDeque<usize>,
    /// Schedule of the attempts to post the head of `queue`.
    pub(crate) retry: Retry,
    /// Whether the provider refused the operation that was tried last. If so, there is no connection, and
    /// none is being made.
    pub(crate) refused: bool,
}

/// Slot of the table of peers, which peers use one after the other.
#[derive(Default)]
struct Slot {
    generation: u32,
    state: Option<PeerState>,
}

/// Table of the peers of one endpoint.
#[derive(Default)]
pub(crate) struct Peers {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Peers {
    /// Adds a peer with the entry `address` of the address vector, and the fabric address `name`.
    pub(crate) fn insert(&mut self, endpoint: EndpointId, address: u64, name: &[u8]) -> Peer {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            // A table of 2^32 peers does not fit any machine's memory.
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        entry.state = Some(PeerState {
            target: Target { address, connection: 0 },
            name: name.into(),
            queue: VecDeque::new(),
            retry: Retry::default(),
            refused: false,
        });
        Peer { endpoint, slot, generation: entry.generation }
    }

    /// Returns the state of a peer, unless the peer was removed.
    pub(crate) fn get_mut(&mut self, peer: Peer) -> Option<&mut PeerState> {
        let slot = self.slots.get_mut(peer.slot as usize)?;
        slot.state.as_mut().filter(|_| slot.generation == peer.generation)
    }

    /// Takes out the state of a peer, and makes its slot free for another peer.
    pub(crate) fn remove(&mut self, peer: Peer) -> Option<PeerState> {
        self.get_mut(peer)?;
        let slot = self.slots.get_mut(peer.slot as usize)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(peer.slot);
        slot.state.take()
    }
}
