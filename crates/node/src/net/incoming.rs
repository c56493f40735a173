//! Incoming messages: they are accepted, held back, or dropped. Owns no state; it changes [`Network`]. Engine
//! thread only.
//!
//! A message is accepted if it carries this node's token and names a member of this view. A message of a node
//! that may soon be a member waits for the view. Counted messages are acted on once and in order
//! ([`stream`](super::stream)). Frames about the fabric itself (segments, stamps) are handled here.

use std::time::Instant;

use bytes::Bytes;
use plasmon::NodeId;
use plasmon::wire::MAX_DESCRIPTORS;
use plasmon_fabric::{Event, RemoteRegion};
use tracing::{debug, warn};

use super::faults::MAX_FORGIVEN_FAULTS;
use super::frame::{Envelope, Message, MessageHeader};
use super::members::Incarnation;
use super::network::Network;
use super::sending::note_frame;
use super::stream::Place;
use super::traffic::Traffic;
use crate::qos::Way;

/// Maximum number of messages that are kept, of senders that the next view may make members.
const MAX_STRANGER_MESSAGES: usize = 1024;

impl Network {
    /// Acts on an event of the fabric `on`. Adds the frames of members that are to be acted on to `frames`.
    pub(super) fn receive(&self, event: Event, on: usize, now: Instant, frames: &mut Vec<Envelope>) {
        let (slice, len) = match event {
            Event::Received { slice, len, .. } => (slice, len),
            Event::ReceiveFailed { slice, error } => {
                debug!("a message was not received: {error}");
                return self.fabrics[on].repost(slice);
            }
            Event::RemoteWrite { immediate, len } => {
                return self.remote_writes.borrow_mut().push((immediate, len));
            }
        };
        let message = slice.slice(0, len).map(|part| Bytes::from(part.to_vec()));
        self.fabrics[on].repost(slice);
        let Ok(mut message) = message else { return self.drop_frame("a message longer than a block") };
        match MessageHeader::take_first(&mut message) {
            Ok(header) if header.token == self.token => self.admit(&header, message, now, frames),
            Ok(header) => self.drop_frame(&format!("a wrong token from {}", header.from)),
            Err(error) => self.drop_frame(&error.to_string()),
        }
    }

    /// Acts on a message of a member, or holds back that of a node that may soon be a member.
    fn admit(&self, header: &MessageHeader, message: Bytes, now: Instant, frames: &mut Vec<Envelope>) {
        let mut peers = self.peers.borrow_mut();
        let peer = peers.get_mut(&header.from);
        let Some(peer) = peer.filter(|peer| peer.member.incarnation >= header.incarnation) else {
            let mut strangers = self.strangers.borrow_mut();
            if strangers.len() == MAX_STRANGER_MESSAGES {
                strangers.pop_front();
                self.dropped.set(self.dropped.get() + 1);
            }
            return strangers.push_back((*header, message));
        };
        if peer.member.incarnation > header.incarnation {
            drop(peers);
            return self.drop_frame("a message from a former life of a node");
        }
        if peer.cut_off {
            drop(peers);
            return self.drop_frame("a message from a node that is cut off");
        }
        peer.used = true;
        if header.of == peer.outgoing.stream {
            peer.outgoing.acknowledge(header.received, header.missing, now);
        }
        if header.number == 0 {
            drop(peers);
            return self.open_message(header, message, now, frames);
        }
        let mut place = peer.incoming.take(header.stream, header.number, &message, now);
        drop(peers);
        let mut next = Some(message);
        while let (Place::Next, Some(message)) = (&place, next.take()) {
            self.open_message(header, message, now, frames);
            match self.peers.borrow_mut().get_mut(&header.from).filter(|peer| !peer.cut_off) {
                Some(peer) => next = peer.incoming.take_next(),
                None => place = Place::Kept,
            }
        }
        if place == Place::Outside {
            self.drop_frame(&format!("a message of {} that is not expected", header.from));
        }
    }

    /// Takes the frames of a message.
    fn open_message(
        &self,
        header: &MessageHeader,
        mut message: Bytes,
        now: Instant,
        frames: &mut Vec<Envelope>,
    ) {
        while !message.is_empty() {
            let before = message.len();
            match Envelope::decode_first(header, &mut message) {
                Ok(envelope) => {
                    let bytes = (before - message.len()) as u64;
                    note_frame(self, (header.from, Way::In), &envelope, bytes);
                    frames.extend(self.handle(envelope, now));
                }
                Err(error) => {
                    self.drop_frame(&error.to_string());
                    // Where the next frame starts is not known.
                    return self.blame(header.from, header.incarnation, now);
                }
            }
        }
    }

    /// Counts an invalid frame of a peer, and cuts the peer off if it has sent too many.
    pub(crate) fn blame(&self, from: NodeId, incarnation: Incarnation, now: Instant) {
        let mut peers = self.peers.borrow_mut();
        let peer = peers.get_mut(&from).filter(|peer| peer.member.incarnation == incarnation);
        let Some(peer) = peer.filter(|peer| !peer.cut_off) else { return };
        if !peer.faults.another(now) {
            return;
        }
        warn!(
            "node {from} at {} is cut off until it starts anew: it sent more than {MAX_FORGIVEN_FAULTS} \
             frames within a minute that no node of this release sends; see what it runs and what it logs",
            peer.member.listen
        );
        peer.cut_off(&self.fabrics);
        self.windows.forget(from, now);
        self.cut_off.borrow_mut().push(from);
    }

    /// Takes the writes of peers into this node's memory since the last call: for each, the number that came
    /// with the write, and the number of bytes.
    pub(crate) fn take_remote_writes(&self) -> Vec<(u32, usize)> {
        self.remote_writes.take()
    }

    /// Takes the peers that were cut off since the last call.
    pub(crate) fn take_cut_off(&self) -> Vec<NodeId> {
        std::mem::take(&mut *self.cut_off.borrow_mut())
    }

    /// Whether a peer was cut off since [`Network::take_cut_off`] was last called.
    pub(crate) fn has_cut_off(&self) -> bool {
        !self.cut_off.borrow().is_empty()
    }

    /// Acts on a frame about the fabric itself. Returns every other frame.
    fn handle(&self, envelope: Envelope, now: Instant) -> Option<Envelope> {
        let from = envelope.from;
        let on = |name: &str| self.fabrics.iter().position(|fabric| fabric.name() == name);
        match envelope.message {
            Message::Stamps { ref provider, base, key, len } => {
                let mut peers = self.peers.borrow_mut();
                let lane = on(provider).and_then(|on| peers.get_mut(&from)?.lane_on(on));
                if lane.is_some_and(|lane| lane.stamps.replace(RemoteRegion { base, key, len }).is_none()) {
                    self.ahead.borrow_mut().want(from, Traffic::Bulk, now);
                }
                None
            }
            Message::Window { ref provider, window, base, key, len } => {
                if let Some(on) = on(provider) {
                    let window = (window, RemoteRegion { base, key, len });
                    self.windows.told(from, window, on, self.kernel.incarnation.get());
                }
                None
            }
            Message::Shut { window } => {
                self.windows.shut(from, window, now);
                None
            }
            Message::Segment { segment, .. } if segment as usize >= MAX_DESCRIPTORS => {
                self.drop_frame("a segment beyond any arena");
                self.blame(from, envelope.incarnation, now);
                None
            }
            Message::Segment { ref provider, segment, version, base, key, len } => {
                let mut peers = self.peers.borrow_mut();
                if let Some(lane) = on(provider).and_then(|on| peers.get_mut(&from)?.lane_on(on)) {
                    lane.segments.retain(|(number, _), _| *number != segment);
                    lane.segments.insert((segment, version), RemoteRegion { base, key, len });
                }
                None
            }
            _ => Some(envelope),
        }
    }

    /// Takes the frames of nodes that have become members since their messages arrived.
    pub(crate) fn admit_strangers(&self, now: Instant) -> Vec<Envelope> {
        let waiting = std::mem::take(&mut *self.strangers.borrow_mut());
        let mut frames = Vec::new();
        for (header, message) in waiting {
            self.admit(&header, message, now, &mut frames);
        }
        frames
    }

    /// Counts a frame that is dropped. The log reports the first such frame, and then ever fewer, because a
    /// peer that sends one may send many.
    pub(crate) fn drop_frame(&self, why: &str) {
        let dropped = self.dropped.get() + 1;
        self.dropped.set(dropped);
        match dropped.is_power_of_two() {
            true => warn!(dropped, "dropped a frame: {why}"),
            false => debug!(dropped, "dropped a frame: {why}"),
        }
    }
}
