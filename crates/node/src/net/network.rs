//! The network: the fabrics, the peers, and the messages and one-sided reads that go to them.
//!
//! Owns the fabrics and the peers. Engine thread only. Messages travel on the *small* lane in order;
//! one-sided reads have the *bulk* lanes to themselves, so that they do not hold messages up. The provider
//! makes connections with the first operation towards a peer.
//!
//! Frames are batched during a turn and leave at its end, as many in a message as fit a block. A sender has
//! at most [`WINDOW`] messages under way towards a peer, and keeps each until the peer has received it
//! ([`stream`](super::stream)). The receiver posts blocks for every peer's window. It tells what it has
//! received with its own messages, or with one that has no frames and is not counted.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use plasmon::status::PoolStatus;
use plasmon::{Class, NodeId};
use plasmon_fabric::{
    Access, Domain, Event, FabricError, Memory, Op, Provider, Region, RemoteRegion, Slice, Stats,
};
use tracing::{info, warn};

use super::ahead::Ahead;
use super::calls::Calls;
use super::fabric::Fabric;
use super::frame::{Envelope, Location, Message, MessageHeader};
use super::members::{Member, Reach};
use super::peer::{Lane, Peer};
use super::stream::WINDOW;
use super::windows::Windows;
use crate::config;
use crate::kernel::random::HashMap;
use crate::kernel::random::random_u64;
use crate::kernel::{Kernel, class};
use crate::memory::{Arena, BlockMemory, Piece, SegmentChange};
use crate::object::Stamp;
use crate::qos::Qos;

/// Number of blocks posted for each peer: its window, and messages that are not counted or come again.
const POSTED_PER_PEER: usize = WINDOW + 8;
/// Number of polls of which one also looks at the fabrics by which no peer is reached.
const IDLE_POLL_DIVISOR: u32 = 16;

/// Length in bytes from which a read is long, where there are several bulk lanes.
const LONG_READ_BYTES: usize = 64 << 10;
/// Length of a stamp in bytes.
pub(super) const STAMP_LEN: usize = size_of::<u64>();

/// A piece of a peer's memory, resolved to what a fabric needs.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    /// The number of the fabric by which the memory is reached.
    pub(crate) on: usize,
    pub(crate) region: RemoteRegion,
    pub(crate) offset: u64,
}

/// A message of a node that is not a member: its header, and its frames.
type Stranger = (MessageHeader, Bytes);

/// The fabrics and the peers.
pub(crate) struct Network {
    pub(super) kernel: Rc<Kernel>,
    pub(super) calls: Calls,
    /// Frames from this node to itself.
    pub(super) loopback: RefCell<Vec<Envelope>>,
    /// The membership epoch that this node follows.
    pub(super) epoch: Cell<u64>,
    /// The fabrics, best first; never empty.
    pub(super) fabrics: Vec<Fabric>,
    /// The token that frames sent to this node must carry.
    pub(super) token: u64,
    pub(super) peers: RefCell<HashMap<NodeId, Peer>>,
    /// Writes of peers that were not reported yet.
    pub(super) remote_writes: RefCell<Vec<(u32, usize)>>,
    pub(super) strangers: RefCell<VecDeque<Stranger>>,
    pub(super) dropped: Cell<u64>,
    /// Number of messages that were sent again.
    pub(super) repeated: Cell<u64>,
    /// The number of the last stream that this node began.
    streams: Cell<u32>,
    /// Time at which a message is to be sent, if no event causes one before.
    pub(super) due: Cell<Option<Instant>>,
    polls: Cell<u32>,
    /// Number of long reads so far, by which they take turns on the bulk lanes.
    long_reads: Cell<usize>,
    /// The state of the RDMA device's link; empty if there is no device, or no report of it yet.
    link: RefCell<String>,
    /// For each fabric, whether a peer is reached by it.
    busy: RefCell<Vec<bool>>,
    /// Connections that are made before there is something to say.
    pub(super) ahead: RefCell<Ahead>,
    /// Memory that peers may write to, here and at peers.
    pub(super) windows: Rc<Windows>,
    /// Gates that order the work of different classes towards peers.
    pub(crate) qos: Rc<Qos>,
    /// Peers that were cut off since [`Network::take_cut_off`] was last called.
    pub(super) cut_off: RefCell<Vec<NodeId>>,
}

impl Network {
    /// Opens providers, best first, with `lanes` bulk lanes each, and registers with each provider the memory
    /// that peers may read.
    pub(crate) fn open(
        kernel: &Rc<Kernel>,
        providers: &[Provider],
        arena: &Arena,
        stamps: &Rc<BlockMemory>,
    ) -> Result<Self, FabricError> {
        // If classes are kept apart, each class has as many lanes.
        let classes = if kernel.config.qos == config::Qos::Separate { Class::ALL.len() } else { 1 };
        let lanes = kernel.config.lanes.max(1) * classes;
        let fabrics = providers.iter().map(|provider| Fabric::open(provider, lanes, arena, stamps));
        Ok(Self {
            kernel: Rc::clone(kernel),
            calls: Calls::default(),
            loopback: RefCell::default(),
            epoch: Cell::new(0),
            fabrics: fabrics.collect::<Result<_, _>>()?,
            token: random_u64(),
            peers: RefCell::default(),
            remote_writes: RefCell::default(),
            strangers: RefCell::default(),
            dropped: Cell::new(0),
            repeated: Cell::new(0),
            streams: Cell::new(0),
            due: Cell::new(None),
            polls: Cell::new(0),
            long_reads: Cell::new(0),
            link: RefCell::default(),
            busy: RefCell::default(),
            ahead: RefCell::default(),
            windows: Rc::default(),
            qos: Rc::new(Qos::new(kernel)),
            cut_off: RefCell::default(),
        })
    }

    /// How this node is reached, best first.
    pub(crate) fn reach(&self) -> Vec<Reach> {
        self.fabrics.iter().map(Fabric::reach).collect()
    }

    /// The best provider.
    pub(crate) fn best(&self) -> &Provider {
        self.fabrics[0].domain.provider()
    }

    /// Number of the fabric by which a node is reached, and the reason why it is not a better one. For a node
    /// that is not a peer, the best fabric.
    pub(crate) fn reached_by(&self, node: NodeId) -> (usize, Option<String>) {
        match self.peers.borrow().get(&node) {
            Some(peer) => (peer.fabric(), peer.why_not_better(&self.fabrics)),
            None => (0, None),
        }
    }

    /// The link of the RDMA device, such as ACTIVE, DOWN or GONE; empty if there is no device.
    pub(crate) fn link(&self) -> String {
        self.link.borrow().clone()
    }

    /// Stores the state of the RDMA device's link, and logs a change.
    pub(crate) fn set_link(&self, device: &str, state: String) {
        match (self.link.borrow().as_str(), state.as_str()) {
            ("" | "ACTIVE", "ACTIVE") => {}
            (_, "ACTIVE") => info!("RDMA device {device} has its link again"),
            _ => warn!(
                "RDMA device {device} has no link (it is {state}): reads over it fail or wait, until \
                 the link is back or a way by TCP is taken; look at its cable and switch, and at `rdma link`"
            ),
        }
        self.link.replace(state);
    }

    /// The sum of all fabrics' statistics. The same memory is registered with each fabric, and is counted for
    /// the best one only.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.fabrics[0].domain.stats();
        for more in self.fabrics[1..].iter().map(|fabric| fabric.domain.stats()) {
            stats.registrations += more.registrations;
            stats.sends += more.sends;
            stats.received += more.received;
            stats.reads += more.reads;
            stats.completed += more.completed;
            stats.failed += more.failed;
            stats.in_flight += more.in_flight;
        }
        stats
    }

    /// Descriptors that are readable when [`Network::poll`] has something to do.
    pub(crate) fn wait_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fabrics.iter().filter_map(|fabric| fabric.domain.wait_descriptor())
    }

    /// Whether there is a fabric without a descriptor to wait on.
    pub(crate) fn must_be_polled(&self) -> bool {
        self.fabrics.iter().any(|fabric| fabric.domain.wait_descriptor().is_none())
    }

    /// Whether it is safe to sleep on the descriptors; called right before sleeping. Fabrics without a
    /// descriptor are not asked.
    pub(crate) fn try_wait(&self) -> bool {
        let mut waited = self.fabrics.iter().filter(|fabric| fabric.domain.wait_descriptor().is_some());
        waited.all(|fabric| fabric.domain.try_wait())
    }

    /// Whether a fabric has something for [`Network::poll`].
    #[cfg(test)]
    pub(crate) fn has_arrivals(&self) -> bool {
        self.fabrics.iter().any(|fabric| !fabric.domain.try_wait())
    }

    /// The longest time for which the engine may sleep.
    pub(crate) fn sleep_limit(&self) -> Option<Duration> {
        let fabrics = self.fabrics.iter().filter_map(|fabric| fabric.domain.sleep_limit());
        let due = self.due.get().map(|due| due.saturating_duration_since(self.kernel.clock.now()));
        fabrics.chain(due).min()
    }

    /// Drives the fabrics. Adds the frames of members to act on to `frames`, and returns the number of
    /// events.
    pub(crate) fn poll(
        &self,
        now: Instant,
        events: &mut Vec<Event>,
        frames: &mut Vec<Envelope>,
    ) -> Result<usize, FabricError> {
        let polls = self.polls.get().wrapping_add(1);
        self.polls.set(polls);
        let mut happened = 0;
        for (on, fabric) in self.fabrics.iter().enumerate() {
            let busy = self.busy.borrow().get(on).copied().unwrap_or_default();
            if on == 0 || busy || polls.is_multiple_of(IDLE_POLL_DIVISOR) {
                happened += fabric.domain.poll(events)?;
                events.drain(..).for_each(|event| self.receive(event, on, now, frames));
            }
        }
        Ok(happened)
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// How the blocks of messages are used.
    pub(crate) fn pools(&self) -> Vec<PoolStatus> {
        self.fabrics.iter().flat_map(|fabric| fabric.pools.status()).collect()
    }

    /// Number of frames dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Number of messages that were sent again so far.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated.get()
    }

    /// Gives a segment other keys. Returns the former registrations, and for each peer that knows the segment
    /// the message with the new key.
    pub(crate) fn rekey(&self, arena: &Arena, segment: u32) -> (Vec<Rc<Region>>, Vec<(NodeId, Message)>) {
        let former = self.fabrics.iter().filter_map(|fabric| fabric.rekey(arena, segment)).collect();
        let key = (segment, arena.version(segment));
        let mut peers = self.peers.borrow_mut();
        let knows = peers.iter_mut().filter_map(|(node, peer)| {
            let on = peer.fabric();
            peer.lane().announced.contains(&key).then_some((*node, on))
        });
        let news = knows.filter_map(|(node, on)| Some((node, self.fabrics[on].describe(key)?)));
        (former, news.collect())
    }

    /// Follows the arena's changes of its segments; returns the changed segments.
    pub(crate) fn follow_arena(&self, arena: &mut Arena) -> Vec<u32> {
        let mut recycled = Vec::new();
        for change in arena.take_changes() {
            if let SegmentChange::Recycled { segment, .. } = change {
                recycled.push(segment);
                self.fabrics.iter().for_each(|fabric| fabric.recycle(arena, segment));
            }
        }
        recycled
    }

    /// A piece of this node's arena, for an operation on a fabric; `None` when its segment could not be
    /// registered.
    pub(crate) fn local(&self, on: usize, arena: &Arena, piece: Piece) -> Option<Slice> {
        self.fabrics[on].local(arena, piece)
    }

    /// A piece of a peer's arena as a fabric reaches it; `None` if the peer has not described the segment.
    pub(crate) fn remote(&self, node: NodeId, location: &Location) -> Option<Remote> {
        let peers = self.peers.borrow();
        let key = (location.segment, location.version);
        let found = |lane: &Lane| Some((lane.fabric, *lane.segments.get(&key)?));
        let (on, region) = peers.get(&node)?.lanes().find_map(found)?;
        Some(Remote { on, region, offset: location.offset })
    }

    /// Reads a peer's memory on a bulk lane; `None` if the node is not a member any more, or is cut off.
    pub(crate) fn read(&self, node: NodeId, into: Slice, from: Remote) -> Option<Op> {
        let mut peers = self.peers.borrow_mut();
        let peer = peers.get_mut(&node).filter(|peer| !peer.cut_off)?;
        peer.used = true;
        peer.used_bulk = true;
        let (fabric, lane) = (&self.fabrics[from.on], peer.lane_on(from.on)?);
        let at = self.bulk_lane(into.len());
        Some(fabric.bulk()[at].read(lane.bulk[at], into, from.region, from.offset))
    }

    /// Returns the bulk lane for a read of `len` bytes. If there are several lanes, the first is for short
    /// reads, so that they do not wait for long ones. Long reads take turns on the other lanes.
    fn bulk_lane(&self, len: usize) -> usize {
        let lanes = self.kernel.config.lanes.max(1);
        // The lanes of normal work stand first, because probes and reads of stamps use the first lane.
        let first = match class::current() {
            Class::High if self.qos.keeps_apart() => lanes,
            Class::Low if self.qos.keeps_apart() => 2 * lanes,
            _ => 0,
        };
        if lanes == 1 || len < LONG_READ_BYTES {
            return first;
        }
        let turn = self.long_reads.get().wrapping_add(1);
        self.long_reads.set(turn);
        first + 1 + turn % (lanes - 1)
    }

    /// A word of a peer's stamps; `None` if the peer has not described them.
    pub(crate) fn remote_stamp(&self, node: NodeId, stamp: Stamp) -> Option<Remote> {
        let peers = self.peers.borrow();
        let found = |lane: &Lane| Some((lane.fabric, lane.stamps?));
        let (on, region) = peers.get(&node)?.lanes().find_map(found)?;
        Some(Remote { on, region, offset: u64::from(stamp.slot) * STAMP_LEN as u64 })
    }

    /// Whether a read that is posted behind the reads of these pieces is also made behind them.
    pub(crate) fn reads_in_order(&self, node: NodeId, pieces: &[Location], then: &Remote) -> bool {
        let fabric = &self.fabrics[then.on];
        let is_on_one_lane =
            |piece: &Location| self.kernel.config.lanes <= 1 || piece.len < LONG_READ_BYTES as u64;
        let same = |piece: &Location| {
            is_on_one_lane(piece) && self.remote(node, piece).is_some_and(|remote| remote.on == then.on)
        };
        fabric.domain.provider().reads_in_order() && pieces.iter().all(same)
    }

    /// Lends a registered block of `len` bytes, at most as many as a message has.
    pub(crate) fn block(&self, on: usize, len: usize) -> Result<Slice, FabricError> {
        self.fabrics[on].pools.lend(len)
    }

    /// The domain of a fabric, to register memory with.
    pub(crate) fn domain(&self, on: usize) -> &Domain {
        &self.fabrics[on].domain
    }

    /// The number of the fabric by which a peer is reached.
    pub(crate) fn fabric_to(&self, node: NodeId) -> usize {
        self.peers.borrow().get(&node).map_or(0, Peer::fabric)
    }

    /// Registers memory for one transfer, for this node's own operations and for peers' reads.
    pub(crate) fn register_part(
        &self,
        on: usize,
        arena: &Arena,
        piece: Piece,
    ) -> Result<Rc<Region>, FabricError> {
        self.fabrics[on].domain.register(arena.part(piece) as Rc<dyn Memory>, Access::REMOTE_READ)
    }

    /// Whether this node has exchanged something with a member.
    pub(crate) fn connected(&self, node: NodeId) -> bool {
        self.peers.borrow().get(&node).is_some_and(|peer| peer.used && !peer.cut_off)
    }

    /// Whether a member was cut off.
    pub(crate) fn is_cut_off(&self, node: NodeId) -> bool {
        self.peers.borrow().get(&node).is_some_and(|peer| peer.cut_off)
    }

    /// Follows the members: connects the new, forgets the gone. Returns the nodes that have gone.
    pub(crate) fn follow(&self, epoch: u64, members: &[Member]) -> Vec<NodeId> {
        self.epoch.set(epoch);
        let mut peers = self.peers.borrow_mut();
        let same = |peer: &Peer| members.contains(&peer.member);
        let gone: Vec<_> = peers.iter().filter(|(_, peer)| !same(peer)).map(|(node, _)| *node).collect();
        for node in &gone {
            if let Some(peer) = peers.remove(node) {
                peer.disconnect(&self.fabrics);
                self.windows.forget(*node, self.kernel.clock.now());
            }
        }
        let mut fresh = Vec::new();
        for member in members.iter().filter(|member| member.node != self.kernel.node) {
            if peers.contains_key(&member.node) {
                continue;
            }
            self.streams.set(self.streams.get() + 1);
            match Peer::connect(&self.fabrics, member, self.streams.get()) {
                Ok(peer) => {
                    if let Some(why) = peer.why_not_better(&self.fabrics) {
                        let name = self.fabrics[peer.fabric()].name();
                        warn!("this node and the one at {} talk over {name}: {why}", member.listen);
                    }
                    peers.insert(member.node, peer);
                    fresh.push(member);
                }
                Err(error) => {
                    warn!(node = %member.node, listen = member.listen, %error, "cannot reach a node")
                }
            }
        }
        let wanted = POSTED_PER_PEER * peers.len();
        drop(peers);
        self.want_ahead(&fresh);
        self.fabrics.iter().for_each(|fabric| fabric.expect(wanted));
        self.note_busy();
        self.abandon(&gone);
        self.qos.forget(&gone);
        gone
    }

    /// Checks the connections that are in use; called regularly.
    pub(crate) fn look_after_peers(&self) {
        let now = self.kernel.clock.now();
        self.peers.borrow_mut().values_mut().filter(|peer| peer.used && !peer.cut_off).for_each(|peer| {
            peer.look_after(&self.fabrics, now);
        });
        self.windows.tend(now);
        self.note_busy();
    }

    fn note_busy(&self) {
        let peers = self.peers.borrow();
        let reached = |on: usize| peers.values().any(|peer| peer.fabric() == on);
        self.busy.replace((0..self.fabrics.len()).map(reached).collect());
    }

    /// Ends the operations on a peer's bulk lane, which do not end by themselves, and opens the lane anew.
    pub(crate) fn reset_bulk(&self, node: NodeId) {
        if let Some(peer) = self.peers.borrow_mut().get_mut(&node).filter(|peer| !peer.cut_off) {
            peer.reset_bulk(&self.fabrics);
        }
    }
}
