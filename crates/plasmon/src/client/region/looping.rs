//! Operations on a region for an event loop: each is begun by the socket that the loop watches, and its
//! result is taken when the reply has come.
//!
//! Owns the calls under way. Any thread, none of which waits here. An operation that would have to wait, or
//! to copy many bytes, is not begun: the program makes it in a thread. A call that is given up is cancelled
//! if it changes nothing; a change goes on.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Region;
use super::access::{is_change, length};
use crate::client::connection::{Undo, silent};
use crate::client::due::due;
use crate::client::pieces::{MAX_PIECE_BYTES, Piece};
use crate::client::reading::microseconds;
use crate::client::{Guard, Pending, unexpected};
use crate::region::Rights;
use crate::shared::PAYLOAD_LEN;
use crate::wire::{LentRange, Operation, RegionCall, Request};
use crate::{Class, Error, ErrorKind, Result};

/// Operation on a region that was begun for an event loop. Dropping it gives the operation up.
pub struct Awaited {
    region: Region,
    what: RegionCall,
    call: Pending,
    began: Instant,
    brings: Brings,
}

/// Place of the bytes that an operation brings.
enum Brings {
    /// No bytes, or bytes that come to where the caller wanted them.
    Nothing,
    /// Number of bytes that are in the answer.
    Answer(usize),
    /// Piece with the bytes, and number of bytes. An operation that writes has a piece and brings 0 bytes.
    Piece(Piece, usize),
}

impl Region {
    /// Begins an operation for the event loop that watches this client
    /// ([`Client::watch`](crate::Client::watch)). `data` are the bytes of a write, at most 320. The loop
    /// gives the operation up when [`Awaited::patience`] is over.
    ///
    /// # Errors
    /// `Invalid` and `NotAllowed` for an operation that cannot be made. Other errors of the operation come
    /// with its result. `Disconnected`.
    pub fn await_operation(&self, operation: Operation, data: &[u8]) -> Result<Awaited> {
        let brings = match operation {
            Operation::Read { offset, len } => {
                self.check(offset, len, Rights::READ)?;
                Brings::Answer(len as usize)
            }
            Operation::Write { offset } => {
                self.check(offset, data.len() as u64, Rights::WRITE)?;
                Brings::Nothing
            }
            Operation::Fill { offset, len, .. } => {
                self.check(offset, len, Rights::WRITE)?;
                Brings::Nothing
            }
            Operation::Wait { offset, .. } => {
                self.check_word(offset, Rights::READ)?;
                Brings::Nothing
            }
            Operation::FetchAdd { offset, .. }
            | Operation::Swap { offset, .. }
            | Operation::CompareSwap { offset, .. }
            | Operation::TestAndSet { offset }
            | Operation::Notify { offset } => {
                self.check_word(offset, Rights::WRITE)?;
                Brings::Nothing
            }
        };
        let data = if matches!(operation, Operation::Write { .. }) { data } else { &[] };
        self.await_call(RegionCall::On(operation), data, brings)
    }

    /// Begins to read `len` bytes. `None` if `len` is more than 256 KiB, or if this client has no free lent
    /// memory for so many bytes.
    ///
    /// # Errors
    /// As [`Region::await_operation`].
    pub fn await_read(&self, offset: u64, len: usize) -> Result<Option<Awaited>> {
        if len <= PAYLOAD_LEN {
            return self.await_operation(Operation::Read { offset, len: len as u64 }, &[]).map(Some);
        }
        self.check(offset, len as u64, Rights::READ)?;
        let Some(piece) = self.piece(len)? else { return Ok(None) };
        let what = RegionCall::ReadTo { offset, len: len as u64, memory: piece.range() };
        self.await_call(what, &[], Brings::Piece(piece, len)).map(Some)
    }

    /// Begins to read bytes into memory that the daemon lent this client. `None` if `into` does not lie in
    /// such memory.
    ///
    /// # Errors
    /// As [`Region::await_operation`].
    pub fn await_read_into(&self, offset: u64, into: &mut [u8]) -> Result<Option<Awaited>> {
        let Some((buffer, at)) = self.client.connection.scratch_of(into) else { return Ok(None) };
        let len = into.len() as u64;
        self.check(offset, len, Rights::READ)?;
        let what = RegionCall::ReadTo { offset, len, memory: LentRange { buffer, at } };
        self.await_call(what, &[], Brings::Nothing).map(Some)
    }

    /// Begins to write bytes. They are copied unless they lie in memory that the daemon lent this client.
    /// `None` if they are to be copied and are more than 256 KiB, or if this client has no free lent memory
    /// for the copy.
    ///
    /// # Errors
    /// As [`Region::await_operation`].
    pub fn await_write(&self, offset: u64, data: &[u8]) -> Result<Option<Awaited>> {
        if data.len() <= PAYLOAD_LEN {
            return self.await_operation(Operation::Write { offset }, data).map(Some);
        }
        let len = data.len() as u64;
        self.check(offset, len, Rights::WRITE)?;
        if let Some((buffer, at)) = self.client.connection.scratch_of(data) {
            let what = RegionCall::WriteFrom { offset, len, memory: LentRange { buffer, at } };
            return self.await_call(what, &[], Brings::Nothing).map(Some);
        }
        let Some(mut piece) = self.piece(data.len())? else { return Ok(None) };
        piece.put(data);
        let what = RegionCall::WriteFrom { offset, len, memory: piece.range() };
        self.await_call(what, &[], Brings::Piece(piece, 0)).map(Some)
    }

    /// Begins to write as [`Region::await_write`] does, for the holder of a lock, as
    /// [`Region::write_fenced`](super::Region::write_fenced) does.
    ///
    /// # Errors
    /// As [`Region::await_operation`]. `Fenced` if the guard is not valid any more.
    pub fn await_write_fenced(&self, offset: u64, data: &[u8], guard: &Guard) -> Result<Option<Awaited>> {
        self.fenced(guard)?.await_write(offset, data)
    }

    /// Begins to copy a range of a region to `offset` of this one.
    ///
    /// # Errors
    /// As [`Region::await_operation`], and as [`Region::copy_from`].
    pub fn await_copy(&self, offset: u64, source: &Self, range: Range<u64>) -> Result<Awaited> {
        let copy = self.copying(offset, source, (range.start, length(&range)?))?;
        self.await_call(copy, &[], Brings::Nothing)
    }

    /// Free piece of lent memory of `len` bytes or more. `None` if no such piece is free.
    fn piece(&self, len: usize) -> Result<Option<Piece>> {
        if len > MAX_PIECE_BYTES { Ok(None) } else { Piece::free(&self.client, len) }
    }

    fn await_call(&self, what: RegionCall, data: &[u8], mut brings: Brings) -> Result<Awaited> {
        if !self.calls {
            return Err(self.not_here());
        }
        if data.len() > PAYLOAD_LEN {
            let text = format!("{} bytes are no call: at most {PAYLOAD_LEN} are", data.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let (operation, arguments) = self.encode(what);
        let timeout_us = microseconds(Some(self.timeout));
        let payload = Bytes::copy_from_slice(data);
        let request = Request::Call {
            operation,
            class: Class::chosen(),
            timeout_us,
            arguments: arguments.to_vec(),
            payload,
        };
        let undo = if is_change(what) { Undo::Nothing } else { Undo::Cancel };
        let due = due(Some(self.timeout));
        let call = self.client.connection.begin(&request, undo, Vec::new(), false, (due, None))?;
        if let Brings::Piece(piece, _) = &mut brings {
            piece.busy = true;
        }
        Ok(Awaited { region: self.clone(), what, call, began: Instant::now(), brings })
    }
}

impl Awaited {
    /// Number of the call, as [`Turn::finished`](crate::Turn::finished) lists it.
    pub fn number(&self) -> u64 {
        self.call.number()
    }

    /// Time from now after which the loop asks again. Zero means that the loop is to give the operation up by
    /// [`Awaited::late`]. `None` if the operation has no end.
    pub fn patience(&mut self) -> Option<Duration> {
        self.call.patience()
    }

    /// Word that the operation returns, when its reply has come.
    ///
    /// # Errors
    /// The errors of the operation. `Invalid` if the reply has not come yet.
    pub fn value(self) -> Result<u64> {
        self.result().map(|(value, _)| value)
    }

    /// Bytes that the operation read, when its reply has come.
    ///
    /// # Errors
    /// As [`Awaited::value`].
    pub fn bytes(self) -> Result<Vec<u8>> {
        self.result().map(|(_, bytes)| bytes)
    }

    /// Gives up the operation, whose reply has not come in time. Returns the operation's error.
    pub fn late(self) -> Error {
        let path = self.region.client.connection.path();
        self.region.unanswered(self.what, silent(path, self.began.elapsed()))
    }

    fn result(self) -> Result<(u64, Vec<u8>)> {
        let region = &self.region;
        let called = self.call.called().map_err(|error| region.unanswered(self.what, error))?;
        let brings = match self.brings {
            Brings::Piece(mut piece, len) => {
                piece.busy = false;
                Brings::Piece(piece, len)
            }
            brings => brings,
        };
        let called = called.inspect_err(|error| region.handle.note(error))?;
        let bytes = match brings {
            Brings::Nothing => Vec::new(),
            Brings::Answer(len) if called.payload.len() == len => called.payload.into(),
            Brings::Answer(len) => {
                let text =
                    format!("{} bytes of region '{}' instead of {len}", called.payload.len(), region.name());
                return Err(region.client.connection.fail(unexpected(&text)));
            }
            Brings::Piece(piece, len) => {
                let mut bytes = vec![0; len];
                piece.take(&mut bytes);
                bytes
            }
        };
        Ok((called.values.first().copied().unwrap_or(0), bytes))
    }
}
