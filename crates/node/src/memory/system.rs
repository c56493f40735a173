//! What the host has: available memory and free huge pages. Read once, at start.

use std::fs;
use std::io;
use std::path::Path;

/// Huge pages of this size are used, in bytes.
pub(super) const HUGE_PAGE: u64 = 2 << 20;

const HUGE_PAGE_COUNTERS: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// The pages behind the arena, or behind one segment of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Huge pages of 2 MiB, reserved at start.
    Huge,
    /// The base pages of the system.
    Base,
}

impl PageKind {
    /// What a segment is a multiple of, in bytes.
    pub(super) fn granule(self) -> u64 {
        match self {
            PageKind::Huge => HUGE_PAGE,
            PageKind::Base => (rustix::param::page_size() as u64).max(super::PAGE),
        }
    }

    /// For messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            PageKind::Huge => "huge",
            PageKind::Base => "base",
        }
    }
}

/// Fails unless `bytes` of base pages can be used without swapping.
pub(super) fn check_available(bytes: u64) -> io::Result<()> {
    let available = available_memory()?;
    if bytes <= available {
        return Ok(());
    }
    let message = format!("{bytes} bytes of base pages are needed and {available} available: free memory");
    Err(io::Error::new(io::ErrorKind::OutOfMemory, message))
}

/// Bytes that can be used without swapping (MemAvailable).
pub(super) fn available_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    parse_available(&text).ok_or_else(|| io::Error::other("no MemAvailable line"))
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The host's pool of huge pages, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HugePagePool {
    /// In the pool, used or not.
    pub(super) total: u64,
    /// Neither used nor promised to anyone.
    pub(super) free: u64,
}

impl HugePagePool {
    /// Reads the counters; a kernel without huge pages has none.
    pub(super) fn read() -> HugePagePool {
        let counter = |name: &str| -> u64 {
            let text = fs::read_to_string(Path::new(HUGE_PAGE_COUNTERS).join(name)).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        let free = counter("free_hugepages").saturating_sub(counter("resv_hugepages"));
        HugePagePool { total: counter("nr_hugepages"), free }
    }

    /// Why an arena of `capacity` bytes cannot have them and what to do, or `None` if it can.
    pub(super) fn shortage(self, capacity: u64) -> Option<String> {
        let needed = capacity.div_ceil(HUGE_PAGE);
        let missing = needed.checked_sub(self.free).filter(|missing| *missing > 0)?;
        Some(format!(
            "{needed} huge pages of 2 MiB are needed and {} are free: run `sysctl vm.nr_hugepages={}` before the start",
            self.free,
            self.total + missing
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        let text = "MemTotal:       24731708 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(parse_available(text), Some(2 << 20));
        assert_eq!(parse_available("MemTotal: 1 kB\n"), None);
        assert_eq!(parse_available("MemAvailable: 99999999999999999999 kB\n"), None);
        assert!(available_memory().unwrap() > 0);
    }

    #[test]
    fn a_shortage_of_huge_pages_says_what_to_do() {
        let pool = HugePagePool { total: 10, free: 3 };
        assert_eq!(pool.shortage(3 * HUGE_PAGE), None);
        let message = pool.shortage(4 * HUGE_PAGE + 1).unwrap();
        assert!(message.contains("5 huge pages") && message.contains("vm.nr_hugepages=12"), "{message}");
    }
}
