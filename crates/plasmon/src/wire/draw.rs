//! Random values of a seed, with which tests and the fuzzer fill messages.
//!
//! Owns the state of one source. Any thread. Invariant: one seed draws the same values on every machine.
//! Extreme values are drawn often, because decoders fail on them most.

/// Source of random values: SplitMix64.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// Largest number of items, characters or bytes in a value of variable length.
    const MAX_SHORT_ITEMS: usize = 5;

    /// Makes a source from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// Draws a number below `end`. The number is 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end.max(1) as u64) as usize
    }

    /// Draws a number for a field: 0, the largest, a small one, or any.
    pub fn number(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => self.word() % 300,
            _ => self.word(),
        }
    }

    /// Draws one of several values.
    ///
    /// # Panics
    /// If there are no values.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Draws the number of items of a list: few, and at most `max`.
    pub fn count(&mut self, max: usize) -> usize {
        self.below(max.min(Self::MAX_SHORT_ITEMS) + 1)
    }
}
