//! Plain memory for the blocks of messages: never shared with clients. A block owns its mapping. Engine
//! thread only.

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::PAGE_BYTES;

/// A page-aligned, zeroed piece of this process's own memory, to be registered with a fabric. A page that
/// nothing was written to takes no memory, unless a network card has it locked.
pub(crate) struct BlockMemory {
    base: NonNull<u8>,
    layout: Layout,
}

impl BlockMemory {
    /// Allocates `len` bytes, more than none.
    pub(crate) fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), PAGE_BYTES as usize).expect("a block slab is small");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), layout.size(), protection, MapFlags::PRIVATE) };
        let base = base.ok().and_then(|base| NonNull::new(base.cast::<u8>()));
        Self { base: base.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl BlockMemory {
    /// Gives the pages back to the system, so that the memory is zero again. A fabric that still writes there
    /// does no harm.
    pub(crate) fn give_back(&self) {
        // SAFETY: the mapping is private, anonymous and this one's own; no reference to its bytes is formed.
        let given = unsafe { madvise(self.base.as_ptr().cast(), self.layout.size(), Advice::LinuxDontNeed) };
        debug_assert!(given.is_ok(), "the mapping is this one's own");
    }

    /// The address of `len` bytes at `at`; `None` if they do not lie within.
    pub(super) fn address(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        let end = at.checked_add(len)?;
        // SAFETY: within the mapping, as just checked.
        (end <= self.layout.size()).then(|| unsafe { self.base.add(at) })
    }

    /// Reads the 64-bit word at an index.
    pub(crate) fn load(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    /// Writes the 64-bit word at an index. A network card may be reading it: later writes of this thread
    /// are not visible before it.
    pub(crate) fn store(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.layout.size() / size_of::<u64>());
        // SAFETY: inside the allocation, aligned as pages are, initialised, and only ever accessed as an
        // atomic by this process where words are used.
        unsafe { self.base.cast::<AtomicU64>().add(word).as_ref() }
    }
}

impl Drop for BlockMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and given back once.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.layout.size()) };
        debug_assert!(unmapped.is_ok(), "the mapping is this one's own");
    }
}

// SAFETY: the values are fixed, the allocation lives as long as the value, and nobody forms a
// reference into it.
unsafe impl plasmon_fabric::Memory for BlockMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}
