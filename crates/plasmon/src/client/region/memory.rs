//! Memory of a region that lives on this host: loads, stores and atomic operations on it.
//!
//! Owns a share of the mapping ([`Keeper`]). Any thread. Processes of this host and the daemon read and write
//! the same bytes at any time. A word that is aligned is accessed as a whole, in one order for all. Other
//! bytes are copied, and a copy may have bytes of several writers; any bytes are valid.
//!
//! Invariants: no reference to plain bytes of the memory is made, only to atomics. The bytes are the region's
//! as long as the handle lives, even after the region was freed or has moved.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::{Handle, Region};
use crate::region::Rights;
use crate::wire::RegionPlace;
use crate::{Error, ErrorKind, Result};

/// Holder of the mapping that a region lies in: the arena, or a mapping of the region's own.
pub(in crate::client) type Keeper = Arc<dyn Any + Send + Sync>;

/// Bytes of a region in this process.
pub(in crate::client) struct RegionMemory {
    start: *mut u8,
    len: usize,
    /// Word in the client's slots that says whether the region may be touched.
    state_word: u32,
    /// Whether the bytes may be written here.
    writable: bool,
    _keeper: Keeper,
}

// SAFETY: the memory is mapped as long as the keeper lives, and is accessed by atomics, or by copies that
// suffer whatever others write meanwhile.
unsafe impl Send for RegionMemory {}
// SAFETY: as above.
unsafe impl Sync for RegionMemory {}

impl RegionMemory {
    /// Takes over `len` bytes at `start`, which is aligned as words are. The keeper holds them mapped.
    pub(in crate::client) fn new(keeper: Keeper, start: *mut u8, len: usize, place: &RegionPlace) -> Self {
        Self { start, len, state_word: place.word, writable: place.writable, _keeper: keeper }
    }

    pub(super) fn state_word(&self) -> u32 {
        self.state_word
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Word at an offset.
    ///
    /// # Panics
    /// If the word is not aligned, or beyond the end.
    #[inline]
    pub(super) fn word(&self, offset: u64) -> &AtomicU64 {
        let at = self.at(offset, 8);
        assert!(offset.is_multiple_of(8), "word at offset {offset}");
        // SAFETY: the word is aligned as the start is, lies inside the memory, and lives as long as `self`.
        unsafe { &*at.cast::<AtomicU64>() }
    }

    /// Copies bytes out of the memory.
    ///
    /// # Panics
    /// If the bytes reach beyond the end.
    #[inline]
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        if let Ok(word) = <&mut [u8; 8]>::try_from(&mut *into)
            && offset.is_multiple_of(8)
        {
            *word = self.word(offset).load(Ordering::SeqCst).to_ne_bytes();
            return;
        }
        let from = self.at(offset, into.len());
        // SAFETY: inside the memory. A program may give memory of the region itself, so the two may overlap.
        unsafe { ptr::copy(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes into the memory, which is writable.
    ///
    /// # Panics
    /// If the bytes reach beyond the end.
    #[inline]
    pub(super) fn write(&self, offset: u64, data: &[u8]) {
        if let Ok(word) = <[u8; 8]>::try_from(data)
            && offset.is_multiple_of(8)
        {
            return self.word(offset).store(u64::from_ne_bytes(word), Ordering::SeqCst);
        }
        let to = self.at(offset, data.len());
        // SAFETY: as in `read`; the caller has found the memory writable.
        unsafe { ptr::copy(data.as_ptr(), to, data.len()) };
    }

    /// Sets bytes of the memory, which is writable.
    ///
    /// # Panics
    /// If the bytes reach beyond the end.
    pub(super) fn fill(&self, offset: u64, len: u64, byte: u8) {
        let to = self.at(offset, len as usize);
        // SAFETY: inside the memory, which the caller has found writable.
        unsafe { ptr::write_bytes(to, byte, len as usize) };
    }

    /// Copies bytes of a region, which may be this one, into the memory, which is writable.
    ///
    /// # Panics
    /// If the bytes reach beyond the end of either region.
    pub(super) fn copy(&self, offset: u64, source: &Self, from: u64, len: u64) {
        let (to, from) = (self.at(offset, len as usize), source.at(from, len as usize));
        // SAFETY: both lie inside their memory; the caller has found this one writable. They may overlap.
        unsafe { ptr::copy(from, to, len as usize) };
    }

    /// Address of `len` bytes at an offset.
    #[inline]
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(len));
        assert!(end.is_some_and(|end| end <= self.len), "{len} bytes at offset {offset} of {}", self.len);
        self.start.wrapping_add(offset as usize)
    }
}

/// Bytes of a region in the memory of this process. A view keeps the region's handle.
///
/// Other threads, other processes and the daemon read and write the same bytes. A store does not wake those
/// who wait for a change of a word ([`Region::wait`]): [`Region::notify`] does. After the region was freed,
/// its memory is used for nothing else until the view is gone. A region with a view does not move.
pub struct View {
    region: Region,
    start: *mut u8,
    len: usize,
    /// Number of the view in the client's slots. A region with a view stays on its host.
    number: u32,
}

// SAFETY: the region keeps the memory, which is accessed by atomics and copies alone.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl Region {
    /// View of the region's bytes in the memory of this process.
    ///
    /// # Errors
    /// `NotHere` if the region lives on another host, or cannot be mapped by this user. `NotAllowed` if the
    /// handle lacks the right to read.
    pub fn view(&self) -> Result<View> {
        self.check(0, 0, Rights::READ)?;
        let Some((start, len, number)) = self.handle.begin_view() else {
            let text = format!(
                "region '{}' cannot be viewed: it lives on another host (node {}), it is another \
                 user's, it was made without `mappable`, or when there was no memory left that this user may \
                 map; `read` and `write` work all the same",
                self.name(),
                self.home()
            );
            return Err(Error::new(ErrorKind::NotHere, text));
        };
        Ok(View { region: self.clone(), start, len, number })
    }
}

impl Handle {
    /// Begins a view, if the region may be touched; returns the memory and the number of the view.
    fn begin_view(&self) -> Option<(*mut u8, usize, u32)> {
        let memory = self.mapped()?;
        let number = self.connection.slots()?.begin_view(memory.state_word())?;
        Some((memory.start, memory.len, number))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let connection = &self.region.handle.connection;
        // A forked child has no slots.
        if connection.check_process().is_ok()
            && let Some(slots) = connection.slots()
        {
            slots.end_view(self.number);
        }
    }
}

impl View {
    /// Region of the view.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Size in bytes, which is never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the bytes may be written.
    pub fn is_writable(&self) -> bool {
        self.region.rights().write
            && self.region.handle.memory.as_ref().is_some_and(RegionMemory::is_writable)
    }

    /// Address of the first byte, which is aligned as words are.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Loads the word at an offset, which needs the right to read alone.
    ///
    /// # Errors
    /// `Invalid` if the word is not aligned, or out of bounds.
    pub fn load(&self, offset: u64) -> Result<u64> {
        self.region.check_word(offset, Rights::READ)?;
        // SAFETY: the word was just checked, and is aligned as the start is.
        let word = unsafe { &*self.start.wrapping_add(offset as usize).cast::<AtomicU64>() };
        Ok(word.load(Ordering::SeqCst))
    }

    /// Bytes of the region.
    ///
    /// # Errors
    /// `NotAllowed` if the bytes may only be read.
    pub fn bytes(&self) -> Result<&[AtomicU8]> {
        self.ensure_writable()?;
        // SAFETY: the region keeps the memory, and atomics may be shared with whoever writes it.
        Ok(unsafe { slice::from_raw_parts(self.start.cast(), self.len) })
    }

    /// Words of the region. Its last bytes are missing if they are no whole word.
    ///
    /// # Errors
    /// `NotAllowed` if the bytes may only be read.
    pub fn words(&self) -> Result<&[AtomicU64]> {
        self.ensure_writable()?;
        // SAFETY: as in `bytes`; the start is aligned.
        Ok(unsafe { slice::from_raw_parts(self.start.cast(), self.len / 8) })
    }

    fn ensure_writable(&self) -> Result<()> {
        if self.is_writable() { Ok(()) } else { Err(self.region.lacks(Rights::READ_WRITE)) }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("region", &self.region).finish_non_exhaustive()
    }
}
