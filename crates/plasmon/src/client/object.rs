//! Sealed objects, read in place.
//!
//! Owns pins. Any thread. Invariant: one [`Pin`] is one pin, taken by one result of one `get`. It is released
//! when the last [`Object`] that holds it is dropped, in this client's own pages or at the daemon.

use std::fmt;
use std::sync::Arc;

use super::connection::Connection;
use super::digest::digest;
use super::fast::{FastPin, Looked};
use super::mapping::View;
use crate::wire::{Request, Span};
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
    /// Takes over pins that the daemon counts, as a reply told them: one result an id, in order. Pins of
    /// several objects become pins in this client's own pages, so that one request releases the counted ones
    /// and none is made when an object is dropped.
    ///
    /// # Errors
    /// If the reply told places outside of the memory that this client has. The connection ends then.
    pub(super) fn take_over<'a>(
        connection: &Arc<Connection>,
        ids: impl Iterator<Item = &'a ObjectId>,
        told: Vec<Result<Span>>,
    ) -> Result<Vec<Result<Self>>> {
        let several = told.iter().flatten().nth(1).is_some();
        let fast = connection.fast().filter(|_| several);
        let (mut offsets, mut outdated) = (Vec::new(), false);
        let object = |(id, span): (&ObjectId, Result<Span>)| {
            let view = match span {
                Ok(span) => connection.arena().view(span).map_err(|error| connection.fail(error))?,
                Err(error) => return Ok(Err(error.about(*id))),
            };
            // The id may have been deleted and created anew: the place that is pinned here is the object's.
            match fast.map(|fast| (fast, fast.pin(connection.arena(), id))) {
                Some((_, Looked::Here(pinned, pin))) if pin.leaves_enough() => {
                    offsets.push(view.offset());
                    return Ok(Ok(Self::fast(Arc::clone(connection), *id, pinned, pin)));
                }
                Some((fast, Looked::Here(_, pin))) => fast.release(pin),
                Some((_, Looked::Outdated)) => outdated = true,
                _ => {}
            }
            Ok(Ok(Self::counted(Arc::clone(connection), *id, view)))
        };
        let objects = ids.zip(told).map(object).collect();
        if outdated {
            // The parts that are missing come with the next reply, for the next objects.
            connection.send_and_forget(&Request::Tables);
        }
        if !offsets.is_empty() {
            connection.send_and_forget(&Request::Release { offsets });
        }
        objects
    }

    /// Takes over a pin that the daemon counts.
    fn counted(connection: Arc<Connection>, id: ObjectId, view: View) -> Self {
        Self(Arc::new(Pin { connection, id, view, fast: None }))
    }

    /// Takes over a pin in this client's own pages.
    pub(super) fn fast(connection: Arc<Connection>, id: ObjectId, view: View, pin: FastPin) -> Self {
        Self(Arc::new(Pin { connection, id, view, fast: Some(pin) }))
    }

    /// Offset of the object in the arena, by which the daemon knows the pin.
    pub(super) fn offset(&self) -> u64 {
        self.0.view.offset()
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
