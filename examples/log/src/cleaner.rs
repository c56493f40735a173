//! The cleaner: decides what dead writers have left undecided.
//!
//! Owns when it first saw each undecided transaction. One thread at a time. Any number of cleaners may run,
//! also beside writers: each index word is written once, whoever comes first. Readers do not pass what is
//! undecided, so a log with writers that may die has a cleaner.
//!
//! Invariant: a transaction of which nothing is decided is void, or in all copies, when the cleaner has
//! passed it. What the first copy has decided is brought to the others, never changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Result;
use crate::layout::{Entry, root};
use crate::log::Inner;
use crate::segment::{Found, Segment};

/// Cleaner of a log.
pub struct Cleaner {
    log: Arc<Inner>,
    patience: Duration,
    /// Position before which all is decided.
    from: u64,
    /// When a position was first seen undecided.
    seen: HashMap<u64, Instant>,
}

/// Result of a pass of a cleaner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of transactions that are void now.
    pub voided: u64,
    /// Number of transactions that were committed in the first copy, and are in all now.
    pub completed: u64,
    /// Number of transactions that are undecided, and not for long enough.
    pub open: u64,
}

impl Cleaner {
    pub(crate) fn new(log: Arc<Inner>, patience: Duration) -> Self {
        Self { log, patience, from: 0, seen: HashMap::new() }
    }

    /// Looks at all that is reserved, and decides what has been undecided for long enough. What is open now
    /// is looked at again by the next pass.
    ///
    /// # Errors
    /// Fails as [`Log::info`](crate::Log::info) does.
    pub fn pass(&mut self) -> Result<Swept> {
        let mut swept = Swept::default();
        self.from = self.from.max(self.log.root_word(root::TRIMMED)?);
        let mut number = self.log.shape.place_of(self.from).0;
        while let Found::Ready(segment) = self.log.find(number)? {
            let done = match self.sweep(&segment, &mut swept) {
                Err(error) if error.is_passing() => {
                    let segment = self.log.find_again(&segment)?;
                    self.sweep(&segment, &mut swept)?
                }
                done => done?,
            };
            let up_to_here = self.from >= segment.position(0);
            number += 1;
            if done && up_to_here && matches!(self.log.find(number)?, Found::Ready(_)) {
                self.from = number * self.log.shape.entries;
            }
        }
        let from = self.from;
        self.seen.retain(|position, _| *position >= from);
        Ok(swept)
    }

    /// Sweeps a segment. Returns whether all that is reserved there is decided.
    fn sweep(&mut self, segment: &Segment, swept: &mut Swept) -> Result<bool> {
        let to = segment.reserved()?.min(self.log.shape.entries);
        let start = segment.position(0);
        let from = self.from.saturating_sub(start).min(to);
        // The last copy first: what is there is in all others.
        let last = segment.index(segment.last(), from, to)?;
        let open: Vec<u64> = (from..).zip(&last).filter(|(_, word)| **word == 0).map(|(at, _)| at).collect();
        if let (true, Some(first)) = (self.from >= start, open.first()) {
            self.from = start + first;
        }
        for number in &open {
            let position = segment.position(*number);
            let since = *self.seen.entry(position).or_insert_with(Instant::now);
            if since.elapsed() < self.patience {
                swept.open += 1;
                continue;
            }
            self.seen.remove(&position);
            match Entry::from_word(segment.decide(*number, Entry::Void)?) {
                Entry::Committed { .. } => swept.completed += 1,
                _ => swept.voided += 1,
            }
        }
        Ok(open.is_empty())
    }
}
