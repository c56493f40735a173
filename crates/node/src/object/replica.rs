//! One object's bytes on this node, and the pins that keep them there.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use plasmon::wire::Span;
use plasmon::{ObjectId, wire};

use crate::memory::{Domain, Extent};

/// What is known of an object before its bytes are there; the same on every node that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// Its id.
    pub(crate) id: ObjectId,
    /// The name behind the id; empty when there is none.
    pub(crate) name: String,
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
    /// It was created here: never dropped, only deleted.
    Primary,
    /// It was fetched from another node: dropped when room is needed.
    Cached,
}

/// A sealed object in the arena of this node.
pub(crate) struct Replica {
    pub(crate) head: Head,
    role: Cell<Role>,
    pub(crate) extent: Rc<Extent>,
    pub(crate) created: Instant,
    pins: Cell<u32>,
    /// Read since the clock hand last passed.
    touched: Cell<bool>,
}

impl Replica {
    pub(crate) fn new(head: Head, role: Role, extent: Rc<Extent>, created: Instant) -> Rc<Self> {
        Rc::new(Self {
            head,
            role: Cell::new(role),
            extent,
            created,
            pins: Cell::new(0),
            touched: Cell::new(true),
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

    /// Where a client finds it.
    pub(crate) fn span(&self) -> Span {
        Span {
            offset: self.extent.offset(),
            data_len: self.head.data_len,
            metadata_len: self.head.metadata_len,
            digest: 0,
        }
    }

    /// Holders of the bytes, clients and peers.
    pub(crate) fn pins(&self) -> u32 {
        self.pins.get()
    }

    /// Whether it was pinned since this was last asked.
    pub(super) fn take_touched(&self) -> bool {
        self.touched.replace(false)
    }

    /// Its row in a listing.
    pub(crate) fn info(&self, state: wire::ObjectState, now: Instant) -> wire::ObjectInfo {
        wire::ObjectInfo {
            id: self.head.id,
            name: Some(self.head.name.clone()).filter(|name| !name.is_empty()),
            state,
            private: self.head.private,
            data_len: self.head.data_len,
            metadata_len: self.head.metadata_len,
            pins: self.pins(),
            age_ms: now.saturating_duration_since(self.created).as_millis() as u64,
        }
    }
}

/// Keeps a replica's bytes where they are.
pub(crate) struct Pin(Rc<Replica>);

impl Pin {
    pub(crate) fn new(replica: &Rc<Replica>) -> Self {
        replica.pins.set(replica.pins.get() + 1);
        replica.touched.set(true);
        Self(Rc::clone(replica))
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        Self::new(&self.0)
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
        self.0.pins.set(self.0.pins.get() - 1);
    }
}
