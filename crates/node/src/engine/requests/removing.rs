//! Taking objects away: delete, evict. Engine thread only.

use std::rc::Rc;

use plasmon::wire::{DeleteOutcome, Reply};
use plasmon::{Error, ObjectId};

use super::busy;
use crate::engine::Core;
use crate::engine::client::ClientKey;
use crate::object::Replica;

impl Core {
    /// Deletes here at once and everywhere in the background: that goes on if the client leaves.
    pub(super) fn delete(self: &Rc<Self>, client: ClientKey, request: u64, ids: Vec<ObjectId>) {
        if !self.set_out(client, ids.len()) {
            return self.reply(client, request, &Reply::Failed { error: busy() });
        }
        // Before anything goes: what others hold could not be deleted, and would come back.
        if let Err(error) = self.cluster.ensure_member() {
            self.arrive(client, ids.len());
            return self.reply(client, request, &Reply::Failed { error });
        }
        let tenant = self.client(client, |client| client.uid);
        // Now: what the client asks next is of what is there then.
        let here = self.delete_here(&ids, tenant);
        if self.cluster.solo() {
            self.arrive(client, ids.len());
            return self.reply(client, request, &Reply::Deleted(here));
        }
        let core = Rc::clone(self);
        self.spawn(async move {
            let reply = match core.delete_elsewhere(&ids, here, tenant).await {
                Ok(outcomes) => Reply::Deleted(outcomes),
                Err(error) => Reply::Failed { error },
            };
            core.arrive(client, ids.len());
            core.reply(client, request, &reply);
        });
    }

    /// Deletes objects of a user everywhere.
    ///
    /// # Errors
    /// When a keeper cannot be asked: some of the objects may still be on other nodes.
    pub(in crate::engine) async fn delete_all(
        self: &Rc<Self>,
        ids: &[ObjectId],
        tenant: u32,
    ) -> Result<Vec<DeleteOutcome>, Error> {
        let here = self.delete_here(ids, tenant);
        if self.cluster.solo() { Ok(here) } else { self.delete_elsewhere(ids, here, tenant).await }
    }

    /// Deletes on other nodes what was deleted here, with these outcomes.
    async fn delete_elsewhere(
        self: &Rc<Self>,
        ids: &[ObjectId],
        here: Vec<DeleteOutcome>,
        tenant: u32,
    ) -> Result<Vec<DeleteOutcome>, Error> {
        match self.delete_in_cluster(ids, tenant).await {
            // What is known here says more than what the keeper knows.
            Ok(everywhere) => Ok(here
                .into_iter()
                .zip(everywhere)
                .map(|(here, there)| if here == DeleteOutcome::Absent { there } else { here })
                .collect()),
            Err(error) => {
                // The keepers still believe that this node has what it removed.
                let removed = |outcome: &DeleteOutcome| {
                    matches!(outcome, DeleteOutcome::Deleted | DeleteOutcome::Deferred)
                };
                let removed = ids.iter().zip(&here).filter(|(_, outcome)| removed(outcome));
                removed.for_each(|(id, _)| self.unpublish(*id, true));
                Err(error)
            }
        }
    }

    /// Deletes here; one scan of the clients' pins serves them all.
    fn delete_here(&self, ids: &[ObjectId], tenant: u32) -> Vec<DeleteOutcome> {
        let deleted: Vec<_> = ids.iter().map(|id| self.delete_one(id, tenant)).collect();
        let fast = self.scan_pins();
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
        self.objects.borrow_mut().reap(&fast);
        outcomes
    }

    fn delete_one(&self, id: &ObjectId, tenant: u32) -> Result<Rc<Replica>, DeleteOutcome> {
        match self.objects.borrow().get(id) {
            None => return Err(DeleteOutcome::Absent),
            Some(replica) if !replica.visible_to(tenant) => return Err(DeleteOutcome::NotAllowed),
            Some(replica) if self.cluster.solo() => self.bury(replica),
            Some(_) => {}
        }
        self.remove(id).ok_or(DeleteOutcome::Absent)
    }

    /// Takes an object off this node: by a user's deletion, or the cluster's. Its memory returns with its
    /// last pin.
    pub(crate) fn remove(&self, id: &ObjectId) -> Option<Rc<Replica>> {
        let replica = self.objects.borrow_mut().remove(id)?;
        self.quotas.borrow_mut().give_back(&replica);
        self.forget_on_disk(&replica);
        Some(replica)
    }

    /// Lets objects leave memory, least recently used first.
    pub(super) fn evict(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        while freed < bytes {
            match self.make_way(bytes - freed) {
                0 => break,
                more => freed += more,
            }
        }
        freed
    }
}
