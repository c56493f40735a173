//! Operations on a region that were begun, and whose results are taken later.
//!
//! Owns the calls under way. Any thread may wait for a result, and [`Region::fence`] for all of them. The
//! first thread waits for the call, and leaves the result to the thread that takes it. An operation on mapped
//! memory is over when it was begun.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Region;
use super::transfer::Chunk;
use crate::client::calling::{Call, Calls};
use crate::client::due::{Due, due};
use crate::client::pieces::{MAX_PIECE_BYTES, Piece};
use crate::region::Rights;
use crate::shared::PAYLOAD_LEN;
use crate::wire::{Operation, RegionCall};
use crate::{Error, ErrorKind, Result};

/// Operation on a region that was begun. [`Pending::wait`] returns its result.
///
/// Dropping this value gives the result up; a change goes on. Up to 256 operations of a client are under way
/// at a time, on all its threads together. A thread that begins another one waits until a result is taken.
#[must_use = "an operation that is not waited for may not be over, and its error is not seen"]
pub struct Pending<T> {
    begun: Arc<Begun>,
    told: fn(Outcome) -> T,
}

/// Outcome of an operation: a word, or bytes.
pub(super) struct Outcome {
    value: u64,
    bytes: Vec<u8>,
}

/// Operation that was begun, until its result is taken.
pub(super) struct Begun {
    region: Region,
    due: Due,
    stage: Mutex<Stage>,
}

enum Stage {
    /// Call with all its bytes in the slot, its kind, and the number of bytes to come.
    InSlot(Call, RegionCall, usize),
    /// Chunk with its bytes in lent memory, and the number of bytes to come.
    InPiece(Chunk, usize),
    Over(Result<Outcome>),
    Taken,
}

impl Region {
    /// Begins to read `len` bytes at `offset`, at most 256 KiB. [`Region::read`] reads more.
    ///
    /// # Errors
    /// As [`Region::read`]. `Invalid` for more bytes.
    pub fn begin_read(&self, offset: u64, len: usize) -> Result<Pending<Vec<u8>>> {
        self.check(offset, len as u64, Rights::READ)?;
        self.check_size(len)?;
        let due = due(Some(self.timeout));
        let stage = if self.handle.is_touchable(false) || len == 0 {
            let mut bytes = vec![0; len];
            self.read(offset, &mut bytes)?;
            Stage::Over(Ok(Outcome { value: 0, bytes }))
        } else if len <= PAYLOAD_LEN {
            let what = RegionCall::On(Operation::Read { offset, len: len as u64 });
            Stage::InSlot(self.begin(what, &[], self.timeout, due)?, what, len)
        } else {
            let piece = Piece::of(&self.client, len, due)?;
            Stage::InPiece(self.begin_reading(offset, len, piece, due)?, len)
        };
        Ok(self.pending(stage, due, |outcome| outcome.bytes))
    }

    /// Begins to write a copy of bytes to `offset`, at most 256 KiB. [`Region::write`] writes more.
    ///
    /// # Errors
    /// As [`Region::write`]. `Invalid` for more bytes.
    pub fn begin_write(&self, offset: u64, data: &[u8]) -> Result<Pending<()>> {
        self.check(offset, data.len() as u64, Rights::WRITE)?;
        self.check_size(data.len())?;
        let due = due(Some(self.timeout));
        let stage = if self.handle.is_touchable(true) || data.is_empty() {
            self.write(offset, data)?;
            Stage::Over(Ok(Outcome { value: 0, bytes: Vec::new() }))
        } else if data.len() <= PAYLOAD_LEN {
            let what = RegionCall::On(Operation::Write { offset });
            Stage::InSlot(self.begin(what, data, self.timeout, due)?, what, 0)
        } else {
            let piece = Piece::of(&self.client, data.len(), due)?;
            Stage::InPiece(self.begin_writing(offset, data, piece, due)?, 0)
        };
        Ok(self.pending(stage, due, drop))
    }

    /// Begins to add to the word at `offset`. The result is what the word was before.
    ///
    /// # Errors
    /// As [`Region::fetch_add`].
    pub fn begin_fetch_add(&self, offset: u64, n: u64) -> Result<Pending<u64>> {
        self.check_word(offset, Rights::WRITE)?;
        let due = due(Some(self.timeout));
        let stage = if self.handle.is_touchable(true) {
            Stage::Over(Ok(Outcome { value: self.fetch_add(offset, n)?, bytes: Vec::new() }))
        } else {
            let what = RegionCall::On(Operation::FetchAdd { offset, value: n });
            Stage::InSlot(self.begin(what, &[], self.timeout, due)?, what, 0)
        };
        Ok(self.pending(stage, due, |outcome| outcome.value))
    }

    /// Begins to replace the word at `offset` if it is `expected`. The result is what the word was before.
    ///
    /// # Errors
    /// As [`Region::compare_swap`].
    pub fn begin_compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<Pending<u64>> {
        self.check_word(offset, Rights::WRITE)?;
        let due = due(Some(self.timeout));
        let stage = if self.handle.is_touchable(true) {
            let value = self.compare_swap(offset, expected, new)?;
            Stage::Over(Ok(Outcome { value, bytes: Vec::new() }))
        } else {
            let what = RegionCall::On(Operation::CompareSwap { offset, expected, value: new });
            Stage::InSlot(self.begin(what, &[], self.timeout, due)?, what, 0)
        };
        Ok(self.pending(stage, due, |outcome| outcome.value))
    }

    fn check_size(&self, len: usize) -> Result<()> {
        if len <= MAX_PIECE_BYTES {
            return Ok(());
        }
        let text = format!(
            "{len} bytes of region '{}' are too many to begin at once: the limit is {MAX_PIECE_BYTES}, and \
             `read` and `write` have none",
            self.name()
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    fn pending<T>(&self, stage: Stage, due: Due, told: fn(Outcome) -> T) -> Pending<T> {
        let is_over = matches!(stage, Stage::Over(_));
        let begun = Arc::new(Begun { region: self.clone(), due, stage: Mutex::new(stage) });
        if !is_over {
            let mut all = self.handle.begun.lock();
            all.retain(|other| other.strong_count() > 0);
            all.push(Arc::downgrade(&begun));
        }
        Pending { begun, told }
    }
}

impl Begun {
    /// Waits until the operation is over.
    pub(super) fn end(&self) -> Result<()> {
        self.region.client.connection.check_process()?;
        let mut stage = self.stage.lock();
        let outcome = match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::InSlot(call, what, len) => self.end_in_slot(call, what, len),
            Stage::InPiece(chunk, len) => self.region.finish(chunk, self.due).map(|piece| {
                let mut bytes = vec![0; len];
                piece.take(&mut bytes);
                Outcome { value: 0, bytes }
            }),
            over => {
                *stage = over;
                return Ok(());
            }
        };
        let interrupted = outcome.as_ref().err().filter(|error| error.kind() == ErrorKind::Interrupted);
        let ended = interrupted.cloned().map_or(Ok(()), Err);
        *stage = Stage::Over(outcome);
        ended
    }

    fn end_in_slot(&self, call: Call, what: RegionCall, len: usize) -> Result<Outcome> {
        let region = &self.region;
        let result = region.settle(what, Calls(&region.client).finish(call, self.due))?;
        Ok(Outcome { value: result.values[0], bytes: region.bytes_of(&result, len)?.to_vec() })
    }
}

impl<T> Pending<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// As the operation itself.
    pub fn wait(self) -> Result<T> {
        self.begun.end()?;
        match std::mem::replace(&mut *self.begun.stage.lock(), Stage::Taken) {
            Stage::Over(outcome) => outcome.map(self.told),
            _ => Err(Error::new(ErrorKind::Internal, "the result of this operation was taken already")),
        }
    }

    /// Whether the result has come, so that [`Pending::wait`] returns at once. False also while another
    /// thread waits for the result.
    pub fn is_over(&self) -> bool {
        match self.begun.stage.try_lock().as_deref() {
            Some(Stage::InSlot(call, ..)) => call.has_come(),
            Some(Stage::InPiece(chunk, _)) => chunk.has_come(),
            Some(Stage::Over(_) | Stage::Taken) => true,
            None => false,
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("region", &self.begun.region).field("over", &self.is_over()).finish()
    }
}
