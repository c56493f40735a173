//! The arena itself: segments, the zones they are assigned to, and allocation.
//!
//! Engine thread only (not `Send`). Invariants: `used` of a segment counts the pages of it that
//! extents and slabs cover, and is 0 exactly when the segment may pass to another zone; a zone's
//! free runs and those pages together make up its segments, but for what a clearing withholds.

mod clearing;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

pub use self::clearing::Clearing;
use self::clearing::Withheld;
use super::PAGE;
use super::config::{ArenaConfig, Plan};
use super::error::{AllocError, ArenaError, SegmentError};
use super::extent::{Extent, Home};
use super::mapping::{Reservation, SegmentMemory};
use super::memfd::{self, Memfd};
use super::pages::FreeRuns;
use super::placement::{Standing, View};
use super::prefault::Prefaulter;
use super::slabs::{Class, SLAB, Slabs, footprint};
use super::system::PageKind;
use super::usage::{SegmentChange, Usage, ZoneUsage};
use super::zone::{Access, Writer, Zone};

/// The memory of a node. See the module's documentation.
#[derive(Debug)]
pub struct Arena {
    prefaulter: Option<Prefaulter>,
    home: Rc<Home>,
    pages: PageKind,
    segments: Vec<Segment>,
    zones: BTreeMap<Zone, ZoneState>,
    changes: Vec<SegmentChange>,
    withheld: Option<Withheld>,
}

#[derive(Debug)]
struct Segment {
    /// `None` if a replacement could not be had: the next to take the segment tries again.
    file: Option<Memfd>,
    memory: Rc<SegmentMemory>,
    zone: Option<Zone>,
    version: u32,
    /// Bytes in pages that extents and slabs cover.
    used: u64,
    /// Bytes that extents take up: what would have to be moved to empty it.
    live: u64,
}

impl Segment {
    fn new(
        range: &Arc<Reservation>,
        index: usize,
        size: usize,
        pages: PageKind,
    ) -> Result<Segment, SegmentError> {
        let failed = |action| move |source| SegmentError { segment: index as u32, action, source };
        let file = Memfd::new(size as u64, pages).map_err(failed("create"))?;
        range.map(index * size, size, file.read_write()).map_err(failed("map"))?;
        let memory = SegmentMemory::new(range, index * size, size).map_err(failed("map"))?;
        Ok(Segment { file: Some(file), memory: Rc::new(memory), zone: None, version: 1, used: 0, live: 0 })
    }
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
        tracing::info!(
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
        memfd::probe_seal(pages.granule(), pages)
            .map_err(|source| ArenaError::Unsealable { pages: pages.name(), source })?;
        let range = Arc::new(
            Reservation::new(plan.segment_size * plan.count)
                .map_err(|source| ArenaError::Reserve { capacity: plan.capacity(), source })?,
        );
        let segment = |index| Segment::new(&range, index, plan.segment_size, pages);
        let segments = (0..plan.count).map(segment).collect::<Result<_, _>>()?;
        let prefaulter =
            plan.prefault.then(|| Prefaulter::start(Arc::clone(&range), plan.segment_size, plan.count));
        let prefaulter = prefaulter.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot start the pre-fault thread: first writes will be slower");
            None
        });
        let home = Home { range, segment_size: plan.segment_size as u64, returned: RefCell::default() };
        Ok(Arena {
            prefaulter,
            home: Rc::new(home),
            pages,
            segments,
            zones: BTreeMap::new(),
            changes: Vec::new(),
            withheld: None,
        })
    }

    /// Bytes in all segments.
    pub fn capacity(&self) -> u64 {
        self.home.segment_size * self.segments.len() as u64
    }

    /// Bytes of a segment.
    pub fn segment_size(&self) -> u64 {
        self.home.segment_size
    }

    /// How many segments there are, numbered from 0.
    pub fn segment_count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// The kind of pages it got.
    pub fn page_kind(&self) -> PageKind {
        self.pages
    }

    /// Takes `len` bytes for a zone. This may assign or recycle segments: handle
    /// [`Arena::take_changes`] before the fabric is polled again, since a recycled segment's old
    /// registration reaches its new memory.
    pub fn allocate(&mut self, zone: Zone, len: u64) -> Result<Extent, AllocError> {
        self.drain_returned();
        let capacity = self.capacity();
        if len > capacity {
            return Err(AllocError::TooLarge { len, capacity });
        }
        let taken = footprint(len);
        let offset = match Class::of(len) {
            Some(class) => self.take_slot(zone, class, len)?,
            None => {
                let start = self.find_pages(zone, taken, len)?;
                self.take_pages(zone, start..start + taken);
                start
            }
        };
        self.zones.entry(zone).or_default().used += taken;
        self.for_each_part(offset..offset + taken, |segment, part| segment.live += part);
        Ok(Extent::new(&self.home, zone, offset, len))
    }

    /// How the arena is used now. Looks at every segment for every zone: for status, not for every
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
            free: capacity - used,
            largest_run: largest_run.fold(nobody, u64::max),
            prefaulted: match (self.pages, &self.prefaulter) {
                (PageKind::Huge, _) => capacity,
                (PageKind::Base, prefaulter) => prefaulter.as_ref().map_or(0, Prefaulter::populated),
            },
            zones: self.zones.iter().map(zone_usage).collect(),
        }
    }

    /// The version of a segment: 1 at first, one more at each recycling.
    ///
    /// # Panics
    /// If there is no such segment; so do not pass on a number from a client or a peer unchecked.
    pub fn version(&self, segment: u32) -> u32 {
        self.segments[segment as usize].version
    }

    /// The zone of a segment; `None` if it has none or does not exist.
    pub fn zone(&self, segment: u32) -> Option<Zone> {
        self.segments.get(segment as usize)?.zone
    }

    /// What has happened to segments since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<SegmentChange> {
        std::mem::take(&mut self.changes)
    }

    /// The engine's mapping of a segment.
    ///
    /// # Panics
    /// If there is no such segment; so do not pass on a number from a client or a peer unchecked.
    pub fn memory(&self, segment: u32) -> Rc<SegmentMemory> {
        Rc::clone(&self.segments[segment as usize].memory)
    }

    /// A descriptor of a segment's present file, to be sent to a client of its zone: see
    /// [`Arena::zone`] for who that is.
    pub fn descriptor(&mut self, segment: u32, access: Access) -> Result<BorrowedFd<'_>, ArenaError> {
        let count = self.segment_count();
        let slot =
            self.segments.get_mut(segment as usize).ok_or(ArenaError::NoSuchSegment { segment, count })?;
        let (Some(zone), Some(file)) = (slot.zone, slot.file.as_mut()) else {
            return Err(ArenaError::Unassigned { segment });
        };
        match (access, zone.writer) {
            (Access::Read, _) => file
                .read_only()
                .map_err(|source| SegmentError { segment, action: "re-open read-only", source }.into()),
            (Access::Write, Writer::Uid(_)) => Ok(file.read_write()),
            (Access::Write, Writer::Engine) => Err(ArenaError::NotWritable { segment, zone }),
        }
    }

    fn take_slot(&mut self, zone: Zone, class: Class, len: u64) -> Result<u64, AllocError> {
        if let Some(offset) = self.zones.get_mut(&zone).and_then(|state| state.slabs.take(class)) {
            return Ok(offset);
        }
        let start = match self.find_pages(zone, SLAB, len) {
            Err(AllocError::Full { .. }) => self.find_pages(zone, PAGE, len)?,
            found => found?,
        };
        // Within one segment, so that whoever empties a segment need not look at another.
        let size = self.segment_size();
        let bound = (start / size + 1) * size;
        let run = self.zones.get(&zone).and_then(|state| state.runs.covering(start));
        let end = run.map_or(start + PAGE, |run| run.end).min(start + SLAB).min(bound);
        self.take_pages(zone, start..end);
        self.zones.entry(zone).or_default().slabs.add(class, start..end);
        Ok(start)
    }

    /// Where `length` bytes of whole pages are free, for an extent of `len` bytes.
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
        let size = self.segment_size();
        for segment in start / size..=(start + length - 1) / size {
            if self.segments[segment as usize].zone != Some(zone) {
                self.claim(segment as usize, zone)?;
            }
        }
        Ok(start)
    }

    /// Shows the arena as a zone (or one that has nothing yet) sees it.
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

    /// Assigns a segment in which nothing lies to a zone, with fresh memory if it has had another.
    fn claim(&mut self, index: usize, zone: Zone) -> Result<(), SegmentError> {
        self.release_from_zone(index);
        let number = index as u32;
        let failed = |action| move |source| SegmentError { segment: number, action, source };
        if self.segments[index].file.is_none() {
            self.renew(index).map_err(failed("replace"))?;
        }
        let segment = &mut self.segments[index];
        if let Some(file) = &segment.file {
            file.give_to(zone.writer).map_err(failed("seal"))?;
        }
        segment.zone = Some(zone);
        self.changes.push(SegmentChange::Assigned { segment: number, version: segment.version, zone });
        let bounds = self.bounds(index);
        let state = self.zones.entry(zone).or_default();
        state.segments += 1;
        state.runs.insert(bounds);
        Ok(())
    }

    /// Ends a segment's life in its zone, if it has one: its file goes.
    fn release_from_zone(&mut self, index: usize) {
        let bounds = self.bounds(index);
        let segment = &mut self.segments[index];
        let Some(zone) = segment.zone.take() else { return };
        if let (Writer::Uid(_), Some(file)) = (zone.writer, &segment.file)
            && let Err(error) = file.empty(bounds.end - bounds.start)
        {
            tracing::debug!(%error, segment = index, "cannot empty an old segment; its memory stays until unmapped");
        }
        segment.file = None;
        self.changes.push(SegmentChange::Recycled { segment: index as u32, version: segment.version });
        segment.version = segment.version.wrapping_add(1);
        if let Some(state) = self.zones.get_mut(&zone) {
            state.runs.remove(bounds);
            state.segments -= 1;
            if state.segments == 0 {
                self.zones.remove(&zone);
            }
        }
    }

    /// Puts fresh memory in the place of a segment.
    fn renew(&mut self, index: usize) -> io::Result<()> {
        let length = self.segment_size();
        let (at, len) = (index * length as usize, length as usize);
        if let Some(prefaulter) = &self.prefaulter {
            prefaulter.forget(index);
        }
        if self.pages == PageKind::Huge {
            // There may be no huge pages to spare for both the old and the new.
            self.home.range.vacate(at, len)?;
        }
        let file = Memfd::new(length, self.pages)?;
        self.home.range.map(at, len, file.read_write())?;
        self.segments[index].file = Some(file);
        if let Some(prefaulter) = &self.prefaulter {
            prefaulter.renew(index);
        }
        Ok(())
    }

    /// Frees what was dropped since the last time.
    fn drain_returned(&mut self) {
        let returned = std::mem::take(&mut *self.home.returned.borrow_mut());
        for (offset, len) in returned {
            self.free(offset, len);
        }
    }

    fn free(&mut self, offset: u64, len: u64) {
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

    /// Calls `each` with every segment that a range lies in and how many bytes of it lie there.
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
