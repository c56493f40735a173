//! Counting the objects of the table, for reports and listings; not for the data path.

use plasmon::wire::{ObjectInfo, ObjectState};

use super::table::{Creation, FastPins, Table};
use super::{Replica, Role};

/// Numbers of objects and bytes for the status report and for errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) primary: u64,
    pub(crate) primary_bytes: u64,
    pub(crate) kept: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) cached: u64,
    pub(crate) cached_bytes: u64,
    pub(crate) unsealed: u64,
    pub(crate) unsealed_bytes: u64,
    pub(crate) pinned: u64,
    pub(crate) pinned_bytes: u64,
    pub(crate) doomed: u64,
    pub(crate) doomed_bytes: u64,
    pub(crate) spilled: u64,
    pub(crate) spilled_bytes: u64,
}

impl Table {
    /// Counts all objects. Walks the whole table.
    pub(crate) fn census(&self, fast: &FastPins) -> Census {
        let mut census = Census::default();
        for replica in self.sealed() {
            let len = replica.len();
            let (count, bytes) = match replica.role() {
                Role::Primary => (&mut census.primary, &mut census.primary_bytes),
                Role::Kept => (&mut census.kept, &mut census.kept_bytes),
                Role::Cached => (&mut census.cached, &mut census.cached_bytes),
            };
            *count += 1;
            *bytes += len;
            if replica.on_disk().is_some() {
                census.spilled += 1;
                census.spilled_bytes += len;
            }
            if replica.pins() + fast.of(replica) > 0 {
                census.pinned += 1;
                census.pinned_bytes += len;
            }
        }
        for replica in self.doomed() {
            census.doomed += 1;
            census.doomed_bytes += replica.len();
        }
        for creation in self.creations() {
            census.unsealed += 1;
            census.unsealed_bytes += creation.head.len();
        }
        census
    }

    /// Returns a row for every sealed object of one share of the table that this user may see.
    pub(crate) fn list_sealed(
        &self,
        shard: usize,
        tenant: u32,
        fast: &FastPins,
        now: u64,
    ) -> impl Iterator<Item = ObjectInfo> {
        let state = |replica: &Replica| match (replica.in_memory(), replica.role()) {
            (false, _) => ObjectState::Spilled,
            (true, Role::Primary) => ObjectState::Primary,
            (true, Role::Kept) => ObjectState::Kept,
            (true, Role::Cached) => ObjectState::Cached,
        };
        let sealed = self.sealed_in(shard).filter(move |replica| replica.visible_to(tenant));
        sealed.map(move |replica| replica.info(state(replica), fast.of(replica), now))
    }

    /// Returns a row for every object that is not sealed: doomed ones, and those that are being created.
    pub(crate) fn list_others(&self, tenant: u32, fast: &FastPins, now: u64) -> Vec<ObjectInfo> {
        let doomed = self.doomed().filter(|replica| replica.visible_to(tenant));
        let creating = self.creations().filter(|creation| creation.head.visible_to(tenant));
        doomed
            .map(|replica| replica.info(ObjectState::Doomed, fast.of(&replica), now))
            .chain(creating.map(|creation| creation.info(now)))
            .collect()
    }
}

impl Creation {
    fn info(&self, now: u64) -> ObjectInfo {
        ObjectInfo {
            id: self.head.id,
            name: Some(String::from(&*self.head.name)).filter(|name| !name.is_empty()),
            state: ObjectState::Unsealed,
            rights: self.head.rights,
            data_len: self.head.data_len,
            metadata_len: self.head.metadata_len,
            pins: 0,
            age_ms: now.saturating_sub(self.created),
            construction_s: 0,
        }
    }
}
