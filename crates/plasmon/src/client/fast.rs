//! Calls that need no socket: finding, pinning and releasing objects in memory, which the client does without
//! the daemon, and requests by the rings, which the client makes to the daemon through shared memory.
//!
//! Owns the tables and the channel of a client. Any thread. [`crate::shared`] has the protocol. The socket
//! can do whatever this module cannot.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::mapping::{Arena, View};
use crate::ObjectId;
use crate::shared::{
    ClientCalls, ClientChannel, Completion, Found, Outcome, Part, Slot, State, Stray, Submission, TableId,
    TableReader,
};
use crate::wire::{Span, TableDomain, TablePart, TablePartKind};

/// Number of times that a read is repeated if the engine changes the entry meanwhile.
const MAX_READ_ATTEMPTS: usize = 4;
/// Time that a request in the ring spins for its completion before it sleeps: about what a wake-up costs.
const SPIN_TIME: Duration = Duration::from_micros(20);

/// Tables and channel that a client shares with the daemon.
pub(super) struct Fast {
    shared: TableReader,
    private: TableReader,
    channel: ClientChannel,
}

/// Pin that the client made without the daemon.
pub(super) struct FastPin(Slot);

impl FastPin {
    /// Whether the pin leaves the second half of the slots to gets that need no daemon. The lowest free slot
    /// is always taken.
    pub(super) fn leaves_enough(&self) -> bool {
        self.0.is_in_first_half()
    }
}

/// Result of looking for an object in the tables.
pub(super) enum Looked {
    /// The object is in memory, and is pinned now.
    Here(View, FastPin),
    /// The object is in no table, and so not on this node.
    Nowhere,
    /// The client lacks new parts of the tables.
    Outdated,
    /// The tables do not tell: the daemon has to be asked.
    Ask,
}

impl Fast {
    /// Takes over the tables and the channel that the daemon shares.
    pub(super) fn open(parts: &[TablePart], mut descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let missing = || {
            io::Error::new(io::ErrorKind::InvalidData, "the daemon did not share every part of its tables")
        };
        if descriptors.len() != parts.len() + 2 {
            return Err(missing());
        }
        let files = descriptors.split_off(2);
        let bell = descriptors.pop().ok_or_else(missing)?;
        let pages = descriptors.pop().ok_or_else(missing)?;
        let root = |domain| {
            let is_root = |part: &TablePart| part.domain == domain && part.kind == TablePartKind::Root;
            let at = parts.iter().position(is_root).ok_or_else(missing)?;
            TableReader::new(&files[at])
        };
        let fast = Self {
            shared: root(TableDomain::Shared)?,
            private: root(TableDomain::Private)?,
            channel: ClientChannel::new(&pages, bell)?,
        };
        for (part, file) in parts.iter().zip(&files) {
            fast.add(part, file)?;
        }
        Ok(fast)
    }

    /// Takes over slots, whose bell is that of the channel.
    pub(super) fn slots(&self, pages: &OwnedFd) -> io::Result<ClientCalls> {
        ClientCalls::new(pages, self.channel.bell()?)
    }

    /// Takes a new part of a table.
    pub(super) fn add(&self, part: &TablePart, file: &OwnedFd) -> io::Result<()> {
        let table = match part.domain {
            TableDomain::Shared => &self.shared,
            TableDomain::Private => &self.private,
        };
        let what = match part.kind {
            TablePartKind::Root => Part::Root,
            TablePartKind::Index => Part::Index { version: part.number },
            TablePartKind::Chunk => Part::Chunk { number: part.number },
        };
        table.add(what, file)
    }

    fn tables(&self) -> [(TableId, &TableReader); 2] {
        [(TableId::Shared, &self.shared), (TableId::Private, &self.private)]
    }

    /// Finds an object, pins it, and counts the get.
    #[inline]
    pub(super) fn get(&self, arena: &Arc<Arena>, id: &ObjectId) -> Looked {
        let began = self.channel.begin_get();
        let looked = self.pin(arena, id);
        if let Looked::Here(_, pin) = &looked {
            self.channel.end_get(&pin.0, began);
        }
        looked
    }

    /// Finds an object and pins it.
    #[inline]
    pub(super) fn pin(&self, arena: &Arc<Arena>, id: &ObjectId) -> Looked {
        if !self.shared.lives() {
            return Looked::Ask;
        }
        let mut nowhere = true;
        for (which, table) in self.tables() {
            for _ in 0..MAX_READ_ATTEMPTS {
                let (number, snapshot) = match table.find(id) {
                    Found::Entry { number, snapshot } => (number, snapshot),
                    Found::Outdated => return Looked::Outdated,
                    Found::Absent => break,
                    Found::Unknown => {
                        nowhere = false;
                        break;
                    }
                };
                if snapshot.state != State::Sealed {
                    return Looked::Ask;
                }
                let Some(slot) = self.channel.pin(which, number) else { return Looked::Ask };
                if !table.still_is(number, snapshot.generation) {
                    self.channel.unpin(slot);
                    continue;
                }
                if self.channel.is_closed() {
                    self.channel.unpin(slot);
                    return Looked::Ask;
                }
                // The pin keeps the segments of the object from being replaced.
                let version = |segment| table.segment_version(segment);
                let Some(view) = arena.view_mapped(snapshot.span(), version) else {
                    self.channel.unpin(slot);
                    return Looked::Ask;
                };
                self.channel.touch(which, number);
                return Looked::Here(view, FastPin(slot));
            }
        }
        if nowhere { Looked::Nowhere } else { Looked::Ask }
    }

    /// Whether an object is on this node. The error says why the tables do not tell.
    #[inline]
    pub(super) fn contains(&self, id: &ObjectId) -> Result<bool, Looked> {
        if !self.shared.lives() {
            return Err(Looked::Ask);
        }
        let mut nowhere = true;
        let before = self.tables().map(|(_, table)| table.removals());
        for (_, table) in self.tables() {
            match table.find(id) {
                Found::Entry { snapshot, .. } => {
                    return if snapshot.state == State::Free { Err(Looked::Ask) } else { Ok(true) };
                }
                Found::Absent => {}
                Found::Unknown => nowhere = false,
                Found::Outdated => return Err(Looked::Outdated),
            }
        }
        // An object that was replaced meanwhile may have been found nowhere, in either table.
        nowhere &= self.tables().iter().zip(before).all(|((_, table), removals)| table.still_has(removals));
        if nowhere { Ok(false) } else { Err(Looked::Ask) }
    }

    /// Whether the daemon has lately said that it lives.
    pub(super) fn lives(&self) -> bool {
        self.shared.lives()
    }

    /// Whether a place that the ring gave can be written with the grants that have arrived.
    pub(super) fn may_write(&self, arena: &Arena, span: Span) -> crate::Result<bool> {
        arena.may_write(span, |segment| self.shared.segment_version(segment))
    }

    /// Entries that the ring completed after their callers had given up. The caller of this function aborts
    /// or collects the entries.
    pub(super) fn strays(&self) -> Vec<Stray> {
        self.channel.strays()
    }

    /// Releases a pin.
    pub(super) fn release(&self, pin: FastPin) {
        self.channel.unpin(pin.0);
    }

    /// Makes as many of the requests as fit the ring, from the first on. Returns the outcome of each request
    /// made.
    ///
    /// # Errors
    /// [`Unanswered`] if `alive` returned `false`: the daemon is not waited for any longer. The requests may
    /// still be carried out.
    pub(super) fn ask<'a>(
        &self,
        requests: impl Iterator<Item = (Submission, [&'a [u8]; 3])>,
        alive: impl FnMut() -> bool,
    ) -> Result<Vec<Rung>, Unanswered> {
        let Some(mut ring) = self.channel.ring() else { return Ok(Vec::new()) };
        let mut outcomes = Vec::new();
        for (submission, parts) in requests {
            let token = outcomes.len() as u64;
            if !ring.submit(Submission { token, ..submission }, &parts) {
                break;
            }
            outcomes.push(Rung::AskBySocket);
        }
        let done = |completion: Completion| {
            if let Some(outcome) = outcomes.get_mut(completion.token as usize) {
                *outcome = match completion.outcome {
                    Outcome::Done => Rung::Done(completion.answer),
                    Outcome::AskBySocket => Rung::AskBySocket,
                    Outcome::Collect => Rung::Collect(completion.answer),
                };
            }
        };
        ring.finish(SPIN_TIME, alive, done).map_err(|_| Unanswered)?;
        Ok(outcomes)
    }
}

/// Outcome of a request in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rung {
    /// The request was carried out, with this answer.
    Done(u64),
    /// The request was not carried out, and has to be made by the socket.
    AskBySocket,
    /// The outcome of this number is to be collected by the socket.
    Collect(u64),
}

/// Error of requests in the ring that the daemon did not answer.
pub(super) struct Unanswered;
