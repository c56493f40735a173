//! Memory to work in that the node knows: lent of its arena, or the program's own and registered with it.
//!
//! Used on any thread. Invariant: while a [`Scratch`] lives, the connection finds it by its addresses, so
//! that slices of it are known for what they are; it is given back once, when it is dropped or has become an
//! object.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::fstat;

use super::connection::{Undo, unexpected};
use super::digest::digest;
use super::due::rest;
use super::mapping::{CreationMemory, Writable};
use super::reading::microseconds;
use super::writing::{check, new_object, room_us};
use super::{Client, CreateOptions};
use crate::wire::{MAX_METADATA, Request, Span, replies, requests};
use crate::{Error, ErrorKind, ObjectId, Result};

/// Errors after which the memory that was to become an object is still this client's. After others nobody
/// knows, and it is never written again.
const REFUSED: [ErrorKind; 3] = [ErrorKind::Exists, ErrorKind::Invalid, ErrorKind::Busy];

/// Memory to work in: the data of objects comes there straight from other hosts ([`Client::get_into`]), and
/// what was lent by the node becomes an object without a copy ([`Client::put_from`]).
///
/// Dropped, it goes back to the node.
pub struct Scratch {
    client: Client,
    number: u64,
    memory: Writable,
    /// Bytes of an object that it may become, metadata included; 0 for memory of the program's own.
    capacity: u64,
    private: bool,
}

impl Scratch {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes. What they are at first is undefined.
    pub fn as_slice(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Its bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// The memory behind it, for views that outlive this handle.
    pub fn memory(&self) -> Arc<CreationMemory> {
        Arc::clone(self.memory.memory())
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
        // In a forked child it is the parent's, and nothing is locked.
        if connection.check_process().is_ok() && connection.scratches().remove(&self.start()).is_some() {
            // As with a creation: a view that outlives this handle must not write what is others' then.
            let _ = self.memory.freeze();
            connection.send_and_forget(&Request::GiveBack { buffer: self.number });
        }
    }
}

impl Scratch {
    fn start(&self) -> usize {
        self.memory.memory().as_ptr() as usize
    }
}

impl Client {
    /// Memory of the node's store to work in, `len` bytes of it. What is put from it is private if it is.
    ///
    /// # Errors
    /// `Full` or `TooLarge` when there is no room, which is waited for as `room` says; `Busy` for more than
    /// 4,096 of them; `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn buffer(&self, len: usize, private: bool, room: Option<Duration>) -> Result<Scratch> {
        let options = CreateOptions { room, ..CreateOptions::default() };
        let lend = requests::Lend { len: len as u64, private, room_us: room_us(&options) };
        let due = self.due_of_creation(&options);
        let replies::Lent { buffer, offset, capacity, .. } = self.ask_until(lend, Undo::Lend, due)?;
        let span = Span { offset, data_len: len as u64, metadata_len: 0, digest: 0 };
        let memory = if len == 0 { Writable::anonymous(0) } else { self.connection.arena().writable(span) };
        let memory =
            memory.inspect_err(|_| self.connection.send_and_forget(&Request::GiveBack { buffer }))?;
        Ok(self.keep(buffer, memory, capacity, private))
    }

    /// Registers memory of the program's own with the node: a file in memory (`memfd_create`), sealed against
    /// shrinking, so that objects can be got into it without a copy. The handle maps it; the file may be
    /// closed.
    ///
    /// # Errors
    /// `Invalid` for a file that is empty, can shrink or has huge pages; `Busy` as by [`Client::buffer`];
    /// `Disconnected`, or `TimedOut` when the daemon is silent.
    pub fn register(&self, file: impl AsFd) -> Result<Scratch> {
        let own = |what: &str, error: &dyn fmt::Display| {
            Error::new(ErrorKind::Invalid, format!("cannot register a file: {what}: {error}"))
        };
        let stat = fstat(&file).map_err(|error| own("it cannot be examined", &error))?;
        let len = usize::try_from(stat.st_size).map_err(|error| own("its size makes no sense", &error))?;
        let file: OwnedFd = file
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| own("its descriptor cannot be copied", &error))?;
        // The daemon says what is wrong with it before it is mapped here.
        let ticket = self.connection.send_file(&Request::Adopt { len: len as u64 }, &file, Undo::Lend)?;
        let buffer = self.answer_to::<requests::Adopt>(ticket, self.due_of_answer())?.buffer;
        let memory = Writable::own(&file, len)
            .inspect_err(|_| self.connection.send_and_forget(&Request::GiveBack { buffer }))?;
        Ok(self.keep(buffer, memory, 0, false))
    }

    fn keep(&self, number: u64, memory: Writable, capacity: u64, private: bool) -> Scratch {
        let scratch = Scratch { client: self.clone(), number, memory, capacity, private };
        self.connection.scratches().insert(scratch.start(), (scratch.len(), number));
        scratch
    }

    /// Brings an object's data, without its metadata, into memory of the caller's: returns how many bytes it
    /// has.
    ///
    /// From another host it comes straight there if `into` is within a [`Scratch`] of this client, and then
    /// leaves no replica on this node; otherwise by way of one, and a copy. `explain` says which. What `into`
    /// holds after an error is undefined; after `Interrupted` and `TimedOut` it may still change, until its
    /// scratch is used again.
    ///
    /// # Errors
    /// As [`Client::get`] for one object; `Invalid` when `into` is too small.
    pub fn get_into(&self, id: ObjectId, into: &mut [u8], timeout: Option<Duration>) -> Result<usize> {
        if let Some(object) = self.get_here(&id) {
            return copy(&object, into);
        }
        let mut left = timeout;
        if let Some((buffer, at)) = self.connection.scratch_of(into) {
            let (timeout_us, room) = (microseconds(timeout), into.len() as u64);
            let request = requests::GetInto { timeout_us, id, buffer, at, room };
            let due = self.due_of_get(&[id], timeout);
            let landed = self.ask_until(request, Undo::Cancel, due)?;
            left = if timeout == Some(Duration::ZERO) { timeout } else { rest(due) };
            // The daemon, or the network card, wrote behind the compiler's back.
            std::hint::black_box(&mut *into);
            match landed.data_len {
                Some(len) if len <= room => return Ok(len as usize),
                Some(_) => return Err(self.connection.fail(unexpected("more than there is room for"))),
                None => {}
            }
        }
        let object = self.get(&[id], left)?.pop().ok_or_else(|| unexpected("nothing"))??;
        copy(&object, into)
    }

    /// Stores the first `len` bytes of a scratch as an object, and gives the scratch up. If it was lent by
    /// the node, with `private` as `options` say, and the object is not a small one, the memory itself
    /// becomes the object, and nothing is copied: says whether that was so. After `Exists`, `Invalid` and
    /// `Busy` the scratch is what it was.
    ///
    /// # Errors
    /// As [`Client::put`]; `Invalid` when `len` is more than it has, or it was given up before.
    pub fn put_from(
        &self,
        id: ObjectId,
        from: &mut Scratch,
        len: usize,
        metadata: &[u8],
        options: &CreateOptions,
    ) -> Result<bool> {
        check(metadata, options)?;
        let Some(data) = from.as_slice().get(..len) else {
            let text = format!("object {id}: {len} bytes are more than the scratch has, {}", from.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        };
        if !self.connection.scratches().contains_key(&from.start()) {
            let text =
                format!("cannot put object {id}: its memory became an object before, or is another client's");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let whole = len.saturating_add(metadata.len());
        // Only large objects have places of their own, which a client may have written.
        let moves = whole > self.inline_max
            && metadata.len() <= MAX_METADATA
            && whole as u64 <= from.capacity
            && from.private == options.rights.is_private();
        let digest = if options.digest && moves { digest(&[(0, data)], len, metadata) } else { 0 };
        if moves {
            from.memory.freeze()?;
            let object = new_object(id, metadata, options);
            let put = requests::PutFrom { object, digest, buffer: from.number, data_len: len as u64 };
            let due = self.due_of_creation(options);
            match self.ask_until(put, Undo::Nothing, due) {
                // It was refused before anything was done.
                Err(error) if REFUSED.contains(&error.kind()) => return from.memory.thaw().and(Err(error)),
                done => {
                    self.connection.scratches().remove(&from.start());
                    done?;
                }
            }
            self.await_copies(id, options, due)?;
        } else {
            self.put(id, data, metadata, options)?;
            from.memory.freeze()?;
            self.connection.scratches().remove(&from.start());
            self.connection.send_and_forget(&Request::GiveBack { buffer: from.number });
        }
        Ok(moves)
    }
}

/// Copies an object's data.
fn copy(object: &super::Object, into: &mut [u8]) -> Result<usize> {
    let data = object.data();
    let Some(place) = into.get_mut(..data.len()) else {
        let text = format!(
            "object {} has {} bytes of data, and the memory to get it into only {}",
            object.id(),
            data.len(),
            into.len()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    };
    place.copy_from_slice(data);
    Ok(data.len())
}
