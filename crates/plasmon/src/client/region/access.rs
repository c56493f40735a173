//! Operations on the bytes of a region: loads and stores if it is mapped here, else calls by slot.
//!
//! Owns no state. Any thread. Bytes that a slot has room for travel in it, more through lent memory
//! ([`transfer`](super::transfer)). Arguments are checked here, so that no call is made in vain; the region's
//! home checks them as well.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Region;
use crate::client::calling::{Call, Calls};
use crate::client::due::{Due, due};
use crate::client::reading::microseconds;
use crate::client::{Guard, Scratch, unexpected};
use crate::region::Rights;
use crate::shared::{ARGUMENTS, CallPayload, CallRequest, CallResult, Manner, PAYLOAD_LEN};
use crate::wire::{BySlot, OnRegion, Operation, RegionCall};
use crate::{Class, Error, ErrorKind, Result};

impl Region {
    /// Copies bytes at `offset` to `into`. An aligned word, of 8 bytes, is read as a whole. More bytes may
    /// have parts of several writes.
    ///
    /// If `into` lies within a [`Scratch`] of this client, the bytes are received there without a copy. After
    /// an error their content is undefined, and after `Interrupted` and `TimedOut` they may still change
    /// until the next use of the scratch.
    ///
    /// # Errors
    /// `Invalid` if the bytes are out of bounds. `NotAllowed` if the handle lacks the right to read. `Freed`
    /// or `Lost` if the region is no more. `TimedOut` if its home does not answer in time. `Disconnected`.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len() as u64, Rights::READ)?;
        match self.handle.touch(false, |memory| memory.read(offset, into)) {
            Some(()) => Ok(()),
            None => self.read_by_call(offset, into),
        }
    }

    fn read_by_call(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match into.len() {
            0 => Ok(()),
            len if len <= PAYLOAD_LEN => {
                let result = self.perform(Operation::Read { offset, len: len as u64 }, &[])?;
                into.copy_from_slice(self.bytes_of(&result, len)?);
                Ok(())
            }
            _ => self.receive(offset, into),
        }
    }

    /// Copies `data` to `offset`. When the call returns, the bytes are in the region's memory. An aligned
    /// word, of 8 bytes, is written as a whole. Other writers may come between the parts of more bytes.
    ///
    /// If `data` lies within a [`Scratch`] of this client, the bytes are sent from there without a copy.
    ///
    /// # Errors
    /// As [`Region::read`], for the right to write. `OutcomeUnknown` if the bytes may have been written, or
    /// in part.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check(offset, data.len() as u64, Rights::WRITE)?;
        match self.handle.touch(true, |memory| memory.write(offset, data)) {
            Some(()) => Ok(()),
            None => self.write_by_call(offset, data),
        }
    }

    /// Writes as [`Region::write`] does, if the guard of a lock is valid and the region has seen no later
    /// guard of the same lock. The home decides that by a call, also where the region is mapped. If `data` is
    /// empty, the call only shows the guard to the region: after its return no earlier guard of the lock can
    /// write.
    ///
    /// # Errors
    /// As [`Region::write`]. `Fenced` if the guard is not valid any more, or the region has seen a later one.
    /// `Invalid` if the guard is another client's. `Full` if the region has seen guards of 64 locks.
    pub fn write_fenced(&self, offset: u64, data: &[u8], guard: &Guard) -> Result<()> {
        self.check(offset, data.len() as u64, Rights::WRITE)?;
        self.fenced(guard)?.write_by_call(offset, data)
    }

    /// Handle to the region whose calls that write show this guard.
    pub(super) fn fenced(&self, guard: &Guard) -> Result<Self> {
        Ok(Self { fence: guard.ticket_for(&self.client)?, ..self.clone() })
    }

    fn write_by_call(&self, offset: u64, data: &[u8]) -> Result<()> {
        match data.len() {
            0 if self.fence == 0 => Ok(()),
            // A call without bytes shows the guard.
            len if len <= PAYLOAD_LEN => self.perform(Operation::Write { offset }, data).map(drop),
            _ => self.send(offset, data),
        }
    }

    /// Reads bytes into a part of scratch memory of this client, without a copy.
    ///
    /// # Errors
    /// As [`Region::read`]. `Invalid` if the scratch is another client's, was given up, or is too small.
    pub fn read_to(&self, offset: u64, buffer: &mut Scratch, range: Range<usize>) -> Result<()> {
        let len = buffer.len();
        let into = buffer.as_mut_slice().get_mut(range.clone()).ok_or_else(|| outside(len, &range))?;
        self.ensure_own(into)?;
        self.read(offset, into)
    }

    /// Writes bytes from a part of scratch memory of this client, without a copy.
    ///
    /// # Errors
    /// As [`Region::write`]. `Invalid` if the scratch is another client's, or is too small.
    pub fn write_from(&self, offset: u64, buffer: &Scratch, range: Range<usize>) -> Result<()> {
        let data = buffer.as_slice().get(range.clone()).ok_or_else(|| outside(buffer.len(), &range))?;
        self.ensure_own(data)?;
        self.write(offset, data)
    }

    fn ensure_own(&self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() || self.client.connection.scratch_of(bytes).is_some() {
            return Ok(());
        }
        let text = format!(
            "this scratch memory was given up, or is another client's than region '{}': map the region with \
             that client",
            self.name()
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Sets all bytes of a range to a value.
    ///
    /// # Errors
    /// As [`Region::write`].
    pub fn fill(&self, range: Range<u64>, byte: u8) -> Result<()> {
        let (offset, len) = (range.start, length(&range)?);
        self.check(offset, len, Rights::WRITE)?;
        let filled = self.handle.touch(true, |memory| memory.fill(offset, len, byte));
        if filled.is_some() || len == 0 {
            return Ok(());
        }
        self.perform(Operation::Fill { offset, len, byte }, &[]).map(drop)
    }

    /// Copies a range of a region to `offset` of this one, which may be the same, as memmove does. The bytes
    /// do not pass through this host, unless one of the regions lives here.
    ///
    /// # Errors
    /// As [`Region::write`], and as [`Region::read`] for the source. `Invalid` if the source was mapped by
    /// another connection.
    pub fn copy_from(&self, offset: u64, source: &Self, range: Range<u64>) -> Result<()> {
        let (from, len) = (range.start, length(&range)?);
        self.check(offset, len, Rights::WRITE)?;
        source.check(from, len, Rights::READ)?;
        let copied = self
            .handle
            .touch(true, |to| source.handle.touch(false, |memory| to.copy(offset, memory, from, len)));
        if copied.flatten().is_some() {
            return Ok(());
        }
        if len == 0 {
            return Ok(());
        }
        let due = due(Some(self.timeout));
        let copied = self.carry_out(self.copying(offset, source, (from, len))?, &[], (self.timeout, due));
        copied.map(drop).map_err(|error| match error.kind() {
            // The source is no more, and says why itself.
            ErrorKind::NotFound => source.info_until(due).err().unwrap_or(error),
            _ => error,
        })
    }

    /// Call that copies a range of `source`, given as offset and length, to `offset` of this region.
    pub(super) fn copying(
        &self,
        offset: u64,
        source: &Self,
        (source_offset, len): (u64, u64),
    ) -> Result<RegionCall> {
        self.check(offset, len, Rights::WRITE)?;
        source.check(source_offset, len, Rights::READ)?;
        if Arc::ptr_eq(&self.client.connection, &source.client.connection) {
            return Ok(RegionCall::Copy { offset, len, source: source.handle.number, source_offset });
        }
        let text = format!(
            "regions '{}' and '{}' were mapped by two clients: map both with one",
            self.name(),
            source.name()
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Adds to the word at `offset`, and returns what the word was before. The sum wraps.
    ///
    /// Atomic operations on a word have one order for all who make them, in mapped memory as well.
    ///
    /// # Errors
    /// As [`Region::write`]. `Invalid` if `offset` is no multiple of 8. `OutcomeUnknown` if the word may have
    /// been changed.
    #[inline]
    pub fn fetch_add(&self, offset: u64, n: u64) -> Result<u64> {
        self.check_word(offset, Rights::WRITE)?;
        match self.change_word(offset, |word| word.fetch_add(n, Ordering::SeqCst)) {
            Some(before) => Ok(before),
            None => self.value(Operation::FetchAdd { offset, value: n }),
        }
    }

    /// Replaces the word at `offset`, and returns what the word was before.
    ///
    /// # Errors
    /// As [`Region::fetch_add`].
    #[inline]
    pub fn swap(&self, offset: u64, value: u64) -> Result<u64> {
        self.check_word(offset, Rights::WRITE)?;
        match self.change_word(offset, |word| word.swap(value, Ordering::SeqCst)) {
            Some(before) => Ok(before),
            None => self.value(Operation::Swap { offset, value }),
        }
    }

    /// Replaces the word at `offset` by `new` if the word is `expected`. Returns what the word was before: if
    /// that is `expected`, the word is `new` now.
    ///
    /// # Errors
    /// As [`Region::fetch_add`].
    #[inline]
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64> {
        self.check_word(offset, Rights::WRITE)?;
        let order = Ordering::SeqCst;
        match self.change_word(offset, |word| word.compare_exchange(expected, new, order, order)) {
            Some(Ok(before) | Err(before)) => Ok(before),
            None => self.value(Operation::CompareSwap { offset, expected, value: new }),
        }
    }

    /// Sets the word at `offset` to 1. Returns whether the word was set already, that is, not 0.
    ///
    /// # Errors
    /// As [`Region::fetch_add`].
    #[inline]
    pub fn test_and_set(&self, offset: u64) -> Result<bool> {
        self.check_word(offset, Rights::WRITE)?;
        match self.change_word(offset, |word| word.swap(1, Ordering::SeqCst)) {
            Some(before) => Ok(before != 0),
            None => self.value(Operation::TestAndSet { offset }).map(|before| before != 0),
        }
    }

    /// Waits until the word at `offset` differs from `expected`, and returns the word. Writes and atomic
    /// operations that others make by calls end the wait. A program that changes the word in mapped memory
    /// has to call [`Region::notify`].
    ///
    /// # Errors
    /// As [`Region::read`]. `TimedOut` if the word was not changed in time. `Busy` if too many calls wait.
    pub fn wait(&self, offset: u64, expected: u64, timeout: Duration) -> Result<u64> {
        self.check_word(offset, Rights::READ)?;
        let found = self.handle.touch(false, |memory| memory.word(offset).load(Ordering::SeqCst));
        if let Some(found) = found.filter(|found| *found != expected) {
            return Ok(found);
        }
        let call = RegionCall::On(Operation::Wait { offset, expected });
        Ok(self.carry_out(call, &[], (timeout, due(Some(timeout))))?.values[0])
    }

    /// Wakes the calls that wait for a change of the word at `offset`, after the word was changed in mapped
    /// memory.
    ///
    /// # Errors
    /// As [`Region::read`], for the right to write.
    pub fn notify(&self, offset: u64) -> Result<()> {
        self.check_word(offset, Rights::WRITE)?;
        self.perform(Operation::Notify { offset }, &[]).map(drop)
    }

    /// Waits until all operations that were begun with this handle are over, whichever thread takes their
    /// results. Operations that begin afterwards, on any host, find what was written. An operation whose
    /// [`Pending`](super::Pending) was dropped is not waited for.
    ///
    /// # Errors
    /// `Interrupted`. Errors of the operations are told with their results.
    pub fn fence(&self) -> Result<()> {
        let begun: Vec<_> = self.handle.begun.lock().iter().filter_map(Weak::upgrade).collect();
        begun.iter().try_for_each(|begun| begun.end())
    }

    /// Changes a word in mapped memory; `None` if the region is not mapped.
    #[inline]
    fn change_word<T>(&self, offset: u64, change: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
        self.handle.touch(true, |memory| change(memory.word(offset)))
    }

    fn value(&self, operation: Operation) -> Result<u64> {
        Ok(self.perform(operation, &[])?.values[0])
    }

    /// Has an operation carried out by the region's home.
    pub(super) fn perform(&self, operation: Operation, payload: &[u8]) -> Result<CallResult> {
        self.carry_out(RegionCall::On(operation), payload, (self.timeout, due(Some(self.timeout))))
    }

    /// Has a call carried out, which the daemon is to end after `timeout`, and which ends at `due`.
    pub(super) fn carry_out(
        &self,
        call: RegionCall,
        payload: &[u8],
        (timeout, due): (Duration, Due),
    ) -> Result<CallResult> {
        let begun = self.begin(call, payload, timeout, due)?;
        self.settle(call, Calls(&self.client).finish(begun, due))
    }

    /// Begins a call. After an error nothing was submitted.
    pub(super) fn begin(
        &self,
        call: RegionCall,
        payload: &[u8],
        timeout: Duration,
        due: Due,
    ) -> Result<Call> {
        self.client.connection.check_process()?;
        if !self.calls {
            return Err(self.not_here());
        }
        let (opcode, arguments) = self.encode(call);
        let Some(payload) = CallPayload::new(payload) else {
            return Err(Error::new(ErrorKind::Internal, "no slot has room for these bytes"));
        };
        let timeout_us = microseconds(Some(timeout));
        let request = CallRequest { opcode, class: Class::chosen(), timeout_us, arguments, payload };
        let manner = Manner { far: self.is_far(), goes_on: is_change(call) };
        Calls(&self.client).begin(&request, manner, due)
    }

    /// Number and arguments of a call. A call that writes shows the guard.
    pub(super) fn encode(&self, call: RegionCall) -> (u8, [u64; ARGUMENTS]) {
        let guard = if call.may_show_guard() { self.fence } else { 0 };
        OnRegion { handle: self.handle.number, guard, call }.encode()
    }

    /// Result of a call that was submitted. If a change was not answered, its outcome is not known.
    pub(super) fn settle(&self, call: RegionCall, answered: Result<CallResult>) -> Result<CallResult> {
        let result = answered.map_err(|error| self.unanswered(call, error))?;
        result.into_result().inspect_err(|error| self.handle.note(error))
    }

    /// Error of a call that was submitted and has no answer.
    pub(super) fn unanswered(&self, call: RegionCall, error: Error) -> Error {
        if error.kind() == ErrorKind::Interrupted || !is_change(call) {
            return error;
        }
        let text = format!(
            "region '{}' may or may not have been changed, or may be later: {}",
            self.name(),
            error.message()
        );
        Error::new(ErrorKind::OutcomeUnknown, text)
    }

    /// Bytes of a result, which must be `len` bytes.
    pub(super) fn bytes_of<'a>(&self, result: &'a CallResult, len: usize) -> Result<&'a [u8]> {
        if result.payload.len() == len {
            return Ok(&result.payload);
        }
        let text = format!("{} bytes of region '{}' instead of {len}", result.payload.len(), self.name());
        Err(self.client.connection.fail(unexpected(&text)))
    }
}

/// Whether a call changes bytes, so that carrying it out twice or late matters.
pub(super) fn is_change(call: RegionCall) -> bool {
    match call {
        RegionCall::On(Operation::Read { .. } | Operation::Wait { .. } | Operation::Notify { .. })
        | RegionCall::ReadTo { .. } => false,
        RegionCall::On(_) | RegionCall::WriteFrom { .. } | RegionCall::Copy { .. } => true,
    }
}

pub(super) fn length(range: &Range<u64>) -> Result<u64> {
    range.end.checked_sub(range.start).ok_or_else(|| {
        let text = format!("a range from {} to {} ends before it begins", range.start, range.end);
        Error::new(ErrorKind::Invalid, text)
    })
}

fn outside(len: usize, range: &Range<usize>) -> Error {
    let text = format!(
        "bytes {} to {} are not in this scratch memory, which has {len} bytes or was given up",
        range.start, range.end
    );
    Error::new(ErrorKind::Invalid, text)
}
