//! A region at its home: its properties, its memory, and its end. Owns [`Region`]. Engine thread only.
//!
//! Invariant: nothing touches the memory of a region that has ended, or of one that this node withholds. All
//! access to the bytes goes through [`Region::open`] or, for transfers, [`Region::run`].

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use plasmon::region::{RegionInfo, Rights};
use plasmon::text::printable;
use plasmon::{Error, ErrorKind, ObjectId};

use super::freezing::Freezing;
use super::rights::Acl;
use super::waiting::Waiters;
use super::{Ground, Wanted};
use crate::memory::Run;
use crate::object::Replica;
use crate::region::frames::Moved;
use crate::store::regions::RegionMemory;

/// A region that lives on this node, or has ended.
pub(crate) struct Region {
    pub(super) ground: Rc<Ground>,
    name: Box<str>,
    /// Replica that has the id of the name and the life of the region, and the time when the region came to
    /// this node.
    deed: Rc<Replica>,
    /// Memory of the region. `None` when the region has ended.
    memory: Cell<Option<Rc<RegionMemory>>>,
    rare: OnceCell<Box<Rare>>,
    len: u64,
    desk: u32,
    owner: u32,
    pub(super) public: Cell<Rights>,
    /// Whether processes of the owner are to map the region, where its home has the memory for it.
    mappable: bool,
    ephemeral: bool,
    /// Whether the region has another home now.
    pub(super) moved: Cell<bool>,
    /// Number of changes of the rights, which wraps. A node that has missed changes sees it by the number.
    pub(super) changes: Cell<u16>,
}

/// State that most regions do not have.
#[derive(Default)]
pub(super) struct Rare {
    /// Rights of single users, if any were granted.
    pub(super) acl: RefCell<Option<Box<Acl>>>,
    /// Calls that wait for a change of the region, if there were any.
    pub(super) waiters: RefCell<Option<Box<Waiters>>>,
    /// State for freezing and for changes that take several turns. Made by the first of these.
    pub(super) freezing: OnceCell<Box<Freezing>>,
}

/// A node may have a million regions. With the counts of an `Rc` and malloc's header a region takes 96 bytes,
/// beside its name, its memory, its deed and its place in the tables of its home. The next larger size of
/// malloc is 112.
const _: () = assert!(size_of::<Region>() <= 72);

/// Parts of a new region, beside what its creator wanted.
pub(super) struct Parts {
    pub(super) ground: Rc<Ground>,
    pub(super) memory: Rc<RegionMemory>,
    pub(super) deed: Rc<Replica>,
    pub(super) owner: u32,
}

/// Memory of a region that is used for nothing else until this hold is dropped.
pub(crate) struct Held {
    _memory: Rc<RegionMemory>,
}

/// Place of the memory by which a process may map a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Pieces of the region in the arena, in their order: the offset of the first byte, and the number of
    /// bytes.
    pub(crate) pieces: Vec<(u64, u64)>,
    /// Segments in which the region lies, each once.
    pub(crate) segments: Vec<u32>,
    /// Whether the process may write there.
    pub(crate) writable: bool,
}

impl Region {
    pub(super) fn new(wanted: Wanted, desk: u32, parts: Parts) -> Self {
        let Wanted { name, len, public, mappable, ephemeral, .. } = wanted;
        let Parts { ground, memory, deed, owner } = parts;
        Self {
            ground,
            name: name.into(),
            deed,
            memory: Cell::new(Some(memory)),
            rare: OnceCell::new(),
            len,
            desk,
            owner,
            public: Cell::new(public),
            mappable,
            ephemeral,
            moved: Cell::new(false),
            changes: Cell::new(0),
        }
    }

    /// The name of the region.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The id of the region's name.
    pub(crate) fn id(&self) -> ObjectId {
        self.deed.id()
    }

    /// State of the region that most regions do not have, if it has any.
    pub(super) fn rare(&self) -> Option<&Rare> {
        self.rare.get().map(Box::as_ref)
    }

    /// State of the region that most regions do not have. Makes the state if there is none.
    pub(super) fn make_rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// The memory of the region; none when it has ended.
    fn memory(&self) -> Option<Rc<RegionMemory>> {
        let memory = self.memory.take();
        self.memory.set(memory.clone());
        memory
    }

    /// The place of the region at its home. Desk and life together name the region for good.
    pub(crate) fn desk(&self) -> u32 {
        self.desk
    }

    /// The life of the region's deed.
    pub(crate) fn life(&self) -> u64 {
        self.deed.life
    }

    /// The user who made the region.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// Number of bytes of the region.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether the region ends with the connection that made it.
    pub(crate) fn is_ephemeral(&self) -> bool {
        self.ephemeral
    }

    /// Description of the region for another home. The bytes of the region are no part of it.
    pub(crate) fn parted(&self) -> Moved {
        Moved {
            name: self.name.clone().into(),
            len: self.len,
            owner: self.owner,
            public: self.public.get(),
            mappable: self.mappable,
            granted: self.granted(),
            changes: self.changes(),
            shown: self.shown(),
        }
    }

    /// Whether the region has another home now.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved.get()
    }

    /// Makes the error for a region that is not here any more: it was freed, or has moved.
    pub(super) fn gone(&self) -> Error {
        if self.moved.get() { moved(&self.name) } else { freed(&self.name) }
    }

    /// Whether the region has ended: its deed is not here any more.
    pub(crate) fn is_gone(&self) -> bool {
        !self.ground.store.objects.borrow().has(&self.deed)
    }

    /// Refuses an operation on a region that has ended, or that this node withholds. An operation that takes
    /// several turns calls this again at its end, because the region may have ended meanwhile.
    ///
    /// # Errors
    /// `Freed`, `NotHere`, `Disconnected`.
    pub(crate) fn ensure_there(&self) -> Result<(), Error> {
        if self.is_gone() {
            return Err(self.gone());
        }
        self.ground.ensure_serves(&self.name)
    }

    /// Returns the memory of the region, for a user who needs these rights.
    ///
    /// # Errors
    /// `Freed` if the region has ended, `NotHere` if it has moved, `Disconnected` if this node withholds it,
    /// `NotAllowed` if the user lacks a right.
    pub(super) fn open(&self, user: u32, rights: Rights) -> Result<Rc<RegionMemory>, Error> {
        self.ensure_there()?;
        self.ensure(user, rights)?;
        self.memory().ok_or_else(|| self.gone())
    }

    /// Refuses a range of bytes that the region does not have.
    pub(super) fn ensure_bounds(&self, offset: u64, len: u64) -> Result<(), Error> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let text = format!(
            "{len} bytes at offset {offset} are out of bounds: region '{}' has {} bytes",
            printable(&self.name),
            self.len
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Returns the bytes of a part of the region, for a transfer. A caller that keeps the bytes beyond this
    /// turn holds the region, and tells of changes by [`Region::changed`].
    ///
    /// # Errors
    /// `Freed` if the region has ended, `NotHere` if it has moved, `Disconnected` if this node withholds it,
    /// `Invalid` if the region has no such bytes.
    pub(crate) fn run(&self, offset: u64, len: u64) -> Result<Run, Error> {
        self.ensure_there()?;
        self.ensure_bounds(offset, len)?;
        self.memory().and_then(|memory| memory.part(offset, len)).ok_or_else(|| self.gone())
    }

    /// Returns the place where processes of a user may map the region. `None` for users other than the owner:
    /// only the owner's processes have descriptors of the segments in which the region lies.
    pub(crate) fn place(&self, user: u32) -> Option<Place> {
        let may = |memory: &Rc<RegionMemory>| memory.is_mappable() && user == self.owner && !self.is_gone();
        let memory = self.memory().filter(may)?;
        let pieces =
            memory.places().into_iter().map(|place| (place.start, place.end - place.start)).collect();
        let segments = BTreeSet::from_iter(memory.segments()).into_iter().collect();
        Some(Place { pieces, segments, writable: true })
    }

    /// Keeps the memory of the region from being used for anything else. `None` if the region has ended.
    pub(crate) fn hold(&self) -> Option<Held> {
        self.memory().map(|memory| Held { _memory: memory })
    }

    /// Returns the row of the region in a list for a user. Its numbers of handles and nodes are 0.
    pub(crate) fn info(&self, user: u32) -> RegionInfo {
        let kernel = &self.ground.kernel;
        let memory = self.memory();
        let memory = memory.as_ref();
        RegionInfo {
            name: self.name.clone().into(),
            len: self.len,
            home: kernel.node,
            owner: self.owner,
            rights: self.rights(user),
            public: self.public.get(),
            mappable: memory.is_some_and(|memory| memory.is_mappable()),
            crowded_out: memory.is_some_and(|memory| memory.is_crowded_out()),
            pieces: memory.map_or(0, |memory| memory.places().len() as u32),
            ephemeral: self.ephemeral,
            handles: 0,
            nodes: 0,
            age_ms: kernel.clock.unix_ms().saturating_sub(self.deed.created),
        }
    }

    /// Lets go of the memory, and ends the calls that wait for words of the region.
    pub(super) fn end(&self) {
        drop(self.memory.take());
        self.end_waits(|_| true, || self.gone());
    }
}

/// Makes the error for a region that has another home now. The error says that nothing was done.
pub(super) fn moved(name: &str) -> Error {
    Error::new(ErrorKind::NotHere, format!("region '{}' has moved to another node", printable(name)))
}

/// Makes the error for a region that has ended.
pub(super) fn freed(name: &str) -> Error {
    let text = format!("region '{}' was freed; make it again", printable(name));
    Error::new(ErrorKind::Freed, text)
}
