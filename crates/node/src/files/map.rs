//! The map of a file: sections by offset. Owns [`Map`]. Engine thread only.
//!
//! Most files have one section, so the memory of few sections is that of these sections alone.
//!
//! Invariants: sections do not overlap and are not empty. `used` and `inline` are the sums of their bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use bytes::BytesMut;
use plasmon::ObjectId;
use plasmon::wire::body::Reader;
use plasmon::wire::files::MAX_INLINE_BYTES;
use plasmon::wire::{AtMost, Draw, Types, Wire, WireError, record};

use super::few::Few;

/// The place of the bytes of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// The bytes lie in an object, from this offset on.
    Object(ObjectId, u64),
    /// The bytes lie in the map itself.
    Inline(Box<[u8]>),
}

/// Encodes an object's id behind a 0, or bytes behind a 1.
impl Wire for Place {
    fn shape(types: &mut Types) -> Cow<'static, str> {
        let object = <(ObjectId, u64)>::shape(types);
        let bytes = <AtMost<MAX_INLINE_BYTES> as Wire<Box<[u8]>>>::shape(types);
        format!("0 {object} or 1 {bytes}").into()
    }

    fn put(value: &Self, out: &mut BytesMut) {
        bool::put(&matches!(value, Self::Inline(_)), out);
        match value {
            Self::Object(id, at) => <(ObjectId, u64)>::put(&(*id, *at), out),
            Self::Inline(bytes) => <AtMost<MAX_INLINE_BYTES> as Wire<Box<[u8]>>>::put(bytes, out),
        }
    }

    fn take(body: &mut Reader) -> Result<Self, WireError> {
        if bool::take(body)? {
            return Ok(Self::Inline(<AtMost<MAX_INLINE_BYTES> as Wire<Box<[u8]>>>::take(body)?));
        }
        let (id, at) = <(ObjectId, u64)>::take(body)?;
        Ok(Self::Object(id, at))
    }

    fn draw(draw: &mut Draw) -> Self {
        if bool::draw(draw) {
            return Self::Inline(<AtMost<MAX_INLINE_BYTES> as Wire<Box<[u8]>>>::draw(draw));
        }
        let (id, at) = <(ObjectId, u64)>::draw(draw);
        Self::Object(id, at)
    }
}

record! {
    /// A section without its offset.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct Piece {
        pub(super) len: u64,
        pub(super) place: Place,
    }
}

impl Piece {
    /// Returns the part of the piece in a range that counts from its beginning.
    pub(super) fn part(&self, range: Range<u64>) -> Self {
        let place = match &self.place {
            Place::Object(id, at) => Place::Object(*id, at + range.start),
            Place::Inline(bytes) => Place::Inline(bytes[range.start as usize..range.end as usize].into()),
        };
        Self { len: range.end - range.start, place }
    }

    fn inline_len(&self) -> u64 {
        if matches!(self.place, Place::Inline(_)) { self.len } else { 0 }
    }
}

/// Changes of references by a change of a map: each object, and whether it has one more or one less.
#[derive(Debug, Default)]
pub(super) struct References(pub(super) Vec<(ObjectId, bool)>);

impl References {
    fn note(&mut self, piece: &Piece, more: bool) {
        if let Place::Object(id, _) = piece.place {
            self.0.push((id, more));
        }
    }
}

/// Maximum number of pieces of a map that are kept in a list.
const MAX_FEW: usize = 16;

/// Pieces by offset.
#[derive(Debug, Clone)]
enum Pieces {
    /// At most [`MAX_FEW`].
    Few(Few<u64, Piece>),
    #[expect(clippy::box_collection, reason = "without a box every map of a few pieces were larger")]
    Many(Box<BTreeMap<u64, Piece>>),
}

impl Default for Pieces {
    fn default() -> Self {
        Self::Few(Few::default())
    }
}

/// Compares the pieces, whichever way they are kept.
impl PartialEq for Pieces {
    fn eq(&self, other: &Self) -> bool {
        let all = 0..u64::MAX;
        self.len() == other.len() && self.beginning_in(all.clone()).eq(other.beginning_in(all))
    }
}

impl Eq for Pieces {}

impl Pieces {
    fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    /// Returns the last piece that begins before an offset.
    fn before(&self, offset: u64) -> Option<(u64, &Piece)> {
        match self {
            Self::Few(few) => few.below(&offset).last().map(|(at, piece)| (*at, piece)),
            Self::Many(many) => many.range(..offset).next_back().map(|(at, piece)| (*at, piece)),
        }
    }

    /// Returns the pieces that begin in a range, in their order.
    fn beginning_in(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Piece)> {
        let (few, many) = match self {
            _ if range.is_empty() => (&[][..], None),
            Self::Few(few) => {
                let rest = few.from(&range.start);
                (&rest[..rest.partition_point(|(at, _)| *at < range.end)], None)
            }
            Self::Many(many) => (&[][..], Some(many.range(range))),
        };
        let few = few.iter().map(|(at, piece)| (*at, piece));
        few.chain(many.into_iter().flatten().map(|(at, piece)| (*at, piece)))
    }

    /// Enters a piece.
    fn insert(&mut self, offset: u64, piece: Piece) {
        match self {
            Self::Few(few) if few.len() < MAX_FEW => _ = few.insert(offset, piece),
            Self::Few(few) => {
                let all = few.take().chain([(offset, piece)]);
                *self = Self::Many(Box::new(all.collect()));
            }
            Self::Many(many) => _ = many.insert(offset, piece),
        }
    }

    /// Removes the piece that begins at an offset.
    fn remove(&mut self, offset: u64) -> Option<Piece> {
        let many = match self {
            Self::Few(few) => return few.remove(&offset),
            Self::Many(many) => many,
        };
        let piece = many.remove(&offset)?;
        if many.len() <= MAX_FEW / 2 {
            *self = Self::Few(Few::of(std::mem::take(&mut **many).into_iter()));
        }
        Some(piece)
    }
}

/// Map of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Map {
    pieces: Pieces,
    used: u64,
    inline: u64,
}

impl Map {
    /// Number of bytes of all sections. Holes do not count.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Number of bytes that lie in the map itself.
    pub(super) fn inline(&self) -> u64 {
        self.inline
    }

    /// Number of sections.
    pub(super) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the sections that reach into a range, in their order.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Piece)> {
        let before = self.pieces.before(range.start);
        let before = before.filter(|(offset, piece)| offset + piece.len > range.start);
        before.into_iter().chain(self.pieces.beginning_in(range))
    }

    /// Number of bytes of sections in a range: of all, and of those whose bytes lie in the map.
    pub(super) fn in_range(&self, range: Range<u64>) -> (u64, u64) {
        let parts = self.within(range.clone()).map(|(offset, piece)| {
            let len = (offset + piece.len).min(range.end).saturating_sub(offset.max(range.start));
            (len, if piece.inline_len() > 0 { len } else { 0 })
        });
        parts.fold((0, 0), |(all, inline), (len, here)| (all + len, inline + here))
    }

    fn insert(&mut self, offset: u64, piece: Piece, references: &mut References) {
        references.note(&piece, true);
        self.used += piece.len;
        self.inline += piece.inline_len();
        self.pieces.insert(offset, piece);
    }

    fn remove(&mut self, offset: u64, references: &mut References) -> Option<Piece> {
        let piece = self.pieces.remove(offset)?;
        references.note(&piece, false);
        self.used -= piece.len;
        self.inline -= piece.inline_len();
        Some(piece)
    }

    /// Makes a hole in a range.
    pub(super) fn punch(&mut self, range: Range<u64>, references: &mut References) {
        if range.is_empty() {
            return;
        }
        let offsets: Vec<_> = self.within(range.clone()).map(|(offset, _)| offset).collect();
        for offset in offsets {
            let Some(piece) = self.remove(offset, references) else { continue };
            let end = offset + piece.len;
            if offset < range.start {
                self.insert(offset, piece.part(0..range.start - offset), references);
            }
            if end > range.end {
                self.insert(range.end, piece.part(range.end - offset..piece.len), references);
            }
        }
    }

    /// Puts a section over what is there. Sections whose bytes lie in the map are joined if they touch.
    pub(super) fn cover(&mut self, offset: u64, piece: Piece, references: &mut References) {
        self.punch(offset..offset + piece.len, references);
        let before = self.pieces.before(offset).filter(|(at, one)| at + one.len == offset);
        let joined = match (before, &piece.place) {
            (Some((at, Piece { place: Place::Inline(first), .. })), Place::Inline(second)) => Some((
                at,
                Piece {
                    len: piece.len + first.len() as u64,
                    place: Place::Inline([&first[..], &second[..]].concat().into()),
                },
            )),
            (Some((at, Piece { len, place: Place::Object(id, from) })), Place::Object(other, to))
                if id == other && from + len == *to =>
            {
                Some((at, Piece { len: len + piece.len, place: Place::Object(*id, *from) }))
            }
            _ => None,
        };
        match joined {
            Some((at, joined)) => {
                self.remove(at, references);
                self.insert(at, joined, references);
            }
            None => self.insert(offset, piece, references),
        }
    }

    /// Puts a section over what is there, without joining it with others.
    pub(super) fn put(&mut self, offset: u64, piece: Piece, references: &mut References) {
        self.punch(offset..offset + piece.len, references);
        self.insert(offset, piece, references);
    }

    /// Removes all sections.
    pub(super) fn clear(&mut self, references: &mut References) {
        self.punch(0..u64::MAX, references);
    }
}

#[cfg(test)]
mod tests {
    use plasmon::wire::Draw;

    use super::*;

    /// Returns the bytes of a file as its map has them. Byte m of object n is n + m.
    fn bytes(map: &Map, len: usize) -> Vec<Option<u8>> {
        let mut all = vec![None; len];
        for (offset, piece) in map.within(0..len as u64) {
            for at in 0..piece.len {
                let byte = match &piece.place {
                    Place::Object(id, from) => id.as_bytes()[0].wrapping_add((from + at) as u8),
                    Place::Inline(bytes) => bytes[at as usize],
                };
                assert!(all[(offset + at) as usize].replace(byte).is_none(), "sections overlap");
            }
        }
        all
    }

    #[test]
    fn what_was_put_last_lies_on_top() {
        // There are more sections than a list has, and fewer again.
        const LEN: usize = 128;
        let mut kept = [0, 0];
        for seed in 0..300 {
            let mut draw = Draw::new(seed);
            let (mut map, mut model) = (Map::default(), vec![None; LEN]);
            let mut counts = std::collections::BTreeMap::<ObjectId, i64>::new();
            for _ in 0..80 {
                let offset = draw.below(LEN);
                let most = if draw.below(8) == 0 { LEN - offset } else { (LEN - offset).min(8) };
                let len = draw.below(most) + 1;
                let mut references = References::default();
                match draw.below(4) {
                    0 => {
                        map.punch(offset as u64..(offset + len) as u64, &mut references);
                        model[offset..offset + len].fill(None);
                    }
                    kind => {
                        let first = draw.below(200) as u8;
                        let place = if kind == 1 {
                            Place::Inline((0..len).map(|at| first.wrapping_add(at as u8)).collect())
                        } else {
                            Place::Object(ObjectId::from_bytes([first; ObjectId::LEN]), 0)
                        };
                        map.cover(offset as u64, Piece { len: len as u64, place }, &mut references);
                        let put = (0..len).map(|at| Some(first.wrapping_add(at as u8)));
                        model.splice(offset..offset + len, put);
                    }
                }
                for (id, more) in references.0 {
                    *counts.entry(id).or_default() += if more { 1 } else { -1 };
                }
                assert_eq!(bytes(&map, LEN), model, "seed {seed}");
                kept[usize::from(matches!(map.pieces, Pieces::Many(_)))] += 1;
                assert_eq!(map.used(), model.iter().flatten().count() as u64);
                let mut found = std::collections::BTreeMap::<ObjectId, i64>::new();
                for (_, piece) in map.within(0..LEN as u64) {
                    if let Place::Object(id, _) = piece.place {
                        *found.entry(id).or_default() += 1;
                    }
                }
                counts.retain(|_, count| *count != 0);
                assert_eq!(counts, found, "seed {seed}");
                let inline = map.within(0..LEN as u64).map(|(_, piece)| piece.inline_len()).sum::<u64>();
                assert_eq!(map.inline(), inline);
            }
            let mut references = References::default();
            map.clear(&mut references);
            assert_eq!((map.used(), map.inline(), map.count()), (0, 0, 0));
            assert_eq!(map, Map::default());
        }
        assert!(kept.iter().all(|times| *times > 1000), "{kept:?}");
    }

    #[test]
    fn maps_with_the_same_sections_are_the_same() {
        let piece = |at: u64| Piece { len: 1, place: Place::Object(ObjectId::from_bytes([at as u8; 20]), 0) };
        let (mut fell, mut grew) = (Map::default(), Map::default());
        let mut references = References::default();
        (0..40).for_each(|at| fell.put(at, piece(at), &mut references));
        (12..40).for_each(|at| fell.punch(at..at + 1, &mut references));
        (0..12).for_each(|at| grew.put(at, piece(at), &mut references));
        assert!(matches!((&fell.pieces, &grew.pieces), (Pieces::Many(_), Pieces::Few(_))));
        assert_eq!(fell, grew);
        grew.punch(3..4, &mut references);
        assert_ne!(fell, grew);
    }

    #[test]
    fn bytes_that_are_appended_make_one_section() {
        let (mut map, mut references) = (Map::default(), References::default());
        for at in 0..100 {
            map.cover(at, Piece { len: 1, place: Place::Inline([at as u8].into()) }, &mut references);
        }
        assert_eq!((map.count(), map.inline(), map.in_range(10..200)), (1, 100, (90, 90)));
    }
}
