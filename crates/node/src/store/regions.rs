//! The memory of regions: its size, its user, and the segments in which it lies. Owns [`Regions`].
//! Engine thread only.
//!
//! The bytes of a region count against the quota of its user and against a limit of all regions, from before
//! there is memory for them until that memory is free again. A region also counts against the limit of the
//! number of regions of a user. A region does not move, so segments in which regions lie are not cleared.
//!
//! A region lies in one place of the arena if there is room in one, and otherwise in several. A region that
//! its owner's processes were to map lies in the engine's memory if no memory that they may map is free.

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
use super::room::Wish;
use crate::kernel::random::HashMap;
use crate::memory::{Domain, Extent, Run, Writer, Zone};

/// The divisor of a store's capacity that gives the default limit of all regions.
const LIMIT_DIVISOR: u64 = 2;
/// Maximum number of places of a region. A frame tells where all of them lie, with 24 bytes each, beside
/// the other facts about a region that moves: at most 8 of 16 KiB, the ends of 64 segments included.
const MAX_PLACES: usize = 256;
/// Number of places of all regions that lie in several, at which no further region lies in several. Each
/// place is a mapping of this process, and the kernel allows a process 65,530 mappings by default
/// (vm.max_map_count). Regions that get memory in one turn do not count for each other.
const MAX_ALL_PLACES: usize = 16 << 10;

/// Memory that the regions of this node take.
#[derive(Default)]
pub(crate) struct Regions {
    /// Number of bytes of all regions, including those that wait for memory.
    counted: Cell<u64>,
    /// Number of bytes of all regions that have memory.
    held: Cell<u64>,
    /// Number of pieces of regions in each segment.
    segments: RefCell<BTreeMap<u32, u32>>,
    /// Number of regions of each user, including those that wait for memory.
    users: RefCell<HashMap<u32, u32>>,
    /// Number of regions that lie in several places, and number of these places.
    in_places: Cell<(u64, usize)>,
    /// Number of regions that their owners' processes were to map and cannot.
    crowded_out: Cell<u64>,
}

impl Regions {
    /// Number of bytes of memory of all regions, including regions that were freed and are still in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.get()
    }

    /// Number of regions that lie in several places.
    pub(crate) fn in_pieces(&self) -> u64 {
        self.in_places.get().0
    }

    /// Number of regions that their owners' processes were to map and cannot.
    pub(crate) fn crowded_out(&self) -> u64 {
        self.crowded_out.get()
    }

    /// Maximum number of places of the next region.
    pub(super) fn places_left(&self) -> usize {
        MAX_PLACES.min(MAX_ALL_PLACES.saturating_sub(self.in_places.get().1))
    }

    /// Whether a region lies in one of these segments.
    pub(crate) fn lie_in(&self, segments: Range<u32>) -> bool {
        self.segments.borrow().range(segments).next().is_some()
    }
}

/// A region and its bytes, which count until this value is dropped, or until the region has its memory.
struct Counted {
    store: Option<Rc<Store>>,
    user: u32,
    len: u64,
}

/// The processes that may map the memory of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mapped {
    /// The owner's processes may map the region.
    ByOwner,
    /// No process may map the region, as was wanted.
    ByNobody,
    /// No process may map the region, because no memory that the owner's processes may map was free.
    CrowdedOut,
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            store.discount_region(self.user, self.len);
        }
    }
}

/// The memory of a region. It is free again, and no longer counts, when this value is dropped.
pub(crate) struct RegionMemory {
    extent: Extent,
    store: Rc<Store>,
    user: u32,
    /// Whether the owner's processes may map the memory, and whether they were to.
    mapped: Mapped,
}

/// A node may have a million regions. With the counts of an `Rc` and malloc's header the memory of a
/// region takes 64 bytes; the next larger size of malloc is 80.
const _: () = assert!(size_of::<RegionMemory>() <= 40);

impl Deref for RegionMemory {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.extent
    }
}

impl RegionMemory {
    /// Whether the owner's processes may map the region.
    pub(crate) fn is_mappable(&self) -> bool {
        self.mapped == Mapped::ByOwner
    }

    /// Whether the owner's processes were to map the region, and no memory that they may map was free.
    pub(crate) fn is_crowded_out(&self) -> bool {
        self.mapped == Mapped::CrowdedOut
    }

    /// Adds the memory to the counts of all regions, or takes it out of them.
    fn enter(&self, enters: bool) {
        let regions = &self.store.regions;
        let changed = |count: u64, by: u64| if enters { count + by } else { count - by };
        regions.held.set(changed(regions.held.get(), self.extent.len()));
        regions.crowded_out.set(changed(regions.crowded_out.get(), self.is_crowded_out().into()));
        let places = self.extent.places().len();
        if places > 1 {
            let (several, all) = regions.in_places.get();
            let all = if enters { all + places } else { all - places };
            regions.in_places.set((changed(several, 1), all));
        }
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        self.enter(false);
        let mut segments = self.store.regions.segments.borrow_mut();
        for segment in self.extent.segments() {
            if let Some(count) = segments.get_mut(&segment) {
                *count -= 1;
                if *count == 0 {
                    segments.remove(&segment);
                }
            }
        }
        drop(segments);
        self.store.discount_region(self.user, self.extent.len());
    }
}

impl Store {
    /// Maximum number of bytes of all regions.
    pub(crate) fn region_limit(&self) -> u64 {
        let capacity = self.arena.borrow().capacity();
        self.kernel.config.region_memory.unwrap_or(capacity / LIMIT_DIVISOR).min(capacity)
    }

    /// Finds memory for a region of a user, at once or after a wait as [`Store::room`] does. The bytes of
    /// the region are what the zone's earlier extents left there, or zeros. A `mappable` region lies in
    /// memory that the user's processes may map, if there is any.
    ///
    /// # Errors
    /// `TooLarge` for a region that can never fit; `Full` if all regions, or those of the user, may
    /// take no more.
    pub(crate) async fn region_room(
        self: &Rc<Self>,
        name: &str,
        mappable: bool,
        len: u64,
        user: u32,
        patience: Duration,
    ) -> Result<RegionMemory, Error> {
        let what = || format!("make region '{}'", printable(name));
        let mut counted = self.count_region(what, len, user)?;
        let zone = match mappable {
            true => Zone { domain: Domain::Private(user), writer: Writer::Uid(user) },
            false => Zone::ENGINE,
        };
        let wish = Wish::any(zone, len, Zone::ENGINE);
        let extent = self.room_for(wish, patience).await;
        self.quotas.borrow_mut().taken(user, NOBODY, len);
        let extent = extent.map_err(|error| error.while_doing(&format!("cannot {}", what())))?;
        let found = extent.segments().next().and_then(|segment| self.arena.borrow().zone(segment));
        let mapped = match (mappable, found == Some(zone)) {
            (false, _) => Mapped::ByNobody,
            (true, true) => Mapped::ByOwner,
            (true, false) => Mapped::CrowdedOut,
        };
        let mut segments = self.regions.segments.borrow_mut();
        extent.segments().for_each(|segment| *segments.entry(segment).or_default() += 1);
        drop(segments);
        counted.store = None;
        let memory = RegionMemory { extent, store: Rc::clone(self), user, mapped };
        memory.enter(true);
        let places = memory.places().len();
        if memory.is_crowded_out() {
            tracing::warn!(
                region = %printable(name), user, len,
                "a region cannot be mapped: no segment that its owner's processes may map has room for it. \
                 They use it by calls"
            );
        } else if places > 1 {
            tracing::debug!(region = %printable(name), len, places, "a region lies in several places");
        }
        Ok(memory)
    }

    fn count_region(
        self: &Rc<Self>,
        what: impl Fn() -> String,
        len: u64,
        user: u32,
    ) -> Result<Counted, Error> {
        let size = |bytes| ByteSize::b(bytes).display().iec();
        let most = self.kernel.config.user_regions;
        let has = self.regions.users.borrow().get(&user).copied().unwrap_or(0);
        if has >= most {
            let text = format!(
                "cannot {}: user {user} has {has} regions on this node, which is its limit (--user-regions); \
                 free some of them first, or make it on another node",
                what()
            );
            return Err(Error::new(ErrorKind::Full, text).counting(1, has.into()));
        }
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
        *self.regions.users.borrow_mut().entry(user).or_default() += 1;
        Ok(Counted { store: Some(Rc::clone(self)), user, len })
    }

    /// Takes a region of a user and its bytes out of the counts.
    fn discount_region(&self, user: u32, len: u64) {
        let regions = &self.regions;
        regions.counted.set(regions.counted.get() - len);
        let mut users = regions.users.borrow_mut();
        if let Some(count) = users.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                users.remove(&user);
            }
        }
        self.quotas.borrow_mut().subtract(user, NOBODY, len);
    }
}
