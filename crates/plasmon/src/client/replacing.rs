//! Calls that put an object in the place of another in one step, and that tell which version an object is.
//!
//! Owns no state. Any thread. Requests go through the socket, since other nodes decide. Invariant: a call
//! that fails between a reservation and its seal aborts it.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::connection::{Interrupt, Undo, unexpected};
use super::copies::await_copies;
use super::digest::digest;
use super::due::{Due, due, rest_of};
use super::object::Object;
use super::reading::{compared, get_request, microseconds};
use super::writing::{check, check_parts, is_large, joined, new_object, write_large};
use super::{Client, CreateOptions, Question, finish_all, longest_of_get};
use crate::wire::{Replacing, SealingOver, replies, requests};
use crate::{Error, ErrorKind, ObjectId, Result, Version};

/// What is said of an object when it takes the place of another.
pub(super) struct SealOver {
    pub(super) expected: Option<Version>,
    pub(super) digest: u64,
    /// Data of the object, if it travels with the request.
    pub(super) data: Bytes,
}

impl Client {
    /// Stores an object in the place of what has its id: from one moment on, every node gives the new object,
    /// and before it the old one. No get in between finds none, and none gives the old object again. With
    /// `expected` the object is stored only if this version is there. Returns the version of the new object.
    /// Whoever has the old object pinned reads its bytes until the pin is released. Without anything under
    /// the id the call is a put.
    ///
    /// The new object is stored beside the old one, so that both need room, and count for quotas, until the
    /// old one has been dropped. Without `options.replicas` as many nodes are to keep the new object as were
    /// to keep the old one. They get it before the old one goes.
    ///
    /// # Errors
    /// The errors of a put. `Exists` only if this client writes another object to replace this one at the
    /// same time, and neither travels with its request. `Conflict` if another version is there than was
    /// expected ([`Error::version`](crate::Error::version)), `NotFound` if none is. `NotAllowed` for an
    /// object that this user may not delete. `TooFew` if fewer nodes can keep the new object than are to.
    /// `TimedOut` if a node that may have the old object did not answer in time. After all of these the old
    /// object stays. `OutcomeUnknown` if the node that decides does not answer: the object may have been
    /// replaced, or be replaced later.
    pub fn replace(
        &self,
        id: ObjectId,
        data: &[u8],
        metadata: &[u8],
        options: &CreateOptions,
        expected: Option<Version>,
    ) -> Result<Version> {
        self.replace_parts(id, data.len(), &[(0, data)], metadata, options, expected)
    }

    /// Stores an object of `len` bytes that is made of parts, as [`Client::put_parts`] takes them, in the
    /// place of what has its id.
    ///
    /// # Errors
    /// As [`Client::replace`]. `Invalid` for parts that overlap or reach beyond the end.
    pub fn replace_parts(
        &self,
        id: ObjectId,
        len: usize,
        parts: &[(usize, &[u8])],
        metadata: &[u8],
        options: &CreateOptions,
        expected: Option<Version>,
    ) -> Result<Version> {
        let options = CreateOptions { replace: true, ..options.clone() };
        check(metadata, &options)?;
        check_parts(len, parts)?;
        let due = options.due(self);
        if is_large(self, len, metadata) {
            let (digest, due) = write_large(self, id, len, parts, metadata, &options, due)?;
            let over = SealOver { expected, digest, data: Bytes::new() };
            let version = seal_over(self, id, over, &options, due)?;
            await_copies(self, id, &options, due)?;
            return Ok(version);
        }
        let data = joined(len, parts);
        let replacing = Replacing {
            object: new_object(id, metadata, &options),
            expected: expected.map(Version::number),
            digest: if options.digest { digest(&[(0, &data)], len, metadata) } else { 0 },
            timeout_us: timeout_us(&options, due),
            data: Bytes::copy_from_slice(&data),
        };
        let version = ask_over(self, id, requests::Replace(replacing), Undo::Cancel, due)?;
        await_copies(self, id, &options, due)?;
        Ok(version)
    }

    /// Gets objects as [`Client::get`] does, each with its version. The daemon is asked for all of them.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_versioned(
        &self,
        ids: &[ObjectId],
        timeout: Option<Duration>,
    ) -> Result<Vec<Result<(Object, Version)>>> {
        let began = Instant::now();
        let mut versioned = Vec::with_capacity(ids.len());
        for id in ids {
            // A time-out of zero has another meaning than one that is over.
            let left = timeout.map(|timeout| match timeout {
                Duration::ZERO => timeout,
                timeout => timeout.saturating_sub(began.elapsed()).max(Duration::from_micros(1)),
            });
            versioned.push(match get_counted(self, *id, left) {
                Ok(object) => {
                    let version = requests::Version(object.offset());
                    let due = timeout.map_or_else(|| self.due_of_answer(), |_| due(Some(Duration::ZERO)));
                    let told = self.ask_until(version, Undo::Nothing, due);
                    told.map(|replies::Replaced { version }| (object, Version::from_number(version)))
                }
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::Disconnected) => {
                    return Err(error);
                }
                Err(error) => Err(error.about(*id)),
            });
        }
        Ok(versioned)
    }
}

/// Gets an object with a pin that the daemon counts, so that the daemon can tell what is pinned.
fn get_counted(client: &Client, id: ObjectId, timeout: Option<Duration>) -> Result<Object> {
    let (longest, ids) = (longest_of_get(client, timeout), vec![id]);
    let request = get_request(client, ids, timeout, longest);
    let ticket = client.connection.send(&request, Undo::Release)?.while_alive(longest);
    let mut interrupt = || client.interrupt.as_ref().is_some_and(|interrupt| interrupt());
    let reply = ticket.wait(due(timeout), Some(&mut interrupt as Interrupt<'_>))?;
    let objects = client.connection.only::<requests::Get>(reply)?.objects;
    let told = client.connection.one_each(&[id], objects)?;
    let mut taken = Object::take_over(&client.connection, std::iter::once(&id), told)?;
    compared(client, taken.pop().ok_or_else(|| unexpected("no object for one id"))??)
}

/// Puts a creation in the place of what has its id. The daemon has it from then on, and ends it after a
/// failure: an abort could meet the next creation of the id, by another thread.
pub(super) fn seal_over(
    client: &Client,
    id: ObjectId,
    over: SealOver,
    options: &CreateOptions,
    due: Due,
) -> Result<Version> {
    let SealOver { expected, digest, data } = over;
    let (expected, timeout_us) = (expected.map(Version::number), timeout_us(options, due));
    let seal = requests::SealOver(SealingOver { id, expected, digest, timeout_us, data });
    ask_over(client, id, seal, Undo::Nothing, due)
}

/// Asks for a replacement that is to be over at `due`. Without an answer it is not known what is there.
fn ask_over<Q: Question<Answer = replies::Replaced>>(
    client: &Client,
    id: ObjectId,
    question: Q,
    undo: Undo,
    due: Due,
) -> Result<Version> {
    let ticket = client.connection.send(&question.into(), undo)?;
    let told = finish_all(client, ticket, due).map_err(|error| match error.kind() {
        // What the daemon says of the replacement names the object.
        ErrorKind::TimedOut if error.id().is_none() => {
            let text = format!("it is not known whether object {id} was replaced: {error}");
            Error::new(ErrorKind::OutcomeUnknown, text).about(id)
        }
        _ => error,
    });
    let reply = told?.pop().ok_or_else(|| unexpected("no reply"))?;
    client.connection.only::<Q>(reply).map(|replies::Replaced { version }| Version::from_number(version))
}

/// Rest of the time-out of a call that ends at `due`, in microseconds. 0 for none.
fn timeout_us(options: &CreateOptions, due: Due) -> u64 {
    options.timeout().map_or(0, |timeout| microseconds(Some(rest_of(timeout, due))))
}
