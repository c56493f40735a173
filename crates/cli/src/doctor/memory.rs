//! Checks of memory: available memory, the limit of a container, overcommitment, and swap.
//!
//! Owns no state. Main thread.

use plasmon_node::memory::{BESIDE_BYTES, SPARE_BYTES};

use super::files::meminfo;
use super::finding::Finding;
use super::{Case, pages};
use crate::cgroup::{self, Allowance};
use crate::output::size;
use crate::serve_args::LEAST_MEMORY_BYTES;

/// Checks the memory of the host, the limit of the container, overcommitment, and swap.
pub(super) fn check(case: &Case) -> Vec<Finding> {
    let Some(text) = case.files.text("/proc/meminfo") else {
        let why = "Without /proc neither this command nor the node can tell how much memory there is.";
        return vec![
            Finding::problem("memory", "/proc/meminfo cannot be read", why)
                .mend("mount it", case.shell.root("mount -t proc proc /proc")),
        ];
    };
    [available(case, &text), container(case), overcommit(case, &text), swap(case, &text)]
        .into_iter()
        .flatten()
        .collect()
}

fn available(case: &Case, meminfo_text: &str) -> Option<Finding> {
    const TOPIC: &str = "memory";
    let total = meminfo(meminfo_text, "MemTotal")?;
    let available = meminfo(meminfo_text, "MemAvailable")?;
    let wanted = case.memory;
    let irrelevant = "The size of /dev/shm plays no part: Plasmon's memory is not there.";
    if pages::suffice(case) {
        let found = format!("{} of objects lie in huge pages, which are set aside already", size(wanted));
        return Some(Finding::ok(TOPIC, found).because(irrelevant));
    }
    let room = available + case.node_base_bytes();
    let found = format!("{} wanted for objects, {} available of {}", size(wanted), size(room), size(total));
    // A tenth is left for other programs.
    let sensible = (room.min(total - total / 10) >> 20 << 20).max(LEAST_MEMORY_BYTES);
    if wanted > room {
        let why = match &case.node {
            None => "A node takes all its memory at its start and refuses to start without it.",
            Some(_) => "When the memory is used, the kernel ends processes, perhaps the node.",
        };
        return Some(
            Finding::problem(TOPIC, found, why).mend("give the store less memory", case.serve(sensible)),
        );
    }
    if wanted > total - total / 10 {
        let why = "Less than a tenth is left for all other programs, and the kernel ends processes when \
                   memory runs out.";
        return Some(
            Finding::advice(TOPIC, found, why).mend("give the store less memory", case.serve(sensible)),
        );
    }
    Some(Finding::ok(TOPIC, found).because(irrelevant))
}

/// Checks the memory limit of the container or service in which the node runs.
fn container(case: &Case) -> Option<Finding> {
    const TOPIC: &str = "container_memory";
    let (process, is_node) = case.process();
    let Allowance { limit, used, file } = cgroup::allowance(|path| case.files.text(path), &process)?;
    // The node would give its own memory back if it stopped. Whether others in its group would is not known.
    let others = if is_node { used.saturating_sub(case.node_base_bytes()) } else { used };
    let room = limit.saturating_sub(others);
    let arena = if pages::suffice(case) { 0 } else { case.memory };
    let found = format!(
        "{} allowed here ({file}), {} of it used by others, {} wanted for objects",
        size(limit),
        size(others),
        size(case.memory)
    );
    if arena + BESIDE_BYTES + SPARE_BYTES <= room {
        return Some(Finding::ok(TOPIC, found));
    }
    let why = "The memory of objects counts towards the limit, and so does that of the node itself. The \
               kernel ends a node that exceeds the limit. A node that cannot fit does not start.";
    let finding = match arena + BESIDE_BYTES <= room {
        true => Finding::advice(TOPIC, found, why),
        false => Finding::problem(TOPIC, found, why),
    };
    let sensible = room.saturating_sub(BESIDE_BYTES + SPARE_BYTES).max(LEAST_MEMORY_BYTES) >> 20 << 20;
    Some(finding.mend(
        "raise the limit (--memory of docker, MemoryMax= of systemd), or give the store less memory",
        case.serve(sensible),
    ))
}

/// Checks overcommitment. With strict accounting, a page that cannot be committed is an error at its first
/// touch.
fn overcommit(case: &Case, meminfo_text: &str) -> Option<Finding> {
    const TOPIC: &str = "overcommit";
    const STRICT: u64 = 2;
    let mode = case.files.number("/proc/sys/vm/overcommit_memory")?;
    if mode != STRICT {
        return Some(Finding::ok(TOPIC, format!("vm.overcommit_memory is {mode}")));
    }
    let limit = meminfo(meminfo_text, "CommitLimit")?;
    let room = limit.saturating_sub(meminfo(meminfo_text, "Committed_AS")?) + case.node_base_bytes();
    let found = format!("vm.overcommit_memory is 2, strict, and leaves {}", size(room));
    if case.memory < room || pages::suffice(case) {
        return Some(Finding::ok(TOPIC, found));
    }
    let why = format!(
        "{} are wanted for objects. Under strict accounting, a process that touches a page beyond the limit \
         gets SIGBUS.",
        size(case.memory)
    );
    Some(
        Finding::problem(TOPIC, found, why)
            .mend("the kernel's own rule, until the next boot", case.shell.sysctl("vm.overcommit_memory", 0))
            .mend("and at every boot", case.shell.sysctl_for_ever("vm.overcommit_memory", 0)),
    )
}

fn swap(case: &Case, meminfo_text: &str) -> Option<Finding> {
    const TOPIC: &str = "swap";
    const RARELY: u64 = 1;
    let total = meminfo(meminfo_text, "SwapTotal")?;
    if total == 0 {
        return Some(Finding::ok(TOPIC, "none"));
    }
    let swappiness = case.files.number("/proc/sys/vm/swappiness")?;
    let found = format!("{}, vm.swappiness is {swappiness}", size(total));
    if swappiness <= RARELY || pages::suffice(case) {
        return Some(Finding::ok(TOPIC, found));
    }
    let why = "Objects in base pages can be swapped out: the next get waits for the disk, a page at a time. \
               Huge pages of the pool never are, and neither is memory that RDMA uses.";
    Some(
        Finding::advice(TOPIC, found, why)
            .mend("rather not, until the next boot", case.shell.sysctl("vm.swappiness", RARELY))
            .mend("and at every boot", case.shell.sysctl_for_ever("vm.swappiness", RARELY)),
    )
}
