//! Blocks: memory into which writes go, and which becomes objects.
//!
//! Owns the free blocks of a volume, and the counter of its objects' ids. Any thread. A block is a piece of
//! the node's arena, so a full block becomes an object where it lies. Invariants: a block of a lost
//! connection never becomes an object; an id is used once.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::session::Attached;
use super::{Error, Result};
use crate::wire::files::{Errno, Section, Source, file_object};
use crate::{Client, CreateOptions, ObjectId, Rights, Scratch};

/// Size of a block in bytes, and the largest size of an object of a file.
pub const BLOCK_BYTES: usize = 1 << 20;
/// Largest number of free blocks that are kept.
const MAX_FREE: usize = 8;
/// Number of free blocks that are kept ready for the next writes while a program writes.
const MAX_READY: u64 = 4;
/// Divisor of the node's memory: buffers may hold the quotient.
const BUFFERS_PART: u64 = 32;

/// Memory of [`BLOCK_BYTES`] for the payload of writes ([`Volume::buffer`](super::Volume::buffer)).
pub struct Buffer(Inner);

enum Inner {
    Block(Block),
    /// Memory of this process, because the node had no room.
    Own(Vec<u8>),
}

/// Block of the arena.
pub(super) struct Block {
    scratch: Scratch,
    generation: u64,
}

impl Buffer {
    /// Returns the bytes of the buffer.
    pub fn bytes(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Inner::Block(block) => block.scratch.as_mut_slice(),
            Inner::Own(bytes) => bytes,
        }
    }

    /// Takes the block out of the buffer, and leaves other memory. `None` if the buffer has no block of this
    /// connection.
    pub(super) fn take(&mut self, blocks: &Blocks, attached: &Attached) -> Option<Block> {
        match &self.0 {
            Inner::Block(block) if block.generation == attached.generation => {}
            _ => return None,
        }
        match std::mem::replace(self, blocks.buffer(attached)).0 {
            Inner::Block(block) => {
                blocks.buffers.fetch_sub(1, Ordering::Relaxed);
                Some(block)
            }
            Inner::Own(_) => None,
        }
    }
}

impl Block {
    /// Borrows a block from the node.
    fn lent(client: &Client, generation: u64) -> Result<Self> {
        let scratch = client.buffer(BLOCK_BYTES, true, None).map_err(|error| Error::of_client(&error))?;
        Ok(Self { scratch, generation })
    }

    /// Returns a range of the bytes of the block. Fails if the block became an object, or may have become
    /// one.
    pub(super) fn room(&mut self, range: Range<usize>) -> Result<&mut [u8]> {
        let bytes = self.scratch.as_mut_slice().get_mut(range);
        bytes.ok_or_else(|| Error::because(Errno::Io, "the memory of a write is not this session's any more"))
    }

    /// Whether the block can never become an object, because its connection is lost or the node may have
    /// taken the block.
    pub(super) fn is_lost(&mut self, attached: &Attached) -> bool {
        self.generation != attached.generation || self.scratch.as_mut_slice().is_empty()
    }
}

/// Free blocks of a volume, and the numbers of its objects.
#[derive(Default)]
pub(super) struct Blocks {
    free: Mutex<Vec<Block>>,
    /// Number of blocks that the node is asked for ahead of the next writes. Changes under the lock of the
    /// free blocks.
    coming: AtomicUsize,
    /// Number of blocks that are buffers.
    buffers: AtomicU64,
    objects: AtomicU64,
    left: Left,
}

/// Objects that were put and will never be committed, as far as the home was not told of them.
#[derive(Default)]
struct Left {
    /// Counter below which there may be such objects.
    end: AtomicU64,
    /// Counter that the home was told last.
    told: AtomicU64,
}

impl Left {
    fn note(&self, next: u64) {
        self.end.fetch_max(next, Ordering::AcqRel);
    }

    /// Returns the counter below which there may be such objects. `None` if there are none.
    fn end(&self) -> Option<u64> {
        self.news(self.end.load(Ordering::Acquire))
    }

    /// Returns the counter up to which the home is to be told. `None` if the home was told as much.
    fn news(&self, below: u64) -> Option<u64> {
        (below > self.told.load(Ordering::Acquire)).then_some(below)
    }

    fn tell(&self, below: u64) {
        self.told.fetch_max(below, Ordering::AcqRel);
    }
}

impl Blocks {
    /// Takes a free block, or asks the node for one.
    pub(super) fn take(&self, attached: &Attached) -> Result<Block> {
        match self.take_free(attached) {
            Some(block) => Ok(block),
            None => Block::lent(&attached.client, attached.generation),
        }
    }

    /// Takes a block that is free, if there is one.
    fn take_free(&self, attached: &Attached) -> Option<Block> {
        let mut free = self.free.lock();
        let is_lost = |block: &mut Block| block.generation != attached.generation;
        let lost: Vec<Block> = free.extract_if(.., is_lost).collect();
        let block = free.pop();
        drop(free);
        // Lost blocks are given back without the lock.
        drop(lost);
        block
    }

    /// Takes a block from the node ahead of the next write, unless enough are free, or on their way.
    pub(super) fn refill(&self, attached: &Attached) {
        if !self.begin_refill(MAX_READY.min(most_buffers(attached)) as usize) {
            return;
        }
        // An error is ignored here: a write that finds no block asks for one itself, and gets the error.
        let lent = Block::lent(&attached.steady, attached.generation);
        self.end_refill(lent.ok());
    }

    /// Returns whether a block is to be asked for, so that `ready` blocks are ready. If so, the block counts
    /// as coming.
    fn begin_refill(&self, ready: usize) -> bool {
        let free = self.free.lock();
        let wanted = free.len() + self.coming.load(Ordering::Relaxed) < ready;
        if wanted {
            self.coming.fetch_add(1, Ordering::Relaxed);
        }
        wanted
    }

    /// Notes whether a block that was coming has come, and keeps the block.
    fn end_refill(&self, lent: Option<Block>) {
        let mut free = self.free.lock();
        self.coming.fetch_sub(1, Ordering::Relaxed);
        free.extend(lent);
    }

    /// Gives the free blocks back to the node, which is short of memory.
    pub(super) fn give_back(&self) {
        let free = std::mem::take(&mut *self.free.lock());
        // Blocks are sent back without the lock.
        drop(free);
    }

    /// Keeps the block of a buffer that is not needed any more.
    pub(super) fn keep(&self, buffer: Buffer) {
        let Inner::Block(block) = buffer.0 else { return };
        self.buffers.fetch_sub(1, Ordering::Relaxed);
        let mut free = self.free.lock();
        if free.len() < MAX_FREE {
            free.push(block);
        }
    }

    /// Returns memory for the payload of a write: a block, or memory of this process while the node has no
    /// room, or while buffers hold as many blocks as they may.
    pub(super) fn buffer(&self, attached: &Attached) -> Buffer {
        let held = self.buffers.fetch_add(1, Ordering::Relaxed);
        let block = if held < most_buffers(attached) { self.take(attached).ok() } else { None };
        self.buffer_of(block)
    }

    /// Returns memory for the payload of a write without asking the node.
    pub(super) fn buffer_at_hand(&self, attached: &Attached) -> Buffer {
        let held = self.buffers.fetch_add(1, Ordering::Relaxed);
        let block = if held < most_buffers(attached) { self.take_free(attached) } else { None };
        self.buffer_of(block)
    }

    /// Makes a buffer of a block, which counts as a buffer from now on, or of memory of this process.
    fn buffer_of(&self, block: Option<Block>) -> Buffer {
        Buffer(match block {
            Some(block) => Inner::Block(block),
            None => {
                self.buffers.fetch_sub(1, Ordering::Relaxed);
                Inner::Own(vec![0; BLOCK_BYTES])
            }
        })
    }

    /// Replaces a buffer that is no block of this connection by one, if the node has a block.
    pub(super) fn renew(&self, attached: &Attached, buffer: &mut Buffer) {
        if matches!(&buffer.0, Inner::Block(block) if block.generation == attached.generation) {
            return;
        }
        let held = self.buffers.fetch_add(1, Ordering::Relaxed);
        let block = if held < most_buffers(attached) { self.take(attached).ok() } else { None };
        let former = block.map(|block| std::mem::replace(&mut buffer.0, Inner::Block(block)));
        if !matches!(former, Some(Inner::Own(_))) {
            // The buffers have no block more than before.
            self.buffers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes an object of a block, in place if the object is large.
    pub(super) fn put_block(&self, attached: &Attached, block: &mut Block, stored: &Stored) -> Result<()> {
        if block.generation != attached.generation {
            let text = "the node of this host went away, with bytes that were not stored yet";
            return Err(Error::because(Errno::Io, text));
        }
        let put =
            attached.steady.put_from(stored.id, &mut block.scratch, stored.len as usize, &[], &options());
        self.told(put.map(drop))
    }

    /// Puts bytes as an object.
    pub(super) fn put_bytes(&self, attached: &Attached, bytes: &[u8]) -> Result<Stored> {
        let stored = self.stored(attached, bytes.len());
        let put = attached.steady.put(stored.id, bytes, &[], &options());
        self.told(put).map(|()| stored)
    }

    /// Passes on the result of a put. After an error the object may exist nevertheless, and counts as left.
    fn told(&self, put: crate::Result<()>) -> Result<()> {
        put.map_err(|error| {
            self.note_left();
            Error::of_client(&error)
        })
    }

    /// Notes that objects were put that will never be committed.
    pub(super) fn note_left(&self) {
        self.left.note(self.objects.load(Ordering::Acquire));
    }

    /// Returns the counter below which there may be objects that will never be committed and of which the
    /// home was not told. `None` if there are none.
    pub(super) fn left_end(&self) -> Option<u64> {
        self.left.end()
    }

    /// Returns the counter that the home is to be told, if no object below `below` waits for a commit.
    /// `None` if there is nothing to tell.
    pub(super) fn left_below(&self, below: u64) -> Option<u64> {
        self.left.news(below)
    }

    /// Notes that the home was told a counter.
    pub(super) fn told_left(&self, below: u64) {
        self.left.tell(below);
    }

    /// Draws the id of the next object, of `len` bytes.
    pub(super) fn stored(&self, attached: &Attached, len: usize) -> Stored {
        let counter = self.objects.fetch_add(1, Ordering::Relaxed);
        let id = file_object(attached.info.number, attached.session, counter);
        Stored { id, len: len as u64, node: attached.client.node() }
    }
}

/// Object with bytes of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    id: ObjectId,
    len: u64,
    node: crate::NodeId,
}

impl Stored {
    /// Returns the id of the object.
    pub(super) fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns a section of a file with `len` bytes of the object, from `at` on.
    pub(super) fn section(&self, offset: u64, at: u64, len: u64) -> Section {
        let source = Source::Object { id: self.id, at, object_len: self.len, node: self.node };
        Section { offset, len, source }
    }
}

/// Returns the largest number of blocks that buffers may hold.
fn most_buffers(attached: &Attached) -> u64 {
    attached.client.capacity() / BLOCK_BYTES as u64 / BUFFERS_PART
}

fn options() -> CreateOptions {
    CreateOptions { rights: Rights::Private, fresh: true, ..CreateOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_refill_at_once_take_no_more_than_is_to_be_ready() {
        let blocks = Blocks::default();
        assert!(blocks.begin_refill(2) && blocks.begin_refill(2));
        assert!(!blocks.begin_refill(2), "two are on their way");
        blocks.end_refill(None);
        assert!(blocks.begin_refill(2), "the node had none");
        assert!(!blocks.begin_refill(2));
    }

    #[test]
    fn what_is_left_above_an_object_that_waits_is_told_later() {
        let left = Left::default();
        assert_eq!(left.end(), None);
        left.note(9);
        assert_eq!(left.end(), Some(9));
        // Object 5 waits.
        assert_eq!(left.news(5), Some(5));
        left.tell(5);
        assert_eq!(left.news(5), None, "the home was told");
        assert_eq!(left.end(), Some(9), "some are above");
        left.tell(9);
        left.note(7);
        assert_eq!(left.end(), None);
    }
}
