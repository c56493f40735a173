//! Ends of waits in shared memory: a thread that waits there for the daemon asks now and then whether to go
//! on.
//!
//! Owns the state of one wait. The waiting thread only. The shared memory does not tell that the daemon has
//! died, or that the caller's time is over.

use std::time::{Duration, Instant};

use super::Client;
use super::connection::{disconnected, silent};
use super::due::Due;
use crate::{Error, ErrorKind};

/// Watch over one wait for the daemon.
pub(super) struct Vigil<'a> {
    client: &'a Client,
    due: Due,
    /// End of the wait as long as the daemon lives, if that is later than `due`.
    longest: Due,
    interrupted: bool,
    over: bool,
    /// Time of the first question.
    since: Option<Instant>,
}

impl<'a> Vigil<'a> {
    /// Watch that ends when `due` is over, the caller interrupts it, or the daemon is gone.
    pub(super) fn new(client: &'a Client, due: Due) -> Self {
        Self { client, due, longest: None, interrupted: false, over: false, since: None }
    }

    /// Has the wait go on beyond its end until `longest`, as long as the daemon lives.
    pub(super) fn while_alive(self, longest: Due) -> Self {
        Self { longest, ..self }
    }

    /// Whether to go on waiting.
    pub(super) fn goes_on(&mut self) -> bool {
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.interrupted = self.client.interrupt.as_ref().is_some_and(|interrupt| interrupt());
        if self.due.is_some_and(|due| now >= due) {
            let later = self.client.connection.later(self.longest, now);
            self.over = later.is_none();
            self.due = later.or(self.due);
        }
        !self.interrupted && !self.over && self.client.connection.is_alive()
    }

    /// Error of a wait that did not go on.
    pub(super) fn error(&self) -> Error {
        let path = self.client.connection.path();
        match (self.interrupted, self.over) {
            (true, _) => {
                let text = "the wait was interrupted; the request may still be carried out";
                Error::new(ErrorKind::Interrupted, text)
            }
            (false, true) => silent(path, self.since.map_or(Duration::ZERO, |since| since.elapsed())),
            (false, false) => self.client.connection.fail(disconnected(path, None)),
        }
    }
}
