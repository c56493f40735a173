//! The directory: which nodes hold which objects, for the shards that this node keeps.
//!
//! Engine thread only. Soft state: holders publish, and publish again when shards move, so that a
//! lost entry comes back by itself. Nothing here sends anything: every call returns what is to be
//! told to whom.
//!
//! An id may live several times: deleted, and created anew. Each creation draws a *life*, and what is
//! said of a replica names it, so that news of a former life cannot touch the present one. An entry is
//! *lost* when its last holder went without a deletion; it stays for an hour, so that whoever asks learns that the
//! object existed. A *tombstone* is the memory of a deleted life: it turns away replicas that were
//! being fetched meanwhile. An *orphan* has cached replicas only, which any eviction may take: one of
//! its holders is told to become the primary, until it says that it is.
//!
//! A change of members concerns every entry, and there may be millions. They *follow* it a share at a time
//! ([`Directory::sweep`]), others' turns in between; whoever asks about an object before its turn has its entry follow
//! at once. One change is followed to the end before the next begins.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use plasmon::{NodeId, ObjectId};
use smallvec::{SmallVec, smallvec};

use super::frame::{Holding, Wish};
use crate::index::{self, Index, Indexed};
use crate::object::Role;

/// How long a deletion is remembered; a fetch that was under way is over by then.
const TOMBSTONE: Duration = Duration::from_secs(60);
/// How long an object may have no primary: one may be about to publish itself.
const ORPHAN: Duration = Duration::from_secs(3);
/// How long an object may have too few replicas: whoever put it is about to make them.
const SHORT: Duration = Duration::from_secs(3);
/// Tombstones kept at most; the oldest give way.
const TOMBSTONES: usize = 1 << 16;
/// Further holders that an asker is told of.
const OTHERS: usize = 3;
/// How long it is remembered that an object is lost.
const LOST: Duration = Duration::from_secs(3600);
/// Lost objects remembered at most; the oldest give way.
const LOST_KEPT: usize = 1 << 18;
/// How long a waiter stays without asking again.
const WAITER: Duration = Duration::from_secs(15);

/// A node that waits for an object on behalf of a user, and the request to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) node: NodeId,
    pub(crate) request: u64,
    pub(crate) tenant: u32,
    pub(crate) wish: Wish,
}

/// Where a fetch goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// To this holder; these hold the object too.
    Holder(NodeId, Vec<NodeId>),
    /// Nowhere yet: the waiter was noted.
    Waiting,
    /// Back: every holder is gone.
    Lost,
}

/// What follows from a publication.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// These waited for it.
    Welcome(Vec<Waiter>),
    /// The replica is of a life that has ended: it is to be dropped.
    Stale,
}

/// What follows from a deletion.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// Nothing is known of the object here.
    Unknown,
    /// It is another user's, and private.
    NotAllowed,
    /// It is forgotten.
    Forgotten {
        /// Who holds it, in which life.
        holders: Vec<(NodeId, u64)>,
        /// The lives that have ended.
        lives: Vec<u64>,
    },
}

/// An object that too few nodes keep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) id: ObjectId,
    pub(crate) life: u64,
    /// The user whose private object it is.
    pub(crate) owner: Option<u32>,
    /// How many are to keep it.
    pub(crate) copies: u16,
    /// Those that do.
    pub(crate) keeping: Vec<NodeId>,
    /// Those that hold it, and may drop it.
    pub(crate) cached: Vec<NodeId>,
}

/// A node that holds an object, or was among the last.
#[derive(Debug, Clone, Copy)]
struct Holder {
    node: NodeId,
    life: u64,
    /// The user whose private object it is.
    owner: Option<u32>,
    role: Role,
    /// How many nodes are to keep it.
    copies: u16,
}

impl Holder {
    fn visible_to(&self, tenant: u32) -> bool {
        self.owner.is_none_or(|owner| owner == tenant)
    }
}

/// What is known of an object: most have one holder.
struct Entry {
    id: ObjectId,
    /// All of them have gone, and none by a deletion.
    lost: bool,
    /// Never empty: the last ones, if it is lost.
    holders: SmallVec<[Holder; 1]>,
}

/// There may be ten million of them.
const _: () = assert!(size_of::<Entry>() <= 72);

impl Indexed for Entry {
    fn id(&self) -> ObjectId {
        self.id
    }
}

impl Entry {
    /// Those who hold it now.
    fn holders(&self) -> &[Holder] {
        if self.lost { &[] } else { &self.holders }
    }

    fn primary(&self) -> Option<&Holder> {
        self.holders().iter().find(|holder| holder.role == Role::Primary)
    }

    fn is_orphan(&self) -> bool {
        !self.lost && self.primary().is_none()
    }

    /// Takes holders out; the last of them are remembered.
    fn retain(&mut self, keep: impl Fn(&Holder) -> bool) {
        if self.holders().iter().any(&keep) {
            self.holders.retain(|holder| keep(holder));
        } else {
            self.lost = true;
        }
    }

    /// How many nodes are to keep it.
    fn copies(&self) -> usize {
        let stays = self.holders().iter().filter(|holder| holder.role.stays());
        usize::from(self.primary().map_or_else(
            || stays.map(|holder| holder.copies).max().unwrap_or_default(),
            |primary| primary.copies,
        ))
    }

    /// The nodes that keep it.
    fn keeping(&self) -> impl Iterator<Item = &Holder> {
        let life = self.life();
        self.holders().iter().filter(move |holder| holder.role.stays() && Some(holder.life) == life)
    }

    /// Whether fewer nodes of so many keep it than are to.
    fn is_short(&self, members: usize) -> bool {
        let wanted = self.copies().min(members);
        wanted > 1 && !self.lost && self.keeping().count() < wanted
    }

    /// The life that is handed out: the first primary's, if there is one.
    fn life(&self) -> Option<u64> {
        self.primary().or(self.holders().first()).map(|holder| holder.life)
    }
}

/// The entries of the shards this node keeps.
#[derive(Default)]
pub(crate) struct Directory {
    entries: Index<Entry>,
    concerns: Concerns,
    /// The last change of members, until all entries have followed it.
    sweep: Option<Sweep>,
    /// Spreads fetches over holders.
    turn: usize,
    waiters: HashMap<ObjectId, Vec<(Waiter, Instant)>>,
    /// The lives of each id that have ended.
    tombstones: HashMap<ObjectId, Vec<u64>>,
    /// The same, in the order in which they are forgotten.
    buried: VecDeque<(Instant, ObjectId, u64)>,
}

/// Objects that something is to be done about.
#[derive(Default)]
struct Concerns {
    /// Nodes of the cluster.
    members: usize,
    /// Objects that too few nodes keep, and when they are looked at next.
    shorts: HashMap<ObjectId, Instant>,
    /// Objects that were lost, in that order; some may have been found again.
    lost: VecDeque<(Instant, ObjectId)>,
    /// Objects without a primary, and since when.
    orphans: HashMap<ObjectId, Instant>,
}

impl Concerns {
    /// Has an entry keep these holders only, and notes what becomes of the object.
    fn retain(&mut self, entry: &mut Entry, now: Instant, keep: impl Fn(&Holder) -> bool) {
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
            self.shorts.entry(entry.id).or_insert(now + SHORT);
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
    /// The share of the entries that is next.
    share: usize,
}

impl Directory {
    /// Number of objects known, lost ones included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether a living holder is known of an object that this user may see.
    pub(crate) fn knows(&mut self, id: &ObjectId, tenant: u32) -> bool {
        self.settle(id);
        let holders = self.entries.get(id).map(Entry::holders);
        holders.unwrap_or_default().iter().any(|holder| holder.visible_to(tenant))
    }

    /// The living holders of an object that this user may see.
    pub(crate) fn holders(&mut self, id: &ObjectId, tenant: u32) -> Vec<(NodeId, Role)> {
        self.settle(id);
        let holders = self.entries.get(id).map(Entry::holders).unwrap_or_default();
        let visible = holders.iter().filter(|holder| holder.visible_to(tenant));
        visible.map(|holder| (holder.node, holder.role)).collect()
    }

    /// Finds a holder for `waiter` that is not among `except`, or notes that it waits. A node that
    /// asks again for the same user waits once.
    pub(crate) fn fetch(&mut self, id: ObjectId, waiter: Waiter, except: &[NodeId], now: Instant) -> Lookup {
        self.settle(&id);
        if let Some(entry) = self.entries.get(&id) {
            let Some(life) = entry.life() else {
                return Lookup::Lost;
            };
            self.turn = self.turn.wrapping_add(1);
            let (before, after) = entry.holders().split_at(self.turn % entry.holders().len());
            let mut usable = after
                .iter()
                .chain(before)
                .filter(|holder| {
                    holder.life == life && holder.node != waiter.node && !except.contains(&holder.node)
                })
                .map(|holder| holder.node);
            if let Some(holder) = usable.next() {
                return Lookup::Holder(holder, usable.take(OTHERS).collect());
            }
        }
        let waiters = self.waiters.entry(id).or_default();
        waiters.retain(|(other, _)| (other.node, other.tenant) != (waiter.node, waiter.tenant));
        waiters.push((waiter, now + WAITER));
        Lookup::Waiting
    }

    /// A waiter gave up.
    pub(crate) fn forget(&mut self, id: &ObjectId, node: NodeId, request: u64) {
        if let Some(waiters) = self.waiters.get_mut(id) {
            waiters.retain(|(waiter, _)| (waiter.node, waiter.request) != (node, request));
            if waiters.is_empty() {
                self.waiters.remove(id);
            }
        }
    }

    /// A node holds an object.
    pub(crate) fn publish(&mut self, node: NodeId, holding: Holding, now: Instant) -> Published {
        let Holding { id, role, copies, life, owner } = holding;
        self.settle(&id);
        if self.tombstones.get(&id).is_some_and(|lives| lives.contains(&life)) {
            return Published::Stale;
        }
        let holder = Holder { node, life, owner, role, copies };
        let new = || Entry { id, lost: false, holders: smallvec![holder] };
        let entry = self.entries.get_or_insert_with(&id, new);
        if role != Role::Primary && entry.primary().is_some_and(|primary| primary.life != life) {
            return Published::Stale;
        }
        if entry.lost {
            *entry = new();
        }
        match entry.holders.iter_mut().find(|holder| holder.node == node) {
            Some(known) => *known = holder,
            None => entry.holders.push(holder),
        }
        self.concerns.note_orphan(entry, now);
        if entry.is_short(self.concerns.members) {
            self.concerns.shorts.entry(id).or_insert(now + SHORT);
        } else {
            self.concerns.shorts.remove(&id);
        }
        let waiters = self.waiters.remove(&id).unwrap_or_default();
        Published::Welcome(waiters.into_iter().map(|(waiter, _)| waiter).collect())
    }

    /// A node dropped its replica to make room: without another, the object is lost.
    pub(crate) fn evicted(&mut self, node: NodeId, id: &ObjectId, now: Instant) {
        self.settle(id);
        if let Some(entry) = self.entries.get_mut(id) {
            let before = entry.lost;
            entry.retain(|holder| holder.node != node);
            if entry.lost && !before {
                self.concerns.lost.push_back((now, *id));
            }
            self.concerns.note_orphan(entry, now);
        }
    }

    /// A node dropped its replica because the object was deleted, perhaps before it had published it; or it is the
    /// other keeper, and a user deletes what that one knows nothing of.
    pub(crate) fn dropped(&mut self, node: NodeId, id: ObjectId, tenant: u32, now: Instant) {
        self.evicted(node, &id, now);
        let of_this_deletion = |holder: &Holder| holder.node == node || holder.visible_to(tenant);
        if self.entries.get(&id).is_some_and(|entry| entry.lost && entry.holders.iter().any(of_this_deletion))
        {
            self.entries.remove(&id);
        }
    }

    /// Forgets an object that a user deletes, and remembers the deletion.
    pub(crate) fn delete(&mut self, id: ObjectId, tenant: u32, now: Instant) -> Deletion {
        self.settle(&id);
        let Some(entry) = self.entries.get(&id) else {
            return Deletion::Unknown;
        };
        let own = |holders: &[Holder]| -> Vec<_> {
            let own = holders.iter().filter(|holder| holder.visible_to(tenant));
            own.map(|holder| (holder.node, holder.life)).collect()
        };
        let lives: Vec<_> = own(&entry.holders).into_iter().map(|(_, life)| life).collect();
        if lives.is_empty() {
            return Deletion::NotAllowed;
        }
        let holders = own(entry.holders());
        lives.iter().for_each(|life| self.bury(id, *life, now));
        Deletion::Forgotten { holders, lives }
    }

    /// A life of an object has ended: its replicas are turned away from now on.
    pub(crate) fn bury(&mut self, id: ObjectId, life: u64, now: Instant) {
        self.tombstones.entry(id).or_default().push(life);
        self.buried.push_back((now, id, life));
        if self.buried.len() > TOMBSTONES {
            self.unbury();
        }
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.holders.retain(|holder| holder.life != life);
            if entry.holders.is_empty() {
                self.entries.remove(&id);
            }
        }
    }

    /// Forgets the oldest burial.
    fn unbury(&mut self) {
        if let Some((_, id, life)) = self.buried.pop_front()
            && let Some(lives) = self.tombstones.get_mut(&id)
        {
            // Once: a life that was buried again stays so.
            lives.iter().position(|buried| *buried == life).map(|at| lives.swap_remove(at));
            if lives.is_empty() {
                self.tombstones.remove(&id);
            }
        }
    }

    /// Whether it was deleted a short while ago.
    pub(crate) fn deleted(&self, id: &ObjectId) -> bool {
        self.tombstones.contains_key(id)
    }

    /// Forgets the oldest loss, unless the object was found again.
    fn unlose(&mut self) {
        if let Some((_, id)) = self.concerns.lost.pop_front()
            && self.entries.get(&id).is_some_and(|entry| entry.lost)
        {
            self.entries.remove(&id);
        }
    }

    /// Drops waiters, losses and tombstones whose time is over. Returns the holders that are to become
    /// primaries of objects that have none.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(NodeId, ObjectId)> {
        while self.buried.front().is_some_and(|(at, ..)| *at + TOMBSTONE <= now) {
            self.unbury();
        }
        while self.concerns.lost.len() > LOST_KEPT
            || self.concerns.lost.front().is_some_and(|(at, _)| *at + LOST <= now)
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
        let due = self.concerns.orphans.iter().filter(|(_, since)| **since + ORPHAN <= now);
        // Both keepers come to the same choice.
        let heir =
            // One that is kept anyway before one that may be dropped.
            |id: &ObjectId| {
                let holders = entries.get(id)?.holders().iter();
                Some((holders.min_by_key(|holder| (!holder.role.stays(), holder.node))?.node, *id))
            };
        due.filter_map(|(id, _)| heir(id)).collect()
    }

    /// Objects of which replicas are to be made, `most` of them, as far as this node is to see to them; they are not
    /// told again before `again`.
    pub(crate) fn take_short(
        &mut self,
        now: Instant,
        again: Instant,
        most: usize,
        mine: impl Fn(&ObjectId) -> bool,
    ) -> Vec<Shortage> {
        if self.sweep.is_some() {
            return Vec::new();
        }
        let (entries, members) = (&self.entries, self.concerns.members);
        let shorts = &mut self.concerns.shorts;
        shorts.retain(|id, _| entries.get(id).is_some_and(|entry| entry.is_short(members)));
        let due = shorts.iter_mut().filter(|(id, next)| **next <= now && mine(id)).take(most);
        let shortage = |(id, next): (&ObjectId, &mut Instant)| {
            *next = again;
            let entry = entries.get(id)?;
            let cached = entry.holders().iter().filter(|holder| !holder.role.stays());
            Some(Shortage {
                id: *id,
                life: entry.life()?,
                owner: entry.holders().first()?.owner,
                copies: entry.copies() as u16,
                keeping: entry.keeping().map(|holder| holder.node).collect(),
                cached: cached.map(|holder| holder.node).collect(),
            })
        };
        due.filter_map(shortage).collect()
    }

    /// An object may be looked at again from that moment on, if too few nodes keep it still.
    pub(crate) fn look_again(&mut self, id: &ObjectId, at: Instant) {
        if let Some(next) = self.concerns.shorts.get_mut(id) {
            *next = at;
        }
    }

    /// How many objects too few nodes keep, as far as is known.
    pub(crate) fn short(&self) -> usize {
        self.concerns.shorts.len()
    }

    /// Begins to follow a change of members: the shards that are kept elsewhere now go, and the dead. What is left of
    /// a former change is done at once; returns who waited for an object that is lost by that.
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
        self.concerns.members = alive.len();
        self.sweep = Some(Sweep { kept_here: Box::new(kept_here), alive, at: now, share: 0 });
        lost
    }

    /// Has the next share of the entries follow; returns who waited for an object that is lost, and nothing when all
    /// have followed.
    pub(crate) fn sweep(&mut self) -> Option<Vec<(ObjectId, Waiter)>> {
        let sweep = self.sweep.as_mut()?;
        if sweep.share == index::SHARDS {
            self.sweep = None;
            return None;
        }
        self.entries.retain_in(sweep.share, |entry| (sweep.kept_here)(&entry.id));
        let mut lost = Vec::new();
        for entry in self.entries.shard_mut(sweep.share) {
            self.concerns.retain(entry, sweep.at, |holder| sweep.alive.contains(&holder.node));
            if entry.lost {
                let waiters = self.waiters.remove(&entry.id).unwrap_or_default();
                lost.extend(waiters.into_iter().map(|(waiter, _)| (entry.id, waiter)));
            }
        }
        sweep.share += 1;
        Some(lost)
    }

    /// Has all entries follow that have not.
    pub(crate) fn finish(&mut self) -> Vec<(ObjectId, Waiter)> {
        std::iter::from_fn(|| self.sweep()).flatten().collect()
    }

    /// Has an entry follow before its turn.
    fn settle(&mut self, id: &ObjectId) {
        if let Some(sweep) = &self.sweep
            && let Some(entry) = self.entries.get_mut(id)
        {
            self.concerns.retain(entry, sweep.at, |holder| sweep.alive.contains(&holder.node));
        }
    }
}

#[cfg(test)]
mod tests;
