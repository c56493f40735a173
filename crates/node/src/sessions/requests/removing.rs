//! Requests that remove objects: delete, evict. Owns no state. Engine thread only.

use std::rc::Rc;

use plasmon::wire::Reply;
use plasmon::wire::files::parts_of;
use plasmon::{Error, ErrorKind, ObjectId};

use super::Requests;
use crate::kernel::ClientKey;
use crate::sessions::answering::busy;

impl Requests {
    /// Deletes objects everywhere. The deletion goes on if the client leaves.
    pub(super) fn delete(self: &Rc<Self>, client: ClientKey, request: u64, ids: Vec<ObjectId>) {
        if !self.sessions.set_out(client, ids.len()) {
            return self.sessions.reply(client, request, &Reply::Failed { error: busy() });
        }
        if let Some(id) = ids.iter().find(|id| parts_of(id).is_some()) {
            self.sessions.arrive(client, ids.len());
            let text = format!("object {id} has bytes of a file: delete the file");
            let error = Error::new(ErrorKind::NotAllowed, text).about(*id);
            return self.sessions.reply(client, request, &Reply::Failed { error });
        }
        let user = self.sessions.client(client, |client| client.uid);
        if self.cluster.solo() {
            self.sessions.arrive(client, ids.len());
            return self.sessions.reply(
                client,
                request,
                &Reply::Deleted(self.directory.deletion.delete_here(&ids, &[], user)),
            );
        }
        let requests = Rc::clone(self);
        self.kernel.spawn(async move {
            let reply = match requests.directory.deletion.delete_all(&ids, &[], user).await {
                Ok(outcomes) => Reply::Deleted(outcomes),
                Err(error) => Reply::Failed { error },
            };
            requests.sessions.arrive(client, ids.len());
            requests.sessions.reply(client, request, &reply);
        });
    }

    /// Evicts objects from memory, least recently used first; returns the number of bytes freed.
    pub(super) fn evict(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        while freed < bytes {
            match self.store.make_way(bytes - freed) {
                None => break,
                Some(more) => freed += more,
            }
        }
        freed
    }
}
