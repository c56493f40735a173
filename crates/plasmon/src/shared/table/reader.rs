//! Client's side of an object table, for any number of threads.
//!
//! Owns the mappings of the table's parts. Any thread. No call asks the daemon. If the memory does not tell
//! an answer, the caller has to ask ([`Found::Unknown`]). Invariant: a reader trusts the engine, but never
//! reads outside its mappings.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{OnceLock, PoisonError, RwLock};

use super::entry::{self, Entry, Snapshot};
use super::index::{self, Index};
use super::layout::{MAX_CHUNKS, Part, chunk_len, place_of};
use super::root::{self, Root};
use crate::ObjectId;
use crate::shared::words::{Ordering, Words, fence};

/// Answer of a table about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The object was there at one moment. The caller pins the entry and checks its generation again
    /// ([`TableReader::still_is`]).
    Entry {
        /// Number of the object's entry.
        number: u32,
        /// Contents of the entry.
        snapshot: Snapshot,
    },
    /// The search came to no such object. If no entry was removed from any table since the search began
    /// ([`TableReader::still_has`]), the object exists nowhere; otherwise another may have taken its place,
    /// where the search had been already.
    Absent,
    /// The daemon has to be asked.
    Unknown,
    /// This reader lacks parts of the table, for which the caller asks the daemon.
    Outdated,
}

/// Object table that another process writes.
pub struct TableReader {
    root: Root,
    seed: u64,
    /// Index in force, with its version. The index is replaced as a whole, so no search uses a removed index.
    index: RwLock<Option<(u32, Index)>>,
    chunks: [OnceLock<Words>; MAX_CHUNKS],
}

impl TableReader {
    /// Returns a reader of the table with this root.
    ///
    /// # Errors
    /// If the descriptor is not the root of a table of this release, or if it cannot be mapped.
    pub fn new(root: &OwnedFd) -> io::Result<Self> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not an object table of this release");
        let words = Words::open(root, false)?;
        if words.len() != root::ROOT_BYTES {
            return Err(wrong());
        }
        let root = Root::of(words).ok_or_else(wrong)?;
        let seed = root.seed();
        Ok(Self { root, seed, index: RwLock::new(None), chunks: Default::default() })
    }

    /// Takes a part of the table.
    ///
    /// # Errors
    /// If the descriptor is no such part, or if it cannot be mapped.
    pub fn add(&self, part: Part, file: &OwnedFd) -> io::Result<()> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not a part of an object table");
        match part {
            Part::Root => Ok(()),
            Part::Index { version } => {
                let words = Words::open(file, false)?;
                let len = words.len() / 8;
                let index = Index::new(words, len);
                *self.index.write().unwrap_or_else(PoisonError::into_inner) = Some((version, index));
                Ok(())
            }
            Part::Chunk { number } => {
                let chunk = self.chunks.get(number as usize).ok_or_else(wrong)?;
                let words = Words::open(file, false)?;
                if words.len() != chunk_len(number) as usize * entry::WORDS * 8 {
                    return Err(wrong());
                }
                // An error means that the same chunk is mapped already.
                let _ = chunk.set(words);
                Ok(())
            }
        }
    }

    /// Whether the engine may be taken to live, because it has announced that lately.
    #[inline]
    pub fn lives(&self) -> bool {
        self.root.lives()
    }

    /// Looks for an object.
    #[inline]
    pub fn find(&self, id: &ObjectId) -> Found {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let Some((version, index)) = &*index else { return Found::Outdated };
        if self.root.index() != *version {
            return Found::Outdated;
        }
        let hash = index::hash(id, self.seed);
        let mut odd = None;
        let found = index.find(hash, |number| {
            let Some(entry) = self.entry(number) else {
                odd = Some(Found::Outdated);
                return None;
            };
            match entry.read() {
                Some(snapshot) if snapshot.id == *id => Some(Found::Entry { number, snapshot }),
                Some(_) => None,
                None => {
                    odd = odd.or(Some(Found::Unknown));
                    None
                }
            }
        });
        if let Some(found) = found.or(odd) {
            return found;
        }
        // The answer is right only if the table did not change during the search.
        fence(Ordering::Acquire);
        let solo = self.root.flags() & (root::SOLO | root::INCOMPLETE) == root::SOLO;
        if solo && self.root.index() == *version { Found::Absent } else { Found::Unknown }
    }

    /// Whether an entry still has this generation.
    #[inline]
    pub fn still_is(&self, number: u32, generation: u64) -> bool {
        self.entry(number).is_some_and(|entry| entry.is(generation))
    }

    /// Returns the number of entries that were removed so far.
    #[inline]
    pub fn removals(&self) -> u64 {
        self.root.removals()
    }

    /// Whether no entry was removed since there were so many removals, which was asked before a search.
    #[inline]
    pub fn still_has(&self, removals: u64) -> bool {
        self.root.still_has(removals)
    }

    /// Returns the version of a segment of the arena.
    #[inline]
    pub fn segment_version(&self, segment: u32) -> u32 {
        self.root.segment(segment)
    }

    #[inline]
    fn entry(&self, number: u32) -> Option<Entry<'_>> {
        let (chunk, place) = place_of(number);
        Some(Entry::new(self.chunks.get(chunk)?.get()?, place))
    }
}
