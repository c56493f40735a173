//! A keeper's part of the directory: which nodes hold which objects, for the shards that this node keeps.
//!
//! Owns [`Table`]. Engine thread only. The table is soft state: holders publish, and publish again when
//! shards move, so a lost entry is restored by them. The table sends nothing: every call returns the
//! messages that follow from it and their receivers.
//!
//! An id may have several lives: an object is deleted, and created anew. Each creation draws a *life*. Every
//! message about a replica names its life, so that news of a former life cannot touch the present one.
//! - An entry is *lost* when its last holder went without a deletion. A lost entry stays for an hour, so
//!   that a node that asks learns that the object existed.
//! - A *tombstone* is the memory of a deleted life. The tombstone turns away replicas that were
//!   being fetched during the deletion.
//! - An *orphan* has cached replicas only, which any eviction may take. One of its holders is told to
//!   become the primary, until this holder publishes that it is.
//!
//! A change of members concerns every entry, and there may be millions. The entries *follow* it a share at
//! a time ([`Table::sweep`]), with other work in between. A request for an object before its turn has its
//! entry follow at once. One change is followed to the end before the next begins.

mod ends;
mod replaced;
mod returned;
mod shortages;
mod surplus;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use plasmon::{NodeId, ObjectId};
use smallvec::{SmallVec, smallvec};

pub(crate) use self::ends::Ending;
use self::ends::Leaving;
pub(crate) use self::replaced::Given;
use self::replaced::Replacing;
pub(crate) use self::shortages::Shortage;
use crate::kernel::index::{self, Index, Indexed};
use crate::kernel::random::{HashMap, HashSet};
use crate::net::frame::{Heir, Holding, Kind, Standing, Wish};
use crate::object::{Ownership, Role};

/// How long an object may be without a primary before a holder is told to become one. A primary may
/// be about to be published.
const ORPHAN_GRACE: Duration = Duration::from_secs(3);
/// How long an object may have too few replicas before more are made. Usually the node that put the
/// object is about to make them.
const SHORTAGE_GRACE: Duration = Duration::from_secs(3);
/// Maximum number of further holders that an asker is told of.
const MAX_OTHER_HOLDERS: usize = 3;
/// How long a loss is remembered.
const LOSS_MEMORY: Duration = Duration::from_secs(3600);
/// Maximum number of lost objects remembered; the oldest are forgotten first.
const MAX_LOSSES: usize = 1 << 18;
/// How long a waiter is kept when it does not ask again.
const WAITER_LIFETIME: Duration = Duration::from_secs(15);

/// A node that waits for an object on behalf of a user, and the request to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) node: NodeId,
    pub(crate) request: u64,
    pub(crate) user: u32,
    pub(crate) wish: Wish,
}

/// The outcome of the search for a holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The request goes to this holder. The nodes in the list hold the object too.
    Holder(NodeId, Vec<NodeId>),
    /// There is no holder that may be used. [`Table::fetch`] notes the waiter.
    Waiting,
    /// The object is lost: every holder is gone.
    Lost,
}

/// The outcome of a publication.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// The replica was entered. These waiters waited for the object.
    Welcome(Vec<Waiter>),
    /// The replica is refused, because its life has ended, or because the id has another primary or
    /// kind. Its holder is to drop the replica.
    Stale,
}

/// A node that holds an object, or was among the last holders of a lost one.
#[derive(Debug, Clone, Copy)]
struct Holder {
    node: NodeId,
    life: u64,
    role: Role,
    /// Whether the node became the primary because no other was left.
    is_heir: bool,
    /// Number of nodes that are to keep the object.
    copies: u16,
    ownership: Ownership,
    /// Whether the node brought the replica back after it was no member for a while.
    returned: bool,
}

/// The entry of an object. Most objects have one holder.
struct Entry {
    id: ObjectId,
    kind: Kind,
    /// Whether all holders have gone, and none by a deletion.
    lost: bool,
    /// Number of nodes that were to keep the object when a node last kept it.
    wish: u16,
    /// The holders of the object, or the last holders if the object is lost. The list is never empty.
    holders: SmallVec<[Holder; 1]>,
}

/// The table may have ten million entries, so an entry has to be small.
const _: () = assert!(size_of::<Entry>() <= 72);

impl Indexed for Entry {
    fn id(&self) -> ObjectId {
        self.id
    }
}

impl Entry {
    /// The nodes that hold the object now.
    fn holders(&self) -> &[Holder] {
        if self.lost { &[] } else { &self.holders }
    }

    fn primary(&self) -> Option<&Holder> {
        self.holders().iter().find(|holder| holder.role == Role::Primary)
    }

    fn is_orphan(&self) -> bool {
        !self.lost && self.primary().is_none()
    }

    /// Removes the holders that `keep` refuses. If none is left, the object is lost, and the last
    /// holders are remembered.
    fn retain(&mut self, keep: impl Fn(&Holder) -> bool) {
        self.wish = self.copies();
        if self.holders().iter().any(&keep) {
            self.holders.retain(|holder| keep(holder));
        } else {
            self.lost = true;
        }
    }

    /// Number of nodes that are to keep the object: the largest number that a keeping holder says.
    /// A holder that was away when the number changed, or that brought the object back from disk,
    /// may say a smaller number.
    fn copies(&self) -> u16 {
        self.keeping().map(|holder| holder.copies).max().unwrap_or(self.wish)
    }

    /// The holders that keep the object.
    fn keeping(&self) -> impl Iterator<Item = &Holder> {
        let life = self.life();
        self.holders().iter().filter(move |holder| holder.role.stays() && Some(holder.life) == life)
    }

    /// Whether fewer nodes keep the object than are to, in a cluster of `members` nodes.
    fn is_short(&self, members: usize) -> bool {
        self.wanted(members) > 1 && self.is_short_without(&[], members)
    }

    /// Whether too few nodes would keep the object without `nodes`, in a cluster of `members` nodes.
    fn is_short_without(&self, nodes: &[NodeId], members: usize) -> bool {
        let keeping = self.keeping().filter(|holder| !nodes.contains(&holder.node));
        !self.lost && keeping.count() < self.wanted(members)
    }

    /// Number of nodes that are to keep the object, in a cluster of `members` nodes.
    fn wanted(&self, members: usize) -> usize {
        usize::from(self.copies().max(1)).min(members)
    }

    /// The life that is handed out: that of the first primary, else that of the first holder.
    fn life(&self) -> Option<u64> {
        self.primary().or(self.holders().first()).map(|holder| holder.life)
    }
}

/// The entries of the shards that this node keeps.
#[derive(Default)]
pub(crate) struct Table {
    entries: Index<Entry>,
    concerns: Concerns,
    /// The last change of members, until all entries have followed this change.
    sweep: Option<Sweep>,
    /// The counter that spreads fetches over holders.
    turn: usize,
    waiters: HashMap<ObjectId, Vec<(Waiter, Instant)>>,
    /// Nodes that hold no replica of an object, and may fetch the object without asking here again,
    /// by object.
    readers: HashMap<ObjectId, SmallVec<[NodeId; 2]>>,
    /// Objects of which only readers were known at the last look.
    strays: HashSet<ObjectId>,
    /// Nodes that have come back, and do not yet serve what they hold.
    returning: HashSet<NodeId>,
    /// Whether a node ever came back with a replica. If not, no publication has to be compared with
    /// a returned one.
    any_returned: bool,
    /// Objects that are being deleted.
    leaving: HashMap<ObjectId, Leaving>,
    /// Objects that are being replaced.
    replacing: HashMap<ObjectId, Replacing>,
    /// Nodes that have the successor of an object and have yet to publish it, with its life.
    unpublished: HashMap<ObjectId, (SmallVec<[NodeId; 2]>, u64)>,
    /// The lives of each id that have ended.
    tombstones: HashMap<ObjectId, Vec<u64>>,
    /// The lives that have ended, in the order in which they are forgotten.
    buried: VecDeque<(Instant, ObjectId, u64)>,
}

/// Objects that need attention, and how many members there are.
#[derive(Default)]
struct Concerns {
    /// Number of nodes of the cluster.
    members: usize,
    /// Objects that too few nodes keep, and when each is looked at next. `None` stands for the next
    /// change of the members: a node that kept the object dropped it to make room.
    shorts: HashMap<ObjectId, Option<Instant>>,
    /// Lost objects in the order of their losses; some may have been found again.
    lost: VecDeque<(Instant, ObjectId)>,
    /// Objects without a primary, and since when.
    orphans: HashMap<ObjectId, Instant>,
    /// Objects that may have several primaries, and when each is looked at next.
    surplus: HashMap<ObjectId, Instant>,
}

impl Concerns {
    /// Removes the holders of an entry that `keep` refuses, and notes what becomes of the object. If too
    /// few holders that keep the object are left, more replicas are made at the time `restored`.
    fn retain(
        &mut self,
        entry: &mut Entry,
        now: Instant,
        restored: Option<Instant>,
        keep: impl Fn(&Holder) -> bool,
    ) {
        let before = entry.lost;
        entry.retain(keep);
        if entry.lost {
            if !before {
                self.lost.push_back((now, entry.id));
            }
            return;
        }
        self.note_orphan(entry, now);
        if entry.is_short(self.members) {
            let next = self.shorts.entry(entry.id).or_default();
            *next = next.or(restored);
        }
    }

    fn note_orphan(&mut self, entry: &Entry, now: Instant) {
        if entry.is_orphan() {
            self.orphans.entry(entry.id).or_insert(now);
        }
    }
}

/// A change of members that entries follow.
struct Sweep {
    kept_here: Box<dyn Fn(&ObjectId) -> bool>,
    alive: HashSet<NodeId>,
    at: Instant,
    /// Number of the next share of the entries.
    share: usize,
}

impl Sweep {
    fn have_follow(&self, concerns: &mut Concerns, entry: &mut Entry) {
        let alive = |holder: &Holder| self.alive.contains(&holder.node);
        concerns.retain(entry, self.at, Some(self.at + SHORTAGE_GRACE), alive);
    }
}

impl Table {
    /// Number of objects known, lost ones included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether a living holder that serves its objects is known of an object that this user may
    /// see. An object that is being deleted counts.
    pub(crate) fn knows(&mut self, id: &ObjectId, user: u32) -> bool {
        self.settle(id);
        self.holders_of(id, user).any(|node| !self.returning.contains(&node))
    }

    /// The nodes that hold an object that this user may see.
    fn holders_of(&self, id: &ObjectId, user: u32) -> impl Iterator<Item = NodeId> {
        let holders = self.entries.get(id).map(Entry::holders).unwrap_or_default();
        holders.iter().filter(move |holder| holder.ownership.seen_by(id, user)).map(|holder| holder.node)
    }

    /// The nodes that held a lost object last.
    pub(crate) fn last_holders(&mut self, id: &ObjectId) -> impl Iterator<Item = NodeId> + use<'_> {
        self.settle(id);
        let lost = self.entries.get(id).filter(|entry| entry.lost);
        lost.into_iter().flat_map(|entry| entry.holders.iter().map(|holder| holder.node))
    }

    /// The nodes that hold an object that this user may see, with their roles.
    pub(crate) fn holders(&mut self, id: &ObjectId, user: u32) -> Vec<(NodeId, Role)> {
        self.settle(id);
        let holders = self.entries.get(id).map(Entry::holders).unwrap_or_default();
        let visible = holders.iter().filter(|holder| holder.ownership.seen_by(id, user));
        visible.map(|holder| (holder.node, holder.role)).collect()
    }

    /// Finds a holder for `waiter` that is not among `except`, or notes that the waiter waits. A node
    /// that asks again for the same user waits once.
    pub(crate) fn fetch(&mut self, id: ObjectId, waiter: Waiter, except: &[NodeId], now: Instant) -> Lookup {
        let found = self.holders_for(id, waiter.node, except);
        if matches!(found, Lookup::Waiting) {
            self.await_object(id, waiter, now);
        }
        found
    }

    /// Finds a holder for a node that does not wait if there is none.
    pub(crate) fn holder_for(&mut self, id: &ObjectId, asker: NodeId) -> Option<NodeId> {
        match self.holders_for(*id, asker, &[]) {
            Lookup::Holder(holder, _) => Some(holder),
            Lookup::Waiting | Lookup::Lost => None,
        }
    }

    /// Returns the holders that `asker` may read an object from, and notes `asker` as a reader.
    fn holders_for(&mut self, id: ObjectId, asker: NodeId, except: &[NodeId]) -> Lookup {
        self.settle(&id);
        let entry =
            self.entries.get(&id).filter(|_| !self.leaving.contains_key(&id) && !self.holds_back(&id));
        let Some(entry) = entry else { return Lookup::Waiting };
        let Some(life) = entry.life() else { return Lookup::Lost };
        self.turn = self.turn.wrapping_add(1);
        let (before, after) = entry.holders().split_at(self.turn % entry.holders().len());
        let mut usable = after
            .iter()
            .chain(before)
            .filter(|holder| holder.life == life && holder.node != asker && !except.contains(&holder.node))
            .map(|holder| holder.node);
        let Some(holder) = usable.next() else { return Lookup::Waiting };
        let found = Lookup::Holder(holder, usable.take(MAX_OTHER_HOLDERS).collect());
        self.note_reader(id, asker);
        found
    }

    /// The life that is handed out of an object.
    pub(crate) fn life_of(&self, id: &ObjectId) -> Option<u64> {
        self.entries.get(id).and_then(Entry::life)
    }

    /// Notes that `waiter` waits for an object to be published.
    pub(crate) fn await_object(&mut self, id: ObjectId, waiter: Waiter, now: Instant) {
        let waiters = self.waiters.entry(id).or_default();
        waiters.retain(|(other, _)| (other.node, other.user) != (waiter.node, waiter.user));
        waiters.push((waiter, now + WAITER_LIFETIME));
    }

    /// Forgets a waiter that gave up; returns whether it still waited.
    pub(crate) fn forget(&mut self, id: &ObjectId, node: NodeId, request: u64) -> bool {
        let Some(waiters) = self.waiters.get_mut(id) else { return false };
        let before = waiters.len();
        waiters.retain(|(waiter, _)| (waiter.node, waiter.request) != (node, request));
        let waited = waiters.len() < before;
        if waiters.is_empty() {
            self.waiters.remove(id);
        }
        waited
    }

    /// Enters the publication of an object by a node.
    pub(crate) fn publish(&mut self, node: NodeId, holding: Holding, now: Instant) -> Published {
        let Holding { id, standing, copies, life, ownership, kind } = holding;
        let role = standing.role();
        self.settle(&id);
        if self.has_ended(&id, life) {
            return Published::Stale;
        }
        let is_heir = standing == Standing::Heir;
        let holder = Holder { node, life, role, is_heir, copies, ownership, returned: false };
        let new = || Entry { id, kind, lost: false, wish: 0, holders: smallvec![holder] };
        let entry = self.entries.get_or_insert_with(&id, new);
        if entry.kind != kind {
            return Published::Stale;
        }
        if role != Role::Primary && entry.primary().is_some_and(|primary| primary.life != life) {
            return Published::Stale;
        }
        if entry.lost {
            *entry = new();
        }
        entry.wish = entry.copies();
        match entry.holders.iter_mut().find(|holder| holder.node == node) {
            Some(known) => *known = holder,
            None => entry.holders.push(holder),
        }
        let has_surplus = entry.has_surplus();
        self.concerns.note_orphan(entry, now);
        if entry.is_short(self.concerns.members) {
            self.concerns.shorts.entry(id).or_insert(Some(now + SHORTAGE_GRACE));
        } else {
            self.concerns.shorts.remove(&id);
        }
        if has_surplus {
            self.note_surplus(id, now);
        }
        self.forget_reader(&id, node);
        self.note_known(&id, life, Some(node));
        let waiters = self.waiters.remove(&id).unwrap_or_default();
        waiters.iter().for_each(|(waiter, _)| self.note_reader(id, waiter.node));
        Published::Welcome(waiters.into_iter().map(|(waiter, _)| waiter).collect())
    }

    /// Takes out the objects under an id when the deed of that id is published; returns their holders,
    /// with the lives. An object can have the id of a deed only if a malicious client has put it there.
    pub(crate) fn displace_objects(&mut self, holding: &Holding) -> Vec<(NodeId, u64)> {
        let displaces = |entry: &&Entry| (entry.kind, holding.kind) == (Kind::Object, Kind::Deed);
        let Some(entry) = self.entries.get(&holding.id).filter(displaces) else { return Vec::new() };
        let displaced = entry.holders().iter().map(|holder| (holder.node, holder.life)).collect();
        self.entries.remove(&holding.id);
        displaced
    }

    /// Forgets the oldest loss, unless the object was found again.
    fn unlose(&mut self) {
        if let Some((_, id)) = self.concerns.lost.pop_front()
            && self.entries.get(&id).is_some_and(|entry| entry.lost)
        {
            self.entries.remove(&id);
            self.readers.remove(&id);
        }
    }

    /// Drops the waiters, losses and tombstones whose time is over. Returns the holders that are to become
    /// primaries of objects that have none.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(NodeId, Heir)> {
        self.unbury_before(now);
        self.forget_stray_readers();
        while self.concerns.lost.len() > MAX_LOSSES
            || self.concerns.lost.front().is_some_and(|(at, _)| *at + LOSS_MEMORY <= now)
        {
            self.unlose();
        }
        self.waiters.retain(|_, waiters| {
            waiters.retain(|(_, until)| *until > now);
            !waiters.is_empty()
        });
        if self.sweep.is_some() {
            return Vec::new();
        }
        let entries = &self.entries;
        self.concerns.orphans.retain(|id, _| entries.get(id).is_some_and(Entry::is_orphan));
        let due = self.concerns.orphans.iter().filter(|(_, since)| **since + ORPHAN_GRACE <= now);
        // Both keepers make the same choice.
        let heir =
            // A holder that keeps the object comes before one that may drop it.
            |id: &ObjectId| {
                let entry = entries.get(id)?;
                let heir = entry.holders().iter().min_by_key(|holder| (!holder.role.stays(), holder.node))?;
                Some((heir.node, Heir { id: *id, life: heir.life, copies: entry.copies() }))
            };
        due.filter_map(|(id, _)| heir(id)).collect()
    }

    /// Begins to follow a change of members: dead holders are removed, and entries of shards that
    /// are no longer kept here. The rest of a former change is followed at once; returns the
    /// waiters for objects that are lost by that.
    pub(crate) fn follow(
        &mut self,
        kept_here: impl Fn(&ObjectId) -> bool + 'static,
        alive: HashSet<NodeId>,
        now: Instant,
    ) -> Vec<(ObjectId, Waiter)> {
        let lost = self.finish();
        for waiters in self.waiters.values_mut() {
            waiters.retain(|(waiter, _)| alive.contains(&waiter.node));
        }
        self.waiters.retain(|id, waiters| kept_here(id) && !waiters.is_empty());
        self.unpublished.retain(|id, (nodes, _)| {
            nodes.retain(|node| alive.contains(node));
            kept_here(id) && !nodes.is_empty()
        });
        self.readers.retain(|id, readers| {
            readers.retain(|node| alive.contains(node));
            kept_here(id) && !readers.is_empty()
        });
        self.concerns.members = alive.len();
        self.sweep = Some(Sweep { kept_here: Box::new(kept_here), alive, at: now, share: 0 });
        lost
    }

    /// Has the next share of the entries follow the change of members. Returns the waiters for objects
    /// that are lost; `None` when all entries have followed.
    pub(crate) fn sweep(&mut self) -> Option<Vec<(ObjectId, Waiter)>> {
        let sweep = self.sweep.as_mut()?;
        if sweep.share == index::SHARDS {
            self.sweep = None;
            return None;
        }
        self.entries.retain_in(sweep.share, |entry| (sweep.kept_here)(&entry.id));
        let mut lost = Vec::new();
        for entry in self.entries.shard_mut(sweep.share) {
            sweep.have_follow(&mut self.concerns, entry);
            if entry.lost {
                let waiters = self.waiters.remove(&entry.id).unwrap_or_default();
                lost.extend(waiters.into_iter().map(|(waiter, _)| (entry.id, waiter)));
            }
        }
        sweep.share += 1;
        Some(lost)
    }

    /// Has all remaining entries follow the change of members. Returns the waiters for objects that are lost.
    pub(crate) fn finish(&mut self) -> Vec<(ObjectId, Waiter)> {
        std::iter::from_fn(|| self.sweep()).flatten().collect()
    }

    /// Has the entry of an object follow the change of members before its turn.
    fn settle(&mut self, id: &ObjectId) {
        if let Some(sweep) = &self.sweep
            && let Some(entry) = self.entries.get_mut(id)
        {
            sweep.have_follow(&mut self.concerns, entry);
        }
    }
}

#[cfg(test)]
mod tests;
