//! Outcomes of entries of a ring that wait for other nodes, on their way to the client.
//!
//! Owns the tasks that complete such entries of one client, and each outcome that the ring could not tell,
//! until the client collects it by the socket. Engine thread only. Invariant: the tasks end with the client.

use std::cell::{Cell, RefCell};
use std::future::Future;

use futures::FutureExt;
use futures::future::{AbortHandle, LocalBoxFuture};
use plasmon::shared::{Deleted, Outcome};
use plasmon::wire::Reply;
use plasmon::{DeleteOutcome, Error};

use super::requests::Begun;
use crate::kernel::random::HashMap;
use crate::service;

/// Maximum number of entries of one client that wait, or whose outcomes were not collected.
const MAX_WAITS: usize = 256;

/// An outcome that is known, or will be.
type Kept = LocalBoxFuture<'static, Result<Brought, Error>>;

/// A client's entries that wait for other nodes, and the outcomes that it is to collect.
#[derive(Default)]
pub(super) struct Outcomes {
    drawn: Cell<u64>,
    tasks: RefCell<HashMap<u64, AbortHandle>>,
    kept: RefCell<HashMap<u64, Kept>>,
}

impl Drop for Outcomes {
    fn drop(&mut self) {
        self.tasks.get_mut().values().for_each(AbortHandle::abort);
    }
}

impl Outcomes {
    /// Returns a number for another entry; `None` if too many entries of the client wait already.
    pub(super) fn draw(&self) -> Option<u64> {
        let waiting = self.tasks.borrow().len() + self.kept.borrow().len();
        let number = self.drawn.get() + 1;
        (waiting < MAX_WAITS).then(|| self.drawn.replace(number)).map(|_| number)
    }

    /// Notes the task that completes an entry.
    pub(super) fn begin(&self, number: u64, task: AbortHandle) {
        self.tasks.borrow_mut().insert(number, task);
    }

    /// Notes that the task of an entry has completed it.
    pub(super) fn end(&self, number: u64) {
        self.tasks.borrow_mut().remove(&number);
    }

    /// Keeps an outcome until it is collected. Returns what the completion in the ring is to say.
    pub(super) fn keep(
        &self,
        number: u64,
        outcome: impl Future<Output = Result<Brought, Error>> + 'static,
    ) -> (Outcome, u64) {
        self.kept.borrow_mut().insert(number, outcome.boxed_local());
        (Outcome::Collect, number)
    }

    /// Takes an outcome that was kept; `None` if it was taken before, or never kept.
    pub(super) fn take(&self, number: u64) -> Option<Kept> {
        self.kept.borrow_mut().remove(&number)
    }
}

/// Result of an entry that was carried out.
pub(super) enum Brought {
    Put,
    Created(Begun),
    Deleted(Vec<DeleteOutcome>),
}

impl Brought {
    /// Returns the answer of a completion. A result that only the socket can tell comes back as the error.
    fn tell_by_ring(self) -> Result<u64, Self> {
        match self {
            Self::Put => Ok(0),
            Self::Created(begun) => begun.tell_by_ring().map_err(Self::Created),
            Self::Deleted(outcomes) => {
                Deleted::of_all(&outcomes).map(|deleted| deleted.0).ok_or(Self::Deleted(outcomes))
            }
        }
    }

    /// Returns the answer by the socket.
    pub(super) fn tell(self) -> service::Outcome {
        match self {
            Self::Put => Ok((Reply::Done, Vec::new())),
            Self::Created(begun) => begun.tell(),
            Self::Deleted(outcomes) => Ok((Reply::Deleted(outcomes), Vec::new())),
        }
    }
}

/// Returns the answer of a completion. An outcome that no completion can hold comes back as the error.
pub(super) fn tell_by_ring(outcome: Result<Brought, Error>) -> Result<u64, Result<Brought, Error>> {
    outcome.map_err(Err)?.tell_by_ring().map_err(Ok)
}
