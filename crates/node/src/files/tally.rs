//! Counts of the work of this node as the home of volumes, since it was started. Engine thread only.
//!
//! Each volume counts for itself; of one that leaves, the counts stay. Invariant: no count falls when another
//! node becomes the home of a volume, or a volume is removed.

use super::homes::Homes;
use super::volume::Volume;

/// Counts of what homes do.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally {
    /// Operations that were decided.
    pub(super) decided: u64,
    /// Batches of changes for mirrors, and bytes of these.
    pub(super) batches: u64,
    pub(super) batch_bytes: u64,
    /// Bytes of credit that have lapsed.
    pub(super) lapsed: u64,
    /// Messages to sessions about changes, those that were confirmed, and those that were not in time.
    pub(super) told: u64,
    pub(super) confirmed: u64,
    pub(super) missed: u64,
}

impl Tally {
    fn with(self, volume: &Volume) -> Self {
        let counts = volume.watchers.borrow().counts;
        Self {
            decided: self.decided + volume.operations.get(),
            batches: self.batches + volume.log.batches.get(),
            batch_bytes: self.batch_bytes + volume.log.bytes.get(),
            lapsed: self.lapsed.saturating_add(volume.lapsing.borrow().lapsed),
            told: self.told + counts.told,
            confirmed: self.confirmed + counts.confirmed,
            missed: self.missed + counts.missed,
        }
    }
}

impl Homes {
    /// Lets a volume go whose home this node is no more. Who waits at it looks again.
    pub(super) fn depose(&self, volume: &Volume) {
        if self.volumes.borrow_mut().remove(&volume.number).is_some() {
            self.former.set(self.former.get().with(volume));
        }
        volume.depose();
    }

    /// Counts of this node as the home of all volumes, also of those that have left.
    pub(super) fn tally(&self) -> Tally {
        self.volumes.borrow().values().fold(self.former.get(), |tally, volume| tally.with(volume))
    }
}
