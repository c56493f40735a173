//! Sealed objects, read in place.
//!
//! Owns pins. Any thread. Invariant: one [`Pin`] is one pin, taken by one result of one `get`. It is released
//! when the last [`Object`] that holds it is dropped, in this client's own pages or at the daemon.

use std::fmt;
use std::sync::Arc;

use super::connection::Connection;
use super::digest::digest;
use super::fast::FastPin;
use super::mapping::View;
use crate::wire::Request;
use crate::{Error, ErrorKind, ObjectId, Result};

/// Sealed object in the memory of this host. Its bytes stay there, unchanged, as long as any clone of this
/// handle lives, even if the object is deleted.
///
/// After the daemon or the connection has ended, the bytes stay readable, but they are no longer pinned.
#[derive(Clone)]
pub struct Object(Arc<Pin>);

struct Pin {
    connection: Arc<Connection>,
    id: ObjectId,
    view: View,
    /// Pin in this client's own pages. `None` if the daemon counts the pin.
    fast: Option<FastPin>,
}

impl Object {
    /// Takes over a pin that the daemon counts.
    pub(super) fn counted(connection: Arc<Connection>, id: ObjectId, view: View) -> Self {
        Self(Arc::new(Pin { connection, id, view, fast: None }))
    }

    /// Takes over a pin in this client's own pages.
    pub(super) fn fast(connection: Arc<Connection>, id: ObjectId, view: View, pin: FastPin) -> Self {
        Self(Arc::new(Pin { connection, id, view, fast: Some(pin) }))
    }

    /// Id of the object.
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    /// Data of the object.
    pub fn data(&self) -> &[u8] {
        self.0.view.data()
    }

    /// Metadata of the object.
    pub fn metadata(&self) -> &[u8] {
        self.0.view.metadata()
    }
}

impl Object {
    /// Digest (XXH3) of data and metadata that was made at the seal, if one was made.
    pub fn digest(&self) -> Option<u64> {
        Some(self.0.view.digest()).filter(|digest| *digest != 0)
    }

    /// Computes the digest (XXH3) of data and metadata now, and compares it with the one made at the seal, if
    /// there is one. Returns the digest.
    ///
    /// # Errors
    /// `Damaged` if the digests differ.
    pub fn verify(&self) -> Result<u64> {
        let now = digest(&[(0, self.data())], self.data().len(), self.metadata());
        match self.digest() {
            Some(sealed) if sealed != now => Err(Error::new(
                ErrorKind::Damaged,
                format!(
                    "object {} is damaged: its digest is {now:016x}, and was {sealed:016x} when it was \
                     sealed; create it again",
                    self.id()
                ),
            )),
            _ => Ok(now),
        }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("id", &self.id())
            .field("data_len", &self.data().len())
            .field("metadata_len", &self.metadata().len())
            .finish()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        match (self.fast.take(), self.connection.fast_of_this_process()) {
            (Some(pin), Some(fast)) => fast.release(pin),
            // In a forked child the pin belongs to the parent.
            (Some(_), None) => {}
            (None, _) => {
                self.connection.send_and_forget(&Request::Release { offsets: vec![self.view.offset()] });
            }
        }
    }
}
