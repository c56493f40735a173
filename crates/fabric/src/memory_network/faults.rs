//! Faults of a memory network that happen by themselves, and the random numbers that decide them.
//!
//! Owns the generator of a network. Engine thread only. Invariant: a seed gives the same numbers for ever.

use std::time::Duration;

/// Delays and faults of a memory network, all drawn from its seed.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Shortest time that an operation takes to arrive at the peer, and its answer to come back.
    pub delay_min: Duration,
    /// Longest time that an operation or its answer takes to arrive, unless it has to wait behind others.
    pub delay_max: Duration,
    /// Whether a read is copied in two parts at two moments. The peer's memory may change between them.
    pub split_reads: bool,
    /// Number of operations, in a million, on which the connection breaks.
    pub cut_ppm: u32,
    /// Number of short messages, and of writes without an acknowledgement, in a million, that complete before
    /// they have arrived. If the connection then breaks, they are lost without a sign.
    pub early_send_ppm: u32,
    /// Longest further time after which writes land that have come by a broken connection.
    pub late_write_max: Duration,
    /// Number of reads, in a million, that bring one byte that is not the peer's.
    pub spoiled_read_ppm: u32,
    /// Time after which an operation that a partition holds back breaks its connection, as TCP gives up. If
    /// `None`, operations wait until the partition is healed.
    pub patience: Option<Duration>,
}

impl Default for Faults {
    /// Returns delays of 10 to 50 µs, and no fault.
    fn default() -> Self {
        Faults {
            delay_min: Duration::from_micros(10),
            delay_max: Duration::from_micros(50),
            split_reads: false,
            cut_ppm: 0,
            early_send_ppm: 0,
            late_write_max: Duration::ZERO,
            spoiled_read_ppm: 0,
            patience: None,
        }
    }
}

/// Generator of numbers (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    /// Returns a generator that starts at `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Draws the next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Draws a number below `limit`, or 0 if `limit` is 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// Draws a truth value that is true `ppm` times in a million.
    pub(super) fn hits(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Draws a time from `min` to `max`.
    pub(super) fn between(&mut self, min: Duration, max: Duration) -> Duration {
        let spread = max.saturating_sub(min).as_nanos().min(u128::from(u64::MAX - 1)) as u64;
        min + Duration::from_nanos(self.below(spread + 1))
    }
}

/// Mixes the bits of a number, so that every bit depends on all of them.
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
