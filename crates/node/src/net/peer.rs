//! A peer: another member, and the lanes between it and this node.
//!
//! A peer owns its lanes and its queue. Engine thread only. There is a lane for each fabric that both nodes
//! have, best first, and one of them is in use. Where RDMA does not work although both have it (a port
//! without a link, filtered packets), the nodes talk over TCP until it works, and the log reports both
//! changes. Each side decides for what it sends. Invariant: a segment can be read over the lane by which its
//! description came.

use std::cell::Cell;
use std::iter;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use plasmon::Class;
use plasmon_fabric::{Endpoint, FabricError, Op, RemoteRegion, Slice};
use tracing::{error, info, warn};

use super::fabric::{Fabric, SegmentKey};
use super::faults::Faults;
use super::frame::{Envelope, FRAME_MAX_BYTES};
use super::members::{Member, Reach};
use super::queue::Queue;
use super::stream::{Incoming, Outgoing};
use crate::kernel::random::{HashMap, HashSet};

/// Time for which nothing may get through on a lane before the next lane is taken.
const LANE_PATIENCE: Duration = Duration::from_secs(5);

/// Another member.
pub(crate) struct Peer {
    pub(crate) member: Member,
    /// The lanes, best first; never empty.
    lanes: Vec<Lane>,
    current: usize,
    /// Encoded frames to send.
    pub(crate) queue: Queue,
    /// Messages that the peer may not have received.
    pub(super) outgoing: Outgoing<Posted>,
    /// Messages that were received from the peer.
    pub(super) incoming: Incoming,
    /// Tasks that wait for the queue to be short.
    pub(crate) drained: Vec<oneshot::Sender<()>>,
    pub(crate) used: bool,
    /// Whether something was read over the bulk lane, by either side.
    pub(crate) used_bulk: bool,
    /// Whether there was no room in the queue for a frame.
    pub(crate) missed_frames: bool,
    /// Whether the last message failed, which the log says once.
    is_failing: bool,
    pub(crate) faults: Faults,
    /// Whether the peer is cut off because of too many invalid frames: nothing is sent to it or taken from
    /// it.
    pub(crate) cut_off: bool,
}

/// A way to a peer by one fabric.
pub(crate) struct Lane {
    /// The number of this node's fabric that the lane is on.
    pub(crate) fabric: usize,
    /// The peer at the endpoint for messages.
    pub(super) messages: plasmon_fabric::Peer,
    /// The peer at the endpoint of each bulk lane.
    pub(super) bulk: Vec<plasmon_fabric::Peer>,
    /// Segments of this node that the peer knows how to read over the lane.
    pub(crate) announced: HashSet<SegmentKey>,
    /// Segments that the peer has described.
    pub(crate) segments: HashMap<SegmentKey, RemoteRegion>,
    /// Whether the peer knows where this node's stamps are.
    pub(crate) knows_stamps: bool,
    /// Whether a message was sent to the peer to make the connection.
    pub(super) greeted: bool,
    /// The memory in which the peer's stamps are.
    pub(crate) stamps: Option<RemoteRegion>,
    /// The last attempt to find out whether the connection is whole.
    probe: Option<(Instant, Op)>,
    /// Whether the last attempt succeeded.
    whole: bool,
    /// The time since which every attempt has failed; `None` after a success.
    failing: Option<Instant>,
}

/// Connects each bulk lane to one of the peer's lanes. If there are enough lanes here, all of the peer's are
/// used.
fn connect_bulk(fabric: &Fabric, reach: &Reach) -> Result<Vec<plasmon_fabric::Peer>, FabricError> {
    // A peer without a bulk address is refused, as a peer with an invalid address is.
    let addresses = reach.bulk_addresses.iter().map(Vec::as_slice).cycle().chain(iter::repeat(&[][..]));
    fabric.bulk().iter().zip(addresses).map(|(endpoint, address)| endpoint.connect(address)).collect()
}

impl Lane {
    fn each(&self, fabric: &Fabric, act: impl Fn(&Endpoint, plasmon_fabric::Peer)) {
        act(fabric.messages(), self.messages);
        self.each_bulk(fabric, act);
    }

    fn each_bulk(&self, fabric: &Fabric, act: impl Fn(&Endpoint, plasmon_fabric::Peer)) {
        fabric.bulk().iter().zip(&self.bulk).for_each(|(endpoint, end)| act(endpoint, *end));
    }

    fn connect(fabric: &Fabric, number: usize, reach: &Reach) -> Result<Self, FabricError> {
        Ok(Self {
            fabric: number,
            messages: fabric.messages().connect(&reach.small_address)?,
            bulk: connect_bulk(fabric, reach)?,
            announced: HashSet::default(),
            segments: HashMap::default(),
            knows_stamps: false,
            greeted: false,
            stamps: None,
            probe: None,
            whole: false,
            failing: None,
        })
    }

    /// Ends all operations, and opens all connections anew.
    fn renew(&mut self, fabric: &Fabric, member: &Member) -> Result<(), FabricError> {
        let own = fabric.reach();
        self.each(fabric, Endpoint::disconnect);
        if let Some(reach) = member.fabrics.iter().find(|reach| reach.meets(&own)) {
            self.messages = fabric.messages().connect(&reach.small_address)?;
            self.bulk = connect_bulk(fabric, reach)?;
        }
        (self.probe, self.whole) = (None, false);
        Ok(())
    }

    /// Takes the outcome of the last attempt, if there is one.
    fn judge(&mut self, now: Instant) {
        let Some(result) = self.probe.as_ref().and_then(|(_, operation)| operation.result()) else { return };
        self.probe = None;
        self.whole = result.is_ok();
        match result {
            Ok(()) => self.failing = None,
            Err(_) => _ = self.failing.get_or_insert(now),
        }
    }
}

/// A message that was given to the fabric.
pub(super) struct Posted {
    /// The memory of the message, registered with the fabric of the lane.
    block: Slice,
    operation: Op,
    at: Instant,
    lane: usize,
    /// The class of the message's first frame.
    class: Class,
    /// Whether the outcome was noted: a success of long ago says nothing about the lane now.
    is_noted: Cell<bool>,
}

impl Posted {
    /// Whether the message could not be sent; `None` if that is not known yet.
    fn failed(&self) -> Option<bool> {
        self.operation.result().map(|result| result.is_err())
    }
}

impl Peer {
    /// Connects to a member by every fabric that both nodes have. `stream` is the number of the stream of
    /// messages to it.
    pub(crate) fn connect(fabrics: &[Fabric], member: &Member, stream: u32) -> Result<Self, String> {
        let mut lanes = Vec::new();
        for (number, fabric) in fabrics.iter().enumerate() {
            let own = fabric.reach();
            if let Some(reach) = member.fabrics.iter().find(|reach| reach.meets(&own)) {
                lanes.push(Lane::connect(fabric, number, reach).map_err(|error| error.to_string())?);
            }
        }
        if lanes.is_empty() {
            return Err(format!("it can be reached by {} only", member.providers()));
        }
        Ok(Self {
            member: member.clone(),
            lanes,
            current: 0,
            queue: Queue::default(),
            outgoing: Outgoing::new(stream),
            incoming: Incoming::default(),
            drained: Vec::new(),
            used: false,
            used_bulk: false,
            missed_frames: false,
            is_failing: false,
            faults: Faults::default(),
            cut_off: false,
        })
    }

    pub(crate) fn disconnect(&self, fabrics: &[Fabric]) {
        for lane in &self.lanes {
            lane.each(&fabrics[lane.fabric], Endpoint::disconnect);
        }
    }

    /// Cuts the peer off: ends all exchange with it until it starts anew.
    pub(crate) fn cut_off(&mut self, fabrics: &[Fabric]) {
        self.cut_off = true;
        self.queue.clear();
        self.outgoing.clear();
        // Tasks that wait for the queue see that the peer takes nothing.
        self.drained.clear();
        for lane in &self.lanes {
            lane.each(&fabrics[lane.fabric], Endpoint::shun);
        }
    }

    /// The lane that is in use.
    pub(crate) fn lane(&mut self) -> &mut Lane {
        &mut self.lanes[self.current]
    }

    /// The number of the fabric that is in use.
    pub(crate) fn fabric(&self) -> usize {
        self.lanes[self.current].fabric
    }

    /// The peer's lanes, the one in use first.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        let (before, after) = self.lanes.split_at(self.current);
        after.iter().chain(before)
    }

    /// The lane on a fabric.
    pub(crate) fn lane_on(&mut self, fabric: usize) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.fabric == fabric)
    }

    /// Why the lane in use is not the best that this node or the other has; `None` if it is.
    pub(crate) fn why_not_better(&self, fabrics: &[Fabric]) -> Option<String> {
        let own = &fabrics[self.fabric()];
        let best = &self.member.fabrics[0].provider;
        if self.current > 0 {
            let better = fabrics[self.lanes[0].fabric].name();
            return Some(format!("{better} does not get through, although both nodes have it"));
        }
        if self.fabric() > 0 {
            return Some(format!("{} is here, and not at node {}", fabrics[0].name(), self.member.node));
        }
        (best != own.name()).then(|| format!("{best} is at node {}, and not here", self.member.node))
    }

    /// Queues a frame that leaves with a class; returns its length in bytes.
    pub(crate) fn enqueue(&mut self, class: Class, envelope: &Envelope) -> u64 {
        let frame = envelope.encode();
        if frame.len() > FRAME_MAX_BYTES {
            error!("a frame of {} bytes is too long to be sent: {:?}", frame.len(), envelope.message);
            return 0;
        }
        let len = frame.len() as u64;
        self.queue.push(class, frame);
        len
    }

    /// A message that was given to the fabric on the lane in use.
    pub(super) fn posted(&self, block: Slice, operation: Op, class: Class, at: Instant) -> Posted {
        Posted { block, operation, at, lane: self.current, class, is_noted: Cell::new(false) }
    }

    /// Number of messages of a class that are on their way.
    pub(super) fn on_their_way(&self, class: Class) -> usize {
        self.outgoing.on_their_way().filter(|posted| posted.class == class).count()
    }

    /// Returns the block of a message on its way, the number of the block's fabric, and the message's class.
    pub(super) fn sent(&mut self, number: u64) -> Option<(Slice, usize, Class)> {
        let posted = self.outgoing.get_mut(number)?;
        Some((posted.block.clone(), self.lanes[posted.lane].fabric, posted.class))
    }

    /// Takes the numbers of the messages that are to be sent again, and notes failures of the lane.
    pub(super) fn take_lost(&mut self, now: Instant) -> Vec<u64> {
        let lanes = &mut self.lanes;
        for posted in self.outgoing.on_their_way().filter(|posted| !posted.is_noted.get()) {
            let Some(result) = posted.operation.result() else { continue };
            posted.is_noted.set(true);
            match result {
                Ok(()) => (lanes[posted.lane].failing, self.is_failing) = (None, false),
                Err(error) => {
                    lanes[posted.lane].failing.get_or_insert(now);
                    if !std::mem::replace(&mut self.is_failing, true) {
                        warn!(node = %self.member.node, %error, "a message was not sent: it is sent again");
                    }
                }
            }
        }
        self.outgoing.take_lost(now, Posted::failed)
    }

    /// Probes the connections in use, and the better lane that is not in use, because a peer that lost its
    /// end of a connection waits for a probe. Changes lanes where that is needed or possible.
    pub(crate) fn look_after(&mut self, fabrics: &[Fabric], now: Instant) {
        let used_bulk = self.used_bulk;
        for lane in &mut self.lanes[..=self.current] {
            lane.judge(now);
            let fabric = &fabrics[lane.fabric];
            // Without a block there is nothing to probe with: the next look tries again.
            let Ok(nothing) = fabric.pools.lend(0) else { return };
            if used_bulk {
                // After a failure the connection is made anew.
                lane.each_bulk(fabric, |endpoint, end| drop(endpoint.probe(end, nothing.clone())));
            }
            if lane.probe.is_none() {
                let probe = fabric.messages().probe(lane.messages, nothing);
                lane.probe = probe.map(|operation| (now, operation));
            }
        }
        if self.current > 0 && self.lanes[0].whole {
            self.change(0, fabrics);
        } else if self.current + 1 < self.lanes.len() && self.is_stuck(now) {
            self.change(self.current + 1, fabrics);
        }
    }

    /// Whether nothing gets through by the lane in use.
    fn is_stuck(&self, now: Instant) -> bool {
        let lane = &self.lanes[self.current];
        let probed = lane.probe.as_ref().map(|(at, _)| *at);
        let pending = |posted: &&Posted| posted.lane == self.current && posted.failed().is_none();
        let sent = self.outgoing.on_their_way().filter(pending).map(|posted| posted.at).min();
        let oldest = [probed, sent, lane.failing].into_iter().flatten().min();
        oldest.is_some_and(|since| now.duration_since(since) >= LANE_PATIENCE)
    }

    fn change(&mut self, to: usize, fabrics: &[Fabric]) {
        let names = [self.current, to].map(|lane| fabrics[self.lanes[lane].fabric].name());
        let node = self.member.node;
        if to > self.current {
            let [broken, instead] = names;
            warn!(
                "nothing gets through to node {node} by {broken}: falling back to {instead}, which is \
                 slower, until it does; `plasmon doctor` there and here may say what is in the way"
            );
            // Operations under way end now, and with them the waits for them.
            let lane = &mut self.lanes[self.current];
            if let Err(error) = lane.renew(&fabrics[lane.fabric], &self.member) {
                warn!("node {node} cannot be tried again by {broken}: {error}");
            }
        } else {
            info!("node {node} is reached by {} again", names[1]);
        }
        self.current = to;
        self.lane().failing = None;
        self.outgoing.begin_again();
    }

    /// Ends the operations on the bulk lanes, which do not end by themselves, and opens the lanes anew.
    pub(crate) fn reset_bulk(&mut self, fabrics: &[Fabric]) {
        let lane = &mut self.lanes[self.current];
        let (fabric, own) = (&fabrics[lane.fabric], fabrics[lane.fabric].reach());
        lane.each_bulk(fabric, Endpoint::disconnect);
        let Some(reach) = self.member.fabrics.iter().find(|reach| reach.meets(&own)) else { return };
        match connect_bulk(fabric, reach) {
            Ok(ends) => lane.bulk = ends,
            Err(error) => warn!("cannot reach node {} on the bulk lane any more: {error}", self.member.node),
        }
    }
}
