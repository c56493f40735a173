//! What a client does without the daemon: finding, pinning and letting go of objects that are in
//! memory; and what it does with the daemon, but without a system call: small puts.
//!
//! Any thread. [`crate::shared`] has the protocol. Whatever this module cannot do the socket can.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::mapping::{Arena, View};
use crate::ObjectId;
use crate::shared::{
    ClientChannel, Completion, Found, Outcome, Part, Slot, State, Submission, TableId, TableReader,
};
use crate::wire::{Span, TableDomain, TablePart, TablePartKind};

/// How often a read begins anew that the engine got in the way of.
const TRIES: usize = 4;
/// How long a small put looks for its completion before it sleeps: about what waking costs.
const SPIN: Duration = Duration::from_micros(20);

/// Tables and channel of a client.
pub(super) struct Fast {
    shared: TableReader,
    private: TableReader,
    channel: ClientChannel,
}

/// A pin that the client took by itself.
pub(super) struct FastPin(Slot);

/// What came of looking for an object.
pub(super) enum Looked {
    /// It is here, pinned.
    Here(View, FastPin),
    /// It is in no table, and nowhere else.
    Nowhere,
    /// There are new parts of the tables.
    Outdated,
    /// The daemon has to be asked.
    Ask,
}

impl Fast {
    /// Takes what the daemon shares.
    pub(super) fn open(parts: &[TablePart], mut descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let missing =
            || io::Error::new(io::ErrorKind::InvalidData, "a part of what the daemon shares is missing");
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

    /// Finds an object and pins it.
    #[inline]
    pub(super) fn get(&self, arena: &Arc<Arena>, id: &ObjectId) -> Looked {
        if !self.shared.lives() {
            return Looked::Ask;
        }
        let mut nowhere = true;
        for (which, table) in self.tables() {
            for _ in 0..TRIES {
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
                // It is pinned: the segments it lies in are not replaced from now on.
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

    /// Whether an object is here; nothing if the daemon has to be asked.
    #[inline]
    pub(super) fn contains(&self, id: &ObjectId) -> Result<bool, Looked> {
        if !self.shared.lives() {
            return Err(Looked::Ask);
        }
        let mut nowhere = true;
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
        if nowhere { Ok(false) } else { Err(Looked::Ask) }
    }

    /// Whether an object is on this node's disk alone, or may be in a part of the tables that this client
    /// lacks.
    pub(super) fn may_be_spilled(&self, id: &ObjectId) -> bool {
        self.tables().iter().any(|(_, table)| match table.find(id) {
            Found::Entry { snapshot, .. } => snapshot.state == State::Spilled,
            found => matches!(found, Found::Outdated),
        })
    }

    /// Whether a place that the ring gave can be written, with the grants that have arrived.
    pub(super) fn may_write(&self, arena: &Arena, span: Span) -> crate::Result<bool> {
        arena.may_write(span, |segment| self.shared.segment_version(segment))
    }

    /// Creations that were made in the ring after their caller had given up: they are to be aborted.
    pub(super) fn strays(&self) -> Vec<ObjectId> {
        self.channel.strays()
    }

    /// Lets go of an object.
    pub(super) fn release(&self, pin: FastPin) {
        self.channel.unpin(pin.0);
    }

    /// Makes requests in the ring: as many as fit, from the first on. Returns where the objects of those
    /// that were done are to be written (0 for puts), and nothing for those to be made by the socket.
    ///
    /// # Errors
    /// When `alive` said that the daemon is not to be waited for. What was asked for may still happen.
    pub(super) fn ask<'a>(
        &self,
        requests: impl Iterator<Item = (Submission, [&'a [u8]; 3])>,
        alive: impl FnMut() -> bool,
    ) -> Result<Vec<Option<u64>>, Unanswered> {
        let Some(mut ring) = self.channel.ring() else { return Ok(Vec::new()) };
        let mut outcomes = Vec::new();
        for (submission, parts) in requests {
            let token = outcomes.len() as u64;
            if !ring.submit(Submission { token, ..submission }, &parts) {
                break;
            }
            outcomes.push(None);
        }
        let done = |completion: Completion| {
            if completion.outcome == Outcome::Done
                && let Some(outcome) = outcomes.get_mut(completion.token as usize)
            {
                *outcome = Some(completion.offset);
            }
        };
        ring.finish(SPIN, alive, done).map_err(|_| Unanswered)?;
        Ok(outcomes)
    }
}

/// The daemon did not answer in the ring.
pub(super) struct Unanswered;
