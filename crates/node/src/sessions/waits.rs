//! Entries of rings that wait for other nodes: deletions in a cluster.
//!
//! Engine thread only. A task completes such an entry within [`RING_PATIENCE`], since the client's other
//! threads wait for the ring meanwhile. A deletion cannot be taken back: it goes on, and the client collects
//! its outcome by the socket, as it does for an outcome that no completion can hold (an error, a refusal).
//! Claims of ids do not wait here: one that is withdrawn after so short a time may be granted all the same,
//! and the next claim of the id is refused then.
//!
//! A task ends with its client, a deletion does not.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{AbortHandle, LocalBoxFuture, Shared, abortable};
use plasmon::shared::{Completion, Deleted, Outcome, Submission};
use plasmon::wire::Reply;
use plasmon::{DeleteOutcome, Error, ErrorKind, ObjectId};

use super::requests::Creations;
use super::rings::{Channel, Served};
use crate::kernel::ClientKey;
use crate::kernel::random::HashMap;
use crate::service::Answer;

/// How long an entry may wait for other nodes before the socket takes over. It is some hundred round trips,
/// and less than a thread notices that waits for the ring.
const RING_PATIENCE: Duration = Duration::from_millis(5);
/// Maximum number of entries of one client that wait, or whose outcomes were not collected.
const MAX_WAITS: usize = 256;

/// The outcome of a deletion, which goes on whether or not somebody waits for it.
type Deletion = Shared<LocalBoxFuture<'static, Result<Vec<DeleteOutcome>, Error>>>;

/// A client's entries that wait, and the outcomes that it is to collect.
#[derive(Default)]
pub(super) struct Waits {
    drawn: Cell<u64>,
    tasks: RefCell<HashMap<u64, AbortHandle>>,
    outcomes: RefCell<HashMap<u64, Deletion>>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.tasks.get_mut().values().for_each(AbortHandle::abort);
    }
}

impl Waits {
    /// A number for another entry; `None` if too many wait already.
    fn draw(&self) -> Option<u64> {
        let waiting = self.tasks.borrow().len() + self.outcomes.borrow().len();
        let number = self.drawn.get() + 1;
        (waiting < MAX_WAITS).then(|| self.drawn.replace(number)).map(|_| number)
    }
}

impl Creations {
    /// Deletes objects everywhere, and has a task complete the entry.
    pub(super) fn delete_later(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        entry: &Submission,
        ids: Vec<ObjectId>,
    ) -> Served {
        let weight = ids.len();
        let Some(number) = self.begin_wait(key, channel, entry, weight) else { return Served::AskBySocket };
        let tenant = self.sessions.client(key, |client| client.uid);
        let directory = Rc::clone(&self.directory);
        let deletion = async move { directory.deletion.delete_all(&ids, &[], tenant).await };
        let deletion = deletion.boxed_local().shared();
        let (creations, outcome) = (Rc::clone(self), deletion.clone());
        self.kernel.spawn(async move {
            // Whoever waits for the outcome has it.
            let _ = outcome.await;
            creations.sessions.arrive(key, weight);
        });
        let creations = Rc::clone(self);
        self.complete_later(key, channel, number, entry.token, async move {
            let due = Some(creations.kernel.clock.now() + RING_PATIENCE);
            let outcome = creations.kernel.clock.bounded(due, deletion.clone()).await;
            let deleted = outcome.and_then(Result::ok).and_then(|outcomes| Deleted::of_all(&outcomes));
            if let Some(deleted) = deleted {
                return (Outcome::Done, deleted.0);
            }
            if let Some(channel) = creations.sessions.channel(key) {
                channel.waits.outcomes.borrow_mut().insert(number, deletion);
            }
            (Outcome::Collect, number)
        });
        Served::Waits
    }

    /// Answers with the outcome of a deletion that began in the client's ring.
    pub(super) fn collect(&self, key: ClientKey, number: u64) -> Answer {
        let channel = self.sessions.channel(key);
        match channel.and_then(|channel| channel.waits.outcomes.borrow_mut().remove(&number)) {
            // The deletion has its own weight.
            Some(outcome) => Answer::plain(0, async move { outcome.await.map(Reply::Deleted) }),
            None => {
                let text =
                    format!("there is no outcome {number} to collect: it was told already, or never was");
                Answer::now(Err(Error::new(ErrorKind::Invalid, text)))
            }
        }
    }

    /// Returns a number for an entry that is to wait; `None` if the client does not want that, or has too
    /// much under way. The caller sees to it that the weight arrives.
    fn begin_wait(
        &self,
        key: ClientKey,
        channel: &Channel,
        entry: &Submission,
        weight: usize,
    ) -> Option<u64> {
        let number = channel.waits.draw().filter(|_| entry.patient)?;
        self.sessions.set_out(key, weight).then_some(number)
    }

    /// Has a task find out what the completion of an entry is to say.
    fn complete_later(
        self: &Rc<Self>,
        key: ClientKey,
        channel: &Channel,
        number: u64,
        token: u64,
        task: impl Future<Output = (Outcome, u64)> + 'static,
    ) {
        let (task, handle) = abortable(task);
        channel.waits.tasks.borrow_mut().insert(number, handle);
        let sessions = Rc::clone(&self.sessions);
        self.kernel.spawn(async move {
            let Ok((outcome, answer)) = task.await else { return };
            let Some(channel) = sessions.channel(key) else { return };
            channel.waits.tasks.borrow_mut().remove(&number);
            if channel.pages.complete(&Completion { token, outcome, answer }) {
                channel.pages.wake();
            } else {
                sessions.let_go(key, "it does not read the completions in its ring");
            }
        });
    }
}
