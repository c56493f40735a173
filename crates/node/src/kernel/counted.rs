//! Counters of things under way. Engine thread only. Invariant: a count falls when its guard is dropped.

use std::cell::Cell;
use std::ops::Deref;

/// A guard that counts as one until it is dropped.
pub(crate) struct Counted<C: Deref<Target = Cell<u64>>>(C);

impl<C: Deref<Target = Cell<u64>>> Counted<C> {
    /// Adds one to a count.
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
