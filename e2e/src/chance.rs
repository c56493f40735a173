//! The one pseudo-random generator of the tests.
//!
//! Owns the state of a generator. Any thread. Invariant: a seed gives the same words again in every run and
//! on every machine. A test prints its seed, and `PLASMON_E2E_SEED` sets it.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use plasmon::wire::Draw;

/// Pseudo-random generator: [`Draw`], and what tests draw of it.
#[derive(Debug, Clone)]
pub struct Chance(Draw);

impl Chance {
    /// Makes the generator of this run. Its seed is `PLASMON_E2E_SEED`, or else a new one, and is printed
    /// under the test's name.
    ///
    /// # Panics
    /// Panics when `PLASMON_E2E_SEED` is not a number.
    pub fn of_this_run(test: &str) -> Self {
        Self::of_this_run_or(test, RandomState::new().build_hasher().finish())
    }

    /// Makes the generator of this run. Its seed is `PLASMON_E2E_SEED`, or else `seed`, and is printed under
    /// the test's name.
    ///
    /// # Panics
    /// Panics when `PLASMON_E2E_SEED` is not a number.
    pub fn of_this_run_or(test: &str, seed: u64) -> Self {
        let seed = match env::var("PLASMON_E2E_SEED") {
            Ok(seed) => seed.parse().expect("PLASMON_E2E_SEED is a number"),
            Err(_) => seed,
        };
        eprintln!("{test}: PLASMON_E2E_SEED={seed}");
        Self::of_seed(seed)
    }

    /// Makes the generator of a seed.
    pub fn of_seed(seed: u64) -> Self {
        Self(Draw::new(seed))
    }

    /// Makes another generator, for example for another thread.
    pub fn split(&mut self) -> Self {
        Self::of_seed(self.word())
    }

    /// Draws any word.
    pub fn word(&mut self) -> u64 {
        self.0.word()
    }

    /// Draws a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    /// Draws one of several values.
    pub fn pick<'a, T>(&mut self, several: &'a [T]) -> &'a T {
        &several[self.below(several.len())]
    }

    /// Draws true `times` in a hundred.
    pub fn percent(&mut self, times: usize) -> bool {
        self.below(100) < times
    }

    /// Puts several values in another order.
    pub fn shuffle<T>(&mut self, several: &mut [T]) {
        for at in (1..several.len()).rev() {
            several.swap(at, self.below(at + 1));
        }
    }

    /// Draws a time shorter than `longest`.
    pub fn span(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.below(1000) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_again_and_its_parts_differ() {
        let (mut one, mut other) = (Chance::of_seed(1), Chance::of_seed(1));
        assert_eq!([one.word(), one.word()], [other.word(), other.word()]);
        assert_ne!(one.split().word(), one.split().word());
        assert!((0..100).all(|_| one.below(7) < 7));
        let mut several: Vec<_> = (0..20).collect();
        one.shuffle(&mut several);
        assert!(!several.is_sorted());
        several.sort_unstable();
        assert!(several.into_iter().eq(0..20));
    }
}
