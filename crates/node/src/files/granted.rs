//! Which ranges of objects sessions of this node were told of that are not trusted. Engine thread only.
//!
//! Objects are private to the user who put them. In a shared volume a session reads those of others through
//! its node, which gives it ranges alone that a map named which the home has told it, since the home has
//! looked at the modes of the file. An object may have other bytes beside: of a file that was cut since, or
//! is cloned.
//!
//! Invariant: a session gets no byte of others that its home did not name to it.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::ops::Range;

use lru::LruCache;
use plasmon::ObjectId;
use plasmon::wire::files::{FileOutcome, Section, Source};

use super::frames::SessionKey;
use crate::kernel::random::HashMap;

/// Maximum number of objects of which a session's ranges are remembered: it asks for the map again.
const MAX_OBJECTS: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();
/// Maximum number of ranges of one object. Those told last are remembered.
const MAX_RANGES: usize = 64;

/// The ranges of a session's objects.
type Ranges = LruCache<ObjectId, Vec<Range<u64>>>;

/// The ranges of all sessions, by volume and session.
#[derive(Default)]
pub(super) struct Granted(RefCell<HashMap<(u32, u32), Ranges>>);

impl Granted {
    /// Notes what an outcome tells a session of.
    pub(super) fn note(&self, key: &SessionKey, outcome: &FileOutcome) {
        let (FileOutcome::Opened { map, .. } | FileOutcome::Map { map, .. }) = outcome else { return };
        let mut all = self.0.borrow_mut();
        let told = all.entry((key.volume, key.session)).or_insert_with(|| LruCache::new(MAX_OBJECTS));
        for Section { len, source, .. } in &map.sections {
            let Source::Object { id, at, .. } = source else { continue };
            let range = *at..at.saturating_add(*len);
            add(told.get_or_insert_mut(*id, Vec::new), range);
        }
    }

    /// Whether a session was told of a range of an object.
    pub(super) fn has(&self, key: &SessionKey, id: &ObjectId, range: &Range<u64>) -> bool {
        let mut all = self.0.borrow_mut();
        let ranges = all.get_mut(&(key.volume, key.session)).and_then(|told| told.get(id));
        let is_in = |told: &Range<u64>| told.start <= range.start && range.end <= told.end;
        ranges.is_some_and(|ranges| ranges.iter().any(is_in))
    }

    /// Forgets a session.
    pub(super) fn forget(&self, key: &SessionKey) {
        self.0.borrow_mut().remove(&(key.volume, key.session));
    }
}

/// Adds a range to others, and joins those that it touches.
fn add(ranges: &mut Vec<Range<u64>>, mut range: Range<u64>) {
    ranges.retain(|other| {
        let touches = other.start <= range.end && range.start <= other.end;
        if touches {
            range = range.start.min(other.start)..range.end.max(other.end);
        }
        !touches
    });
    if ranges.len() == MAX_RANGES {
        ranges.remove(0);
    }
    ranges.push(range);
}

#[cfg(test)]
mod tests {
    use plasmon::NodeId;
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
    fn ranges_of_an_object_are_few() {
        let mut ranges = Vec::new();
        (0..1000).for_each(|number| add(&mut ranges, 10 * number..10 * number + 5));
        assert_eq!((ranges.len(), ranges.last()), (MAX_RANGES, Some(&(9990..9995))));
        add(&mut ranges, 0..u64::MAX);
        assert_eq!((ranges.len(), ranges.last()), (1, Some(&(0..u64::MAX))));
    }
}
