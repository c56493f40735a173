//! The tables that clients read by themselves: one for everybody's objects, one for each user's private
//! ones. `plasmon::shared` has their protocol.
//!
//! Engine thread only, their one writer. What an entry says of its object, the engine reads there too:
//! nobody else can write it. An entry is its [`Replica`](super::Replica)'s until that is dropped.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plasmon::shared::{NewEntry, Part, TableWriter};
use plasmon::wire::{TableDomain, TablePart, TablePartKind};
use plasmon::{Error, ErrorKind};
use tracing::warn;

use super::Head;
use super::stamps::Stamps;
use crate::kernel::random::HashMap;
use crate::memory::{Domain, Home};

/// For how long clients read by themselves at most after this node has said that they may.
pub(crate) const TABLE_LIFE: Duration = Duration::from_secs(3);
/// Words of a growing index that are moved in a turn.
const TEND: usize = 4096;

/// The table of one domain.
pub(super) struct DomainTable {
    pub(super) domain: Domain,
    pub(super) writer: RefCell<TableWriter>,
    /// Of the memory that its entries name.
    pub(super) home: Rc<Home>,
    /// Of objects that peers know.
    pub(super) stamps: Rc<RefCell<Stamps>>,
}

/// The tables, by domain.
pub(crate) struct SharedTables {
    tables: HashMap<Domain, Rc<DomainTable>>,
    solo: bool,
    /// Until when clients may read by themselves.
    until: Instant,
    /// Of the arena's segments, for new tables.
    versions: Vec<u32>,
    home: Rc<Home>,
    stamps: Rc<RefCell<Stamps>>,
}

impl SharedTables {
    pub(super) fn new(home: Rc<Home>, stamps: Rc<RefCell<Stamps>>) -> Self {
        let until = Instant::now() + TABLE_LIFE;
        Self { tables: HashMap::default(), solo: false, until, versions: Vec::new(), home, stamps }
    }

    /// The table of a domain, made when it is first needed.
    fn table(&mut self, domain: Domain) -> io::Result<&Rc<DomainTable>> {
        if !self.tables.contains_key(&domain) {
            let mut writer = TableWriter::new()?;
            writer.set_solo(self.solo);
            writer.live_for(self.until.saturating_duration_since(Instant::now()));
            for (segment, version) in self.versions.iter().enumerate() {
                writer.set_segment_version(segment as u32, *version);
            }
            let (home, stamps) = (Rc::clone(&self.home), Rc::clone(&self.stamps));
            let table = DomainTable { domain, writer: RefCell::new(writer), home, stamps };
            self.tables.insert(domain, Rc::new(table));
        }
        Ok(&self.tables[&domain])
    }

    /// Lets clients find an object, at this offset or on disk.
    ///
    /// # Errors
    /// When the system has no memory or no descriptors for a larger table.
    pub(super) fn enter(
        &mut self,
        head: &Head,
        offset: Option<u64>,
    ) -> Result<(Rc<DomainTable>, u32), Error> {
        let Head { id, tenant: uid, data_len, metadata_len, digest, .. } = *head;
        let new = NewEntry { id, offset, data_len, metadata_len, digest, uid };
        let entered = self.table(head.domain()).and_then(|table| {
            let entry = table.writer.borrow_mut().insert(&new)?;
            Ok((Rc::clone(table), entry))
        });
        entered.map_err(|error| {
            let text = format!(
                "object {id} finds no place in the object table, which cannot grow: {error}; allow the \
                 daemon more memory or more open files"
            );
            Error::new(ErrorKind::Full, text)
        })
    }

    fn each(&self, change: impl Fn(&mut TableWriter)) {
        self.tables.values().for_each(|table| change(&mut table.writer.borrow_mut()));
    }

    /// What is not in these tables exists nowhere, or may exist elsewhere.
    pub(crate) fn set_solo(&mut self, solo: bool) {
        self.solo = solo;
        self.each(|table| table.set_solo(solo));
    }

    /// Tells clients for how long they may read by themselves from now on; to be called every second.
    pub(crate) fn live(&mut self, span: Duration) {
        self.until = Instant::now() + span;
        self.each(|table| table.live_for(span));
    }

    /// A segment of the arena has other memory from now on.
    pub(crate) fn set_segment_version(&mut self, segment: u32, version: u32) {
        let at = segment as usize;
        if self.versions.len() <= at {
            self.versions.resize(at + 1, 0);
        }
        self.versions[at] = version;
        self.each(|table| table.set_segment_version(segment, version));
    }

    /// Moves growing indexes on; returns whether there is more to do.
    pub(crate) fn tend(&self) -> bool {
        let mut more = false;
        for table in self.tables.values() {
            match table.writer.borrow_mut().tend(TEND) {
                Ok(going_on) => more |= going_on,
                Err(error) => warn!("an object table cannot grow, gets will be slower: {error}"),
            }
        }
        more
    }

    /// Descriptors of the parts that a user's clients may read now, but for those that one has.
    ///
    /// # Errors
    /// When the system has no more to give.
    pub(crate) fn grants(
        &mut self,
        uid: u32,
        has: impl Fn(&TablePart) -> bool,
    ) -> io::Result<Vec<(TablePart, Arc<OwnedFd>)>> {
        let part = |domain, part| match part {
            Part::Root => TablePart { domain, kind: TablePartKind::Root, number: 0 },
            Part::Index { version } => TablePart { domain, kind: TablePartKind::Index, number: version },
            Part::Chunk { number } => TablePart { domain, kind: TablePartKind::Chunk, number },
        };
        let mut grants = Vec::new();
        let tables = [(TableDomain::Shared, Domain::Shared), (TableDomain::Private, Domain::Private(uid))];
        for (name, domain) in tables {
            // Made now, so that the client finds it when there is something to find.
            let table = self.table(domain)?.writer.borrow();
            for (one, file) in table.grants() {
                let part = part(name, one);
                if !has(&part) {
                    grants.push((part, Arc::clone(file)));
                }
            }
        }
        Ok(grants)
    }

    /// Bytes the tables take.
    pub(crate) fn memory(&self) -> u64 {
        self.tables.values().map(|table| table.writer.borrow().memory()).sum()
    }
}
