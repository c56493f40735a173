//! A sealed object, read where it lies.
//!
//! Used on any thread. Invariant: one [`Pin`] is one pin at the daemon, taken by one result of one
//! `get` and released when the last [`Object`] over it is dropped.

use std::fmt;
use std::sync::Arc;

use super::connection::Connection;
use super::mapping::View;
use crate::ObjectId;
use crate::wire::Request;

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
}

impl Object {
    /// Takes over a pin the daemon gave.
    pub(super) fn new(connection: Arc<Connection>, id: ObjectId, view: View) -> Self {
        Self(Arc::new(Pin { connection, id, view }))
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
        self.connection.send_and_forget(&Request::Release { offsets: vec![self.view.offset()] });
    }
}
