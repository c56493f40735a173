//! Objects that take the place of others in the table of a node. Owns no state. Engine thread only.

use std::rc::Rc;

use plasmon::{Error, ObjectId};

use super::{Creation, Happening, Held, Replica, Sealing, Table};
use crate::kernel::ClientKey;

/// An object that was sealed, and the one that was in its place.
pub(crate) type Superseded = (Rc<Replica>, Option<Rc<Replica>>);

/// What could not be sealed, and why.
pub(crate) struct NotSealed {
    pub(crate) error: Error,
    pub(crate) sealing: Box<Sealing>,
}

impl Table {
    /// Enters a creation that is to take the place of what has its id then. Returns it if this client has one
    /// of this id already.
    pub(crate) fn begin_replacing(&mut self, creation: Creation) -> Option<Creation> {
        let key = (creation.client, creation.head.id);
        if self.replacing.contains_key(&key) {
            return Some(creation);
        }
        self.in_memory.unsealed += creation.head.len();
        self.replacing.insert(key, creation);
        None
    }

    /// A client's creation that is to take the place of what has its id then.
    pub(crate) fn replacement(&self, client: ClientKey, id: &ObjectId) -> Option<&Creation> {
        self.replacing.get(&(client, *id))
    }

    /// All creations that are to take the place of other objects, and that no client has sealed.
    pub(crate) fn replacements(&self) -> impl Iterator<Item = &Creation> {
        self.replacing.values()
    }

    /// Removes and returns a creation that is to take the place of another object.
    pub(crate) fn end_replacing(&mut self, client: ClientKey, id: &ObjectId) -> Option<Creation> {
        let creation = self.replacing.remove(&(client, *id))?;
        self.in_memory.unsealed -= creation.head.len();
        Some(creation)
    }

    /// Seals an object, guarded or not, in the place of another of its id. Clients that look for the id find
    /// the former object, or ask, or find this one, in this order and never nothing. Returns both objects.
    ///
    /// Those who watch hear of one event. `replaces` says that the object takes the place of one that need
    /// not be here. If the two are of different users' sight, the one ends and the other begins, so that
    /// everybody hears of what they see.
    ///
    /// # Errors
    /// As [`Table::seal`], with what was to be sealed; the former object stays then.
    pub(crate) fn supersede(
        &mut self,
        new: Sealing,
        (is_guarded, replaces): (bool, bool),
    ) -> Result<Superseded, NotSealed> {
        let id = new.head.id;
        let former = self.sealed.get(&id).cloned();
        if let Some(former) = &former {
            former.hide();
        }
        match self.shared.enter(&new.head, offset_of(&new.bytes), is_guarded) {
            Ok((table, entry)) => {
                let tell = match &former {
                    None if replaces => Happening::replaced,
                    None => Happening::sealed,
                    Some(former) if former.domain() == new.head.domain() => {
                        self.remove_untold(&id);
                        Happening::replaced
                    }
                    Some(_) => {
                        self.remove(&id);
                        Happening::sealed
                    }
                };
                let replica = self.admit(new, table, entry, tell);
                replica.guard(is_guarded);
                Ok((replica, former))
            }
            Err(error) => {
                if let Some(former) = &former {
                    former.show();
                }
                Err(NotSealed { error, sealing: Box::new(new) })
            }
        }
    }
}

/// Where an object lies in memory, if it does.
pub(super) fn offset_of(bytes: &Held) -> Option<u64> {
    match bytes {
        Held::Memory(extent) => Some(extent.offset()),
        Held::Disk(_) | Held::Nowhere => None,
    }
}
