//! Counting what is under way. Engine thread only.

use std::cell::Cell;
use std::ops::Deref;

/// One of what is counted, for as long as it lives.
pub(crate) struct Counted<C: Deref<Target = Cell<u64>>>(C);

impl<C: Deref<Target = Cell<u64>>> Counted<C> {
    /// Counts one more.
    pub(crate) fn new(count: C) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl<C: Deref<Target = Cell<u64>>> Drop for Counted<C> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
