//! The objects of this node and the memory for them: how much each user has, and how room is made.
//!
//! Owns [`Store`]. Engine thread only. [`room`] finds memory for a new object, [`spilling`] writes
//! objects to disk and reads them back, [`compaction`] moves objects together, [`quotas`] counts what
//! each user and client holds, [`regions`] finds memory for regions, and [`holding`] tells what a full
//! store holds and which clients have it pinned. Changes are noted in the *outbox*, from which the
//! directory takes them at the end of the turn.

pub(crate) mod compaction;
mod holding;
pub(crate) mod quotas;
pub(crate) mod regions;
mod report;
pub(crate) mod room;
pub(crate) mod spilling;

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::ControlFlow;
use std::rc::{Rc, Weak};
use std::time::Instant;

use plasmon::{Error, NodeId, ObjectId};

use self::quotas::Quotas;
use self::regions::Regions;
use self::room::Room;
use self::spilling::{Failing, Restoring};
use crate::kernel::random::HashMap;
use crate::kernel::{ClientKey, Kernel};
use crate::memory::{Arena, Domain};
use crate::net::frame::{Holding, Withdrawal};
use crate::net::network::Network;
use crate::object::{DEEDS, FastPins, Head, Held, NotSealed, Replica, Role, Sealing, Table};
use crate::spill::SpillStore;

/// The clients that read objects in place, without telling the engine.
pub(crate) trait Readers {
    /// Adds the pins that clients have set without the engine.
    fn fast_pins(&self, fast: &mut FastPins);
    /// Whether a client has read an object without the engine since the last call.
    fn take_accessed(&self, replica: &Replica) -> bool;
    /// Calls `see` for every pin of every client, with that client, until `see` breaks.
    fn each_pin(&self, see: &mut dyn FnMut(ClientKey, Pinned<'_>) -> ControlFlow<()>) -> ControlFlow<()>;
    /// Describes a client for people.
    fn describe(&self, client: ClientKey) -> String;
}

/// Something that a client has pinned.
pub(crate) enum Pinned<'a> {
    /// A replica, with a pin that the engine counts.
    Counted(&'a Rc<Replica>),
    /// An entry of a table, with a pin that the client has set without the engine. There may be no
    /// such entry.
    Entry(Domain, u32),
}

/// The pins that are held for other nodes.
pub(crate) trait Lessor {
    /// Calls `see` for every object that is pinned for another node, with that node, until `see` breaks.
    fn each_lease(&self, see: &mut dyn FnMut(NodeId, &Rc<Replica>) -> ControlFlow<()>) -> ControlFlow<()>;
}

/// A change of this node's objects.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// The node holds an object from now on.
    Publish(Holding),
    /// The node does not hold an object any more.
    Unpublish { id: ObjectId, how: Withdrawal },
}

/// The objects of this node and the memory for them.
pub(crate) struct Store {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) network: Rc<Network>,
    pub(crate) arena: RefCell<Arena>,
    pub(crate) objects: RefCell<Table>,
    pub(crate) quotas: RefCell<Quotas>,
    pub(crate) room: Room,
    pub(crate) regions: Regions,
    /// The files to which primaries go when memory is short.
    spill: Option<SpillStore>,
    spill_failure: RefCell<Option<Failing>>,
    /// Time at which the disk was last looked at.
    disk_looked: Cell<Option<Instant>>,
    restoring: RefCell<Restoring>,
    /// Objects on disk whose bytes were found damaged in parts, with their lives.
    unreadable: RefCell<HashMap<ObjectId, (u64, Error)>>,
    pub(crate) readers: Rc<dyn Readers>,
    /// The leases of this node. The value is set once, by the room above that has the leases.
    pub(crate) lessor: OnceCell<Weak<dyn Lessor>>,
    outbox: RefCell<Vec<Change>>,
    /// Whether no other member was ever seen. Then no node is to be told of changes.
    solo: Cell<bool>,
    /// When an object was last dropped here because another node has put one in its place.
    pub(crate) succeeded: Cell<Option<Instant>>,
}

impl Store {
    pub(crate) fn new(
        kernel: &Rc<Kernel>,
        network: &Rc<Network>,
        arena: Arena,
        objects: Table,
        spill: Option<SpillStore>,
        readers: Rc<dyn Readers>,
    ) -> Self {
        let quotas = Quotas::new(kernel.config.user_quota, kernel.config.client_quota);
        Self {
            kernel: Rc::clone(kernel),
            network: Rc::clone(network),
            arena: RefCell::new(arena),
            objects: RefCell::new(objects),
            quotas: RefCell::new(quotas),
            room: Room::default(),
            regions: Regions::default(),
            spill,
            spill_failure: RefCell::default(),
            disk_looked: Cell::default(),
            restoring: RefCell::default(),
            unreadable: RefCell::default(),
            readers,
            lessor: OnceCell::new(),
            outbox: RefCell::default(),
            solo: Cell::new(true),
            succeeded: Cell::default(),
        }
    }

    /// Seals an object on this node: waiters wake, and the directory learns of it.
    ///
    /// # Errors
    /// When there is no room for the object in the table of clients.
    pub(crate) fn seal(&self, new: Sealing) -> Result<Rc<Replica>, Error> {
        let replica = self.objects.borrow_mut().seal(new)?;
        self.publish(Holding::of(&replica));
        Ok(replica)
    }

    /// Seals an object, guarded or not, in the place of another of its id, if there is one. The memory of
    /// that one becomes free with its last pin. `replaces` says that the object takes the place of one that
    /// need not be here.
    ///
    /// # Errors
    /// As [`Store::seal`], with what was to be sealed; the other object stays then.
    pub(crate) fn supersede(
        &self,
        new: Sealing,
        (is_guarded, replaces): (bool, bool),
    ) -> Result<Rc<Replica>, NotSealed> {
        let (replica, former) = self.objects.borrow_mut().supersede(new, (is_guarded, replaces))?;
        if let Some(former) = former {
            self.quotas.borrow_mut().give_back(&former);
            self.forget_on_disk(&former);
        }
        self.publish(Holding::of(&replica));
        Ok(replica)
    }

    /// Seals an object that a client has written on this node, as [`Store::seal`] does.
    ///
    /// # Errors
    /// When there is no room for the object in the table of clients.
    pub(crate) fn seal_creation(&self, id: &ObjectId, digest: u64) -> Result<Rc<Replica>, Error> {
        let now = self.kernel.clock.unix_ms();
        let replica = self.objects.borrow_mut().seal_creation(id, digest, now)?;
        self.publish(Holding::of(&replica));
        Ok(replica)
    }

    /// Gives a replica a role, and has its keepers told. They are told of an unchanged role as
    /// well, because they may have missed it.
    pub(crate) fn set_role(&self, replica: &Replica, role: Role) {
        self.objects.borrow_mut().set_role(&replica.id(), role);
        self.publish(Holding::of(replica));
    }

    /// Seals the deed of a name: an object without bytes, which no user sees.
    ///
    /// # Errors
    /// As [`Store::seal`].
    pub(crate) fn seal_deed(&self, id: ObjectId, life: u64) -> Result<Rc<Replica>, Error> {
        let head = Head {
            id,
            life,
            user: DEEDS,
            rights: plasmon::Rights::Private,
            data_len: 0,
            metadata_len: 0,
            digest: 0,
            copies: 0,
            expires: 0,
            owned: false,
            name: Box::default(),
        };
        let created = self.kernel.clock.unix_ms();
        self.seal(Sealing { head, role: Role::Primary, creator: None, bytes: Held::Nowhere, created })
    }

    /// Removes an object from this node, after a deletion by a user or by the cluster. Its memory becomes
    /// free with its last pin.
    pub(crate) fn remove(&self, id: &ObjectId) -> Option<Rc<Replica>> {
        let replica = self.objects.borrow_mut().remove(id)?;
        if replica.is_guarded() {
            self.succeeded.set(Some(self.kernel.clock.now()));
        }
        self.quotas.borrow_mut().give_back(&replica);
        self.forget_on_disk(&replica);
        Some(replica)
    }

    /// Notes that this node holds an object from now on.
    fn publish(&self, holding: Holding) {
        self.note(Change::Publish(holding));
    }

    /// Notes that this node does not hold an object any more.
    pub(crate) fn unpublish(&self, id: ObjectId, how: Withdrawal) {
        self.note(Change::Unpublish { id, how });
    }

    /// Puts a change into the outbox. A node that is alone keeps no changes, because at its start it may
    /// take over millions of objects in one turn.
    fn note(&self, change: Change) {
        if !self.solo.get() {
            self.outbox.borrow_mut().push(change);
        }
    }

    /// Sets whether no other member was ever seen.
    pub(crate) fn set_solo(&self, solo: bool) {
        self.solo.set(solo);
        self.objects.borrow_mut().shared.set_solo(solo);
    }

    /// Takes the changes since the last call, in their order.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        self.outbox.take()
    }
}
