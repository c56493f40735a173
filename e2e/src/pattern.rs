//! Data that cannot be right by accident.
//!
//! Owns nothing but a seed. Any thread. Invariants: every word depends on the seed and on its place in its
//! block, and the first word of each line on its place in the data. So bytes that come from another place are
//! found, and a debug build, which is slow word by word, copies and compares most bytes by block.

use crate::chance::Chance;

/// Size in bytes of a block, all of which are the same but for the first words of their lines.
const BLOCK_BYTES: usize = 64 << 10;
/// Size in bytes of a line. Bytes that come from elsewhere come in larger pieces.
const LINE_BYTES: usize = 512;
/// Size in bytes of a word.
const WORD_BYTES: usize = 8;

/// Data of any length that a seed makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern(pub u64);

impl Pattern {
    /// Fills `data` with the pattern.
    pub fn fill(self, data: &mut [u8]) {
        let block = self.block(data.len());
        for (number, part) in data.chunks_mut(BLOCK_BYTES).enumerate() {
            part.copy_from_slice(&block[..part.len()]);
            self.mark_lines(number, part);
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
        let mut expected = self.block(data.len());
        for (number, part) in data.chunks(BLOCK_BYTES).enumerate() {
            self.mark_lines(number, &mut expected);
            let expected = &expected[..part.len()];
            if part != expected {
                let words = part.chunks(WORD_BYTES).zip(expected.chunks(WORD_BYTES));
                let at = words.take_while(|(is, should)| is == should).count() * WORD_BYTES;
                panic!(
                    "byte {} of {} or one of the 7 behind it is wrong",
                    number * BLOCK_BYTES + at,
                    data.len()
                );
            }
        }
    }

    /// Makes the first block of `len` bytes, before its lines are marked.
    fn block(self, len: usize) -> Vec<u8> {
        let mut chance = Chance::of_seed(self.0);
        let mut block = vec![0; len.min(BLOCK_BYTES)];
        for chunk in block.chunks_mut(WORD_BYTES) {
            chunk.copy_from_slice(&chance.word().to_le_bytes()[..chunk.len()]);
        }
        block
    }

    /// Marks the lines of a block that has a number.
    fn mark_lines(self, number: usize, block: &mut [u8]) {
        for (at, line) in block.chunks_mut(LINE_BYTES).enumerate() {
            let place = (number * (BLOCK_BYTES / LINE_BYTES) + at) as u64;
            let mark = Chance::of_seed(self.0.rotate_left(32) ^ place).word().to_le_bytes();
            let len = line.len().min(WORD_BYTES);
            line[..len].copy_from_slice(&mark[..len]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_its_own_data_of_any_length() {
        for len in [0, 1, 7, 8, 9, 511, 513, 4096, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 5] {
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

    #[test]
    fn bytes_of_another_place_are_found() {
        let data = Pattern(3).bytes(4 * BLOCK_BYTES);
        for from in [LINE_BYTES, BLOCK_BYTES, 3 * BLOCK_BYTES] {
            let mut moved = data.clone();
            moved.copy_within(from..from + LINE_BYTES, 0);
            assert!(std::panic::catch_unwind(|| Pattern(3).check(&moved)).is_err(), "from {from}");
        }
    }
}
