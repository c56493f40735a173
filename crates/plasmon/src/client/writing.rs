//! Calls that make objects (put, create) and remove them (delete, evict).
//!
//! Owns no state. Any thread. Requests go through the ring ([`ringing`](super::ringing)) if they can be
//! carried out at once, and otherwise through the socket, which can wait and whose errors explain what is
//! wrong. The extent of a large object is reserved, filled by this thread and its helpers, and sealed.
//! Invariant: a call that fails after a reservation aborts it.

use std::borrow::Cow;
use std::time::Instant;

use bytes::Bytes;

use super::connection::{Ticket, Undo, unexpected};
use super::copies::await_copies;
use super::creation::Creation;
use super::digest::digest;
use super::due::{Due, put_off};
use super::fast::Rung;
use super::ringing::Rings;
use super::writable::Writable;
use super::{Client, CreateOptions, by_chunks};
use crate::wire::{
    DeleteOutcome, MAX_METADATA_BYTES, MAX_NAME_BYTES, NewObject, Placement, Request, Span, Terms, replies,
    requests,
};
use crate::{Error, ErrorKind, ObjectId, Result};

impl Client {
    /// Stores an object: copies `data` and `metadata` into the store and makes the object visible to all.
    ///
    /// # Errors
    /// `Exists` if the id is taken. `Full` or `TooLarge` if there is no room. `Invalid` for 4 GiB of metadata
    /// or a name of more than 255 bytes. `TooFew` if the object is stored, but fewer nodes keep it than
    /// `options.replicas` asks for. `TimedOut` if no node could be asked whether the id is taken, and at the
    /// end of the time-out `options.room`: the object may still be stored then.
    pub fn put(&self, id: ObjectId, data: &[u8], metadata: &[u8], options: &CreateOptions) -> Result<()> {
        self.put_parts(id, data.len(), &[(0, data)], metadata, options)
    }

    /// Stores an object of `len` bytes that is made of parts, each given with its offset, ascending and
    /// without overlap, and zeros between and behind them.
    ///
    /// # Errors
    /// As [`Client::put`]. `Invalid` for parts that overlap or reach beyond the end.
    pub fn put_parts(
        &self,
        id: ObjectId,
        len: usize,
        parts: &[(usize, &[u8])],
        metadata: &[u8],
        options: &CreateOptions,
    ) -> Result<()> {
        put_until(self, id, len, parts, metadata, options, options.due(self))
    }

    /// Stores many objects, given as id, data and metadata. Returns one result each, in order. Small objects
    /// share requests.
    ///
    /// # Errors
    /// For one object, among the results: as [`Client::put`]. For the call: `Disconnected`, `TimedOut` if the
    /// daemon does not answer, `Interrupted` as [`Client::interruptible`] describes.
    pub fn put_many(
        &self,
        objects: &[(ObjectId, &[u8], &[u8])],
        options: &CreateOptions,
    ) -> Result<Vec<Result<()>>> {
        let due = options.due(self);
        let mut results: Vec<Option<Result<()>>> = Vec::with_capacity(objects.len());
        let mut small = Vec::new();
        for (at, (id, data, metadata)) in objects.iter().enumerate() {
            results.push(match check(metadata, options) {
                Err(error) => Some(Err(error)),
                Ok(()) if options.replace || is_large(self, data.len(), metadata) => {
                    let put = put_until(self, *id, data.len(), &[(0, data)], metadata, options, due);
                    Some(unless_interrupted(put)?)
                }
                Ok(()) => {
                    let digest = if options.digest { digest(&[(0, data)], data.len(), metadata) } else { 0 };
                    small.push((at, (*id, *data, *metadata, digest)));
                    None
                }
            });
        }
        let puts: Vec<_> = small.iter().map(|(_, put)| *put).collect();
        let by_ring = Rings(self).put(&puts, options, due)?;
        // All requests are sent before the first reply is awaited.
        let mut tickets: Vec<(usize, Ticket<'_>)> = Vec::new();
        for ((at, put), rung) in small.into_iter().zip(by_ring) {
            match rest_of_put(rung, put, options) {
                None => results[at] = Some(Ok(())),
                Some(rest) => tickets.push((at, self.connection.send(&rest, Undo::Cancel)?)),
            }
        }
        for (at, ticket) in tickets {
            let result = self.answer_to::<requests::Put>(ticket, due);
            let result = result.and_then(|_| await_copies(self, objects[at].0, options, due));
            results[at] = Some(unless_interrupted(result)?);
        }
        let missing = || Err(unexpected("fewer results than requested"));
        Ok(results.into_iter().map(|result| result.unwrap_or_else(missing)).collect())
    }

    /// Creates an object of `data_len` bytes, which the caller writes in place and then seals.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn create(
        &self,
        id: ObjectId,
        data_len: u64,
        metadata: &[u8],
        options: &CreateOptions,
    ) -> Result<Creation> {
        check(metadata, options)?;
        let placement = reserve(self, id, data_len, metadata, options, options.due(self))?;
        let inline = placement == Placement::Inline;
        let memory = match placement {
            Placement::Mapped(span) => self.connection.arena().creation(span),
            Placement::Inline if data_len <= self.inline_max as u64 => {
                Writable::spare(self.connection.arena(), data_len as usize)
            }
            Placement::Inline => Err(unexpected("no extent for a large object")),
        };
        let memory = memory.inspect_err(|_| Rings(self).abort_later(id))?;
        let metadata = if options.digest { Some(metadata.to_vec()) } else { None };
        Ok(Creation::new(self.clone(), id, memory, inline, metadata, options))
    }

    /// Deletes objects on every node. Returns one outcome an id, in order. A client that holds an object can
    /// still read it. No later get returns the object, and the ids are free. Objects of other users are not
    /// deleted, except by root and if they were put with [`Rights::ReadWrite`](crate::Rights::ReadWrite).
    ///
    /// # Errors
    /// `OutcomeUnknown` if another node does not answer: some of the objects may still exist, or be deleted
    /// later. `TimedOut` if the daemon does not answer, with the same meaning. `Disconnected`.
    pub fn delete(&self, ids: &[ObjectId]) -> Result<Vec<DeleteOutcome>> {
        let by_ring = Rings(self).delete(ids)?;
        let left = ids.iter().zip(&by_ring).filter(|(_, outcome)| outcome.is_none()).map(|(id, _)| *id);
        let left: Vec<_> = left.collect();
        let by_socket =
            by_chunks(self, &left, |ids| requests::Delete { ids }, |replies::Deleted(outcomes)| outcomes)?;
        let mut by_socket = by_socket.into_iter();
        let outcomes = by_ring.into_iter().map(|outcome| outcome.or_else(|| by_socket.next()));
        outcomes.map(|outcome| outcome.ok_or_else(|| unexpected("fewer outcomes than requested"))).collect()
    }

    /// Evicts least recently used objects from this host's memory until `bytes` more are free. Only objects
    /// that other nodes or the disk hold as well are evicted; a node in cache mode evicts any object. Returns
    /// the number of bytes freed.
    ///
    /// # Errors
    /// `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn evict(&self, bytes: u64) -> Result<u64> {
        Ok(self.ask(requests::Evict { bytes }, Undo::Nothing)?.bytes)
    }

    /// Sets the name under which people see this client, and the limit in bytes for the objects that it
    /// creates from now on; 0 removes the limit. `None` leaves a value as it is.
    ///
    /// # Errors
    /// `Invalid` for a name that is empty or over 255 bytes. `Disconnected`, or `TimedOut` if the daemon does
    /// not answer.
    pub fn set_options(&self, name: Option<&str>, quota: Option<u64>) -> Result<()> {
        if let Some(name) = name {
            limit("a name", name.len(), MAX_NAME_BYTES)?;
            if name.is_empty() {
                return Err(Error::new(ErrorKind::Invalid, "a client cannot have an empty name"));
            }
        }
        self.ask(requests::Options { name: name.map(str::to_owned), quota, class: None }, Undo::Nothing)
            .map(drop)
    }
}

/// Stores an object of parts, until `due`.
fn put_until(
    client: &Client,
    id: ObjectId,
    len: usize,
    parts: &[(usize, &[u8])],
    metadata: &[u8],
    options: &CreateOptions,
    due: Due,
) -> Result<()> {
    if options.replace {
        return client.replace_parts(id, len, parts, metadata, options, None).map(drop);
    }
    check(metadata, options)?;
    check_parts(len, parts)?;
    if is_large(client, len, metadata) {
        let due = put_large(client, id, len, parts, metadata, options, due)?;
        return await_copies(client, id, options, due);
    }
    let data = &*joined(len, parts);
    let digest = if options.digest { digest(&[(0, data)], len, metadata) } else { 0 };
    let put = (id, data, metadata, digest);
    let rung = Rings(client).put(&[put], options, due)?.pop().unwrap_or(Rung::AskBySocket);
    let Some(rest) = rest_of_put(rung, put, options) else { return Ok(()) };
    client.answer_to::<requests::Put>(client.connection.send(&rest, Undo::Cancel)?, due)?;
    await_copies(client, id, options, due)
}

/// Makes a large object, as [`write_large`] does, and seals it. Returns the new end of the call.
fn put_large(
    client: &Client,
    id: ObjectId,
    len: usize,
    parts: &[(usize, &[u8])],
    metadata: &[u8],
    options: &CreateOptions,
    due: Due,
) -> Result<Due> {
    let (digest, due) = write_large(client, id, len, parts, metadata, options, due)?;
    Rings(client).seal(id, digest, &[], due)?;
    Ok(due)
}

/// Reserves the extent of an object, and copies the object into the store. Returns its digest, 0 for none,
/// and the new end of the call, because copying does not count as waiting.
pub(super) fn write_large(
    client: &Client,
    id: ObjectId,
    len: usize,
    parts: &[(usize, &[u8])],
    metadata: &[u8],
    options: &CreateOptions,
    due: Due,
) -> Result<(u64, Due)> {
    let span = match reserve(client, id, len as u64, metadata, options, due)? {
        Placement::Mapped(span) => span,
        Placement::Inline => {
            Rings(client).abort_later(id);
            return Err(unexpected("no extent for a large object"));
        }
    };
    let copying = Instant::now();
    client.connection.arena().write(span, parts).inspect_err(|_| Rings(client).abort_later(id))?;
    let digest = if options.digest { digest(parts, len, metadata) } else { 0 };
    Ok((digest, put_off(due, copying)))
}

/// Reserves an object. Metadata that is too long for a frame is written into the store here.
fn reserve(
    client: &Client,
    id: ObjectId,
    data_len: u64,
    metadata: &[u8],
    options: &CreateOptions,
    due: Due,
) -> Result<Placement> {
    let (sent, written) =
        if metadata.len() > MAX_METADATA_BYTES { (&[][..], metadata) } else { (metadata, &[][..]) };
    let placement = match Rings(client).create(id, data_len, metadata, options, due)? {
        Some(placement) => placement,
        None => {
            let object = new_object(id, sent, options);
            // `check` has made sure that the length fits.
            let metadata_len = written.len() as u32;
            let create = requests::Create { object, data_len, metadata_len, room_us: room_us(options) };
            client.ask_until(create, Undo::Abort(id), due)?.placement
        }
    };
    let placed = match placement {
        Placement::Mapped(span)
            if (span.data_len, span.metadata_len) != (data_len, metadata.len() as u32) =>
        {
            Err(unexpected("an extent of another size"))
        }
        Placement::Inline if !written.is_empty() => Err(unexpected("no extent for large metadata")),
        Placement::Mapped(Span { offset, .. }) if !written.is_empty() => {
            let offset = offset.saturating_add(data_len);
            let place = Span { offset, data_len: written.len() as u64, metadata_len: 0, digest: 0 };
            client.connection.arena().write(place, &[(0, written)])
        }
        _ => Ok(()),
    };
    placed.inspect_err(|_| Rings(client).abort_later(id))?;
    Ok(placement)
}

/// Whether an object is too large for a frame.
pub(super) fn is_large(client: &Client, len: usize, metadata: &[u8]) -> bool {
    len.saturating_add(metadata.len()) > client.inline_max || metadata.len() > MAX_METADATA_BYTES
}

/// Result for one of many objects, or an error of the whole call if it was interrupted.
fn unless_interrupted(result: Result<()>) -> Result<Result<()>> {
    match result {
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
        other => Ok(other),
    }
}

/// Checks that the metadata and the name of an object are not too long.
pub(super) fn check(metadata: &[u8], options: &CreateOptions) -> Result<()> {
    limit("metadata", metadata.len(), u32::MAX as usize)?;
    limit("a name", options.name.as_ref().map_or(0, String::len), MAX_NAME_BYTES)
}

fn limit(what: &str, len: usize, max: usize) -> Result<()> {
    if len <= max {
        return Ok(());
    }
    let message =
        format!("{what} of {len} bytes is over the limit of {max} bytes: put the rest into the data");
    Err(Error::new(ErrorKind::Invalid, message))
}

pub(super) fn check_parts(len: usize, parts: &[(usize, &[u8])]) -> Result<()> {
    let mut end = 0;
    for (at, part) in parts {
        let part_end = at.checked_add(part.len()).filter(|part_end| *at >= end && *part_end <= len);
        end = part_end.ok_or_else(|| {
            let message = format!("parts of an object of {len} bytes overlap or reach beyond its end");
            Error::new(ErrorKind::Invalid, message)
        })?;
    }
    Ok(())
}

/// Data that is made of parts, which [`check_parts`] has checked.
pub(super) fn joined<'a>(len: usize, parts: &[(usize, &'a [u8])]) -> Cow<'a, [u8]> {
    if let [(0, whole)] = parts
        && whole.len() == len
    {
        return Cow::Borrowed(whole);
    }
    let mut data = vec![0; len];
    for (at, part) in parts {
        data[*at..at + part.len()].copy_from_slice(part);
    }
    Cow::Owned(data)
}

/// Request that a put (id, data, metadata, digest) still has to make by the socket. `None` if the ring has
/// carried the put out.
fn rest_of_put(
    rung: Rung,
    (id, data, metadata, digest): (ObjectId, &[u8], &[u8], u64),
    options: &CreateOptions,
) -> Option<Request> {
    match rung {
        Rung::Done(_) => None,
        Rung::Collect(number) => Some(Request::Collect { number }),
        Rung::AskBySocket => {
            let object = new_object(id, metadata, options);
            let data = Bytes::copy_from_slice(data);
            Some(Request::Put { object, digest, room_us: room_us(options), data })
        }
    }
}

/// Object with these options, as requests carry it.
pub(super) fn new_object(id: ObjectId, metadata: &[u8], options: &CreateOptions) -> NewObject {
    let name = options.name.clone().unwrap_or_default();
    let CreateOptions { fresh, replicas, owned, replace, .. } = *options;
    let terms = Terms { fresh, copies: replicas, ttl_ms: ttl_ms(options), owned, replaces: replace };
    NewObject { id, rights: options.rights, name, metadata: Bytes::copy_from_slice(metadata), terms }
}

/// Time to live in milliseconds, as requests carry it.
pub(super) fn ttl_ms(options: &CreateOptions) -> u64 {
    options.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1))
}

/// Time to wait for room in microseconds, as requests carry it.
pub(super) fn room_us(options: &CreateOptions) -> u64 {
    options.room.map_or(0, |room| u64::try_from(room.as_micros()).unwrap_or(u64::MAX))
}
