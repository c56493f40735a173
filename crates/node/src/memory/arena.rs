//! The arena itself: segments, the zones they are assigned to, and allocation.
//!
//! Owns the segments, their zones and the free runs. Engine thread only (not `Send`). Invariants: `used` of a
//! segment counts the bytes of its pages that extents and slabs cover, and is 0 exactly when the segment may
//! pass to another zone. A zone's free runs and those pages together make up its segments, except for what a
//! clearing withholds.

mod clearing;
mod patchwork;
mod segment;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

pub use self::clearing::Clearing;
use self::clearing::Withheld;
use self::segment::Segment;
use super::PAGE_BYTES;
use super::config::{ArenaConfig, Plan};
use super::error::{AllocError, ArenaError, SegmentError};
use super::extent::{Extent, Home, Piece};
use super::mapping::{Reservation, SegmentMemory};
use super::memfd;
use super::pages::FreeRuns;
use super::placement::{Standing, View};
use super::prefault::{Making, Prefaulter};
use super::slabs::{Class, SLAB_BYTES, Slabs, footprint};
use super::system::PageKind;
use super::usage::{SegmentChange, Usage, ZoneUsage};
use super::zone::{Access, Domain, Writer, Zone};

/// Capacity of the list of dropped extents that is kept when the list is emptied.
const KEPT_RETURNED: usize = 4096;

/// The memory of a node. See the module's documentation.
#[derive(Debug)]
pub struct Arena {
    prefaulter: Option<Prefaulter>,
    home: Rc<Home>,
    pages: PageKind,
    /// Whether to ask for huge pages where the pool gives none.
    transparent: bool,
    /// Whether control groups limit the huge pages of this process.
    limited: bool,
    segments: Vec<Segment>,
    zones: BTreeMap<Zone, ZoneState>,
    changes: Vec<SegmentChange>,
    withheld: Option<Withheld>,
    /// Maximum number of bytes of all extents.
    limit: u64,
    /// Number of bytes of all extents.
    bytes: u64,
    /// A spare list of dropped extents, empty between calls.
    returned: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
struct ZoneState {
    runs: FreeRuns,
    slabs: Slabs,
    segments: u32,
    used: u64,
}

impl Arena {
    /// Creates and maps all segments, and starts to pre-fault them.
    pub fn new(config: &ArenaConfig) -> Result<Arena, ArenaError> {
        let plan = Plan::new(config)?;
        let arena = match Arena::build(&plan) {
            Err(error) => Arena::build(&plan.with_base_pages(error)?)?,
            Ok(arena) => arena,
        };
        tracing::debug!(
            capacity = arena.capacity(),
            segments = arena.segment_count(),
            segment_size = arena.segment_size(),
            pages = arena.pages.name(),
            "the arena is ready"
        );
        Ok(arena)
    }

    fn build(plan: &Plan) -> Result<Arena, ArenaError> {
        let pages = plan.pages;
        if pages == PageKind::Huge {
            memfd::probe_page(pages).map_err(ArenaError::NoHugePage)?;
        }
        memfd::probe_seal(pages.granule(), pages)
            .map_err(|source| ArenaError::Unsealable { pages: pages.name(), source })?;
        let range = Arc::new(
            Reservation::new(plan.segment_size * plan.count, plan.near)
                .map_err(|source| ArenaError::Reserve { capacity: plan.capacity(), source })?,
        );
        let segment = |index| Segment::new(&range, index, plan.segment_size, pages);
        let segments = (0..plan.count).map(segment).collect::<Result<_, _>>()?;
        let making = Making::of(pages, plan.transparent);
        let prefaulter = plan
            .prefault
            .then(|| Prefaulter::start(Arc::clone(&range), plan.segment_size, plan.count, making));
        let prefaulter = prefaulter.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot start the pre-fault thread: first writes will be slower");
            None
        });
        let home = Home {
            range,
            segment_size: plan.segment_size as u64,
            returned: RefCell::default(),
            trimmed: Cell::default(),
            patches: None,
        };
        Ok(Arena {
            prefaulter,
            home: Rc::new(home),
            pages,
            transparent: plan.transparent,
            limited: plan.limited,
            segments,
            zones: BTreeMap::new(),
            changes: Vec::new(),
            withheld: None,
            limit: plan.capacity(),
            bytes: 0,
            returned: Vec::new(),
        })
    }

    /// The state that extents share with the arena, for owners that leave extents.
    pub(crate) fn home(&self) -> Rc<Home> {
        Rc::clone(&self.home)
    }

    /// Maximum number of bytes of all extents: those of all segments, or a limit below that.
    pub fn capacity(&self) -> u64 {
        self.limit
    }

    /// Limits the number of bytes of all extents; present extents stay.
    pub fn limit(&mut self, bytes: u64) {
        self.limit = self.limit.min(bytes);
    }

    /// Number of bytes of a segment.
    pub fn segment_size(&self) -> u64 {
        self.home.segment_size
    }

    /// Number of segments, which are numbered from 0.
    pub fn segment_count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// The kind of pages of which the arena was made. Single segments may still have base pages: those that
    /// another user writes, and those for which no huge pages were left when they were replaced.
    pub fn page_kind(&self) -> PageKind {
        self.pages
    }

    /// Takes `len` bytes for a zone. This may assign or recycle segments: handle
    /// [`Arena::take_changes`] before the fabric is polled again, since a recycled segment's old
    /// registration reaches its new memory.
    pub fn allocate(&mut self, zone: Zone, len: u64) -> Result<Extent, AllocError> {
        self.ensure_free(len)?;
        let taken = footprint(len);
        let offset = match Class::of(len) {
            Some(class) => self.take_slot(zone, class, len)?,
            None => {
                let start = self.find_pages(zone, taken, len)?;
                self.take_pages(zone, start..start + taken);
                start
            }
        };
        Ok(self.count(zone, offset..offset + taken, len))
    }

    /// Refuses more bytes than may be taken now.
    fn ensure_free(&mut self, len: u64) -> Result<(), AllocError> {
        self.drain_returned();
        let capacity = self.capacity();
        if len > capacity {
            return Err(AllocError::TooLarge { len, capacity });
        }
        let free = capacity.saturating_sub(self.bytes);
        if len > free {
            return Err(AllocError::Full { len, free_total: free, largest_run: free });
        }
        Ok(())
    }

    /// Counts the bytes that were taken for an extent of `len` bytes, and makes the extent.
    fn count(&mut self, zone: Zone, taken: Range<u64>, len: u64) -> Extent {
        self.zones.entry(zone).or_default().used += taken.end - taken.start;
        self.bytes += len;
        let offset = taken.start;
        self.for_each_part(taken, |segment, part| segment.live += part);
        self.home.extent(offset, len)
    }

    /// The present usage of the arena. It looks at every segment for every zone: for status, not for every
    /// operation.
    pub fn usage(&mut self) -> Usage {
        self.drain_returned();
        let capacity = self.capacity();
        let used = self.zones.values().map(|state| state.used).sum();
        let nobody = self.with_view(None, |view| view.largest());
        let largest_run = self.zones.keys().map(|zone| self.with_view(Some(*zone), |view| view.largest()));
        let zone_usage = |(zone, state): (&Zone, &ZoneState)| ZoneUsage {
            zone: *zone,
            segments: state.segments,
            used: state.used,
        };
        Usage {
            capacity,
            used,
            free: capacity.saturating_sub(used),
            largest_run: largest_run.fold(nobody, u64::max),
            prefaulted: self.prefaulter.as_ref().map_or(0, Prefaulter::populated),
            huge: self.segments.iter().filter(|segment| segment.is_huge()).count() as u64
                * self.segment_size(),
            transparent: self.prefaulter.as_ref().map_or(0, Prefaulter::collapsed),
            elsewhere: self.prefaulter.as_ref().map_or(0, Prefaulter::elsewhere),
            zones: self.zones.iter().map(zone_usage).collect(),
        }
    }

    /// The version of a segment: 1 at first, one more at each recycling.
    ///
    /// # Panics
    /// When there is no such segment; the caller checks numbers of clients and peers.
    pub fn version(&self, segment: u32) -> u32 {
        self.segments[segment as usize].version
    }

    /// The zone of a segment; `None` if it has none or does not exist.
    pub fn zone(&self, segment: u32) -> Option<Zone> {
        self.segments.get(segment as usize)?.zone
    }

    /// Takes the changes of segments since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<SegmentChange> {
        std::mem::take(&mut self.changes)
    }

    /// The engine's mapping of a segment.
    ///
    /// # Panics
    /// When there is no such segment; the caller checks numbers of clients and peers.
    pub fn memory(&self, segment: u32) -> Rc<SegmentMemory> {
        Rc::clone(&self.segments[segment as usize].memory)
    }

    /// The memory of a piece of a segment, to be registered by itself.
    ///
    /// # Panics
    /// When the arena has no such piece, as with [`Arena::memory`].
    pub(crate) fn part(&self, piece: Piece) -> Rc<SegmentMemory> {
        let at = u64::from(piece.segment) * self.segment_size() + piece.offset;
        let part = SegmentMemory::new(&self.home.range, at as usize, piece.len as usize);
        Rc::new(part.expect("a piece lies in the arena"))
    }

    /// A descriptor of a segment's present file, to be sent to a client of its zone: [`Arena::zone`] tells
    /// which clients these are.
    pub fn descriptor(&mut self, segment: u32, access: Access) -> Result<Arc<OwnedFd>, ArenaError> {
        let count = self.segment_count();
        let slot =
            self.segments.get_mut(segment as usize).ok_or(ArenaError::NoSuchSegment { segment, count })?;
        let (Some(zone), Some(file)) = (slot.zone, slot.file.as_mut()) else {
            return Err(ArenaError::Unassigned { segment });
        };
        match (access, zone.writer) {
            _ if zone.domain == Domain::Nobody => Err(ArenaError::Hidden { segment }),
            (Access::Read, _) => file
                .read_only()
                .map_err(|source| SegmentError { segment, action: "re-open read-only", source }.into()),
            (Access::Write, Writer::Uid(_)) => Ok(Arc::clone(file.read_write())),
            (Access::Write, Writer::Engine) => Err(ArenaError::NotWritable { segment, zone }),
        }
    }

    fn take_slot(&mut self, zone: Zone, class: Class, len: u64) -> Result<u64, AllocError> {
        if let Some(offset) = self.zones.get_mut(&zone).and_then(|state| state.slabs.take(class)) {
            return Ok(offset);
        }
        let start = match self.find_pages(zone, SLAB_BYTES, len) {
            Err(AllocError::Full { .. }) => self.find_pages(zone, PAGE_BYTES, len)?,
            found => found?,
        };
        // A small extent lies within one segment, so that emptying a segment concerns no other.
        let size = self.segment_size();
        let bound = (start / size + 1) * size;
        let run = self.zones.get(&zone).and_then(|state| state.runs.covering(start));
        let end = run.map_or(start + PAGE_BYTES, |run| run.end).min(start + SLAB_BYTES).min(bound);
        self.take_pages(zone, start..end);
        self.zones.entry(zone).or_default().slabs.add(class, start..end);
        Ok(start)
    }

    /// Finds `length` free bytes of whole pages, for an extent of `len` bytes; returns their offset.
    fn find_pages(&mut self, zone: Zone, length: u64, len: u64) -> Result<u64, AllocError> {
        match self.zones.get(&zone).and_then(|state| state.runs.best_fit(length)) {
            Some(start) => Ok(start),
            None => self.grow(zone, length, len),
        }
    }

    /// Takes free pages.
    fn take_pages(&mut self, zone: Zone, pages: Range<u64>) {
        self.zones.entry(zone).or_default().runs.remove(pages.clone());
        self.for_each_part(pages, |segment, part| segment.used += part);
    }

    /// Brings segments into a zone so that it has a free run of `length` bytes; returns its start.
    fn grow(&mut self, zone: Zone, length: u64, len: u64) -> Result<u64, AllocError> {
        let start = self.with_view(Some(zone), |view| {
            view.place(length).ok_or_else(|| AllocError::Full {
                len,
                free_total: view.total(),
                largest_run: view.largest(),
            })
        })?;
        self.claim_all(zone, start..start + length)?;
        Ok(start)
    }

    /// Brings the segments of a range into a zone. The zone may have all of them.
    fn claim_all(&mut self, zone: Zone, range: Range<u64>) -> Result<(), SegmentError> {
        let size = self.segment_size();
        for segment in range.start / size..=(range.end - 1) / size {
            if self.segments[segment as usize].zone != Some(zone) {
                self.claim(segment as usize, zone)?;
            }
        }
        Ok(())
    }

    /// Shows the arena as a zone sees it; `None` stands for a zone that has no segment yet.
    fn with_view<T>(&self, zone: Option<Zone>, look: impl FnOnce(&View<'_>) -> T) -> T {
        let withheld = |index| self.withheld.as_ref().is_some_and(|withheld| withheld.holds(index));
        let standing = |(index, segment): (usize, &Segment)| match segment.zone {
            _ if segment.used > 0 || withheld(index) => Standing::Taken,
            None if segment.file.is_some() => Standing::Unassigned,
            own if own.is_some() && own == zone => Standing::Own,
            _ => Standing::Recyclable,
        };
        let standings: Vec<Standing> = self.segments.iter().enumerate().map(standing).collect();
        let nothing = FreeRuns::default();
        let runs = zone.and_then(|zone| self.zones.get(&zone)).map_or(&nothing, |state| &state.runs);
        look(&View { segment_size: self.segment_size(), standings: &standings, runs })
    }

    /// Frees the extents that were dropped since the last call.
    fn drain_returned(&mut self) {
        // The list is exchanged for an empty one, so that neither list has to grow anew each time.
        let mut returned = std::mem::take(&mut self.returned);
        std::mem::swap(&mut returned, &mut *self.home.returned.borrow_mut());
        returned.drain(..).for_each(|(offset, len)| self.free(offset, len));
        self.bytes -= self.home.trimmed.take();
        returned.shrink_to(KEPT_RETURNED);
        self.returned = returned;
    }

    fn free(&mut self, offset: u64, len: u64) {
        self.bytes -= len;
        let length = footprint(len);
        let zone = self.segments[(offset / self.segment_size()) as usize].zone;
        let Some(state) = zone.and_then(|zone| self.zones.get_mut(&zone)) else {
            // A segment with an extent in it keeps its zone.
            tracing::error!(offset, len, "an extent was returned to a segment without a zone");
            return;
        };
        state.used -= length;
        let pages = match Class::of(len) {
            Some(_) => state.slabs.give_back(offset),
            None => Some(offset..offset + length),
        };
        if let (Some(pages), Some(zone)) = (pages, zone) {
            let apart = match &mut self.withheld {
                Some(withheld) => withheld.keep(zone, pages.clone()),
                None => [pages.clone(), 0..0],
            };
            apart.into_iter().filter(|run| !run.is_empty()).for_each(|run| state.runs.insert(run));
            self.for_each_part(pages, |segment, part| segment.used -= part);
        }
        self.for_each_part(offset..offset + length, |segment, part| segment.live -= part);
    }

    /// Calls `each` with every segment in a range, and the number of the range's bytes in it.
    fn for_each_part(&mut self, range: Range<u64>, each: impl Fn(&mut Segment, u64)) {
        let size = self.segment_size();
        for index in range.start / size..=(range.end - 1) / size {
            let part = range.end.min((index + 1) * size) - range.start.max(index * size);
            each(&mut self.segments[index as usize], part);
        }
    }

    fn bounds(&self, index: usize) -> Range<u64> {
        let size = self.segment_size();
        index as u64 * size..(index as u64 + 1) * size
    }
}
