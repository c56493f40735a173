//! Extents: pieces of the arena in use. Engine thread only.
//!
//! Invariants: the range belongs to this extent alone until it is dropped. Dropping only notes the range on
//! a list, which the arena empties at its next call, so an extent may be dropped anywhere on the engine
//! thread, even after the arena. An owner with millions of extents keeps only their offsets and lengths
//! ([`Extent::leave`]).
//!
//! Some extents lie in several places of the arena, which are mapped side by side in addresses of their own
//! ([`Patches`]). Whoever reads, writes or cuts an extent need not know: its bytes are contiguous.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::PAGE_BYTES;
use super::error::OutOfBounds;
use super::io::IoRange;
use super::mapping::Reservation;

/// The state that extents share with their arena.
#[derive(Debug)]
pub(crate) struct Home {
    pub(super) range: Arc<Reservation>,
    pub(super) segment_size: u64,
    /// Ranges of dropped extents: the offset, and the length asked for.
    pub(super) returned: RefCell<Vec<(u64, u64)>>,
    /// Number of bytes by which extents were shortened and that `returned` does not count: a part of their
    /// last page.
    pub(super) trimmed: Cell<u64>,
    /// Extents that the range shows, if it does not show the arena itself.
    pub(super) patches: Option<Patches>,
}

/// Extents that are mapped side by side in a range of their own. They are freed when nobody has the range any
/// more.
#[derive(Debug)]
pub(super) struct Patches(Box<[Patch]>);

#[derive(Debug)]
struct Patch {
    /// The offset in the range of the byte behind the extent.
    end: u64,
    extent: Extent,
}

impl Patches {
    /// Lays extents side by side, each of whole pages.
    pub(super) fn new(extents: Vec<Extent>) -> Self {
        let lay = |end: &mut u64, extent: Extent| {
            *end += extent.len();
            Some(Patch { end: *end, extent })
        };
        Self(extents.into_iter().scan(0, lay).collect())
    }

    /// The place in the arena of a byte of the range, and the number of bytes that follow it there.
    fn lies(&self, at: u64) -> Option<(u64, u64)> {
        let patch = self.0.get(self.0.partition_point(|patch| patch.end <= at)).or(self.0.last())?;
        let left = patch.end - at;
        Some((patch.extent.offset + patch.extent.len - left, left))
    }
}

impl Home {
    /// The piece of one segment that begins at a byte of the range, of at most `len` bytes.
    fn piece(&self, at: u64, len: u64) -> Piece {
        let (place, left) = match &self.patches {
            None => (at, len),
            Some(patches) => patches.lies(at).unwrap_or_default(),
        };
        let offset = place % self.segment_size;
        // The arena numbers its segments in 32 bits.
        let segment = (place / self.segment_size) as u32;
        Piece { segment, offset, len: len.min(left).min(self.segment_size - offset) }
    }

    /// Returns the bytes of an extent that was left, for reading.
    pub(crate) fn run(self: &Rc<Self>, offset: u64, len: u64) -> Run {
        Run { offset, len, home: Rc::clone(self) }
    }

    /// Takes up an extent that was left, at its offset and with its length; allowed once.
    pub(crate) fn extent(self: &Rc<Self>, offset: u64, len: u64) -> Extent {
        Extent { run: self.run(offset, len) }
    }
}

/// A contiguous range of the arena, all of one zone ([`Arena::zone`](super::Arena::zone)), free again when
/// dropped; or several such ranges, of whole pages and of one zone, mapped side by side. It may span adjacent
/// segments, but an extent of at most 3584 bytes never does. Its bytes are what the zone's earlier extents
/// left there, or zeros.
pub struct Extent {
    /// Run of the extent. Its offset is [`LEFT`] once the extent was left, to be taken up again.
    run: Run,
}

/// An offset that no extent has.
const LEFT: u64 = u64::MAX;

/// The bytes of an extent. A run does not keep the bytes: the holder of the run keeps the extent, or its
/// owner.
#[derive(Clone)]
pub struct Run {
    offset: u64,
    len: u64,
    home: Rc<Home>,
}

/// The part of an extent that lies in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The number of the segment.
    pub segment: u32,
    /// The offset in the segment, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Extent {
    /// Leaves the extent to an owner that keeps its offset and length. [`Home::extent`] takes the extent up
    /// again.
    pub(crate) fn leave(mut self) -> u64 {
        std::mem::replace(&mut self.run.offset, LEFT)
    }

    /// Frees the pages of the extent beyond the first `len` bytes. The extent lies in one place. Both lengths
    /// are longer than any slot of a slab, so they are of whole pages.
    pub(crate) fn shorten(&mut self, len: u64) {
        let kept = len.next_multiple_of(PAGE_BYTES);
        if kept < self.run.len {
            self.run.home.returned.borrow_mut().push((self.run.offset + kept, self.run.len - kept));
        }
        let left = self.run.len.min(kept);
        self.run.len = left.min(len);
        let trimmed = &self.run.home.trimmed;
        trimmed.set(trimmed.get() + left - self.run.len);
    }
}

impl Run {
    /// The start of the extent, in bytes from the start of the arena. It is a multiple of 64, and of 4096 if
    /// the extent is longer than 3584 bytes. The start of an extent in several places is counted from the
    /// start of their addresses, and names no place in the arena ([`Run::pieces`]).
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The length of the extent in bytes, as asked for.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the extent has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of the extent; `None` if it does not lie within.
    pub(crate) fn part(&self, at: u64, len: u64) -> Option<Run> {
        at.checked_add(len).filter(|end| *end <= self.len)?;
        Some(Run { offset: self.offset + at, len, home: Rc::clone(&self.home) })
    }

    /// The segments in which the extent lies: at least one, even if the extent is empty. A segment with
    /// several pieces of the extent is there several times.
    pub fn segments(&self) -> impl Iterator<Item = u32> + use<> {
        self.pieces().map(|piece| piece.segment)
    }

    /// The extent's pieces in order, each in one segment; an empty extent has one empty piece.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + use<> {
        let (mut at, end) = (self.offset, self.offset + self.len);
        let mut next = Some(self.home.piece(at, self.len));
        let home = Rc::clone(&self.home);
        std::iter::from_fn(move || {
            let piece = next.take()?;
            at += piece.len;
            next = Some(end - at).filter(|left| *left > 0 && piece.len > 0).map(|left| home.piece(at, left));
            Some(piece)
        })
    }

    /// The contiguous ranges of the arena in which the extent lies, in order: one, unless it lies in several
    /// places.
    pub fn places(&self) -> Vec<Range<u64>> {
        let mut places: Vec<Range<u64>> = Vec::new();
        for piece in self.pieces() {
            let start = u64::from(piece.segment) * self.home.segment_size + piece.offset;
            match places.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end += piece.len,
                None => places.push(start..start + piece.len),
            }
        }
        places
    }

    /// Copies `bytes` into the extent, `at` bytes from its start. Writes nothing if they do not fit.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let place = self.place(at, bytes.len())?;
        self.home.range.copy_in(place, bytes).map_err(|_| self.out_of_bounds(at, bytes.len()))
    }

    /// Copies the bytes out that lie `at` bytes from the extent's start. A client that may write there can
    /// change them between two reads: read once, and decide on the copy.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let place = self.place(at, into.len())?;
        self.home.range.copy_out(place, into).map_err(|_| self.out_of_bounds(at, into.len()))
    }

    /// Sets `len` bytes, `at` bytes from the extent's start, to a value. Changes nothing if they do not lie
    /// within.
    pub(crate) fn fill(&self, at: u64, len: usize, byte: u8) -> Result<(), OutOfBounds> {
        let place = self.place(at, len)?;
        self.home.range.fill(place, len, byte).map_err(|_| self.out_of_bounds(at, len))
    }

    /// The word of 64 bits that lies `at` bytes from the extent's start. `None` if it does not lie within, or
    /// not at a multiple of 8. Processes that may write there can change it at any time.
    pub(crate) fn word(&self, at: u64) -> Option<&AtomicU64> {
        self.home.range.word(self.place(at, size_of::<u64>()).ok()?)
    }

    /// A handle on the extent's bytes for another thread. It does not keep the extent: the caller keeps the
    /// extent until that thread is finished, or other bytes are read or overwritten.
    pub fn io_range(&self) -> IoRange {
        // The range is mapped, so its offset and length fit.
        IoRange::new(&self.home.range, self.offset as usize, self.len as usize)
    }

    /// The position of `len` bytes at `at` in the mapped range.
    fn place(&self, at: u64, len: usize) -> Result<usize, OutOfBounds> {
        let end = at.checked_add(len as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(self.out_of_bounds(at, len));
        }
        usize::try_from(self.offset + at).map_err(|_| self.out_of_bounds(at, len))
    }

    fn out_of_bounds(&self, at: u64, len: usize) -> OutOfBounds {
        OutOfBounds { at, len: len as u64, extent: self.len }
    }
}

impl Deref for Extent {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.run
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        // Extents that are mapped side by side are freed by themselves, when nobody has their addresses any
        // more.
        if self.run.offset != LEFT && self.home.patches.is_none() {
            // The list is never borrowed here already: the arena takes the whole list out before it looks
            // at it.
            self.home.returned.borrow_mut().push((self.offset, self.len));
        }
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extent").field("offset", &self.offset).field("len", &self.len).finish()
    }
}
