//! Objects that live for a time: deleted everywhere when it is over.
//!
//! Engine thread only. The node of the primary sees to it, by its own clock; whoever inherits that role sees
//! to it by his. The moment is part of what every replica knows, so that it outlives any of them. Replicas
//! elsewhere stay until the deletion comes there, as with any other.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use plasmon::ObjectId;
use tracing::{debug, warn};

use crate::object::{Replica, Role};
use crate::placement::Placement;

/// Those that end later wait for the next look.
const EXPIRY_HORIZON: Duration = Duration::from_secs(2);
/// When a deletion is tried again whose outcome is not known.
const AGAIN_MS: u64 = 5000;

/// What ends when: milliseconds since 1970, object and life.
#[derive(Default)]
pub(crate) struct Expiry {
    ends: RefCell<BinaryHeap<Reverse<(u64, ObjectId, u64)>>>,
    /// A task waits for the next.
    served: Cell<bool>,
}

impl Placement {
    /// Notes when an object ends, if it does and this node is to see to it.
    pub(crate) fn note_expiry(self: &Rc<Self>, replica: &Replica) {
        if replica.expires() > 0 && replica.role() == Role::Primary {
            self.expiry.ends.borrow_mut().push(Reverse((replica.expires(), replica.id(), replica.life)));
            self.tend_expiry();
        }
    }

    /// Waits for what ends soon; to be called now and then.
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

    /// Deletes what is over. What could not be deleted everywhere is tried again.
    fn end_overdue(self: &Rc<Self>) {
        let mut over = self.take_overdue();
        over.sort_unstable();
        for user in over.chunk_by(|one, other| one.0 == other.0) {
            let tenant = user[0].0;
            let (ids, lives): (Vec<_>, Vec<_>) = user.iter().map(|(_, id, life)| (*id, *life)).unzip();
            debug!("the time of {} objects is over", ids.len());
            self.count_expired(ids.len() as u64);
            let placement = Rc::clone(self);
            // A node that does not answer delays nothing else.
            self.kernel.spawn(async move {
                let Err(error) = placement.directory.delete_all(&ids, &lives, tenant).await else { return };
                warn!("objects whose time is over are not deleted everywhere yet: {error}");
                let again = placement.kernel.clock.unix_ms() + AGAIN_MS;
                let left = ids.into_iter().zip(lives).map(|(id, life)| Reverse((again, id, life)));
                placement.expiry.ends.borrow_mut().extend(left);
            });
        }
    }

    /// Takes out what is over: users, their objects and lives.
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
