//! An object being written.
//!
//! Used on any thread. Invariant: the daemon knows the creation until `sealed` or `aborted` was
//! asked once; dropping it before that aborts it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::connection::Undo;
use super::digest::digest as digest_of;
use super::mapping::{CreationMemory, Writable};
use super::{Client, CreateOptions};
use crate::wire::{Request, requests};
use crate::{ObjectId, Result};

/// An object that is being written and not yet to be seen. Dropped unsealed, it never was.
pub struct Creation {
    client: Client,
    id: ObjectId,
    memory: Writable,
    /// The data goes with the frame that seals it.
    inline: bool,
    /// The metadata, if there is to be a digest.
    digest_with: Option<Vec<u8>>,
    /// How many nodes are to hold it, and how long a call may take.
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

    /// Its id.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Bytes of data.
    pub fn len(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Whether it has no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The data to write. What it holds before is undefined: write all of it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// The memory behind the data, for views that outlive this handle.
    pub fn memory(&self) -> Arc<CreationMemory> {
        Arc::clone(self.memory.memory())
    }

    /// Makes the object immutable and visible to all, within the time that it was created with.
    ///
    /// # Errors
    /// `Disconnected`, or what the daemon refuses (`Exists`, if another node was first); the object is given
    /// up then. `TimedOut` when the daemon is silent: the object may be sealed or given up. `TooFew` when it
    /// is sealed, but fewer nodes hold it than it was created for.
    pub fn seal(mut self) -> Result<()> {
        self.memory.freeze()?;
        let data = if self.inline { Bytes::copy_from_slice(self.memory.bytes()) } else { Bytes::new() };
        let bytes = self.memory.bytes();
        let digest = self.digest_with.as_ref();
        let digest = digest.map_or(0, |metadata| digest_of(&[(0, bytes)], bytes.len(), metadata));
        let seal = requests::Seal { id: self.id, digest, data };
        let due = self.client.due_of_creation(&self.options);
        self.client.ask_until(seal, Undo::Nothing, due)?;
        self.open = false;
        self.client.await_copies(self.id, &self.options, due)
    }

    /// Gives the object up: its id can be created again.
    ///
    /// # Errors
    /// `Disconnected`; the daemon gives the object up then as well.
    pub fn abort(mut self) -> Result<()> {
        self.open = false;
        self.memory.freeze()?;
        self.client.ask(requests::Abort { id: self.id }, Undo::Nothing).map(drop)
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
            // A view that outlives this handle must not write into memory that is given back; if
            // even that fails, the daemon still never gives this memory to another user.
            let _ = self.memory.freeze();
            self.client.connection.send_and_forget(&Request::Abort { id: self.id });
        }
    }
}
