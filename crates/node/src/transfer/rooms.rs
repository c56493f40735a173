//! Rooms for pieces of objects that come before their answers. Owns [`Rooms`]. Engine thread only.
//!
//! A request for an object says how many bytes of the object may come in messages. The holder of an
//! object that fits sends all pieces at once. Messages of a node come in order, so that the answer, which
//! brings the last piece, finds the others here.
//!
//! Invariant: pieces are kept for open requests alone, those of one holder a request, in the object's order,
//! and at most as many bytes as the request said and [`MAX_KEPT_BYTES`] in all.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use plasmon::NodeId;

use crate::kernel::random::HashMap;
use crate::net::frame::FRAME_MAX_BYTES;

/// Maximum number of bytes of an object that comes in messages.
pub(super) const MAX_MESSAGES_BYTES: u32 = 256 << 10;
/// Maximum number of bytes of an object that comes in one message.
pub(super) const ONE_MESSAGE_BYTES: u32 = FRAME_MAX_BYTES as u32;
/// Maximum number of bytes of pieces that are kept.
const MAX_KEPT_BYTES: u64 = 32 << 20;

/// The rooms of all open requests.
#[derive(Default)]
pub(super) struct Rooms {
    of: RefCell<HashMap<u64, Kept>>,
    bytes: Cell<u64>,
}

/// Pieces that have come for a request.
struct Kept {
    room: u64,
    from: Option<NodeId>,
    bytes: u64,
    pieces: Vec<Bytes>,
}

/// The room of one request, which ends when this value is dropped.
pub(super) struct Room {
    rooms: Rc<Rooms>,
    request: u64,
    /// Number of bytes of the object that may come in messages.
    pub(super) bytes: u32,
}

impl Rooms {
    /// Makes room for pieces of at most `bytes` bytes in all, or for one message if much is kept already.
    pub(super) fn make(self: &Rc<Self>, request: u64, bytes: u32) -> Room {
        let scarce = self.bytes.get() > MAX_KEPT_BYTES / 2;
        let bytes = if scarce { bytes.min(ONE_MESSAGE_BYTES) } else { bytes };
        let kept = Kept { room: bytes.into(), from: None, bytes: 0, pieces: Vec::new() };
        self.of.borrow_mut().insert(request, kept);
        Room { rooms: Rc::clone(self), request, bytes }
    }

    /// Returns a node that has sent pieces whose answer has not come.
    #[cfg(test)]
    pub(super) fn any_holder(&self) -> Option<NodeId> {
        self.of.borrow().values().filter(|kept| kept.bytes > 0).filter_map(|kept| kept.from).min()
    }

    /// Keeps a piece; `false` if there is no room for the piece, or if it does not follow the one before.
    pub(super) fn take(&self, holder: NodeId, request: u64, at: u64, piece: &Bytes) -> bool {
        let mut rooms = self.of.borrow_mut();
        let Some(kept) = rooms.get_mut(&request) else { return false };
        if at == 0 {
            // This holder may have been asked after another one had begun to send.
            self.bytes.set(self.bytes.get() - kept.clear());
            kept.from = Some(holder);
        }
        let len = piece.len() as u64;
        let fits = len <= kept.room - kept.bytes && self.bytes.get() + len <= MAX_KEPT_BYTES;
        if kept.from != Some(holder) || at != kept.bytes || !fits {
            return false;
        }
        kept.bytes += len;
        self.bytes.set(self.bytes.get() + len);
        kept.pieces.push(piece.clone());
        true
    }
}

impl Kept {
    /// Drops the pieces; returns the number of their bytes.
    fn clear(&mut self) -> u64 {
        self.pieces.clear();
        std::mem::take(&mut self.bytes)
    }
}

impl Room {
    /// Takes the pieces that a holder has sent.
    pub(super) fn pieces_of(&self, holder: NodeId) -> Vec<Bytes> {
        let mut rooms = self.rooms.of.borrow_mut();
        match rooms.get_mut(&self.request).filter(|kept| kept.from == Some(holder)) {
            Some(kept) => {
                let pieces = std::mem::take(&mut kept.pieces);
                self.rooms.bytes.set(self.rooms.bytes.get() - kept.clear());
                pieces
            }
            None => Vec::new(),
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(mut kept) = self.rooms.of.borrow_mut().remove(&self.request) {
            self.rooms.bytes.set(self.rooms.bytes.get() - kept.clear());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: NodeId = NodeId::from_bytes([1; 16]);
    const OTHER: NodeId = NodeId::from_bytes([2; 16]);

    fn piece(len: usize) -> Bytes {
        vec![7; len].into()
    }

    #[test]
    fn pieces_come_in_order_from_one_holder_and_within_the_room() {
        let rooms = Rc::new(Rooms::default());
        let room = rooms.make(5, 100_000);
        assert!(!rooms.take(HOLDER, 6, 0, &piece(10)));
        assert!(rooms.take(HOLDER, 5, 0, &piece(60_000)));
        assert!(!rooms.take(HOLDER, 5, 1, &piece(10)));
        assert!(!rooms.take(OTHER, 5, 60_000, &piece(10)));
        assert!(!rooms.take(HOLDER, 5, 60_000, &piece(40_001)));
        assert!(rooms.take(HOLDER, 5, 60_000, &piece(40_000)));
        assert!(room.pieces_of(OTHER).is_empty());
        assert_eq!(room.pieces_of(HOLDER).iter().map(Bytes::len).collect::<Vec<_>>(), [60_000, 40_000]);
        assert!(room.pieces_of(HOLDER).is_empty());
        assert_eq!(rooms.bytes.get(), 0);
    }

    #[test]
    fn a_holder_that_begins_replaces_the_one_before() {
        let rooms = Rc::new(Rooms::default());
        let room = rooms.make(5, 100_000);
        assert!(rooms.take(HOLDER, 5, 0, &piece(60_000)));
        assert!(rooms.take(OTHER, 5, 0, &piece(30_000)));
        assert_eq!((room.pieces_of(HOLDER).len(), room.pieces_of(OTHER).len()), (0, 1));
        assert!(rooms.take(OTHER, 5, 0, &piece(30_000)));
        drop(room);
        assert_eq!((rooms.bytes.get(), rooms.of.borrow().len()), (0, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let rooms = Rc::new(Rooms::default());
        let open: Vec<_> = (0..200).map(|request| rooms.make(request, MAX_MESSAGES_BYTES)).collect();
        let taken = (0..200).filter(|request| rooms.take(HOLDER, *request, 0, &piece(256 << 10))).count();
        assert_eq!((taken, rooms.bytes.get()), (128, MAX_KEPT_BYTES));
        assert_eq!(rooms.make(200, MAX_MESSAGES_BYTES).bytes, ONE_MESSAGE_BYTES);
        drop(open);
        assert_eq!(rooms.bytes.get(), 0);
    }
}
