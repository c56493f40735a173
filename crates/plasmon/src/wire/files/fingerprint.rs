//! Fingerprints of sections of a file.
//!
//! Owns no state. Any thread. A session names the sections that it has read and replaces by their
//! fingerprint. An object never changes and its id is never used again, so sections with equal places have
//! equal bytes.

use blake3::Hasher;

use super::{Section, Source};
use crate::ObjectId;

/// Number made of the places of sections, and of bytes that lie in a map itself, in the order of the file.
#[derive(Debug, Default)]
pub struct Fingerprint(Hasher);

impl Fingerprint {
    /// Returns the fingerprint of these sections.
    pub fn of(sections: &[Section]) -> u64 {
        let mut all = Self::default();
        for section in sections {
            match &section.source {
                Source::Object { id, at, .. } => all.object(section.offset, section.len, id, *at),
                Source::Inline(bytes) => all.bytes(section.offset, bytes),
            }
        }
        all.finish()
    }

    /// Adds a section of a file whose bytes lie in an object from the offset `at` on.
    pub fn object(&mut self, offset: u64, len: u64, id: &ObjectId, at: u64) {
        [offset, len, 0, at].iter().for_each(|number| _ = self.0.update(&number.to_le_bytes()));
        self.0.update(id.as_bytes());
    }

    /// Adds a section of a file whose bytes lie in the map.
    pub fn bytes(&mut self, offset: u64, bytes: &[u8]) {
        [offset, bytes.len() as u64, 1].iter().for_each(|number| _ = self.0.update(&number.to_le_bytes()));
        self.0.update(bytes);
    }

    /// Returns the fingerprint of what was added.
    pub fn finish(&self) -> u64 {
        let mut number = [0; 8];
        self.0.finalize_xof().fill(&mut number);
        u64::from_le_bytes(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    fn of(offset: u64, len: u64, number: u8, at: u64, node: u8) -> Section {
        let id = ObjectId::from_bytes([number; ObjectId::LEN]);
        let node = NodeId::from_bytes([node; NodeId::LEN]);
        Section { offset, len, source: Source::Object { id, at, object_len: 99, node } }
    }

    #[test]
    fn places_and_bytes_count_and_hints_do_not() {
        let inline = |bytes: &'static str| Section {
            offset: 3,
            len: bytes.len() as u64,
            source: Source::Inline(bytes.into()),
        };
        let one = Fingerprint::of(&[of(0, 3, 1, 5, 1), inline("abc")]);
        assert_eq!(one, Fingerprint::of(&[of(0, 3, 1, 5, 2), inline("abc")]));
        let others = [
            vec![of(0, 3, 1, 5, 1), inline("abd")],
            vec![of(0, 3, 2, 5, 1), inline("abc")],
            vec![of(0, 3, 1, 6, 1), inline("abc")],
            vec![of(1, 3, 1, 5, 1), inline("abc")],
            vec![of(0, 3, 1, 5, 1)],
            vec![inline("abc"), of(0, 3, 1, 5, 1)],
        ];
        assert!(others.iter().all(|other| Fingerprint::of(other) != one));
    }
}
