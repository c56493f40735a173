//! Regions that stand still: nobody changes them, neither by operations nor in mapped memory. Engine thread
//! only.
//!
//! Owns [`Still`]. A process that has the region mapped is kept out by its word, and waited for while it
//! touches the memory. Meanwhile the process makes calls, which wait.
//!
//! Invariant: while a [`Still`] lives, nobody changes the region but through a view. A view is an address
//! range, and its owner asks nobody before a store.

use std::rc::Rc;
use std::time::Duration;

use plasmon::region::Rights;
use plasmon::text::printable;
use plasmon::wire::NewObject;
use plasmon::{Error, ErrorKind};

use super::Regions;
use super::home::{Frozen, Region};
use crate::transfer::in_turns;

/// Time that a region may take to stand still.
const STILL_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before this node looks again whether a process touches the memory.
const LOOK_AGAIN_AFTER: Duration = Duration::from_micros(500);

/// A region that nobody changes until this is dropped.
pub(super) struct Still {
    regions: Rc<Regions>,
    region: Rc<Region>,
    /// Lets operations go on. Dropped after the processes were let in again.
    _frozen: Frozen,
}

impl Drop for Still {
    fn drop(&mut self) {
        self.regions.let_in(&self.region);
    }
}

impl Regions {
    /// Keeps everybody from changing a region of this node, and waits until changes under way are over.
    ///
    /// # Errors
    /// `Busy` if this takes too long. The region may be changed as before then.
    pub(super) async fn still(self: &Rc<Self>, region: &Rc<Region>) -> Result<Still, Error> {
        let due = self.kernel.clock.now() + STILL_PATIENCE;
        let busy = |why: &str| {
            let text =
                format!("region '{}' does not come to rest: {why}; try again", printable(region.name()));
            Error::new(ErrorKind::Busy, text)
        };
        let frozen = self.kernel.clock.bounded(Some(due), region.freeze()).await;
        let Some(frozen) = frozen else {
            // A process that mapped the region while it was frozen is let in here, because nobody else lets
            // it in.
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

    /// Lets clients touch a region again, if the region has not ended and this node does not withhold it.
    fn let_in(&self, region: &Region) {
        if region.ensure_there().is_ok() {
            self.let_touch(region, true);
        }
    }

    /// Stops clients from touching a region, or lets them touch it again if `live`.
    pub(super) fn let_touch(&self, region: &Region, live: bool) {
        self.handles.let_touch(region, live, |client| self.sessions.slots(client));
    }

    /// Makes an object of the bytes of a region of this node, while the region stands still.
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
            // Checks that the region is still there.
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
