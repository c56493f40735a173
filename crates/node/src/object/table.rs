//! The object table: id to replica or creation, the waiters, and the objects that may leave memory.
//!
//! Owns all objects of the node. Engine thread only. Invariant: an id is in at most one of two states, sealed
//! or being created; a creation that replaces stands beside them.
//!
//! Objects leave memory in this order: cached replicas, then primaries that are on disk already (*clean*),
//! and in cache mode any primary that is not a file's; among each kind by CLOCK. A pinned object does not
//! leave. Clients pin by themselves, so leaving takes three steps within one turn: [`Table::propose`] hides
//! candidates in the clients' tables, the engine scans the clients' pins, and [`Table::evict`] drops the
//! candidates without pins. The scan sees a client that pinned before the hiding; a client that pins after it
//! finds its pin invalid.

mod happening;
mod replacing;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use futures::channel::oneshot;
use plasmon::wire::Event;
use plasmon::wire::files::parts_of;
use plasmon::{Error, ObjectId};

pub(crate) use self::happening::Happening;
pub(crate) use self::replacing::NotSealed;
use self::replacing::offset_of;
use super::ring::Ring;
use super::shared::{DomainTable, SharedTables};
use super::stamps::Stamps;
use super::{Head, Held, Pin, Replica, Role, Sealing};
use crate::kernel::ClientKey;
use crate::kernel::index::{self, Index};
use crate::kernel::random::HashMap;
use crate::memory::{Domain, Extent, Home};
use crate::spill::Place;

/// An object that a client is writing.
pub(crate) struct Creation {
    pub(crate) head: Head,
    pub(crate) extent: Extent,
    /// The client, by the engine's key for its connection.
    pub(crate) client: ClientKey,
    /// Whether the client sends the data with its seal, so that the engine writes it.
    pub(crate) inline: bool,
    /// When the creation began, in milliseconds since 1970.
    pub(crate) created: u64,
    /// Whether the object is to take the place of what has its id.
    pub(crate) replaces: bool,
}

/// Why an id cannot be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The id is sealed here.
    Sealed,
    /// A client is writing the object.
    Creating {
        /// The client's key.
        client: ClientKey,
    },
}

/// Treatment of primaries when memory is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// Primaries stay.
    Memory,
    /// Primaries go to disk.
    Disk,
    /// Primaries are dropped, the least recently used first.
    Cache,
}

/// Number of pins that clients have set by themselves, by entry.
#[derive(Default)]
pub(crate) struct FastPins(HashMap<(Domain, u32), u32>);

impl FastPins {
    pub(crate) fn add(&mut self, domain: Domain, entry: u32) {
        *self.0.entry((domain, entry)).or_default() += 1;
    }

    pub(crate) fn of(&self, replica: &Replica) -> u32 {
        self.0.get(&(replica.domain(), replica.entry())).copied().unwrap_or(0)
    }
}

/// All objects of the node.
pub(crate) struct Table {
    keeping: Keeping,
    sealed: Index<Rc<Replica>>,
    creating: HashMap<ObjectId, Creation>,
    /// Objects that clients write to take the place of others. They stand beside the sealed objects of their
    /// ids.
    replacing: HashMap<(ClientKey, ObjectId), Creation>,
    waiting: HashMap<ObjectId, Vec<oneshot::Sender<()>>>,
    /// Objects that were removed while the engine had them pinned. They are doomed as long as a pin remains.
    doomed: Vec<Weak<Replica>>,
    /// Removed objects that clients may still have pinned.
    limbo: Vec<Rc<Replica>>,
    /// Whether an object came into limbo since the last scan.
    limbo_grew: bool,
    /// Rings of objects in memory, by what may become of the objects.
    cached: Ring,
    clean: Ring,
    primary: Ring,
    /// The tables that clients read by themselves.
    pub(crate) shared: SharedTables,
    /// The stamps that peers read to see whether an object is where it was.
    pub(crate) stamps: Rc<RefCell<Stamps>>,
    in_memory: InMemory,
    /// Number of sealed objects that stay, in memory or not, and their bytes; without deeds.
    staying: (u64, u64),
    evicted: u64,
    /// Deeds that were removed since the last call of [`Table::take_ended_deeds`].
    ended_deeds: Vec<ObjectId>,
    /// Events that were not told yet; `None` while nobody watches.
    pub(crate) happenings: Option<Vec<Happening>>,
}

/// Numbers of bytes in memory: of sealed objects by role, and of objects that are being created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InMemory {
    pub(crate) primary: u64,
    pub(crate) kept: u64,
    pub(crate) cached: u64,
    pub(crate) unsealed: u64,
}

impl Table {
    pub(crate) fn new(keeping: Keeping, home: Rc<Home>) -> Self {
        let stamps = Rc::new(RefCell::new(Stamps::new()));
        Self {
            keeping,
            sealed: Index::default(),
            creating: HashMap::default(),
            replacing: HashMap::default(),
            waiting: HashMap::default(),
            doomed: Vec::new(),
            limbo: Vec::new(),
            limbo_grew: false,
            cached: Ring::default(),
            clean: Ring::default(),
            primary: Ring::default(),
            shared: SharedTables::new(home, Rc::clone(&stamps)),
            stamps,
            in_memory: InMemory::default(),
            staying: (0, 0),
            evicted: 0,
            ended_deeds: Vec::new(),
            happenings: None,
        }
    }

    /// Returns the treatment of primaries when memory is short.
    pub(crate) fn keeping(&self) -> Keeping {
        self.keeping
    }

    /// The sealed object of this id.
    pub(crate) fn get(&self, id: &ObjectId) -> Option<&Rc<Replica>> {
        self.sealed.get(id)
    }

    /// The reason why this id cannot be created, if there is one.
    pub(crate) fn conflict(&self, id: &ObjectId) -> Option<Conflict> {
        if self.sealed.get(id).is_some() {
            return Some(Conflict::Sealed);
        }
        self.creating.get(id).map(|creation| Conflict::Creating { client: creation.client })
    }

    /// Enters a creation; the caller has checked for a [`Conflict`].
    pub(crate) fn begin(&mut self, creation: Creation) {
        self.in_memory.unsealed += creation.head.len();
        self.creating.insert(creation.head.id, creation);
    }

    /// The creation of this id.
    pub(crate) fn creation(&self, id: &ObjectId) -> Option<&Creation> {
        self.creating.get(id)
    }

    /// All creations, but for those that are to replace objects.
    pub(crate) fn creations(&self) -> impl Iterator<Item = &Creation> {
        self.creating.values()
    }

    /// Removes and returns a creation, which is sealed next or given up.
    pub(crate) fn end(&mut self, id: &ObjectId) -> Option<Creation> {
        let creation = self.creating.remove(id)?;
        self.in_memory.unsealed -= creation.head.len();
        Some(creation)
    }

    /// Gives up every creation of a client that has gone.
    pub(crate) fn end_all(&mut self, client: ClientKey) -> Vec<Creation> {
        let theirs = |creation: &Creation| creation.client == client;
        let ids: Vec<_> = self.creating.values().filter(|one| theirs(one)).map(|one| one.head.id).collect();
        let beside: Vec<_> = self.replacing.keys().filter(|(theirs, _)| *theirs == client).copied().collect();
        let mut ended: Vec<_> = ids.iter().filter_map(|id| self.end(id)).collect();
        ended.extend(beside.iter().filter_map(|(_, id)| self.end_replacing(client, id)));
        ended
    }

    /// Makes an object immutable and visible, and wakes the tasks that wait for it.
    ///
    /// # Errors
    /// When there is no room for the object in the table of clients.
    pub(crate) fn seal(&mut self, new: Sealing) -> Result<Rc<Replica>, Error> {
        let (table, entry) = self.shared.enter(&new.head, offset_of(&new.bytes), false)?;
        Ok(self.admit(new, table, entry, Happening::sealed))
    }

    /// Wakes the tasks that wait for an object, as a seal does.
    pub(crate) fn wake(&mut self, id: &ObjectId) {
        for waiter in self.waiting.remove(id).into_iter().flatten() {
            // The task may have given up waiting.
            let _ = waiter.send(());
        }
    }

    /// Seals a creation as [`Table::seal`] does. If that fails, the creation stays.
    ///
    /// # Errors
    /// When there is no room for the object in the table of clients.
    ///
    /// # Panics
    /// When there is no such creation.
    pub(crate) fn seal_creation(
        &mut self,
        id: &ObjectId,
        digest: u64,
        now: u64,
    ) -> Result<Rc<Replica>, Error> {
        let creation = self.creating.get_mut(id).expect("the caller has seen it");
        creation.head.digest = digest;
        let (table, entry) = self.shared.enter(&creation.head, Some(creation.extent.offset()), false)?;
        let Creation { head, extent, client, created, .. } = self.end(id).expect("just seen");
        let bytes = Held::Memory(extent);
        let new = Sealing { head, role: Role::Primary, creator: Some(client), bytes, created: now };
        let replica = self.admit(new, table, entry, Happening::sealed);
        replica.took(Duration::from_millis(now.saturating_sub(created)));
        Ok(replica)
    }

    /// Enters a sealed object, and tells those who watch as `tell` says.
    fn admit(
        &mut self,
        new: Sealing,
        table: Rc<DomainTable>,
        entry: u32,
        tell: fn(&Replica) -> Event,
    ) -> Rc<Replica> {
        let id = new.head.id;
        let replica = self.sealed.insert_with(&id, |hash| Replica::new(new, table, entry, hash));
        let replica = Rc::clone(replica);
        if replica.in_memory() {
            *self.bytes_of(replica.role()) += replica.len();
            self.enter_ring(&replica);
        }
        self.count_staying(&replica, replica.role(), 1);
        self.happened(&replica, tell);
        self.wake(&id);
        replica
    }

    fn enter_ring(&mut self, replica: &Rc<Replica>) {
        match (replica.role(), replica.on_disk(), self.keeping) {
            (Role::Cached, ..) => self.cached.enter(replica),
            (_, Some(_), _) => self.clean.enter(replica),
            // With this mode, nothing takes a primary out of memory.
            (_, None, Keeping::Memory) => {}
            // Files would lose bytes if their objects were dropped.
            (_, None, Keeping::Cache) if parts_of(&replica.id()).is_some() => {}
            (_, None, _) => self.primary.enter(replica),
        }
    }

    /// Returns a future that ends when this id is sealed here.
    pub(crate) fn wait(&mut self, id: ObjectId) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.entry(id).or_default().push(sender);
        receiver
    }

    /// Forgets waiters that have gone, and replicas that were dropped.
    pub(crate) fn prune(&mut self) {
        self.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.is_canceled());
            !waiters.is_empty()
        });
        self.cached.prune();
        self.clean.prune();
        self.primary.prune();
        self.doomed.retain(|replica| replica.strong_count() > 0);
    }

    /// Numbers of bytes in memory.
    pub(crate) fn in_memory(&self) -> InMemory {
        self.in_memory
    }

    /// Number and bytes of sealed objects that stay, and number of objects that are being written.
    pub(crate) fn staying(&self) -> (u64, u64, usize) {
        (self.staying.0, self.staying.1, self.creating.len() + self.replacing.len())
    }

    fn count_staying(&mut self, replica: &Replica, role: Role, change: i64) {
        if role.stays() && !replica.is_deed() {
            self.staying.0 = self.staying.0.wrapping_add_signed(change);
            self.staying.1 = self.staying.1.wrapping_add_signed(change * replica.len() as i64);
        }
    }

    /// Gives the replica of this id another role.
    pub(crate) fn set_role(&mut self, id: &ObjectId, role: Role) -> Option<Rc<Replica>> {
        let replica = Rc::clone(self.sealed.get(id)?);
        let before = replica.role();
        self.count_staying(&replica, before, -1);
        self.count_staying(&replica, role, 1);
        replica.set_role(role);
        if replica.in_memory() {
            *self.bytes_of(before) -= replica.len();
            *self.bytes_of(role) += replica.len();
        }
        if before.stays() != role.stays() && replica.in_memory() {
            if !role.stays() {
                // The replica may be in any ring from before. An object in two rings would be evicted twice.
                for ring in [&mut self.cached, &mut self.clean, &mut self.primary] {
                    ring.forget(&replica);
                }
            }
            self.enter_ring(&replica);
        }
        Some(replica)
    }

    fn bytes_of(&mut self, role: Role) -> &mut u64 {
        match role {
            Role::Primary => &mut self.in_memory.primary,
            Role::Kept => &mut self.in_memory.kept,
            Role::Cached => &mut self.in_memory.cached,
        }
    }

    /// Removes a sealed object. Its memory becomes free with its last pin: see [`Table::reap`].
    pub(crate) fn remove(&mut self, id: &ObjectId) -> Option<Rc<Replica>> {
        let replica = self.remove_untold(id)?;
        self.happened(&replica, Happening::deleted);
        Some(replica)
    }

    /// Removes a sealed object as [`Table::remove`] does, and tells nobody.
    fn remove_untold(&mut self, id: &ObjectId) -> Option<Rc<Replica>> {
        let replica = self.sealed.remove(id)?;
        self.take_out(&replica);
        if replica.pins() > 0 {
            self.doomed.push(Rc::downgrade(&replica));
        }
        replica.unlist();
        self.limbo.push(Rc::clone(&replica));
        self.limbo_grew = true;
        Some(replica)
    }

    /// Subtracts a removed object from the counts.
    fn take_out(&mut self, replica: &Replica) {
        if replica.in_memory() {
            *self.bytes_of(replica.role()) -= replica.len();
        }
        self.count_staying(replica, replica.role(), -1);
        self.ended_deeds.extend(replica.is_deed().then(|| replica.id()));
    }

    /// Number of removed objects that clients may still have pinned.
    pub(crate) fn limbo(&self) -> usize {
        self.limbo.len()
    }

    /// Whether an object came into limbo since the last scan.
    pub(crate) fn limbo_grew(&self) -> bool {
        self.limbo_grew
    }

    /// Drops the removed objects without pins, according to a scan that began after their removal. Returns
    /// the number of bytes that this frees; `None` if it frees none.
    pub(crate) fn reap(&mut self, fast: &FastPins) -> Option<u64> {
        self.limbo_grew = false;
        let mut freed = None;
        for replica in std::mem::take(&mut self.limbo) {
            if fast.of(&replica) > 0 {
                self.limbo.push(replica);
            } else {
                let free = replica.pins() == 0 && replica.in_memory();
                freed = if free { Some(freed.unwrap_or(0) + replica.len()) } else { freed };
            }
        }
        freed
    }

    /// Returns objects that could leave memory until `bytes` are free. They are hidden from clients: the
    /// caller scans their pins, and calls [`Table::evict`].
    pub(crate) fn propose(
        &mut self,
        bytes: u64,
        held: impl Fn(&Replica) -> bool,
        accessed: impl Fn(&Replica) -> bool,
    ) -> Vec<Rc<Replica>> {
        // Empty objects free no byte. A new empty object gets the place of an object with at least one
        // byte.
        let bytes = bytes.max(1);
        let mut left = bytes;
        let mut enough = |replica: &Rc<Replica>| {
            left = left.saturating_sub(replica.len());
            left == 0
        };
        let sealed = &self.sealed;
        let read_lately = |replica: &Rc<Replica>| accessed(replica) | replica.take_touched() | held(replica);
        let belongs = |replica: &Rc<Replica>| holds(sealed, replica) && replica.in_memory();
        let mut proposed =
            self.cached.take(|one| belongs(one) && one.role() == Role::Cached, read_lately, &mut enough);
        if sum(&proposed) < bytes {
            let clean = |one: &Rc<Replica>| belongs(one) && one.on_disk().is_some();
            proposed.extend(self.clean.take(clean, read_lately, &mut enough));
        }
        if sum(&proposed) < bytes && self.keeping == Keeping::Cache {
            proposed.extend(self.primary.take(belongs, read_lately, &mut enough));
        }
        for replica in &proposed {
            replica.hide();
        }
        proposed
    }

    /// Takes proposed objects without pins out of memory. Returns with each whether it is gone from this
    /// node; otherwise it is on disk.
    pub(crate) fn evict(&mut self, proposed: Vec<Rc<Replica>>, fast: &FastPins) -> Vec<(Rc<Replica>, bool)> {
        let mut evicted = Vec::new();
        for replica in proposed {
            if fast.of(&replica) > 0 {
                replica.show();
                self.enter_ring(&replica);
                continue;
            }
            self.evicted += 1;
            let gone = replica.role() == Role::Cached || replica.on_disk().is_none();
            if gone {
                self.sealed.remove(&replica.id());
                self.take_out(&replica);
                self.happened(&replica, Happening::deleted);
                replica.unlist();
                replica.leave_memory();
            } else {
                *self.bytes_of(replica.role()) -= replica.len();
                replica.leave_memory();
                replica.show_spilled();
            }
            evicted.push((replica, gone));
        }
        evicted
    }

    /// Takes primaries that are in memory only, of `bytes` in all and none longer than `longest`, least
    /// recently read first, to be written to disk. They keep their role and place, and are pinned.
    pub(crate) fn take_dirty(
        &mut self,
        bytes: u64,
        longest: u64,
        accessed: impl Fn(&Replica) -> bool,
    ) -> Vec<Pin> {
        let mut left = bytes.max(1);
        let enough = |replica: &Rc<Replica>| {
            left = left.saturating_sub(replica.len().max(1));
            left == 0
        };
        let sealed = &self.sealed;
        let dirty = |one: &Rc<Replica>| {
            holds(sealed, one) && one.role().stays() && one.in_memory() && one.on_disk().is_none()
        };
        let stays =
            |replica: &Rc<Replica>| replica.len() > longest || accessed(replica) | replica.take_touched();
        let taken = self.primary.take(dirty, stays, enough);
        taken.iter().filter_map(Pin::new).collect()
    }

    /// Notes that a primary has been written to disk; returns whether it is still wanted there.
    pub(crate) fn written(&mut self, replica: &Rc<Replica>, place: Place) -> bool {
        if !holds(&self.sealed, replica) || !replica.role().stays() {
            return false;
        }
        replica.set_on_disk(Some(place));
        self.clean.enter(replica);
        true
    }

    /// Notes that a primary could not be written to disk, so that it stays dirty.
    pub(crate) fn not_written(&mut self, replica: &Rc<Replica>) {
        self.primary.enter(replica);
    }

    /// Notes that an object that was on disk only is in memory again.
    pub(crate) fn restored(&mut self, replica: &Rc<Replica>, extent: Extent) {
        if !holds(&self.sealed, replica) || replica.in_memory() {
            return;
        }
        replica.lay(extent);
        replica.touch();
        *self.bytes_of(replica.role()) += replica.len();
        self.enter_ring(replica);
    }

    /// Whether this replica itself, not another of its id, is in the table.
    pub(crate) fn has(&self, replica: &Rc<Replica>) -> bool {
        holds(&self.sealed, replica)
    }

    /// Number of sealed objects.
    pub(crate) fn len(&self) -> usize {
        self.sealed.len()
    }

    /// All sealed objects.
    pub(crate) fn sealed(&self) -> impl Iterator<Item = &Rc<Replica>> {
        self.sealed.iter()
    }

    /// All sealed objects of one of [`Table::SHARDS`] shares of the table.
    pub(crate) fn sealed_in(&self, shard: usize) -> impl Iterator<Item = &Rc<Replica>> {
        self.sealed.shard(shard)
    }

    /// Number of shares of the table, for walks that take one share at a time.
    pub(crate) const SHARDS: usize = index::SHARDS;

    /// Deleted objects that are still pinned.
    pub(crate) fn doomed(&self) -> impl Iterator<Item = Rc<Replica>> {
        let counted = self.doomed.iter().filter_map(Weak::upgrade).filter(|replica| replica.pins() > 0);
        let limbo = self.limbo.iter().filter(|replica| replica.pins() == 0).cloned();
        counted.chain(limbo)
    }

    /// Returns the object in an entry that a client named as pinned; `None` if the object was removed.
    pub(crate) fn in_entry(&self, domain: Domain, entry: u32) -> Option<&Rc<Replica>> {
        let replica = self.sealed.get(&self.shared.id_in(domain, entry)?)?;
        (replica.entry() == entry && replica.domain() == domain).then_some(replica)
    }

    /// Takes the deeds that were removed since the last call. A deed of the same id may be there by now.
    pub(crate) fn take_ended_deeds(&mut self) -> Vec<ObjectId> {
        std::mem::take(&mut self.ended_deeds)
    }

    /// Number of objects taken out of memory to make room so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }
}

/// Whether this replica itself, not another of its id, is in the table.
fn holds(sealed: &Index<Rc<Replica>>, replica: &Rc<Replica>) -> bool {
    sealed.get(&replica.id()).is_some_and(|held| Rc::ptr_eq(held, replica))
}

fn sum(proposed: &[Rc<Replica>]) -> u64 {
    proposed.iter().map(|replica| replica.len().max(1)).sum()
}
