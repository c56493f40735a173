//! The directory: which nodes hold which objects, for the shards that this node keeps.
//!
//! Engine thread only. Soft state: holders publish, and publish again when shards move, so that a
//! lost entry comes back by itself. Nothing here sends anything: every call returns what is to be
//! told to whom.
//!
//! An entry is *lost* when its last holder went without a deletion; it stays, so that whoever asks
//! learns that the object existed. A *tombstone* is the memory of a recent deletion: it turns away
//! replicas that were being fetched while their object was deleted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use plasmon::{NodeId, ObjectId};

use super::frame::Holding;
use crate::object::Role;

/// How long a deletion is remembered; a fetch that was under way is over by then.
const TOMBSTONE: Duration = Duration::from_secs(60);
/// How long a waiter stays without asking again.
const WAITER: Duration = Duration::from_secs(15);

/// A node that waits for an object, and the request to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) node: NodeId,
    pub(crate) request: u64,
    pub(crate) tenant: u32,
}

/// Where a fetch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// To this holder.
    Holder(NodeId),
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
    /// The object was deleted meanwhile: the replica is to be dropped.
    Deleted,
}

/// What follows from a change of members.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Consequences {
    /// These waited for an object that is now lost.
    pub(crate) lost: Vec<(ObjectId, Waiter)>,
    /// This holder's replica becomes the primary.
    pub(crate) promoted: Vec<(NodeId, ObjectId)>,
}

#[derive(Default)]
struct Entry {
    /// Empty: lost.
    holders: Vec<(NodeId, Role)>,
    /// Spreads fetches over holders.
    turn: usize,
}

/// The entries of the shards this node keeps.
#[derive(Default)]
pub(crate) struct Directory {
    entries: HashMap<ObjectId, Entry>,
    waiters: HashMap<ObjectId, Vec<(Waiter, Instant)>>,
    tombstones: HashSet<ObjectId>,
    buried: VecDeque<(Instant, ObjectId)>,
}

impl Directory {
    /// Number of objects known, lost ones included.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether a living holder is known.
    pub(crate) fn knows(&self, id: &ObjectId) -> bool {
        self.entries.get(id).is_some_and(|entry| !entry.holders.is_empty())
    }

    /// Finds a holder for `waiter` that is not among `except`, or notes that it waits.
    pub(crate) fn fetch(&mut self, id: ObjectId, waiter: Waiter, except: &[NodeId], now: Instant) -> Lookup {
        if let Some(entry) = self.entries.get_mut(&id) {
            if entry.holders.is_empty() {
                return Lookup::Lost;
            }
            entry.turn = entry.turn.wrapping_add(1);
            let count = entry.holders.len();
            let turned = (0..count).map(|at| entry.holders[(entry.turn + at) % count].0);
            let mut usable = turned.filter(|node| *node != waiter.node && !except.contains(node));
            if let Some(holder) = usable.next() {
                return Lookup::Holder(holder);
            }
        }
        let waiters = self.waiters.entry(id).or_default();
        waiters.retain(|(other, _)| (other.node, other.request) != (waiter.node, waiter.request));
        waiters.push((waiter, now + WAITER));
        Lookup::Waiting
    }

    /// A waiter gave up.
    pub(crate) fn forget(&mut self, node: NodeId, request: u64) {
        self.waiters.retain(|_, waiters| {
            waiters.retain(|(waiter, _)| (waiter.node, waiter.request) != (node, request));
            !waiters.is_empty()
        });
    }

    /// A node holds an object.
    pub(crate) fn publish(&mut self, node: NodeId, holding: Holding) -> Published {
        let Holding { id, role } = holding;
        if self.tombstones.contains(&id) {
            if role == Role::Cached {
                return Published::Deleted;
            }
            self.tombstones.remove(&id);
        }
        let holders = &mut self.entries.entry(id).or_default().holders;
        match holders.iter_mut().find(|(holder, _)| *holder == node) {
            Some(known) => known.1 = role,
            None => holders.push((node, role)),
        }
        let waiters = self.waiters.remove(&id).unwrap_or_default();
        Published::Welcome(waiters.into_iter().map(|(waiter, _)| waiter).collect())
    }

    /// A node dropped its replica to make room: without another, the object is lost.
    pub(crate) fn evicted(&mut self, node: NodeId, id: &ObjectId) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.holders.retain(|(holder, _)| *holder != node);
        }
    }

    /// A node dropped its replica because the object was deleted. It may have published it after the
    /// deletion came here.
    pub(crate) fn dropped(&mut self, node: NodeId, id: ObjectId, now: Instant) {
        self.evicted(node, &id);
        if self.entries.get(&id).is_some_and(|entry| entry.holders.is_empty()) {
            self.delete(id, now);
        }
    }

    /// Forgets a deleted object; returns who holds it, or nothing when it was not known.
    pub(crate) fn delete(&mut self, id: ObjectId, now: Instant) -> Option<Vec<NodeId>> {
        if self.tombstones.insert(id) {
            self.buried.push_back((now, id));
        }
        let entry = self.entries.remove(&id)?;
        Some(entry.holders.into_iter().map(|(node, _)| node).collect())
    }

    /// Whether it was deleted a short while ago.
    pub(crate) fn deleted(&self, id: &ObjectId) -> bool {
        self.tombstones.contains(id)
    }

    /// Drops waiters and tombstones whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.buried.front().is_some_and(|(at, _)| *at + TOMBSTONE <= now) {
            let (_, id) = self.buried.pop_front().expect("just seen");
            self.tombstones.remove(&id);
        }
        self.waiters.retain(|_, waiters| {
            waiters.retain(|(_, until)| *until > now);
            !waiters.is_empty()
        });
    }

    /// Follows a change of members: drops the shards that are kept elsewhere now, and the dead.
    pub(crate) fn follow(
        &mut self,
        kept_here: impl Fn(&ObjectId) -> bool,
        alive: impl Fn(NodeId) -> bool,
    ) -> Consequences {
        let mut consequences = Consequences::default();
        self.entries.retain(|id, _| kept_here(id));
        for waiters in self.waiters.values_mut() {
            waiters.retain(|(waiter, _)| alive(waiter.node));
        }
        self.waiters.retain(|id, waiters| kept_here(id) && !waiters.is_empty());
        for (id, entry) in &mut self.entries {
            entry.holders.retain(|(node, _)| alive(*node));
            if entry.holders.is_empty() {
                let waiters = self.waiters.remove(id).unwrap_or_default();
                consequences.lost.extend(waiters.into_iter().map(|(waiter, _)| (*id, waiter)));
            } else if entry.holders.iter().all(|(_, role)| *role == Role::Cached) {
                // Both keepers come to the same choice.
                let heir = entry.holders.iter_mut().min_by_key(|(node, _)| *node).expect("not empty");
                heir.1 = Role::Primary;
                consequences.promoted.push((heir.0, *id));
            }
        }
        consequences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId::from_bytes([1; 16]);
    const B: NodeId = NodeId::from_bytes([2; 16]);
    const C: NodeId = NodeId::from_bytes([3; 16]);

    fn waiter(node: NodeId) -> Waiter {
        Waiter { node, request: 7, tenant: 0 }
    }

    fn primary(id: ObjectId) -> Holding {
        Holding { id, role: Role::Primary }
    }

    fn cached(id: ObjectId) -> Holding {
        Holding { id, role: Role::Cached }
    }

    #[test]
    fn a_waiter_is_told_by_the_publication() {
        let (mut directory, id, now) = (Directory::default(), ObjectId::random(), Instant::now());
        assert_eq!(directory.fetch(id, waiter(B), &[], now), Lookup::Waiting);
        assert_eq!(directory.fetch(id, waiter(B), &[], now), Lookup::Waiting, "asking again adds nobody");
        assert_eq!(directory.publish(A, primary(id)), Published::Welcome(vec![waiter(B)]));
        assert_eq!(directory.fetch(id, waiter(B), &[], now), Lookup::Holder(A));
        assert_eq!(directory.fetch(id, waiter(B), &[A], now), Lookup::Waiting, "its only holder failed it");
        assert_eq!(directory.publish(C, cached(id)), Published::Welcome(vec![waiter(B)]));
    }

    #[test]
    fn holders_take_turns() {
        let (mut directory, id, now) = (Directory::default(), ObjectId::random(), Instant::now());
        directory.publish(A, primary(id));
        directory.publish(B, cached(id));
        let asked: HashSet<_> = (0..2)
            .map(|_| match directory.fetch(id, waiter(C), &[], now) {
                Lookup::Holder(node) => node,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(asked, HashSet::from([A, B]));
        assert_eq!(directory.fetch(id, waiter(A), &[], now), Lookup::Holder(B), "never itself");
    }

    #[test]
    fn the_death_of_the_last_holder_is_a_loss_and_of_the_primary_a_promotion() {
        let (mut directory, now) = (Directory::default(), Instant::now());
        let (single, doubled) = (ObjectId::random(), ObjectId::random());
        directory.publish(A, primary(single));
        directory.publish(A, primary(doubled));
        directory.publish(B, cached(doubled));
        assert_eq!(directory.fetch(single, waiter(C), &[A], now), Lookup::Waiting);
        let consequences = directory.follow(|_| true, |node| node != A);
        assert_eq!(consequences.lost, vec![(single, waiter(C))]);
        assert_eq!(consequences.promoted, vec![(B, doubled)]);
        assert_eq!(directory.fetch(single, waiter(C), &[], now), Lookup::Lost);
        assert!(!directory.knows(&single) && directory.knows(&doubled));
        assert_eq!(directory.publish(C, primary(single)), Published::Welcome(vec![]), "found again");
        assert!(directory.knows(&single));
    }

    #[test]
    fn a_deletion_turns_late_replicas_away_but_not_a_new_object() {
        let (mut directory, id, now) = (Directory::default(), ObjectId::random(), Instant::now());
        directory.publish(A, primary(id));
        assert_eq!(directory.delete(id, now), Some(vec![A]));
        assert_eq!(directory.delete(id, now), None);
        assert!(directory.deleted(&id));
        assert_eq!(directory.publish(B, cached(id)), Published::Deleted);
        assert_eq!(directory.publish(A, primary(id)), Published::Welcome(vec![]));
        assert!(!directory.deleted(&id) && directory.knows(&id));
        directory.delete(id, now);
        directory.expire(now + TOMBSTONE);
        assert!(!directory.deleted(&id));
    }

    #[test]
    fn a_publication_that_a_deletion_overtook_leaves_nothing() {
        let (mut directory, id, now) = (Directory::default(), ObjectId::random(), Instant::now());
        assert_eq!(directory.delete(id, now), None);
        directory.publish(A, primary(id));
        directory.dropped(A, id, now);
        assert_eq!(directory.len(), 0, "deleted, not lost");
        directory.publish(A, primary(id));
        directory.publish(B, cached(id));
        directory.evicted(A, &id);
        directory.evicted(B, &id);
        assert_eq!(directory.fetch(id, waiter(C), &[], now), Lookup::Lost, "nobody deleted it");
    }

    #[test]
    fn waiters_end_by_forgetting_expiry_and_moved_shards() {
        let (mut directory, id, now) = (Directory::default(), ObjectId::random(), Instant::now());
        directory.fetch(id, waiter(B), &[], now);
        directory.forget(B, 7);
        assert!(directory.waiters.is_empty());
        directory.fetch(id, waiter(B), &[], now);
        directory.expire(now + WAITER);
        assert!(directory.waiters.is_empty());
        directory.fetch(id, waiter(B), &[], now);
        directory.publish(A, primary(ObjectId::random()));
        directory.follow(|_| false, |_| true);
        assert!(directory.waiters.is_empty() && directory.entries.is_empty());
    }
}
