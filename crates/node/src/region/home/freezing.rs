//! Freezing: for a while nobody changes a region. Owns [`Freezing`]. Engine thread only.
//!
//! Changes by operations wait until the region is thawed. A change that takes several turns of the engine is
//! counted, and freezing waits for it. Processes that have the region mapped are kept out by whoever freezes
//! it ([`still`](crate::region::still)). Reads go on.
//!
//! Invariant: a region is frozen as long as a [`Frozen`] of it lives, and nobody else freezes it meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures::channel::oneshot;

use super::fencing::Fences;
use super::region::Region;

/// The changes of a region that are under way, and the tasks that wait for their ends.
#[derive(Default)]
pub(super) struct Freezing {
    frozen: Cell<bool>,
    /// Number of changes under way that take several turns of the engine.
    changes: Cell<u32>,
    /// Tasks that wait until the region is thawed, or until a change is over.
    waiting: RefCell<Vec<oneshot::Sender<()>>>,
    /// Guards of locks that writes have shown.
    fences: Fences,
}

impl Freezing {
    fn wake(&self) {
        // The waiting task may have gone.
        self.waiting.take().into_iter().for_each(|waiting| _ = waiting.send(()));
    }

    async fn wait(&self) {
        let (sender, told) = oneshot::channel();
        self.waiting.borrow_mut().push(sender);
        _ = told.await;
    }
}

/// A change that takes several turns. Dropping this ends the change.
pub(crate) struct Changing(Rc<Region>);

impl Drop for Changing {
    fn drop(&mut self) {
        let freezing = self.0.freezing();
        freezing.changes.set(freezing.changes.get() - 1);
        freezing.wake();
    }
}

/// A frozen region: nobody changes it by operations until this is dropped.
pub(crate) struct Frozen(Rc<Region>);

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.freezing().frozen.set(false);
        self.0.freezing().wake();
    }
}

impl Region {
    fn freezing(&self) -> &Freezing {
        self.make_rare().freezing.get_or_init(Box::default)
    }

    fn seen_freezing(&self) -> Option<&Freezing> {
        self.rare()?.freezing.get().map(Box::as_ref)
    }

    /// Returns the fences of the region. Makes them if there are none.
    pub(super) fn fences(&self) -> &Fences {
        &self.freezing().fences
    }

    /// Returns the fences of the region, if a write has shown a guard, or a change took several turns.
    pub(super) fn seen_fences(&self) -> Option<&Fences> {
        self.seen_freezing().map(|freezing| &freezing.fences)
    }

    /// Whether the region is frozen, so that changes have to wait.
    pub(crate) fn is_frozen(&self) -> bool {
        self.seen_freezing().is_some_and(|freezing| freezing.frozen.get())
    }

    /// Waits until the region may be changed, if it is frozen.
    pub(crate) async fn thawed(&self) {
        while self.is_frozen() {
            self.freezing().wait().await;
        }
    }

    /// Begins a change that takes several turns. Waits while the region is frozen.
    pub(crate) async fn begin_change(self: &Rc<Self>) -> Changing {
        self.thawed().await;
        let freezing = self.freezing();
        freezing.changes.set(freezing.changes.get() + 1);
        Changing(Rc::clone(self))
    }

    /// Freezes the region, and waits for the changes under way. Waits first while the region is frozen by
    /// another call.
    pub(crate) async fn freeze(self: &Rc<Self>) -> Frozen {
        self.thawed().await;
        self.freezing().frozen.set(true);
        let frozen = Frozen(Rc::clone(self));
        while self.freezing().changes.get() > 0 {
            self.freezing().wait().await;
        }
        frozen
    }
}
