//! Engine's side of an object table: its only writer.
//!
//! Owns the parts of the table. Engine thread only. Invariants: an entry never changes its number; the number
//! is used again only after [`TableWriter::free`], which the engine calls once no client can have the entry
//! pinned. The index is replaced when it fills. Meanwhile insertions and removals go to the old and the new
//! index, [`TableWriter::tend`] moves older entries a few at a time, and clients read the old index until the
//! new index is complete.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::entry::{self, Entry, Snapshot, State};
use super::index::{self, FIRST_WORDS, Index, Inserted};
use super::layout::{MAX_CHUNKS, Part, chunk_len, chunk_start, place_of};
use super::root::{self, Root};
use crate::ObjectId;
use crate::shared::words::Words;

/// Number of words that every insertion moves to the new index. The old index fills by another 1/32 before
/// the new index is complete.
const WORDS_PER_INSERT: usize = 32;

/// Object to enter into a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewEntry {
    /// Id of the object.
    pub id: ObjectId,
    /// Offset of the first byte from the start of the arena. `None` if the object is on disk only.
    pub offset: Option<u64>,
    /// Size of the data in bytes.
    pub data_len: u64,
    /// Size in bytes of the metadata, which follows the data.
    pub metadata_len: u32,
    /// XXH3 of data and metadata. 0 for none.
    pub digest: u64,
    /// User id of the creator.
    pub uid: u32,
}

/// Object table that this process writes.
pub struct TableWriter {
    root: Root,
    root_file: Arc<OwnedFd>,
    pub(super) seed: u64,
    index: Versioned,
    /// Index that will replace the index in force, and the number of words that were moved to it.
    next: Option<(Versioned, usize)>,
    chunks: Vec<(Words, Arc<OwnedFd>)>,
    /// Free entry numbers, in addition to all from `unused` on.
    free: Vec<u32>,
    unused: u32,
    live: usize,
    /// Numbers of entries that found no room in an index.
    outside: Vec<u32>,
}

struct Versioned {
    index: Index,
    file: Arc<OwnedFd>,
    version: u32,
    /// Number of words that have been used at any time.
    used: usize,
}

impl Versioned {
    fn new(words: usize, version: u32) -> io::Result<Self> {
        let (memory, file) = Words::for_readers("plasmon-index", words * 8)?;
        Ok(Self { index: Index::new(memory, words), file: Arc::new(file), version, used: 0 })
    }

    /// Whether the index should be replaced. At 65 % full, no object among millions stands 24 lines from its
    /// place. At 76 % some objects find no room within [`index::MAX_PROBE_LINES`], and the table would never
    /// be complete again.
    fn is_crowded(&self) -> bool {
        self.used > self.index.len() / 5 * 3
    }

    fn insert(&mut self, hash: u64, entry: u32) -> bool {
        let inserted = self.index.insert(hash, entry);
        self.used += usize::from(inserted == Some(Inserted::Fresh));
        inserted.is_some()
    }
}

impl TableWriter {
    /// Makes an empty table.
    ///
    /// # Errors
    /// If the system has no memory or no descriptors.
    pub fn new() -> io::Result<Self> {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed)?;
        let seed = u64::from_le_bytes(seed);
        let (words, root_file) = Words::for_readers("plasmon-table", root::ROOT_BYTES)?;
        let index = Versioned::new(FIRST_WORDS, 1)?;
        let root = Root::begin(words, seed);
        root.set_index(index.version);
        let (chunks, free) = (Vec::new(), Vec::new());
        Ok(Self {
            root,
            root_file: Arc::new(root_file),
            seed,
            index,
            next: None,
            chunks,
            free,
            unused: 0,
            live: 0,
            outside: Vec::new(),
        })
    }

    /// Enters an object, so that clients can find it. Returns the number of its entry.
    ///
    /// # Errors
    /// If the system has no memory or no descriptors for another chunk.
    pub fn insert(&mut self, new: &NewEntry) -> io::Result<u32> {
        self.insert_as(new, true)
    }

    /// Enters an object as [`TableWriter::insert`] does, but hidden: clients ask the engine for it until it
    /// is shown.
    ///
    /// # Errors
    /// As [`TableWriter::insert`].
    pub fn insert_hidden(&mut self, new: &NewEntry) -> io::Result<u32> {
        self.insert_as(new, false)
    }

    fn insert_as(&mut self, new: &NewEntry, is_shown: bool) -> io::Result<u32> {
        let number = self.take_number()?;
        let snapshot = Snapshot {
            generation: 0,
            state: if new.offset.is_some() { State::Sealed } else { State::Spilled },
            id: new.id,
            offset: new.offset.unwrap_or(0),
            data_len: new.data_len,
            metadata_len: new.metadata_len,
            digest: new.digest,
            uid: new.uid,
        };
        self.entry(number).write(is_shown, |entry| entry.set(&snapshot));
        self.live += 1;
        let hash = index::hash(&new.id, self.seed);
        let mut fits = self.index.insert(hash, number);
        if let Some((next, _)) = &mut self.next {
            fits &= next.insert(hash, number);
        }
        if !fits {
            self.leave_outside(number);
        }
        // Without memory for a larger index, the present one stays in use.
        let _ = self.tend(WORDS_PER_INSERT);
        Ok(number)
    }

    /// Returns the contents of an entry, hidden or not. The number is valid until the entry is freed.
    pub fn get(&self, number: u32) -> Snapshot {
        self.entry(number).own()
    }

    /// Returns the id of the object in an entry whose number came from outside. `None` if there is no such
    /// entry. A freed entry still has the id of its former object.
    pub fn named_by_others(&self, number: u32) -> Option<ObjectId> {
        (number < self.unused).then(|| self.entry(number).id())
    }

    /// Returns the id of the object in an entry.
    pub fn id(&self, number: u32) -> ObjectId {
        self.entry(number).id()
    }

    /// Hides an entry. After the engine's next fence no new pin on it holds.
    pub fn hide(&mut self, number: u32) {
        self.entry(number).hide();
    }

    /// Shows a hidden entry again.
    pub fn show(&mut self, number: u32) {
        self.entry(number).show();
    }

    /// Notes that the object's bytes are in memory at `offset` from now on, and shows the entry or leaves it
    /// hidden.
    pub fn set_sealed(&mut self, number: u32, offset: u64, is_shown: bool) {
        self.entry(number).write(is_shown, |entry| entry.set_place(State::Sealed, offset));
    }

    /// Notes that the object's bytes are on disk only, and shows the entry or leaves it hidden.
    pub fn set_spilled(&mut self, number: u32, is_shown: bool) {
        self.entry(number).write(is_shown, |entry| entry.set_place(State::Spilled, 0));
    }

    /// Removes an object: its entry is hidden and cannot be found any more. An object of the same id that is
    /// to take its place was entered before. A client may have the entry pinned, so the number is not used
    /// again before [`TableWriter::free`].
    pub fn remove(&mut self, number: u32) {
        let entry = self.entry(number);
        let hash = index::hash(&entry.id(), self.seed);
        entry.hide();
        self.root.count_removal();
        self.index.index.remove(hash, number);
        if let Some((next, _)) = &self.next {
            next.index.remove(hash, number);
        }
        self.live -= 1;
        if self.outside.contains(&number) {
            self.outside.retain(|outside| *outside != number);
            self.root.set_flag(root::INCOMPLETE, !self.outside.is_empty());
        }
    }

    /// Notes that an entry found no room in an index. From now on, clients ask the daemon for objects that
    /// they do not find.
    fn leave_outside(&mut self, number: u32) {
        self.outside.push(number);
        self.root.set_flag(root::INCOMPLETE, true);
    }

    /// Frees the number of a removed object's entry for another object.
    pub fn free(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Sets whether an object that is not in this table exists nowhere.
    pub fn set_solo(&mut self, solo: bool) {
        self.root.set_flag(root::SOLO, solo);
    }

    /// Announces to clients that the engine lives and will announce it again within `span`. A client that
    /// misses the announcement asks by the socket.
    pub fn live_for(&mut self, span: Duration) {
        self.root.live_for(span);
    }

    /// Sets the version of a segment of the arena.
    pub fn set_segment_version(&mut self, segment: u32, version: u32) {
        self.root.set_segment(segment, version);
    }

    /// Continues to replace the index, by about `budget` words. Returns whether there is more to do.
    ///
    /// # Errors
    /// If the system has no memory or no descriptors for a larger index. Searches become longer, and some
    /// objects may stay outside the index.
    pub fn tend(&mut self, budget: usize) -> io::Result<bool> {
        if self.next.is_none() {
            if !self.index.is_crowded() {
                return Ok(false);
            }
            let len = self.index.index.len();
            // An index that is crowded by removed entries is made anew with the same size.
            let len = if self.live > len / 3 { 2 * len } else { len };
            self.next = Some((Versioned::new(len, self.index.version.wrapping_add(1))?, 0));
        }
        let Some((mut next, from)) = self.next.take() else { return Ok(false) };
        let to = from.saturating_add(budget).min(self.index.index.len());
        let times = next.index.len() / self.index.index.len();
        next.index.expect(from * times..to * times);
        for at in from..to {
            let Some(number) = self.index.index.entry_at(at) else { continue };
            let hash = index::hash(&self.entry(number).id(), self.seed);
            if !next.insert(hash, number) {
                self.leave_outside(number);
            }
        }
        if to < self.index.index.len() {
            self.next = Some((next, to));
            return Ok(true);
        }
        let outside = std::mem::take(&mut self.outside);
        let is_outside = |number: &u32| {
            let hash = index::hash(&self.entry(*number).id(), self.seed);
            !next.insert(hash, *number)
        };
        self.outside = outside.into_iter().filter(is_outside).collect();
        self.root.set_index(next.version);
        self.root.set_flag(root::INCOMPLETE, !self.outside.is_empty());
        self.index = next;
        Ok(false)
    }

    /// Returns the parts that clients need now, with descriptors for reading.
    pub fn grants(&self) -> impl Iterator<Item = (Part, &Arc<OwnedFd>)> {
        let chunks = self.chunks.iter().enumerate();
        let chunks = chunks.map(|(number, (_, file))| (Part::Chunk { number: number as u32 }, file));
        let index = (Part::Index { version: self.index.version }, &self.index.file);
        [(Part::Root, &self.root_file), index].into_iter().chain(chunks)
    }

    /// Returns the size in bytes of entries and index, including free entries.
    pub fn memory(&self) -> u64 {
        let index = |versioned: &Versioned| versioned.index.len() as u64 * 8;
        let next = self.next.as_ref().map_or(0, |(next, _)| index(next));
        root::ROOT_BYTES as u64
            + index(&self.index)
            + next
            + u64::from(self.unused) * (8 * entry::WORDS as u64)
    }

    fn entry(&self, number: u32) -> Entry<'_> {
        let (chunk, place) = place_of(number);
        Entry::new(&self.chunks[chunk].0, place)
    }

    fn take_number(&mut self) -> io::Result<u32> {
        if let Some(number) = self.free.pop() {
            return Ok(number);
        }
        let number = self.unused;
        let (chunk, place) = place_of(number);
        if chunk == MAX_CHUNKS {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "the table has all the entries it can have",
            ));
        }
        if chunk == self.chunks.len() {
            debug_assert_eq!(chunk_start(chunk as u32), number);
            let len = chunk_len(chunk as u32) as usize * entry::WORDS * 8;
            let (words, file) = Words::for_readers("plasmon-entries", len)?;
            self.chunks.push((words, Arc::new(file)));
        }
        let at = place * entry::WORDS * 8;
        self.chunks[chunk].0.expect(at..at + 1);
        self.unused += 1;
        Ok(number)
    }
}
