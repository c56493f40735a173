//! Pieces of memory lent by the daemon, through which bytes of regions and of calls travel.
//!
//! Owns the memory: each [`Lent`] is cut into pieces of one size. Any thread. A caller that takes a piece has
//! its bytes alone. If a call on a piece was given up, the daemon may still read or write the piece. The
//! memory of such a piece is not used again, and is given back when its other pieces are free. Memory without
//! a piece in use is given back if the other memory on the shelf has as many free pieces; else it is kept for
//! later calls. Invariant: under the lock of a shelf, the pieces of a memory are on the shelf, or are counted
//! in [`Lent::taken`].
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Client;
use super::connection::Connection;
use super::due::Due;
use super::scratch::lend;
use super::writable::Writable;
use crate::wire::{LentRange, Request};
use crate::{Error, ErrorKind, Result};

/// Size in bytes of the memory that is lent at a time.
const LENT_BYTES: usize = 1 << 20;
/// Sizes in bytes of the pieces. Two of the largest are under way for each transfer, so that the next bytes
/// travel while the last are copied.
const PIECE_BYTES: [usize; 2] = [16 << 10, 256 << 10];
/// Size in bytes of the largest piece.
pub(super) const MAX_PIECE_BYTES: usize = PIECE_BYTES[1];

/// Free pieces of a connection, by their sizes.
#[derive(Default)]
pub(super) struct Pieces([Mutex<Vec<Place>>; PIECE_BYTES.len()]);

/// Memory that the daemon lent, for several pieces.
struct Lent {
    number: u64,
    memory: Writable,
    /// Whether a call on one of the pieces was given up.
    spoiled: AtomicBool,
    /// Number of pieces that calls have. Changed under the lock of the shelf.
    taken: AtomicUsize,
}

/// Place of a piece in lent memory.
struct Place {
    lent: Arc<Lent>,
    at: usize,
}

/// Piece of lent memory that one call has.
pub(super) struct Piece {
    connection: Arc<Connection>,
    shelf: usize,
    /// Place of the piece. `None` only while the piece is dropped.
    place: Option<Place>,
    /// Whether the daemon may read or write the piece.
    pub(super) busy: bool,
}

/// Number of the shelf of pieces that have `len` bytes or more.
fn shelf(len: usize) -> Result<usize> {
    let error = || Error::new(ErrorKind::Internal, format!("no piece has {len} bytes"));
    PIECE_BYTES.iter().position(|size| len <= *size).ok_or_else(error)
}

impl Piece {
    /// Takes a piece of `len` bytes or more, at most [`MAX_PIECE_BYTES`]. If no piece is free, the daemon is
    /// asked for memory, at most until `due`.
    pub(super) fn of(client: &Client, len: usize, due: Due) -> Result<Self> {
        let shelf = shelf(len)?;
        if let Some(piece) = Self::on(shelf, client) {
            return Ok(piece);
        }
        let (number, memory, _) = lend(client, LENT_BYTES, true, (None, due))?;
        let (spoiled, taken) = (AtomicBool::new(false), AtomicUsize::new(1));
        let lent = Arc::new(Lent { number, memory, spoiled, taken });
        let others = (PIECE_BYTES[shelf]..LENT_BYTES).step_by(PIECE_BYTES[shelf]);
        let others = others.map(|at| Place { lent: Arc::clone(&lent), at });
        client.connection.pieces.0[shelf].lock().extend(others);
        Ok(Self::new(client, shelf, Place { lent, at: 0 }))
    }

    /// Takes a free piece of `len` bytes or more without asking the daemon for memory. `None` if no piece is
    /// free.
    pub(super) fn free(client: &Client, len: usize) -> Result<Option<Self>> {
        Ok(Self::on(shelf(len)?, client))
    }

    fn on(shelf: usize, client: &Client) -> Option<Self> {
        let mut free = client.connection.pieces.0[shelf].lock();
        let mut places = std::iter::from_fn(|| free.pop());
        let place = places.find(|place| !place.lent.spoiled.load(Ordering::Relaxed))?;
        place.lent.taken.fetch_add(1, Ordering::Relaxed);
        Some(Self::new(client, shelf, place))
    }

    fn new(client: &Client, shelf: usize, place: Place) -> Self {
        Self { connection: Arc::clone(&client.connection), shelf, place: Some(place), busy: false }
    }

    /// Range of lent memory in which the piece lies, as calls name it.
    pub(super) fn range(&self) -> LentRange {
        match &self.place {
            Some(place) => LentRange { buffer: place.lent.number, at: place.at as u64 },
            None => LentRange { buffer: 0, at: 0 },
        }
    }

    /// Copies bytes into the piece, as many as it has room for.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(PIECE_BYTES[self.shelf]);
        // SAFETY: the bytes of a piece lie in its memory, which the place keeps mapped. This piece alone has
        // them, and no slice of the memory is made.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start(), len) };
    }

    /// Copies the first bytes of the piece, as many as `into` and the piece have.
    pub(super) fn take(&self, into: &mut [u8]) {
        let len = into.len().min(PIECE_BYTES[self.shelf]);
        // SAFETY: as in `put`. The daemon has answered the call, so it writes there no more; if it does, any
        // bytes are valid here.
        unsafe { ptr::copy_nonoverlapping(self.start(), into.as_mut_ptr(), len) };
    }

    fn start(&self) -> *mut u8 {
        let start = |place: &Place| place.lent.memory.memory().as_ptr().wrapping_add(place.at);
        self.place.as_ref().map_or(ptr::null_mut(), start)
    }
}

/// Whether an error says that the daemon has no memory to lend.
pub(super) fn has_no_room(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Full | ErrorKind::TooLarge | ErrorKind::Busy)
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        // In a forked child the memory belongs to the parent, and nothing may be locked.
        if self.connection.check_process().is_err() {
            return;
        }
        let mut free = self.connection.pieces.0[self.shelf].lock();
        let taken = place.lent.taken.fetch_sub(1, Ordering::Relaxed) - 1;
        if !self.busy && !place.lent.spoiled.load(Ordering::Relaxed) {
            let each = LENT_BYTES / PIECE_BYTES[self.shelf];
            if taken > 0 || free.len() + 1 < 2 * each {
                return free.push(place);
            }
        } else {
            place.lent.spoiled.store(true, Ordering::Relaxed);
        }
        free.retain(|other| !Arc::ptr_eq(&other.lent, &place.lent));
        drop(free);
        if let Some(lent) = Arc::into_inner(place.lent) {
            self.connection.send_and_forget(&Request::GiveBack { buffer: lent.number });
        }
    }
}
