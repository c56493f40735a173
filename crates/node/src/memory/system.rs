//! The memory of the host: available memory and free huge pages. Owns no state; any thread.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Size in bytes of the huge pages that are used.
pub(super) const HUGE_PAGE_BYTES: u64 = 2 << 20;

const HUGE_PAGE_COUNTERS: &str = "hugepages/hugepages-2048kB";
/// The divisor of a memory node's size that gives the part left to other processes. The kernel keeps some
/// of it free itself, and cannot free all that it calls cached.
const MARGIN_DIVISOR: u64 = 32;
/// The minimum amount of memory left to other processes, in KiB.
const MIN_MARGIN_KIB: u64 = 128 << 10;

/// The kind of pages behind the arena, or behind one segment of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Huge pages of 2 MiB, reserved at the start.
    Huge,
    /// The base pages of the system.
    Base,
}

impl PageKind {
    /// Number of bytes of which a segment is a multiple.
    pub(super) fn granule(self) -> u64 {
        match self {
            PageKind::Huge => HUGE_PAGE_BYTES,
            PageKind::Base => (rustix::param::page_size() as u64).max(super::PAGE_BYTES),
        }
    }

    /// The name of the kind, for messages.
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

/// Number of bytes that can be used without swapping (MemAvailable).
pub(super) fn available_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    parse_available(&text).ok_or_else(|| io::Error::other("no MemAvailable line"))
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The folder in which the kernel describes a memory node.
fn node_folder(node: u32) -> PathBuf {
    PathBuf::from(format!("/sys/devices/system/node/node{node}"))
}

/// Whether a memory node has room to spare for so many bytes, free or behind cached files that nobody uses.
/// `false` for a node that the kernel does not describe.
pub(super) fn has_room(node: u32, bytes: u64) -> bool {
    let text = fs::read_to_string(node_folder(node).join("meminfo")).unwrap_or_default();
    room_of_node(&text).is_some_and(|room| bytes <= room)
}

fn room_of_node(meminfo: &str) -> Option<u64> {
    let kib = |key: &str| -> Option<u64> {
        let mut values = meminfo.lines().filter_map(|line| line.split_once(key));
        values.next()?.1.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let room = kib(" MemFree:")?.checked_add(kib(" Inactive(file):")?)?;
    room.saturating_sub((kib(" MemTotal:")? / MARGIN_DIVISOR).max(MIN_MARGIN_KIB)).checked_mul(1024)
}

/// The host's pool of huge pages, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HugePagePool {
    /// Number of pages in the pool, used or not.
    pub(super) total: u64,
    /// Number of pages that are neither used nor promised.
    pub(super) free: u64,
    /// The memory node whose part of the pool this is.
    pub(super) node: Option<u32>,
}

impl HugePagePool {
    /// Reads the counters, of the whole host or of one memory node; a kernel without huge pages has none.
    pub(super) fn read(node: Option<u32>) -> HugePagePool {
        let counter = |folder: &Path, name: &str| -> u64 {
            let text = fs::read_to_string(folder.join(HUGE_PAGE_COUNTERS).join(name)).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        let host = Path::new("/sys/kernel/mm");
        // Pages are promised for the whole host, whichever memory node they will come from.
        let free = counter(host, "free_hugepages").saturating_sub(counter(host, "resv_hugepages"));
        match node.map(node_folder) {
            None => HugePagePool { total: counter(host, "nr_hugepages"), free, node },
            Some(folder) => HugePagePool {
                total: counter(&folder, "nr_hugepages"),
                free: counter(&folder, "free_hugepages").min(free),
                node,
            },
        }
    }

    /// Reason why an arena of `capacity` bytes cannot have huge pages, with advice; `None` if it can.
    pub(super) fn shortage(self, capacity: u64) -> Option<String> {
        let needed = capacity.div_ceil(HUGE_PAGE_BYTES);
        let missing = needed.checked_sub(self.free).filter(|missing| *missing > 0)?;
        let (free, total) = (self.free, self.total + missing);
        Some(match self.node {
            None => format!(
                "{needed} huge pages of 2 MiB are needed and {free} are free: run `sysctl \
                 vm.nr_hugepages={total}` before the start"
            ),
            Some(node) => format!(
                "{needed} huge pages of 2 MiB are needed and {free} are free on memory node {node}: write \
                 {total} to {}/{HUGE_PAGE_COUNTERS}/nr_hugepages before the start",
                node_folder(node).display()
            ),
        })
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
        let pool = HugePagePool { total: 10, free: 3, node: None };
        assert_eq!(pool.shortage(3 * HUGE_PAGE_BYTES), None);
        let message = pool.shortage(4 * HUGE_PAGE_BYTES + 1).unwrap();
        assert!(message.contains("5 huge pages") && message.contains("vm.nr_hugepages=12"), "{message}");
        let message = HugePagePool { node: Some(1), ..pool }.shortage(4 * HUGE_PAGE_BYTES).unwrap();
        assert!(message.contains("write 11 to /sys/devices/system/node/node1/hugepages/"), "{message}");
    }

    #[test]
    fn the_room_of_a_node_counts_cached_files() {
        let text = "\
Node 1 MemTotal:        6400000 kB
Node 1 MemFree:         1000000 kB
Node 1 Active(anon):    9999999 kB
Node 1 Active(file):     300000 kB
Node 1 Inactive(file):   200000 kB
";
        assert_eq!(room_of_node(text), Some(1_000_000 << 10));
        let small = "Node 1 MemTotal: 200000 kB\nNode 1 MemFree: 131073 kB\nNode 1 Inactive(file): 0 kB\n";
        assert_eq!(room_of_node(small), Some(1 << 10));
        assert_eq!(room_of_node("Node 1 MemTotal: 6400 kB\nNode 1 MemFree: 1 kB\n"), None);
        assert!(!has_room(9999, 1));
        assert!(!Path::new("/sys/devices/system/node/node0/meminfo").exists() || has_room(0, 1 << 20));
    }
}
