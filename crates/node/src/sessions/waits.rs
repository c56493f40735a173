//! Entries of rings that wait for other nodes: puts and creations of ids that other nodes decide, and
//! deletions in a cluster.
//!
//! Owns no state: the tasks and outcomes are in [`outcomes`](super::outcomes). Engine thread only. A task
//! carries out the entry as it carries out the same request of the socket. Another task completes the entry
//! within [`RING_PATIENCE`], since the client's other threads wait for the ring meanwhile. An entry that
//! takes longer goes on, and the client collects its outcome by the socket, as it does for an outcome that no
//! completion can hold (an error, a refusal, descriptors).
//!
//! Invariants: no request is made twice. No claim of an id is withdrawn because it took long: the claim may
//! be granted all the same, and the next claim of the id would be refused.
//!
//! A put or a creation ends with its client, and when the client does not want its outcome any more. A
//! deletion goes on.

use std::future::ready;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{AbortHandle, abortable};
use plasmon::shared::{Completion, Operation, Outcome, Submission};
use plasmon::wire::NewObject;
use plasmon::{Error, ErrorKind, ObjectId};

use super::channel::Channel;
use super::outcomes::{Brought, tell_by_ring};
use super::requests::{Creations, weight};
use crate::kernel::ClientKey;
use crate::service::Answer;

/// Longest time that an entry waits for other nodes before the socket takes over. Some hundred round trips,
/// and too short for a thread that waits for the ring to notice.
const RING_PATIENCE: Duration = Duration::from_millis(5);

/// An entry that is being carried out. Dropping it ends the work, unless the entry is a deletion.
struct UnderWay {
    task: Option<AbortHandle>,
    outcome: oneshot::Receiver<Result<Brought, Error>>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl UnderWay {
    async fn outcome(&mut self) -> Result<Brought, Error> {
        let outcome = (&mut self.outcome).await;
        outcome.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the node is stopping")))
    }
}

impl Creations {
    /// Makes an object whose id another node decides, and has a task complete the entry.
    pub(super) fn make_later(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        entry: &Submission,
        object: NewObject,
        data: &[u8],
    ) -> Option<()> {
        let weight = weight(data.len());
        let number = self.begin_wait(key, channel, entry, weight)?;
        let (creations, digest) = (Rc::clone(self), entry.digest);
        let making = if entry.operation == Operation::Create {
            let sizes = (entry.data_len, 0);
            let begun = creations.begin_claimed(key, object, sizes, Duration::ZERO);
            async move { begun.await.map(Brought::Created) }.boxed_local()
        } else {
            let put = creations.put(key, object, digest, Duration::ZERO, Bytes::copy_from_slice(data));
            async move { put.await.map(|_| Brought::Put) }.boxed_local()
        };
        let (making, ending) = abortable(making);
        let sessions = Rc::clone(&self.sessions);
        let (sender, outcome) = oneshot::channel();
        self.kernel.spawn(async move {
            let made = making.await;
            sessions.arrive(key, weight);
            if let Ok(made) = made {
                // A creation of which nobody is told is aborted.
                let _ = sender.send(made);
            }
        });
        self.complete_later(key, channel, number, entry.token, UnderWay { task: Some(ending), outcome });
        Some(())
    }

    /// Deletes objects everywhere, and has a task complete the entry.
    pub(super) fn delete_later(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        entry: &Submission,
        ids: Vec<ObjectId>,
    ) -> Option<()> {
        let weight = ids.len();
        let number = self.begin_wait(key, channel, entry, weight)?;
        let user = self.sessions.client(key, |client| client.uid);
        let (directory, sessions) = (Rc::clone(&self.directory), Rc::clone(&self.sessions));
        let (sender, outcome) = oneshot::channel();
        self.kernel.spawn(async move {
            let deleted = directory.deletion.delete_all(&ids, &[], user).await;
            sessions.arrive(key, weight);
            // The client may have gone.
            let _ = sender.send(deleted.map(Brought::Deleted));
        });
        self.complete_later(key, channel, number, entry.token, UnderWay { task: None, outcome });
        Some(())
    }

    /// Answers with the outcome of an entry that the ring did not tell.
    pub(super) fn collect(&self, key: ClientKey, number: u64) -> Answer {
        let channel = self.sessions.channel(key);
        match channel.and_then(|channel| channel.outcomes.take(number)) {
            // An operation that is under way has its own weight.
            Some(outcome) => Answer::later(0, async move { outcome.await?.tell() }),
            None => {
                let text =
                    format!("there is no outcome {number} to collect: it was told already, or never was");
                Answer::now(Err(Error::new(ErrorKind::Invalid, text)))
            }
        }
    }

    /// Returns a number for an entry that waits. `None` if the entry is not patient, or the client has too
    /// much under way. The caller calls `Sessions::arrive` with the weight when the entry is over.
    fn begin_wait(
        &self,
        key: ClientKey,
        channel: &Channel,
        entry: &Submission,
        weight: usize,
    ) -> Option<u64> {
        let number = channel.outcomes.draw().filter(|_| entry.patient)?;
        self.sessions.set_out(key, weight).then_some(number)
    }

    /// Has a task complete the entry that was taken last.
    fn complete_later(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        number: u64,
        token: u64,
        mut under_way: UnderWay,
    ) {
        let (place, sessions) = (channel.pages.last_taken(), Rc::clone(&self.sessions));
        let (task, handle) = abortable(async move {
            let clock = &sessions.kernel.clock;
            let outcome = clock.bounded(Some(clock.now() + RING_PATIENCE), under_way.outcome()).await;
            let Some(channel) = sessions.channel(key) else { return };
            channel.outcomes.end(number);
            let (outcome, answer) = if channel.pages.was_given_up(place) {
                // The client does not want the outcome any more.
                (Outcome::AskBySocket, 0)
            } else {
                match outcome.map(tell_by_ring) {
                    Some(Ok(answer)) => (Outcome::Done, answer),
                    Some(Err(left)) => channel.outcomes.keep(number, ready(left)),
                    None => channel.outcomes.keep(number, async move { under_way.outcome().await }),
                }
            };
            if channel.pages.complete(&Completion { token, outcome, answer }) {
                channel.pages.wake();
            } else {
                sessions.let_go(key, "it does not read the completions in its ring");
            }
        });
        channel.outcomes.begin(number, handle);
        self.kernel.spawn(async move {
            // The task was aborted if the client has gone.
            let _ = task.await;
        });
    }
}
