//! Connections that are made ahead, so that no get waits for one. Owns the attempts. Engine thread only.
//!
//! A provider makes a connection with the first operation of a node towards a peer, and that operation waits
//! for it. The connection that the peer has made serves the peer. So four connections are made between two
//! new members, one after the other: the node with the higher incarnation sends where its stamps are, the
//! other reads one of them on the bulk lane and sends where its own are, and the first reads one of those.
//!
//! Invariants: attempts begin in the order in which they were wanted, at most [`AT_ONCE`] at a time. An
//! attempt that is slow gives its turn to the next one, and an attempt that fails is made again later.
//! Neither is an error: the first operation that has something to do makes the connection as well. Nothing is
//! tried at a node that is no member or is cut off.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use plasmon::NodeId;
use plasmon_fabric::{FabricError, Op};

use super::members::Member;
use super::network::{Network, STAMP_LEN};
use super::peer::Peer;
use super::traffic::Traffic;
use crate::kernel::random::random_u64;

/// Maximum number of attempts under way that are not slow.
const AT_ONCE: usize = 2;
/// Time after which an attempt is slow.
pub(crate) const ATTEMPT_PATIENCE: Duration = Duration::from_secs(1);
/// Wait after an attempt that failed. Every further wait is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait after an attempt that failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// Maximum number of members of one view that are connected ahead. Connections to the others, of which each
/// takes descriptors at both ends, are made when there is something to say.
const MEMBERS_OF_A_VIEW: usize = 64;

/// The attempts to connect ahead.
#[derive(Default)]
pub(super) struct Ahead {
    wanted: VecDeque<Wanted>,
    under_way: Vec<Attempt>,
}

/// A connection that is to be made.
#[derive(Clone, Copy)]
struct Wanted {
    node: NodeId,
    traffic: Traffic,
    /// The earliest time of the next attempt.
    from: Instant,
    /// The wait after the next attempt, if it fails.
    pause: Duration,
}

struct Attempt {
    wanted: Wanted,
    began: Instant,
    operation: Op,
}

impl Ahead {
    /// Queues a connection, unless it is wanted already or being made.
    pub(super) fn want(&mut self, node: NodeId, traffic: Traffic, now: Instant) {
        let mut all = self.wanted.iter().chain(self.under_way.iter().map(|attempt| &attempt.wanted));
        if !all.any(|wanted| (wanted.node, wanted.traffic) == (node, traffic)) {
            self.wanted.push_back(Wanted { node, traffic, from: now, pause: FIRST_PAUSE });
        }
    }

    fn is_idle(&self) -> bool {
        self.wanted.is_empty() && self.under_way.is_empty()
    }

    /// Takes the next connection that is to be made now.
    fn next(&mut self, now: Instant) -> Option<Wanted> {
        let busy = self.under_way.iter().filter(|attempt| now < attempt.began + ATTEMPT_PATIENCE).count();
        if busy >= AT_ONCE {
            return None;
        }
        let at = self.wanted.iter().position(|wanted| wanted.from <= now)?;
        self.wanted.remove(at)
    }

    /// Takes the attempts that are over. Those that failed are wanted again.
    fn take_ended(&mut self, now: Instant) -> Vec<(Wanted, Result<(), FabricError>)> {
        let ended = self.under_way.extract_if(.., |attempt| attempt.operation.result().is_some());
        let ended: Vec<_> = ended.filter_map(|it| Some((it.wanted, it.operation.result()?))).collect();
        for (wanted, _) in ended.iter().filter(|(_, result)| result.is_err()) {
            let (from, pause) = (now + wanted.pause, (2 * wanted.pause).min(LONGEST_PAUSE));
            self.wanted.push_back(Wanted { from, pause, ..*wanted });
        }
        ended
    }
}

impl Network {
    /// Queues connections to the new members that joined before this node: of two nodes, the later one
    /// begins.
    pub(super) fn want_ahead(&self, fresh: &[&Member]) {
        let own = (self.kernel.incarnation.get(), self.kernel.node);
        let (now, count) = (self.kernel.clock.now(), fresh.len());
        let before = |member: &&&Member| (member.incarnation, member.node) < own;
        // In a large cluster, nodes that join at one time do not all begin with the same members.
        let first = random_u64() as usize % count.max(1);
        let from_first = fresh.iter().cycle().skip(first).take(count);
        let mut ahead = self.ahead.borrow_mut();
        for member in from_first.filter(before).take(MEMBERS_OF_A_VIEW) {
            ahead.want(member.node, Traffic::Messages, now);
        }
    }

    /// Goes on with the connections that are made ahead.
    pub(super) fn connect_ahead(&self, now: Instant) {
        let mut ahead = self.ahead.borrow_mut();
        if ahead.is_idle() {
            return;
        }
        let mut peers = self.peers.borrow_mut();
        for (Wanted { node, traffic, .. }, result) in ahead.take_ended(now) {
            let Some(peer) = peers.get_mut(&node) else { continue };
            match (traffic, result.is_ok()) {
                (Traffic::Messages, true) => peer.used = true,
                (Traffic::Messages, false) => peer.lane().greeted = false,
                (Traffic::Bulk, is_read) => {
                    peer.used_bulk |= is_read;
                    ahead.want(node, Traffic::Messages, now);
                }
            }
        }
        while let Some(wanted) = ahead.next(now) {
            let Some(peer) = peers.get_mut(&wanted.node).filter(|peer| !peer.cut_off) else { continue };
            let begun = match wanted.traffic {
                Traffic::Messages => self.greet(peer),
                Traffic::Bulk => self.try_bulk(peer),
            };
            ahead.under_way.extend(begun.map(|operation| Attempt { wanted, began: now, operation }));
        }
    }

    /// Tells a peer where this node's stamps are, by a message that is not counted. `None` if the peer was
    /// told before, or if there is no block for the message.
    fn greet(&self, peer: &mut Peer) -> Option<Op> {
        if peer.lane().greeted {
            return None;
        }
        let stamps = self.fabrics[peer.fabric()].describe_stamps();
        // Without a block no attempt is made: the first operation towards the peer makes the connection.
        let operation = self.post_uncounted(peer, Some(stamps)).ok()?;
        peer.lane().greeted = true;
        Some(operation)
    }

    /// Reads a stamp of a peer on the bulk lane. `None` if the peer has not told where its stamps are, or if
    /// there is no block.
    fn try_bulk(&self, peer: &mut Peer) -> Option<Op> {
        let fabric = &self.fabrics[peer.fabric()];
        let lane = peer.lane();
        let (stamps, word) = (lane.stamps?, fabric.pools.lend(STAMP_LEN).ok()?);
        Some(fabric.bulk()[0].read(lane.bulk[0], word, stamps, 0))
    }
}
