//! One object's bytes on this node, and the pins that keep them there.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::time::Duration;

use plasmon::shared::Snapshot;
use plasmon::wire::{AtMost, MAX_NAME, Span, codes, record};
use plasmon::{ObjectId, Rights, wire};

use super::Ownership;
use super::shared::DomainTable;
use crate::kernel::ClientKey;
use crate::kernel::index::Indexed;
use crate::memory::{Domain, Extent, Run};
use crate::spill::Place;

/// More than any arena has, and so little that lengths can be added.
const MAX_DATA: usize = 1 << 62;

record! {
    /// What is known of an object before its bytes are there; the same on every node that holds it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Head {
        /// Its id.
        pub(crate) id: ObjectId,
        /// Which life of the id this is: drawn at random when the object is created.
        pub(crate) life: u64,
        /// The user who created it.
        pub(crate) tenant: u32,
        /// What others may do with it.
        pub(crate) rights: Rights,
        /// Bytes of data.
        pub(crate) data_len: u64 as AtMost<MAX_DATA>,
        /// Bytes of metadata, which lie behind the data.
        pub(crate) metadata_len: u32,
        /// XXH3 of data and metadata, made at the seal; 0 for none.
        pub(crate) digest: u64,
        /// How many nodes are to keep it; 0 and 1 for one.
        pub(crate) copies: u16,
        /// When it is to be deleted, in milliseconds since 1970; 0 for never.
        pub(crate) expires: u64,
        /// The name behind the id; empty when there is none.
        pub(crate) name: Box<str> as AtMost<MAX_NAME>,
    }
}

impl Head {
    /// Bytes it takes in the arena.
    pub(crate) fn len(&self) -> u64 {
        self.data_len + u64::from(self.metadata_len)
    }

    /// Whose it is.
    pub(crate) fn ownership(&self) -> Ownership {
        Ownership { user: self.tenant, rights: self.rights }
    }

    /// The domain its memory belongs to.
    pub(crate) fn domain(&self) -> Domain {
        if self.rights.is_private() { Domain::Private(self.tenant) } else { Domain::Shared }
    }

    /// Whether a user may see it.
    pub(crate) fn visible_to(&self, tenant: u32) -> bool {
        self.ownership().visible_to(tenant)
    }
}

codes! {
    /// Why this node holds an object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Role: u8 {
        /// It was created here: deleted only by its users, but in cache mode.
        0 Primary,
        /// It was fetched from another node: dropped when room is needed.
        1 Cached,
        /// It was brought here to be kept, as one of several: as a primary, but that it belongs to another
        /// node.
        2 Kept,
    }
}

impl Role {
    /// Whether eviction leaves it alone.
    pub(crate) fn stays(self) -> bool {
        self != Self::Cached
    }

    /// Its name, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Kept => "kept",
            Self::Cached => "cached",
        }
    }
}

/// What a replica is made of.
pub(crate) struct Sealing {
    pub(crate) head: Head,
    pub(crate) role: Role,
    /// Whose quota it counts against.
    pub(crate) creator: Option<ClientKey>,
    pub(crate) bytes: Held,
    /// In milliseconds since 1970.
    pub(crate) created: u64,
}

/// Where a replica's bytes are at first.
pub(crate) enum Held {
    Memory(Extent),
    /// A former daemon left them there.
    Disk(Place),
}

/// A sealed object of this node: in memory, on disk, or both.
///
/// There may be ten million of it: its id, creator, lengths, digest and offset are in its entry of the table
/// that clients read, and nowhere else. Entry and memory are given back when it is dropped.
pub(crate) struct Replica {
    table: Rc<DomainTable>,
    pub(crate) life: u64,
    /// When it came to this node, in milliseconds since 1970.
    pub(crate) created: u64,
    /// Whose quota it counts against.
    pub(crate) creator: Cell<Option<ClientKey>>,
    rare: OnceCell<Box<Rare>>,
    /// Its number in the table.
    entry: u32,
    /// What the index hashes it to, so that it can grow without a look at the entry.
    hash: u32,
    pins: Cell<u32>,
    role: Cell<Role>,
    /// What its entry says of its place is an extent, and its own.
    in_memory: Cell<bool>,
    /// Read since the clock hand last passed.
    touched: Cell<bool>,
    /// Every user may change it.
    open: bool,
}

impl Indexed for Rc<Replica> {
    fn id(&self) -> ObjectId {
        Replica::id(self)
    }

    fn hash(&self) -> Option<u32> {
        Some(self.hash)
    }
}

/// What most objects do not have.
#[derive(Default)]
struct Rare {
    name: Box<str>,
    on_disk: Cell<Option<Place>>,
    copies: Cell<u16>,
    expires: u64,
    construction_s: Cell<u32>,
}

/// With the counts of an `Rc` and malloc's header, 80 bytes: the next larger piece has 96.
const _: () = assert!(size_of::<Replica>() <= 56);

impl Replica {
    /// An object that clients can find already.
    pub(super) fn new(sealing: Sealing, table: Rc<DomainTable>, entry: u32, hash: u32) -> Rc<Self> {
        let Sealing { head, role, creator, bytes, created } = sealing;
        let rare = OnceCell::new();
        if !head.name.is_empty() || head.copies > 1 || head.expires > 0 {
            let (copies, expires) = (Cell::new(head.copies), head.expires);
            rare.get_or_init(|| Box::new(Rare { name: head.name, copies, expires, ..Rare::default() }));
        }
        let replica = Self {
            table,
            life: head.life,
            created,
            creator: Cell::new(creator),
            rare,
            entry,
            hash,
            pins: Cell::new(0),
            role: Cell::new(role),
            in_memory: Cell::new(false),
            // Nobody has read it: those that were read stay longer.
            touched: Cell::new(false),
            open: head.rights == Rights::ReadWrite,
        };
        match bytes {
            Held::Memory(extent) => replica.keep(extent),
            Held::Disk(place) => replica.set_on_disk(Some(place)),
        }
        Rc::new(replica)
    }

    /// Its id.
    pub(crate) fn id(&self) -> ObjectId {
        self.table.writer.borrow().id(self.entry)
    }

    /// Its number in the table of its domain.
    pub(crate) fn entry(&self) -> u32 {
        self.entry
    }

    /// What its entry says.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.table.writer.borrow().get(self.entry)
    }

    fn name(&self) -> &str {
        self.rare.get().map_or("", |rare| &rare.name)
    }

    /// Bytes of data and metadata.
    pub(crate) fn len(&self) -> u64 {
        self.snapshot().total_len()
    }

    /// What is known of it on every node.
    pub(crate) fn head(&self) -> Head {
        let Snapshot { id, data_len, metadata_len, digest, uid, .. } = self.snapshot();
        Head {
            id,
            name: self.name().into(),
            life: self.life,
            tenant: uid,
            rights: self.rights(),
            data_len,
            metadata_len,
            digest,
            copies: self.copies(),
            expires: self.expires(),
        }
    }

    /// How many nodes are to keep it; 0 and 1 for one.
    pub(crate) fn copies(&self) -> u16 {
        self.rare.get().map_or(0, |rare| rare.copies.get())
    }

    pub(crate) fn set_copies(&self, copies: u16) {
        if copies.max(1) != self.copies().max(1) {
            self.rare.get_or_init(Box::default).copies.set(copies);
        }
    }

    /// Notes how long its creator took from creation to seal. Only whole seconds are kept: few objects have
    /// any.
    pub(super) fn took(&self, construction: Duration) {
        if construction.as_secs() > 0 {
            let seconds = u32::try_from(construction.as_secs()).unwrap_or(u32::MAX);
            self.rare.get_or_init(Box::default).construction_s.set(seconds);
        }
    }

    /// When it is to be deleted, in milliseconds since 1970; 0 for never.
    pub(crate) fn expires(&self) -> u64 {
        self.rare.get().map_or(0, |rare| rare.expires)
    }

    /// The domain its memory belongs to.
    pub(crate) fn domain(&self) -> Domain {
        self.table.domain
    }

    /// The user who alone sees it.
    pub(crate) fn owner(&self) -> Option<u32> {
        match self.domain() {
            Domain::Shared => None,
            Domain::Private(uid) => Some(uid),
        }
    }

    /// What users other than its creator may do with it.
    pub(crate) fn rights(&self) -> Rights {
        match self.domain() {
            Domain::Private(_) => Rights::Private,
            Domain::Shared if self.open => Rights::ReadWrite,
            Domain::Shared => Rights::Read,
        }
    }

    /// Whose it is.
    pub(crate) fn ownership(&self) -> Ownership {
        Ownership { user: self.snapshot().uid, rights: self.rights() }
    }

    /// Whether a user may see it.
    pub(crate) fn visible_to(&self, tenant: u32) -> bool {
        self.owner().is_none_or(|owner| owner == tenant)
    }

    /// Why this node holds it.
    pub(crate) fn role(&self) -> Role {
        self.role.get()
    }

    pub(super) fn set_role(&self, role: Role) {
        self.role.set(role);
    }

    /// Whether its bytes are in memory.
    pub(crate) fn in_memory(&self) -> bool {
        self.in_memory.get()
    }

    /// Its bytes, if they are in memory. They stay there as long as it is pinned.
    pub(crate) fn run(&self) -> Option<Run> {
        self.in_memory().then(|| {
            let seen = self.snapshot();
            self.table.home.run(seen.offset, seen.total_len())
        })
    }

    /// Its bytes are where its entry says they are.
    fn keep(&self, extent: Extent) {
        let offset = extent.leave();
        debug_assert_eq!(offset, self.snapshot().offset);
        self.in_memory.set(true);
    }

    /// Its memory, which it has no more.
    fn take(&self) -> Option<Extent> {
        let run = self.run()?;
        self.revoke();
        self.in_memory.set(false);
        Some(self.table.home.extent(run.offset(), run.len()))
    }

    /// Gives its memory back; its bytes are nowhere, or on disk.
    pub(super) fn leave_memory(&self) {
        drop(self.take());
    }

    /// Lets clients find it there, and gives back the memory it had.
    pub(crate) fn lay(&self, extent: Extent) {
        let former = self.take();
        self.table.writer.borrow_mut().set_sealed(self.entry, extent.offset());
        self.keep(extent);
        drop(former);
    }

    /// From now on no client can pin it; who has, shows in the next scan.
    pub(crate) fn hide(&self) {
        self.table.writer.borrow_mut().hide(self.entry);
    }

    /// It stays where it is after all.
    pub(crate) fn show(&self) {
        self.table.writer.borrow_mut().show(self.entry);
    }

    /// Clients learn that it is on disk only.
    pub(super) fn show_spilled(&self) {
        self.table.writer.borrow_mut().set_spilled(self.entry);
    }

    /// Peers that read it where it is see that they must ask.
    fn revoke(&self) {
        self.table.stamps.borrow_mut().revoke(&self.id());
    }

    /// No client finds it any more, and no peer.
    pub(super) fn unlist(&self) {
        self.revoke();
        self.table.writer.borrow_mut().remove(self.entry);
    }

    /// Where it is on disk, if it is there.
    pub(crate) fn on_disk(&self) -> Option<Place> {
        self.rare.get()?.on_disk.get()
    }

    pub(crate) fn set_on_disk(&self, place: Option<Place>) {
        self.rare.get_or_init(Box::default).on_disk.set(place);
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
        let Snapshot { id, data_len, metadata_len, .. } = self.snapshot();
        wire::ObjectInfo {
            id,
            name: Some(self.name().to_owned()).filter(|name| !name.is_empty()),
            state,
            rights: self.rights(),
            data_len,
            metadata_len,
            pins: self.pins() + pins,
            age_ms: now.saturating_sub(self.created),
            construction_s: self.rare.get().map_or(0, |rare| rare.construction_s.get()),
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.leave_memory();
        self.table.writer.borrow_mut().free(self.entry);
    }
}

/// Keeps an object's bytes in memory, where they are.
pub(crate) struct Pin(Rc<Replica>);

impl Pin {
    /// Pins an object that is in memory.
    pub(crate) fn new(replica: &Rc<Replica>) -> Option<Self> {
        if !replica.in_memory() {
            return None;
        }
        replica.pins.set(replica.pins.get() + 1);
        replica.touch();
        Some(Self(Rc::clone(replica)))
    }

    /// The object.
    pub(crate) fn replica(&self) -> &Rc<Replica> {
        &self.0
    }

    /// The bytes.
    pub(crate) fn run(&self) -> Run {
        self.0.run().expect("what is pinned stays in memory")
    }

    /// Where a client finds it.
    pub(crate) fn span(&self) -> Span {
        self.snapshot().span()
    }
}

impl std::ops::Deref for Pin {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        &self.0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.set(self.pins.get() - 1);
    }
}
