//! Checks of huge pages: the host's pool, and transparent ones.
//!
//! Owns no state. Main thread. The daemon takes huge pages from the pool if there are enough for its whole
//! arena. Invariant: [`pages`] computes the number of pages as the daemon does (`plasmon_node`'s
//! `memory::system`).

use super::Case;
use super::files::{chosen, meminfo};
use super::finding::Finding;
use crate::cgroup::{self, Allowance};
use crate::output::{pages as memory_pages, size};

const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Number of segments of an arena, which all have the same size.
const SEGMENTS: u64 = 64;
/// Folder of the pool of huge pages of 2 MiB, below a folder of `/sys`.
pub(super) const POOL: &str = "hugepages/hugepages-2048kB";
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Reason to want huge pages, with figures of docs/memory.md.
const WHY: &str = "In base pages a first write takes five to ten times as long (3 us for 4 KiB, against 0.3 \
                   to 0.7 on a small, busy virtual machine), and each client pays again for its own mapping \
                   (1.5 us, against 0.01).";

/// Why a node does without huge pages of the pool.
const STAND_IN: &str = "Not needed: the kernel gives transparent huge pages (see there). Only those of the \
                        pool are certain.";

/// Checks the pool of huge pages, and whether the kernel makes transparent ones.
pub(super) fn check(case: &Case) -> Vec<Finding> {
    let pool = Pool::read(case);
    let transparent = transparent(case, pool);
    [Some(huge_pages(case, pool)), transparent].into_iter().flatten().collect()
}

/// Whether the arena has huge pages of the pool, or will have them at the next start.
pub(super) fn suffice(case: &Case) -> bool {
    let pool = Pool::read(case);
    match &case.node {
        Some(node) if node.memory.capacity >= case.memory => node.memory.pages == "huge",
        _ => pool.free_for(case) >= pages(case.memory) && forbidden(case).is_none(),
    }
}

/// Limit that the control groups of the node set for huge pages, if the arena needs more.
fn forbidden(case: &Case) -> Option<Allowance> {
    let (process, is_node) = case.process();
    let own = case.node.as_ref().map(|node| &node.memory).filter(|memory| is_node && memory.pages == "huge");
    let own = own.map_or(0, |memory| pages(memory.capacity) * HUGE_PAGE_BYTES);
    let allowance = cgroup::huge_allowance(|path| case.files.text(path), &process)?;
    let room = (allowance.limit + own).saturating_sub(allowance.used);
    Some(allowance).filter(|_| pages(case.memory) * HUGE_PAGE_BYTES > room)
}

/// Pool of huge pages, counted in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Pool {
    total: u64,
    /// Number of pages that are neither used nor reserved.
    free: u64,
}

impl Pool {
    /// Reads the counters of the pool. A kernel without huge pages has none.
    fn read(case: &Case) -> Self {
        let counter = |name| case.files.number(&format!("/sys/kernel/mm/{POOL}/{name}")).unwrap_or(0);
        let free = counter("free_hugepages").saturating_sub(counter("resv_hugepages"));
        Self { total: counter("nr_hugepages"), free }
    }

    /// Number of pages for a node, including those that the running node would give back.
    fn free_for(self, case: &Case) -> u64 {
        let own = case.node.as_ref().map(|node| &node.memory).filter(|memory| memory.pages == "huge");
        self.free + own.map_or(0, |memory| pages(memory.capacity))
    }
}

/// Number of huge pages of an arena of `memory` bytes.
pub(super) fn pages(memory: u64) -> u64 {
    let segment = memory.div_ceil(SEGMENTS).max(HUGE_PAGE_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
    memory.div_ceil(segment) * segment / HUGE_PAGE_BYTES
}

fn huge_pages(case: &Case, pool: Pool) -> Finding {
    const TOPIC: &str = "huge_pages";
    let needed = pages(case.memory);
    let free = pool.free_for(case);
    let base = case.node.as_ref().is_some_and(|node| {
        // Transparent huge pages are as good.
        node.memory.pages == "base" && node.memory.huge < node.memory.capacity
    });
    let Some(missing) = needed.checked_sub(free).filter(|missing| *missing > 0) else {
        if let Some(Allowance { limit, used, file }) = forbidden(case) {
            let found = format!(
                "{free} of 2 MiB are free, enough for the {needed} needed, and a node may have {} here, {} \
                 of it used ({file})",
                size(limit),
                size(used)
            );
            if given_by_kernel(case) {
                return Finding::ok(TOPIC, found).because(STAND_IN);
            }
            return Finding::advice(TOPIC, found, WHY).mend(
                "raise the limit (hugepages-2Mi in resources.limits of Kubernetes, hugetlb.2MB.max of a \
                 control group)",
                case.serve(case.memory),
            );
        }
        if !base {
            return Finding::ok(TOPIC, format!("{needed} of 2 MiB needed, {free} there for Plasmon"));
        }
        let found =
            format!("{free} of 2 MiB are free, enough for the {needed} needed, and the node has base pages");
        let why = format!("{WHY} The log of the node's start says why it has none.");
        return Finding::advice(TOPIC, found, why).mend(case.restart(), case.serve(case.memory));
    };
    let found = format!(
        "{needed} of 2 MiB needed for {}, {free} free for Plasmon of {} in the pool",
        size(case.memory),
        pool.total
    );
    if given_by_kernel(case) {
        return Finding::ok(TOPIC, found).because(STAND_IN);
    }
    let finding = Finding::advice(TOPIC, found, WHY);
    if missing * HUGE_PAGE_BYTES > available(case) {
        let why = "That is more than is available: see memory. A smaller store needs fewer.";
        return finding.because(why);
    }
    reserve(case, finding, pool.total + missing)
}

/// Memory in bytes that could become huge pages.
fn available(case: &Case) -> u64 {
    let text = case.files.text("/proc/meminfo").unwrap_or_default();
    meminfo(&text, "MemAvailable").unwrap_or(0) + case.node_base_bytes()
}

/// Adds the commands that give the pool `total` pages.
fn reserve(case: &Case, finding: Finding, total: u64) -> Finding {
    let (shell, key) = (case.shell, "vm.nr_hugepages");
    let finding = match &case.node {
        Some(node) => {
            finding.mend("stop the node, whose memory they need", shell.root(&format!("kill {}", node.pid)))
        }
        None => finding,
    };
    finding
        .mend("reserve them until the next boot, before the node starts", shell.sysctl(key, total))
        .mend(
            "if fewer came (sysctl vm.nr_hugepages), free memory is in pieces: put it together, and repeat",
            shell.sysctl("vm.compact_memory", 1),
        )
        .mend("reserve them at every boot", shell.sysctl_for_ever(key, total))
        .mend("start the node", case.serve(case.memory))
}

/// Whether the kernel makes memfds of huge pages, by itself or because the daemon asks for it.
fn given_by_kernel(case: &Case) -> bool {
    let text = case.files.text(SHMEM_ENABLED);
    text.as_deref().and_then(chosen).is_some_and(|choice| match choice {
        "always" | "within_size" | "force" => true,
        "deny" => false,
        _ => can_be_asked(case),
    })
}

/// Whether the kernel makes huge pages when it is asked (MADV_COLLAPSE, since Linux 6.1), whatever its
/// setting is.
fn can_be_asked(case: &Case) -> bool {
    let release = case.files.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (parts.next(), parts.next()) >= (Some(6), Some(1))
}

fn transparent(case: &Case, pool: Pool) -> Option<Finding> {
    const TOPIC: &str = "transparent_huge_pages";
    let text = case.files.text(SHMEM_ENABLED)?;
    let choice = chosen(&text)?;
    let found = format!("shmem_enabled is {choice}");
    if pool.free_for(case) >= pages(case.memory) && forbidden(case).is_none() {
        return Some(
            Finding::ok(TOPIC, found).because("They play no part where the pool of huge pages suffices."),
        );
    }
    if given_by_kernel(case) {
        return Some(given(case, found));
    }
    let finding = Finding::advice(
        TOPIC,
        found,
        "This is the second way to huge pages: with within_size the kernel uses huge pages for Plasmon's \
         memory as long as there are any, without a reservation. (Since Linux 6.1 it does so when Plasmon \
         asks, unless the setting is deny.)",
    );
    let rule = format!("w {SHMEM_ENABLED} - - - - within_size");
    Some(
        finding
            .mend(
                "set it until the next boot, before the node starts",
                case.shell.write("within_size", SHMEM_ENABLED),
            )
            .mend("set it at every boot", case.shell.write(&rule, "/etc/tmpfiles.d/80-plasmon.conf")),
    )
}

/// Finding for a kernel that gives huge pages, and whether the node got some.
fn given(case: &Case, found: String) -> Finding {
    const TOPIC: &str = "transparent_huge_pages";
    let held = case.node_base_bytes();
    let Some(node) = case.node.as_ref().filter(|_| held > 0) else {
        let finding = Finding::ok(TOPIC, found);
        let asked = can_be_asked(case);
        return if asked {
            finding.because("The node asks for them, unless the setting is deny.")
        } else {
            finding
        };
    };
    // Pages that the kernel gave by itself are in the host's total only.
    let meminfo_text = case.files.text("/proc/meminfo").unwrap_or_default();
    let shared = meminfo(&meminfo_text, "ShmemHugePages").unwrap_or(0);
    let found = format!(
        "{found}; the node's memory is {}, shared memory has {} in huge pages in all",
        memory_pages(&node.memory),
        size(shared)
    );
    if node.memory.huge.max(shared) >= held / 2 {
        return Finding::ok(TOPIC, found);
    }
    let why = format!("The node was started before that was set, or free memory was in pieces. {WHY}");
    Finding::advice(TOPIC, found, why)
        .mend("put free memory together", case.shell.sysctl("vm.compact_memory", 1))
        .mend(case.restart(), case.serve(case.memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_made_of_whole_segments() {
        assert_eq!(pages(1), 1);
        assert_eq!(pages(4 << 30), 2048);
        // 65 MiB: segments of 2 MiB, the least there is, and one more.
        assert_eq!(pages(65 << 20), 33);
        // 129 MiB: 33 segments of 4 MiB.
        assert_eq!(pages(129 << 20), 66);
    }
}
