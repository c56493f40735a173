//! The object table: id to replica or creation, the waiters, and what may be evicted.
//!
//! Engine thread only. An id is in at most one of three places: `sealed`, `creating`, or neither.
//! Eviction follows CLOCK: cached replicas stand in a ring, and the hand skips once those that were
//! read since it last passed.

use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Instant;

use futures::channel::oneshot;
use plasmon::{ObjectId, wire};

use super::{Head, Pin, Replica, Role};
use crate::engine::ClientKey;
use crate::memory::Extent;

/// An object a client is writing.
pub(crate) struct Creation {
    pub(crate) head: Head,
    pub(crate) extent: Rc<Extent>,
    /// The client, by the engine's key for its connection.
    pub(crate) client: ClientKey,
    /// The client sends the data with its seal, and the engine writes it.
    pub(crate) inline: bool,
    pub(crate) created: Instant,
}

/// Why an id cannot be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// It is sealed here.
    Sealed(Role),
    /// A client is writing it.
    Creating {
        /// That client's key.
        client: ClientKey,
    },
}

/// Counts and bytes for the status report and for errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) primary: u64,
    pub(crate) primary_bytes: u64,
    pub(crate) cached: u64,
    pub(crate) cached_bytes: u64,
    pub(crate) unsealed: u64,
    pub(crate) unsealed_bytes: u64,
    pub(crate) pinned: u64,
    pub(crate) pinned_bytes: u64,
    pub(crate) doomed: u64,
    pub(crate) doomed_bytes: u64,
}

/// All objects of the node.
#[derive(Default)]
pub(crate) struct Table {
    sealed: HashMap<ObjectId, Rc<Replica>>,
    creating: HashMap<ObjectId, Creation>,
    waiting: HashMap<ObjectId, Vec<oneshot::Sender<()>>>,
    /// Taken out while pinned.
    doomed: Vec<Weak<Replica>>,
    /// Cached replicas in the order of the clock hand.
    ring: VecDeque<Weak<Replica>>,
    /// Of sealed objects, by role, and of creations.
    primary_bytes: u64,
    cached_bytes: u64,
    unsealed_bytes: u64,
    evicted: u64,
}

impl Table {
    /// The sealed object of this id.
    pub(crate) fn get(&self, id: &ObjectId) -> Option<&Rc<Replica>> {
        self.sealed.get(id)
    }

    /// What stands in the way of creating this id.
    pub(crate) fn conflict(&self, id: &ObjectId) -> Option<Conflict> {
        if let Some(replica) = self.sealed.get(id) {
            return Some(Conflict::Sealed(replica.role()));
        }
        self.creating.get(id).map(|creation| Conflict::Creating { client: creation.client })
    }

    /// Enters a creation; the caller has checked for a [`Conflict`].
    pub(crate) fn begin(&mut self, creation: Creation) {
        self.unsealed_bytes += creation.head.len();
        self.creating.insert(creation.head.id, creation);
    }

    /// The creation of this id.
    pub(crate) fn creation(&self, id: &ObjectId) -> Option<&Creation> {
        self.creating.get(id)
    }

    /// Takes a creation out: it is sealed next, or given up.
    pub(crate) fn end(&mut self, id: &ObjectId) -> Option<Creation> {
        let creation = self.creating.remove(id)?;
        self.unsealed_bytes -= creation.head.len();
        Some(creation)
    }

    /// Gives up every creation of a client that has gone.
    pub(crate) fn end_all(&mut self, client: ClientKey) -> usize {
        let theirs = |creation: &Creation| creation.client == client;
        let ids: Vec<_> = self.creating.values().filter(|one| theirs(one)).map(|one| one.head.id).collect();
        ids.iter().filter_map(|id| self.end(id)).count()
    }

    /// Enters a sealed object and wakes those who wait for it.
    pub(crate) fn seal(&mut self, replica: Rc<Replica>) {
        let id = replica.head.id;
        if replica.role() == Role::Cached {
            self.ring.push_back(Rc::downgrade(&replica));
        }
        *self.bytes_of(replica.role()) += replica.head.len();
        self.sealed.insert(id, replica);
        for waiter in self.waiting.remove(&id).into_iter().flatten() {
            // A waiter that has gone needs no news.
            let _ = waiter.send(());
        }
    }

    /// Ends when this id is sealed here.
    pub(crate) fn wait(&mut self, id: ObjectId) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.entry(id).or_default().push(sender);
        receiver
    }

    /// Forgets what has gone: waiters, and replicas that were deleted.
    pub(crate) fn prune(&mut self) {
        self.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.is_canceled());
            !waiters.is_empty()
        });
        self.ring.retain(|replica| replica.strong_count() > 0);
        self.doomed.retain(|replica| replica.strong_count() > 0);
    }

    /// Bytes of primaries, cached replicas and creations.
    pub(crate) fn bytes(&self) -> (u64, u64, u64) {
        (self.primary_bytes, self.cached_bytes, self.unsealed_bytes)
    }

    /// Makes the replica of this id a primary: from now on it is never dropped.
    pub(crate) fn promote(&mut self, id: &ObjectId) -> Option<Rc<Replica>> {
        let replica = self.sealed.get(id)?;
        let replica = Rc::clone(replica);
        *self.bytes_of(replica.role()) -= replica.head.len();
        replica.promote();
        *self.bytes_of(replica.role()) += replica.head.len();
        Some(replica)
    }

    fn bytes_of(&mut self, role: Role) -> &mut u64 {
        match role {
            Role::Primary => &mut self.primary_bytes,
            Role::Cached => &mut self.cached_bytes,
        }
    }

    /// Takes a sealed object out. Its memory returns with its last pin.
    pub(crate) fn remove(&mut self, id: &ObjectId) -> Option<Rc<Replica>> {
        let replica = self.sealed.remove(id)?;
        *self.bytes_of(replica.role()) -= replica.head.len();
        if replica.pins() > 0 {
            self.doomed.push(Rc::downgrade(&replica));
        }
        Some(replica)
    }

    /// Drops the cached replica that was read least recently and that nobody pins.
    pub(crate) fn evict_one(&mut self) -> Option<ObjectId> {
        // Twice around: the first pass may only clear the marks.
        for _ in 0..2 * self.ring.len() {
            let replica = self.ring.pop_front()?.upgrade();
            let evictable = |replica: &Rc<Replica>| self.holds(replica) && replica.role() == Role::Cached;
            let Some(replica) = replica.filter(evictable) else {
                continue;
            };
            if replica.pins() == 0 && !replica.take_touched() {
                self.sealed.remove(&replica.head.id);
                self.cached_bytes -= replica.head.len();
                self.evicted += 1;
                return Some(replica.head.id);
            }
            self.ring.push_back(Rc::downgrade(&replica));
        }
        None
    }

    /// Whether this very replica is the one in the table.
    fn holds(&self, replica: &Rc<Replica>) -> bool {
        self.sealed.get(&replica.head.id).is_some_and(|held| Rc::ptr_eq(held, replica))
    }

    /// Every sealed object.
    pub(crate) fn sealed(&self) -> impl Iterator<Item = &Rc<Replica>> {
        self.sealed.values()
    }

    /// A row for every object this user may see.
    pub(crate) fn list(&self, tenant: u32, now: Instant) -> Vec<wire::ObjectInfo> {
        let sealed = self.sealed.values().map(|replica| match replica.role() {
            Role::Primary => (Rc::clone(replica), wire::ObjectState::Primary),
            Role::Cached => (Rc::clone(replica), wire::ObjectState::Cached),
        });
        let doomed =
            self.doomed.iter().filter_map(|doomed| Some((doomed.upgrade()?, wire::ObjectState::Doomed)));
        let rows = sealed.chain(doomed).filter(|(replica, _)| replica.head.visible_to(tenant));
        let creating = self.creating.values().filter(|creation| creation.head.visible_to(tenant));
        rows.map(|(replica, state)| replica.info(state, now))
            .chain(creating.map(|creation| creation.info(now)))
            .collect()
    }

    /// Counts everything. Walks the whole table: for reports, not for the data path.
    pub(crate) fn census(&self) -> Census {
        let mut census = Census::default();
        for replica in self.sealed.values() {
            let len = replica.head.len();
            let (count, bytes) = match replica.role() {
                Role::Primary => (&mut census.primary, &mut census.primary_bytes),
                Role::Cached => (&mut census.cached, &mut census.cached_bytes),
            };
            *count += 1;
            *bytes += len;
            if replica.pins() > 0 {
                census.pinned += 1;
                census.pinned_bytes += len;
            }
        }
        for replica in self.doomed.iter().filter_map(Weak::upgrade) {
            census.doomed += 1;
            census.doomed_bytes += replica.head.len();
        }
        census.unsealed = self.creating.len() as u64;
        census.unsealed_bytes = self.creating.values().map(|creation| creation.head.len()).sum();
        census
    }

    /// Cached replicas dropped so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// A pin on the sealed object of this id.
    pub(crate) fn pin(&self, id: &ObjectId) -> Option<Pin> {
        self.get(id).map(Pin::new)
    }
}

impl Creation {
    fn info(&self, now: Instant) -> wire::ObjectInfo {
        wire::ObjectInfo {
            id: self.head.id,
            name: Some(self.head.name.clone()).filter(|name| !name.is_empty()),
            state: wire::ObjectState::Unsealed,
            private: self.head.private,
            data_len: self.head.data_len,
            metadata_len: self.head.metadata_len,
            pins: 0,
            age_ms: now.saturating_duration_since(self.created).as_millis() as u64,
        }
    }
}
