//! A client's side of an object table, for any number of threads.
//!
//! Nothing here blocks or asks: what cannot be told from memory is left to the daemon
//! ([`Found::Unknown`]). A reader trusts the engine, and still never leaves its mappings.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{OnceLock, PoisonError, RwLock};

use super::entry::{self, Entry, Snapshot};
use super::index::{self, Index};
use super::layout::{CHUNKS, Part, chunk_len, place_of};
use super::root::{self, Root};
use crate::ObjectId;
use crate::shared::words::{Ordering, Words, fence};

/// What a table says of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It was there, at one moment: pin it, and look again ([`TableReader::still_is`]).
    Entry {
        /// The number of its entry.
        number: u32,
        /// What the entry said.
        snapshot: Snapshot,
    },
    /// It exists nowhere.
    Absent,
    /// The daemon knows.
    Unknown,
    /// The daemon knows of parts of the table that this reader does not have.
    Outdated,
}

/// An object table that another process writes.
pub struct TableReader {
    root: Root,
    seed: u64,
    /// With its version. Replaced as a whole, so that no reader is in what goes.
    index: RwLock<Option<(u32, Index)>>,
    chunks: [OnceLock<Words>; CHUNKS],
}

impl TableReader {
    /// Begins to read a table.
    ///
    /// # Errors
    /// When this is not the root of a table of this release, or cannot be mapped.
    pub fn new(root: &OwnedFd) -> io::Result<Self> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not an object table of this release");
        let words = Words::open(root, false)?;
        if words.len() != root::LEN {
            return Err(wrong());
        }
        let root = Root::of(words).ok_or_else(wrong)?;
        let seed = root.seed();
        Ok(Self { root, seed, index: RwLock::new(None), chunks: Default::default() })
    }

    /// Takes a part of the table.
    ///
    /// # Errors
    /// When it has not the shape of such a part, or cannot be mapped.
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
                // It was there already, and is the same.
                let _ = chunk.set(words);
                Ok(())
            }
        }
    }

    /// Whether the engine can be taken to live: it has said so lately.
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
        // What is not here is nowhere, if that was so all the while.
        fence(Ordering::Acquire);
        let solo = self.root.flags() & (root::SOLO | root::INCOMPLETE) == root::SOLO;
        if solo && self.root.index() == *version { Found::Absent } else { Found::Unknown }
    }

    /// Whether an entry still has the generation it had.
    #[inline]
    pub fn still_is(&self, number: u32, generation: u64) -> bool {
        self.entry(number).is_some_and(|entry| entry.is(generation))
    }

    /// Which memory a segment of the arena has.
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
