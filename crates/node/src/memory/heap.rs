//! This process's own heap: memory that was once taken for a crowd of requests goes back to the system.
//!
//! Owns the pace of its attempts. Engine thread only. The allocator keeps freed memory that lies below memory
//! in use, for later allocations. After 100,000 waiting gets that is most of a gigabyte, and it could stay so
//! for as long as the daemon lives.

use std::fs;
use std::time::{Duration, Instant};

use rustix::param::page_size;

/// Number of bytes above the smallest heap from which giving back is tried.
const WORTH_BYTES: u64 = 64 << 20;
/// Number of calls between two attempts, at first. It doubles after each attempt that found nothing to give
/// back.
const PAUSE_CALLS: u32 = 10;
/// Maximum number of calls between two attempts.
const LONGEST_PAUSE_CALLS: u32 = 3 * PAUSE_CALLS;

/// Looks after the heap; its `tend` is called about once a second.
pub(crate) struct Heap {
    least: u64,
    pause: u32,
    left: u32,
}

impl Heap {
    /// Makes the state for the heap as it is now.
    pub(crate) fn new() -> Self {
        Self { least: anonymous().unwrap_or(u64::MAX), pause: PAUSE_CALLS, left: PAUSE_CALLS }
    }

    /// Gives memory back if that may be worth it. Returns the number of bytes and the time that it took, if
    /// it did.
    pub(crate) fn tend(&mut self) -> Option<(u64, Duration)> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return None;
        }
        self.left = self.pause;
        let before = anonymous()?;
        self.least = self.least.min(before);
        if before - self.least < WORTH_BYTES {
            return None;
        }
        let begun = Instant::now();
        give_back();
        let given = before.saturating_sub(anonymous()?);
        let worth = given >= WORTH_BYTES / 4;
        self.pause = if worth { PAUSE_CALLS } else { (2 * self.pause).min(LONGEST_PAUSE_CALLS) };
        worth.then(|| (given, begun.elapsed()))
    }
}

/// Number of bytes of this process that it shares with no other.
fn anonymous() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split(' ').skip(1).map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * page_size() as u64)
}

/// Number of bytes that this process has taken from its allocator.
#[cfg(all(test, target_env = "gnu"))]
pub(crate) fn taken() -> u64 {
    // SAFETY: it only counts.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}

#[cfg(target_env = "gnu")]
fn give_back() {
    // SAFETY: it takes nothing from anybody: only pages that hold no allocation go.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing, because other allocators give memory back themselves.
#[cfg(not(target_env = "gnu"))]
fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Environment variable of the process that runs nothing but this test.
    #[cfg(target_env = "gnu")]
    const ALONE: &str = "PLASMON_HEAP_TEST_ALONE";

    #[test]
    #[cfg(target_env = "gnu")]
    fn what_lies_below_memory_in_use_goes_back() {
        if std::env::var_os(ALONE).is_none() {
            // Other tests of this process would take and give memory meanwhile.
            let test = "memory::heap::tests::what_lies_below_memory_in_use_goes_back";
            let program = std::env::current_exe().expect("a test is a program");
            let alone = std::process::Command::new(program).args([test, "--exact"]).env(ALONE, "1").output();
            let alone = alone.expect("the program of the tests runs again");
            let output = String::from_utf8_lossy(&alone.stdout);
            assert!(alone.status.success() && output.contains("1 passed"), "{output}");
            return;
        }
        let mut heap = Heap::new();
        // Each allocation is too small to be mapped by itself, and a few of them are kept.
        let mut crowd: Vec<_> = (0..200_000).map(|_| vec![1_u8; 1000]).collect();
        let mut number = 0;
        crowd.retain(|_| {
            number += 1;
            number % 1000 == 0
        });
        let given = (0..PAUSE_CALLS).find_map(|_| heap.tend());
        assert!(given.is_some_and(|(bytes, _)| bytes > WORTH_BYTES), "{given:?}");
        assert!(crowd.iter().all(|one| one.iter().all(|byte| *byte == 1)));
        assert!((0..PAUSE_CALLS).find_map(|_| heap.tend()).is_none(), "there is no more");
    }
}
