//! Creation of an object: the handle of an object that is being written.
//!
//! Owns the memory that the application writes. Any thread. Invariant: the daemon knows the creation until
//! the first `seal` or `abort`. Dropping the handle before that aborts the creation.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::copies::await_copies;
use super::digest::digest as digest_of;
use super::replacing::{SealOver, seal_over};
use super::ringing::Rings;
use super::writable::{CreationMemory, Writable};
use super::{Client, CreateOptions};
use crate::{ObjectId, Result, Version};

/// Object that is being written and is not visible yet. Dropping it unsealed aborts the creation.
pub struct Creation {
    client: Client,
    id: ObjectId,
    memory: Writable,
    /// Whether the data travels with the request that seals the object.
    inline: bool,
    /// Metadata of the object, if a digest is to be made.
    digest_with: Option<Vec<u8>>,
    /// Options of the creation, for the number of replicas and the time-out.
    options: CreateOptions,
    open: bool,
}

impl Creation {
    pub(super) fn new(
        client: Client,
        id: ObjectId,
        memory: Writable,
        inline: bool,
        digest_with: Option<Vec<u8>>,
        options: &CreateOptions,
    ) -> Self {
        Self { client, id, memory, inline, digest_with, options: options.clone(), open: true }
    }

    /// Id of the object.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Size of the data in bytes.
    pub fn len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Whether the data has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Data to write. Its initial content is undefined: write all of it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// Memory of the data, for views that outlive this handle.
    pub fn memory(&self) -> Arc<CreationMemory> {
        Arc::clone(self.memory.memory())
    }

    /// Makes the object immutable and visible to all, within the time-out that it was created with.
    ///
    /// # Errors
    /// `Disconnected`, and the errors of a put (`Exists`, if another node created the id first): the creation
    /// is aborted then. `TimedOut` if the daemon does not answer: the object may be sealed or aborted.
    /// `TooFew` if the object is sealed, but fewer nodes keep it than it was created for.
    pub fn seal(mut self) -> Result<()> {
        if self.options.replace {
            return self.replace(None).map(drop);
        }
        self.memory.freeze()?;
        let bytes = self.memory.bytes();
        let digest = self.digest_with.as_ref();
        let digest = digest.map_or(0, |metadata| digest_of(&[(0, bytes)], bytes.len(), metadata));
        let data = if self.inline { bytes } else { &[] };
        let due = self.options.due(&self.client);
        Rings(&self.client).seal(self.id, digest, data, due)?;
        self.open = false;
        await_copies(&self.client, self.id, &self.options, due)
    }

    /// Makes the object immutable, and puts it in the place of what has its id, as [`Client::replace`] does.
    /// The creation was made with [`CreateOptions::replace`].
    ///
    /// # Errors
    /// As [`Client::replace`]. `NotFound` if the creation was not made to replace. The creation is aborted
    /// then.
    pub fn replace(mut self, expected: Option<Version>) -> Result<Version> {
        self.memory.freeze()?;
        let bytes = self.memory.bytes();
        let digest = self.digest_with.as_ref();
        let digest = digest.map_or(0, |metadata| digest_of(&[(0, bytes)], bytes.len(), metadata));
        let data = if self.inline { Bytes::copy_from_slice(bytes) } else { Bytes::new() };
        let due = self.options.due(&self.client);
        let over = SealOver { expected, digest, data };
        self.open = false;
        let version = seal_over(&self.client, self.id, over, &self.options, due)?;
        await_copies(&self.client, self.id, &self.options, due)?;
        Ok(version)
    }

    /// Aborts the creation. Its id is free again.
    ///
    /// # Errors
    /// `Disconnected`. The daemon aborts the creation then as well.
    pub fn abort(mut self) -> Result<()> {
        self.open = false;
        self.memory.freeze()?;
        Rings(&self.client).abort(self.id, self.client.due_of_answer())
    }
}

impl fmt::Debug for Creation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Creation").field("id", &self.id).field("len", &self.len()).finish()
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        if self.open {
            // A view that outlives this handle must not write into memory that was given back. If this fails,
            // the daemon still never gives this memory to another user.
            let _ = self.memory.freeze();
            Rings(&self.client).abort_later(self.id);
        }
    }
}
