//! The fabric as the node uses it: two lanes, the arena registered, and a connection per peer.
//!
//! Engine thread only. Messages travel on the *small* lane in order; one-sided reads have the *bulk*
//! lane to themselves, so that they do not hold messages up. Connections are made by the provider
//! with the first operation towards a peer.
//!
//! Frames gather during a turn and leave at its end, as many in a message as fit a block: what many ask, and
//! what they are answered, shares the way. Messages are under credit control: a sender has [`WINDOW`] under way
//! towards a peer, which returns credits with its own, or with a [`Message::Credit`] that costs none. The
//! receiver posts enough blocks for every peer's window, so that no message ever finds no block.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::channel::oneshot;
use plasmon::NodeId;
use plasmon::status::PoolStatus;
use plasmon::wire::MAX_DESCRIPTORS;
use plasmon_fabric::{
    Access, Domain, Endpoint, Event, FabricError, Memory, Op, Provider, Region, RemoteRegion, Slice,
};
use tracing::{debug, warn};

use super::frame::{Envelope, FRAME_MAX, HEADER_LEN, Location, Message, Stamp};
use super::members::{Incarnation, Member};
use crate::memory::{Arena, BlockMemory, Piece, SegmentChange};
use crate::transfer::Pools;

/// Messages under way towards a peer.
const WINDOW: u32 = 32;
/// Blocks posted for each peer: its window, and credit frames, which come outside it.
const POSTED_PER_PEER: usize = WINDOW as usize + 8;
/// A queue of fewer frames is short.
const SHORT: usize = 2 * WINDOW as usize;
/// Frames that may wait for a peer; one that takes none is as good as gone.
const QUEUE: usize = 1 << 16;
/// Frames kept of senders that the next view may make members.
const STRANGERS: usize = 1024;

/// Blocks of messages: most carry no object and are short, and what they touch should fit a core's cache.
const BLOCKS: [usize; 3] = [256, 2 << 10, FRAME_MAX];
/// Bytes of a stamp.
const STAMP_LEN: usize = size_of::<u64>();

/// A segment at one time of its life.
type SegmentKey = (u32, u32);

/// A piece of a peer's arena, resolved to what the fabric needs.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) region: RemoteRegion,
    pub(crate) offset: u64,
}

/// The lanes, the registrations and the peers.
pub(crate) struct Network {
    domain: Domain,
    small: Endpoint,
    bulk: Endpoint,
    pools: Pools,
    posted: Cell<usize>,
    /// What frames sent to this node must carry.
    token: u64,
    segments: RefCell<HashMap<SegmentKey, Rc<Region>>>,
    stamps: Rc<Region>,
    peers: RefCell<HashMap<NodeId, Peer>>,
    strangers: RefCell<VecDeque<(Envelope, Option<u16>)>>,
    dropped: Cell<u64>,
}

/// Another member, and what stands between it and this node.
struct Peer {
    member: Member,
    small: plasmon_fabric::Peer,
    bulk: plasmon_fabric::Peer,
    /// Messages that may still be sent.
    credits: u32,
    /// Credits to return.
    owed: u32,
    /// Frames, encoded.
    queue: VecDeque<BytesMut>,
    /// Messages given to the fabric that may still fail, oldest first.
    sending: VecDeque<Sending>,
    /// Segments of ours that it knows.
    announced: HashSet<SegmentKey>,
    /// Segments of its own that it told us.
    segments: HashMap<SegmentKey, RemoteRegion>,
    /// It knows where our stamps are.
    knows_stamps: bool,
    /// Where its own are.
    stamps: Option<RemoteRegion>,
    /// Who waits for the queue to be short.
    drained: Vec<oneshot::Sender<()>>,
    used: bool,
    /// Something was read over the bulk lane, by either side.
    used_bulk: bool,
    missed_frames: bool,
}

/// A message under way.
struct Sending {
    operation: Op,
    /// Credits it returns.
    credits: u16,
    /// It took none itself.
    free: bool,
}

impl Network {
    /// Opens the lanes and registers all segments of the arena, once, and the stamps of objects.
    pub(crate) fn open(
        provider: &Provider,
        arena: &mut Arena,
        stamps: &Rc<BlockMemory>,
        token: u64,
    ) -> Result<Self, FabricError> {
        let domain = Domain::open(provider)?;
        let network = Self {
            small: domain.endpoint()?,
            bulk: domain.endpoint()?,
            pools: Pools::new(&domain, &BLOCKS),
            posted: Cell::new(0),
            token,
            segments: RefCell::default(),
            stamps: domain.register(Rc::clone(stamps) as Rc<dyn Memory>, Access::REMOTE_READ)?,
            peers: RefCell::default(),
            strangers: RefCell::default(),
            dropped: Cell::new(0),
            domain,
        };
        for segment in 0..arena.segment_count() {
            network.register(arena, segment)?;
        }
        Ok(network)
    }

    /// Fabric addresses of the small and the bulk lane.
    pub(crate) fn addresses(&self) -> (Vec<u8>, Vec<u8>) {
        (self.small.address(), self.bulk.address())
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// How the blocks of messages are used.
    pub(crate) fn pools(&self) -> Vec<PoolStatus> {
        self.pools.status()
    }

    /// Frames thrown away so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    fn register(&self, arena: &Arena, segment: u32) -> Result<(), FabricError> {
        let region = self.domain.register(arena.memory(segment), Access::REMOTE_READ)?;
        self.segments.borrow_mut().insert((segment, arena.version(segment)), region);
        Ok(())
    }

    /// Follows what the arena did to its segments. One that cannot be registered can hold objects of
    /// this node's clients, but nothing can be fetched into it or out of it.
    pub(crate) fn follow_arena(&self, arena: &mut Arena) -> Vec<u32> {
        let mut recycled = Vec::new();
        for change in arena.take_changes() {
            if let SegmentChange::Recycled { segment, .. } = change {
                recycled.push(segment);
                self.segments.borrow_mut().retain(|(number, _), _| *number != segment);
                if let Err(error) = self.register(arena, segment) {
                    warn!("segment {segment} cannot be registered: {error}");
                }
            }
        }
        recycled
    }

    /// A piece of our own arena, for an operation; nothing when its segment could not be registered.
    pub(crate) fn local(&self, arena: &Arena, piece: Piece) -> Option<Slice> {
        let key = (piece.segment, arena.version(piece.segment));
        let segments = self.segments.borrow();
        segments.get(&key)?.slice(piece.offset as usize, piece.len as usize).ok()
    }

    /// What the fabric needs to reach a piece of a peer's arena, if the peer has told us.
    pub(crate) fn remote(&self, node: NodeId, location: &Location) -> Option<Remote> {
        let peers = self.peers.borrow();
        let region = *peers.get(&node)?.segments.get(&(location.segment, location.version))?;
        Some(Remote { region, offset: location.offset })
    }

    /// Reads on the bulk lane; nothing when the node is no member any more.
    pub(crate) fn read(&self, node: NodeId, into: Slice, from: Remote) -> Option<Op> {
        let mut peers = self.peers.borrow_mut();
        let peer = peers.get_mut(&node)?;
        peer.used = true;
        peer.used_bulk = true;
        Some(self.bulk.read(peer.bulk, into, from.region, from.offset))
    }

    /// A word of a peer's stamps, if the peer has told us where they are.
    pub(crate) fn remote_stamp(&self, node: NodeId, stamp: Stamp) -> Option<Remote> {
        let region = self.peers.borrow().get(&node)?.stamps?;
        Some(Remote { region, offset: u64::from(stamp.slot) * STAMP_LEN as u64 })
    }

    /// A registered place for a word.
    pub(crate) fn word(&self) -> Result<Slice, FabricError> {
        self.pools.lend(STAMP_LEN)
    }

    /// Registers memory for one transfer, for this node's own operations and for peers' reads.
    pub(crate) fn register_part(&self, arena: &Arena, piece: Piece) -> Result<Rc<Region>, FabricError> {
        self.domain.register(arena.part(piece), Access::REMOTE_READ)
    }

    /// Members that this node has exchanged something with.
    pub(crate) fn connected(&self, node: NodeId) -> bool {
        self.peers.borrow().get(&node).is_some_and(|peer| peer.used)
    }

    /// Queues a frame for a peer; `false` when there is no such member, or it takes nothing.
    pub(crate) fn send(&self, to: NodeId, envelope: Envelope) -> bool {
        let mut peers = self.peers.borrow_mut();
        let Some(peer) = peers.get_mut(&to) else {
            return false;
        };
        if peer.queue.len() >= QUEUE {
            peer.missed_frames = true;
            return false;
        }
        peer.used = true;
        peer.used_bulk |= matches!(envelope.message, Message::Offer { .. } | Message::Registered { .. });
        if let Message::Offer { pieces, stamp, .. } = &envelope.message {
            if stamp.is_some() && !std::mem::replace(&mut peer.knows_stamps, true) {
                let RemoteRegion { base, key, len } = self.stamps.remote();
                let message = Message::Stamps { base, key, len };
                peer.enqueue(&Envelope { message, request: 0, ..envelope.clone() });
            }
            let unknown = pieces.iter().map(|piece| (piece.segment, piece.version));
            for key in unknown.filter(|key| peer.announced.insert(*key)).collect::<Vec<_>>() {
                if let Some(segment) = self.describe(key) {
                    peer.enqueue(&Envelope { message: segment, request: 0, ..envelope.clone() });
                }
            }
        }
        peer.enqueue(&envelope);
        true
    }

    /// Our own segment, for a peer that is about to read from it.
    fn describe(&self, (segment, version): SegmentKey) -> Option<Message> {
        let RemoteRegion { base, key, len } = self.segments.borrow().get(&(segment, version))?.remote();
        Some(Message::Segment { segment, version, base, key, len })
    }

    /// Sends what the credits allow, as many frames in a message as fit.
    fn pump(&self, peer: &mut Peer) {
        while peer.credits > 0
            && let Some(mut message) = peer.queue.pop_front()
        {
            while let Some(next) = peer.queue.front().filter(|next| message.len() + next.len() <= FRAME_MAX) {
                message.extend_from_slice(next);
                peer.queue.pop_front();
            }
            peer.credits -= 1;
            self.post(peer, message, false);
        }
        if peer.queue.len() < SHORT {
            for waiter in peer.drained.drain(..) {
                // Whoever has given up needs no news.
                let _ = waiter.send(());
            }
        }
    }

    /// Ends when the queue for a peer is short, or the peer is gone.
    pub(crate) fn drained(&self, node: NodeId) -> impl Future<Output = ()> + use<> {
        let (sender, receiver) = oneshot::channel();
        if let Some(peer) = self.peers.borrow_mut().get_mut(&node).filter(|peer| peer.queue.len() >= SHORT) {
            peer.drained.push(sender);
        }
        receiver.map(drop)
    }

    /// Gives a message to the fabric. A `free` one costs no credit.
    fn post(&self, peer: &mut Peer, mut message: BytesMut, free: bool) {
        let credits = std::mem::take(&mut peer.owed).min(u32::from(u16::MAX)) as u16;
        Envelope::set_credits(&mut message, credits);
        let posted = self.pools.lend(message.len()).and_then(|block| {
            block.copy_from_slice(&message)?;
            Ok(self.small.send(peer.small, block))
        });
        match posted {
            Ok(operation) => peer.sending.push_back(Sending { operation, credits, free }),
            Err(error) => peer.missed(&error, credits, free),
        }
    }

    /// Follows the members: connects the new, forgets the gone. Returns who went.
    pub(crate) fn follow(&self, own: NodeId, members: &[Member]) -> Vec<NodeId> {
        let mut peers = self.peers.borrow_mut();
        let same = |peer: &Peer| members.contains(&peer.member);
        let gone: Vec<_> = peers.iter().filter(|(_, peer)| !same(peer)).map(|(node, _)| *node).collect();
        for node in &gone {
            if let Some(peer) = peers.remove(node) {
                self.small.disconnect(peer.small);
                self.bulk.disconnect(peer.bulk);
            }
        }
        for member in members.iter().filter(|member| member.node != own) {
            if peers.contains_key(&member.node) {
                continue;
            }
            let lanes = self
                .small
                .connect(&member.small_address)
                .and_then(|small| Ok((small, self.bulk.connect(&member.bulk_address)?)));
            match lanes {
                Ok((small, bulk)) => {
                    peers.insert(member.node, Peer::new(member.clone(), small, bulk));
                }
                Err(error) => warn!("cannot reach node {} at {}: {error}", member.node, member.listen),
            }
        }
        let wanted = POSTED_PER_PEER * peers.len();
        drop(peers);
        while self.posted.get() < wanted {
            if let Err(error) = self.pools.keep(FRAME_MAX).and_then(|block| self.small.receive(block)) {
                warn!("cannot post a receive block: {error}");
                break;
            }
            self.posted.set(self.posted.get() + 1);
        }
        gone
    }

    /// Takes an event of the fabric in; adds the frames of members to act on.
    pub(crate) fn receive(&self, event: Event, frames: &mut Vec<Envelope>) {
        let (slice, len) = match event {
            Event::Received { slice, len, .. } => (slice, len),
            Event::ReceiveFailed { slice, error } => {
                debug!("a message was not received: {error}");
                return self.repost(slice);
            }
            // Nobody is asked to write here.
            Event::RemoteWrite { .. } => return self.drop_frame("an unexpected remote write"),
        };
        let message = slice.slice(0, len).map(|part| Bytes::from(part.to_vec()));
        self.repost(slice);
        let Ok(mut message) = message else { return self.drop_frame("more than a block") };
        let mut is_first = true;
        while is_first || !message.is_empty() {
            match Envelope::decode_first(&mut message) {
                Ok((envelope, token, credits)) if token == self.token => {
                    // A message costs one credit, and its first frame returns some.
                    let credits = std::mem::take(&mut is_first).then_some(credits);
                    frames.extend(self.admit(envelope, credits));
                }
                Ok((envelope, ..)) => {
                    return self.drop_frame(&format!("a wrong token from {}", envelope.from));
                }
                Err(error) => return self.drop_frame(&error.to_string()),
            }
        }
    }

    /// A frame of a member counts; one of a node that may soon be a member waits. The first of a message
    /// comes with credits.
    fn admit(&self, envelope: Envelope, credits: Option<u16>) -> Option<Envelope> {
        let mut peers = self.peers.borrow_mut();
        let peer = peers.get_mut(&envelope.from);
        let Some(peer) = peer.filter(|peer| peer.member.incarnation >= envelope.incarnation) else {
            let mut strangers = self.strangers.borrow_mut();
            if strangers.len() == STRANGERS {
                strangers.pop_front();
                self.dropped.set(self.dropped.get() + 1);
            }
            strangers.push_back((envelope, credits));
            return None;
        };
        if peer.member.incarnation > envelope.incarnation {
            drop(peers);
            self.drop_frame("a frame from a former life of a node");
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
            peer.stamps = Some(RemoteRegion { base, key, len });
            return None;
        }
        if let Message::Segment { segment, version, base, key, len } = envelope.message {
            if segment as usize >= MAX_DESCRIPTORS {
                drop(peers);
                self.drop_frame("a segment beyond any arena");
                return None;
            }
            peer.segments.retain(|(number, _), _| *number != segment);
            peer.segments.insert((segment, version), RemoteRegion { base, key, len });
            return None;
        }
        Some(envelope)
    }

    /// Frames of nodes that have become members since they arrived.
    pub(crate) fn admit_strangers(&self) -> Vec<Envelope> {
        let waiting = std::mem::take(&mut *self.strangers.borrow_mut());
        waiting.into_iter().filter_map(|(envelope, credits)| self.admit(envelope, credits)).collect()
    }

    /// Looks after the peers at the end of a turn: what is to be sent, what failed to be, and credits that no
    /// message has taken along, where half a window has gathered.
    pub(crate) fn end_turn(&self, own: NodeId, incarnation: Incarnation, epoch: u64) {
        for (node, peer) in self.peers.borrow_mut().iter_mut() {
            peer.reap();
            self.pump(peer);
            if peer.owed >= WINDOW / 2 {
                let count = std::mem::take(&mut peer.owed);
                let envelope = Envelope {
                    request: 0,
                    from: own,
                    incarnation,
                    reply_to: *node,
                    epoch,
                    deadline_us: u64::MAX,
                    tenant: 0,
                    class: 0,
                    message: Message::Credit { count },
                };
                self.post(peer, envelope.encode(peer.member.token), true);
            }
        }
    }

    /// Tries the connections that are in use: a peer that lost its end of one waits for that.
    pub(crate) fn probe(&self) {
        for peer in self.peers.borrow().values().filter(|peer| peer.used) {
            // Without a block there is no memory, which others will say.
            let Ok(nothing) = self.pool.lend().and_then(|block| block.slice(0, 0)) else { return };
            if peer.used_bulk {
                self.bulk.probe(peer.bulk, nothing.clone());
            }
            self.small.probe(peer.small, nothing);
        }
    }

    /// Peers that missed something since this was last asked, and can be told again.
    pub(crate) fn take_missed(&self) -> Vec<NodeId> {
        let mut peers = self.peers.borrow_mut();
        let missed = peers.iter_mut().filter(|(_, peer)| peer.queue.is_empty());
        missed.filter_map(|(node, peer)| std::mem::take(&mut peer.missed_frames).then_some(*node)).collect()
    }

    /// Ends the operations on a peer's bulk lane and begins it anew: they do not come to an end.
    pub(crate) fn reset_bulk(&self, node: NodeId) {
        if let Some(peer) = self.peers.borrow_mut().get_mut(&node) {
            self.bulk.disconnect(peer.bulk);
            match self.bulk.connect(&peer.member.bulk_address) {
                Ok(bulk) => peer.bulk = bulk,
                Err(error) => warn!("cannot reach node {node} on the bulk lane any more: {error}"),
            }
        }
    }

    fn repost(&self, slice: Slice) {
        if let Err(error) = self.small.receive(slice) {
            warn!("cannot post a receive block again: {error}");
            self.posted.set(self.posted.get().saturating_sub(1));
        }
    }

    fn drop_frame(&self, why: &str) {
        self.dropped.set(self.dropped.get() + 1);
        debug!("dropped a frame: {why}");
    }
}

impl Peer {
    fn enqueue(&mut self, envelope: &Envelope) {
        self.queue.push_back(envelope.encode(self.member.token));
    }

    /// Forgets frames that were sent, and notes those that were not.
    fn reap(&mut self) {
        while let Some(result) = self.sending.front().and_then(|sending| sending.operation.result()) {
            let sent = self.sending.pop_front();
            if let (Err(error), Some(Sending { credits, free, .. })) = (result, sent) {
                self.missed(&error, credits, free);
            }
        }
    }

    /// A message did not reach the peer: credits are as before it, and what the peer was told of
    /// segments and objects is told again. Whoever waits for an answer asks again.
    fn missed(&mut self, error: &FabricError, credits: u16, free: bool) {
        if !self.missed_frames {
            warn!("a message to node {} was not sent: {error}", self.member.node);
        }
        self.owed += u32::from(credits);
        self.credits = (self.credits + u32::from(!free)).min(WINDOW);
        self.announced.clear();
        self.knows_stamps = false;
        self.missed_frames = true;
    }

    fn new(member: Member, small: plasmon_fabric::Peer, bulk: plasmon_fabric::Peer) -> Self {
        Self {
            member,
            small,
            bulk,
            credits: WINDOW,
            owed: 0,
            queue: VecDeque::new(),
            sending: VecDeque::new(),
            announced: HashSet::new(),
            segments: HashMap::new(),
            knows_stamps: false,
            stamps: None,
            drained: Vec::new(),
            used: false,
            used_bulk: false,
            missed_frames: false,
        }
    }
}

const _: () = assert!(HEADER_LEN < FRAME_MAX);
