//! Incoming messages: frames are accepted, held back, or dropped. Engine thread only.
//!
//! A frame is accepted if it carries this node's token, decodes, and names a member of this view. A frame
//! of a node that may soon be a member waits for the view. Frames about the fabric itself (segments,
//! stamps, credits) are handled here.

use std::time::Instant;

use bytes::Bytes;
use plasmon::NodeId;
use plasmon::wire::MAX_DESCRIPTORS;
use plasmon_fabric::{Event, RemoteRegion};
use tracing::{debug, warn};

use super::class::Class;
use super::faults::{self, MAX_FORGIVEN_FAULTS};
use super::frame::{Envelope, Message};
use super::members::Incarnation;
use super::network::Network;
use super::peer::WINDOW;

/// Maximum number of frames kept of senders that the next view may make members.
const MAX_STRANGER_FRAMES: usize = 1024;

impl Network {
    /// Takes an event of a fabric; adds the frames of members that are to be acted on.
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
        let mut is_first = true;
        while is_first || !message.is_empty() {
            let whole = message.clone();
            match Envelope::decode_first(&mut message) {
                Ok((envelope, token, credits)) if token == self.token => {
                    // A message costs one credit, and its first frame returns some.
                    let credits = std::mem::take(&mut is_first).then_some(credits);
                    frames.extend(self.admit(envelope, on, credits, now));
                }
                Ok((envelope, ..)) => {
                    return self.drop_frame(&format!("a wrong token from {}", envelope.from));
                }
                Err(error) => {
                    self.drop_frame(&error.to_string());
                    if let Some((from, incarnation)) = faults::sender(&whole, self.token) {
                        self.blame(from, incarnation, now);
                    }
                    // The start of the next frame is not known.
                    return;
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
        self.cut_off.borrow_mut().push(from);
    }

    /// Takes the writes of peers into this node's memory since the last call: the number that came with
    /// each, and its length in bytes.
    pub(crate) fn take_remote_writes(&self) -> Vec<(u32, usize)> {
        self.remote_writes.take()
    }

    /// Takes the peers that were cut off since the last call.
    pub(crate) fn take_cut_off(&self) -> Vec<NodeId> {
        std::mem::take(&mut *self.cut_off.borrow_mut())
    }

    /// Whether a peer was cut off since they were taken last.
    pub(crate) fn has_cut_off(&self) -> bool {
        !self.cut_off.borrow().is_empty()
    }

    /// Accepts a frame of a member, or holds back that of a node that may soon be a member. The first frame
    /// of a message brings credits.
    fn admit(&self, envelope: Envelope, on: usize, credits: Option<u16>, now: Instant) -> Option<Envelope> {
        let mut peers = self.peers.borrow_mut();
        let peer = peers.get_mut(&envelope.from);
        let Some(peer) = peer.filter(|peer| peer.member.incarnation >= envelope.incarnation) else {
            let mut strangers = self.strangers.borrow_mut();
            if strangers.len() == MAX_STRANGER_FRAMES {
                strangers.pop_front();
                self.dropped.set(self.dropped.get() + 1);
            }
            strangers.push_back((envelope, on, credits));
            return None;
        };
        if peer.member.incarnation > envelope.incarnation {
            drop(peers);
            self.drop_frame("a frame from a former life of a node");
            return None;
        }
        if peer.cut_off {
            drop(peers);
            self.drop_frame("a frame from a node that is cut off");
            return None;
        }
        peer.used = true;
        peer.credits = (peer.credits + u32::from(credits.unwrap_or(0))).min(WINDOW);
        if let Message::Credit { count } = envelope.message {
            peer.credits = peer.credits.saturating_add(count).min(WINDOW);
            return None;
        }
        peer.owed += u32::from(credits.is_some());
        if let Message::Stamps { base, key, len } = envelope.message {
            if let Some(lane) = peer.lane_on(on)
                && lane.stamps.replace(RemoteRegion { base, key, len }).is_none()
            {
                self.ahead.borrow_mut().want(envelope.from, Class::Bulk, now);
            }
            return None;
        }
        if let Message::Segment { segment, version, base, key, len } = envelope.message {
            if segment as usize >= MAX_DESCRIPTORS {
                drop(peers);
                self.drop_frame("a segment beyond any arena");
                self.blame(envelope.from, envelope.incarnation, now);
                return None;
            }
            if let Some(lane) = peer.lane_on(on) {
                lane.segments.retain(|(number, _), _| *number != segment);
                lane.segments.insert((segment, version), RemoteRegion { base, key, len });
            }
            return None;
        }
        Some(envelope)
    }

    /// Takes the frames of nodes that have become members since the frames arrived.
    pub(crate) fn admit_strangers(&self, now: Instant) -> Vec<Envelope> {
        let waiting = std::mem::take(&mut *self.strangers.borrow_mut());
        let admitted = waiting.into_iter();
        admitted.filter_map(|(envelope, on, credits)| self.admit(envelope, on, credits, now)).collect()
    }

    /// Counts a frame that is dropped. The log reports the first and then fewer and fewer, since a peer
    /// that sends one may send many.
    pub(crate) fn drop_frame(&self, why: &str) {
        let dropped = self.dropped.get() + 1;
        self.dropped.set(dropped);
        match dropped.is_power_of_two() {
            true => warn!(dropped, "dropped a frame: {why}"),
            false => debug!(dropped, "dropped a frame: {why}"),
        }
    }
}
