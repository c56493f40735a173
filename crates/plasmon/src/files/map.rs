//! The known part of the map of a file: the sections that lie in some ranges of the file.
//!
//! Owns the sections. The thread that has the file locked. Pages of the map come from the home, for the
//! ranges that programs read. Invariants: inside of a known range the sections are in order and do not
//! overlap, and a place without a section is a hole. Known ranges are in order and do not touch. All
//! sections are of one version of the file.

use std::ops::Range;

use crate::wire::files::{Extended, Section};

/// Known part of a map.
#[derive(Debug, Default)]
pub(super) struct Map {
    sections: Vec<Section>,
    known: Vec<Range<u64>>,
}

fn end(section: &Section) -> u64 {
    section.offset.saturating_add(section.len)
}

impl Map {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.sections.clear();
        self.known.clear();
    }

    /// Stores a page of the map that begins at an offset.
    pub(super) fn take(&mut self, from: u64, page: Extended) {
        let to = page.next.unwrap_or(u64::MAX).max(from);
        if let (Some(first), Some(last)) = (page.sections.first(), page.sections.last()) {
            // A page has all sections between its first section and its last.
            let begin = self.sections.partition_point(|section| section.offset < first.offset);
            let end = self.sections.partition_point(|section| section.offset <= last.offset);
            self.sections.splice(begin..end.max(begin), page.sections);
        }
        let begin = self.known.partition_point(|known| known.end < from);
        let end = self.known.partition_point(|known| known.start <= to);
        let joined = match self.known.get(begin..end) {
            Some([first, .., last]) => first.start.min(from)..last.end.max(to),
            Some([one]) => one.start.min(from)..one.end.max(to),
            _ => from..to,
        };
        self.known.splice(begin..end.max(begin), [joined]);
    }

    /// Returns the offset from which a page of the map has to be asked for to know a range. `None` if the
    /// range is known.
    pub(super) fn missing(&self, range: &Range<u64>) -> Option<u64> {
        let known = self.end(range.start);
        (known < range.end).then_some(known)
    }

    /// Returns the sections that lie in a known range or reach into it.
    pub(super) fn within(&self, range: &Range<u64>) -> &[Section] {
        let first = self.sections.partition_point(|section| end(section) <= range.start);
        let last = self.sections.partition_point(|section| section.offset < range.end);
        self.sections.get(first..last).unwrap_or_default()
    }

    /// Returns the end of the known range at an offset: the offset itself if it is not known.
    pub(super) fn end(&self, from: u64) -> u64 {
        let after = self.known.partition_point(|known| known.start <= from);
        let known = after.checked_sub(1).and_then(|at| self.known.get(at));
        known.map_or(from, |known| known.end.max(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Draw;
    use crate::wire::files::Source;

    fn section(offset: u64, len: u64) -> Section {
        Section { offset, len, source: Source::Inline(vec![0; len as usize].into()) }
    }

    fn offsets(map: &Map, range: Range<u64>) -> Vec<u64> {
        map.within(&range).iter().map(|section| section.offset).collect()
    }

    #[test]
    fn pages_join_to_one_range() {
        let mut map = Map::default();
        assert_eq!(map.missing(&(0..10)), Some(0));
        map.take(0, Extended { sections: vec![section(0, 10), section(20, 10)], next: Some(30) });
        assert_eq!(map.missing(&(5..30)), None);
        assert_eq!(map.missing(&(5..31)), Some(30));
        map.take(30, Extended { sections: vec![section(30, 5)], next: None });
        assert_eq!(map.missing(&(0..u64::MAX)), None);
        assert_eq!(offsets(&map, 9..21), [0, 20]);
        assert_eq!(offsets(&map, 10..20), [] as [u64; 0]);
        assert_eq!(offsets(&map, 29..31), [20, 30]);
    }

    #[test]
    fn a_section_that_reaches_over_a_page_counts_once() {
        let mut map = Map::default();
        map.take(0, Extended { sections: vec![section(0, 40)], next: Some(40) });
        map.take(40, Extended { sections: vec![section(0, 40), section(40, 2)], next: None });
        assert_eq!(offsets(&map, 0..100), [0, 40]);
    }

    #[test]
    fn pages_of_several_places_are_known_together() {
        let mut map = Map::default();
        map.take(0, Extended { sections: vec![section(0, 10)], next: Some(10) });
        assert_eq!(map.missing(&(100..110)), Some(100));
        map.take(100, Extended { sections: vec![section(95, 10)], next: Some(105) });
        assert_eq!(offsets(&map, 100..105), [95]);
        assert_eq!((map.missing(&(0..5)), map.missing(&(100..105))), (None, None));
        assert_eq!(map.missing(&(0..105)), Some(10));
        map.take(10, Extended { sections: vec![section(20, 75), section(95, 10)], next: Some(105) });
        assert_eq!(map.missing(&(0..105)), None);
        assert_eq!(offsets(&map, 0..105), [0, 20, 95]);
        assert_eq!(map.end(50), 105);
    }

    /// Pages from random places, taken one by one, agree with a map that is known as a whole.
    #[test]
    fn what_is_known_is_what_the_whole_map_has() {
        let whole: Vec<_> = (0..50).map(|at| (at * 10, if at % 3 == 0 { 10 } else { 4 })).collect();
        let page = |from: u64, sections: usize| {
            let found = whole.iter().filter(|(offset, len)| offset + len > from);
            let found: Vec<_> = found.take(sections).map(|(offset, len)| section(*offset, *len)).collect();
            let next = found.last().map(end).filter(|end| *end < 500);
            Extended { sections: found, next }
        };
        for seed in 1..200_u64 {
            let (mut map, mut draw) = (Map::default(), Draw::new(seed));
            for _ in 0..30 {
                let begin = draw.below(500) as u64;
                let range = begin..begin + 1 + draw.below(60) as u64;
                while let Some(from) = map.missing(&range) {
                    map.take(from, page(from, 1 + draw.below(7)));
                }
                let wanted = whole.iter().filter(|(at, len)| at + len > range.start && *at < range.end);
                let wanted: Vec<_> = wanted.map(|(at, _)| *at).collect();
                assert_eq!(offsets(&map, range.clone()), wanted, "seed {seed}, {range:?}");
            }
        }
    }

    #[test]
    fn nothing_is_known_after_it_was_cleared() {
        let mut map = Map::default();
        map.take(0, Extended { sections: vec![section(0, 10)], next: None });
        map.clear();
        assert_eq!(map.missing(&(0..10)), Some(0));
        assert_eq!(map.end(0), 0);
    }
}
