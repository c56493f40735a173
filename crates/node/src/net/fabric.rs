//! An opened provider: its lanes, its message blocks, and the memory of this node that peers may read
//! by it.
//!
//! Owns the endpoints, the blocks and the registrations of one provider. Engine thread only. A node has one
//! fabric, or two where RDMA is available. The second is TCP, for nodes without RDMA and for failures of
//! RDMA. Memory that is registered with one fabric can be reached by that fabric only.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use plasmon_fabric::{Access, Domain, Endpoint, FabricError, Memory, Provider, Region, RemoteRegion, Slice};
use tracing::warn;

use super::frame::{MESSAGE_MAX_BYTES, Message};
use super::members::Reach;
use super::pool::Pools;
use crate::kernel::random::HashMap;
use crate::memory::{Arena, BlockMemory, Piece};

/// Sizes in bytes of the message blocks. Most messages carry no object and are short, and the memory that
/// they touch should fit a core's cache.
const BLOCKS: [usize; 3] = [256, 2 << 10, MESSAGE_MAX_BYTES];

/// The number of a segment and its version.
pub(crate) type SegmentKey = (u32, u32);

/// An open provider.
pub(crate) struct Fabric {
    pub(crate) domain: Domain,
    messages: Endpoint,
    /// The endpoints of the bulk lanes; never empty.
    bulk: Vec<Endpoint>,
    pub(crate) pools: Pools,
    posted: Cell<usize>,
    segments: RefCell<HashMap<SegmentKey, Rc<Region>>>,
    stamps: Rc<Region>,
}

impl Fabric {
    /// Opens a lane for messages and `lanes` bulk lanes, and registers all segments of the arena and the
    /// stamps of objects.
    pub(crate) fn open(
        provider: &Provider,
        lanes: usize,
        arena: &Arena,
        stamps: &Rc<BlockMemory>,
    ) -> Result<Self, FabricError> {
        let domain = Domain::open(provider)?;
        let name = provider.name();
        let fabric = Self {
            messages: domain.endpoint()?,
            bulk: (0..lanes.max(1)).map(|_| domain.endpoint()).collect::<Result<_, _>>()?,
            pools: Pools::new(&domain, name, &BLOCKS),
            posted: Cell::new(0),
            segments: RefCell::default(),
            stamps: domain.register(Rc::clone(stamps) as Rc<dyn Memory>, Access::REMOTE_READ)?,
            domain,
        };
        for segment in 0..arena.segment_count() {
            fabric.register(arena, segment)?;
        }
        Ok(fabric)
    }

    /// The endpoint for messages.
    pub(crate) fn messages(&self) -> &Endpoint {
        &self.messages
    }

    /// The endpoints of the bulk lanes.
    pub(crate) fn bulk(&self) -> &[Endpoint] {
        &self.bulk
    }

    /// Describes how other nodes reach this fabric.
    pub(crate) fn reach(&self) -> Reach {
        let provider = self.domain.provider();
        Reach {
            provider: provider.name().to_owned(),
            protocol: (provider.protocol(), provider.protocol_version()),
            small_address: self.messages.address(),
            bulk_addresses: self.bulk.iter().map(Endpoint::address).collect(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.domain.provider().name()
    }

    fn register(&self, arena: &Arena, segment: u32) -> Result<(), FabricError> {
        let region = self.domain.register(arena.memory(segment), Access::REMOTE_READ)?;
        self.segments.borrow_mut().insert((segment, arena.version(segment)), region);
        Ok(())
    }

    /// Registers a segment once more, with another key; returns the former registration.
    pub(crate) fn rekey(&self, arena: &Arena, segment: u32) -> Option<Rc<Region>> {
        let key = (segment, arena.version(segment));
        let former = self.segments.borrow().get(&key).cloned()?;
        match self.register(arena, segment) {
            Ok(()) => Some(former),
            Err(error) => {
                warn!(
                    "segment {segment} keeps its key with {}: it cannot be registered again: {error}",
                    self.name()
                );
                None
            }
        }
    }

    /// Registers a segment whose memory was replaced. If that fails, the segment can hold objects of this
    /// node's clients, but no object can be fetched into it or out of it.
    pub(crate) fn recycle(&self, arena: &Arena, segment: u32) {
        self.segments.borrow_mut().retain(|(number, _), _| *number != segment);
        if let Err(error) = self.register(arena, segment) {
            warn!("segment {segment} cannot be registered with {}: {error}", self.name());
        }
    }

    /// Returns a piece of this node's arena for an operation; `None` if its segment could not be registered.
    pub(crate) fn local(&self, arena: &Arena, piece: Piece) -> Option<Slice> {
        let key = (piece.segment, arena.version(piece.segment));
        let segments = self.segments.borrow();
        segments.get(&key)?.slice(piece.offset as usize, piece.len as usize).ok()
    }

    /// Describes a segment of this node, for a peer that is about to read from it.
    pub(crate) fn describe(&self, (segment, version): SegmentKey) -> Option<Message> {
        let RemoteRegion { base, key, len } = self.segments.borrow().get(&(segment, version))?.remote();
        Some(Message::Segment { provider: self.name().to_owned(), segment, version, base, key, len })
    }

    /// Describes to a peer where this node's stamps are.
    pub(crate) fn describe_stamps(&self) -> Message {
        let RemoteRegion { base, key, len } = self.stamps.remote();
        Message::Stamps { provider: self.name().to_owned(), base, key, len }
    }

    /// Posts `blocks` further blocks for messages to come.
    pub(crate) fn expect(&self, blocks: usize) {
        while self.posted.get() < blocks {
            if let Err(error) =
                self.pools.keep(MESSAGE_MAX_BYTES).and_then(|block| self.messages.receive(block))
            {
                warn!("cannot post a receive block: {error}");
                break;
            }
            self.posted.set(self.posted.get() + 1);
        }
    }

    /// Posts the block of a message that was read again.
    pub(crate) fn repost(&self, slice: Slice) {
        if let Err(error) = self.messages.receive(slice) {
            warn!("cannot post a receive block again: {error}");
            self.posted.set(self.posted.get().saturating_sub(1));
        }
    }
}
