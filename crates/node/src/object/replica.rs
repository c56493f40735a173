//! Replicas: one object's bytes on this node, and the pins that keep them in memory. A replica owns its entry
//! in the clients' table, and its memory. Engine thread only. Invariant: the bytes of a pinned object stay in
//! their place.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use plasmon::shared::Snapshot;
use plasmon::wire::{AtMost, MAX_NAME_BYTES, SHOWN_METADATA_BYTES, Span, codes, record};
use plasmon::{ObjectId, Rights, Version, wire};

use super::shared::DomainTable;
use super::{DEEDS, Ownership};
use crate::kernel::ClientKey;
use crate::kernel::index::Indexed;
use crate::memory::{Domain, Extent, Run};
use crate::spill::Place;

/// Limit of an object's data in bytes: more than any arena has, and so small that lengths can be added.
const MAX_DATA_BYTES: usize = 1 << 62;

record! {
    /// The description of an object, known before its bytes are there and the same on every node that holds
    /// it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct Head {
        /// The object's id.
        pub(crate) id: ObjectId,
        /// The life of the id, drawn when the object is created.
        pub(crate) life: u64,
        /// The user who created the object.
        pub(crate) user: u32,
        /// The rights of other users.
        pub(crate) rights: Rights,
        /// Number of bytes of data.
        pub(crate) data_len: u64 as AtMost<MAX_DATA_BYTES>,
        /// Number of bytes of metadata, which lie behind the data.
        pub(crate) metadata_len: u32,
        /// XXH3 of data and metadata, computed at the seal; 0 for none.
        pub(crate) digest: u64,
        /// Number of nodes that are to keep the object; 0 and 1 both mean one.
        pub(crate) copies: u16,
        /// When the object is to be deleted, in milliseconds since 1970; 0 for never.
        pub(crate) expires: u64,
        /// Whether the object ends with the client that created it.
        pub(crate) owned: bool,
        /// The name behind the id; empty when there is none.
        pub(crate) name: Box<str> as AtMost<MAX_NAME_BYTES>,
    }
}

impl Head {
    /// Number of bytes that the object takes in the arena.
    pub(crate) fn len(&self) -> u64 {
        self.data_len + u64::from(self.metadata_len)
    }

    /// The object's ownership.
    pub(crate) fn ownership(&self) -> Ownership {
        Ownership { user: self.user, rights: self.rights }
    }

    /// The domain that the object's memory belongs to.
    pub(crate) fn domain(&self) -> Domain {
        if self.rights.is_private() { Domain::Private(self.user) } else { Domain::Shared }
    }

    /// Whether a user may see the object.
    pub(crate) fn visible_to(&self, user: u32) -> bool {
        self.ownership().visible_to(user)
    }
}

codes! {
    /// Why this node holds an object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Role: u8 {
        /// The object was created here. Except in cache mode, only its users delete it.
        0 Primary,
        /// The object was fetched from another node; it is dropped when room is needed.
        1 Cached,
        /// The object was brought here to be kept, as one of several replicas. It is kept like a primary,
        /// but the primary is on another node.
        2 Kept,
    }
}

impl Role {
    /// Whether eviction does not drop an object of this role.
    pub(crate) fn stays(self) -> bool {
        self != Self::Cached
    }

    /// The name of the role, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Kept => "kept",
            Self::Cached => "cached",
        }
    }
}

/// The parts of which a replica is made.
pub(crate) struct Sealing {
    pub(crate) head: Head,
    pub(crate) role: Role,
    /// The client whose quota the object counts against.
    pub(crate) creator: Option<ClientKey>,
    pub(crate) bytes: Held,
    /// Time at which the object came to this node, in milliseconds since 1970.
    pub(crate) created: u64,
}

/// Place of a replica's bytes when it begins.
pub(crate) enum Held {
    Memory(Extent),
    /// On disk, where a former daemon left them.
    Disk(Place),
    /// Nowhere: the object is a deed, which has no bytes.
    Nowhere,
}

/// A sealed object of this node: in memory, on disk, or both.
///
/// There may be ten million replicas. The id, creator, lengths, digest and offset of one are in its entry
/// of the table that clients read, and nowhere else. Entry and memory become free when the replica is
/// dropped.
pub(crate) struct Replica {
    table: Rc<DomainTable>,
    pub(crate) life: u64,
    /// Time at which the object came to this node, in milliseconds since 1970.
    pub(crate) created: u64,
    /// The client whose quota the replica counts against.
    pub(crate) creator: Cell<Option<ClientKey>>,
    rare: OnceCell<Box<Rare>>,
    /// The number of the replica's entry in the table of its domain.
    entry: u32,
    /// The index's hash of the id, so that the index can grow without reading the entry.
    hash: u32,
    pins: Cell<u32>,
    role: Cell<Role>,
    /// Whether the place in the entry is an extent that belongs to this replica.
    in_memory: Cell<bool>,
    /// Whether the object was read since the clock hand last passed.
    touched: Cell<bool>,
    /// Whether every user may change the object.
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

/// Properties that most objects do not have.
#[derive(Default)]
struct Rare {
    name: Box<str>,
    on_disk: Cell<Option<Place>>,
    copies: Cell<u16>,
    expires: u64,
    owned: bool,
    construction_s: Cell<u32>,
    is_heir: Cell<bool>,
    is_guarded: Cell<bool>,
}

/// With the counts of an `Rc` and malloc's header a replica takes 80 bytes; the next larger size of malloc
/// is 96.
const _: () = assert!(size_of::<Replica>() <= 56);

impl Replica {
    /// Makes a replica of an object whose entry clients can find already.
    pub(super) fn new(sealing: Sealing, table: Rc<DomainTable>, entry: u32, hash: u32) -> Rc<Self> {
        let Sealing { head, role, creator, bytes, created } = sealing;
        let rare = OnceCell::new();
        if !head.name.is_empty() || head.copies > 1 || head.expires > 0 || head.owned {
            let (copies, expires, owned) = (Cell::new(head.copies), head.expires, head.owned);
            let name = head.name;
            rare.get_or_init(|| Box::new(Rare { name, copies, expires, owned, ..Rare::default() }));
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
            // A new object was not read yet; objects that were read stay longer.
            touched: Cell::new(false),
            open: head.rights == Rights::ReadWrite,
        };
        match bytes {
            Held::Memory(extent) => replica.keep(extent),
            Held::Disk(place) => replica.set_on_disk(Some(place)),
            Held::Nowhere => {}
        }
        Rc::new(replica)
    }

    /// The object's id.
    pub(crate) fn id(&self) -> ObjectId {
        self.table.writer.borrow().id(self.entry)
    }

    /// The number of the replica's entry in the table of its domain.
    pub(crate) fn entry(&self) -> u32 {
        self.entry
    }

    /// A copy of the replica's entry.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.table.writer.borrow().get(self.entry)
    }

    /// The name behind the id; empty when there is none.
    pub(crate) fn name(&self) -> &str {
        self.rare.get().map_or("", |rare| &rare.name)
    }

    /// Number of bytes of data and metadata.
    pub(crate) fn len(&self) -> u64 {
        self.snapshot().total_len()
    }

    /// The description of the object, the same on every node.
    pub(crate) fn head(&self) -> Head {
        let Snapshot { id, data_len, metadata_len, digest, uid, .. } = self.snapshot();
        Head {
            id,
            name: self.name().into(),
            life: self.life,
            user: uid,
            rights: self.rights(),
            data_len,
            metadata_len,
            digest,
            copies: self.copies(),
            expires: self.expires(),
            owned: self.is_owned(),
        }
    }

    /// Number of nodes that are to keep the object; 0 and 1 both mean one.
    pub(crate) fn copies(&self) -> u16 {
        self.rare.get().map_or(0, |rare| rare.copies.get())
    }

    pub(crate) fn set_copies(&self, copies: u16) {
        if copies.max(1) != self.copies().max(1) {
            self.rare.get_or_init(Box::default).copies.set(copies);
        }
    }

    /// Notes the time from creation to seal. Only whole seconds are kept, since few objects take that long.
    pub(super) fn took(&self, construction: Duration) {
        if construction.as_secs() > 0 {
            let seconds = u32::try_from(construction.as_secs()).unwrap_or(u32::MAX);
            self.rare.get_or_init(Box::default).construction_s.set(seconds);
        }
    }

    /// Time at which the object is to be deleted, in milliseconds since 1970; 0 for never.
    pub(crate) fn expires(&self) -> u64 {
        self.rare.get().map_or(0, |rare| rare.expires)
    }

    /// Whether the object ends with the client that created it, on the node of its primary.
    pub(crate) fn is_owned(&self) -> bool {
        self.rare.get().is_some_and(|rare| rare.owned)
    }

    /// The domain that the object's memory belongs to.
    pub(crate) fn domain(&self) -> Domain {
        self.table.domain
    }

    /// The user who alone sees the object; `None` if others see it.
    pub(crate) fn owner(&self) -> Option<u32> {
        match self.domain() {
            Domain::Shared => None,
            Domain::Private(uid) => Some(uid),
            Domain::Nobody => Some(DEEDS),
        }
    }

    /// Whether the object is the deed of a region or a service: it has no bytes, and no user sees it.
    pub(crate) fn is_deed(&self) -> bool {
        self.domain() == Domain::Private(DEEDS)
    }

    /// The rights of users other than the creator.
    pub(crate) fn rights(&self) -> Rights {
        match self.domain() {
            Domain::Private(_) | Domain::Nobody => Rights::Private,
            Domain::Shared if self.open => Rights::ReadWrite,
            Domain::Shared => Rights::Read,
        }
    }

    /// The object's ownership.
    pub(crate) fn ownership(&self) -> Ownership {
        Ownership { user: self.snapshot().uid, rights: self.rights() }
    }

    /// Whether a user may see the object.
    pub(crate) fn visible_to(&self, user: u32) -> bool {
        user == DEEDS || self.owner().is_none_or(|owner| owner == user)
    }

    /// Why this node holds the object.
    pub(crate) fn role(&self) -> Role {
        self.role.get()
    }

    pub(super) fn set_role(&self, role: Role) {
        self.role.set(role);
        if role != Role::Primary {
            self.set_heir(false);
        }
    }

    /// Whether this node is the primary because no other was left.
    pub(crate) fn is_heir(&self) -> bool {
        self.rare.get().is_some_and(|rare| rare.is_heir.get())
    }

    pub(crate) fn set_heir(&self, is_heir: bool) {
        if is_heir != self.is_heir() {
            self.rare.get_or_init(Box::default).is_heir.set(is_heir);
        }
    }

    /// Whether the object's bytes are in memory.
    pub(crate) fn in_memory(&self) -> bool {
        self.in_memory.get()
    }

    /// The object's bytes, if they are in memory. They stay there as long as the object is pinned.
    pub(crate) fn run(&self) -> Option<Run> {
        self.in_memory().then(|| {
            let seen = self.snapshot();
            self.table.home.run(seen.offset, seen.total_len())
        })
    }

    /// Takes over the extent to which the entry points.
    fn keep(&self, extent: Extent) {
        let offset = extent.leave();
        debug_assert_eq!(offset, self.snapshot().offset);
        self.in_memory.set(true);
    }

    /// Takes the memory away from the replica.
    fn take(&self) -> Option<Extent> {
        let run = self.run()?;
        self.revoke();
        self.in_memory.set(false);
        Some(self.table.home.extent(run.offset(), run.len()))
    }

    /// Frees the replica's memory; its bytes are then on disk or nowhere.
    pub(super) fn leave_memory(&self) {
        drop(self.take());
    }

    /// Moves the replica to an extent that has its bytes, and frees its former memory.
    pub(crate) fn lay(&self, extent: Extent) {
        let former = self.take();
        self.table.writer.borrow_mut().set_sealed(self.entry, extent.offset(), !self.is_guarded());
        self.keep(extent);
        drop(former);
    }

    /// Hides the object: from now on no client can pin it, and existing pins show in the next scan.
    pub(crate) fn hide(&self) {
        self.table.writer.borrow_mut().hide(self.entry);
    }

    /// Shows a hidden object again where it is, unless it is guarded.
    pub(crate) fn show(&self) {
        if !self.is_guarded() {
            self.table.writer.borrow_mut().show(self.entry);
        }
    }

    /// Shows clients that the object is on disk only, unless it is guarded.
    pub(super) fn show_spilled(&self) {
        self.table.writer.borrow_mut().set_spilled(self.entry, !self.is_guarded());
    }

    /// Whether the object may be replaced any moment, so that it is given only to those who have asked
    /// whether it is still there. It is hidden from clients then.
    pub(crate) fn is_guarded(&self) -> bool {
        self.rare.get().is_some_and(|rare| rare.is_guarded.get())
    }

    /// Guards the object, or gives it to everybody again. The caller has seen that it is in the table.
    pub(crate) fn guard(&self, is_guarded: bool) {
        if is_guarded == self.is_guarded() {
            return;
        }
        self.rare.get_or_init(Box::default).is_guarded.set(is_guarded);
        if is_guarded { self.hide() } else { self.show() }
    }

    /// Clears the object's stamp, so that peers that read the object in place see that they must ask.
    fn revoke(&self) {
        self.table.stamps.borrow_mut().revoke(&self.id());
    }

    /// Removes the object from the tables that clients and peers read.
    pub(super) fn unlist(&self) {
        self.revoke();
        self.table.writer.borrow_mut().remove(self.entry);
    }

    /// The object's place on disk, if its bytes are there.
    pub(crate) fn on_disk(&self) -> Option<Place> {
        self.rare.get()?.on_disk.get()
    }

    pub(crate) fn set_on_disk(&self, place: Option<Place>) {
        self.rare.get_or_init(Box::default).on_disk.set(place);
    }

    /// Number of pins that the engine counts, of clients and peers. Clients set pins by themselves too.
    pub(crate) fn pins(&self) -> u32 {
        self.pins.get()
    }

    /// Marks the object as used just now.
    pub(crate) fn touch(&self) {
        self.touched.set(true);
    }

    /// Whether the object was touched since the last call.
    pub(super) fn take_touched(&self) -> bool {
        self.touched.replace(false)
    }

    /// The object's row in a listing.
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
            version: Some(Version::from_number(self.life)),
            beginning: self.beginning(data_len, metadata_len),
        }
    }

    /// The beginning of the metadata, as a listing has it; empty if the object is not in memory.
    fn beginning(&self, data_len: u64, metadata_len: u32) -> Bytes {
        let mut bytes = vec![0; SHOWN_METADATA_BYTES.min(metadata_len as usize)];
        let read = bytes.is_empty() || self.run().is_some_and(|run| run.read(data_len, &mut bytes).is_ok());
        if read { bytes.into() } else { Bytes::new() }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.leave_memory();
        self.table.writer.borrow_mut().free(self.entry);
    }
}

/// A pin: it keeps an object's bytes in memory, where they are.
pub(crate) struct Pin(Rc<Replica>);

impl Pin {
    /// Pins an object; `None` if it is not in memory.
    pub(crate) fn new(replica: &Rc<Replica>) -> Option<Self> {
        if !replica.in_memory() {
            return None;
        }
        replica.pins.set(replica.pins.get() + 1);
        replica.touch();
        Some(Self(Rc::clone(replica)))
    }

    /// The pinned object.
    pub(crate) fn replica(&self) -> &Rc<Replica> {
        &self.0
    }

    /// The object's bytes.
    pub(crate) fn run(&self) -> Run {
        self.0.run().expect("what is pinned stays in memory")
    }

    /// Place at which a client finds the object.
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
