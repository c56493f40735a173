//! The barriers whose home this node is. Owns [`Barriers`]. Engine thread only.
//!
//! Invariants: a barrier is passed or found broken only while this node is its home and has taken
//! it over. A name without handles is free.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use plasmon::sync::{LockInfo, barrier_id};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Locks;
use super::barrier::{Barrier, Told};
use super::frames::{Meeting, SyncFrame, ask};
use crate::kernel::random::random_u64;
use crate::membership::views::ViewChange;
use crate::net::frame::{Envelope, Frames};

/// The barriers of this home.
#[derive(Default)]
pub(super) struct Barriers(RefCell<BTreeMap<ObjectId, Barrier>>);

impl Barriers {
    /// Number of barriers.
    pub(super) fn count(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    /// Forgets all barriers.
    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Returns the barriers that a user may know.
    pub(super) fn rows(&self, home: NodeId, user: u32) -> Vec<(ObjectId, LockInfo)> {
        let barriers = self.0.borrow();
        let seen = barriers.iter().filter(|(_, barrier)| barrier.is_seen_by(user));
        seen.map(|(id, barrier)| (*id, barrier.info(home))).collect()
    }
}

impl Locks {
    /// Takes note of a node's clients at a barrier.
    ///
    /// # Errors
    /// `NotHere` if this node is not the home, `Disconnected` if the node has gone. For a handle that is
    /// being opened (`opening`): `Invalid` if the handle expects another number of parties, `Broken` if the
    /// barrier is broken, `TimedOut` if the node has to ask again.
    pub(super) async fn on_gather(
        self: &Rc<Self>,
        asked: &Envelope,
        row: Meeting,
        opening: bool,
    ) -> Result<ask::Joined, Error> {
        if !self.cluster.has_sender(asked) {
            let text = format!("node {} has gone, whose clients are at the barrier", asked.from);
            return Err(Error::new(ErrorKind::Disconnected, text));
        }
        let id = barrier_id(row.owner, &row.name);
        self.home.ensure_here(&id)?;
        if opening && !self.home.is_ready(&id) {
            // This home knows only after the takeover whether there is a barrier of the name. The row is old
            // by then: the client may have given up, and its node may have told so, or have gone. A party
            // that is counted by such a row never leaves.
            self.await_former_life(&id)?;
            self.prepared(&id).await?;
            let text =
                format!("node {} has just become the home of the barrier: ask again", self.kernel.node);
            return Err(Error::new(ErrorKind::TimedOut, text));
        }
        let joined = {
            let mut barriers = self.barriers.0.borrow_mut();
            let makes = |life: u64| Barrier::new(&row, if life == 0 { random_u64() | 1 } else { life });
            let barrier = barriers.entry(id).or_insert_with(|| makes(row.life));
            if barrier.is_over() && (row.life == 0 || barrier.life() != row.life) {
                *barrier = makes(row.life);
            }
            if opening {
                barrier.ensure_joins(row.parties)?;
            }
            barrier.gather(asked.from, &row);
            let (life, generation) = (barrier.life(), barrier.generation());
            ask::Joined { life, generation, eldest: barrier.eldest() }
        };
        self.advance_barrier(&id);
        Ok(joined)
    }

    /// Has a node ask again for a handle, if this home still waits for the leases of its former life to end.
    fn await_former_life(self: &Rc<Self>, id: &ObjectId) -> Result<(), Error> {
        // The wait ends although nobody waits for it here.
        self.home.takeover.want();
        self.begin_takeover();
        let waits = Duration::from_nanos(self.home.waits_ns(id));
        if waits.is_zero() {
            return Ok(());
        }
        let text = format!(
            "node {}, which decides about it, opens no barrier for another {:.0} s, until the leases of its \
             former life are over",
            self.kernel.node,
            waits.as_secs_f64().ceil()
        );
        Err(Error::new(ErrorKind::TimedOut, text))
    }

    /// Tells nodes that a barrier is passed or broken, if this node may decide that.
    fn advance_barrier(self: &Rc<Self>, id: &ObjectId) {
        if !self.home.is_ready(id) {
            if self.places.is_here(id) {
                self.home.takeover.want();
            }
            return;
        }
        let (told, life) = {
            let mut barriers = self.barriers.0.borrow_mut();
            let Some(barrier) = barriers.get_mut(id) else { return };
            let told = (barrier.advance(), barrier.life());
            if barrier.is_over() {
                barriers.remove(id);
            }
            told
        };
        let barrier = *id;
        for told in told {
            let (node, frame) = match told {
                Told::Passed { node, generation, first, count } => {
                    (node, SyncFrame::Passed { barrier, life, generation, first, count })
                }
                Told::Broken { node, why } => (node, SyncFrame::Broken { barrier, life, why }),
            };
            // A node that has gone needs no frame.
            self.network.tell(node, frame.into_message());
        }
    }

    /// Tells nodes which barriers are passed or broken, when this node has taken over.
    pub(super) fn advance_barriers(self: &Rc<Self>, has_lost: bool) {
        let ids: Vec<_> = self.barriers.0.borrow().keys().copied().collect();
        for id in ids.iter().filter(|id| self.home.is_ready(id)) {
            self.advance_barrier(id);
            if let Some(barrier) = self.barriers.0.borrow_mut().get_mut(id) {
                barrier.end_takeover(has_lost);
            }
            self.advance_barrier(id);
        }
    }

    /// Follows a view: nodes have gone, and some barriers have another home.
    pub(super) fn follow_barriers(self: &Rc<Self>, change: &ViewChange, epoch: u64) {
        let coordinated = self.places.is_coordinated();
        let mut lost = Vec::new();
        self.barriers.0.borrow_mut().retain(|id, barrier| {
            if !change.gone.is_empty() {
                barrier.lose(&change.gone);
                lost.push(*id);
            }
            self.places.is_here(id) && (coordinated || self.places.moved(id) < epoch)
        });
        lost.iter().for_each(|id| self.advance_barrier(id));
    }
}
