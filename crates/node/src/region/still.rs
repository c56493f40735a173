//! Regions that stand still: nobody changes them, neither by operations nor in mapped memory. Engine thread
//! only.
//!
//! A process that has the region mapped is kept out by its word, and waited for while it touches the memory.
//! It makes calls instead, which wait. What is written through a view of the memory is not kept out: a view
//! has addresses, and nobody asks before a store.

use std::rc::Rc;
use std::time::Duration;

use plasmon::region::Rights;
use plasmon::text::printable;
use plasmon::wire::NewObject;
use plasmon::{Error, ErrorKind};

use super::Regions;
use super::home::{Frozen, Region};
use crate::transfer::in_turns;

/// How long a region may take to stand still.
const STILL_PATIENCE: Duration = Duration::from_secs(10);
/// The pause before it is looked again whether a process touches the memory.
const LOOK_AGAIN_AFTER: Duration = Duration::from_micros(500);

/// A region that nobody changes until this is dropped.
pub(super) struct Still {
    regions: Rc<Regions>,
    region: Rc<Region>,
    /// After the processes were let in again, operations go on.
    _frozen: Frozen,
}

impl Drop for Still {
    fn drop(&mut self) {
        self.regions.let_in(&self.region);
    }
}

impl Regions {
    /// Has nobody change a region of this node, and waits for those who do.
    ///
    /// # Errors
    /// `Busy` if that takes too long: the region is changed as before.
    pub(super) async fn still(self: &Rc<Self>, region: &Rc<Region>) -> Result<Still, Error> {
        let due = self.kernel.clock.now() + STILL_PATIENCE;
        let busy = |why: &str| {
            let text =
                format!("region '{}' does not come to rest: {why}; try again", printable(region.name()));
            Error::new(ErrorKind::Busy, text)
        };
        let frozen = self.kernel.clock.bounded(Some(due), region.freeze()).await;
        let Some(frozen) = frozen else {
            // Processes that have mapped the region meanwhile are not let in by anybody else.
            if !region.is_frozen() {
                self.let_in(region);
            }
            return Err(busy("it is being changed, copied or moved"));
        };
        let still = Still { regions: Rc::clone(self), region: Rc::clone(region), _frozen: frozen };
        self.let_touch(region, false);
        while self.handles.is_touched(region, |client| self.sessions.slots(client)) {
            if self.kernel.clock.now() >= due {
                return Err(busy("a process that has it mapped is stopped amid an operation"));
            }
            self.kernel.clock.sleep(LOOK_AGAIN_AFTER).await;
        }
        Ok(still)
    }

    /// Lets clients touch a region again, if it is this node's for certain.
    fn let_in(&self, region: &Region) {
        if region.ensure_there().is_ok() {
            self.let_touch(region, true);
        }
    }

    /// Has clients touch a region no more, or lets them touch it again.
    pub(super) fn let_touch(&self, region: &Region, live: bool) {
        self.handles.let_touch(region, live, |client| self.sessions.slots(client));
    }

    /// Makes an object of the bytes of a region of this node.
    pub(super) async fn snapshot_here(
        self: &Rc<Self>,
        region: &Rc<Region>,
        user: u32,
        object: NewObject,
        room: Duration,
    ) -> Result<(), Error> {
        region.ensure(user, Rights::READ)?;
        let (run, _held) = (region.run(0, region.len())?, region.hold());
        let creations = &self.requests.creations;
        let made = creations.make_for(user, object, region.len(), room, async |extent| {
            let _still = self.still(region).await?;
            // Bounds, and that the region is still there.
            region.run(0, region.len())?;
            in_turns(&self.transfer, region.len(), |at, chunk| {
                run.read(at, chunk)?;
                extent.write(at, chunk)
            })
            .await
        });
        made.await
    }
}
