//! Regions that come from another home, and regions that go to one. Engine thread only. Owns [`Arrived`].
//!
//! Invariant: a region that arrives serves nobody and has no deed until it is adopted. A region that was
//! given away serves nobody any more.

use std::any::Any;
use std::rc::Rc;
use std::time::{Duration, Instant};

use plasmon::text::printable;
use plasmon::{Error, ErrorKind, ObjectId};

use super::region::{Parts, Region};
use super::rights::MAX_GRANTS;
use super::{Home, Wanted, check, exists};
use crate::memory::Run;
use crate::net::frame::Withdrawal;
use crate::region::frames::Moved;
use crate::store::regions::RegionMemory;

/// Time for which a home remembers that the region of a desk has moved away.
const MOVED_MEMORY: Duration = Duration::from_secs(3600);
/// Maximum number of desks of regions that have moved away that a home remembers.
const MAX_MOVED: usize = 1 << 16;

/// A region whose bytes come to this node, with memory for them.
pub(crate) struct Arrived {
    moved: Moved,
    memory: Rc<RegionMemory>,
}

impl Arrived {
    /// Returns the memory to which the bytes come.
    pub(crate) fn run(&self) -> Run {
        Run::clone(&self.memory)
    }

    /// Returns a reference that keeps the memory from being used for anything else.
    pub(crate) fn keep(&self) -> Rc<dyn Any> {
        Rc::clone(&self.memory) as Rc<dyn Any>
    }
}

impl Home {
    /// Finds memory for a region that is about to come here.
    ///
    /// # Errors
    /// `Invalid` for a region that nobody can have made, `Full` and `TooLarge` if there is no room,
    /// `Disconnected` if this node takes nothing new.
    pub(crate) async fn begin_arrival(&self, moved: Moved) -> Result<Arrived, Error> {
        check(&wanted(&moved))?;
        if moved.granted.len() > MAX_GRANTS {
            let text = format!("region '{}' has more grants than a region can have", printable(&moved.name));
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.ensure_takes(&moved.name)?;
        let Moved { name, len, owner, mappable, .. } = &moved;
        let memory = self.ground.store.region_room(name, *mappable, *len, *owner, Duration::ZERO).await?;
        Ok(Arrived { memory: Rc::new(memory), moved })
    }

    /// Makes this node the home of a region that has arrived.
    ///
    /// # Errors
    /// `Exists` if an object of the id is here, which no correct home causes.
    pub(crate) fn adopt(&self, id: ObjectId, life: u64, arrived: Arrived) -> Result<(), Error> {
        let Arrived { moved, memory } = arrived;
        let wanted = wanted(&moved);
        if self.ground.store.objects.borrow().conflict(&id).is_some() {
            return Err(exists(&wanted));
        }
        let deed = self.ground.store.seal_deed(id, life)?;
        let parts = Parts { ground: Rc::clone(&self.ground), memory, deed, owner: moved.owner };
        let region = self.enter(wanted, parts, false);
        region.changes.set(moved.changes);
        region.set_granted(moved.granted);
        region.set_shown(moved.shown);
        Ok(())
    }

    /// Removes the deed of a region that has another home now, so that the region ends here.
    pub(crate) fn give_away(self: &Rc<Self>, region: &Rc<Region>) {
        region.moved.set(true);
        let now = self.ground.kernel.clock.now();
        let mut moved = self.moved.borrow_mut();
        moved.push_back((region.desk(), region.life(), now));
        forget(&mut moved, now);
        drop(moved);
        if self.ground.store.remove(&region.id()).is_some() {
            self.ground.store.unpublish(region.id(), Withdrawal::Evicted);
        }
        self.on_tick();
    }
}

fn wanted(moved: &Moved) -> Wanted {
    Wanted {
        name: moved.name.clone(),
        len: moved.len,
        public: moved.public,
        mappable: moved.mappable,
        ephemeral: false,
        exist_ok: false,
        room: Duration::ZERO,
    }
}

fn forget(moved: &mut std::collections::VecDeque<(u32, u64, Instant)>, now: Instant) {
    while moved.len() > MAX_MOVED
        || moved.front().is_some_and(|(.., at)| now.duration_since(*at) > MOVED_MEMORY)
    {
        moved.pop_front();
    }
}
