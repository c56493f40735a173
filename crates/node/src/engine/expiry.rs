//! Objects that live for a time: deleted everywhere when it is over.
//!
//! Engine thread only. The node of the primary sees to it, by its own clock; whoever inherits that role sees to it by
//! his. The moment is part of what every replica knows, so that it outlives any of them. Replicas elsewhere stay until
//! the deletion comes there, as with any other.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use plasmon::ObjectId;
use tracing::{debug, warn};

use super::core::Core;
use crate::object::{Replica, Role};

/// Those that end later wait for the next look.
const SOON: Duration = Duration::from_secs(2);

/// What ends when: milliseconds since 1970, object and life.
#[derive(Default)]
pub(super) struct Expiry {
    ends: RefCell<BinaryHeap<Reverse<(u64, ObjectId, u64)>>>,
    /// A task waits for the next.
    served: Cell<bool>,
}

impl Core {
    /// Notes when an object ends, if it does and this node is to see to it.
    pub(crate) fn note_expiry(self: &Rc<Self>, replica: &Replica) {
        if replica.expires() > 0 && replica.role() == Role::Primary {
            self.expiry.ends.borrow_mut().push(Reverse((replica.expires(), replica.id(), replica.life)));
            self.tend_expiry();
        }
    }

    /// Waits for what ends soon; to be called now and then.
    pub(super) fn tend_expiry(self: &Rc<Self>) {
        if self.until_next_end().is_some_and(|span| span <= SOON) && !self.expiry.served.replace(true) {
            let core = Rc::clone(self);
            self.spawn(async move {
                while let Some(span) = core.until_next_end().filter(|span| *span <= SOON) {
                    core.clock.sleep(span).await;
                    core.end_overdue().await;
                }
                core.expiry.served.set(false);
            });
        }
    }

    fn until_next_end(&self) -> Option<Duration> {
        let ends = self.expiry.ends.borrow();
        let Reverse((end, ..)) = ends.peek()?;
        Some(Duration::from_millis(end.saturating_sub(self.clock.unix_ms())))
    }

    /// Deletes what is over.
    async fn end_overdue(self: &Rc<Self>) {
        let mut over = self.take_overdue();
        over.sort_unstable();
        for user in over.chunk_by(|one, other| one.0 == other.0) {
            let (tenant, ids) = (user[0].0, user.iter().map(|(_, id)| *id).collect::<Vec<_>>());
            debug!("the time of {} objects is over", ids.len());
            self.count_expired(ids.len() as u64);
            if let Err(error) = self.delete_all(&ids, tenant).await {
                // They are gone here. Whoever inherits one elsewhere sees that its time is over.
                warn!("objects whose time is over are not deleted everywhere yet: {error}");
            }
        }
    }

    /// Takes out what is over: users and their objects.
    fn take_overdue(&self) -> Vec<(u32, ObjectId)> {
        let now = self.clock.unix_ms();
        let (mut ends, objects) = (self.expiry.ends.borrow_mut(), self.objects.borrow());
        let mut over = Vec::new();
        while let Some(&Reverse((end, id, life))) = ends.peek()
            && end <= now
        {
            ends.pop();
            let replica = objects.get(&id).filter(|one| one.life == life && one.role() == Role::Primary);
            over.extend(replica.map(|replica| (replica.snapshot().uid, id)));
        }
        over
    }
}
