//! Scratch memory that the node knows: lent from its arena, or the program's own and registered with it.
//!
//! Owns lent and registered memory. Any thread. Invariant: while a [`Scratch`] lives, the connection finds it
//! by its addresses, so that slices of it are recognized. A scratch is given back once: when it is dropped,
//! or when it has become an object.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::fstat;

use super::connection::{Undo, unexpected};
use super::copies::await_copies;
use super::digest::digest;
use super::due::{Due, due, rest_of};
use super::reading::{compared, microseconds};
use super::writable::{CreationMemory, Writable};
use super::writing::{check, new_object, room_us};
use super::{Client, CreateOptions, ask_for};
use crate::wire::{MAX_METADATA_BYTES, Request, Span, replies, requests};
use crate::{Error, ErrorKind, ObjectId, Result, Version};

/// Errors after which memory that was to become an object still belongs to this client. After any other error
/// its owner is unknown, so the client never writes it again.
const REFUSED: [ErrorKind; 3] = [ErrorKind::Exists, ErrorKind::Invalid, ErrorKind::Busy];

/// Scratch memory. Objects from other hosts are received directly into it ([`Client::get_into`]), and memory
/// lent by the node becomes an object without a copy ([`Client::put_from`]).
///
/// Dropping a scratch gives the memory back to the node.
pub struct Scratch {
    client: Client,
    number: u64,
    memory: Writable,
    /// Size in bytes of the largest object that the memory can become, including metadata. 0 for memory of
    /// the program's own.
    capacity: u64,
    private: bool,
}

impl Scratch {
    /// Size of the memory in bytes.
    pub fn len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the memory. Their initial content is undefined.
    pub fn as_slice(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Bytes of the memory, for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// Memory of the scratch, for views that outlive this handle.
    pub fn memory(&self) -> Arc<CreationMemory> {
        Arc::clone(self.memory.memory())
    }

    /// Stores a copy of the first `len` bytes in the place of what has the id, as [`Client::replace`] does,
    /// and gives the memory up. After an error the memory is unchanged.
    ///
    /// # Errors
    /// As [`Client::replace`]. `Invalid` as [`Client::put_from`].
    pub fn replace(
        &mut self,
        id: ObjectId,
        len: usize,
        metadata: &[u8],
        options: &CreateOptions,
        expected: Option<Version>,
    ) -> Result<Version> {
        let client = self.client.clone();
        let version = client.replace(id, beginning(&client, id, self, len)?, metadata, options, expected)?;
        give_up(&client, self)?;
        Ok(version)
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("len", &self.len()).field("private", &self.private).finish()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let connection = &self.client.connection;
        // In a forked child the memory belongs to the parent, and nothing may be locked.
        if connection.check_process().is_ok() && connection.scratches().remove(&self.start()).is_some() {
            // A view that outlives this handle must not write memory that may belong to others by then.
            let _ = self.memory.freeze();
            connection.send_and_forget(&Request::GiveBack { buffer: self.number });
        }
    }
}

impl Scratch {
    fn new(client: &Client, number: u64, memory: Writable, capacity: u64, private: bool) -> Self {
        let scratch = Self { client: client.clone(), number, memory, capacity, private };
        client.connection.scratches().insert(scratch.start(), (scratch.len(), number));
        scratch
    }

    /// Number of the memory on its connection.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    fn start(&self) -> usize {
        self.memory.memory().as_ptr() as usize
    }
}

impl Client {
    /// Lends `len` bytes of the node's store as scratch memory. [`Client::put_from`] makes a private object
    /// without a copy only of private memory, and any other object only of other memory.
    ///
    /// # Errors
    /// `Full` or `TooLarge` if there is no room; `room` is the longest wait for room. `Busy` for more than
    /// 4,096 scratches. `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn buffer(&self, len: usize, private: bool, room: Option<Duration>) -> Result<Scratch> {
        let due = CreateOptions { room, ..CreateOptions::default() }.due(self);
        buffer_until(self, len, private, (room, due))
    }

    /// Registers memory of the program with the node, so that objects can be received into it without a copy.
    /// The memory is a file in memory (`memfd_create`), sealed against shrinking. The handle maps the file,
    /// whose descriptor may be closed.
    ///
    /// # Errors
    /// `Invalid` for a file that is empty, can shrink or has huge pages. `Busy` for more than 4,096
    /// scratches. `Disconnected`, or `TimedOut` if the daemon does not answer.
    pub fn register(&self, file: impl AsFd) -> Result<Scratch> {
        let own = |what: &str, error: &dyn fmt::Display| {
            Error::new(ErrorKind::Invalid, format!("cannot register a file: {what}: {error}"))
        };
        let stat = fstat(&file).map_err(|error| own("it cannot be examined", &error))?;
        let len = usize::try_from(stat.st_size).map_err(|error| own("its size is invalid", &error))?;
        let file: OwnedFd = file
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| own("its descriptor cannot be copied", &error))?;
        // The daemon finds faults of the file before it is mapped here.
        let ticket = self.connection.send_file(&Request::Adopt { len: len as u64 }, &file, Undo::Lend)?;
        let buffer = self.answer_to::<requests::Adopt>(ticket, self.due_of_answer())?.buffer;
        let memory = Writable::own(&file, len)
            .inspect_err(|_| self.connection.send_and_forget(&Request::GiveBack { buffer }))?;
        Ok(Scratch::new(self, buffer, memory, 0, false))
    }

    /// Copies an object's data, without its metadata, into memory of the caller. Returns the size of the data
    /// in bytes.
    ///
    /// If `into` lies within a [`Scratch`] of this client, an object from another host is received directly
    /// into it, and leaves no replica on this node. Otherwise the node fetches a replica and this call copies
    /// it. [`Client::explain`] tells which of the two happened. After an error the content of `into` is
    /// undefined. After `Interrupted` and `TimedOut` it may still change until the next use of its scratch.
    ///
    /// # Errors
    /// As [`Client::get`] for one object. `Invalid` if `into` is too small.
    pub fn get_into(&self, id: ObjectId, into: &mut [u8], timeout: Option<Duration>) -> Result<usize> {
        if let Some(object) = self.get_here(&id) {
            return copy(&compared(self, object)?, into);
        }
        let mut left = timeout;
        if let Some((buffer, at)) = self.connection.scratch_of(into) {
            let (timeout_us, room) = (microseconds(timeout), into.len() as u64);
            let request = requests::GetInto { timeout_us, id, buffer, at, room, verify: self.verifies };
            let due = due(timeout);
            let landed = ask_for(self, request, Undo::Cancel, timeout)?;
            left = timeout.map(|timeout| rest_of(timeout, due));
            // The daemon or the network card wrote the bytes without the compiler's knowledge.
            std::hint::black_box(&mut *into);
            match landed.data_len {
                Some(len) if len <= room => return Ok(len as usize),
                Some(_) => return Err(self.connection.fail(unexpected("more bytes than there is room for"))),
                None => {}
            }
        }
        let object = self.get(&[id], left)?.pop().ok_or_else(|| unexpected("no reply"))??;
        copy(&object, into)
    }

    /// Stores the first `len` bytes of a scratch as an object, and gives the scratch up. The memory itself
    /// becomes the object, without a copy, if the node lent it, if it is as private as `options` say, and if
    /// the object is not a small one and replaces nothing. Returns whether the memory became the object.
    /// After `Exists`, `Invalid` and `Busy` the scratch is unchanged.
    ///
    /// # Errors
    /// As [`Client::put`]. `Invalid` if `len` is larger than the scratch, or if the scratch was given up
    /// before.
    pub fn put_from(
        &self,
        id: ObjectId,
        from: &mut Scratch,
        len: usize,
        metadata: &[u8],
        options: &CreateOptions,
    ) -> Result<bool> {
        let data = beginning(self, id, from, len)?;
        check(metadata, options)?;
        let whole = len.saturating_add(metadata.len());
        // Only a large object has an extent of its own, which a client may have written.
        let moves = !options.replace
            && whole > self.inline_max
            && metadata.len() <= MAX_METADATA_BYTES
            && whole as u64 <= from.capacity
            && from.private == options.rights.is_private();
        let digest = if options.digest && moves { digest(&[(0, data)], len, metadata) } else { 0 };
        if moves {
            from.memory.freeze()?;
            let object = new_object(id, metadata, options);
            let put = requests::PutFrom { object, digest, buffer: from.number, data_len: len as u64 };
            let due = options.due(self);
            match self.ask_until(put, Undo::Nothing, due) {
                // The node refused before it changed anything.
                Err(error) if REFUSED.contains(&error.kind()) => return from.memory.thaw().and(Err(error)),
                done => {
                    self.connection.scratches().remove(&from.start());
                    done?;
                }
            }
            await_copies(self, id, options, due)?;
        } else {
            self.put(id, data, metadata, options)?;
            give_up(self, from)?;
        }
        Ok(moves)
    }
}

/// First `len` bytes of a scratch that can become an object.
fn beginning<'a>(client: &Client, id: ObjectId, from: &'a Scratch, len: usize) -> Result<&'a [u8]> {
    let Some(data) = from.as_slice().get(..len) else {
        let text = format!("object {id} of {len} bytes is larger than its scratch of {} bytes", from.len());
        return Err(Error::new(ErrorKind::Invalid, text));
    };
    if !client.connection.scratches().contains_key(&from.start()) {
        let text =
            format!("cannot put object {id}: its memory became an object before, or is another client's");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(data)
}

/// Gives up a scratch whose bytes were copied.
fn give_up(client: &Client, scratch: &mut Scratch) -> Result<()> {
    scratch.memory.freeze()?;
    client.connection.scratches().remove(&scratch.start());
    client.connection.send_and_forget(&Request::GiveBack { buffer: scratch.number });
    Ok(())
}

/// Lends memory as [`Client::buffer`] does, at most until `due`.
pub(super) fn buffer_until(
    client: &Client,
    len: usize,
    private: bool,
    limits: (Option<Duration>, Due),
) -> Result<Scratch> {
    let (buffer, memory, capacity) = lend(client, len, private, limits)?;
    Ok(Scratch::new(client, buffer, memory, capacity, private))
}

/// Asks the node for memory of its store, at most until `due`. `room` is the longest wait for others to make
/// room. Returns the number of the memory, the memory, and the size in bytes of the largest object that it
/// can become.
pub(super) fn lend(
    client: &Client,
    len: usize,
    private: bool,
    (room, due): (Option<Duration>, Due),
) -> Result<(u64, Writable, u64)> {
    let options = CreateOptions { room, ..CreateOptions::default() };
    let lend = requests::Lend { len: len as u64, private, room_us: room_us(&options) };
    let replies::Lent { buffer, offset, capacity, .. } = client.ask_until(lend, Undo::Lend, due)?;
    let span = Span { offset, data_len: len as u64, metadata_len: 0, digest: 0 };
    let memory = if len == 0 { Writable::anonymous(0) } else { client.connection.arena().writable(span) };
    let memory = memory.inspect_err(|_| client.connection.send_and_forget(&Request::GiveBack { buffer }))?;
    Ok((buffer, memory, capacity))
}

/// Copies an object's data to the start of `into`. Returns the size of the data in bytes.
fn copy(object: &super::Object, into: &mut [u8]) -> Result<usize> {
    let data = object.data();
    let Some(place) = into.get_mut(..data.len()) else {
        let text = format!(
            "object {} has {} bytes of data, but the memory to receive it has only {}",
            object.id(),
            data.len(),
            into.len()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    };
    place.copy_from_slice(data);
    Ok(data.len())
}
