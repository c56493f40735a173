//! Events of the objects of a node, for those who watch. Owns no state. Engine thread only. Invariant: an
//! event is told to nobody who may not see its object.

use std::rc::Rc;

use plasmon::shared::Snapshot;
use plasmon::wire::Event;

use super::{Replica, Table};

/// An event for those who watch this node's objects.
#[derive(Debug)]
pub(crate) struct Happening {
    pub(crate) event: Rc<Event>,
    /// The share of the table that the object is in, or was.
    pub(crate) share: usize,
    /// The only user that may know of the event; `None` if all may.
    owner: Option<u32>,
}

impl Happening {
    /// Whether this user may know of the event.
    pub(crate) fn is_for(&self, user: u32) -> bool {
        self.owner.is_none_or(|owner| owner == user)
    }

    /// The event that tells of an object which is here.
    pub(crate) fn sealed(replica: &Replica) -> Event {
        let Snapshot { id, data_len, metadata_len, .. } = replica.snapshot();
        Event::Sealed { id, name: replica.name().into(), data_len, metadata_len }
    }

    /// The event that tells of an object which is here in the place of another.
    pub(super) fn replaced(replica: &Replica) -> Event {
        let Snapshot { id, data_len, metadata_len, .. } = replica.snapshot();
        Event::Replaced { id, name: replica.name().into(), data_len, metadata_len }
    }

    pub(super) fn deleted(replica: &Replica) -> Event {
        Event::Deleted { id: replica.id(), name: replica.name().into() }
    }
}

impl Table {
    /// Notes an event for those who watch, if anybody does.
    pub(super) fn happened(&mut self, replica: &Replica, tell: fn(&Replica) -> Event) {
        if let Some(happenings) = &mut self.happenings
            && !replica.is_deed()
        {
            let share = self.sealed.shard_of(&replica.id());
            happenings.push(Happening { event: Rc::new(tell(replica)), share, owner: replica.owner() });
        }
    }
}
