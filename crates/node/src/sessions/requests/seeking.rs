//! Gets that do not wait for creation. The first keeper is asked at the start, and each second during the
//! fetch. Owns no state. Engine thread only.
//!
//! Invariant: only the answer of a keeper makes an object absent. If the keeper does not answer within
//! [`KEEPER_PATIENCE`], the get has timed out.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::{Either, join_all, select};
use plasmon::{Error, ErrorKind, ObjectId};

use super::Requests;
use crate::kernel::ClientKey;
use crate::object::{Conflict, Pin};

/// Longest wait for a keeper to say whether an object exists.
pub(super) const KEEPER_PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which the keeper is asked again about an object that is on its way: it may have been deleted.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Requests {
    pub(super) fn seek(
        self: &Rc<Self>,
        client: ClientKey,
        request: u64,
        timeout_us: u64,
        (ids, verify): (Vec<ObjectId>, bool),
    ) {
        let user = self.sessions.client(client, |client| client.uid);
        if let Some(results) = self.pin_all_here(&ids, user) {
            return self.got(client, request, results);
        }
        let due = self.sessions.due(timeout_us);
        let requests = Rc::clone(self);
        self.sessions.wait(client, request, ids.len(), async move {
            let results = requests.seek_all((&ids, verify), user, due).await;
            requests.got(client, request, results);
        });
    }

    /// Pins objects that exist, and brings objects here that are elsewhere. Returns one result for each id,
    /// in order.
    pub(super) async fn seek_all(
        self: &Rc<Self>,
        (ids, verify): (&[ObjectId], bool),
        user: u32,
        due: Option<Instant>,
    ) -> Vec<Result<Pin, Error>> {
        self.kernel.clock.bounded(due, self.transfer.bring_short(ids, user, verify)).await;
        let asked: Vec<_> = ids.iter().filter(|id| !self.is_here(id)).copied().collect();
        let mut answers = VecDeque::from(self.existing(&asked, user).await);
        let mut asked = asked.iter().peekable();
        let gets = ids.iter().map(|id| {
            let answer = asked.next_if_eq(&id).and_then(|_| answers.pop_front());
            async move {
                answer.unwrap_or(Ok(()))?;
                self.bring((*id, verify), user, due).await
            }
        });
        join_all(gets).await
    }

    /// Whether each object exists: `NotFound` if its first keeper says that it does not, `TimedOut` if that
    /// keeper says nothing.
    pub(super) async fn existing(&self, ids: &[ObjectId], user: u32) -> Vec<Result<(), Error>> {
        if ids.is_empty() {
            return Vec::new();
        }
        let known = match self.cluster.solo() {
            true => vec![Ok(false); ids.len()],
            false => self.directory.known_each(ids, user, KEEPER_PATIENCE).await,
        };
        let judged = ids.iter().zip(known).map(|(id, known)| match known {
            Ok(true) => Ok(()),
            // The object was sealed here, or has come, while the question was on its way.
            _ if self.is_here(id) => Ok(()),
            Ok(false) => Err(self.missing(id)),
            Err(error) => {
                let text = format!("cannot tell whether object {id} is in the cluster: {error}");
                Err(Error::new(ErrorKind::TimedOut, text))
            }
        });
        judged.collect()
    }

    /// Waits until an object that existed is gone. The wait may never end.
    pub(super) async fn vanishing(&self, id: ObjectId, user: u32) -> Error {
        loop {
            self.kernel.clock.sleep(LOOK_INTERVAL).await;
            if let [Err(error)] = &self.existing(&[id], user).await[..]
                && error.kind() == ErrorKind::NotFound
            {
                return error.clone();
            }
        }
    }

    /// Brings an object here that existed a moment ago, and pins it.
    async fn bring(
        self: &Rc<Self>,
        (id, verify): (ObjectId, bool),
        user: u32,
        due: Option<Instant>,
    ) -> Result<Pin, Error> {
        let coming = std::pin::pin!(self.get_one((id, verify), user, false, due));
        let vanishing = std::pin::pin!(self.vanishing(id, user));
        match select(coming, vanishing).await {
            Either::Left((result, _)) => result,
            Either::Right((error, _)) => Err(error),
        }
    }

    /// Whether a sealed object is on this node, in memory or on disk, and is given without asking.
    pub(super) fn is_here(&self, id: &ObjectId) -> bool {
        self.store.objects.borrow().get(id).is_some_and(|replica| !replica.is_guarded())
    }

    fn missing(&self, id: &ObjectId) -> Error {
        let why = match self.store.objects.borrow().conflict(id) {
            Some(Conflict::Creating { client }) => {
                format!(": it is being created by {} and not sealed yet", self.store.readers.describe(client))
            }
            _ if self.directory.deleted(id) => ": it was deleted".into(),
            _ => ": nobody has put it where this user may see it, or every node that held it is gone".into(),
        };
        let text = format!("object {id} is not in the cluster{why}; a get with a time-out waits for it");
        Error::new(ErrorKind::NotFound, text)
    }
}
