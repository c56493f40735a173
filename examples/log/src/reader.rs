//! Reading a log in its order, and following it.
//!
//! Owns a position. One thread at a time. A batch is one read of index words, one of the bytes of all
//! transactions of the batch, and one of the words that say whether the segment was closed or trimmed. All
//! are of the last copy. A reader that has everything waits for a change of the next index word.
//!
//! Invariants: a transaction is given out when its index word is in the last copy, and the segment was not
//! closed before that was seen. More than 8 bytes may be torn by those who write meanwhile: the checksum
//! finds out, and the index word is read again as a whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use plasmon::ErrorKind;
use plasmon::region::Rights;

use crate::layout::{Entry, Shape, Transaction, decode, word};
use crate::log::{Inner, Log, read_word};
use crate::segment::{Found, Segment};
use crate::{Error, Result};

/// Index words that are read at once.
const INDEX_WORDS: u64 = 512;
/// Bytes of transactions that are read at once, but for one that is larger.
const BATCH_BYTES: u64 = 256 << 10;
/// Longest wait before the copies and their words are looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Times that words are read again before they are called damaged.
const LOOKS: usize = 16;

/// Place at which a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the oldest transaction that is there.
    Oldest,
    /// After all transactions for which places are reserved now.
    End,
    /// At a position, or what follows it.
    At(u64),
}

/// Reader of a log.
pub struct Reader {
    log: Arc<Inner>,
    position: u64,
}

/// Result of a look at the log.
enum Step {
    Batch(Vec<Transaction>),
    /// Nothing is decided about the next transaction.
    Open(Arc<Segment>),
    /// The segment is not there yet.
    Absent,
}

impl Reader {
    pub(crate) fn new(log: &Log, start: Start) -> Result<Self> {
        let position = match start {
            Start::Oldest => log.oldest()?,
            Start::End => log.end()?,
            Start::At(position) => position,
        };
        Ok(Self { log: log.share(), position })
    }

    /// Position after all that was read. A reader that starts there goes on with what follows.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads what there is, some transactions at once, in the order of the log. If there is nothing, the
    /// call waits until there is, and returns nothing when the time is over.
    ///
    /// # Errors
    /// `Trimmed` if what follows was trimmed: [`Reader::skip_trimmed`] goes on after it. `Lost` if the nodes
    /// of all copies are gone. `Damaged` if the bytes are not those that were written. `TimedOut` if a node
    /// does not answer.
    pub fn next_batch(&mut self, timeout: Duration) -> Result<Vec<Transaction>> {
        let due = Instant::now() + timeout;
        let mut failed = false;
        loop {
            let left = due.saturating_duration_since(Instant::now());
            let waited = match self.look() {
                Ok(Step::Batch(batch)) if !batch.is_empty() => return Ok(batch),
                Ok(Step::Batch(_)) => continue,
                Ok(_) if left.is_zero() => return Ok(Vec::new()),
                Ok(Step::Open(segment)) => {
                    let number = self.log.shape.place_of(self.position).1;
                    let waited = segment.wait(number, left.min(LOOK_EVERY));
                    waited.map_err(|error| (error, Some(segment)))
                }
                Ok(Step::Absent) => self.await_segment(left.min(LOOK_EVERY)).map_err(|error| (error, None)),
                Err(failure) => Err(failure),
            };
            match waited {
                Ok(()) => failed = false,
                Err((error, _)) if !error.is_passing() || (failed && left.is_zero()) => return Err(error),
                Err((_, segment)) => {
                    failed = true;
                    if let Some(segment) = segment {
                        self.log.find_again(&segment)?;
                    }
                }
            }
        }
    }

    /// Goes on with the oldest transaction that is there, if what follows was trimmed.
    ///
    /// # Errors
    /// Fails as [`Log::info`] does.
    pub fn skip_trimmed(&mut self) -> Result<()> {
        let oldest = self.log.root_word(crate::layout::root::TRIMMED)?;
        self.position = self.position.max(oldest);
        Ok(())
    }

    /// Waits until the segment of the position is made.
    fn await_segment(&self, timeout: Duration) -> Result<()> {
        self.log.check_trimmed(self.position)?;
        let (segment, _) = self.log.shape.place_of(self.position);
        let name = self.log.copy_name(segment, 0);
        match self.log.client.map_region(&name, Rights::READ, Some(timeout.max(Duration::from_millis(1)))) {
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::TimedOut) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }

    /// Looks for what follows, without waiting.
    fn look(&mut self) -> std::result::Result<Step, (Error, Option<Arc<Segment>>)> {
        let (number, from) = self.log.shape.place_of(self.position);
        let segment = match self.log.find(number).map_err(|error| (error, None))? {
            Found::Ready(segment) => segment,
            Found::Making | Found::Nothing => return Ok(Step::Absent),
        };
        self.look_in(&segment, from).map_err(|error| (error, Some(segment)))
    }

    fn look_in(&mut self, segment: &Arc<Segment>, from: u64) -> Result<Step> {
        let shape = self.log.shape;
        let copy = segment.last();
        let to = shape.entries.min(from + INDEX_WORDS);
        let words = segment.index(copy, from, to)?;
        let batch = Batch::of(shape, &words);
        // Read after the index: what was there before the segment was closed was seen by whoever closed it.
        let state = copy.begin_read(word::CLOSED, 24)?;
        let bytes = batch.read(segment)?;
        let state = state.wait()?;
        let word_of =
            |at: usize| state[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let (closed, end, trimmed) = (word_of(0), word_of(8), word_of(16));
        if from < trimmed {
            self.log.check_trimmed(self.position)?;
        }
        if closed != 0 || end != 0 || !segment.has_first() {
            return self.look_in_closed(segment, from);
        }
        if batch.count == 0 && batch.next == Entry::Open {
            return Ok(Step::Open(Arc::clone(segment)));
        }
        let transactions = self.take(segment, from, &batch, &bytes)?;
        self.position = segment.position(from + batch.count);
        if batch.next == Entry::End {
            self.position = segment.position(shape.entries);
        }
        Ok(Step::Batch(transactions))
    }

    /// Reads what a closed segment has: its words are final once it says how many there are.
    fn look_in_closed(&mut self, segment: &Arc<Segment>, from: u64) -> Result<Step> {
        let segment = if segment.has_first() { self.log.find_again(segment)? } else { Arc::clone(segment) };
        let end = match read_word(segment.last(), word::END)? {
            0 => segment.close()?,
            end => end - 1,
        };
        if from >= end {
            self.position = segment.position(self.log.shape.entries);
            return Ok(Step::Batch(Vec::new()));
        }
        let words = segment.index(segment.last(), from, end.min(from + INDEX_WORDS))?;
        let batch = Batch::of(self.log.shape, &words);
        let bytes = batch.read(&segment)?;
        let transactions = self.take(&segment, from, &batch, &bytes)?;
        self.position = match batch.next {
            Entry::End => segment.position(self.log.shape.entries),
            _ => segment.position(from + batch.count),
        };
        Ok(Step::Batch(transactions))
    }

    /// Takes the transactions out of the bytes of a batch.
    fn take(&self, segment: &Segment, from: u64, batch: &Batch, bytes: &[u8]) -> Result<Vec<Transaction>> {
        let mut found = Vec::with_capacity(batch.entries.len());
        for (at, offset, len) in &batch.entries {
            let number = from + at;
            let start = (offset - batch.start) as usize;
            let known = bytes.get(start..start + *len as usize);
            let known = known.and_then(|bytes| decode(segment.position(number), bytes));
            found.push(match known {
                Some(transaction) => transaction,
                None => self.take_alone(segment, number)?,
            });
        }
        Ok(found)
    }

    /// Reads a transaction by an index word that is read as a whole.
    fn take_alone(&self, segment: &Segment, number: u64) -> Result<Transaction> {
        let (copy, position) = (segment.last(), segment.position(number));
        for _ in 0..LOOKS {
            let word = read_word(copy, segment.index_at(number))?;
            if let Some((offset, len)) = place(self.log.shape, Entry::from_word(word)) {
                let mut bytes = vec![0; len as usize];
                copy.read(segment.data_at(offset), &mut bytes)?;
                if let Some(transaction) = decode(position, &bytes) {
                    return Ok(transaction);
                }
            }
        }
        self.log.check_trimmed(position)?;
        let text = format!(
            "position {position} of log '{}' has not the bytes that were written (region '{}')",
            self.log.name,
            copy.name()
        );
        Err(Error::new(ErrorKind::Damaged, text))
    }
}

/// Transactions whose index words follow each other.
struct Batch {
    /// Number of index words that were looked at: committed and void ones.
    count: u64,
    /// Entry of the next index word, if that is open or the end.
    next: Entry,
    /// Number, from the first on, offset and length of each committed transaction.
    entries: Vec<(u64, u64, u64)>,
    /// Offset of the first byte of all these transactions.
    start: u64,
    /// Offset behind the last byte of all these transactions.
    end: u64,
}

impl Batch {
    /// The transactions at the beginning of some index words. A place that no segment has is not believed:
    /// it is read anew, alone.
    fn of(shape: Shape, words: &[u64]) -> Self {
        let mut batch = Self { count: 0, next: Entry::Void, entries: Vec::new(), start: 0, end: 0 };
        for word in words {
            let entry = Entry::from_word(*word);
            match entry {
                Entry::Open | Entry::End => {
                    batch.next = entry;
                    break;
                }
                Entry::Void => {}
                Entry::Committed { .. } => {
                    // A torn word is found by the checksum of what lies at its place.
                    let (offset, len) = place(shape, entry).unwrap_or((batch.end, 0));
                    let start = if batch.entries.is_empty() { offset } else { batch.start.min(offset) };
                    let end = batch.end.max(offset + len);
                    if !batch.entries.is_empty() && end - start > BATCH_BYTES {
                        break;
                    }
                    (batch.start, batch.end) = (start, end);
                    batch.entries.push((batch.count, offset, len));
                }
            }
            batch.count += 1;
        }
        batch
    }

    fn read(&self, segment: &Segment) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (self.end - self.start) as usize];
        segment.last().read(segment.data_at(self.start), &mut bytes)?;
        Ok(bytes)
    }
}

/// Place of a committed transaction, if a segment has it.
fn place(shape: Shape, entry: Entry) -> Option<(u64, u64)> {
    match entry {
        Entry::Committed { offset, len } if offset + len <= shape.data => Some((offset, len)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(offset: u64, len: u64) -> u64 {
        Entry::Committed { offset, len }.to_word()
    }

    #[test]
    fn a_batch_ends_where_nothing_is_decided() {
        let shape = Shape::of(64 << 20, 1).expect("that is a capacity");
        let void = Entry::Void.to_word();
        let batch = Batch::of(shape, &[committed(0, 48), void, committed(96, 48), 0, committed(144, 48)]);
        assert_eq!((batch.count, batch.next, batch.start, batch.end), (3, Entry::Open, 0, 144));
        assert_eq!(batch.entries, [(0, 0, 48), (2, 96, 48)]);
        let batch = Batch::of(shape, &[void, Entry::End.to_word(), committed(0, 48)]);
        assert_eq!((batch.count, batch.next, batch.entries.len()), (1, Entry::End, 0));
    }

    #[test]
    fn a_batch_is_no_larger_than_it_should_be() {
        let shape = Shape::of(64 << 20, 1).expect("that is a capacity");
        let large = |nth| committed(nth * BATCH_BYTES, BATCH_BYTES);
        let batch = Batch::of(shape, &[large(0), large(1)]);
        assert_eq!((batch.count, batch.end), (1, BATCH_BYTES));
        // A place that no segment has is read alone.
        let batch = Batch::of(shape, &[committed(shape.data, 8)]);
        assert_eq!((batch.entries.as_slice(), batch.end), (&[(0, 0, 0)][..], 0));
    }
}
