//! The names of a home that clients hold or wait for, by their ids, and how many of them each user has. Owns
//! [`Names`]. Engine thread only.
//!
//! Invariant: a name counts for the user whose call made its entry, as long as the entry is there.

use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::lock::Lock;
use crate::kernel::random::HashMap;

/// Maximum number of names that are held or waited for.
pub(super) const MAX_NAMES: usize = 1 << 20;
/// Maximum number of names that one user holds or waits for.
pub(super) const MAX_NAMES_OF_USER: usize = 1 << 17;

/// Locks that clients hold or wait for.
#[derive(Default)]
pub(super) struct Names {
    locks: HashMap<ObjectId, Lock>,
    by_user: HashMap<u32, usize>,
}

impl Names {
    /// Refuses a further name of a user.
    ///
    /// # Errors
    /// `Full` if this user, or all users together, have too many. A name that is there has its place.
    pub(super) fn ensure_room(&self, id: &ObjectId, user: u32, home: NodeId) -> Result<(), Error> {
        if self.locks.contains_key(id) {
            return Ok(());
        }
        let text = if self.by_user.get(&user).is_some_and(|count| *count >= MAX_NAMES_OF_USER) {
            format!(
                "processes of user {user} hold or wait for {MAX_NAMES_OF_USER} locks about which node {home} \
                 decides: unlock some"
            )
        } else if self.locks.len() >= MAX_NAMES {
            format!("node {home} decides about {MAX_NAMES} locks already: let some of them be unlocked")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Full, text))
    }

    /// Returns the lock of an id, which is made if it is not there.
    pub(super) fn get_or_insert(&mut self, id: ObjectId, make: impl FnOnce() -> Lock) -> &mut Lock {
        let by_user = &mut self.by_user;
        self.locks.entry(id).or_insert_with(|| {
            let lock = make();
            *by_user.entry(lock.user()).or_default() += 1;
            lock
        })
    }

    pub(super) fn get(&self, id: &ObjectId) -> Option<&Lock> {
        self.locks.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut Lock> {
        self.locks.get_mut(id)
    }

    pub(super) fn remove(&mut self, id: &ObjectId) -> Option<Lock> {
        let lock = self.locks.remove(id)?;
        uncount(&mut self.by_user, lock.user());
        Some(lock)
    }

    /// Keeps the locks of which the function says so.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&ObjectId, &mut Lock) -> bool) {
        let Self { locks, by_user } = self;
        locks.retain(|id, lock| {
            let stays = keeps(id, lock);
            if !stays {
                uncount(by_user, lock.user());
            }
            stays
        });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Lock)> {
        self.locks.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&ObjectId, &mut Lock)> {
        self.locks.iter_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.locks.len()
    }

    pub(super) fn clear(&mut self) {
        self.locks.clear();
        self.by_user.clear();
    }
}

/// Takes away one name of a user.
fn uncount(by_user: &mut HashMap<u32, usize>, user: u32) {
    if let Some(count) = by_user.get_mut(&user) {
        *count -= 1;
        if *count == 0 {
            by_user.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_has_too_many_names_keeps_no_other_from_having_some() {
        let home = NodeId::from_bytes([1; 16]);
        let id = |number: usize| ObjectId::from_name(&number.to_string());
        let mut names = Names::default();
        for number in 0..MAX_NAMES_OF_USER {
            assert_eq!(names.ensure_room(&id(number), 7, home), Ok(()));
            names.get_or_insert(id(number), || Lock::new("a".into(), None, 7));
        }
        let further = id(MAX_NAMES_OF_USER);
        let refused = names.ensure_room(&further, 7, home).expect_err("too many");
        assert_eq!(refused.kind(), ErrorKind::Full);
        assert_eq!(names.ensure_room(&id(0), 7, home), Ok(()), "the name has its place");
        assert_eq!(names.ensure_room(&further, 8, home), Ok(()), "another user");
        names.remove(&id(0));
        assert_eq!(names.ensure_room(&further, 7, home), Ok(()));
        names.retain(|_, _| false);
        assert_eq!((names.len(), names.by_user.len()), (0, 0));
    }
}
