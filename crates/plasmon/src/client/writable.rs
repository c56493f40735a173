//! Memory into which an application writes: that of a creation or of a scratch.
//!
//! Owns the memory of one creation or scratch. Any thread. The memory of a large creation is a piece of the
//! writable range of the arena ([`copying`](super::copying)), which is mapped once, so that a creation costs
//! no mapping, and no page fault after the first use of its pages. The memory of a small creation is memory
//! of this process, used again by later ones. The memory of a scratch is a mapping of its own.
//!
//! When the object is sealed or aborted, its memory is *frozen*. If nobody holds the memory but the handle,
//! nobody can write there any more, and freezing costs no system call. Otherwise the pages become read-only
//! for the whole process, until the last holder is gone.
//!
//! Invariants: once memory is frozen, no holder of it can write. Nothing else writes to pages that are frozen
//! as long as they have a holder. The kernel still lets the creator's uid write to its segments, as it does
//! after every large put: which uid may write to a segment is for the daemon to keep.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MprotectFlags, ProtFlags};
use rustix::param::page_size;

use super::mapping::Arena;
use super::range::Range;
use crate::Result;

/// Number of spare pieces of memory that are kept for small creations.
const MAX_SPARES: usize = 16;
/// Size in bytes of a spare piece: more than the data of a small object takes.
const SPARE_BYTES: usize = 64 << 10;

/// Memory into which an object is written, for holders that keep views of it beyond the
/// [`Creation`](crate::Creation). The addresses stay mapped until the last holder is gone.
///
/// Once the object is sealed or aborted, the memory is read-only and the daemon may re-use it. A write is
/// then a segmentation fault, and a read may return bytes of another object.
pub struct CreationMemory {
    place: Place,
    len: usize,
    /// Whether the object is sealed or aborted.
    frozen: AtomicBool,
    /// Whether the pages were made read-only.
    read_only: AtomicBool,
}

/// Place of memory that an application writes.
enum Place {
    /// At an offset of a mapping of its own.
    Own(Range, usize),
    /// At an offset of the arena's writable range.
    Arena(Arc<Arena>, usize),
    /// At the start of a spare piece of memory, which goes back to the arena's spares. `None` only while the
    /// place is dropped.
    Spare(Arc<Arena>, Option<Range>),
}

impl CreationMemory {
    fn new(place: Place, len: usize) -> Self {
        Self { place, len, frozen: AtomicBool::new(false), read_only: AtomicBool::new(false) }
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.place {
            Place::Own(range, at) => range.at(*at),
            Place::Arena(arena, offset) => arena.writing().at(*offset),
            Place::Spare(_, range) => range.as_ref().map_or(std::ptr::dangling_mut(), |range| range.at(0)),
        }
    }

    /// Size of the data in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory can still be written.
    pub fn is_writable(&self) -> bool {
        !self.frozen.load(Ordering::Acquire)
    }

    /// Makes the pages read-only, or writable again.
    fn protect(&self, access: MprotectFlags) -> Result<()> {
        match &self.place {
            // SAFETY: reading stays possible, and no slice for writing is borrowed from the handle.
            Place::Own(range, _) => unsafe { range.protect(access) },
            // SAFETY: as above.
            Place::Spare(_, Some(range)) => unsafe { range.protect(access) },
            Place::Spare(_, None) => Ok(()),
            Place::Arena(arena, offset) if access.contains(MprotectFlags::WRITE) => {
                arena.writing().thaw(*offset, self.len)
            }
            Place::Arena(arena, offset) => {
                arena.writing().freeze(*offset, self.len, arena.is_of_this_process())
            }
        }
    }
}

impl Drop for CreationMemory {
    fn drop(&mut self) {
        let read_only = *self.read_only.get_mut();
        match &mut self.place {
            Place::Arena(arena, offset) if read_only && arena.is_of_this_process() => {
                // If this fails, the pages stay frozen, and later objects there get mappings of their own.
                let _ = arena.writing().thaw(*offset, self.len);
            }
            Place::Spare(arena, range) if !read_only && arena.is_of_this_process() => {
                let mut spares = arena.spares();
                if spares.len() < MAX_SPARES {
                    spares.extend(range.take());
                }
            }
            _ => {}
        }
    }
}

/// Handle of a [`CreationMemory`], and the only one that gives out slices of it.
pub(super) struct Writable {
    memory: Arc<CreationMemory>,
}

impl Writable {
    /// Memory of this process, for data that travels in a request.
    pub(super) fn spare(arena: &Arc<Arena>, len: usize) -> Result<Self> {
        if len > SPARE_BYTES {
            return Self::anonymous(len);
        }
        let spare = arena.spares().pop();
        let range = match spare {
            Some(range) => range,
            None => own_memory(SPARE_BYTES.next_multiple_of(page_size()))?,
        };
        Ok(Self::of(Place::Spare(Arc::clone(arena), Some(range)), len))
    }

    /// Memory of this process that is not used again.
    pub(super) fn anonymous(len: usize) -> Result<Self> {
        Ok(Self::over(own_memory(len.max(1).next_multiple_of(page_size()))?, 0, len))
    }

    /// Memory that this process registers with the daemon: a mapping of a file that cannot shrink.
    pub(super) fn own(file: &OwnedFd, len: usize) -> Result<Self> {
        let whole = len.next_multiple_of(page_size());
        let range = Range::reserve(whole, 0, page_size())?;
        // SAFETY: nothing points into the range yet.
        unsafe { range.map_populated(0, whole, file, 0, ProtFlags::READ | ProtFlags::WRITE) }?;
        Ok(Self::over(range, 0, len))
    }

    /// Memory at an offset of a mapping of its own.
    pub(super) fn over(range: Range, at: usize, len: usize) -> Self {
        Self::of(Place::Own(range, at), len)
    }

    /// Piece of the arena's writable range, which is mapped there and which no other memory overlaps.
    pub(super) fn in_arena(arena: &Arc<Arena>, offset: usize, len: usize) -> Self {
        Self::of(Place::Arena(Arc::clone(arena), offset), len)
    }

    fn of(place: Place, len: usize) -> Self {
        Self { memory: Arc::new(CreationMemory::new(place, len)) }
    }

    pub(super) fn memory(&self) -> &Arc<CreationMemory> {
        &self.memory
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as `memory` lives. Only this handle gives out slices. Code that writes
        // through the pointer of `CreationMemory` answers for that.
        unsafe { slice::from_raw_parts(self.memory.as_ptr(), self.memory.len) }
    }

    /// Bytes to write. Empty once the memory is frozen.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        if !self.memory.is_writable() {
            return &mut [];
        }
        // SAFETY: as in `bytes`, and the memory is writable until `freeze`, which borrows `self` mutably.
        unsafe { slice::from_raw_parts_mut(self.memory.as_ptr(), self.memory.len) }
    }

    /// Writes parts, each at its offset, ascending, and zeros between and behind them.
    pub(super) fn fill(&mut self, parts: &[(usize, &[u8])]) {
        let bytes = self.bytes_mut();
        let mut end = 0;
        for (at, part) in parts {
            bytes[end..*at].fill(0);
            end = at + part.len();
            bytes[*at..end].copy_from_slice(part);
        }
        bytes[end..].fill(0);
    }

    /// Ends writing, for every holder.
    pub(super) fn freeze(&mut self) -> Result<()> {
        self.memory.frozen.store(true, Ordering::Release);
        let alone = Arc::get_mut(&mut self.memory).is_some();
        // A scratch gives out its memory after this, too.
        let private = matches!(self.memory.place, Place::Own(..));
        if (private || !alone) && !self.memory.read_only.load(Ordering::Relaxed) {
            self.memory.protect(MprotectFlags::READ)?;
            self.memory.read_only.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes the memory writable again after it did not become an object.
    pub(super) fn thaw(&mut self) -> Result<()> {
        // No access is taken away, and this process may write the memory as before.
        self.memory.protect(MprotectFlags::READ | MprotectFlags::WRITE)?;
        self.memory.read_only.store(false, Ordering::Relaxed);
        self.memory.frozen.store(false, Ordering::Release);
        Ok(())
    }
}

/// Memory of this process alone.
fn own_memory(len: usize) -> Result<Range> {
    let range = Range::reserve(len, 0, page_size())?;
    // SAFETY: the range is this function's alone.
    unsafe { range.protect(MprotectFlags::READ | MprotectFlags::WRITE) }?;
    Ok(range)
}
