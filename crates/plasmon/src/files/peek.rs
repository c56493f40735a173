//! Count of the bytes that were read, range by range, of objects on other nodes.
//!
//! Owns a number for each object. The thread that has the file locked. Without ranges, reads at random would
//! bring whole objects for a few bytes; an object of which much is read is better brought. Invariant: less
//! than a quarter of an object is read by ranges, as long as the object is counted.

use std::collections::HashMap;
use std::ops::Range;

use crate::ObjectId;
use crate::wire::files::MAX_PEEK_BYTES;

/// Size in bytes from which objects are read by ranges.
const MIN_OBJECT_BYTES: u64 = 4 * MAX_PEEK_BYTES as u64;
/// Divisor of the size of an object: less than the quotient is read by ranges.
const READ_PART: u64 = 4;
/// Largest number of objects that are counted.
const MAX_COUNTED: usize = 4096;

/// Numbers of bytes that were read of objects, by the ids of the objects.
#[derive(Debug, Default)]
pub(super) struct Peeks(HashMap<ObjectId, u64>);

impl Peeks {
    /// Returns whether a range of an object of this size is to be read alone. If so, the range counts as
    /// read.
    pub(super) fn take(&mut self, id: &ObjectId, object_len: u64, range: &Range<u64>) -> bool {
        let len = range.end.saturating_sub(range.start);
        if len > MAX_PEEK_BYTES as u64 || object_len < MIN_OBJECT_BYTES {
            return false;
        }
        if self.0.len() >= MAX_COUNTED && !self.0.contains_key(id) {
            self.0.clear();
        }
        let read = self.0.entry(*id).or_default();
        *read = read.saturating_add(len);
        *read < object_len / READ_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_a_quarter_is_read_by_ranges() {
        let (mut peeks, one, other) = (Peeks::default(), ObjectId::random(), ObjectId::random());
        for at in 0..3 {
            assert!(peeks.take(&one, 1 << 20, &(at << 16..(at + 1) << 16)));
        }
        assert!(!peeks.take(&one, 1 << 20, &(0..1 << 16)), "that makes a quarter");
        assert!(!peeks.take(&one, 1 << 20, &(0..1)));
        assert!(peeks.take(&other, 1 << 20, &(0..1)));
    }

    #[test]
    fn long_ranges_and_short_objects_are_brought() {
        let (mut peeks, id) = (Peeks::default(), ObjectId::random());
        assert!(!peeks.take(&id, 1 << 20, &(0..MAX_PEEK_BYTES as u64 + 1)));
        assert!(!peeks.take(&id, MIN_OBJECT_BYTES - 1, &(0..1)));
        assert!(peeks.take(&id, MIN_OBJECT_BYTES, &(5..6)));
    }

    #[test]
    fn no_more_than_so_many_objects_are_counted() {
        let mut peeks = Peeks::default();
        for _ in 0..2 * MAX_COUNTED {
            assert!(peeks.take(&ObjectId::random(), 1 << 20, &(0..1)));
            assert!(peeks.0.len() <= MAX_COUNTED);
        }
    }
}
