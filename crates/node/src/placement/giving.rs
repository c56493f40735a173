//! Giving objects of this node away: another node becomes the primary, and this node's replica a cached one.
//!
//! Owns [`Giving`]. Engine thread only. The node that takes an object is sent one message with the order
//! and with the place of the object. It reads the bytes one-sidedly, becomes the primary, and answers
//! when the keepers know that. So there is no moment at which the keepers know no primary. It is a move
//! that the former primary leads itself, of an object that no other node knows yet.
//!
//! Invariants: this node drops its role only when another node has said that it is the primary, and
//! if no order to keep the object came meanwhile. This node gives at most [`GIVEN_AT_ONCE`] objects
//! at a time to one other node.

use std::rc::Rc;
use std::time::Duration;

use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::turns::{Turn, Turns};
use crate::directory::arrivals::Lies;
use crate::kernel::planted::{Bug, is_planted};
use crate::net::frame::Order;
use crate::net::sending::describe_segments;
use crate::object::{Pin, Replica, Role};
use crate::placement::Placement;
use crate::transfer::{Transfer, locate};

/// Maximum number of objects that this node gives to one other node at a time.
const GIVEN_AT_ONCE: usize = 16;

/// The limit on the objects that this node gives away at a time.
pub(super) struct Giving {
    turns: Turns,
}

impl Giving {
    pub(super) fn new(transfer: &Transfer) -> Self {
        Self { turns: Turns::of(transfer, GIVEN_AT_ONCE) }
    }
}

/// An object that this node is giving away. If this value is dropped, the node keeps its role.
pub(crate) struct Given {
    placement: Rc<Placement>,
    replica: Rc<Replica>,
    id: ObjectId,
}

impl Drop for Given {
    fn drop(&mut self) {
        self.placement.replication.handing.borrow_mut().remove(&self.id);
    }
}

impl Given {
    /// Drops the role of primary, which another node has now. With `copies` this node stays one of that
    /// many that keep the object; else its replica becomes a cached one.
    pub(crate) fn let_go(self, copies: Option<u16>) {
        let (placement, replica) = (&self.placement, &self.replica);
        let undisturbed = placement.replication.handing.borrow_mut().remove(&self.id);
        // If this node was ordered meanwhile to keep the object, the keeper finds two primaries and decides.
        if !undisturbed || !placement.store.objects.borrow().has(replica) || !replica.role().stays() {
            return;
        }
        placement.store.quotas.borrow_mut().give_back(replica);
        if let Some(copies) = copies
            && !placement.is_draining()
        {
            // If the new primary dies, this node becomes the primary, and knows how many nodes are
            // to keep the object.
            if !is_planted(Bug::CopiesForgotten) {
                replica.set_copies(replica.copies().max(copies));
            }
            placement.store.set_role(replica, Role::Kept);
        } else {
            placement.keep_no_longer(replica);
        }
    }
}

impl Placement {
    /// Waits until a node may be given an object.
    ///
    /// # Errors
    /// `TimedOut` if the node stands still.
    pub(crate) async fn turn_to_give(&self, to: NodeId) -> Result<Turn, Error> {
        self.giving.turns.take(&[to]).await
    }

    /// Begins to give away an object of which this node is the primary. `None` if the object is on
    /// its way to another node already.
    pub(crate) fn begin_giving(self: &Rc<Self>, replica: &Rc<Replica>) -> Option<Given> {
        let id = replica.id();
        let begun = self.replication.handing.borrow_mut().insert(id);
        begun.then(|| Given { placement: Rc::clone(self), replica: Rc::clone(replica), id })
    }

    /// Returns the pin of an object and its place, for a node that is to read the object. `None` if
    /// the object is not in memory.
    pub(crate) fn lies(&self, replica: &Rc<Replica>, to: NodeId) -> Option<(Pin, Lies)> {
        let pin = Pin::new(replica)?;
        let pieces = locate(&self.store, &pin.run());
        let objects = self.store.objects.borrow();
        let stamp = objects.has(replica).then(|| objects.stamps.borrow_mut().of(replica.id()))?;
        drop(objects);
        describe_segments(&self.network, to, &pieces);
        let head = pin.head();
        Some((pin, (head, pieces, stamp)))
    }

    /// Takes an object that another node gives away. Returns when the keepers know that this node
    /// is the primary, if it is to be.
    ///
    /// # Errors
    /// The reason why this node does not have the object.
    pub(crate) async fn take(
        self: &Rc<Self>,
        order: Order,
        user: u32,
        lies: Option<Lies>,
    ) -> Result<(), Error> {
        let done = self.carry_out(order, user, lies.map(Rc::new)).await;
        self.transfer.serve_waiting(order.id);
        done?;
        if order.role == Role::Primary {
            // The keepers are told at the end of this turn.
            self.kernel.clock.sleep(Duration::ZERO).await;
            self.await_primary((order.id, order.life), user, self.kernel.node).await?;
        }
        Ok(())
    }

    /// Has this node stay the primary of an object that it holds, and sets the number of nodes that
    /// are to keep the object.
    ///
    /// # Errors
    /// `Disconnected` while this node is being drained, `NotFound` if the object has gone.
    pub(crate) fn stay_primary(self: &Rc<Self>, replica: &Rc<Replica>, copies: u16) -> Result<(), Error> {
        let (id, life) = (replica.id(), replica.life);
        let order = Order { id, life, role: Role::Primary, copies, patient: false, from: None };
        if self.assume(&order)? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, format!("object {id} has gone")))
    }
}
