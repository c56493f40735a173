//! The peers of one endpoint, and what waits to be posted to each.
//!
//! Owns an endpoint's entries of the address vector and the per-peer queues of operations that the
//! provider would not take yet. Engine thread only. Invariants: a queue keeps the order of creation; a
//! [`Peer`] of an entry that has been reused is recognised by its generation.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::endpoint::EndpointId;

/// A peer that an endpoint knows. Stays harmless when the peer is disconnected: operations on it then
/// fail with [`FabricError::PeerGone`](crate::FabricError::PeerGone).
#[derive(Clone, Copy, Eq, Hash, PartialEq, Debug)]
pub struct Peer {
    pub(crate) endpoint: EndpointId,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Where operations are posted to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// An entry of the address vector.
    pub(crate) address: u64,
    /// Tells the connections apart that are made to it one after the other.
    pub(crate) connection: u32,
}

impl Target {
    /// "From anyone", for receives.
    pub(crate) const ANYONE: Target = Target { address: u64::MAX, connection: 0 };
}

/// How long a blocked queue is tried at every poll: connecting within a rack takes less.
const EAGER_RETRY: Duration = Duration::from_millis(20);
/// Afterwards it is tried at growing intervals, as every try may be a connection attempt that a dead
/// peer's host refuses at once.
const FIRST_DELAY: Duration = Duration::from_millis(1);
const LONGEST_DELAY: Duration = Duration::from_millis(50);

/// When to try again to post the head of a queue.
#[derive(Default)]
pub(crate) struct Retry {
    blocked_since: Option<Instant>,
    next: Option<Instant>,
    delay: Duration,
}

impl Retry {
    /// The provider refused.
    pub(crate) fn refused(&mut self, now: Instant) {
        let since = *self.blocked_since.get_or_insert(now);
        if now.duration_since(since) >= EAGER_RETRY {
            self.delay = (self.delay * 2).clamp(FIRST_DELAY, LONGEST_DELAY);
            self.next = Some(now + self.delay);
        }
    }

    /// Something went through, or came back: the next try may well succeed.
    pub(crate) fn encourage(&mut self) {
        *self = Retry::default();
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// How long one may sleep before the next try. Not zero, as a connection that opens wakes the
    /// sleeper anyway.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now)).max(FIRST_DELAY)
    }
}

/// What an endpoint knows of a peer.
pub(crate) struct PeerState {
    pub(crate) target: Target,
    /// The address as bytes.
    pub(crate) name: Box<[u8]>,
    /// Operations to be posted, oldest first, by index.
    pub(crate) queue: VecDeque<usize>,
    pub(crate) retry: Retry,
    /// The provider refused what was last tried: there is no connection, not even one in the making.
    pub(crate) refused: bool,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    state: Option<PeerState>,
}

/// The peers of one endpoint.
#[derive(Default)]
pub(crate) struct Peers {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Peers {
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

    pub(crate) fn get_mut(&mut self, peer: Peer) -> Option<&mut PeerState> {
        let slot = self.slots.get_mut(peer.slot as usize)?;
        slot.state.as_mut().filter(|_| slot.generation == peer.generation)
    }

    pub(crate) fn remove(&mut self, peer: Peer) -> Option<PeerState> {
        self.get_mut(peer)?;
        let slot = self.slots.get_mut(peer.slot as usize)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(peer.slot);
        slot.state.take()
    }
}
