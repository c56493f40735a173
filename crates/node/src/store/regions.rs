//! The memory of regions: what it takes, whose it is, and in which segments it lies. Engine thread only.
//!
//! Bytes of a region count against the quota of its user and against a limit of all regions, from before
//! there is memory for them until that memory is free again. A region does not move, so segments in which
//! regions lie are not cleared.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::time::Duration;

use bytesize::ByteSize;
use plasmon::text::printable;
use plasmon::{Error, ErrorKind};

use super::Store;
use super::quotas::NOBODY;
use crate::memory::{Extent, Run, Zone};

/// The divisor of a store's capacity that gives the limit of all regions where no setting says it.
const LIMIT_DIVISOR: u64 = 2;

/// What the regions of this node take.
#[derive(Default)]
pub(crate) struct Regions {
    /// Number of bytes of all regions, those included for which there is no memory yet.
    counted: Cell<u64>,
    /// Number of bytes of all regions that have memory.
    held: Cell<u64>,
    /// Number of regions that lie in each segment, in whole or in part.
    segments: RefCell<BTreeMap<u32, u32>>,
}

impl Regions {
    /// Number of bytes of memory of all regions, those included that were freed and are still in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.get()
    }

    /// Whether a region lies in one of these segments.
    pub(super) fn lie_in(&self, segments: Range<u32>) -> bool {
        self.segments.borrow().range(segments).next().is_some()
    }

    /// The segments in which regions lie.
    pub(super) fn segments(&self) -> Vec<u32> {
        self.segments.borrow().keys().copied().collect()
    }
}

/// Bytes of a region that are counted until this is dropped.
struct Counted {
    store: Rc<Store>,
    user: u32,
    len: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let counted = &self.store.regions.counted;
        counted.set(counted.get() - self.len);
        self.store.quotas.borrow_mut().subtract(self.user, NOBODY, self.len);
    }
}

/// The memory of a region. It is free again when this is dropped.
pub(crate) struct RegionMemory {
    // In the order of their end: what is counted was there a moment ago.
    extent: Extent,
    counted: Counted,
}

impl Deref for RegionMemory {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.extent
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        let regions = &self.counted.store.regions;
        regions.held.set(regions.held.get() - self.extent.len());
        let mut segments = regions.segments.borrow_mut();
        for segment in self.extent.segments() {
            if let Some(count) = segments.get_mut(&segment) {
                *count -= 1;
                if *count == 0 {
                    segments.remove(&segment);
                }
            }
        }
    }
}

impl Store {
    /// Maximum number of bytes of all regions.
    pub(crate) fn region_limit(&self) -> u64 {
        let capacity = self.arena.borrow().capacity();
        self.kernel.config.region_memory.unwrap_or(capacity / LIMIT_DIVISOR).min(capacity)
    }

    /// Finds memory for a region of a user, at once or after a wait as [`Store::room`] does. Its bytes are
    /// what the zone's earlier extents left there, or zeros.
    ///
    /// # Errors
    /// `TooLarge` for a region that can never fit; `Full` if regions have no more room, or the user.
    pub(crate) async fn region_room(
        self: &Rc<Self>,
        name: &str,
        zone: Zone,
        len: u64,
        user: u32,
        patience: Duration,
    ) -> Result<RegionMemory, Error> {
        let what = || format!("make region '{}'", printable(name));
        let counted = self.count_region(what, len, user)?;
        let extent = self.room(zone, len, patience).await;
        self.quotas.borrow_mut().taken(user, NOBODY, len);
        let extent = extent.map_err(|error| error.while_doing(&format!("cannot {}", what())))?;
        let mut segments = self.regions.segments.borrow_mut();
        extent.segments().for_each(|segment| *segments.entry(segment).or_default() += 1);
        drop(segments);
        self.regions.held.set(self.regions.held.get() + len);
        Ok(RegionMemory { extent, counted })
    }

    fn count_region(
        self: &Rc<Self>,
        what: impl Fn() -> String,
        len: u64,
        user: u32,
    ) -> Result<Counted, Error> {
        let size = |bytes| ByteSize::b(bytes).display().iec();
        let (bytes, limit) = (self.regions.counted.get(), self.region_limit());
        if len > limit {
            let text = format!(
                "cannot {}: it would have {}, and regions may take {} of this node's memory; start the node \
                 with more --region-memory, or with more --memory",
                what(),
                size(len),
                size(limit)
            );
            return Err(Error::new(ErrorKind::TooLarge, text));
        }
        if len > limit - bytes.min(limit) {
            let text = format!(
                "cannot {}: its {} and the {} of other regions are over the limit of {} (--region-memory); \
                 free some of them first, or make it on another node",
                what(),
                size(len),
                size(bytes),
                size(limit)
            );
            return Err(Error::new(ErrorKind::Full, text).counting(len, bytes));
        }
        self.quotas.borrow_mut().take(what, user, NOBODY, len)?;
        self.regions.counted.set(bytes + len);
        Ok(Counted { store: Rc::clone(self), user, len })
    }
}
