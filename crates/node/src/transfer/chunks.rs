//! Cutting an object into reads.

use crate::cluster::Location;
use crate::memory::Piece;

/// Pairs of equal pieces there and here, none longer than a chunk nor across a segment's end.
pub(super) fn chunks(
    there: &[Location],
    here: impl Iterator<Item = Piece>,
    longest: u64,
) -> impl Iterator<Item = (Location, Piece)> {
    let mut there = there.iter().copied().filter(|piece| piece.len > 0).peekable();
    let mut here = here.peekable();
    std::iter::from_fn(move || {
        let (from, into) = (there.peek_mut()?, here.peek_mut()?);
        let len = from.len.min(into.len).min(longest);
        let chunk = (Location { len, ..*from }, Piece { len, ..*into });
        from.offset += len;
        from.len -= len;
        into.offset += len;
        into.len -= len;
        if from.len == 0 {
            there.next();
        }
        if into.len == 0 {
            here.next();
        }
        Some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 1 << 20;

    #[test]
    fn chunks_cover_both_sides_in_order_and_cross_no_border() {
        let there = [(3, 100, 2 * CHUNK + 5), (4, 0, 10)].map(|(segment, offset, len)| Location {
            segment,
            version: 1,
            offset,
            len,
        });
        let total = 2 * CHUNK + 15;
        let here =
            [(0, 64, 7), (1, 0, total - 7)].map(|(segment, offset, len)| Piece { segment, offset, len });
        let chunks: Vec<_> = chunks(&there, here.into_iter(), CHUNK).collect();
        let (mut from_at, mut into_at) = (0, 0);
        for (from, into) in &chunks {
            assert_eq!(from.len, into.len);
            assert!(from.len > 0 && from.len <= CHUNK);
            let start = if from.segment == 3 { from.offset - 100 } else { 2 * CHUNK + 5 + from.offset };
            assert_eq!(start, from_at);
            let start = if into.segment == 0 { into.offset - 64 } else { 7 + into.offset };
            assert_eq!(start, into_at);
            from_at += from.len;
            into_at += into.len;
        }
        assert_eq!((from_at, into_at), (total, total));
    }
}
