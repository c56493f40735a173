//! What is known of the map of a file: which sections lie in one range of it.
//!
//! Owns the sections. The thread that has the file locked. Pages of the map come from the home; what has
//! been read of them is one range, which grows at its end. Invariant: inside of the range the sections are in
//! order, do not overlap, and where there is none is a hole.

use std::ops::Range;

use crate::wire::files::{Extended, Section};

/// Known part of a map.
#[derive(Debug, Default)]
pub(super) struct Map {
    sections: Vec<Section>,
    known: Range<u64>,
}

impl Map {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.sections.clear();
        self.known = 0..0;
    }

    /// Takes in a page of the map that begins at an offset.
    pub(super) fn take(&mut self, from: u64, page: Extended) {
        if self.known.is_empty() || from < self.known.start || from > self.known.end {
            self.sections.clear();
            self.known = from..from;
        }
        let end = page.next.unwrap_or(u64::MAX);
        // The first sections of a page may begin before it.
        let known = self.known.end;
        self.sections.extend(page.sections.into_iter().filter(|section| {
            section.offset >= known || {
                let before = self.known.start == known;
                before && section.offset + section.len > known
            }
        }));
        self.known.end = end.max(known);
    }

    /// Offset from which a page of the map has to be asked for, to know a range. `None` if it is known.
    pub(super) fn missing(&self, range: &Range<u64>) -> Option<u64> {
        if range.is_empty() || (self.known.start <= range.start && range.end <= self.known.end) {
            return None;
        }
        let goes_on = self.known.start <= range.start && range.start <= self.known.end;
        Some(if goes_on && !self.known.is_empty() { self.known.end } else { range.start })
    }

    /// Sections that lie in a known range, or reach into it.
    pub(super) fn within(&self, range: &Range<u64>) -> &[Section] {
        let end = |section: &Section| section.offset.saturating_add(section.len);
        let first = self.sections.partition_point(|section| end(section) <= range.start);
        let last = self.sections.partition_point(|section| section.offset < range.end);
        self.sections.get(first..last).unwrap_or_default()
    }

    /// End of what is known.
    pub(super) fn end(&self) -> u64 {
        self.known.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn a_page_elsewhere_replaces_what_was_known() {
        let mut map = Map::default();
        map.take(0, Extended { sections: vec![section(0, 10)], next: Some(10) });
        assert_eq!(map.missing(&(100..110)), Some(100));
        map.take(100, Extended { sections: vec![section(95, 10)], next: Some(105) });
        assert_eq!(offsets(&map, 100..105), [95]);
        assert_eq!(map.missing(&(0..5)), Some(0));
    }

    #[test]
    fn nothing_is_known_after_it_was_cleared() {
        let mut map = Map::default();
        map.take(0, Extended { sections: vec![section(0, 10)], next: None });
        map.clear();
        assert_eq!(map.missing(&(0..10)), Some(0));
        assert_eq!(map.end(), 0);
    }
}
