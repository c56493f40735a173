//! Sending messages: frames gather in the queue of a peer during a turn, leave in messages at its end, and
//! are sent again if they were lost.
//!
//! Engine thread only. As many frames travel in a message as fit a block. The block stays with the peer's
//! [`Outgoing`](super::stream::Outgoing) until the peer says that the message has come.

use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::channel::oneshot;
use plasmon::NodeId;
use plasmon_fabric::{FabricError, Op, Slice};
use tracing::warn;

use super::fabric::Fabric;
use super::frame::{Envelope, Location, MESSAGE_HEADER_LEN, MESSAGE_MAX, Message, MessageHeader, VERSION};
use super::network::Network;
use super::peer::{Lane, Peer};
use super::stream::WINDOW;

/// Number of frames below which a queue is short.
const SHORT_QUEUE_FRAMES: usize = 2 * WINDOW;
/// Number of frames in a queue up to which it takes objects in messages. Further ones are read, so that they
/// wait in no queue.
const OBJECTS_QUEUE_FRAMES: usize = 8 * WINDOW;
/// Maximum number of frames that may wait for a peer; a peer that takes none is as good as gone.
const MAX_QUEUED_FRAMES: usize = 1 << 16;
/// How long nothing has come to a member that stands still. Messages are acknowledged after 50 ms, and sent
/// again after 200 ms if they were lost.
const STILL_AFTER: Duration = Duration::from_secs(1);

/// Whether nothing that was sent to a member has come there for a while: it is stopped, or cut off by the
/// network. A member that was sent nothing meanwhile is not known to stand still.
pub(crate) fn stands_still(network: &Network, node: NodeId) -> bool {
    let now = network.kernel.clock.now();
    network.peers.borrow().get(&node).is_some_and(|peer| peer.outgoing.is_unheard(STILL_AFTER, now))
}

/// Describes the segments of these pieces that the peer of a lane does not know.
fn unknown_segments(fabric: &Fabric, lane: &mut Lane, pieces: &[Location]) -> impl Iterator<Item = Message> {
    let keys = pieces.iter().map(|piece| (piece.segment, piece.version));
    let unknown: Vec<_> = keys.filter(|key| lane.announced.insert(*key)).collect();
    unknown.into_iter().filter_map(|key| fabric.describe(key))
}

/// Describes to a peer the segments of this node's memory in which these pieces lie, unless it knows them.
/// What is sent to it next may name them.
pub(crate) fn describe_segments(network: &Network, to: NodeId, pieces: &[Location]) {
    let mut peers = network.peers.borrow_mut();
    let Some(peer) = peers.get_mut(&to).filter(|peer| !peer.cut_off) else { return };
    peer.used_bulk = true;
    let fabric = &network.fabrics[peer.fabric()];
    let news: Vec<_> = unknown_segments(fabric, peer.lane(), pieces).collect();
    news.into_iter().for_each(|news| peer.enqueue(&network.envelope(0, network.kernel.node, 0, news)));
}

/// Whether a peer has described the segments of its memory in which these pieces lie.
pub(crate) fn knows_segments(network: &Network, node: NodeId, pieces: &[Location]) -> bool {
    pieces.iter().all(|piece| network.remote(node, piece).is_some())
}

impl Network {
    /// Queues a frame for a peer; `false` when there is no such member, or it takes nothing.
    pub(super) fn send_to_peer(&self, to: NodeId, envelope: Envelope) -> bool {
        let mut peers = self.peers.borrow_mut();
        let Some(peer) = peers.get_mut(&to).filter(|peer| !peer.cut_off) else {
            return false;
        };
        if peer.queue.len() >= MAX_QUEUED_FRAMES {
            peer.missed_frames = true;
            return false;
        }
        peer.used = true;
        peer.used_bulk |= matches!(envelope.message, Message::Offer { .. } | Message::Registered { .. });
        if let Message::Offer { pieces, stamp, .. } = &envelope.message {
            let fabric = &self.fabrics[peer.fabric()];
            let lane = peer.lane();
            let mut news = Vec::new();
            if stamp.is_some() && !std::mem::replace(&mut lane.knows_stamps, true) {
                news.push(fabric.describe_stamps());
            }
            news.extend(unknown_segments(fabric, lane, pieces));
            for message in news {
                peer.enqueue(&Envelope { message, request: 0, ..envelope.clone() });
            }
        }
        peer.enqueue(&envelope);
        true
    }

    /// Whether the queue for a peer has room for an object that comes in messages.
    pub(crate) fn takes_more(&self, node: NodeId) -> bool {
        self.peers.borrow().get(&node).is_some_and(|peer| peer.queue.len() < OBJECTS_QUEUE_FRAMES)
    }

    /// Waits until the queue for a peer is short, or the peer is gone.
    pub(crate) fn drained(&self, node: NodeId) -> impl Future<Output = ()> + use<> {
        let (sender, receiver) = oneshot::channel();
        if let Some(peer) =
            self.peers.borrow_mut().get_mut(&node).filter(|peer| peer.queue.len() >= SHORT_QUEUE_FRAMES)
        {
            peer.drained.push(sender);
        }
        receiver.map(drop)
    }

    /// Takes the peers for which there was no room for a frame since the last call, and is now.
    pub(crate) fn take_missed(&self) -> Vec<NodeId> {
        let mut peers = self.peers.borrow_mut();
        let missed = peers.iter_mut().filter(|(_, peer)| peer.queue.is_empty());
        missed.filter_map(|(node, peer)| std::mem::take(&mut peer.missed_frames).then_some(*node)).collect()
    }

    /// Finishes a turn for the peers: sends what is queued and what was lost, and tells what has come where
    /// no message has carried that.
    pub(crate) fn end_turn(&self) {
        let now = self.kernel.clock.now();
        let mut due: Option<Instant> = None;
        for peer in self.peers.borrow_mut().values_mut().filter(|peer| !peer.cut_off) {
            if let Err(error) = self.pump(peer, now) {
                warn!(node = %peer.member.node, %error, "there is no block for a message: it waits for one");
            }
            let dues = [peer.outgoing.due(), peer.incoming.due(), due];
            due = dues.into_iter().flatten().min();
        }
        self.due.set(due);
        self.connect_ahead(now);
    }

    /// Sends what was lost again, as many frames as the window allows, and what has come.
    fn pump(&self, peer: &mut Peer, now: Instant) -> Result<(), FabricError> {
        for number in peer.take_lost(now) {
            let Some(block) = self.block_of(peer, number)? else { continue };
            let operation = self.post(peer, number, &block)?;
            let again = peer.posted(block, operation, now);
            if let Some(posted) = peer.outgoing.get_mut(number) {
                *posted = again;
            }
            self.repeated.set(self.repeated.get() + 1);
        }
        while peer.outgoing.has_room() && !peer.queue.is_empty() {
            let (mut len, mut count) = (MESSAGE_HEADER_LEN, 0);
            while let Some(frame) = peer.queue.get(count).filter(|frame| len + frame.len() <= MESSAGE_MAX) {
                (len, count) = (len + frame.len(), count + 1);
            }
            let block = self.fabrics[peer.fabric()].pools.lend(len)?;
            let mut at = MESSAGE_HEADER_LEN;
            for frame in peer.queue.drain(..count) {
                block.slice(at, frame.len())?.copy_from_slice(&frame)?;
                at += frame.len();
            }
            let operation = self.post(peer, peer.outgoing.next(), &block)?;
            let posted = peer.posted(block, operation, now);
            peer.outgoing.push(posted, now);
        }
        if peer.queue.len() < SHORT_QUEUE_FRAMES {
            for waiter in peer.drained.drain(..) {
                // A task that has given up needs no news.
                let _ = waiter.send(());
            }
        }
        if peer.incoming.must_tell(now) {
            // A message that is lost is followed by another one, if the peer sends its own again.
            drop(self.post_uncounted(peer, None)?);
        }
        Ok(())
    }

    /// The block of a message that is sent again, for the fabric in use: each fabric has blocks of its own.
    fn block_of(&self, peer: &mut Peer, number: u64) -> Result<Option<Slice>, FabricError> {
        let Some((block, on)) = peer.sent(number) else { return Ok(None) };
        if on == peer.fabric() {
            return Ok(Some(block));
        }
        let copy = self.fabrics[peer.fabric()].pools.lend(block.len())?;
        copy.copy_from_slice(&block.to_vec())?;
        Ok(Some(copy))
    }

    /// Sends a message that is not counted, with one frame or none: it may be lost, or come before others.
    pub(super) fn post_uncounted(&self, peer: &mut Peer, frame: Option<Message>) -> Result<Op, FabricError> {
        let frame = frame.map(|message| self.envelope(0, peer.member.node, 0, message).encode());
        let frame = frame.unwrap_or_default();
        let block = self.fabrics[peer.fabric()].pools.lend(MESSAGE_HEADER_LEN + frame.len())?;
        block.slice(MESSAGE_HEADER_LEN, frame.len())?.copy_from_slice(&frame)?;
        self.post(peer, 0, &block)
    }

    /// Gives a message to the fabric, on the lane in use. The header says what has come from the peer.
    fn post(&self, peer: &mut Peer, number: u64, block: &Slice) -> Result<Op, FabricError> {
        let header = MessageHeader {
            version: VERSION,
            reserved: 0,
            missing: peer.incoming.missing(),
            stream: peer.outgoing.stream,
            token: peer.member.token,
            from: self.kernel.node,
            incarnation: self.kernel.incarnation.get(),
            number,
            received: peer.incoming.received,
            of: peer.incoming.stream,
        };
        block.slice(0, MESSAGE_HEADER_LEN)?.copy_from_slice(&header.encode())?;
        peer.incoming.told();
        let fabric = &self.fabrics[peer.fabric()];
        Ok(fabric.messages().send(peer.lane().messages, block.clone()))
    }
}
