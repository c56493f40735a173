//! Requests about the transfer of objects: explain, locations, prefetch, calibrate. Owns no state. Engine
//! thread only.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use plasmon::transfer::Location;
use plasmon::wire::{LentRange, Reply};
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use serde::Serialize;

use super::Requests;
use crate::kernel::ClientKey;
use crate::kernel::counted::Counted;
use crate::object::Role;
use crate::transfer::Given;

/// Maximum number of objects being prefetched at a time.
const MAX_PREFETCHES: usize = 1 << 16;

impl Requests {
    pub(super) fn explain_to(&self, client: ClientKey, id: &ObjectId) -> Result<Reply, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        if self.store.objects.borrow().get(id).is_some_and(|replica| !replica.visible_to(user)) {
            return Err(crate::object::not_visible(*id, user));
        }
        Ok(Reply::Report { json: json(&self.transfer.records.explain(id, user)) })
    }

    pub(super) async fn locations(self: Rc<Self>, client: ClientKey, id: ObjectId) -> Result<Reply, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        let visible =
            self.store.objects.borrow().get(&id).filter(|replica| replica.visible_to(user)).cloned();
        let here = visible.map(|replica| (self.kernel.node, replica.role()));
        let elsewhere =
            if self.cluster.solo() { Vec::new() } else { self.directory.holders(id, user).await? };
        let elsewhere = elsewhere.into_iter().filter(|(node, _)| *node != self.kernel.node);
        let location =
            |(node, role): (NodeId, Role)| Location { node: node.to_string(), role: role.name().to_owned() };
        Ok(Reply::Report { json: json(&here.into_iter().chain(elsewhere).map(location).collect::<Vec<_>>()) })
    }

    /// Begins to fetch the objects that are not here. The fetches go on if the client leaves.
    pub(super) fn prefetch(
        self: &Rc<Self>,
        client: ClientKey,
        timeout_us: u64,
        ids: &[ObjectId],
    ) -> Result<Reply, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        let due = self.sessions.due(timeout_us);
        let absent: Vec<_> =
            ids.iter().filter(|id| self.store.objects.borrow().conflict(id).is_none()).copied().collect();
        if self.cluster.solo() {
            return Ok(Reply::Done);
        }
        let count = Rc::clone(&self.transfer.prefetched);
        if count.get() as usize + absent.len() > MAX_PREFETCHES {
            let text =
                format!("this node prefetches {MAX_PREFETCHES} objects already; let some of them come first");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let counted: Vec<_> = absent.iter().map(|_| Counted::new(Rc::clone(&count))).collect();
        let (requests, short_due) = (Rc::clone(self), due.filter(|_| timeout_us > 0));
        self.kernel.spawn(async move {
            let short = requests.transfer.bring_short(&absent, user, false);
            requests.kernel.clock.bounded(short_due, short).await;
            for (id, counted) in absent.into_iter().zip(counted) {
                if requests.store.objects.borrow().conflict(&id).is_none() {
                    requests.prefetch_one(id, user, (timeout_us, due), counted);
                }
            }
        });
        Ok(Reply::Done)
    }

    /// Begins to fetch an object. A client that gets an object that did not come learns why.
    fn prefetch_one(
        self: &Rc<Self>,
        id: ObjectId,
        user: u32,
        (timeout_us, due): (u64, Option<Instant>),
        counted: Counted<Rc<Cell<u64>>>,
    ) {
        let requests = Rc::clone(self);
        self.kernel.spawn(async move {
            match timeout_us {
                0 => drop(requests.seek_all((&[id], false), user, None).await),
                _ => {
                    let fetch = requests.transfer.fetch(id, user, false);
                    _ = requests.kernel.clock.bounded(due, fetch).await;
                }
            }
            drop(counted);
        });
    }

    /// Returns a piece of the memory that a client was lent, or has registered.
    ///
    /// # Errors
    /// `Invalid` when the client has no such memory.
    pub(crate) fn give(&self, client: ClientKey, memory: LentRange, len: u64) -> Result<Rc<Given>, Error> {
        self.lending.give(client, memory.buffer, memory.at, len)
    }

    pub(super) async fn calibrate_to(self: Rc<Self>, peer: NodeId) -> Result<Reply, Error> {
        Ok(Reply::Report { json: json(&self.transfer.calibrate(peer).await?) })
    }
}

pub(super) fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("plain values")
}
