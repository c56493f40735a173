//! Requests about where objects are to be: replicate, migrate, broadcast, pin, drain. Owns no state. Engine
//! thread only.

use std::rc::Rc;

use plasmon::drain::DrainStep;
use plasmon::wire::Reply;
use plasmon::{Error, ErrorKind, NodeId, ObjectId};

use super::Requests;
use super::transfer::json;
use crate::kernel::ClientKey;

/// Maximum number of objects that a client may have pinned by requests.
const MAX_PINNED_OBJECTS: usize = 1 << 16;

impl Requests {
    pub(super) async fn replicate_for(
        self: Rc<Self>,
        client: ClientKey,
        timeout_us: u64,
        id: ObjectId,
        copies: (u16, bool),
    ) -> Result<Reply, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        let made = self.placement.replicate(id, user, copies, self.sessions.due(timeout_us)).await?;
        Ok(Reply::Report { json: json(&made) })
    }

    pub(super) async fn migrate_for(
        self: Rc<Self>,
        client: ClientKey,
        timeout_us: u64,
        id: ObjectId,
        node: NodeId,
    ) -> Result<Reply, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        let moved = self.placement.migrate(id, user, node, self.sessions.due(timeout_us)).await?;
        Ok(Reply::Report { json: json(&moved) })
    }

    pub(super) async fn broadcast_for(
        self: Rc<Self>,
        client: ClientKey,
        timeout_us: u64,
        id: ObjectId,
        nodes: Vec<NodeId>,
    ) -> Result<Reply, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        let done = self.placement.broadcast(id, user, nodes, self.sessions.due(timeout_us)).await?;
        Ok(Reply::Report { json: json(&done) })
    }

    pub(super) async fn drain_for(
        self: Rc<Self>,
        client: ClientKey,
        node: NodeId,
        step: DrainStep,
    ) -> Result<Reply, Error> {
        let user = self.sessions.client(client, |client| client.uid);
        Ok(Reply::Report { json: json(&self.placement.drain(node, step, user).await?) })
    }

    /// Brings an object to this node, and keeps it in memory until the client unpins it.
    pub(super) async fn pin_for(
        self: Rc<Self>,
        client: ClientKey,
        timeout_us: u64,
        id: ObjectId,
    ) -> Result<Reply, Error> {
        let (user, kept) = self.sessions.client(client, |client| (client.uid, client.kept.len()));
        if kept >= MAX_PINNED_OBJECTS {
            let text =
                format!("this client has pinned {MAX_PINNED_OBJECTS} objects already: unpin some first");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let pin = match timeout_us {
            0 => self.seek_all((&[id], false), user, None).await.remove(0)?,
            _ => self.get_one((id, false), user, false, self.sessions.due(timeout_us)).await?,
        };
        self.sessions.client_mut(client, |client| client.kept.insert(id, pin));
        Ok(Reply::Done)
    }

    pub(super) fn unpin_for(&self, client: ClientKey, id: &ObjectId) {
        self.sessions.client_mut(client, |client| client.kept.remove(id));
    }
}
