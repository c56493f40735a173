//! Places at holders: how many objects this node reads from one holder at a time. Owns [`Slots`].
//! Engine thread only.
//!
//! Each holder has places of its own, so that a holder that stands still holds up only its own objects.
//! Reads get places in the order in which they asked for them.
//!
//! Invariant: a holder has an entry for as long as an object is read from the holder or waits for a
//! place there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use plasmon::NodeId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::kernel::counted::Counted;
use crate::kernel::random::HashMap;

/// Maximum number of objects being read from one holder at a time.
const OBJECTS_A_HOLDER: usize = 8;

/// The places at all holders.
#[derive(Default)]
pub(super) struct Slots {
    holders: RefCell<HashMap<NodeId, Weak<Semaphore>>>,
    /// Number of places that are taken.
    taken: Rc<Cell<u64>>,
    /// Number of objects that wait for a place.
    waiting: Cell<u64>,
}

/// A place at a holder, which is free again when this value is dropped.
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
    _taken: Counted<Rc<Cell<u64>>>,
}

impl Slots {
    /// Waits for a place at a holder, for one object.
    pub(super) async fn take(&self, holder: NodeId) -> Slot {
        let _waiting = Counted::new(&self.waiting);
        let permit = self.of(holder).acquire_owned().await.expect("the semaphore is never closed");
        self.slot(permit)
    }

    /// Takes a place at a holder if one is free.
    pub(super) fn try_take(&self, holder: NodeId) -> Option<Slot> {
        Some(self.slot(self.of(holder).try_acquire_owned().ok()?))
    }

    fn slot(&self, permit: OwnedSemaphorePermit) -> Slot {
        Slot { _permit: permit, _taken: Counted::new(Rc::clone(&self.taken)) }
    }

    /// Returns the places at a holder.
    fn of(&self, holder: NodeId) -> Arc<Semaphore> {
        let mut holders = self.holders.borrow_mut();
        if let Some(slots) = holders.get(&holder).and_then(Weak::upgrade) {
            return slots;
        }
        let slots = Arc::new(Semaphore::new(OBJECTS_A_HOLDER));
        holders.insert(holder, Arc::downgrade(&slots));
        slots
    }

    /// Number of places that are taken, of all holders.
    pub(super) fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Number of objects that wait for a place.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.get()
    }

    /// Forgets the holders from which nothing is read.
    pub(super) fn tidy(&self) {
        self.holders.borrow_mut().retain(|_, slots| slots.strong_count() > 0);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 16])
    }

    /// All places at a holder.
    fn all(slots: &Slots, holder: NodeId) -> Vec<Slot> {
        (0..OBJECTS_A_HOLDER).map(|_| slots.try_take(holder).expect("a place is free")).collect()
    }

    #[test]
    fn a_holder_whose_places_are_taken_holds_up_no_other() {
        let slots = Slots::default();
        let stalled = all(&slots, node(1));
        assert!(slots.try_take(node(1)).is_none());
        assert!(slots.take(node(1)).now_or_never().is_none());
        let others = all(&slots, node(2));
        assert_eq!(slots.taken(), 2 * OBJECTS_A_HOLDER as u64);
        drop((stalled, others));
        assert_eq!((slots.taken(), slots.waiting()), (0, 0));
    }

    #[test]
    fn places_are_given_in_the_order_of_arrival() {
        let slots = Slots::default();
        let mut taken = all(&slots, node(1));
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(slots.take(node(1)))).collect();
        assert!(waiting.iter_mut().all(|wait| wait.now_or_never().is_none()));
        assert_eq!(slots.waiting(), 3);
        // The second gives up.
        drop(waiting.remove(1));
        assert_eq!(slots.waiting(), 2);
        taken.pop();
        assert!(slots.try_take(node(1)).is_none(), "nobody passes those who wait");
        assert!(waiting.pop().expect("the third waits").now_or_never().is_none());
        assert!(waiting.pop().expect("the first waits").now_or_never().is_some());
    }

    #[test]
    fn a_holder_from_which_nothing_is_read_is_forgotten() {
        let slots = Slots::default();
        let [one, other, third] = [1, 2, 3].map(|number| slots.try_take(node(number)));
        drop(third);
        slots.tidy();
        assert_eq!(slots.holders.borrow().len(), 2);
        drop((one, other));
        slots.tidy();
        assert!(slots.holders.borrow().is_empty());
    }
}
