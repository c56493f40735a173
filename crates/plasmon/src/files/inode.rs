//! Open files, as a session knows them.
//!
//! Owns size and version of the file, the known part of its map, uncommitted bytes, pins of the objects that
//! were read last, locks of programs, and the right to map the file. Any thread. One mutex protects all of it
//! but locks and right, and is not held while bytes come from other nodes. Invariant: the map belongs to the
//! version.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::failures::Failures;
use super::held::Held;
use super::map::Map;
use super::peek::Peeks;
use super::right::Right;
use super::writer::Writer;
use crate::wire::files::{Attributes, Extended, MAX_FILE_BYTES, Place};
use crate::{Object, ObjectId};

/// Largest number of objects of one file that stay pinned.
const MAX_PINNED: usize = 4;
/// Age of attributes from which a read asks the home for them again.
const MAX_AGE: Duration = Duration::from_secs(1);

/// File that is open.
#[derive(Default)]
pub(super) struct Inode {
    /// Number of opens that were not closed. Changes under the lock of the table of files.
    pub(super) opens: AtomicU32,
    pub(super) state: Mutex<State>,
    /// Locks that programs have of the file by this session.
    pub(super) held: Held,
    /// Right of this session to map the file.
    pub(super) right: Right,
    /// Whether others have changed the file since its attributes were told.
    pub(super) old: AtomicBool,
    /// Whether a thread of the background is to commit waiting bytes of the file.
    pub(super) is_queued: AtomicBool,
}

/// State of a file that is open.
#[derive(Default)]
pub(super) struct State {
    pub(super) size: u64,
    pub(super) version: u64,
    pub(super) uid: u32,
    pub(super) copies: u16,
    pub(super) place: Place,
    /// Attributes of this version, and the time when they were told.
    latest: Option<(Attributes, Instant)>,
    pub(super) map: Map,
    pub(super) writer: Writer,
    /// Failures that syncs and closes tell.
    pub(super) failures: Failures,
    /// Time when the call that has the file locked is to end.
    pub(super) due: Option<Instant>,
    /// Objects that were read last, the latest at the end.
    pinned: Vec<Object>,
    /// Generation of the connection to which the pins belong.
    generation: u64,
    /// Offset behind the last read.
    pub(super) next_read: u64,
    /// Offset up to which objects were asked for ahead.
    pub(super) ahead: u64,
    /// Numbers of bytes that were read of objects on other nodes.
    pub(super) peeks: Peeks,
}

impl State {
    /// Returns the number of nodes that are to keep written bytes, and the time when the call that waits for
    /// these nodes is to end.
    pub(super) fn wanted(&self) -> (u16, Option<Instant>) {
        (self.copies, self.due)
    }

    /// Stores attributes, unless later ones are known.
    pub(super) fn learn(&mut self, attributes: &Attributes) {
        if attributes.version < self.version {
            return;
        }
        if attributes.version > self.version {
            self.map.clear();
        }
        self.version = attributes.version;
        self.size = attributes.size;
        self.uid = attributes.uid;
        self.copies = attributes.copies;
        self.place = attributes.place.clone();
        self.latest = Some((attributes.clone(), Instant::now()));
    }

    /// Whether others may have changed the file since its attributes were told.
    pub(super) fn is_old(&self) -> bool {
        self.latest.as_ref().is_none_or(|(_, told)| told.elapsed() >= MAX_AGE)
    }

    /// Stores attributes with a page of the map of the same version.
    pub(super) fn learn_map(&mut self, attributes: &Attributes, from: u64, page: Extended) {
        self.learn(attributes);
        if attributes.version == self.version {
            self.map.take(from, page);
        }
    }

    /// Returns the size of the file including uncommitted bytes.
    pub(super) fn end(&self) -> u64 {
        self.writer.end().map_or(self.size, |(end, _)| end.max(self.size))
    }

    /// Replaces attributes by later ones that are known, and adds uncommitted bytes to them.
    pub(super) fn overlay(&self, attributes: &mut Attributes) {
        // The answer to a later commit may have overtaken this one.
        if let Some((latest, _)) = &self.latest
            && latest.version > attributes.version
        {
            *attributes = latest.clone();
        }
        if let Some((end, last)) = self.writer.end() {
            attributes.size = attributes.size.max(end);
            // Programs would take a file without used bytes for one hole.
            attributes.used = attributes.used.saturating_add(self.writer.waiting()).min(MAX_FILE_BYTES);
            attributes.modified = attributes.modified.max(last);
            attributes.changed = attributes.changed.max(last);
            if self.writer.drops_privileges() {
                attributes.mode = attributes.kind.without_privileges(attributes.mode);
            }
        }
    }

    /// Returns the object of this id, if it is pinned.
    pub(super) fn pinned(&self, id: &ObjectId) -> Option<Object> {
        self.pinned.iter().rev().find(|object| object.id() == *id).cloned()
    }

    /// Keeps an object pinned that came by the connection of this generation.
    pub(super) fn pin(&mut self, object: &Object, generation: u64) {
        if self.generation != generation {
            self.pinned.clear();
            self.generation = generation;
        }
        if self.pinned(&object.id()).is_none() {
            if self.pinned.len() == MAX_PINNED {
                self.pinned.remove(0);
            }
            self.pinned.push(object.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn attributes(version: u64, size: u64) -> Attributes {
        Attributes { size, used: size, ..sample::attributes(9, version) }
    }

    #[test]
    fn an_answer_that_was_overtaken_changes_nothing() {
        let mut state = State::default();
        assert!(state.is_old(), "nothing is known");
        state.learn(&attributes(7, 100));
        assert!(!state.is_old());
        let mut overtaken = attributes(6, 10);
        state.learn(&overtaken);
        state.overlay(&mut overtaken);
        assert_eq!(overtaken, attributes(7, 100));
        let mut later = attributes(8, 20);
        state.learn(&later);
        state.overlay(&mut later);
        assert_eq!((later.size, state.size), (20, 20));
    }
}
