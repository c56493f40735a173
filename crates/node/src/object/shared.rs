//! The tables that clients read by themselves: one for the objects that all users see, and one for each
//! user's private objects. `plasmon::shared` defines their protocol.
//!
//! Owns the tables. Engine thread only, because it is the one writer of the tables. The engine reads the
//! fields of an entry there too. Invariant: an entry belongs to its [`Replica`](super::Replica) until the
//! replica is dropped.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plasmon::shared::{NewEntry, Part, TableWriter};
use plasmon::wire::{TableDomain, TablePart, TablePartKind};
use plasmon::{Error, ErrorKind, ObjectId};
use tracing::warn;

use super::Head;
use super::stamps::Stamps;
use crate::kernel::random::HashMap;
use crate::memory::{Domain, Home};

/// Time for which clients may read by themselves after this node has last allowed it.
pub(crate) const TABLE_LIFE: Duration = Duration::from_secs(3);
/// Number of words of a growing index that are moved in a turn.
const TEND_WORDS: usize = 4096;

/// The table of one domain.
pub(super) struct DomainTable {
    pub(super) domain: Domain,
    pub(super) writer: RefCell<TableWriter>,
    /// The home of the memory that the entries name.
    pub(super) home: Rc<Home>,
    /// The stamps of objects that peers know.
    pub(super) stamps: Rc<RefCell<Stamps>>,
}

/// The tables that clients read, by domain.
pub(crate) struct SharedTables {
    tables: HashMap<Domain, Rc<DomainTable>>,
    solo: bool,
    /// The time until which clients may read by themselves.
    until: Instant,
    /// The versions of the arena's segments, for new tables.
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

    /// Enters an object at this offset, or on disk, so that clients find it. A guarded object is hidden:
    /// clients ask for it.
    ///
    /// # Errors
    /// When the system has no memory or no descriptors for a larger table.
    pub(super) fn enter(
        &mut self,
        head: &Head,
        offset: Option<u64>,
        is_guarded: bool,
    ) -> Result<(Rc<DomainTable>, u32), Error> {
        let Head { id, user: uid, data_len, metadata_len, digest, .. } = *head;
        let new = NewEntry { id, offset, data_len, metadata_len, digest, uid };
        let entered = self.table(head.domain()).and_then(|table| {
            let mut writer = table.writer.borrow_mut();
            let entry = if is_guarded { writer.insert_hidden(&new) } else { writer.insert(&new) }?;
            drop(writer);
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

    /// Sets whether an object that is not in these tables exists nowhere; otherwise another node may have
    /// it.
    pub(crate) fn set_solo(&mut self, solo: bool) {
        self.solo = solo;
        self.each(|table| table.set_solo(solo));
    }

    /// Allows clients to read by themselves for `span` from now on; called every second.
    pub(crate) fn live(&mut self, span: Duration) {
        self.until = Instant::now() + span;
        self.each(|table| table.live_for(span));
    }

    /// Notes that a segment of the arena has other memory from now on.
    pub(crate) fn set_segment_version(&mut self, segment: u32, version: u32) {
        let at = segment as usize;
        if self.versions.len() <= at {
            self.versions.resize(at + 1, 0);
        }
        self.versions[at] = version;
        self.each(|table| table.set_segment_version(segment, version));
    }

    /// Continues the growth of indexes; returns whether there is more to do.
    pub(crate) fn tend(&self) -> bool {
        let mut more = false;
        for table in self.tables.values() {
            match table.writer.borrow_mut().tend(TEND_WORDS) {
                Ok(going_on) => more |= going_on,
                Err(error) => warn!("an object table cannot grow, gets will be slower: {error}"),
            }
        }
        more
    }

    /// The descriptors of the parts that a user's clients may read now, except those that the client has.
    ///
    /// # Errors
    /// When the system has no descriptors left.
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
            // The table is made now, so that the client finds it when it has an object.
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

    /// The id in an entry that a client named, if there is such an entry. It may be an old one.
    pub(super) fn id_in(&self, domain: Domain, entry: u32) -> Option<ObjectId> {
        self.tables.get(&domain)?.writer.borrow().named_by_others(entry)
    }

    /// Number of bytes that the tables take.
    pub(crate) fn memory(&self) -> u64 {
        self.tables.values().map(|table| table.writer.borrow().memory()).sum()
    }
}
