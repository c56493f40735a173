//! An object being written.
//!
//! Used on any thread. Invariant: the daemon knows the creation until `sealed` or `aborted` was
//! asked once; dropping it before that aborts it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::connection::{Connection, Undo};
use super::mapping::{CreationMemory, Writable};
use super::{done, patience};
use crate::wire::Request;
use crate::{ObjectId, Result};

/// An object that is being written and not yet to be seen. Dropped unsealed, it never was.
pub struct Creation {
    connection: Arc<Connection>,
    id: ObjectId,
    memory: Writable,
    /// The data goes with the frame that seals it.
    inline: bool,
    open: bool,
}

impl Creation {
    pub(super) fn new(connection: Arc<Connection>, id: ObjectId, memory: Writable, inline: bool) -> Self {
        Self { connection, id, memory, inline, open: true }
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

    /// Makes the object immutable and visible to all.
    ///
    /// # Errors
    /// `Disconnected`, or what the daemon refuses; the object is given up then.
    pub fn seal(mut self) -> Result<()> {
        self.memory.freeze()?;
        let data = if self.inline { Bytes::copy_from_slice(self.memory.bytes()) } else { Bytes::new() };
        done(self.connection.call(
            &Request::Seal { id: self.id, digest: 0, data },
            Undo::Nothing,
            patience(),
        )?)?;
        self.open = false;
        Ok(())
    }

    /// Gives the object up: its id can be created again.
    ///
    /// # Errors
    /// `Disconnected`; the daemon gives the object up then as well.
    pub fn abort(mut self) -> Result<()> {
        self.open = false;
        self.memory.freeze()?;
        done(self.connection.call(&Request::Abort { id: self.id }, Undo::Nothing, patience())?)
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
            self.connection.send_and_forget(&Request::Abort { id: self.id });
        }
    }
}
