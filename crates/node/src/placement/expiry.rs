//! Objects with a time to live: they are deleted everywhere when it is over.
//!
//! Owns [`Expiry`]. Engine thread only. The node of the primary deletes the object, by its own clock, and
//! so does a node that inherits the role. Every replica has the time of expiry, so the time outlives any
//! of them. Replicas elsewhere stay until the deletion reaches them, as with any other deletion.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use plasmon::ObjectId;
use tracing::{debug, warn};

use crate::object::{Replica, Role};
use crate::placement::Placement;

/// How far ahead a task waits for an expiry. Objects that expire later wait for the next look.
const EXPIRY_HORIZON: Duration = Duration::from_secs(2);
/// How long until a deletion with an unknown outcome is tried again, in milliseconds.
const AGAIN_MS: u64 = 5000;

/// Times of expiry in milliseconds since 1970, each with the object and its life.
#[derive(Default)]
pub(crate) struct Expiry {
    ends: RefCell<BinaryHeap<Reverse<(u64, ObjectId, u64)>>>,
    /// Whether a task waits for the next expiry.
    served: Cell<bool>,
}

impl Placement {
    /// Notes when an object expires, if it has a time of expiry and this node is its primary.
    pub(crate) fn note_expiry(self: &Rc<Self>, replica: &Replica) {
        if replica.expires() > 0 && replica.role() == Role::Primary {
            self.expiry.ends.borrow_mut().push(Reverse((replica.expires(), replica.id(), replica.life)));
            self.tend_expiry();
        }
    }

    /// Makes objects expire now.
    pub(super) fn expire(self: &Rc<Self>, objects: impl IntoIterator<Item = (ObjectId, u64)>) {
        let now = self.kernel.clock.unix_ms();
        let ends = objects.into_iter().map(|(id, life)| Reverse((now, id, life)));
        self.expiry.ends.borrow_mut().extend(ends);
        self.end_overdue();
    }

    /// Waits for the objects that expire soon; called regularly.
    pub(crate) fn tend_expiry(self: &Rc<Self>) {
        if self.until_next_end().is_some_and(|span| span <= EXPIRY_HORIZON)
            && !self.expiry.served.replace(true)
        {
            let placement = Rc::clone(self);
            self.kernel.spawn(async move {
                while let Some(span) = placement.until_next_end().filter(|span| *span <= EXPIRY_HORIZON) {
                    placement.kernel.clock.sleep(span).await;
                    placement.end_overdue();
                }
                placement.expiry.served.set(false);
            });
        }
    }

    fn until_next_end(&self) -> Option<Duration> {
        let ends = self.expiry.ends.borrow();
        let Reverse((end, ..)) = ends.peek()?;
        Some(Duration::from_millis(end.saturating_sub(self.kernel.clock.unix_ms())))
    }

    /// Deletes the expired objects. Deletions that did not reach every node are tried again.
    fn end_overdue(self: &Rc<Self>) {
        let mut over = self.take_overdue();
        over.sort_unstable();
        for of_user in over.chunk_by(|one, other| one.0 == other.0) {
            let user = of_user[0].0;
            let (ids, lives): (Vec<_>, Vec<_>) = of_user.iter().map(|(_, id, life)| (*id, *life)).unzip();
            debug!("the time of {} objects is over", ids.len());
            self.count_expired(ids.len() as u64);
            let placement = Rc::clone(self);
            // A node that does not answer delays only its own deletions.
            self.kernel.spawn(async move {
                let Err(error) = placement.directory.deletion.delete_all(&ids, &lives, user).await else {
                    return;
                };
                warn!("objects whose time is over are not deleted everywhere yet: {error}");
                let again = placement.kernel.clock.unix_ms() + AGAIN_MS;
                let left = ids.into_iter().zip(lives).map(|(id, life)| Reverse((again, id, life)));
                placement.expiry.ends.borrow_mut().extend(left);
            });
        }
    }

    /// Takes the expired objects: their users, ids and lives.
    fn take_overdue(&self) -> Vec<(u32, ObjectId, u64)> {
        let now = self.kernel.clock.unix_ms();
        let (mut ends, objects) = (self.expiry.ends.borrow_mut(), self.store.objects.borrow());
        let mut over = Vec::new();
        while let Some(&Reverse((end, id, life))) = ends.peek()
            && end <= now
        {
            ends.pop();
            let replica = objects.get(&id).filter(|one| one.life == life && one.role() == Role::Primary);
            over.extend(replica.map(|replica| (replica.snapshot().uid, id, life)));
        }
        over
    }
}
