//! Rekeying: the arena gets new keys when a node is not a member any more, so that the node can read from
//! it only for a short time.
//!
//! Owns the segments that have yet to get new keys, and former registrations. Engine thread only. Closing the
//! lanes ends operations under way, but does not keep a node from connecting again with keys that it knows.
//! So every segment is registered anew, with RDMA one segment at each call since a card takes its time, and
//! peers are told the new key at once. The former registration stays valid for [`FORMER_KEY_GRACE`], for
//! reads that began with it. Rekeying is done where there is a secret: without one, only this host can
//! connect.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon_fabric::Region;
use tracing::info;

use super::network::Network;
use crate::memory::Arena;

/// Time for which a former key stays valid. It is longer than a lease, which a read may have.
const FORMER_KEY_GRACE: Duration = Duration::from_secs(15);

/// The segments that have yet to get new keys.
#[derive(Default)]
pub(crate) struct Rekeying {
    segments: RefCell<VecDeque<u32>>,
    /// Former registrations with the times at which they end, the oldest first.
    former: RefCell<VecDeque<(Instant, Rc<Region>)>>,
}

impl Rekeying {
    /// Begins to give all segments of the arena new keys, since a node is not a member any more.
    pub(crate) fn begin(&self, arena: &Arena) {
        self.segments.replace((0..arena.segment_count()).collect());
    }

    /// Gives further segments new keys; called regularly.
    pub(crate) fn go_on(&self, network: &Network, arena: &Arena) {
        let Self { segments, former } = self;
        let now = network.kernel.clock.now();
        former.borrow_mut().retain(|(until, _)| *until > now);
        let at_once = if network.best().is_rdma() { 1 } else { usize::MAX };
        let due = segments.borrow().len().min(at_once);
        for segment in segments.borrow_mut().drain(..due) {
            let (regions, news) = network.rekey(arena, segment);
            former.borrow_mut().extend(regions.into_iter().map(|region| (now + FORMER_KEY_GRACE, region)));
            for (node, key) in news {
                // The peer may have just gone, and then needs no key.
                network.tell(node, key);
            }
        }
        if due > 0 && segments.borrow().is_empty() {
            info!("the segments of this node have new keys, since a node is not a member any more");
        }
    }
}
