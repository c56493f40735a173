//! This process's own heap: what was once taken for a crowd goes back to the system.
//!
//! Engine thread only. The allocator keeps freed memory that lies below memory in use, for whoever asks next;
//! after 100,000 waiting gets that is most of a gigabyte, and might be for as long as the daemon lives.

use std::fs;
use std::time::{Duration, Instant};

use rustix::param::page_size;

/// So much more than at its smallest is worth a look.
const WORTH: u64 = 64 << 20;
/// Calls between two looks, at first; twice as many after each that found nothing to give back.
const PAUSE: u32 = 10;
const LONGEST_PAUSE: u32 = 3 * PAUSE;

/// Looks after the heap; to be called about once a second.
pub(crate) struct Heap {
    least: u64,
    pause: u32,
    left: u32,
}

impl Heap {
    /// As it is now.
    pub(crate) fn new() -> Self {
        Self { least: anonymous().unwrap_or(u64::MAX), pause: PAUSE, left: PAUSE }
    }

    /// Gives memory back if that may be worth it; says how much that was, and how long it took, if it was.
    pub(crate) fn tend(&mut self) -> Option<(u64, Duration)> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return None;
        }
        self.left = self.pause;
        let before = anonymous()?;
        self.least = self.least.min(before);
        if before - self.least < WORTH {
            return None;
        }
        let begun = Instant::now();
        give_back();
        let given = before.saturating_sub(anonymous()?);
        let worth = given >= WORTH / 4;
        self.pause = if worth { PAUSE } else { (2 * self.pause).min(LONGEST_PAUSE) };
        worth.then(|| (given, begun.elapsed()))
    }
}

/// Memory of this process that it shares with nobody.
fn anonymous() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split(' ').skip(1).map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * page_size() as u64)
}

#[cfg(target_env = "gnu")]
fn give_back() {
    // SAFETY: it takes nothing from anybody: only pages that hold no allocation go.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give it back themselves.
#[cfg(not(target_env = "gnu"))]
fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_env = "gnu")]
    fn what_lies_below_memory_in_use_goes_back() {
        let mut heap = Heap::new();
        // Each too small to be mapped by itself, and a few of them are kept.
        let mut crowd: Vec<_> = (0..200_000).map(|_| vec![1_u8; 1000]).collect();
        let mut number = 0;
        crowd.retain(|_| {
            number += 1;
            number % 1000 == 0
        });
        let given = (0..PAUSE).find_map(|_| heap.tend());
        assert!(given.is_some_and(|(bytes, _)| bytes > WORTH), "{given:?}");
        assert!(crowd.iter().all(|one| one.iter().all(|byte| *byte == 1)));
        assert!((0..PAUSE).find_map(|_| heap.tend()).is_none(), "there is no more");
    }
}
