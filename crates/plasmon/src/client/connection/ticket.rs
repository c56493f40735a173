//! Requests whose replies have not been taken yet, for the threads that wait for them.
//!
//! Owns no state beside the number of the request. Each ticket belongs to one thread, which locks the
//! connection's state while it looks there, and never while it sleeps or asks foreign code.

use std::sync::Arc;
use std::sync::PoisonError;
use std::time::Instant;

use rustix::event::PollFlags;

use super::{CHECK_INTERVAL, Connection, Interrupt, silent, unexpected};
use crate::client::due::Due;
use crate::wire::Reply;
use crate::{Error, ErrorKind, Result};

/// Request whose reply has not been taken yet. A ticket that is dropped gives up its request: a request that
/// may wait for objects or room is cancelled, and a reply that still comes is undone.
pub(in crate::client) struct Ticket<'a> {
    pub(super) connection: &'a Connection,
    pub(super) number: u64,
    /// Time at which the request was sent.
    pub(super) sent: Instant,
    /// End of the wait as long as the daemon lives, if that is later than the deadline.
    pub(super) longest: Due,
}

impl Ticket<'_> {
    /// Has the wait go on beyond its deadline until `longest`, as long as the daemon lives.
    pub(in crate::client) fn while_alive(mut self, longest: Due) -> Self {
        self.longest = longest;
        self
    }

    /// Waits for the reply of a request that has only one, at most until `deadline`.
    pub(in crate::client) fn wait(
        self,
        deadline: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Reply> {
        let replies = self.wait_all(deadline, interrupt)?;
        replies.into_iter().next_back().ok_or_else(|| unexpected("no reply"))
    }

    /// Waits for all frames of the reply, at most until `deadline`.
    ///
    /// A reply that refuses the request is an error here.
    pub(in crate::client) fn wait_all(
        self,
        mut deadline: Option<Instant>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<Vec<Reply>> {
        let mut looked = Instant::now();
        let connection = self.connection;
        let mut state = connection.lock();
        loop {
            let Some(open) = state.open.get(&self.number) else { return Err(unexpected("no reply")) };
            if open.complete {
                let replies = state.take(self.number);
                return match replies.last() {
                    Some(Reply::Failed { error, .. }) => Err(error.clone()),
                    _ => Ok(replies),
                };
            }
            let wake = Arc::clone(&open.wake);
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            let now = Instant::now();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                deadline = connection.later(self.longest, now);
                if deadline.is_some() {
                    continue;
                }
                return Err(silent(connection.path(), now - self.sent));
            }
            let tick = interrupt.is_some().then_some(CHECK_INTERVAL);
            let nap = left.into_iter().chain(tick).min();

            state = if !state.leading {
                connection.lead(state, nap)
            } else if !state.outbox.is_empty() {
                // The leader may not know that there are bytes to send.
                drop(state);
                connection.poll(PollFlags::OUT, Some(nap.unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL)));
                let mut state = connection.lock();
                connection.flush(&mut state);
                state
            } else {
                state.set_asleep(self.number, true);
                let mut state = match nap {
                    Some(nap) => wake.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0,
                    None => wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
                state.set_asleep(self.number, false);
                state
            };

            if let Some(interrupt) = &mut interrupt
                && looked.elapsed() >= CHECK_INTERVAL
            {
                state.hand_over();
                drop(state);
                looked = Instant::now();
                if interrupt() {
                    return Err(Error::new(ErrorKind::Interrupted, "the wait was interrupted"));
                }
                state = connection.lock();
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.connection.give_up(self.number);
    }
}
