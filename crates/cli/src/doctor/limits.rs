//! Checks of limits of the node's process: open files, locked memory, mappings.
//!
//! Owns no state. Main thread.

use super::Case;
use super::files::{hard_limit, value_of};
use super::finding::Finding;
use crate::output::size;

/// Smallest sufficient number of open files: for the segments, all ports and a few clients.
const FILES_AT_LEAST: u64 = 768;
/// Number of open files that also suffices for all clients of one user (`--max-clients`).
const FILES_FOR_ALL: u64 = 32_768;
/// Sufficient number of mappings: for the arena and the tables, and one or two for each client.
const SUFFICIENT_MAPS: u64 = 16_384;
/// Largest number of pieces in which regions of a node lie, each of them a mapping.
const REGION_PIECES: u64 = 16_384;
/// Memory in bytes that a node locks in addition to its arena: for messages and for libfabric.
const EXTRA_LOCKED_BYTES: u64 = 64 << 20;
/// Bit of a mask for the capability that lifts the limit of locked memory.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Checks the limits of the running node, or of this process, whose limits a node started from here inherits.
pub(super) fn check(case: &Case) -> Vec<Finding> {
    let (process, is_node) = case.process();
    let limits = case.files.text(&format!("{process}/limits"));
    let of = |name| limits.as_deref().and_then(|limits| hard_limit(limits, name));
    let files = of("Max open files").map(|limit| open_files(limit, is_node));
    let locked = of("Max locked memory").map(|limit| locked_memory(case, &process, limit));
    [files, locked, maps(case)].into_iter().flatten().collect()
}

fn open_files(limit: u64, is_node: bool) -> Finding {
    const TOPIC: &str = "open_files";
    let whose = if is_node { "the node" } else { "a node started from here" };
    let found = format!("{whose} may have {}", number(limit));
    let why = "A node needs two open files for each of up to 64 segments, some hundred for other nodes and \
               itself, and six for each client. It accepts only as many clients as the limit allows. It \
               raises the soft limit to the hard one itself.";
    let finding = match limit {
        FILES_FOR_ALL.. => return Finding::ok(TOPIC, found),
        FILES_AT_LEAST.. => Finding::advice(TOPIC, found, why),
        _ => Finding::problem(TOPIC, found, why),
    };
    finding
        .mend("as a service: in the [Service] part of its unit", "LimitNOFILE=65536")
        .mend("from a shell: as root, before the node starts there", "ulimit -n 65536")
}

fn locked_memory(case: &Case, process: &str, limit: u64) -> Finding {
    const TOPIC: &str = "locked_memory";
    let found = match limit {
        u64::MAX => "no limit".to_owned(),
        some => format!("{} may be locked", size(some)),
    };
    let needed = case.memory.saturating_add(EXTRA_LOCKED_BYTES);
    if limit >= needed {
        return Finding::ok(TOPIC, found);
    }
    if case.files.names("/sys/class/infiniband").is_empty() {
        return Finding::ok(TOPIC, found).because("It plays no part without RDMA: TCP locks nothing.");
    }
    let status = case.files.text(&format!("{process}/status"));
    let capabilities = status.as_deref().and_then(|status| value_of(status, "CapEff"));
    let capabilities = capabilities.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    if capabilities & CAP_IPC_LOCK != 0 {
        return Finding::ok(TOPIC, format!("{found}, but this process is exempt (CAP_IPC_LOCK)"));
    }
    let why = format!(
        "RDMA pins the whole arena, {}. A node that may not does not start on verbs.",
        size(case.memory)
    );
    Finding::problem(TOPIC, found, why)
        .mend("as a service: in the [Service] part of its unit", "LimitMEMLOCK=infinity")
        .mend("from a shell: as root, before the node starts there", "ulimit -l unlimited")
}

fn maps(case: &Case) -> Option<Finding> {
    const TOPIC: &str = "memory_maps";
    let limit = case.files.number("/proc/sys/vm/max_map_count")?;
    let found = format!("vm.max_map_count is {limit}");
    let in_pieces = case.node.as_ref().map_or(0, |node| node.regions.in_pieces);
    let needed = SUFFICIENT_MAPS + if in_pieces > 0 { REGION_PIECES } else { 0 };
    if limit >= needed {
        return Some(Finding::ok(TOPIC, found));
    }
    let why = "A node maps its segments, its tables, a few pages of each client and up to 16,384 pieces of \
               regions; a client maps up to 64 segments, and the pieces of its regions. A process that can \
               have no more mappings makes calls instead of loads and stores.";
    Some(
        Finding::advice(TOPIC, found, why)
            .mend(
                "the kernel's usual number, until the next boot",
                case.shell.sysctl("vm.max_map_count", 65_530),
            )
            .mend("and at every boot", case.shell.sysctl_for_ever("vm.max_map_count", 65_530)),
    )
}

fn number(limit: u64) -> String {
    match limit {
        u64::MAX => "as many as it wants".to_owned(),
        limit => limit.to_string(),
    }
}
