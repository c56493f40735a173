//! Compaction: moving objects together, so that scattered free memory becomes one piece.
//!
//! Owns no state. Engine thread only. A *clearing* is a window of segments that would make room if its
//! objects lay elsewhere. Objects are copied a few MiB at a time, so that the engine serves others
//! meanwhile. Within one turn, each object is hidden from clients, looked for among their pins, and
//! shown again at its new place. Pinned objects, creations, regions and memory of clients stay. A
//! window that has more than movable objects is not begun. A window in which something is pinned
//! meanwhile is given up, and another one is tried.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use crate::memory::{Clearing, Extent, OutOfBounds, Run, Writer, Zone};
use crate::object::{Replica, Table};

use super::Store;

/// Number of bytes copied before other tasks get their turn.
const STEP_BYTES: u64 = 4 << 20;
/// Number of bytes that pass through the processor's cache at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// Maximum number of windows tried for one object.
const MAX_WINDOWS_TRIED: usize = 8;

impl Store {
    /// Whether moving objects could make room, judged by the sizes alone.
    pub(crate) fn could_compact(&self, len: u64) -> bool {
        !self.arena.borrow_mut().clearings(len).is_empty()
    }

    /// Makes room in one piece by moving objects, and allocates it. `None` if that is not possible.
    pub(crate) async fn compact(self: &Rc<Self>, zone: Zone, len: u64) -> Option<Extent> {
        if !self.could_compact(len) {
            return None;
        }
        let held = self.held_segments().await;
        let mut clearings = self.arena.borrow_mut().clearings(len);
        clearings.retain(|clearing| held.range(clearing.segments.clone()).next().is_none());
        for clearing in clearings.into_iter().take(MAX_WINDOWS_TRIED) {
            self.arena.borrow_mut().begin_clearing(&clearing);
            let cleared = self.clear(&clearing).await;
            self.arena.borrow_mut().end_clearing();
            if cleared && let Ok(extent) = self.allocate(zone, len) {
                return Some(extent);
            }
        }
        None
    }

    /// Returns the segments that have something that cannot be moved now: a pinned object, an object that
    /// is being created or is on its way, a region, or memory that is lent to clients.
    async fn held_segments(&self) -> BTreeSet<u32> {
        self.reap();
        let fast = self.scan_pins();
        let mut movable = vec![0; self.arena.borrow().segment_count() as usize];
        for shard in 0..Table::SHARDS {
            {
                let (objects, arena) = (self.objects.borrow(), self.arena.borrow());
                let is_free = |replica: &&Rc<Replica>| replica.pins() == 0 && fast.of(replica) == 0;
                for run in objects.sealed_in(shard).filter(is_free).filter_map(|replica| replica.run()) {
                    arena.taken_by(&run, |segment, bytes| movable[segment as usize] += bytes);
                }
            }
            // Looking through a large table takes time, so other tasks get their turn.
            self.kernel.clock.sleep(Duration::ZERO).await;
        }
        let live = self.arena.borrow_mut().live();
        // A segment also counts as held if an object came to it after its share of the table was
        // looked through.
        let is_held = |(_, (live, movable)): &(u32, (u64, u64))| live > movable;
        (0..).zip(live.into_iter().zip(movable)).filter(is_held).map(|(segment, _)| segment).collect()
    }

    /// Moves everything out of a window; returns whether that was possible. Gives up at the first
    /// thing that cannot be moved.
    async fn clear(self: &Rc<Self>, clearing: &Clearing) -> bool {
        let touches = |run: &Run| run.segments().any(|segment| clearing.segments.contains(&segment));
        let creations = || self.objects.borrow().creations().any(|creation| touches(&creation.extent));
        if self.regions.lie_in(clearing.segments.clone()) || creations() {
            return false;
        }
        let mut copied = 0;
        for shard in 0..Table::SHARDS {
            let inside: Vec<_> = {
                let objects = self.objects.borrow();
                let inside = |replica: &&Rc<Replica>| replica.run().is_some_and(|run| touches(&run));
                objects.sealed_in(shard).filter(inside).cloned().collect()
            };
            for replica in inside {
                if !self.relocate(&replica) {
                    return false;
                }
                copied += replica.len();
                if copied >= STEP_BYTES {
                    copied = 0;
                    self.kernel.clock.sleep(Duration::ZERO).await;
                }
            }
            self.kernel.clock.sleep(Duration::ZERO).await;
        }
        self.reap();
        true
    }

    /// Moves an object that is not pinned; returns whether the object is out of the way.
    fn relocate(&self, replica: &Rc<Replica>) -> bool {
        let Some(from) = replica.run().filter(|_| self.objects.borrow().has(replica)) else {
            // The object has left memory meanwhile, or was deleted.
            return true;
        };
        if replica.pins() > 0 {
            return false;
        }
        let Some(to) = self.other_place(&from, replica) else { return false };
        if !replica.in_memory() || !self.objects.borrow().has(replica) {
            // The search for a place has evicted the object, or the object was deleted. A removed
            // entry is never shown again.
            return true;
        }
        replica.hide();
        let fast = self.scan_pins();
        if fast.of(replica) > 0 || copy(&from, &to).is_err() {
            replica.show();
            return false;
        }
        replica.lay(to);
        self.room.compacted.set(self.room.compacted.get() + replica.len());
        true
    }

    /// Finds another place for an object: in its own zone, whose user can write it there as well,
    /// or in the engine's zone of its domain.
    fn other_place(&self, from: &Run, replica: &Replica) -> Option<Extent> {
        let own = from.segments().next().and_then(|segment| self.arena.borrow().zone(segment));
        let engine = Zone { domain: replica.domain(), writer: Writer::Engine };
        let own = own.and_then(|own| self.allocate(own, replica.len()).ok());
        own.or_else(|| self.allocate(engine, replica.len()).ok())
    }
}

/// Copies a sealed object. The object does not change meanwhile, unless its user breaks the rules,
/// at that user's own cost.
fn copy(from: &Run, to: &Run) -> Result<(), OutOfBounds> {
    let mut buffer = vec![0; BUFFER_BYTES.min(from.len() as usize)];
    let mut at = 0;
    while at < from.len() {
        let len = buffer.len().min((from.len() - at) as usize);
        from.read(at, &mut buffer[..len])?;
        to.write(at, &buffer[..len])?;
        at += len as u64;
    }
    Ok(())
}
