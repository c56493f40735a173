//! Random numbers, and the hash tables whose order depends on them.
//!
//! Owns no state outside of tests. Any thread. All random numbers of a node come from the operating system:
//! ids of nodes, lives of objects, and keys of hash tables, which hold ids that clients and peers choose. In
//! a simulation they come from its seed instead, so that the same seed gives the same run; only tests are
//! compiled with that.

use std::hash::{BuildHasher, DefaultHasher, RandomState};

/// A hash table with a random key.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, Keyed>;
/// A set with a random key.
pub(crate) type HashSet<K> = std::collections::HashSet<K, Keyed>;

/// Fills a slice with random bytes.
pub(crate) fn fill(bytes: &mut [u8]) {
    #[cfg(test)]
    if seeded::fill(bytes) {
        return;
    }
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// Returns a random number.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// The key of a hash table: random, or the same for all tables of a simulation.
#[derive(Clone)]
pub(crate) enum Keyed {
    Random(RandomState),
    #[cfg(test)]
    Fixed,
}

impl Default for Keyed {
    fn default() -> Self {
        #[cfg(test)]
        if seeded::is_on() {
            return Self::Fixed;
        }
        Self::Random(RandomState::new())
    }
}

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        match self {
            Self::Random(keys) => keys.build_hasher(),
            #[cfg(test)]
            Self::Fixed => DefaultHasher::new(),
        }
    }
}

/// Random numbers of a simulation, which runs on one thread.
#[cfg(test)]
pub(crate) mod seeded {
    use std::cell::Cell;

    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Draws this thread's random numbers from a seed from now on; with `None`, from the system again.
    pub(crate) fn set(seed: Option<u64>) {
        STATE.set(seed);
    }

    /// Whether this thread's random numbers come from a seed.
    pub(crate) fn is_on() -> bool {
        STATE.get().is_some()
    }

    /// Fills a slice from the seed of this thread; `false` if the thread has none.
    pub(super) fn fill(bytes: &mut [u8]) -> bool {
        let Some(mut state) = STATE.get() else { return false };
        for chunk in bytes.chunks_mut(8) {
            // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..chunk.len()]);
        }
        STATE.set(Some(state));
        true
    }
}
