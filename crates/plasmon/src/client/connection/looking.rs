//! Waits of the leader for the socket: the leader looks for a while before it sleeps.
//!
//! Owns one word a connection, which tells whether the last answer came soon. Any leader reads and writes it.
//! The word is a guess, so no ordering is needed.
//!
//! A core that sleeps takes 3 µs to wake up, and in a virtual machine up to 50 µs, which is more than a small
//! get takes. A leader that looks keeps its core awake. It yields between two looks, so that the engine may
//! use the core, and goes to sleep as soon as a yield shows that others need the core for longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time to look before a sleep.
const LOOK_TIME: Duration = Duration::from_micros(50);
/// Longest time of an answer for which the next one is looked for.
const SOON: Duration = Duration::from_micros(200);
/// Time of a yield that shows that others need the core.
const LONG_YIELD: Duration = Duration::from_micros(5);

/// Habit of looking for answers on one connection.
pub(super) struct Looking {
    /// Whether the last answer came soon.
    pays: AtomicBool,
}

impl Looking {
    /// Makes the habit of a new connection, whose first answer is looked for.
    pub(super) fn new() -> Self {
        Self { pays: AtomicBool::new(true) }
    }

    /// Looks until `is_ready`, but at most as long as `nap`, and not at all if the last answer came late.
    pub(super) fn look(&self, nap: Option<Duration>, mut is_ready: impl FnMut() -> bool) {
        if !self.pays.load(Ordering::Relaxed) {
            return;
        }
        let longest = nap.map_or(LOOK_TIME, |nap| nap.min(LOOK_TIME));
        let began = Instant::now();
        let mut now = began;
        while !is_ready() {
            let before = now;
            thread::yield_now();
            now = Instant::now();
            if now - began >= longest || now - before >= LONG_YIELD {
                return;
            }
        }
    }

    /// Takes note of how long an answer was waited for.
    pub(super) fn learn(&self, waited: Duration) {
        self.pays.store(waited <= SOON, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Looking, SOON};

    #[test]
    fn an_answer_is_looked_for_if_the_last_one_came_soon() {
        let looking = Looking::new();
        let looks = |nap| {
            let mut looks = 0;
            looking.look(nap, || {
                looks += 1;
                true
            });
            looks
        };
        assert_eq!(looks(None), 1, "the first answer");
        looking.learn(SOON + Duration::from_nanos(1));
        assert_eq!(looks(None), 0, "after a late answer");
        looking.learn(SOON);
        assert_eq!(looks(Some(Duration::ZERO)), 1, "after a soon answer");
    }

    #[test]
    fn looking_ends_though_no_answer_comes() {
        let mut looks = 0_u64;
        Looking::new().look(None, || {
            looks += 1;
            false
        });
        assert!(looks > 0);
    }
}
