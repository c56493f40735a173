//! Counting the objects of the table, for reports and listings; not for the data path. Owns no state. Engine
//! thread only.

use bytes::Bytes;
use plasmon::Prepared;
use plasmon::wire::files::parts_of;
use plasmon::wire::{ObjectInfo, ObjectState};

use super::table::{Creation, FastPins, Table};
use super::{Replica, Role};
use crate::kernel::index::Indexed;

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
        for replica in self.sealed().filter(|replica| !replica.is_deed()) {
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
        for creation in self.creations().chain(self.replacements()) {
            census.unsealed += 1;
            census.unsealed_bytes += creation.head.len();
        }
        census
    }

    /// Returns a row for every sealed object of one share of the table that is wanted.
    pub(crate) fn list_sealed(&self, shard: usize, wanted: &Wanted, fast: &FastPins) -> Vec<ObjectInfo> {
        let sealed = self.sealed_in(shard).filter(|replica| wanted.admits(replica));
        sealed.map(|replica| replica.info(state(replica), fast.of(replica), wanted.now)).collect()
    }

    /// Returns a row for every wanted object that is not sealed: doomed ones, and those that are being
    /// created.
    pub(crate) fn list_others(&self, wanted: &Wanted, fast: &FastPins) -> Vec<ObjectInfo> {
        let doomed = self.doomed().filter(|replica| wanted.admits(replica));
        let creating = self.creations().filter(|creation| {
            let head = &creation.head;
            head.visible_to(wanted.user) && wanted.filter.admits(|| head.id, &head.name)
        });
        doomed
            .map(|replica| replica.info(ObjectState::Doomed, fast.of(&replica), wanted.now))
            .chain(creating.map(|creation| creation.info(wanted.now)))
            .collect()
    }

    /// Returns the page of wanted sealed objects that begins at a place, and the place of the next page. A
    /// page has at most `rows` rows for which `fits` says that they have room, and looks at a limited number
    /// of objects. An object that is there during all pages is in one of them, or in two.
    pub(crate) fn page(
        &self,
        from: u64,
        wanted: &Wanted,
        fast: &FastPins,
        rows: usize,
        mut fits: impl FnMut(&ObjectInfo) -> bool,
    ) -> (Vec<ObjectInfo>, Option<u64>) {
        let (mut page, mut visited) = (Vec::new(), 0);
        let mut least = from as u32;
        for shard in (from >> 32) as usize..Table::SHARDS {
            let mut found = Vec::new();
            for replica in self.sealed_in(shard) {
                visited += 1;
                let hash = Indexed::hash(replica).unwrap_or(0);
                if hash >= least && wanted.admits(replica) {
                    found.push((hash, replica));
                }
            }
            // The order of hashes stays the same when the share of the table grows.
            let left = rows - page.len();
            if found.len() > left {
                found.select_nth_unstable_by_key(left, |(hash, _)| *hash);
                found.truncate(left + 1);
            }
            found.sort_unstable_by_key(|(hash, _)| *hash);
            for (at, (hash, replica)) in found.into_iter().enumerate() {
                let row = (at < left).then(|| replica.info(state(replica), fast.of(replica), wanted.now));
                match row.filter(&mut fits) {
                    Some(row) => page.push(row),
                    None => return (page, Some((shard as u64) << 32 | u64::from(hash))),
                }
            }
            least = 0;
            if visited >= PAGE_VISITS && shard + 1 < Table::SHARDS {
                return (page, Some((shard as u64 + 1) << 32));
            }
        }
        (page, None)
    }
}

/// Number of objects after which a page ends with the share of the table that it has reached.
const PAGE_VISITS: usize = 1 << 14;

/// The objects of a listing, and the time as of which it tells ages.
pub(crate) struct Wanted {
    /// The user who asks.
    pub(crate) user: u32,
    /// The objects that the user wants to see.
    pub(crate) filter: Prepared,
    /// The time of the listing, in milliseconds since 1970.
    pub(crate) now: u64,
}

impl Wanted {
    fn admits(&self, replica: &Replica) -> bool {
        replica.visible_to(self.user)
            && parts_of(&replica.id()).is_none()
            && self.filter.admits(|| replica.id(), replica.name())
    }
}

fn state(replica: &Replica) -> ObjectState {
    match (replica.in_memory(), replica.role()) {
        (false, _) => ObjectState::Spilled,
        (true, Role::Primary) => ObjectState::Primary,
        (true, Role::Kept) => ObjectState::Kept,
        (true, Role::Cached) => ObjectState::Cached,
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
            version: None,
            beginning: Bytes::new(),
        }
    }
}
