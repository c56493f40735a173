//! Appending transactions, several at a time.
//!
//! Owns the transactions under way. One thread at a time. Each passes these steps, and each step is some
//! operations on regions that were begun: *reserve*, a `fetch_add` on the tail of the first copy; *write*,
//! one write of the bytes to each copy; *commit*, a `compare_swap` of the index word in each copy, one after
//! the other. If there are several copies, a *look* follows whether the segment was closed meanwhile; one
//! look does for all transactions that have come so far.
//!
//! Invariants: a transaction is acknowledged when its index word is in all copies, and the segment was not
//! closed before. Every step may be taken again: bytes are written to their own place, and the index word is
//! written once. A transaction that was voided was seen by nobody, and is appended anew.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use plasmon::ErrorKind;
use plasmon::region::Pending;

use crate::layout::{Entry, encode, reservation, reserved, seal, word};
use crate::log::{Inner, PAUSE, read_word};
use crate::segment::Segment;
use crate::{Error, Result};

/// Most transactions of a writer that are under way at a time.
pub const MAX_WINDOW: usize = 64;
/// Time-out of a transaction, unless the program sets another.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a write that is begun.
const STEP_BYTES: usize = 256 << 10;
/// Operations that a client may have under way, with some to spare.
const SLOTS: usize = 192;

/// Writer to a log.
pub struct Writer {
    log: Arc<Inner>,
    number: u64,
    timeout: Duration,
    window: usize,
    segment: Arc<Segment>,
    queue: VecDeque<Append>,
    look: Option<(Arc<Segment>, Pending<Vec<u8>>)>,
}

/// Transaction under way.
struct Append {
    bytes: Vec<u8>,
    due: Instant,
    segment: Arc<Segment>,
    /// Number of the transaction in its segment, and offset of the bytes, once they are reserved.
    place: Option<(u64, u64)>,
    stage: Stage,
}

enum Stage {
    New,
    Reserving(Pending<u64>),
    Writing(Vec<Pending<()>>),
    /// The index word of this copy is being written.
    Committing(usize, Pending<u64>),
    /// All copies have the index word.
    There,
    /// A look is under way that began after all copies had the index word.
    LookedAt,
    Over(Result<u64>),
}

impl Writer {
    pub(crate) fn new(log: Arc<Inner>) -> Result<Self> {
        let mut drawn = [0; 8];
        getrandom::fill(&mut drawn).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("there are no random numbers: {error}"))
        })?;
        let segment = log.last_segment()?;
        let window = MAX_WINDOW.min(SLOTS / log.shape.copies as usize);
        let number = u64::from_le_bytes(drawn);
        Ok(Self { log, number, timeout: TIMEOUT, window, segment, queue: VecDeque::new(), look: None })
    }

    /// Number of the writer, which its transactions bear.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the same writer with another time-out of each transaction.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the same writer with so many transactions under way at most, of those that are possible.
    #[must_use]
    pub fn with_window(self, window: usize) -> Self {
        Self { window: window.clamp(1, self.window), ..self }
    }

    /// Number of transactions that may be under way.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Number of transactions that were begun, and whose results were not taken.
    pub fn under_way(&self) -> usize {
        self.queue.len()
    }

    /// Appends a transaction of these records, and waits until all copies have it. Returns its position.
    /// Transactions that were begun before are finished first; their results stay to be taken.
    ///
    /// # Errors
    /// `Full` if the log has no room until it is trimmed. `TooLarge` for more bytes than a segment has.
    /// `OutcomeUnknown` if the transaction may be in the log, or may come: the nodes did not answer in time.
    /// `TimedOut` or any other error: it is not in the log.
    pub fn append<R: AsRef<[u8]>>(&mut self, records: &[R]) -> Result<u64> {
        let append = self.prepare(records)?;
        self.queue.push_back(append);
        loop {
            if let Some(Append { stage: Stage::Over(_), .. }) = self.queue.back()
                && let Some(Append { stage: Stage::Over(result), .. }) = self.queue.pop_back()
            {
                return result;
            }
            self.advance();
        }
    }

    /// Begins to append a transaction. If as many are under way as may be, the oldest has to be taken
    /// first ([`Writer::finish`]). Transactions that are under way together are in no order.
    ///
    /// # Errors
    /// `TooLarge`, and `Busy` if the window is full.
    pub fn begin<R: AsRef<[u8]>>(&mut self, records: &[R]) -> Result<()> {
        if self.queue.len() >= self.window {
            let text = format!("{} transactions are under way: take the result of one first", self.window);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let mut append = self.prepare(records)?;
        if let Err(error) = Self::step(&self.log, &mut self.segment, &mut append) {
            Self::recover(&self.log, &mut self.segment, &mut append, error);
        }
        self.queue.push_back(append);
        Ok(())
    }

    /// Waits for the oldest transaction that was begun, and returns its position. `None` if there is none.
    ///
    /// # Errors
    /// Fails as [`Writer::append`] does.
    pub fn finish(&mut self) -> Option<Result<u64>> {
        while !matches!(self.queue.front()?.stage, Stage::Over(_)) {
            self.advance();
        }
        match self.queue.pop_front()?.stage {
            Stage::Over(result) => Some(result),
            _ => None,
        }
    }

    /// Goes on with all transactions under way as far as that takes no waiting; if it gets nowhere, it waits
    /// for a step of the oldest. Returns whether something is left to do.
    pub fn advance(&mut self) -> bool {
        let mut moved = self.take_look(false);
        for at in 0..self.queue.len() {
            if self.queue[at].is_ready() {
                self.go_on(at);
                moved = true;
            }
        }
        moved |= self.begin_look();
        let oldest = self.queue.iter().position(|append| !matches!(append.stage, Stage::Over(_)));
        let Some(oldest) = oldest else { return false };
        if !moved {
            match self.queue[oldest].stage {
                Stage::There | Stage::LookedAt => drop(self.take_look(true)),
                _ => self.go_on(oldest),
            }
        }
        true
    }

    fn prepare<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Append> {
        let most = self.log.shape.data;
        let bytes =
            encode(self.number, records).filter(|bytes| bytes.len() as u64 <= most).ok_or_else(|| {
                let text = format!(
                    "the transaction is too large: log '{}' takes {most} bytes at most",
                    self.log.name
                );
                Error::new(ErrorKind::TooLarge, text)
            })?;
        let due = Instant::now() + self.timeout;
        Ok(Append { bytes, due, segment: Arc::clone(&self.segment), place: None, stage: Stage::New })
    }

    fn go_on(&mut self, at: usize) {
        let append = &mut self.queue[at];
        if let Err(error) = Self::step(&self.log, &mut self.segment, append) {
            Self::recover(&self.log, &mut self.segment, append, error);
        }
    }

    /// Takes the next step of a transaction, whose operations are over, or waits for them.
    fn step(log: &Inner, current: &mut Arc<Segment>, append: &mut Append) -> Result<()> {
        match mem::replace(&mut append.stage, Stage::New) {
            Stage::New => append.begin(log, current),
            Stage::Reserving(pending) => append.reserved(log, current, pending.wait()?),
            Stage::Writing(pending) => {
                pending.into_iter().try_for_each(Pending::wait)?;
                append.commit(0)
            }
            Stage::Committing(copy, pending) => append.committed(copy, pending.wait()?),
            stage @ (Stage::There | Stage::LookedAt | Stage::Over(_)) => {
                append.stage = stage;
                Ok(())
            }
        }
    }

    /// Has a transaction go on after an error, or end with it.
    fn recover(log: &Inner, current: &mut Arc<Segment>, append: &mut Append, error: Error) {
        if !error.is_passing() || Instant::now() >= append.due {
            append.give_up(log, error);
            return;
        }
        match log.find_again(&append.segment) {
            Ok(segment) => {
                if current.number() == segment.number() {
                    *current = Arc::clone(&segment);
                }
                append.segment = segment;
                append.stage = Stage::New;
                thread::sleep(PAUSE);
            }
            // Without a place nothing was begun: another segment does as well.
            Err(Error::Trimmed { .. }) if append.place.is_none() => match log.last_segment() {
                Ok(last) => {
                    *current = Arc::clone(&last);
                    (append.segment, append.stage) = (last, Stage::New);
                }
                Err(error) => append.give_up(log, error),
            },
            Err(again) if again.kind() != ErrorKind::Lost && again.is_passing() => append.stage = Stage::New,
            Err(other) => append.give_up(log, other),
        }
    }

    /// Begins a look at whether a segment is closed, if transactions wait for one.
    fn begin_look(&mut self) -> bool {
        if self.look.is_some() {
            return false;
        }
        let there = |append: &&mut Append| matches!(append.stage, Stage::There);
        let Some(first) = self.queue.iter_mut().find(there) else { return false };
        let segment = Arc::clone(&first.segment);
        match segment.last().begin_read(word::CLOSED, 8) {
            Ok(pending) => self.look = Some((Arc::clone(&segment), pending)),
            Err(error) => {
                Self::recover(&self.log, &mut self.segment, first, error.into());
                return true;
            }
        }
        let looked =
            self.queue.iter_mut().filter(there).filter(|append| Arc::ptr_eq(&append.segment, &segment));
        looked.for_each(|append| append.stage = Stage::LookedAt);
        true
    }

    /// Takes the result of a look, if it has come, or waits for it.
    fn take_look(&mut self, wait: bool) -> bool {
        let Some((segment, pending)) = self.look.take_if(|(_, pending)| wait || pending.is_over()) else {
            return false;
        };
        let closed = pending.wait().map(|bytes| bytes.iter().any(|byte| *byte != 0));
        let looked = |append: &&mut Append| {
            matches!(append.stage, Stage::LookedAt) && Arc::ptr_eq(&append.segment, &segment)
        };
        for append in self.queue.iter_mut().filter(looked) {
            let ended = match &closed {
                Ok(false) => {
                    append.end();
                    Ok(())
                }
                Ok(true) => append.look_again(&self.log),
                Err(error) => Err(error.clone().into()),
            };
            if let Err(error) = ended {
                Self::recover(&self.log, &mut self.segment, append, error);
            }
        }
        true
    }
}

impl Append {
    /// Whether the next step takes no waiting.
    fn is_ready(&self) -> bool {
        match &self.stage {
            Stage::New => true,
            Stage::Reserving(pending) => pending.is_over(),
            Stage::Writing(pending) => pending.iter().all(Pending::is_over),
            Stage::Committing(_, pending) => pending.is_over(),
            Stage::There | Stage::LookedAt | Stage::Over(_) => false,
        }
    }

    /// Reserves a place, or writes to the place that there is.
    fn begin(&mut self, log: &Inner, current: &mut Arc<Segment>) -> Result<()> {
        if self.place.is_some() {
            return self.write();
        }
        self.segment = Arc::clone(current);
        if !self.segment.has_first() {
            // Readers go on in the next segment when this one is closed.
            self.segment.close()?;
        }
        if !self.segment.has_first() || self.segment.is_full() {
            return self.next_segment(log, current);
        }
        let pending =
            self.segment.first().begin_fetch_add(word::TAIL, reservation(self.bytes.len() as u64))?;
        self.stage = Stage::Reserving(pending);
        Ok(())
    }

    /// Has a place, unless the segment is full.
    fn reserved(&mut self, log: &Inner, current: &mut Arc<Segment>, tail: u64) -> Result<()> {
        let (number, offset) = reserved(tail);
        if number >= log.shape.entries || offset + self.bytes.len() as u64 > log.shape.data {
            self.segment.note_full();
            if number < log.shape.entries {
                self.segment.decide(number, Entry::End)?;
            }
            return self.next_segment(log, current);
        }
        self.place = Some((number, offset));
        seal(self.segment.position(number), &mut self.bytes);
        self.write()
    }

    /// Goes on in the segment after this one.
    fn next_segment(&mut self, log: &Inner, current: &mut Arc<Segment>) -> Result<()> {
        if self.segment.number() >= current.number() {
            *current = log.make_segment(self.segment.number() + 1)?;
        }
        self.stage = Stage::New;
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let Some((_, offset)) = self.place else { return Ok(()) };
        let at = self.segment.data_at(offset);
        let mut begun = Vec::new();
        for copy in self.segment.copies() {
            for (step, bytes) in (at..).step_by(STEP_BYTES).zip(self.bytes.chunks(STEP_BYTES)) {
                begun.push(copy.begin_write(step, bytes)?);
                if begun.len() > self.segment.copies().len() {
                    // Large transactions wait for their own writes, so that they leave room for others.
                    begun.remove(0).wait()?;
                }
            }
        }
        self.stage = Stage::Writing(begun);
        Ok(())
    }

    /// Index word that commits the transaction.
    fn word(&self) -> u64 {
        let (_, offset) = self.place.unwrap_or_default();
        Entry::Committed { offset, len: self.bytes.len() as u64 }.to_word()
    }

    fn commit(&mut self, copy: usize) -> Result<()> {
        let (number, _) = self.place.unwrap_or_default();
        let Some(region) = self.segment.copies().get(copy) else { return Ok(()) };
        let pending = region.begin_compare_swap(self.segment.index_at(number), 0, self.word())?;
        self.stage = Stage::Committing(copy, pending);
        Ok(())
    }

    fn committed(&mut self, copy: usize, before: u64) -> Result<()> {
        if before != 0 && before != self.word() {
            // The transaction was voided, and nobody has seen it.
            (self.place, self.stage) = (None, Stage::New);
            return Ok(());
        }
        if copy + 1 < self.segment.copies().len() {
            return self.commit(copy + 1);
        }
        let (number, _) = self.place.unwrap_or_default();
        self.segment.wake(self.segment.last(), number);
        if self.segment.may_close() {
            self.stage = Stage::There;
        } else {
            self.end();
        }
        Ok(())
    }

    /// Finds out whether the transaction is in a segment that was closed, with the copies that are there now.
    fn look_again(&mut self, log: &Inner) -> Result<()> {
        self.segment = log.find_again(&self.segment)?;
        let (number, _) = self.place.unwrap_or_default();
        let is_closed = read_word(self.segment.last(), word::CLOSED)? != 0;
        let is_in = !is_closed
            || number < self.segment.close()?
                && read_word(self.segment.last(), self.segment.index_at(number))? == self.word();
        if is_in {
            self.end();
        } else {
            (self.place, self.stage) = (None, Stage::New);
        }
        Ok(())
    }

    fn end(&mut self) {
        let (number, _) = self.place.unwrap_or_default();
        self.stage = Stage::Over(Ok(self.segment.position(number)));
    }

    /// Ends with an error, which says whether the transaction may be in the log.
    fn give_up(&mut self, log: &Inner, error: Error) {
        let error = match self.place {
            Some((number, _)) => {
                let position = self.segment.position(number);
                let text = format!(
                    "the transaction may or may not be at position {position} of log '{}', or may \
                     come: {error}",
                    log.name
                );
                Error::new(ErrorKind::OutcomeUnknown, text)
            }
            None if matches!(error.kind(), ErrorKind::OutcomeUnknown) => {
                Error::new(ErrorKind::TimedOut, format!("log '{}' gave no place: {error}", log.name))
            }
            None => error,
        };
        self.stage = Stage::Over(Err(error));
    }
}
