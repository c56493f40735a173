//! A segment, and how it passes from one zone to another.
//!
//! A segment owns its file. Engine thread only. Invariants: a segment that has been in a zone, or whose
//! memory is of the wrong kind for the next one, gets fresh memory and a higher version before it is
//! assigned. In an arena of the pool's huge pages, segments that another user writes are not of the pool: a
//! process with a writable descriptor of such a page can take the page away, and the engine's next touch
//! would end the engine.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use super::Arena;
use crate::memory::error::SegmentError;
use crate::memory::mapping::{Reservation, SegmentMemory};
use crate::memory::memfd::Memfd;
use crate::memory::prefault::Making;
use crate::memory::system::{self, PageKind};
use crate::memory::usage::SegmentChange;
use crate::memory::zone::{Writer, Zone};

#[derive(Debug)]
pub(super) struct Segment {
    /// The segment's file; `None` if a replacement failed, and the next zone that takes the segment tries
    /// again.
    pub(super) file: Option<Memfd>,
    pub(super) memory: Rc<SegmentMemory>,
    pub(super) zone: Option<Zone>,
    pub(super) version: u32,
    /// Number of bytes in pages that extents and slabs cover.
    pub(super) used: u64,
    /// Number of bytes that extents take: those to be moved to empty the segment.
    pub(super) live: u64,
}

impl Segment {
    pub(super) fn new(
        range: &Arc<Reservation>,
        index: usize,
        size: usize,
        pages: PageKind,
    ) -> Result<Segment, SegmentError> {
        let failed = |action| move |source| SegmentError { segment: index as u32, action, source };
        let file = Memfd::new(size as u64, pages).map_err(failed("create"))?;
        range.map(index * size, size, file.read_write().as_fd()).map_err(failed("map"))?;
        let memory = SegmentMemory::new(range, index * size, size).map_err(failed("map"))?;
        Ok(Segment { file: Some(file), memory: Rc::new(memory), zone: None, version: 1, used: 0, live: 0 })
    }

    pub(super) fn is_huge(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.pages() == PageKind::Huge)
    }
}

impl Arena {
    /// Assigns an empty segment to a zone.
    pub(super) fn claim(&mut self, index: usize, zone: Zone) -> Result<(), SegmentError> {
        let number = index as u32;
        let failed = |action| move |source| SegmentError { segment: number, action, source };
        let pages = self.pages_for(zone.writer);
        let segment = &self.segments[index];
        let is_fresh = segment.zone.is_none() && segment.file.as_ref().is_some_and(|it| it.pages() == pages);
        if !is_fresh {
            self.retire(index);
            self.renew(index, pages).map_err(failed("replace"))?;
        }
        let segment = &mut self.segments[index];
        if let Some(file) = &segment.file {
            file.give_to(zone).map_err(failed("seal"))?;
        }
        segment.zone = Some(zone);
        self.changes.push(SegmentChange::Assigned { segment: number, version: segment.version, zone });
        let bounds = self.bounds(index);
        let state = self.zones.entry(zone).or_default();
        state.segments += 1;
        state.runs.insert(bounds);
        Ok(())
    }

    /// The kind of pages for a writer's segments, if the system has such pages.
    pub(super) fn pages_for(&self, writer: Writer) -> PageKind {
        match writer {
            Writer::Uid(uid) if uid != rustix::process::geteuid().as_raw() => PageKind::Base,
            _ => self.pages,
        }
    }

    /// Ends the life of a segment's memory, in its zone if it has one.
    fn retire(&mut self, index: usize) {
        let bounds = self.bounds(index);
        let segment = &mut self.segments[index];
        let zone = segment.zone.take();
        if let (Some(Writer::Uid(_)), Some(file)) = (zone.map(|zone| zone.writer), &segment.file)
            && let Err(error) = file.empty(bounds.end - bounds.start)
        {
            tracing::debug!(%error, segment = index, "cannot empty an old segment; its memory stays until \
                unmapped");
        }
        self.changes.push(SegmentChange::Recycled { segment: index as u32, version: segment.version });
        segment.version = segment.version.wrapping_add(1);
        if let Some(zone) = zone
            && let Some(state) = self.zones.get_mut(&zone)
        {
            state.runs.remove(bounds);
            state.segments -= 1;
            if state.segments == 0 {
                self.zones.remove(&zone);
            }
        }
    }

    /// Replaces the memory of a segment by fresh memory, of huge pages only if there are some.
    fn renew(&mut self, index: usize, pages: PageKind) -> io::Result<()> {
        if let Some(prefaulter) = &self.prefaulter {
            prefaulter.forget(index);
        }
        let was_huge = self.segments[index].is_huge();
        self.segments[index].file = None;
        if was_huge {
            // There may be too few huge pages for both the old and the new memory.
            let size = self.segment_size() as usize;
            self.home.range.vacate(index * size, size)?;
        }
        let file = match self.fresh(index, pages) {
            Err(error) if pages == PageKind::Huge => {
                tracing::warn!(%error, segment = index, "no huge pages of the pool for a replaced segment");
                self.fresh(index, PageKind::Base)?
            }
            fresh => fresh?,
        };
        self.segments[index].file = Some(file);
        if let Some(prefaulter) = &self.prefaulter {
            let pages = if self.segments[index].is_huge() { PageKind::Huge } else { PageKind::Base };
            prefaulter.renew(index, Making::of(pages, self.transparent));
        }
        Ok(())
    }

    /// Makes a new file and maps it in the place of a segment.
    fn fresh(&self, index: usize, pages: PageKind) -> io::Result<Memfd> {
        let size = self.segment_size();
        if pages != self.pages {
            // The arena was checked against the pool of huge pages, not against available memory.
            system::check_available(size)?;
        }
        let file = Memfd::new(size, pages)?;
        self.home.range.map(index * size as usize, size as usize, file.read_write().as_fd())?;
        if pages == PageKind::Huge && self.limited {
            // Clients may still have the pages of the segment that is replaced, which count as well.
            file.fill(size)?;
        }
        Ok(file)
    }
}
