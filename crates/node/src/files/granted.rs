//! Ranges of objects that the homes have told sessions without trust. Owns [`Granted`]. Engine thread only.
//!
//! Objects are private to the user who put them. In a shared volume a session reads objects of others through
//! its node. The node gives it only ranges that a map from the home has named, because the home has checked
//! the modes of the file. An object may have further bytes, which the file lost by a cut, or of which it has
//! a clone. A session is told the map again if its ranges were forgotten for lack of room.
//!
//! Invariants: a session gets no byte of others that its home did not name to it. All ranges of the page of a
//! map that it was told last are remembered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;

use lru::LruCache;
use plasmon::ObjectId;
use plasmon::wire::files::{FileOutcome, MAX_SECTIONS, Section, Source};

use super::frames::SessionKey;
use crate::kernel::random::HashMap;

/// Maximum number of objects of a session whose ranges are remembered.
const MAX_OBJECTS: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();
/// Maximum number of ranges of all objects of a session, which take some megabytes. A file with many holes
/// may have as many in one object.
const MAX_RANGES: usize = 1 << 16;

/// The ranges of a session's objects.
struct Ranges {
    /// Ranges of each object: the end of each range by its start. No two ranges touch.
    by_object: LruCache<ObjectId, BTreeMap<u64, u64>>,
    /// Number of ranges of all objects.
    count: usize,
}

impl Ranges {
    fn new() -> Self {
        Self { by_object: LruCache::new(MAX_OBJECTS), count: 0 }
    }

    /// Makes room for the ranges of a page of a map. Forgets the objects that were told or read least
    /// recently.
    fn make_room(&mut self) {
        let is_full = |ranges: &Self| {
            let objects = ranges.by_object.len() + MAX_SECTIONS;
            ranges.count + MAX_SECTIONS > MAX_RANGES || objects > MAX_OBJECTS.get()
        };
        while is_full(self) {
            let Some((_, ranges)) = self.by_object.pop_lru() else { return };
            self.count -= ranges.len();
        }
    }

    fn add(&mut self, id: ObjectId, range: Range<u64>) {
        let ranges = self.by_object.get_or_insert_mut(id, BTreeMap::new);
        let before = ranges.len();
        add(ranges, range);
        self.count = self.count - before + ranges.len();
    }

    /// Whether one of the remembered ranges of an object contains a range.
    fn has(&mut self, id: &ObjectId, range: &Range<u64>) -> bool {
        let before =
            |ranges: &BTreeMap<u64, u64>| ranges.range(..=range.start).next_back().map(|(_, end)| *end);
        self.by_object.get(id).and_then(before).is_some_and(|end| range.end <= end)
    }
}

/// The ranges of all sessions, by volume and session.
#[derive(Default)]
pub(super) struct Granted(RefCell<HashMap<(u32, u32), Ranges>>);

impl Granted {
    /// Notes the ranges that an outcome tells a session.
    pub(super) fn note(&self, key: &SessionKey, outcome: &FileOutcome) {
        let (FileOutcome::Opened { map, .. } | FileOutcome::Map { map, .. }) = outcome else { return };
        let mut all = self.0.borrow_mut();
        let told = all.entry((key.volume, key.session)).or_insert_with(Ranges::new);
        told.make_room();
        for Section { len, source, .. } in &map.sections {
            let Source::Object { id, at, .. } = source else { continue };
            told.add(*id, *at..at.saturating_add(*len));
        }
    }

    /// Whether a session was told of a range of an object.
    pub(super) fn has(&self, key: &SessionKey, id: &ObjectId, range: &Range<u64>) -> bool {
        let mut all = self.0.borrow_mut();
        all.get_mut(&(key.volume, key.session)).is_some_and(|told| told.has(id, range))
    }

    /// Forgets a session.
    pub(super) fn forget(&self, key: &SessionKey) {
        self.0.borrow_mut().remove(&(key.volume, key.session));
    }
}

/// Adds a range to the ranges of an object, and joins ranges that touch.
fn add(ranges: &mut BTreeMap<u64, u64>, range: Range<u64>) {
    let Range { mut start, mut end } = range;
    while let Some((other, last)) = ranges.range(..=end).next_back().map(|(other, last)| (*other, *last))
        && last >= start
    {
        ranges.remove(&other);
        (start, end) = (start.min(other), end.max(last));
    }
    ranges.insert(start, end);
}

#[cfg(test)]
mod tests {
    use plasmon::NodeId;
    use plasmon::wire::Draw;
    use plasmon::wire::files::{Extended, ROOT_INODE, Time, VolumeTerms, file_object};

    use super::*;
    use crate::files::state::State;

    fn map(sections: &[(u64, u64, u64)]) -> FileOutcome {
        let state = State::new(1, VolumeTerms::default(), 0, 0, Time::default());
        let attributes = state.attributes(ROOT_INODE).expect("every volume has a root");
        let section = |(counter, at, len): &(u64, u64, u64)| {
            let (id, node) = (file_object(1, 2, *counter), NodeId::from_bytes([1; 16]));
            Section { offset: 0, len: *len, source: Source::Object { id, at: *at, object_len: 1000, node } }
        };
        let map = Extended { sections: sections.iter().map(section).collect(), next: None };
        FileOutcome::Map { attributes, map }
    }

    #[test]
    fn a_session_has_the_ranges_that_it_was_told_of() {
        let key = SessionKey { volume: 1, session: 7, secret: 3 };
        let (told, id) = (Granted::default(), |counter| file_object(1, 2, counter));
        told.note(&key, &map(&[(5, 100, 50), (5, 300, 10), (6, 0, 1)]));
        assert!(told.has(&key, &id(5), &(100..150)) && told.has(&key, &id(5), &(301..302)));
        assert!(!told.has(&key, &id(5), &(99..150)) && !told.has(&key, &id(5), &(140..301)));
        assert!(!told.has(&key, &id(7), &(0..1)), "it was told of no such object");
        assert!(!told.has(&SessionKey { session: 8, ..key }, &id(5), &(100..150)), "another session was");
        told.note(&key, &map(&[(5, 150, 150)]));
        assert!(told.has(&key, &id(5), &(100..310)), "they touch");
        told.forget(&key);
        assert!(!told.has(&key, &id(6), &(0..1)));
    }

    #[test]
    fn all_ranges_of_the_last_page_are_remembered() {
        let key = SessionKey { volume: 1, session: 7, secret: 3 };
        let (told, id) = (Granted::default(), |counter| file_object(1, 2, counter));
        let page = |first: usize| (first..first + MAX_SECTIONS).map(|at| (5, 10 * at as u64, 5));
        for first in (0..2 * MAX_RANGES).step_by(MAX_SECTIONS) {
            told.note(&key, &map(&page(first).collect::<Vec<_>>()));
            for (counter, at, len) in page(first) {
                assert!(told.has(&key, &id(counter), &(at..at + len)), "{at}");
            }
        }
        assert!(!told.has(&key, &id(5), &(0..5)), "what was told first is forgotten");
    }

    #[test]
    fn a_session_has_no_more_than_so_much() {
        let (told, key) = (Granted::default(), SessionKey { volume: 1, session: 7, secret: 3 });
        let note = |page: Vec<(u64, u64, u64)>| told.note(&key, &map(&page));
        let count = || {
            let all = told.0.borrow();
            let ranges = all.get(&(1, 7)).expect("it was told");
            let counted: usize = ranges.by_object.iter().map(|(_, ranges)| ranges.len()).sum();
            assert!(counted == ranges.count && counted <= MAX_RANGES, "{counted}");
            (ranges.count, ranges.by_object.len())
        };
        let of_page = |page: usize| page * MAX_SECTIONS..(page + 1) * MAX_SECTIONS;
        for page in 0..2 * MAX_RANGES / MAX_SECTIONS {
            note(of_page(page).map(|at| (page as u64 / 8, 10 * at as u64, 5)).collect());
        }
        assert!(count().0 > MAX_RANGES - 10 * MAX_SECTIONS);
        for page in 0..2 * MAX_OBJECTS.get() / MAX_SECTIONS {
            note(of_page(page).map(|at| (1_000_000 + at as u64, 0, 5)).collect());
        }
        let (ranges, objects) = count();
        assert!(ranges == objects && objects > MAX_OBJECTS.get() - 2 * MAX_SECTIONS, "{ranges} {objects}");
    }

    #[test]
    fn ranges_are_joined() {
        for seed in 0..100 {
            let mut draw = Draw::new(seed);
            let (mut ranges, mut model) = (BTreeMap::new(), [false; 80]);
            for _ in 0..30 {
                let (start, len) = (draw.below(64), 1 + draw.below(8));
                add(&mut ranges, start as u64..(start + len) as u64);
                model[start..start + len].fill(true);
                let edges = (1..80).filter(|at| model[*at] && !model[*at - 1]).count();
                assert_eq!(ranges.len(), edges + usize::from(model[0]), "seed {seed}");
                for (at, wanted) in model.iter().enumerate() {
                    let is_in = ranges.iter().any(|(start, end)| (*start..*end).contains(&(at as u64)));
                    assert_eq!(is_in, *wanted, "seed {seed}");
                }
            }
        }
        let mut ranges = BTreeMap::from([(3, 5), (9, u64::MAX)]);
        add(&mut ranges, 0..u64::MAX);
        assert_eq!(ranges, BTreeMap::from([(0, u64::MAX)]));
    }
}
