//! The tables that clients read by themselves: one for everybody's objects, one for each user's private
//! ones. `plasmon::shared` has their protocol.
//!
//! Engine thread only, their one writer. An object without an entry (there was no memory for one) can
//! still be got through the socket.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use plasmon::shared::{NewEntry, Part, TableWriter};
use plasmon::wire::{TableDomain, TablePart, TablePartKind};
use tracing::warn;

use super::Replica;
use crate::memory::Domain;

/// For how long clients take this node to live after it has said so.
const LIFE: Duration = Duration::from_secs(3);
/// Words of a growing index that are moved in a turn.
const TEND: usize = 4096;

/// The tables, by domain.
pub(crate) struct SharedTables {
    tables: HashMap<Domain, TableWriter>,
    solo: bool,
    /// Of the arena's segments, for new tables.
    versions: Vec<u32>,
}

impl SharedTables {
    pub(super) fn new() -> Self {
        Self { tables: HashMap::new(), solo: false, versions: Vec::new() }
    }

    /// The table of a domain, made when it is first needed.
    fn table(&mut self, domain: Domain) -> Option<&mut TableWriter> {
        if !self.tables.contains_key(&domain) {
            let mut table = match TableWriter::new() {
                Ok(table) => table,
                Err(error) => {
                    warn!("no object table for clients to read, every get asks the node: {error}");
                    return None;
                }
            };
            table.set_solo(self.solo);
            table.live_for(LIFE);
            for (segment, version) in self.versions.iter().enumerate() {
                table.set_segment_version(segment as u32, *version);
            }
            self.tables.insert(domain, table);
        }
        self.tables.get_mut(&domain)
    }

    /// Lets clients find a sealed object.
    pub(super) fn enter(&mut self, replica: &Replica) {
        let Some(table) = self.table(replica.head.domain()) else { return };
        let head = &replica.head;
        let new = NewEntry {
            id: head.id,
            offset: replica.extent().map(|extent| extent.offset()),
            data_len: head.data_len,
            metadata_len: head.metadata_len,
            digest: head.digest,
        };
        match table.insert(&new) {
            Ok(entry) => replica.set_entry(Some(entry)),
            Err(error) => {
                warn!(
                    "object {}: no entry in the table of clients, every get asks the node: {error}",
                    head.id
                );
            }
        }
    }

    fn with(&mut self, replica: &Replica, change: impl FnOnce(&mut TableWriter, u32)) {
        if let Some(entry) = replica.entry()
            && let Some(table) = self.tables.get_mut(&replica.head.domain())
        {
            change(table, entry);
        }
    }

    /// From now on nobody can pin it; who has, shows in the next scan.
    pub(super) fn hide(&mut self, replica: &Replica) {
        self.with(replica, |table, entry| table.hide(entry));
    }

    /// It stays after all.
    pub(super) fn show(&mut self, replica: &Replica) {
        self.with(replica, |table, entry| table.show(entry));
    }

    /// Its bytes, hidden before, are on disk only.
    pub(super) fn set_spilled(&mut self, replica: &Replica) {
        self.with(replica, TableWriter::set_spilled);
    }

    /// Its bytes are in memory there: again, or moved while it was hidden.
    pub(super) fn set_sealed(&mut self, replica: &Replica, offset: u64) {
        self.with(replica, |table, entry| table.set_sealed(entry, offset));
    }

    /// It is not to be found any more; its entry waits for the last pin.
    pub(super) fn remove(&mut self, replica: &Replica) {
        self.with(replica, TableWriter::remove);
    }

    /// Nobody pins its entry any more.
    pub(super) fn free(&mut self, replica: &Replica) {
        self.with(replica, TableWriter::free);
        replica.set_entry(None);
    }

    /// What is not in these tables exists nowhere, or may exist elsewhere.
    pub(crate) fn set_solo(&mut self, solo: bool) {
        self.solo = solo;
        self.tables.values_mut().for_each(|table| table.set_solo(solo));
    }

    /// Tells clients that this node lives; to be called every second.
    pub(crate) fn live(&mut self) {
        self.tables.values_mut().for_each(|table| table.live_for(LIFE));
    }

    /// A segment of the arena has other memory from now on.
    pub(crate) fn set_segment_version(&mut self, segment: u32, version: u32) {
        let at = segment as usize;
        if self.versions.len() <= at {
            self.versions.resize(at + 1, 0);
        }
        self.versions[at] = version;
        self.tables.values_mut().for_each(|table| table.set_segment_version(segment, version));
    }

    /// Moves growing indexes on; returns whether there is more to do.
    pub(crate) fn tend(&mut self) -> bool {
        let mut more = false;
        for table in self.tables.values_mut() {
            match table.tend(TEND) {
                Ok(going_on) => more |= going_on,
                Err(error) => warn!("an object table cannot grow, gets will be slower: {error}"),
            }
        }
        more
    }

    /// The parts that a user's clients may read now, with their descriptors.
    pub(crate) fn grants(&mut self, uid: u32) -> Vec<(TablePart, BorrowedFd<'_>)> {
        // Made now, so that the client finds them when there is something to find.
        for domain in [Domain::Shared, Domain::Private(uid)] {
            self.table(domain);
        }
        let tables = [(TableDomain::Shared, Domain::Shared), (TableDomain::Private, Domain::Private(uid))];
        let grants = tables.into_iter().filter_map(|(name, domain)| Some((name, self.tables.get(&domain)?)));
        let part = |domain, part| match part {
            Part::Root => TablePart { domain, kind: TablePartKind::Root, number: 0 },
            Part::Index { version } => TablePart { domain, kind: TablePartKind::Index, number: version },
            Part::Chunk { number } => TablePart { domain, kind: TablePartKind::Chunk, number },
        };
        grants
            .flat_map(|(domain, table)| table.grants().map(move |(one, file)| (part(domain, one), file)))
            .collect()
    }

    /// Bytes the tables take.
    pub(crate) fn memory(&self) -> u64 {
        self.tables.values().map(TableWriter::memory).sum()
    }
}
