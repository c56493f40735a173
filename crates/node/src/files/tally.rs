//! Counts of the work of this node as the home of volumes, since it was started. Owns [`Tally`]. Engine
//! thread only.
//!
//! Each volume counts for itself. The counts of a volume that leaves are added to a sum. Invariant: no count
//! falls when another node becomes the home of a volume, or a volume is removed.

use super::homes::Homes;
use super::volume::Volume;

/// Counts of the work of homes.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally {
    /// Number of operations that were decided.
    pub(super) decided: u64,
    /// Number of batches of changes that mirrors were sent.
    pub(super) batches: u64,
    /// Number of bytes of the batches.
    pub(super) batch_bytes: u64,
    /// Number of bytes of credit that have lapsed.
    pub(super) lapsed: u64,
    /// Number of messages to sessions about changes.
    pub(super) told: u64,
    /// Number of messages that were confirmed.
    pub(super) confirmed: u64,
    /// Number of messages that were not confirmed in time.
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
    /// Removes a volume whose home this node is not any more. Tasks that wait at the volume look again.
    pub(super) fn depose(&self, volume: &Volume) {
        if self.volumes.borrow_mut().remove(&volume.number).is_some() {
            self.former.set(self.former.get().with(volume));
        }
        volume.depose();
    }

    /// Returns the counts of this node as the home of all volumes, also of those that have left.
    pub(super) fn tally(&self) -> Tally {
        self.volumes.borrow().values().fold(self.former.get(), |tally, volume| tally.with(volume))
    }
}
