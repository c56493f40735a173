//! Entry of an object table: a cache line that says where an object is, with a generation that says whether
//! the object is still there.
//!
//! | word | what |
//! |---|---|
//! | 0 | generation: odd while the entry is hidden or being written |
//! | 1 | state (low byte), bytes of metadata (high half) |
//! | 2, 3, 4 | id, the last four bytes in the low half of word 4; uid of its creator in the high half |
//! | 5 | offset in the arena |
//! | 6 | bytes of data |
//! | 7 | digest, 0 for none |
//!
//! Owns no state. The engine thread writes entries, any thread of a client reads them. An entry is a seqlock.
//! Invariant: the engine changes an entry only while the generation is odd. A reader compares the generation
//! before and after. See Boehm, "Can seqlocks get along with programming language memory models?" (2012), for
//! the fences.

use crate::ObjectId;
use crate::shared::words::{AtomicU64, Ordering, Words, fence};
use crate::wire::Span;

/// Number of words in an entry.
pub(super) const WORDS: usize = 8;

/// State of an entry: where the object's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The entry belongs to no object.
    Free = 0,
    /// The bytes are in memory.
    Sealed = 1,
    /// The bytes are on disk only.
    Spilled = 2,
}

/// Contents of an entry at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// Generation of the entry. It is even, except in the engine's own reads of hidden entries.
    pub generation: u64,
    /// State of the entry.
    pub state: State,
    /// Id of the object.
    pub id: ObjectId,
    /// Offset of the first byte from the start of the arena, if the object is in memory.
    pub offset: u64,
    /// Size of the data in bytes.
    pub data_len: u64,
    /// Size in bytes of the metadata, which follows the data.
    pub metadata_len: u32,
    /// XXH3 of data and metadata. 0 for none.
    pub digest: u64,
    /// User id of the creator.
    pub uid: u32,
}

impl Snapshot {
    /// Returns the size of data and metadata in bytes.
    pub fn total_len(&self) -> u64 {
        self.data_len + u64::from(self.metadata_len)
    }

    /// Returns the extent of the object in the arena. Valid only if the object is in memory.
    #[inline]
    pub fn span(&self) -> Span {
        let Self { offset, data_len, metadata_len, digest, .. } = *self;
        Span { offset, data_len, metadata_len, digest }
    }
}

/// Place of an entry in a chunk.
#[derive(Clone, Copy)]
pub(in crate::shared) struct Entry<'a> {
    words: &'a Words,
    first: usize,
}

impl<'a> Entry<'a> {
    pub(in crate::shared) fn new(words: &'a Words, index: usize) -> Self {
        Self { words, first: index * WORDS }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.words.at(self.first + index)
    }

    /// Reads the entry. `None` if the entry is hidden or was written meanwhile.
    #[inline]
    pub(in crate::shared) fn read(&self) -> Option<Snapshot> {
        let generation = self.word(0).load(Ordering::Acquire);
        if generation % 2 == 1 {
            return None;
        }
        let snapshot = self.snapshot(generation);
        fence(Ordering::Acquire);
        self.is(generation).then_some(snapshot)
    }

    /// Reads the entry, hidden or not. For the engine alone.
    pub(super) fn own(&self) -> Snapshot {
        self.snapshot(self.word(0).load(Ordering::Relaxed))
    }

    #[inline]
    fn snapshot(&self, generation: u64) -> Snapshot {
        let load = |index| self.word(index).load(Ordering::Relaxed);
        let (state, last) = (load(1), load(4));
        Snapshot {
            generation,
            state: match state as u8 {
                1 => State::Sealed,
                2 => State::Spilled,
                _ => State::Free,
            },
            id: id_of([load(2), load(3), last]),
            offset: load(5),
            data_len: load(6),
            metadata_len: (state >> 32) as u32,
            digest: load(7),
            uid: (last >> 32) as u32,
        }
    }

    /// Whether the entry still has this generation. If the generation is the same after a pin and its fence,
    /// the pin holds.
    #[inline]
    pub(in crate::shared) fn is(&self, generation: u64) -> bool {
        self.word(0).load(Ordering::Relaxed) == generation
    }

    /// Returns the id of the object. For the engine alone.
    pub(super) fn id(&self) -> ObjectId {
        id_of([2, 3, 4].map(|index| self.word(index).load(Ordering::Relaxed)))
    }

    /// Hides the entry. After the engine's next fence no new pin on it holds.
    pub(in crate::shared) fn hide(&self) {
        let generation = self.word(0).load(Ordering::Relaxed);
        self.word(0).store(generation | 1, Ordering::Relaxed);
    }

    /// Shows the hidden entry again. Pins from before hold.
    pub(in crate::shared) fn show(&self) {
        let generation = self.word(0).load(Ordering::Relaxed);
        self.word(0).store(generation & !1, Ordering::Release);
    }

    /// Changes the entry, hidden or not. Afterwards the entry is shown, or still hidden, with a new
    /// generation.
    pub(in crate::shared) fn write(&self, is_shown: bool, change: impl FnOnce(&Self)) {
        let generation = self.word(0).load(Ordering::Relaxed) | 1;
        self.word(0).store(generation, Ordering::Relaxed);
        fence(Ordering::Release);
        change(self);
        self.word(0).store(generation + if is_shown { 1 } else { 2 }, Ordering::Release);
    }

    /// Sets all words of the entry, within [`Entry::write`].
    pub(in crate::shared) fn set(&self, new: &Snapshot) {
        let [first, second, third] = words_of(&new.id);
        let state = u64::from(new.metadata_len) << 32 | new.state as u64;
        let last = u64::from(new.uid) << 32 | third;
        for (index, word) in
            [state, first, second, last, new.offset, new.data_len, new.digest].into_iter().enumerate()
        {
            self.word(index + 1).store(word, Ordering::Relaxed);
        }
    }

    /// Sets state and offset of the entry, within [`Entry::write`].
    pub(in crate::shared) fn set_place(&self, state: State, offset: u64) {
        let metadata = self.word(1).load(Ordering::Relaxed) & !0xff;
        self.word(1).store(metadata | state as u64, Ordering::Relaxed);
        self.word(5).store(offset, Ordering::Relaxed);
    }
}

/// Returns the three words that hold an id.
pub(super) fn words_of(id: &ObjectId) -> [u64; 3] {
    let bytes = id.as_bytes();
    let word = |at: usize, len: usize| {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&bytes[at..at + len]);
        u64::from_le_bytes(word)
    };
    [word(0, 8), word(8, 8), word(16, 4)]
}

fn id_of(words: [u64; 3]) -> ObjectId {
    let mut bytes = [0; ObjectId::LEN];
    bytes[..8].copy_from_slice(&words[0].to_le_bytes());
    bytes[8..16].copy_from_slice(&words[1].to_le_bytes());
    bytes[16..].copy_from_slice(&words[2].to_le_bytes()[..4]);
    ObjectId::from_bytes(bytes)
}
