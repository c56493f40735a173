//! Objects that are owned by the client that created them: they are deleted everywhere when this client goes.
//!
//! Owns [`Owned`]. Engine thread only. The node of the client keeps an owned object as its primary, and
//! does not hand it over: when that node has left, the object has lost its client as well. So a node that
//! inherits the role of the primary deletes the object. Deletions that do not reach every node are tried
//! again, as those of [`expiry`](super::expiry) are.

use std::cell::RefCell;
use std::rc::Rc;

use plasmon::{Error, ErrorKind, ObjectId};

use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::object::{Replica, Role};
use crate::placement::Placement;

/// Number of a client's owned objects below which objects that are gone are not looked for.
const MIN_PRUNED: usize = 1024;

/// Owned objects by the clients that created them, each with its life.
#[derive(Default)]
pub(crate) struct Owned(RefCell<HashMap<ClientKey, Owns>>);

/// Objects that a client owns.
struct Owns {
    objects: Vec<(ObjectId, u64)>,
    /// Number of objects at which those that are gone are removed from the list.
    limit: usize,
}

impl Placement {
    /// Notes an object that a client has created, if it is owned.
    pub(crate) fn note_owned(&self, client: ClientKey, replica: &Replica) {
        if !replica.is_owned() {
            return;
        }
        let mut owned = self.owned.0.borrow_mut();
        let owns = owned.entry(client).or_insert_with(|| Owns { objects: Vec::new(), limit: MIN_PRUNED });
        owns.objects.push((replica.id(), replica.life));
        if owns.objects.len() >= owns.limit {
            let objects = self.store.objects.borrow();
            owns.objects.retain(|(id, life)| objects.get(id).is_some_and(|held| held.life == *life));
            owns.limit = (2 * owns.objects.len()).max(MIN_PRUNED);
        }
    }

    /// Deletes the objects that a client owns.
    pub(crate) fn end_owned(self: &Rc<Self>, client: ClientKey) {
        let owns = self.owned.0.borrow_mut().remove(&client);
        self.expire(owns.into_iter().flat_map(|owns| owns.objects));
    }

    /// Deletes an owned object whose primary this node has become, because its client went with the
    /// former primary.
    pub(super) fn end_orphan(self: &Rc<Self>, replica: &Replica) {
        if replica.is_owned() {
            self.expire([(replica.id(), replica.life)]);
        }
    }

    /// Refuses to make this node the primary of an object that stays with its client.
    ///
    /// # Errors
    /// `Invalid`, when the object is owned.
    pub(super) fn ensure_not_owned(&self, replica: &Replica, role: Role) -> Result<(), Error> {
        if role != Role::Primary || replica.role() == Role::Primary || !replica.is_owned() {
            return Ok(());
        }
        let text = format!(
            "object {} is owned by a client of the node that has its primary: it cannot move, and ends with \
             that client",
            replica.id()
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }
}
