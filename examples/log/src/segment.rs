//! A segment of a log: regions of the same layout, one for each copy, in the order of a chain.
//!
//! Owns the handles to the copies. Any thread. The copies are a chain (R. van Renesse and F. B. Schneider,
//! "Chain Replication for Supporting High Throughput and Availability", OSDI 2004), without processes that
//! serve it: whoever changes an index word does so in the first copy, then in the next, and so on. Each index
//! word is written once, by `compare_swap` from 0. The first copy decides: whoever comes second adopts what
//! is there. Readers believe the last copy alone, so what they have seen is in all copies.
//!
//! A copy that is lost leaves the chain when its name is taken by a *tombstone*, a region of one word. Names
//! are unique in the cluster, so a copy whose node comes back later is a copy no more; nobody goes on without
//! a copy before. If the first copy is lost, nobody knows what was reserved. Then the segment is *closed*:
//! what is decided in the next copy stays, the rest is void, and the log goes on in another segment.
//!
//! Invariants: a word that has reached the last copy never changes. Nothing is reserved in a segment without
//! its first copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plasmon::region::{RegionOptions, Rights};
use plasmon::{ErrorKind, Region};

use crate::error::is_gone;
use crate::layout::{Entry, Shape, TOMBSTONE_LEN, reserved};
use crate::log::{Inner, OPERATION_PATIENCE, SegmentInfo, read_word};
use crate::{Error, Result};

pub(crate) use crate::layout::word;

/// Times that the copies are looked at anew because one was lost meanwhile.
const LOOKS: usize = 16;
/// Bytes of the index that are read at once.
const INDEX_STEP: usize = 256 << 10;

/// Copies that were found under the names of a segment.
pub(crate) enum Found {
    Ready(Arc<Segment>),
    /// Some copies are there, and nothing was ever reserved.
    Making,
    Nothing,
}

/// Segment, with the copies that were there when it was opened.
pub(crate) struct Segment {
    number: u64,
    shape: Shape,
    /// Copies in the order of the chain. Never empty.
    copies: Vec<Region>,
    /// Whether the first of the copies is the one that decides about places.
    has_first: bool,
    /// Whether the segment was found to have no room. A transaction that does not fit is not reserved again
    /// and again, since the tail would wrap one day.
    is_full: AtomicBool,
}

/// Content of the place of a copy.
enum Place {
    Copy { region: Region, birth: u64 },
    Tombstone,
    Missing,
}

impl Segment {
    /// Opens a segment. Copies that are lost get tombstones.
    pub(crate) fn open(log: &Inner, number: u64) -> Result<Found> {
        for _ in 0..LOOKS {
            match Self::look(log, number) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(Error::Store(error)) if is_gone(&error) => {
                    log.check_trimmed(first_of(log, number + 1))?
                }
                Err(error) => return Err(error),
            }
        }
        Err(log.lost(number))
    }

    /// Looks at the copies. `None` if one of them was lost just now.
    fn look(log: &Inner, number: u64) -> Result<Option<Found>> {
        let places =
            (0..log.shape.copies).map(|copy| place(log, number, copy)).collect::<Result<Vec<_>>>()?;
        let birth_of = |place: &Place| match place {
            Place::Copy { birth, .. } if *birth != 0 => Some(*birth),
            _ => None,
        };
        let others = places[1..].iter().find_map(birth_of);
        let (has_first, birth) = match (&places[0], others) {
            (Place::Copy { region, birth }, _) if read_word(region, word::OPEN)? != 0 => (true, *birth),
            // A region that somebody made in the place of a lost copy: it counts as a tombstone.
            (Place::Copy { birth, .. }, Some(other)) if *birth != 0 && *birth != other => (false, other),
            (Place::Copy { .. }, _) => return Ok(Some(Found::Making)),
            (Place::Tombstone, Some(other)) => (false, other),
            (Place::Missing, Some(_)) => {
                // A trimmed segment was freed on purpose.
                log.check_trimmed(first_of(log, number + 1))?;
                bury(log, number, 0)?;
                return Ok(None);
            }
            (Place::Missing, None) => {
                log.check_trimmed(first_of(log, number + 1))?;
                let some = places.iter().any(|place| matches!(place, Place::Copy { .. }));
                return Ok(Some(if some { Found::Making } else { Found::Nothing }));
            }
            (Place::Tombstone, None) => {
                log.check_trimmed(first_of(log, number + 1))?;
                return Err(log.lost(number));
            }
        };
        if let Some(missing) = places.iter().position(|place| matches!(place, Place::Missing)) {
            log.check_trimmed(first_of(log, number + 1))?;
            bury(log, number, missing as u64)?;
            return Ok(None);
        }
        let skipped = usize::from(!has_first);
        let copies = places.into_iter().skip(skipped).filter_map(|place| match place {
            Place::Copy { region, birth: found } if found == birth => Some(region),
            _ => None,
        });
        let segment = Self {
            number,
            shape: log.shape,
            copies: copies.collect(),
            has_first,
            is_full: AtomicBool::new(false),
        };
        Ok(Some(Found::Ready(Arc::new(segment))))
    }

    /// Makes a segment, or what is missing of it.
    pub(crate) fn make(log: &Inner, number: u64) -> Result<()> {
        let mut copies: Vec<Region> = Vec::new();
        for copy in 0..log.shape.copies {
            let (name, len) = (log.copy_name(number, copy), log.shape.region_len());
            match log.create_copy(&name, len, (copy as usize, &copies)) {
                Ok(Some(region)) => copies.push(region.with_timeout(OPERATION_PATIENCE)),
                Ok(None) => bury(log, number, copy)?,
                // A tombstone.
                Err(error) if error.kind() == ErrorKind::Exists && copy > 0 => {}
                Err(error) if error.kind() == ErrorKind::Exists => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let Some((first, others)) = copies.split_first() else { return Err(log.lost(number)) };
        // Copies that were made after the segment was open stand where copies were lost, and get no birth.
        if read_word(first, word::OPEN)? != 0 {
            return Ok(());
        }
        let mut drawn = [0; 8];
        getrandom::fill(&mut drawn).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("there are no random numbers: {error}"))
        })?;
        let drawn = u64::from_le_bytes(drawn) | 1;
        let birth = match first.compare_swap(word::BIRTH, 0, drawn)? {
            0 => drawn,
            other => other,
        };
        others.iter().try_for_each(|copy| copy.compare_swap(word::BIRTH, 0, birth).map(drop))?;
        first.swap(word::OPEN, 1)?;
        Ok(())
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn copies(&self) -> &[Region] {
        &self.copies
    }

    pub(crate) fn has_first(&self) -> bool {
        self.has_first
    }

    /// The copy that decides.
    pub(crate) fn first(&self) -> &Region {
        &self.copies[0]
    }

    /// The copy that readers believe.
    pub(crate) fn last(&self) -> &Region {
        &self.copies[self.copies.len() - 1]
    }

    /// Whether the segment may be closed without the writers in it, because others may go on without the
    /// first copy.
    pub(crate) fn may_close(&self) -> bool {
        !self.has_first || self.copies.len() > 1
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    pub(crate) fn note_full(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    pub(crate) fn index_at(&self, number: u64) -> u64 {
        self.shape.index_at(number)
    }

    pub(crate) fn data_at(&self, offset: u64) -> u64 {
        self.shape.data_at(offset)
    }

    pub(crate) fn position(&self, number: u64) -> u64 {
        self.number * self.shape.entries + number
    }

    /// Number of transactions for which places were reserved. It may be more than there are places.
    pub(crate) fn reserved(&self) -> Result<u64> {
        if !self.has_first {
            return self.close();
        }
        Ok(reserved(read_word(self.first(), word::TAIL)?).0)
    }

    /// Decides an index word in all copies, unless that was done. Returns what was decided.
    pub(crate) fn decide(&self, number: u64, entry: Entry) -> Result<u64> {
        let mut decided = entry.to_word();
        for copy in &self.copies {
            decided = match copy.compare_swap(self.shape.index_at(number), 0, decided)? {
                0 => decided,
                other => other,
            };
            self.wake(copy, number);
        }
        Ok(decided)
    }

    /// Wakes those who wait for an index word, after it was changed in memory that this process has mapped.
    pub(crate) fn wake(&self, copy: &Region, number: u64) {
        // A waiter registers first and looks at the word then, so one of the two sees the other. A wake that
        // fails is made up for by the waiters, who look again now and then.
        if copy.is_mapped() && read_word(copy, word::WAITERS).unwrap_or(1) != 0 {
            let _ = copy.notify(self.shape.index_at(number));
        }
    }

    /// Index words of a range, which may be torn.
    pub(crate) fn index(&self, copy: &Region, from: u64, to: u64) -> Result<Vec<u64>> {
        let mut bytes = vec![0; (to - from) as usize * 8];
        for (at, step) in (0u64..).step_by(INDEX_STEP).zip(bytes.chunks_mut(INDEX_STEP)) {
            copy.read(self.shape.index_at(from) + at, step)?;
        }
        Ok(bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect())
    }

    /// Closes a segment whose first copy is lost: decides all that is not decided, and says how many there
    /// are. Returns that number.
    ///
    /// The copies are marked as closed before the index is read. So a writer or reader that finds no mark
    /// after its word was there knows that the word was seen here.
    pub(crate) fn close(&self) -> Result<u64> {
        for copy in &self.copies {
            copy.swap(word::CLOSED, 1)?;
        }
        let mut end = read_word(self.first(), word::END)?;
        if end == 0 {
            let words = self.index(self.first(), 0, self.shape.entries)?;
            let found = words.iter().rposition(|word| *word != 0).map_or(0, |last| last as u64 + 1) + 1;
            end = match self.first().compare_swap(word::END, 0, found)? {
                0 => found,
                other => other,
            };
        }
        let count = (end - 1).min(self.shape.entries);
        for copy in &self.copies {
            let words = self.index(copy, 0, count)?;
            for (number, _) in (0..).zip(words).filter(|(_, word)| *word == 0) {
                self.decide(number, Entry::Void)?;
            }
        }
        for copy in &self.copies {
            copy.compare_swap(word::END, 0, end)?;
        }
        Ok(count)
    }

    /// Waits until an index word of the last copy is another than 0, or the time is over.
    pub(crate) fn wait(&self, number: u64, timeout: Duration) -> Result<()> {
        let copy = self.last();
        copy.fetch_add(word::WAITERS, 1)?;
        let waited = copy.wait(self.shape.index_at(number), 0, timeout);
        copy.fetch_add(word::WAITERS, u64::MAX)?;
        match waited {
            Err(error) if error.kind() != ErrorKind::TimedOut => Err(error.into()),
            _ => Ok(()),
        }
    }

    pub(crate) fn info(&self) -> Result<SegmentInfo> {
        let reserved = self.reserved()?.min(self.shape.entries);
        let open = self.index(self.last(), 0, reserved)?.into_iter().filter(|word| *word == 0).count() as u64;
        let homes = self.copies.iter().map(Region::home).collect();
        Ok(SegmentInfo { number: self.number, homes, reserved, open, closed: !self.has_first })
    }
}

/// First position of a segment, less one: what is trimmed beyond it has this segment no more.
fn first_of(log: &Inner, next: u64) -> u64 {
    next * log.shape.entries - 1
}

fn place(log: &Inner, number: u64, copy: u64) -> Result<Place> {
    let region = match log.client.map_region(&log.copy_name(number, copy), Rights::READ_WRITE, None) {
        Ok(region) if region.len() == TOMBSTONE_LEN => return Ok(Place::Tombstone),
        Ok(region) if region.len() == log.shape.region_len() => region.with_timeout(OPERATION_PATIENCE),
        Ok(region) => {
            let text = format!(
                "region '{}' is no part of log '{}': it has {} bytes",
                region.name(),
                log.name,
                region.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Err(error) if is_gone(&error) => return Ok(Place::Missing),
        Err(error) => return Err(error.into()),
    };
    match read_word(&region, word::BIRTH) {
        Ok(birth) => Ok(Place::Copy { region, birth }),
        Err(error) if is_gone(&error) => Ok(Place::Missing),
        Err(error) => Err(error.into()),
    }
}

/// Takes the name of a copy that is lost.
fn bury(log: &Inner, number: u64, copy: u64) -> Result<()> {
    match log.client.create_region(&log.copy_name(number, copy), TOMBSTONE_LEN, &RegionOptions::default()) {
        Err(error) if error.kind() != ErrorKind::Exists => Err(error.into()),
        _ => Ok(()),
    }
}
