//! One object's bytes on this node, and the pins that keep them there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use plasmon::wire::Span;
use plasmon::{ObjectId, wire};

use crate::engine::ClientKey;
use crate::memory::{Domain, Extent};
use crate::spill::Place;

/// What is known of an object before its bytes are there; the same on every node that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// Its id.
    pub(crate) id: ObjectId,
    /// The name behind the id; empty when there is none.
    pub(crate) name: Box<str>,
    /// Which life of the id this is: drawn at random when the object is created.
    pub(crate) life: u64,
    /// The user who created it.
    pub(crate) tenant: u32,
    /// Only that user sees it.
    pub(crate) private: bool,
    /// Bytes of data.
    pub(crate) data_len: u64,
    /// Bytes of metadata, which lie behind the data.
    pub(crate) metadata_len: u32,
    /// XXH3 of data and metadata, made at the seal; 0 for none.
    pub(crate) digest: u64,
}

impl Head {
    /// Bytes it takes in the arena.
    pub(crate) fn len(&self) -> u64 {
        self.data_len + u64::from(self.metadata_len)
    }

    /// The domain its memory belongs to.
    pub(crate) fn domain(&self) -> Domain {
        if self.private { Domain::Private(self.tenant) } else { Domain::Shared }
    }

    /// Whether a user may see it.
    pub(crate) fn visible_to(&self, tenant: u32) -> bool {
        !self.private || self.tenant == tenant
    }
}

/// Why this node holds an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It was created here: deleted only by its users, but in cache mode.
    Primary,
    /// It was fetched from another node: dropped when room is needed.
    Cached,
}

/// A sealed object of this node: in memory, on disk, or both.
pub(crate) struct Replica {
    pub(crate) head: Head,
    /// When it came to this node, in milliseconds since 1970.
    pub(crate) created: u64,
    /// Whose quota it counts against.
    pub(crate) creator: Option<ClientKey>,
    role: Cell<Role>,
    memory: RefCell<Option<Rc<Extent>>>,
    on_disk: Cell<Option<Place>>,
    /// Its number in the table of its domain that clients read, if it got one.
    entry: Cell<Option<u32>>,
    pins: Cell<u32>,
    /// Read since the clock hand last passed.
    touched: Cell<bool>,
}

impl Replica {
    /// An object whose bytes are in memory.
    pub(crate) fn new(
        head: Head,
        role: Role,
        creator: Option<ClientKey>,
        extent: Rc<Extent>,
        created: u64,
    ) -> Rc<Self> {
        Self::with(head, role, creator, Some(extent), None, created)
    }

    /// A primary that a former daemon left on disk.
    pub(crate) fn recovered(head: Head, place: Place, creator: ClientKey, created: u64) -> Rc<Self> {
        Self::with(head, Role::Primary, Some(creator), None, Some(place), created)
    }

    fn with(
        head: Head,
        role: Role,
        creator: Option<ClientKey>,
        memory: Option<Rc<Extent>>,
        on_disk: Option<Place>,
        created: u64,
    ) -> Rc<Self> {
        Rc::new(Self {
            head,
            created,
            creator,
            role: Cell::new(role),
            memory: RefCell::new(memory),
            on_disk: Cell::new(on_disk),
            entry: Cell::new(None),
            pins: Cell::new(0),
            // Nobody has read it: those that were read stay longer.
            touched: Cell::new(false),
        })
    }

    /// Why this node holds it.
    pub(crate) fn role(&self) -> Role {
        self.role.get()
    }

    /// No other primary is left: from now on this one is never dropped.
    pub(super) fn promote(&self) {
        self.role.set(Role::Primary);
    }

    /// Where its bytes are, if they are in memory.
    pub(crate) fn extent(&self) -> Option<Rc<Extent>> {
        self.memory.borrow().clone()
    }

    pub(super) fn set_extent(&self, extent: Option<Rc<Extent>>) {
        *self.memory.borrow_mut() = extent;
    }

    /// Where it is on disk, if it is there.
    pub(crate) fn on_disk(&self) -> Option<Place> {
        self.on_disk.get()
    }

    pub(crate) fn set_on_disk(&self, place: Option<Place>) {
        self.on_disk.set(place);
    }

    pub(crate) fn entry(&self) -> Option<u32> {
        self.entry.get()
    }

    pub(super) fn set_entry(&self, entry: Option<u32>) {
        self.entry.set(entry);
    }

    /// Holders of the bytes that the engine counts, clients and peers. Clients pin by themselves too.
    pub(crate) fn pins(&self) -> u32 {
        self.pins.get()
    }

    /// Marks it as used just now.
    pub(crate) fn touch(&self) {
        self.touched.set(true);
    }

    /// Whether it was touched since this was last asked.
    pub(super) fn take_touched(&self) -> bool {
        self.touched.replace(false)
    }

    /// Its row in a listing.
    pub(crate) fn info(&self, state: wire::ObjectState, pins: u32, now: u64) -> wire::ObjectInfo {
        wire::ObjectInfo {
            id: self.head.id,
            name: Some(String::from(&*self.head.name)).filter(|name| !name.is_empty()),
            state,
            private: self.head.private,
            data_len: self.head.data_len,
            metadata_len: self.head.metadata_len,
            pins: self.pins() + pins,
            age_ms: now.saturating_sub(self.created),
        }
    }
}

/// Keeps an object's bytes in memory, where they are.
pub(crate) struct Pin {
    replica: Rc<Replica>,
    /// Where they are.
    pub(crate) extent: Rc<Extent>,
}

impl Pin {
    /// Pins an object that is in memory.
    pub(crate) fn new(replica: &Rc<Replica>) -> Option<Self> {
        let extent = replica.extent()?;
        replica.pins.set(replica.pins.get() + 1);
        replica.touch();
        Some(Self { replica: Rc::clone(replica), extent })
    }

    /// The object.
    pub(crate) fn replica(&self) -> &Rc<Replica> {
        &self.replica
    }

    /// Where a client finds it.
    pub(crate) fn span(&self) -> Span {
        Span {
            offset: self.extent.offset(),
            data_len: self.head.data_len,
            metadata_len: self.head.metadata_len,
            digest: self.head.digest,
        }
    }
}

impl std::ops::Deref for Pin {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        &self.replica
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.replica.pins.set(self.replica.pins.get() - 1);
    }
}
