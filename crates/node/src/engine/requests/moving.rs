//! What applications ask about objects' moves: explain, locations, prefetch, calibrate. Engine thread only.

use std::cell::Cell;
use std::rc::Rc;

use plasmon::transfer::Location;
use plasmon::wire::Reply;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};
use serde::Serialize;

use crate::engine::Core;
use crate::engine::client::ClientKey;
use crate::object::Role;

/// Objects being prefetched at a time.
const PREFETCHED: usize = 1 << 16;

impl Core {
    pub(super) fn explain_to(&self, client: ClientKey, id: &ObjectId) -> Result<Reply, Error> {
        let tenant = self.client(client, |client| client.uid);
        if self.objects.borrow().get(id).is_some_and(|replica| !replica.visible_to(tenant)) {
            return Err(crate::transfer::not_visible(*id, tenant));
        }
        Ok(Reply::explained(json(&self.explain(id, tenant))))
    }

    pub(super) async fn locations(self: Rc<Self>, client: ClientKey, id: ObjectId) -> Result<Reply, Error> {
        let tenant = self.client(client, |client| client.uid);
        let visible = self.objects.borrow().get(&id).filter(|replica| replica.visible_to(tenant)).cloned();
        let here = visible.map(|replica| (self.node, replica.role()));
        let elsewhere = if self.cluster.solo() { Vec::new() } else { self.holders(id, tenant).await? };
        let elsewhere = elsewhere.into_iter().filter(|(node, _)| *node != self.node);
        let location =
            |(node, role): (NodeId, Role)| Location { node: node.to_string(), role: role.name().to_owned() };
        Ok(Reply::located(json(&here.into_iter().chain(elsewhere).map(location).collect::<Vec<_>>())))
    }

    /// Begins to fetch what is not here; that goes on if the client leaves.
    pub(super) fn prefetch(
        self: &Rc<Self>,
        client: ClientKey,
        timeout_us: u64,
        ids: &[ObjectId],
    ) -> Result<Reply, Error> {
        let tenant = self.client(client, |client| client.uid);
        let due = self.due(timeout_us);
        let absent: Vec<_> =
            ids.iter().filter(|id| self.objects.borrow().conflict(id).is_none()).copied().collect();
        if self.cluster.solo() {
            return Ok(Reply::PREFETCHING);
        }
        let count = Rc::clone(&self.transfer.prefetched);
        if count.get() + absent.len() > PREFETCHED {
            let text =
                format!("this node prefetches {PREFETCHED} objects already; let some of them come first");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        for id in absent {
            let (core, counted) = (Rc::clone(self), Counted::new(&count));
            self.spawn(async move {
                // What does not come is found out by whoever gets it.
                let _ = core.clock.bounded(due, core.fetch(id, tenant)).await;
                drop(counted);
            });
        }
        Ok(Reply::PREFETCHING)
    }

    pub(super) async fn calibrate_to(self: Rc<Self>, peer: NodeId) -> Result<Reply, Error> {
        Ok(Reply::calibrated(json(&self.calibrate(peer).await?)))
    }
}

/// One of what is counted, while it lives.
struct Counted(Rc<Cell<usize>>);

impl Counted {
    fn new(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

pub(super) fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("plain values")
}
