//! Abandoned names: locks whose last holder died or lost them, and that nobody holds or waits for. Owns
//! [`Abandoned`]. Engine thread only.
//!
//! They are kept so that the next holder learns of it, and never keep a lock from being given: each user has
//! a bounded number, of which the oldest are forgotten first, and all are forgotten after [`KEPT_TIME`].
//!
//! Invariant: each name is in both tables, or in none.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use plasmon::sync::{LockHolder, LockInfo, SyncKind};
use plasmon::{NodeId, ObjectId};

use super::frames::{self, MAX_LEFT_ROWS};
use super::lock::nanos;
use crate::kernel::random::HashMap;

/// How long a name is kept.
const KEPT_TIME: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of names that processes of one user have left.
const MAX_LEFT_OF_USER: usize = 1 << 14;
/// Maximum number of names that processes of all users have left.
const MAX_LEFT: usize = 1 << 18;
/// Number of bytes of names from which on a page ends.
const PAGE_BYTES: usize = 6 << 10;

/// The client that died, or lost a lock, and the time at which the home learned that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leaver {
    pub(super) node: NodeId,
    /// The process; 0 if it is not known which one it was.
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) token: u128,
    pub(super) at: u64,
}

impl Leaver {
    /// Returns the client as others are told of it. The age is that of the end of its guard.
    pub(super) fn told(&self, now: u64) -> LockHolder {
        let Self { node, pid, uid, token, at } = *self;
        LockHolder { node, pid, uid, token, age_ms: now.saturating_sub(at) / 1_000_000 }
    }

    /// Takes the client of which a node tells.
    pub(super) fn of(told: &LockHolder, now: u64) -> Self {
        let LockHolder { node, pid, uid, token, age_ms } = *told;
        Self { node, pid, uid, token, at: now.saturating_sub(age_ms.saturating_mul(1_000_000)) }
    }
}

/// A name whose last holder died, or lost the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) name: String,
    pub(super) owner: Option<u32>,
    pub(super) by: Leaver,
    /// The epoch of the view in which the home of the lock last became another.
    pub(super) moved: u64,
    /// Whether this node is the home of the lock now, and not the former home.
    pub(super) mine: bool,
}

impl Left {
    /// Returns the row in a list of the home.
    fn info(&self, home: NodeId, now: u64) -> LockInfo {
        LockInfo {
            name: self.name.clone(),
            kind: SyncKind::Lock,
            owner: self.owner,
            home,
            shared: false,
            holders: Vec::new(),
            held: 0,
            waiting: 0,
            parties: 0,
            generation: 0,
            abandoned: Some(self.by.told(now)),
        }
    }
}

/// The abandoned names that a node knows as a home, or as a former one.
#[derive(Default)]
pub(super) struct Abandoned {
    all: BTreeMap<ObjectId, Left>,
    /// For each user, the names that processes of the user have left, by the time of that.
    by_user: HashMap<u32, BTreeSet<(u64, ObjectId)>>,
}

impl Abandoned {
    /// Keeps a name. The oldest one of the user is forgotten if there are too many.
    pub(super) fn insert(&mut self, id: ObjectId, left: Left) {
        self.remove(&id);
        let user = left.by.uid;
        let of_user = self.by_user.get(&user).map_or(0, BTreeSet::len);
        let fullest = match (of_user >= MAX_LEFT_OF_USER, self.all.len() >= MAX_LEFT) {
            (true, _) => Some(user),
            (false, true) => {
                self.by_user.iter().max_by_key(|(user, all)| (all.len(), **user)).map(|(user, _)| *user)
            }
            (false, false) => None,
        };
        if let Some((_, oldest)) = fullest.and_then(|user| self.by_user.get(&user)?.first().copied()) {
            self.remove(&oldest);
        }
        self.by_user.entry(user).or_default().insert((left.by.at, id));
        self.all.insert(id, left);
    }

    /// Takes a name out.
    pub(super) fn remove(&mut self, id: &ObjectId) -> Option<Left> {
        let left = self.all.remove(id)?;
        let user = left.by.uid;
        if let Some(of_user) = self.by_user.get_mut(&user) {
            of_user.remove(&(left.by.at, *id));
            if of_user.is_empty() {
                self.by_user.remove(&user);
            }
        }
        Some(left)
    }

    /// Forgets the names that have been kept for long enough.
    pub(super) fn forget(&mut self, now: u64) {
        let late = |(at, id): (u64, ObjectId)| (now.saturating_sub(at) > nanos(KEPT_TIME)).then_some(id);
        let next = |all: &Self| all.by_user.values().find_map(|of_user| late(*of_user.first()?));
        while let Some(id) = next(self) {
            self.remove(&id);
        }
    }

    /// Keeps the names of which the function says so.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&ObjectId, &mut Left) -> bool) {
        let gone: Vec<_> =
            self.all.iter_mut().filter_map(|(id, left)| (!keeps(id, left)).then_some(*id)).collect();
        gone.iter().for_each(|id| _ = self.remove(id));
    }

    /// Returns a page of the names of which the function says so, behind an id, and whether more may come.
    pub(super) fn page(
        &self,
        after: Option<ObjectId>,
        now: u64,
        is_meant: impl Fn(&ObjectId, &Left) -> bool,
    ) -> (Vec<frames::Abandoned>, bool) {
        let (mut page, mut bytes) = (Vec::new(), 0);
        let rest = self.all.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        for (_, left) in rest.filter(|(id, left)| is_meant(id, left)) {
            if page.len() == MAX_LEFT_ROWS || bytes >= PAGE_BYTES {
                return (page, true);
            }
            bytes += size_of::<LockHolder>() + left.name.len();
            page.push(frames::Abandoned {
                name: left.name.clone(),
                owner: left.owner,
                by: left.by.told(now),
            });
        }
        (page, false)
    }

    /// Returns the rows of this home that a user may know.
    pub(super) fn rows(
        &self,
        home: NodeId,
        user: u32,
        now: u64,
    ) -> impl Iterator<Item = (ObjectId, LockInfo)> {
        let seen =
            move |left: &Left| left.mine && (user == 0 || left.owner.is_none_or(|owner| owner == user));
        let rows = self.all.iter().filter(move |(_, left)| seen(left));
        rows.map(move |(id, left)| (*id, left.info(home, now)))
    }

    /// Number of names whose home this node is.
    pub(super) fn count(&self) -> usize {
        self.all.values().filter(|left| left.mine).count()
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.by_user.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(number: usize, uid: u32, at: u64) -> (ObjectId, Left) {
        let name = number.to_string();
        let by = Leaver { node: NodeId::from_bytes([1; 16]), pid: 3, uid, token: 4, at };
        (ObjectId::from_name(&name), Left { name, owner: None, by, moved: 0, mine: true })
    }

    impl Abandoned {
        fn add(&mut self, number: usize, uid: u32, at: u64) {
            let (id, left) = left(number, uid, at);
            self.insert(id, left);
        }

        fn has(&self, number: usize) -> bool {
            self.all.contains_key(&left(number, 0, 0).0)
        }
    }

    #[test]
    fn the_oldest_of_a_user_are_forgotten_and_those_of_others_are_not() {
        let mut all = Abandoned::default();
        all.add(0, 8, 0);
        (1..=MAX_LEFT_OF_USER).for_each(|number| all.add(number, 7, number as u64));
        assert!(all.has(0) && all.has(1));
        all.add(MAX_LEFT_OF_USER + 1, 7, 0);
        assert!(all.has(0) && !all.has(1) && all.has(2) && all.has(MAX_LEFT_OF_USER + 1));
        // A name that is left again is one still.
        all.add(2, 7, MAX_LEFT_OF_USER as u64 + 5);
        assert_eq!(all.count(), MAX_LEFT_OF_USER + 1);
        (1..17).for_each(|user| {
            let first = (user as usize + 1) * 2 * MAX_LEFT_OF_USER;
            (0..MAX_LEFT_OF_USER).for_each(|number| all.add(first + number, 100 + user, 0));
        });
        assert_eq!(all.all.len(), MAX_LEFT);
        assert!(all.has(0), "the user with the most loses some");
        let tables: usize = all.by_user.values().map(BTreeSet::len).sum();
        assert_eq!(tables, MAX_LEFT);
    }

    #[test]
    fn a_name_is_kept_for_a_day() {
        const DAY: u64 = 24 * 3600 * 1_000_000_000;
        let mut all = Abandoned::default();
        all.add(1, 7, 5);
        all.add(2, 8, 9);
        all.forget(DAY + 5);
        assert!(all.has(1) && all.has(2));
        all.forget(DAY + 6);
        assert!(!all.has(1) && all.has(2));
        all.forget(DAY + 10);
        assert_eq!((all.all.len(), all.by_user.len()), (0, 0));
    }

    #[test]
    fn pages_have_all_names_in_their_order() {
        let mut all = Abandoned::default();
        (0..1000).for_each(|number| all.add(number, 7, 5));
        all.retain(|id, _| *id != left(3, 0, 0).0);
        let (mut after, mut told) = (None, Vec::new());
        loop {
            let (page, more) = all.page(after, 1_000_005, |_, _| true);
            assert!(page.len() <= MAX_LEFT_ROWS && page.iter().all(|row| row.by.age_ms == 1));
            told.extend(page.into_iter().map(|row| row.name));
            after = told.last().map(|name: &String| ObjectId::from_name(name));
            if !more {
                break;
            }
        }
        assert_eq!(told.len(), 999);
        assert!(told.iter().map(|name| ObjectId::from_name(name)).is_sorted());
    }
}
