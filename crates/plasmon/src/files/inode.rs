//! What a session knows of a file that it has open.
//!
//! Owns size and version of the file, the known part of its map, bytes that are not committed, and pins of
//! objects that were read last. Any thread: everything lies under one lock, which is not held while bytes
//! come from other nodes. Invariant: the map belongs to the version.

use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use super::Error;
use super::map::Map;
use super::writer::Writer;
use crate::wire::files::{Attributes, Extended};
use crate::{Object, ObjectId};

/// Largest number of objects of one file that stay pinned.
const MAX_PINNED: usize = 4;

/// File that is open.
#[derive(Default)]
pub(super) struct Inode {
    /// Number of opens that were not closed. It changes under the lock of the table of files.
    pub(super) opens: AtomicU32,
    pub(super) state: Mutex<State>,
}

/// What is known of a file that is open.
#[derive(Default)]
pub(super) struct State {
    pub(super) size: u64,
    pub(super) version: u64,
    pub(super) copies: u16,
    pub(super) map: Map,
    pub(super) writer: Writer,
    /// Failure that the next sync or close tells.
    pub(super) failed: Option<Error>,
    /// Objects that were read last, the latest at the end.
    pinned: Vec<Object>,
    /// Generation of the connection that the pins are of.
    generation: u64,
    /// Offset behind the last read.
    pub(super) next_read: u64,
    /// Offset up to which objects were asked for ahead.
    pub(super) ahead: u64,
}

impl State {
    /// Takes in attributes, unless later ones are known.
    pub(super) fn learn(&mut self, attributes: &Attributes) {
        if attributes.version < self.version {
            return;
        }
        if attributes.version > self.version {
            self.map.clear();
        }
        self.version = attributes.version;
        self.size = attributes.size;
        self.copies = attributes.copies;
    }

    /// Takes in attributes with a page of the map that is of the same version.
    pub(super) fn learn_map(&mut self, attributes: &Attributes, from: u64, page: Extended) {
        self.learn(attributes);
        if attributes.version == self.version {
            self.map.take(from, page);
        }
    }

    /// Size with the bytes that are not committed.
    pub(super) fn end(&self) -> u64 {
        self.writer.end().map_or(self.size, |(end, _)| end.max(self.size))
    }

    /// Puts what is not committed over attributes.
    pub(super) fn overlay(&self, attributes: &mut Attributes) {
        if let Some((end, last)) = self.writer.end() {
            attributes.size = attributes.size.max(end);
            attributes.modified = attributes.modified.max(last);
            attributes.changed = attributes.changed.max(last);
        }
    }

    /// Object of this id, if it is pinned.
    pub(super) fn pinned(&self, id: &ObjectId) -> Option<Object> {
        self.pinned.iter().rev().find(|object| object.id() == *id).cloned()
    }

    /// Keeps an object pinned, of a connection of this generation.
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
