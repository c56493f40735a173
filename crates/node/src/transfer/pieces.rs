//! Cutting objects: the same bytes lie in pieces at the holder and in other pieces here. Owns no
//! state. Engine thread only.
//!
//! Invariants, kept by [`pairs`], which does all cutting: its pairs come in the object's order, cover every
//! byte once, are never empty, and cross the end of no piece on either side.

use plasmon_fabric::RemoteRegion;

use crate::memory::{Piece, Run};
use crate::net::frame::{FRAME_MAX_BYTES, HEADER_LEN, Location};
use crate::store::Store;

/// Number of bytes of a part: the bytes that fit a message beside its header and the part's position.
pub(super) const PART_BYTES: usize = FRAME_MAX_BYTES - HEADER_LEN - 2 * size_of::<u64>() - size_of::<u32>();
/// Number of bytes of an object that a node handles at a time when several nodes take part.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// A run of bytes in one place that can be cut.
pub(super) trait Stretch: Clone {
    fn len(&self) -> u64;
    /// Cuts off and returns the first `len` bytes, which are at most all of them.
    fn cut_front(&mut self, len: u64) -> Self;
}

impl Stretch for Piece {
    fn len(&self) -> u64 {
        self.len
    }

    fn cut_front(&mut self, len: u64) -> Self {
        let front = Self { len, ..*self };
        (self.offset, self.len) = (self.offset + len, self.len - len);
        front
    }
}

impl Stretch for Location {
    fn len(&self) -> u64 {
        self.len
    }

    fn cut_front(&mut self, len: u64) -> Self {
        let front = Self { len, ..*self };
        (self.offset, self.len) = (self.offset + len, self.len - len);
        front
    }
}

/// A stretch of something larger: of a registration, or of an object.
#[derive(Clone)]
pub(super) struct Span<T> {
    pub(super) of: T,
    pub(super) at: u64,
    pub(super) len: u64,
}

impl From<RemoteRegion> for Span<RemoteRegion> {
    fn from(of: RemoteRegion) -> Self {
        Self { of, at: 0, len: of.len }
    }
}

impl<T: Clone> Stretch for Span<T> {
    fn len(&self) -> u64 {
        self.len
    }

    fn cut_front(&mut self, len: u64) -> Self {
        let front = Self { len, ..self.clone() };
        (self.at, self.len) = (self.at + len, self.len - len);
        front
    }
}

/// Cuts the bytes of two sides into pairs of equal length, none longer than `longest`, until one side has
/// no more.
pub(super) fn pairs<There: Stretch, Here: Stretch>(
    there: impl IntoIterator<Item = There>,
    here: impl IntoIterator<Item = Here>,
    longest: u64,
) -> impl Iterator<Item = (There, Here)> {
    pairs_by(there, here, move || longest)
}

/// Pairs stretches as [`pairs`] does, where `longest` says how long the next pair may be.
pub(super) fn pairs_by<There: Stretch, Here: Stretch>(
    there: impl IntoIterator<Item = There>,
    here: impl IntoIterator<Item = Here>,
    longest: impl Fn() -> u64,
) -> impl Iterator<Item = (There, Here)> {
    let mut there = there.into_iter().filter(|stretch| stretch.len() > 0).peekable();
    let mut here = here.into_iter().filter(|stretch| stretch.len() > 0).peekable();
    std::iter::from_fn(move || {
        let (from, into) = (there.peek_mut()?, here.peek_mut()?);
        let len = from.len().min(into.len()).min(longest());
        let pair = (from.cut_front(len), into.cut_front(len));
        if from.len() == 0 {
            there.next();
        }
        if into.len() == 0 {
            here.next();
        }
        Some(pair)
    })
}

/// Adds to each pair of an object's bytes, from `at` on, its offset in the object.
pub(super) fn placed<There, Here: Stretch>(
    pairs: impl Iterator<Item = (There, Here)>,
    mut at: u64,
) -> impl Iterator<Item = (u64, There, Here)> {
    pairs.map(move |(there, here)| {
        let start = at;
        at += here.len();
        (start, there, here)
    })
}

/// Cuts an object's memory into pieces of at most [`PIECE_BYTES`], each with its offset in the object.
pub(super) fn cut(memory: impl IntoIterator<Item = Piece>) -> impl Iterator<Item = (u64, Piece)> {
    let object = Span { of: (), at: 0, len: u64::MAX };
    pairs([object], memory, PIECE_BYTES).map(|(span, piece)| (span.at, piece))
}

/// Returns the sum of the pieces' lengths; `None` if no memory can be so long.
pub(crate) fn whole(pieces: &[Location]) -> Option<u64> {
    pieces.iter().try_fold(0u64, |sum, piece| {
        piece.offset.checked_add(piece.len)?;
        sum.checked_add(piece.len)
    })
}

/// Returns the pieces of `len` bytes from `at` on, of an object that lies in `pieces`.
pub(crate) fn part(pieces: &[Location], at: u64, len: u64) -> Vec<Location> {
    let (mut skip, mut left) = (at, len);
    let mut part = Vec::new();
    for piece in pieces {
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        let len = left.min(piece.len - skip);
        if len == 0 {
            break;
        }
        part.push(Location { offset: piece.offset + skip, len, ..*piece });
        left -= len;
        skip = 0;
    }
    part
}

/// Returns the locations of bytes of this node's arena, for peers.
pub(crate) fn locate(store: &Store, run: &Run) -> Vec<Location> {
    let arena = store.arena.borrow();
    let locate = |piece: Piece| Location {
        segment: piece.segment,
        version: arena.version(piece.segment),
        offset: piece.offset,
        len: piece.len,
    };
    run.pieces().map(locate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK_BYTES: u64 = 1 << 20;

    fn location(segment: u32, offset: u64, len: u64) -> Location {
        Location { segment, version: 1, offset, len }
    }

    fn piece((segment, offset, len): (u32, u64, u64)) -> Piece {
        Piece { segment, offset, len }
    }

    #[test]
    fn pairs_cover_both_sides_in_order_and_cross_no_border() {
        let there = [location(3, 100, 2 * CHUNK_BYTES + 5), location(9, 7, 0), location(4, 0, 10)];
        let total = 2 * CHUNK_BYTES + 15;
        let here = [(0, 64, 7), (2, 0, 0), (1, 0, total - 7)].map(piece);
        let (mut from_at, mut into_at) = (0, 0);
        for (from, into) in pairs(there, here, CHUNK_BYTES) {
            assert_eq!(from.len, into.len);
            assert!(from.len > 0 && from.len <= CHUNK_BYTES);
            let start = if from.segment == 3 { from.offset - 100 } else { 2 * CHUNK_BYTES + 5 + from.offset };
            assert_eq!(start, from_at);
            let start = if into.segment == 0 { into.offset - 64 } else { 7 + into.offset };
            assert_eq!(start, into_at);
            from_at += from.len;
            into_at += into.len;
        }
        assert_eq!((from_at, into_at), (total, total));
    }

    #[test]
    fn pairs_end_with_the_shorter_side() {
        let spans =
            |lens: &[u64]| -> Vec<_> { lens.iter().map(|len| Span { of: (), at: 0, len: *len }).collect() };
        let lens = |there: &[u64], here: &[u64]| -> Vec<u64> {
            pairs(spans(there), spans(here), 10).map(|(from, _)| from.len).collect()
        };
        assert_eq!(lens(&[25, 5], &[12]), [10, 2]);
        assert_eq!(lens(&[3], &[2, 40]), [2, 1]);
        assert!(lens(&[30], &[0]).is_empty());
        assert!(lens(&[], &[30]).is_empty());
    }

    #[test]
    fn the_pieces_of_an_object_make_it_up_and_cross_no_border() {
        let memory = [(1, 100, 2 * PIECE_BYTES + 5), (2, 0, 10), (3, 7, PIECE_BYTES)].map(piece);
        let mut at = 0;
        for (start, piece) in cut(memory) {
            assert_eq!(start, at);
            assert!(piece.len > 0 && piece.len <= PIECE_BYTES);
            let whole = memory.iter().find(|whole| whole.segment == piece.segment).expect("one of them");
            assert!(piece.offset >= whole.offset && piece.offset + piece.len <= whole.offset + whole.len);
            at += piece.len;
        }
        assert_eq!(at, 3 * PIECE_BYTES + 15);
    }

    #[test]
    fn pieces_of_lengths_that_no_memory_has_are_of_none() {
        assert_eq!(whole(&[]), Some(0));
        assert_eq!(whole(&[location(1, 100, 10), location(1, 0, u64::MAX - 10)]), Some(u64::MAX));
        assert_eq!(whole(&[location(1, 0, u64::MAX), location(1, 0, 33)]), None);
        assert_eq!(whole(&[location(1, u64::MAX, 1)]), None);
    }

    #[test]
    fn a_part_of_an_object_may_lie_in_several_pieces() {
        let pieces = [location(1, 100, 10), location(2, 0, 20), location(3, 0, 5)];
        assert_eq!(part(&pieces, 0, 35), pieces);
        assert_eq!(part(&pieces, 8, 4), [location(1, 108, 2), location(2, 0, 2)]);
        assert_eq!(part(&pieces, 10, 20), [location(2, 0, 20)]);
        assert_eq!(part(&pieces, 30, 5), [location(3, 0, 5)]);
        assert_eq!(part(&pieces, 35, 0), []);
    }
}
