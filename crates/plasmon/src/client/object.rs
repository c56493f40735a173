//! A sealed object, read where it lies.
//!
//! Used on any thread. Invariant: one [`Pin`] is one pin, taken by one result of one `get` and released
//! when the last [`Object`] over it is dropped: in this client's own pages, or at the daemon.

use std::fmt;
use std::sync::Arc;

use super::connection::Connection;
use super::digest::digest;
use super::fast::FastPin;
use super::mapping::View;
use crate::wire::Request;
use crate::{Error, ErrorKind, ObjectId, Result};

/// A sealed object in the memory of this host. It stays there, unchanged, as long as any clone of
/// this handle lives, whatever becomes of the object's id.
///
/// When the daemon ends, or ends the connection, the bytes stay readable, but they are no longer
/// pinned.
#[derive(Clone)]
pub struct Object(Arc<Pin>);

struct Pin {
    connection: Arc<Connection>,
    id: ObjectId,
    view: View,
    /// Where this client has pinned it; nothing if the daemon counts the pin.
    fast: Option<FastPin>,
}

impl Object {
    /// Takes over a pin the daemon gave.
    pub(super) fn counted(connection: Arc<Connection>, id: ObjectId, view: View) -> Self {
        Self(Arc::new(Pin { connection, id, view, fast: None }))
    }

    /// Takes over a pin of this client's own.
    pub(super) fn fast(connection: Arc<Connection>, id: ObjectId, view: View, pin: FastPin) -> Self {
        Self(Arc::new(Pin { connection, id, view, fast: Some(pin) }))
    }

    /// Its id.
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    /// Its data.
    pub fn data(&self) -> &[u8] {
        self.0.view.data()
    }

    /// Its metadata.
    pub fn metadata(&self) -> &[u8] {
        self.0.view.metadata()
    }
}

impl Object {
    /// XXH3 of data and metadata, if one was made at the seal.
    pub fn digest(&self) -> Option<u64> {
        Some(self.0.view.digest()).filter(|digest| *digest != 0)
    }

    /// XXH3 of data and metadata, computed now, and compared with the one made at the seal if there is
    /// one.
    ///
    /// # Errors
    /// `Damaged` when they differ.
    pub fn verify(&self) -> Result<u64> {
        let now = digest(&[(0, self.data())], self.data().len(), self.metadata());
        match self.digest() {
            Some(sealed) if sealed != now => Err(Error::new(
                ErrorKind::Damaged,
                format!(
                    "object {} is not what was sealed: its digest is {now:016x} and was {sealed:016x}; \
                     create it again",
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
            // In a forked child: it is the parent's.
            (Some(_), None) => {}
            (None, _) => {
                self.connection.send_and_forget(&Request::Release { offsets: vec![self.view.offset()] });
            }
        }
    }
}
