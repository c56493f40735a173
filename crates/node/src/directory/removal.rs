//! Deletions that this node's users ask for, in the cluster or on a node that is alone. Owns no
//! state. Engine thread only.

use std::rc::Rc;
use std::time::Duration;

use plasmon::{DeleteOutcome, Error, ErrorKind, ObjectId};

use super::deletion::{ASKER_PATIENCE, Deletion, NO_LIFE, name_some};
use crate::kernel::random::HashMap;
use crate::net::frame::ask;
use crate::object::Replica;

impl Deletion {
    /// Deletes objects of a user on every node; only the given lives, if any are given.
    ///
    /// # Errors
    /// `OutcomeUnknown` when some of the objects may still be on other nodes.
    pub(crate) async fn delete_all(
        self: &Rc<Self>,
        ids: &[ObjectId],
        lives: &[u64],
        user: u32,
    ) -> Result<Vec<DeleteOutcome>, Error> {
        if self.cluster.solo() {
            return Ok(self.delete_here(ids, lives, user));
        }
        let pinned = self.pinned(ids);
        let deleted = self.delete_in_cluster(ids, lives, user).await?;
        let outcome = |(outcome, pinned)| match (outcome, pinned) {
            (DeleteOutcome::Deleted, true) => DeleteOutcome::Deferred,
            (outcome, _) => outcome,
        };
        Ok(deleted.into_iter().zip(pinned).map(outcome).collect())
    }

    /// Deletes objects on every node; only the given lives, if any are given.
    ///
    /// # Errors
    /// `OutcomeUnknown` when some of the objects may still exist: a keeper does not answer, or waits
    /// for a node that may still hold an object.
    async fn delete_in_cluster(
        self: &Rc<Self>,
        ids: &[ObjectId],
        lives: &[u64],
        user: u32,
    ) -> Result<Vec<DeleteOutcome>, Error> {
        self.cluster.ensure_member()?;
        let lives: HashMap<_, _> = ids.iter().zip(lives).map(|(id, life)| (*id, *life)).collect();
        let life = |id: ObjectId| (id, lives.get(&id).copied().unwrap_or(NO_LIFE));
        let delete = |ids: Vec<_>, ago: Option<Duration>| ask::Delete {
            lives: ids.into_iter().map(life).collect(),
            asked_us: ago.map(|ago| ago.as_micros() as u64),
        };
        let patience = self.deletion_patience() + ASKER_PATIENCE;
        let answers =
            self.asking.ask_first_keepers(ids, user, delete, |deleted| deleted.outcomes, patience).await;
        let unknown = |why: String| Error::new(ErrorKind::OutcomeUnknown, why);
        let answers = answers.map_err(|error| match error.kind() {
            ErrorKind::TimedOut | ErrorKind::Disconnected => {
                unknown(format!("it is not known whether {} deleted: {error}", name_some(ids, "was", "were")))
            }
            _ => error,
        })?;
        let decide = |(id, (outcome, repeated)): (&ObjectId, (DeleteOutcome, bool))| match (outcome, repeated)
        {
            (DeleteOutcome::Absent, true) => Err(unknown(format!(
                "object {id} does not exist any more, or was created anew, and it is not known whether this \
                 call deleted it: its first keeper left before it answered"
            ))),
            (outcome, _) => Ok(outcome),
        };
        ids.iter().zip(answers).map(decide).collect()
    }

    /// Returns for each of these objects whether it is pinned on this node.
    fn pinned(&self, ids: &[ObjectId]) -> Vec<bool> {
        let fast = self.store.scan_pins();
        let objects = self.store.objects.borrow();
        let pinned = |replica: &Rc<Replica>| replica.pins() + fast.of(replica) > 0;
        ids.iter().map(|id| objects.get(id).is_some_and(pinned)).collect()
    }

    /// Deletes objects on a node that decides alone; only the given lives, if any are given. One scan of the
    /// clients' pins serves all objects.
    pub(crate) fn delete_here(&self, ids: &[ObjectId], lives: &[u64], user: u32) -> Vec<DeleteOutcome> {
        let lives = lives.iter().copied().chain(std::iter::repeat(NO_LIFE));
        let deleted: Vec<_> =
            ids.iter().zip(lives).map(|(id, life)| self.delete_one(id, life, user)).collect();
        let fast = self.store.scan_pins();
        let pinned = |replica: &Rc<Replica>| replica.pins() + fast.of(replica) > 0;
        let outcomes = deleted
            .iter()
            .map(|deleted| match deleted {
                Ok(replica) if pinned(replica) => DeleteOutcome::Deferred,
                Ok(_) => DeleteOutcome::Deleted,
                Err(outcome) => *outcome,
            })
            .collect();
        drop(deleted);
        self.store.objects.borrow_mut().reap(&fast);
        outcomes
    }

    /// Deletes an object of the given life, or of any life for [`NO_LIFE`].
    fn delete_one(&self, id: &ObjectId, life: u64, user: u32) -> Result<Rc<Replica>, DeleteOutcome> {
        match self.store.objects.borrow().get(id) {
            None => return Err(DeleteOutcome::Absent),
            Some(replica) if life != NO_LIFE && life != replica.life => return Err(DeleteOutcome::Absent),
            Some(replica) if !replica.ownership().may_change(user) => {
                return Err(replica.ownership().refusal());
            }
            Some(replica) => self.bury(replica),
        }
        self.store.remove(id).ok_or(DeleteOutcome::Absent)
    }

    /// Remembers that a client of this node ended the life of a replica.
    fn bury(&self, replica: &Replica) {
        let (id, life) = (replica.id(), replica.life);
        self.table.borrow_mut().bury(id, life, self.kernel.clock.now());
    }
}
