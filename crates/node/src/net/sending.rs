//! Sending messages: frames gather in the queue of a peer during a turn, leave in messages at its end, and
//! are sent again if they were lost.
//!
//! Owns no state; it changes [`Network`]. Engine thread only. As many frames travel in a message as fit a
//! block. Invariant: the block stays with the peer's [`Outgoing`](super::stream::Outgoing) until the peer
//! says that it has received the message.

use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::channel::oneshot;
use plasmon::{Class, NodeId};
use plasmon_fabric::{FabricError, Op, Slice};
use tracing::warn;

use super::fabric::Fabric;
use super::frame::{
    Envelope, Frames, Location, MESSAGE_HEADER_LEN, MESSAGE_MAX_BYTES, Message, MessageHeader, VERSION,
};
use super::network::Network;
use super::peer::{Lane, Peer};
use super::queue::Queued;
use super::stream::WINDOW;
use crate::qos::{Qos, Way};

/// Number of frames below which a queue is short.
const SHORT_QUEUE_FRAMES: usize = 2 * WINDOW;
/// Number of frames in a queue up to which it takes objects in messages. Further objects are read by the
/// peer, and wait in no queue.
const OBJECTS_QUEUE_FRAMES: usize = 8 * WINDOW;
/// Maximum number of frames that may wait for a peer. A peer that takes none of them counts as gone.
const MAX_QUEUED_FRAMES: usize = 1 << 16;
/// Time without news from a member, while messages to it are under way, after which it stands still. Messages
/// are acknowledged after 50 ms, and sent again after 200 ms if they were lost.
const STILL_AFTER: Duration = Duration::from_secs(1);

/// Returns the number of the stream of messages to a member. It changes when either of the two nodes begins a
/// new membership.
pub(crate) fn stream_to(network: &Network, node: NodeId) -> Option<u32> {
    network.peers.borrow().get(&node).map(|peer| peer.outgoing.stream)
}

/// Whether a member has acknowledged nothing for a while, although messages to it are under way: it is
/// stopped, or cut off by the network. A member to which nothing was sent is not known to stand still.
pub(crate) fn stands_still(network: &Network, node: NodeId) -> bool {
    let now = network.kernel.clock.now();
    network.peers.borrow().get(&node).is_some_and(|peer| peer.outgoing.is_unheard(STILL_AFTER, now))
}

/// Describes those segments of `pieces` that the peer of a lane does not know.
fn unknown_segments(fabric: &Fabric, lane: &mut Lane, pieces: &[Location]) -> impl Iterator<Item = Message> {
    let keys = pieces.iter().map(|piece| (piece.segment, piece.version));
    let unknown: Vec<_> = keys.filter(|key| lane.announced.insert(*key)).collect();
    unknown.into_iter().filter_map(|key| fabric.describe(key))
}

/// Describes to a peer the segments of this node's memory in which these pieces lie, unless it knows them.
/// The next frames to the peer may name these segments.
pub(crate) fn describe_segments(network: &Network, to: NodeId, pieces: &[Location]) {
    let mut peers = network.peers.borrow_mut();
    let Some(peer) = peers.get_mut(&to).filter(|peer| !peer.cut_off) else { return };
    peer.used_bulk = true;
    let fabric = &network.fabrics[peer.fabric()];
    let news: Vec<_> = unknown_segments(fabric, peer.lane(), pieces).collect();
    // The descriptions are first in the queue, before all frames that name the segments.
    news.into_iter().for_each(|news| {
        peer.enqueue(Class::High, &network.envelope(0, network.kernel.node, 0, news));
    });
}

/// Whether a peer has described the segments of its memory in which these pieces lie.
pub(crate) fn knows_segments(network: &Network, node: NodeId, pieces: &[Location]) -> bool {
    pieces.iter().all(|piece| network.remote(node, piece).is_some())
}

/// Takes the frames of the next message to a peer. If frames have to wait for a time, `due` becomes that
/// time.
fn next_frames(qos: &Qos, peer: &mut Peer, now: Instant, due: &mut Option<Instant>) -> Vec<Queued> {
    let room = MESSAGE_MAX_BYTES - MESSAGE_HEADER_LEN;
    if !qos.is_on() {
        return peer.queue.take(room, false, |_| true);
    }
    let (node, mut queue) = (peer.member.node, std::mem::take(&mut peer.queue));
    let frames = queue
        .take(room, qos.keeps_apart(), |class| qos.may_send(node, class, peer.on_their_way(class), due, now));
    peer.queue = queue;
    let low = frames.iter().filter(|(class, _)| *class == Class::Low);
    qos.sent_low(node, low.map(|(_, frame)| frame.len() as u64).sum(), now);
    frames
}

/// Counts a frame for its class. Frames that measure round trips count for no class.
pub(super) fn note_frame(network: &Network, (node, way): (NodeId, Way), envelope: &Envelope, bytes: u64) {
    if !matches!(envelope.message, Message::Ping | Message::Pong) {
        network.qos.frame(node, envelope.class, way, bytes);
    }
}

impl Network {
    /// Queues a frame for a peer. `false` if there is no such member, the peer is cut off, or its queue is
    /// full.
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
        peer.used_bulk |= matches!(
            envelope.message,
            Message::Offer { .. } | Message::Registered { .. } | Message::Pushed { .. }
        );
        if let Message::Offer { pieces, stamp, .. } | Message::Pushed { pieces, stamp, .. } =
            &envelope.message
        {
            let fabric = &self.fabrics[peer.fabric()];
            let lane = peer.lane();
            let mut news = Vec::new();
            if stamp.is_some() && !std::mem::replace(&mut lane.knows_stamps, true) {
                news.push(fabric.describe_stamps());
            }
            news.extend(unknown_segments(fabric, lane, pieces));
            for message in news {
                // The descriptions leave before all frames that name the segments.
                peer.enqueue(Class::High, &Envelope { message, request: 0, ..envelope.clone() });
            }
        }
        let leaves_with = match &envelope.message {
            Message::Segment { .. }
            | Message::Stamps { .. }
            | Message::Window { .. }
            | Message::Renew { .. }
            | Message::Renewed { .. }
            | Message::Release { .. } => Class::High,
            message if envelope.by_class || message.goes_by_class() => envelope.class,
            // The order among other frames matters.
            _ => Class::Normal,
        };
        let bytes = peer.enqueue(leaves_with, &envelope);
        drop(peers);
        note_frame(self, (to, Way::Out), &envelope, bytes);
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

    /// Takes the peers whose queue had no room for a frame since the last call, and is empty now.
    pub(crate) fn take_missed(&self) -> Vec<NodeId> {
        let mut peers = self.peers.borrow_mut();
        let missed = peers.iter_mut().filter(|(_, peer)| peer.queue.is_empty());
        missed.filter_map(|(node, peer)| std::mem::take(&mut peer.missed_frames).then_some(*node)).collect()
    }

    /// Finishes a turn for the peers: sends what is queued and what was lost, and acknowledges messages where
    /// no message has carried that.
    pub(crate) fn end_turn(&self) {
        let now = self.kernel.clock.now();
        let mut due: Option<Instant> = None;
        for peer in self.peers.borrow_mut().values_mut().filter(|peer| !peer.cut_off) {
            if let Err(error) = self.pump(peer, now, &mut due) {
                warn!(node = %peer.member.node, %error, "there is no block for a message: it waits for one");
            }
            let dues = [peer.outgoing.due(), peer.incoming.due(), due];
            due = dues.into_iter().flatten().min();
        }
        self.due.set(due);
        self.connect_ahead(now);
    }

    /// Sends lost messages again, as many queued frames as the window allows, and an acknowledgement if one
    /// is due.
    fn pump(&self, peer: &mut Peer, now: Instant, due: &mut Option<Instant>) -> Result<(), FabricError> {
        for number in peer.take_lost(now) {
            let Some((block, class)) = self.block_of(peer, number)? else { continue };
            let operation = self.post(peer, number, &block)?;
            let again = peer.posted(block, operation, class, now);
            if let Some(posted) = peer.outgoing.get_mut(number) {
                *posted = again;
            }
            self.repeated.set(self.repeated.get() + 1);
        }
        while peer.outgoing.has_room() && !peer.queue.is_empty() {
            let frames = next_frames(&self.qos, peer, now, due);
            let Some((class, _)) = frames.last() else { break };
            let class = *class;
            let len = frames.iter().fold(MESSAGE_HEADER_LEN, |len, (_, frame)| len + frame.len());
            let block = match self.fabrics[peer.fabric()].pools.lend(len) {
                Ok(block) => block,
                Err(error) => {
                    peer.queue.put_back(frames);
                    return Err(error);
                }
            };
            let mut at = MESSAGE_HEADER_LEN;
            for (_, frame) in &frames {
                block.slice(at, frame.len())?.copy_from_slice(frame)?;
                at += frame.len();
            }
            let operation = self.post(peer, peer.outgoing.next(), &block)?;
            let posted = peer.posted(block, operation, class, now);
            peer.outgoing.push(posted, now);
        }
        if peer.queue.len() < SHORT_QUEUE_FRAMES {
            for waiter in peer.drained.drain(..) {
                // The task may have given up waiting.
                let _ = waiter.send(());
            }
        }
        if peer.incoming.must_tell(now) {
            // A lost message of this kind needs no repetition: the peer repeats its own, and is told again.
            drop(self.post_uncounted(peer, None)?);
        }
        Ok(())
    }

    /// Returns the block of a message that is sent again, and its class. Each fabric has blocks of its own,
    /// so the message is copied if another fabric is in use now.
    fn block_of(&self, peer: &mut Peer, number: u64) -> Result<Option<(Slice, Class)>, FabricError> {
        let Some((block, on, class)) = peer.sent(number) else { return Ok(None) };
        if on == peer.fabric() {
            return Ok(Some((block, class)));
        }
        let copy = self.fabrics[peer.fabric()].pools.lend(block.len())?;
        copy.copy_from_slice(&block.to_vec())?;
        Ok(Some((copy, class)))
    }

    /// Sends a message that is not counted, with at most one frame. The message may be lost, or overtake
    /// others.
    pub(super) fn post_uncounted(&self, peer: &mut Peer, frame: Option<Message>) -> Result<Op, FabricError> {
        let frame = frame.map(|message| self.envelope(0, peer.member.node, 0, message).encode());
        let frame = frame.unwrap_or_default();
        let block = self.fabrics[peer.fabric()].pools.lend(MESSAGE_HEADER_LEN + frame.len())?;
        block.slice(MESSAGE_HEADER_LEN, frame.len())?.copy_from_slice(&frame)?;
        self.post(peer, 0, &block)
    }

    /// Gives a message to the fabric, on the lane in use. The header acknowledges what was received from the
    /// peer.
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
