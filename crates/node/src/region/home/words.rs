//! Operations on the bytes of a region that its home carries out. Owns no state. Engine thread only.
//!
//! Invariant: atomics are the processor's own on the mapped word, since processes of the owner map the same
//! memory. An aligned read or write of exactly 8 bytes is one atomic load or store; anything else may be torn
//! by those who write at the same time. A fill of many bytes takes several turns of the engine.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use plasmon::region::Rights;
use plasmon::text::printable;
use plasmon::wire::Operation;
use plasmon::{Error, ErrorKind};

use super::Counts;
use super::region::Region;
use crate::memory::{OutOfBounds, Run};

/// Number of bytes of a word.
pub(super) const WORD_BYTES: u64 = 8;
/// Maximum number of bytes that an operation reads or writes.
pub(super) const STEP_BYTES: u64 = 256 << 10;
/// Maximum number of bytes that the engine sets to a value in a turn. A processor takes some 40 µs for them,
/// several times as long as for a turn without work.
pub(super) const FILL_STEP_BYTES: u64 = 1 << 20;
/// Result of an operation on a region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Value of the word before the operation; 0 if the operation is not about a word.
    pub(crate) value: u64,
    /// The bytes that were read.
    pub(crate) data: Vec<u8>,
}

impl Done {
    fn of(value: u64) -> Self {
        Self { value, data: Vec::new() }
    }
}

impl Counts {
    fn count(&self, operation: &Operation) {
        let count = match operation {
            Operation::Read { .. } => &self.reads,
            Operation::Write { .. } => &self.writes,
            Operation::FetchAdd { .. }
            | Operation::Swap { .. }
            | Operation::CompareSwap { .. }
            | Operation::TestAndSet { .. } => &self.atomics,
            Operation::Fill { .. } => &self.fills,
            Operation::Wait { .. } => &self.waits,
            Operation::Notify { .. } => &self.notifies,
        };
        count.set(count.get() + 1);
    }
}

impl Region {
    /// Carries out an operation for a user, with the bytes that came with the operation. [`Region::wait`]
    /// carries out waits, and [`Region::fill`] a fill of more bytes than one turn has time for.
    ///
    /// # Errors
    /// `Freed` if the region has ended, `NotHere` if it has moved, `Disconnected` if this node withholds it,
    /// `NotAllowed` if the user lacks the right, `Invalid` if the region has no such bytes or no such word.
    pub(crate) fn carry_out(&self, user: u32, operation: Operation, data: &[u8]) -> Result<Done, Error> {
        let needed = match operation {
            Operation::Read { .. } | Operation::Wait { .. } => Rights::READ,
            _ => Rights::WRITE,
        };
        let memory = self.open(user, needed)?;
        let change = |offset, change: &dyn Fn(&AtomicU64) -> u64| {
            let before = change(self.word(&memory, offset)?);
            self.changed(offset, WORD_BYTES);
            Ok(Done::of(before))
        };
        let done = match operation {
            Operation::Read { offset, len } => self.read(&memory, offset, len),
            Operation::Write { offset } => self.write(&memory, offset, data),
            Operation::FetchAdd { offset, value } => {
                change(offset, &|word| word.fetch_add(value, Ordering::SeqCst))
            }
            Operation::Swap { offset, value } => change(offset, &|word| word.swap(value, Ordering::SeqCst)),
            Operation::CompareSwap { offset, expected, value } => change(offset, &|word| {
                let (order, swapped) = (Ordering::SeqCst, word);
                swapped.compare_exchange(expected, value, order, order).unwrap_or_else(|other| other)
            }),
            Operation::TestAndSet { offset } => change(offset, &|word| word.swap(1, Ordering::SeqCst)),
            Operation::Fill { offset, len, byte } => {
                self.ensure_short(len).and_then(|()| self.fill_step(&memory, offset, len, byte))
            }
            Operation::Notify { offset } => change(offset, &|_| 0),
            Operation::Wait { .. } => {
                Err(Error::new(ErrorKind::Invalid, "a wait for a word is not an operation on bytes"))
            }
        };
        if done.is_ok() {
            self.ground.counts.count(&operation);
        }
        done
    }

    /// Sets bytes to a value, [`FILL_STEP_BYTES`] in a turn. Stops with an error if the region ends
    /// meanwhile.
    ///
    /// # Errors
    /// Errors of [`Region::carry_out`].
    pub(crate) async fn fill(
        self: &Rc<Self>,
        user: u32,
        offset: u64,
        len: u64,
        byte: u8,
    ) -> Result<Done, Error> {
        self.open(user, Rights::WRITE)?;
        self.ensure_bounds(offset, len)?;
        let mut at = 0;
        loop {
            let step = FILL_STEP_BYTES.min(len - at);
            self.fill_step(&*self.open(user, Rights::WRITE)?, offset + at, step, byte)?;
            at += step;
            if at == len {
                break;
            }
            self.ground.kernel.clock.sleep(Duration::ZERO).await;
        }
        self.ground.counts.count(&Operation::Fill { offset, len, byte });
        Ok(Done::default())
    }

    /// Returns the word at an offset.
    pub(super) fn word<'a>(&self, memory: &'a Run, offset: u64) -> Result<&'a AtomicU64, Error> {
        self.ensure_bounds(offset, WORD_BYTES)?;
        memory.word(offset).ok_or_else(|| {
            let text = format!(
                "region '{}' has no word at offset {offset}: offsets of words are multiples of {WORD_BYTES}",
                printable(self.name())
            );
            Error::new(ErrorKind::Invalid, text)
        })
    }

    fn read(&self, memory: &Run, offset: u64, len: u64) -> Result<Done, Error> {
        self.ensure_bounds(offset, len)?;
        self.ensure_short(len)?;
        if let Some(word) = whole_word(memory, offset, len) {
            return Ok(Done { value: 0, data: word.load(Ordering::SeqCst).to_ne_bytes().into() });
        }
        let mut data = vec![0; len as usize];
        memory.read(offset, &mut data).map_err(internal)?;
        Ok(Done { value: 0, data })
    }

    fn write(&self, memory: &Run, offset: u64, data: &[u8]) -> Result<Done, Error> {
        let len = data.len() as u64;
        self.ensure_bounds(offset, len)?;
        self.ensure_short(len)?;
        match (whole_word(memory, offset, len), <[u8; WORD_BYTES as usize]>::try_from(data)) {
            (Some(word), Ok(bytes)) => word.store(u64::from_ne_bytes(bytes), Ordering::SeqCst),
            _ => memory.write(offset, data).map_err(internal)?,
        }
        self.changed(offset, len);
        Ok(Done::default())
    }

    fn fill_step(&self, memory: &Run, offset: u64, len: u64, byte: u8) -> Result<Done, Error> {
        self.ensure_bounds(offset, len)?;
        memory.fill(offset, len as usize, byte).map_err(internal)?;
        self.changed(offset, len);
        Ok(Done::default())
    }

    fn ensure_short(&self, len: u64) -> Result<(), Error> {
        if len <= STEP_BYTES {
            return Ok(());
        }
        let text = format!(
            "{len} bytes of region '{}' are too many for one operation: {STEP_BYTES} at most",
            printable(self.name())
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }
}

/// Returns the word that a range of bytes is, if the range is exactly one aligned word.
fn whole_word(memory: &Run, offset: u64, len: u64) -> Option<&AtomicU64> {
    if len == WORD_BYTES { memory.word(offset) } else { None }
}

fn internal(error: OutOfBounds) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}
