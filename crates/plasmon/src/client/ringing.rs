//! Requests that go through the rings: puts and creations, seals, aborts and deletions.
//!
//! Owns no state. Any thread. The ring carries out a request soon or not at all; the socket makes the
//! requests that the ring did not carry out, where they may wait and where errors are explained. If other
//! nodes decide about a request and take longer, the socket collects the outcome. Invariant: a request that
//! the ring carried out or began is not made again.

use bytes::Bytes;

use super::connection::{Undo, unexpected};
use super::due::Due;
use super::fast::Rung;
use super::vigil::Vigil;
use super::writing::ttl_ms;
use super::{Client, CreateOptions, Question};
use crate::shared::{Deleted, MAX_DELETED, Operation, Submission};
use crate::wire::{DeleteOutcome, MAX_METADATA_BYTES, Placement, Request, Span, replies, requests};
use crate::{ObjectId, Result};

/// Requests of a client that go through the rings, or by the socket where the rings cannot take them.
pub(super) struct Rings<'a>(pub(super) &'a Client);

impl Rings<'_> {
    /// Puts objects (id, data, metadata, digest) through the ring. Returns one outcome an object, in order.
    pub(super) fn put(
        &self,
        puts: &[(ObjectId, &[u8], &[u8], u64)],
        options: &CreateOptions,
        due: Due,
    ) -> Result<Vec<Rung>> {
        if !rings_have(options) {
            return Ok(vec![Rung::AskBySocket; puts.len()]);
        }
        let name = options.name.as_deref().unwrap_or_default();
        let mut done = Vec::with_capacity(puts.len());
        while done.len() < puts.len() {
            let requests = puts[done.len()..].iter().map(|(id, data, metadata, digest)| {
                let put = Submission {
                    digest: *digest,
                    ..made(Operation::Put, *id, data.len() as u64, metadata, options)
                };
                (put, [name.as_bytes(), metadata, data])
            });
            let outcomes = self.ask(requests, due)?;
            if outcomes.is_empty() {
                done.resize(puts.len(), Rung::AskBySocket);
            }
            done.extend(outcomes);
        }
        Ok(done)
    }

    /// Reserves an object through the ring. `None` if the socket has to be asked.
    pub(super) fn create(
        &self,
        id: ObjectId,
        data_len: u64,
        metadata: &[u8],
        options: &CreateOptions,
        due: Due,
    ) -> Result<Option<Placement>> {
        if !rings_have(options) || metadata.len() > MAX_METADATA_BYTES {
            return Ok(None);
        }
        let create = made(Operation::Create, id, data_len, metadata, options);
        let parts = [options.name.as_deref().unwrap_or_default().as_bytes(), metadata, &[]];
        let offset = match self.ask_one(create, parts, due)? {
            Rung::Done(offset) => offset,
            Rung::AskBySocket => return Ok(None),
            Rung::Collect(number) => {
                let created = self.collect::<requests::Create>(number, Undo::Abort(id), due)?;
                return Ok(Some(created.placement));
            }
        };
        if data_len.saturating_add(metadata.len() as u64) <= self.0.inline_max as u64 {
            return Ok(Some(Placement::Inline));
        }
        let span = Span { offset, data_len, metadata_len: metadata.len() as u32, digest: 0 };
        self.await_grants(span, due).inspect_err(|_| self.abort_later(id))?;
        Ok(Some(Placement::Mapped(span)))
    }

    /// Seals an object, whose data is either given here or written already.
    pub(super) fn seal(&self, id: ObjectId, digest: u64, data: &[u8], due: Due) -> Result<()> {
        let seal = Submission { data_len: data.len() as u64, digest, ..Submission::of(Operation::Seal, id) };
        if self.ask_for(seal, [data, &[], &[]], due)?.is_some() {
            return Ok(());
        }
        let data = Bytes::copy_from_slice(data);
        self.0.ask_until(requests::Seal { id, digest, data }, Undo::Nothing, due).map(drop)
    }

    /// Aborts the creation of an object.
    pub(super) fn abort(&self, id: ObjectId, due: Due) -> Result<()> {
        if self.ask_for(Submission::of(Operation::Abort, id), [&[]; 3], due)?.is_some() {
            return Ok(());
        }
        self.0.ask_until(requests::Abort { id }, Undo::Nothing, due).map(drop)
    }

    /// Aborts a creation without waiting for the answer.
    pub(super) fn abort_later(&self, id: ObjectId) {
        self.0.connection.send_and_forget(&Request::Abort { id });
    }

    /// Deletes objects through the ring. Returns one outcome an id, in order; `None` for each object that has
    /// to be deleted by the socket.
    pub(super) fn delete(&self, ids: &[ObjectId]) -> Result<Vec<Option<DeleteOutcome>>> {
        if ids.is_empty() || ids.len() > MAX_DELETED {
            return Ok(vec![None; ids.len()]);
        }
        let flat: Vec<u8> = ids.iter().flat_map(|id| *id.as_bytes()).collect();
        let data_len = flat.len() as u64;
        let delete = Submission { data_len, patient: true, ..Submission::of(Operation::Delete, ids[0]) };
        let due = self.0.due_of_answer();
        match self.ask_one(delete, [&flat, &[], &[]], due)? {
            Rung::Done(codes) => Ok((0..ids.len()).map(|at| Deleted(codes).outcome(at)).collect()),
            Rung::AskBySocket => Ok(vec![None; ids.len()]),
            Rung::Collect(number) => {
                let replies::Deleted(outcomes) =
                    self.collect::<requests::Delete>(number, Undo::Nothing, due)?;
                let outcomes = self.0.connection.one_each(ids, outcomes)?;
                Ok(outcomes.into_iter().map(Some).collect())
            }
        }
    }

    /// Collects the outcome of a request `Q` that the ring began.
    fn collect<Q: Question>(&self, number: u64, undo: Undo, due: Due) -> Result<Q::Answer> {
        self.0.answer_to::<Q>(self.0.connection.send(&Request::Collect { number }, undo)?, due)
    }

    /// Makes one request in the ring. Returns its outcome.
    fn ask_one(&self, request: Submission, parts: [&[u8]; 3], due: Due) -> Result<Rung> {
        let rung = self.ask(std::iter::once((request, parts)), due)?;
        Ok(rung.first().copied().unwrap_or(Rung::AskBySocket))
    }

    /// Makes one request in the ring. Returns its answer, or `None` if the socket has to make the request.
    fn ask_for(&self, request: Submission, parts: [&[u8]; 3], due: Due) -> Result<Option<u64>> {
        match self.ask_one(request, parts, due)? {
            Rung::Done(answer) => Ok(Some(answer)),
            Rung::AskBySocket => Ok(None),
            Rung::Collect(_) => {
                let text = "an outcome to collect, of a request that has none";
                Err(self.0.connection.fail(unexpected(text)))
            }
        }
    }

    /// Makes requests in the ring, if there is one, as [`super::fast::Fast::ask`] describes.
    fn ask<'a>(
        &self,
        requests: impl Iterator<Item = (Submission, [&'a [u8]; 3])>,
        due: Due,
    ) -> Result<Vec<Rung>> {
        let Some(fast) = self.0.connection.fast() else {
            // In a forked child, the socket returns an error that says so.
            return Ok(Vec::new());
        };
        let mut vigil = Vigil::new(self.0, due);
        fast.ask(requests, || vigil.goes_on()).map_err(|_| vigil.error())
    }

    /// Waits until an extent that the ring gave can be written. The ring may be ahead of the socket: the
    /// daemon relies on a grant that it sent on the socket for another thread, and that may be unread.
    fn await_grants(&self, span: Span, due: Due) -> Result<()> {
        let may_write = || {
            self.0.connection.fast().map_or(Ok(false), |fast| fast.may_write(self.0.connection.arena(), span))
        };
        if may_write()? {
            return Ok(());
        }
        // Replies come in order: after this one, all earlier grants have arrived.
        self.0.ask_until(requests::Tables, Undo::Nothing, due)?;
        if may_write()? { Ok(()) } else { Err(unexpected("an extent to write that it did not grant")) }
    }
}

/// Submission that makes an object with these options.
fn made(
    operation: Operation,
    id: ObjectId,
    data_len: u64,
    metadata: &[u8],
    options: &CreateOptions,
) -> Submission {
    Submission {
        rights: options.rights,
        fresh: options.fresh,
        owned: options.owned,
        // An entry does not say how long others may take to make room.
        patient: options.timeout().is_none(),
        name_len: options.name.as_ref().map_or(0, String::len) as u16,
        metadata_len: metadata.len() as u32,
        data_len,
        ttl_ms: ttl_ms(options),
        ..Submission::of(operation, id)
    }
}

/// Whether an entry of a ring can express these options. A put that several nodes are to keep cannot go
/// through a ring, because it has to wait for these nodes, and neither can one that replaces.
fn rings_have(options: &CreateOptions) -> bool {
    options.replicas <= 1 && !options.replace
}
