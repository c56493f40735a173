//! Data that cannot be right by accident.
//!
//! Owns nothing but a seed. Any thread. Invariant: every word depends on the seed and on its place.

use std::iter;

use crate::chance::Chance;

/// Data of any length that a seed makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern(pub u64);

impl Pattern {
    /// Fills `data` with the pattern.
    pub fn fill(self, data: &mut [u8]) {
        for (chunk, word) in data.chunks_mut(8).zip(self.words()) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    /// Makes `len` bytes of the pattern.
    pub fn bytes(self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.fill(&mut data);
        data
    }

    /// Compares `data` with the pattern.
    ///
    /// # Panics
    /// Panics at the first 8 bytes that differ, with their place.
    pub fn check(self, data: &[u8]) {
        for (at, (chunk, word)) in data.chunks(8).zip(self.words()).enumerate() {
            assert!(
                chunk == &word.to_le_bytes()[..chunk.len()],
                "byte {} of {} or one of the 7 behind it is wrong",
                8 * at,
                data.len()
            );
        }
    }

    /// Words of the pattern. None is repeated.
    fn words(self) -> impl Iterator<Item = u64> {
        let mut chance = Chance::of_seed(self.0);
        iter::repeat_with(move || chance.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_its_own_data_of_any_length() {
        for len in [0, 1, 7, 8, 9, 4096] {
            Pattern(3).check(&Pattern(3).bytes(len));
        }
    }

    #[test]
    #[should_panic(expected = "byte 4088 of 4096")]
    fn one_changed_byte_is_found() {
        let mut data = Pattern(3).bytes(4096);
        data[4095] ^= 1;
        Pattern(3).check(&data);
    }

    #[test]
    #[should_panic(expected = "byte 0 of 64")]
    fn another_seed_is_other_data() {
        Pattern(3).check(&Pattern(4).bytes(64));
    }
}
