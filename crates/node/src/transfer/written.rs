//! Bytes that go to a window of another node, whatever they are: the writer's side and the owner's. Owns
//! no state: each value has its slots. Engine thread only.
//!
//! Invariants: a writer keeps its slots until the owner has said that it no longer needs them. Slots
//! whose write has failed, or whose owner was silent, are not used again. An owner looks at once whether
//! all bytes of which a frame tells have come, and takes bytes only then. An owner makes slots ready for
//! other bytes before it says that it no longer needs them.

use std::any::Any;
use std::rc::Rc;

use plasmon::{Error, ErrorKind, NodeId};
use plasmon_fabric::Op;

use super::failure::Failure;
use super::landing::{Given, Landing};
use crate::memory::Run;
use crate::net::frame::WindowPlace;
use crate::net::windows::{MARK_BYTES, Slots, Window};
use crate::transfer::Transfer;

/// Number of slots of a window that are left to objects by bytes that are no object's: half of the slots.
/// Such bytes may stay there for as long as the function of a call takes.
const LEFT_TO_OBJECTS: u32 = 16;

/// Bytes that this node has written to a window of a peer's. The drop of this value spoils the window.
pub(crate) struct Written {
    slots: Slots,
    operation: Op,
    mark: u128,
}

impl Written {
    /// Returns where the bytes are, for the owner of the window.
    pub(crate) fn place(&self) -> WindowPlace {
        let (window, first) = self.slots.name();
        WindowPlace { window, first, mark: self.mark }
    }

    /// Whether the write has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.operation.result().is_some_and(|result| result.is_err())
    }

    /// Gives the slots back, because the owner no longer needs the bytes.
    pub(crate) fn release(self) {
        if !self.has_failed() {
            self.slots.release();
        }
    }
}

/// Bytes that have come to a window of this node. When this value is dropped, their slots are ready
/// for other bytes.
pub(crate) struct Come {
    window: Rc<Window>,
    first: u32,
    len: u64,
    mark: u128,
}

impl Come {
    /// Copies as many bytes as a landing keeps. Returns the number of bytes copied.
    pub(super) fn copy_to(&self, landing: &Landing) -> Result<u64, Failure> {
        let torn = || Failure::Holder("what it wrote has changed since".into());
        let (block, at) = self.window.arrived(self.first, self.len, self.mark).ok_or_else(torn)?;
        landing.copy_block(block, at, self.len).map_err(|error| Failure::Holder(error.to_string()))
    }

    /// Copies all bytes into memory that a client has given.
    ///
    /// # Errors
    /// `Internal` when the bytes have no room, `Disconnected` when the writer has changed them since.
    pub(crate) fn copy_into(&self, given: &Rc<Given>) -> Result<(), Error> {
        let landing = given.take_plain(self.len, None);
        let landing = landing.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let copied = self.copy_to(&landing);
        copied.map(drop).map_err(|failure| Error::new(ErrorKind::Disconnected, failure.to_string()))
    }
}

impl Drop for Come {
    fn drop(&mut self) {
        self.window.put_back(self.first, self.len);
    }
}

/// Writes the first `len` bytes of a run to a window of a peer's, and leaves at least `left` slots free.
/// `None` if there is no room for the bytes. The write owns `owner` until it is over.
pub(super) fn write_to_window(
    transfer: &Transfer,
    to: NodeId,
    (run, len): (&Run, u64),
    left: u32,
    owner: Rc<dyn Any>,
) -> Option<Written> {
    let mut pieces = run.part(0, len)?.pieces();
    let piece = pieces.next().filter(|piece| piece.len == len)?;
    let mut mark = [0; MARK_BYTES];
    run.read(len.checked_sub(MARK_BYTES as u64)?, &mut mark).ok()?;
    let slots = transfer.network.slots(to, len, left)?;
    let from = transfer.network.local(slots.on(), &transfer.store.arena.borrow(), piece);
    let Some(operation) = from.and_then(|from| transfer.network.write_to(&slots, from.with_owner(owner)))
    else {
        // Nothing was written.
        slots.release();
        return None;
    };
    Some(Written { slots, operation, mark: u128::from_le_bytes(mark) })
}

/// Writes bytes that are no object's to a window of a peer's. `None` if the bytes are too many, or have
/// no room there. The write owns `owner` until it is over.
pub(crate) fn write_plain(
    transfer: &Transfer,
    to: NodeId,
    (run, len): (&Run, u64),
    owner: Rc<dyn Any>,
) -> Option<Written> {
    let fits = len <= u64::from(transfer.push_max());
    fits.then(|| write_to_window(transfer, to, (run, len), LEFT_TO_OBJECTS, owner)).flatten()
}

/// Takes over bytes that are no object's and that a peer says it has written to a window of this
/// node. `None` if they have not come this way: the caller then reads them, and the peer is told of
/// a window for later bytes.
pub(crate) fn come_plain(
    transfer: &Transfer,
    from: NodeId,
    place: Option<WindowPlace>,
    len: u64,
) -> Option<Come> {
    let come = place.and_then(|place| self::come(transfer, from, place, len).ok());
    if come.is_none() {
        transfer.expect_pushes(from, len);
    }
    come
}

/// Takes over bytes that a peer has written to a window of this node, whether or not they are wanted.
///
/// # Errors
/// When there is no such window or place, or when not all bytes have come.
pub(super) fn come(transfer: &Transfer, from: NodeId, place: WindowPlace, len: u64) -> Result<Come, Failure> {
    let WindowPlace { window: number, first, mark } = place;
    let window = transfer.network.window(from, number).ok_or_else(|| {
        Failure::Holder("it wrote to memory that this node does not keep for it any more".into())
    })?;
    if !Window::has_place(first, len) {
        return Err(Failure::Holder("it wrote to no place that it was told of".into()));
    }
    if window.arrived(first, len, mark).is_none() {
        // The missing bytes may still come.
        transfer.network.spoil_window(from, number);
        return Err(Failure::Holder("not all of what it wrote has come".into()));
    }
    Ok(Come { window, first, len, mark })
}
