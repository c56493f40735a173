//! Values drawn from a seed: what tests and the fuzzer fill messages with.
//!
//! The same seed draws the same values on every machine. Extremes are drawn often: they are where decoders
//! break.

/// A source of values: SplitMix64.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// Most items, characters or bytes in a value of variable length.
    const SHORT: usize = 5;

    /// A source that begins with `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below `end`, or 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end.max(1) as u64) as usize
    }

    /// A number for a field: 0, the largest, a small one, or any.
    pub fn number(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => self.word() % 300,
            _ => self.word(),
        }
    }

    /// One of several.
    ///
    /// # Panics
    /// When there is none.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// How many items a list has: few, and at most `max`.
    pub fn count(&mut self, max: usize) -> usize {
        self.below(max.min(Self::SHORT) + 1)
    }
}
