//! Recency by CLOCK: objects stand in a ring, and the hand skips once those that were read since it last
//! passed.
//!
//! Engine thread only. A ring holds objects of one kind. An object that has changed its kind since, or is
//! gone, is removed when the hand reaches it.

use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use super::Replica;

/// Objects in the order of the clock hand.
#[derive(Default)]
pub(super) struct Ring(VecDeque<Weak<Replica>>);

impl Ring {
    pub(super) fn enter(&mut self, replica: &Rc<Replica>) {
        self.0.push_back(Rc::downgrade(replica));
    }

    /// Removes and returns objects that belong here and were not read lately, until `enough` accepts one.
    pub(super) fn take(
        &mut self,
        belongs: impl Fn(&Rc<Replica>) -> bool,
        read_lately: impl Fn(&Rc<Replica>) -> bool,
        mut enough: impl FnMut(&Rc<Replica>) -> bool,
    ) -> Vec<Rc<Replica>> {
        let mut taken = Vec::new();
        // The hand goes twice around, since the first pass may only clear the marks.
        for _ in 0..2 * self.0.len() {
            let Some(replica) = self.0.pop_front() else { break };
            let Some(replica) = replica.upgrade().filter(|replica| belongs(replica)) else {
                continue;
            };
            if replica.pins() > 0 || read_lately(&replica) {
                self.enter(&replica);
                continue;
            }
            let last = enough(&replica);
            taken.push(replica);
            if last {
                break;
            }
        }
        taken
    }

    /// Removes an object, wherever it stands.
    pub(super) fn forget(&mut self, replica: &Rc<Replica>) {
        self.0.retain(|one| !std::ptr::eq(one.as_ptr(), Rc::as_ptr(replica)));
    }

    /// Forgets objects that are gone.
    pub(super) fn prune(&mut self) {
        self.0.retain(|replica| replica.strong_count() > 0);
    }
}
