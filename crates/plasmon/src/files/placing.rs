//! Where bytes that are written come to lie.
//!
//! Owns what this host's node said last about its memory. Any thread. An object is put on this host's node
//! first. If it is to lie elsewhere, that node has another one take it, while the writer goes on; a commit
//! waits for that. Invariants: an object that no other node takes stays; what is told of the place of an
//! object to the home is a hint, so that no failure here loses bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::blocks::{Block, Blocks, Stored};
use super::session::Attached;
use super::{Error, Result};
use crate::client::Volumes;
use crate::wire::files::{Errno, MAX_SETTLED, Place, Section, Source};
use crate::{NodeId, ObjectId};

/// Longest wait for room on this host's node, while other nodes take objects from it.
pub(super) const ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// Number of objects that are put before the node is asked again about its memory.
const MAX_PUTS: u64 = 4;
/// Time between two attempts to find room.
const ROOM_INTERVAL: Duration = Duration::from_millis(20);

/// What this host's node said last about its memory.
#[derive(Default)]
pub(super) struct Placing {
    /// Whether objects do not stay there by themselves.
    elsewhere: AtomicBool,
    /// Generation of the connection by which it was asked, and 1. 0 if it was not.
    asked: AtomicU64,
    /// Number of objects that were put since.
    puts: AtomicU64,
}

impl Placing {
    /// Asks the node again if something was put since the last time.
    pub(super) fn look(&self, attached: &Attached) {
        if self.puts.load(Ordering::Relaxed) > 0 {
            self.ask(attached);
        }
    }

    /// Counts an object that was put. Asks the node again if many were.
    fn count_put(&self, attached: &Attached) {
        if self.puts.fetch_add(1, Ordering::Relaxed) >= MAX_PUTS {
            self.ask(attached);
        }
    }

    /// Whether objects do not stay on this host's node by themselves.
    fn is_elsewhere(&self, attached: &Attached) -> bool {
        if self.asked.load(Ordering::Acquire) != attached.generation + 1 {
            self.ask(attached);
        }
        self.elsewhere.load(Ordering::Relaxed)
    }

    fn ask(&self, attached: &Attached) {
        self.puts.store(0, Ordering::Relaxed);
        // A node that does not answer is asked again with the next object.
        if let Ok(told) = Volumes::by(&attached.steady).settle(attached.number, &[], &Place::Local, 1) {
            self.note(attached, told.elsewhere);
        }
    }

    fn note(&self, attached: &Attached, elsewhere: bool) {
        self.elsewhere.store(elsewhere, Ordering::Relaxed);
        self.asked.store(attached.generation + 1, Ordering::Release);
    }
}

/// Where a writer puts its bytes.
pub(super) struct Target<'a> {
    pub(super) blocks: &'a Blocks,
    pub(super) attached: &'a Attached,
    pub(super) placing: &'a Placing,
    pub(super) place: &'a Place,
    pub(super) copies: u16,
}

impl Target<'_> {
    /// Takes a free block.
    pub(super) fn take(&self) -> Result<Block> {
        self.blocks.take(self.attached)
    }

    /// Makes a block an object.
    pub(super) fn put_block(&self, block: &mut Block, len: usize) -> Result<Stored> {
        let stored = self.blocks.put_block(self.attached, block, len, self.copies_at_put())?;
        self.begin(&stored);
        Ok(stored)
    }

    /// Puts bytes as an object.
    pub(super) fn put_bytes(&self, bytes: &[u8]) -> Result<Stored> {
        let until = Instant::now() + ROOM_PATIENCE;
        loop {
            let put = self.blocks.put_bytes(self.attached, bytes, self.copies_at_put());
            if !self.may_have_room(&put, until) {
                return put.inspect(|stored| self.begin(stored));
            }
        }
    }

    /// Whether this host's node is to see where objects lie.
    fn is_settled(&self) -> bool {
        *self.place != Place::Local || self.placing.is_elsewhere(self.attached)
    }

    /// Number of nodes that keep an object when its put returns.
    fn copies_at_put(&self) -> u16 {
        if self.is_settled() { 1 } else { self.copies }
    }

    /// Has a new object be brought to its place.
    fn begin(&self, stored: &Stored) {
        self.placing.count_put(self.attached);
        if self.is_settled() {
            let client = &self.attached.client;
            Volumes::by(client).begin_settling(self.attached.number, stored.id(), self.place, self.copies);
        }
    }

    /// Waits until objects lie where they are to, and notes in their sections where that is.
    pub(super) fn settle(&self, sections: &mut [Section]) {
        if !self.is_settled() {
            return;
        }
        let mut ids: Vec<ObjectId> = sections.iter().filter_map(object_of).collect();
        ids.dedup();
        for ids in ids.chunks(MAX_SETTLED) {
            let volumes = Volumes::by(&self.attached.steady);
            // They stay where they are if the node does not answer.
            let Ok(told) = volumes.settle(self.attached.number, ids, self.place, self.copies) else { return };
            self.placing.note(self.attached, told.elsewhere);
            note_nodes(sections, ids, &told.nodes);
        }
    }

    /// Whether what failed for want of room is to be tried again, since other nodes may take objects. Waits
    /// for a moment then.
    pub(super) fn may_have_room<T>(&self, done: &Result<T>, until: Instant) -> bool {
        let is_full = |error: &Error| error.errno() == Errno::Full;
        if !done.as_ref().is_err_and(is_full) || Instant::now() >= until {
            return false;
        }
        self.placing.ask(self.attached);
        let may = self.placing.is_elsewhere(self.attached);
        if may {
            thread::sleep(ROOM_INTERVAL);
        }
        may
    }
}

/// Object of a section.
fn object_of(section: &Section) -> Option<ObjectId> {
    match &section.source {
        Source::Object { id, .. } => Some(*id),
        Source::Inline(_) => None,
    }
}

/// Notes in sections on which node each of these objects is.
fn note_nodes(sections: &mut [Section], ids: &[ObjectId], nodes: &[NodeId]) {
    for section in sections {
        if let Source::Object { id, node, .. } = &mut section.source
            && let Some(at) = ids.iter().position(|one| one == id)
            && let Some(told) = nodes.get(at)
        {
            *node = *told;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::files::file_object;

    #[test]
    fn sections_name_the_nodes_that_took_their_objects() {
        let node = |number| NodeId::from_bytes([number; NodeId::LEN]);
        let section = |number: u64, len| {
            let source =
                Source::Object { id: file_object(1, 1, number), at: 0, object_len: 9, node: node(1) };
            Section { offset: 10 * number, len, source }
        };
        let inline = Section { offset: 0, len: 1, source: Source::Inline("a".into()) };
        let mut sections = vec![section(1, 3), section(1, 4), inline.clone(), section(2, 5)];
        let ids: Vec<_> = sections.iter().filter_map(object_of).collect();
        assert_eq!(ids, [file_object(1, 1, 1), file_object(1, 1, 1), file_object(1, 1, 2)]);
        note_nodes(&mut sections, &[file_object(1, 1, 1), file_object(1, 1, 2)], &[node(7)]);
        let told: Vec<_> = sections
            .iter()
            .map(|section| match &section.source {
                Source::Object { node, .. } => Some(*node),
                Source::Inline(_) => None,
            })
            .collect();
        assert_eq!(told, [Some(node(7)), Some(node(7)), None, Some(node(1))]);
        assert_eq!(sections[2], inline);
    }
}
