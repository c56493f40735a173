//! Places of the bytes that are written.
//!
//! Owns the last answers of this host's node about its memory. Any thread. An object is put on this host's
//! node first. If the object is to lie elsewhere, or on several nodes, this node has other nodes take it
//! while the writer goes on, and a commit waits for them. Invariants: an object that no other node takes
//! stays; the node that a section names to the home is a hint; no commit names an object that fewer nodes
//! keep than are to, while there are more nodes that may.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::background::Background;
use super::blocks::{Block, Blocks, Stored};
use super::putting::Put;
use super::session::Attached;
use super::{Error, Result};
use crate::client::Volumes;
use crate::wire::files::{Errno, MAX_SETTLED, Place, Section, Source};
use crate::{ErrorKind, NodeId, ObjectId};

/// Longest wait for room on this host's node, while other nodes take objects from it.
const ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for room while no node takes objects. Objects that no file has any more may free room
/// meanwhile.
const FULL_PATIENCE: Duration = Duration::from_secs(2);
/// Number of objects that are put before the node is asked again about its memory.
const MAX_PUTS: u64 = 4;
/// Time between two attempts to find room.
const ROOM_INTERVAL: Duration = Duration::from_millis(20);

/// Memory of this host's node, as the node told it last.
#[derive(Default)]
pub(super) struct Placing {
    /// Whether objects do not stay on the node by themselves.
    elsewhere: AtomicBool,
    /// Whether the node, or another node, had room for more when the node was asked.
    room: AtomicBool,
    /// One more than the generation of the connection by which the node was asked last. 0 if it was not
    /// asked.
    asked: AtomicU64,
    /// Number of objects that were put since the node was asked.
    puts: AtomicU64,
    /// Whether the node is to be asked in the background.
    asking: AtomicBool,
    /// Function that frees memory which the session holds in vain, and returns whether some is coming.
    room_maker: OnceLock<MakesRoom>,
}

/// Function that frees memory, and returns whether some is coming.
type MakesRoom = Box<dyn Fn() -> bool + Send + Sync>;

impl Placing {
    /// Sets the function that frees memory which the session holds in vain.
    pub(super) fn set_room_maker(&self, makes_room: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.room_maker.set(Box::new(makes_room));
    }

    /// Asks the node again if something was put since the last time. Returns whether it is short of memory.
    pub(super) fn look(&self, attached: &Attached) -> bool {
        if self.puts.load(Ordering::Relaxed) > 0 {
            self.ask(attached, &Place::Local);
        }
        self.elsewhere.load(Ordering::Relaxed)
    }

    /// Whether the node was short of memory when it was asked last.
    pub(super) fn is_short(&self) -> bool {
        self.elsewhere.load(Ordering::Relaxed)
    }

    /// Counts an object that was put. Returns whether the node is to be asked again, since many were put.
    fn count_put(&self) -> bool {
        self.puts.fetch_add(1, Ordering::Relaxed) >= MAX_PUTS && !self.asking.swap(true, Ordering::Relaxed)
    }

    /// Whether objects do not stay on this host's node by themselves.
    fn is_elsewhere(&self, attached: &Attached) -> bool {
        if self.asked.load(Ordering::Acquire) != attached.generation + 1 {
            self.ask(attached, &Place::Local);
        }
        self.elsewhere.load(Ordering::Relaxed)
    }

    /// Asks the node about its memory, and about the memory of nodes on which objects of a place may lie.
    fn ask(&self, attached: &Attached, place: &Place) {
        self.puts.store(0, Ordering::Relaxed);
        // A node that does not answer is asked again with the next object.
        let volumes = Volumes::by(&attached.steady);
        if let Ok(told) = volumes.settle((attached.number, &[]), (place, 1), attached.patience) {
            self.room.store(told.room, Ordering::Relaxed);
            self.note(attached, told.elsewhere);
        }
    }

    fn note(&self, attached: &Attached, elsewhere: bool) {
        self.elsewhere.store(elsewhere, Ordering::Relaxed);
        self.asked.store(attached.generation + 1, Ordering::Release);
    }
}

/// Attempts to find room, as long as other nodes may take objects, or objects are being deleted.
pub(super) struct Attempts {
    begun: Instant,
    /// Whether room may have come since the last attempt.
    is_coming: Cell<bool>,
}

impl Attempts {
    pub(super) fn begin() -> Self {
        Self { begun: Instant::now(), is_coming: Cell::new(true) }
    }
}

/// Target of the bytes of a writer.
pub(super) struct Target<'a> {
    pub(super) blocks: &'a Arc<Blocks>,
    pub(super) attached: &'a Arc<Attached>,
    pub(super) placing: &'a Arc<Placing>,
    pub(super) background: &'a Arc<Background>,
    pub(super) place: &'a Place,
    pub(super) copies: u16,
    /// Time when a caller that waits for objects to be where they are to lie is to have an answer.
    pub(super) due: Instant,
}

/// Target of the bytes of a writer, as a thread of the background owns it.
pub(super) struct Goal {
    blocks: Arc<Blocks>,
    attached: Arc<Attached>,
    placing: Arc<Placing>,
    background: Arc<Background>,
    place: Place,
    copies: u16,
}

impl Goal {
    pub(super) fn target(&self) -> Target<'_> {
        let Self { blocks, attached, placing, background, place, copies } = self;
        let due = Instant::now() + attached.patience;
        Target { blocks, attached, placing, background, place, copies: *copies, due }
    }

    /// Takes a block ahead of the next write, unless the node is short of memory.
    pub(super) fn refill(&self) {
        if !self.placing.is_short() {
            self.blocks.refill(&self.attached);
        }
    }
}

impl Target<'_> {
    /// Returns the target as a thread of the background owns it.
    pub(super) fn goal(&self) -> Goal {
        Goal {
            blocks: Arc::clone(self.blocks),
            attached: Arc::clone(self.attached),
            placing: Arc::clone(self.placing),
            background: Arc::clone(self.background),
            place: self.place.clone(),
            copies: self.copies,
        }
    }

    /// Takes a free block.
    pub(super) fn take(&self) -> Result<Block> {
        self.blocks.take(self.attached)
    }

    /// Makes this object of a block.
    pub(super) fn put_block(&self, stored: &Stored, block: &mut Block) -> Result<()> {
        self.blocks.put_block(self.attached, block, stored)?;
        self.begin(stored);
        Ok(())
    }

    /// Begins to make an object of a block in the background.
    pub(super) fn begin_put(&self, block: Block, len: usize) -> Arc<Put> {
        let due = Instant::now() + self.attached.patience;
        let put = Arc::new(Put::new(self.blocks.stored(self.attached, len), block, due));
        let (goal, begun) = (self.goal(), Arc::clone(&put));
        self.background.run(move || begun.run(&goal));
        put
    }

    /// Puts bytes as an object.
    pub(super) fn put_bytes(&self, bytes: &[u8]) -> Result<Stored> {
        let attempts = Attempts::begin();
        loop {
            let put = self.blocks.put_bytes(self.attached, bytes);
            if !self.may_have_room(&put, &attempts) {
                return put.inspect(|stored| self.begin(stored));
            }
        }
    }

    /// Whether objects may have to lie on other nodes, so that this host's node is asked to bring them there.
    fn is_settled(&self) -> bool {
        self.copies > 1 || *self.place != Place::Local || self.placing.is_elsewhere(self.attached)
    }

    /// Asks this host's node to bring a new object to its place.
    fn begin(&self, stored: &Stored) {
        if self.placing.count_put() {
            let (placing, attached) = (Arc::clone(self.placing), Arc::clone(self.attached));
            self.background.run(move || {
                placing.ask(&attached, &Place::Local);
                placing.asking.store(false, Ordering::Relaxed);
            });
        }
        if self.is_settled() {
            let client = &self.attached.client;
            Volumes::by(client).begin_settling(self.attached.number, stored.id(), self.place, self.copies);
        }
    }

    /// Waits until objects lie where they are to lie and as many nodes keep them as are to, and notes the
    /// nodes in their sections.
    ///
    /// # Errors
    /// `Full` if nodes that are to keep the objects have no room. `Io` if the node does not know the objects
    /// any more, or if they are not in place in time; the node goes on bringing them there.
    pub(super) fn settle(&self, sections: &mut [Section]) -> Result<()> {
        if !self.is_settled() {
            return Ok(());
        }
        let mut ids: Vec<ObjectId> = sections.iter().filter_map(object_of).collect();
        ids.dedup();
        for ids in ids.chunks(MAX_SETTLED) {
            let volumes = Volumes::by(&self.attached.steady);
            let left = self.due.saturating_duration_since(Instant::now());
            let told = volumes.settle((self.attached.number, ids), (self.place, self.copies), left);
            let told = told.map_err(|error| self.unsettled(&error))?;
            self.placing.note(self.attached, told.elsewhere);
            note_nodes(sections, ids, &told.nodes);
        }
        Ok(())
    }

    /// Returns the reason why objects are not where they are to lie.
    fn unsettled(&self, error: &crate::Error) -> Error {
        if error.kind() != ErrorKind::TimedOut {
            return Error::of_client(error);
        }
        let Self { place, copies, .. } = self;
        Error::late(format!(
            "the bytes are not where they are to lie yet (place {place}, copies {}): the node of this host \
             has waited for others, or is stopped. The bytes wait, and the next fsync tries again",
            copies.max(&1)
        ))
    }

    /// Returns whether an attempt that failed for want of room is to be repeated, since other nodes may take
    /// objects, or objects are being deleted. If so, waits for [`ROOM_INTERVAL`] before.
    pub(super) fn may_have_room<T>(&self, done: &Result<T>, attempts: &Attempts) -> bool {
        let is_full = |error: &Error| error.errno() == Errno::Full;
        if !done.as_ref().is_err_and(is_full) {
            return false;
        }
        self.blocks.give_back();
        let is_coming = self.placing.room_maker.get().is_some_and(|makes_room| makes_room());
        self.placing.ask(self.attached, self.place);
        let patience = if self.placing.room.load(Ordering::Relaxed) { ROOM_PATIENCE } else { FULL_PATIENCE };
        // What was being deleted may have gone after this attempt and before the question.
        let was_coming = attempts.is_coming.replace(is_coming);
        let may_come = was_coming || is_coming || self.placing.is_elsewhere(self.attached);
        let may = may_come && attempts.begun.elapsed() < patience;
        if may {
            thread::sleep(ROOM_INTERVAL);
        }
        may
    }
}

/// Returns the object of a section, if the section has one.
fn object_of(section: &Section) -> Option<ObjectId> {
    match &section.source {
        Source::Object { id, .. } => Some(*id),
        Source::Inline(_) => None,
    }
}

/// Notes in sections the node of each of these objects.
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
