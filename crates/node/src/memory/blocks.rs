//! Plain memory for the blocks of messages: never shared with clients.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::PAGE;

/// A page-aligned, zeroed piece of this process's own memory, to be registered with a fabric.
pub(crate) struct BlockMemory {
    base: NonNull<u8>,
    layout: Layout,
}

impl BlockMemory {
    /// `len` bytes; more than none.
    pub(crate) fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), PAGE as usize).expect("a block slab is small");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout));
        Self { base, layout }
    }
}

impl Drop for BlockMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and given back once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
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
