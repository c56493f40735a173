//! Memory: what is available, what a container allows, what may be committed, and swap.

use super::files::meminfo;
use super::finding::Finding;
use super::{Case, pages};
use crate::cgroup::{self, Allowance};
use crate::output::size;
use crate::serve_args::LEAST_MEMORY;

/// What a node has beside its objects at least, and what is left for its clients where it is not tight; the
/// daemon compares by about the same figures (`plasmon_node`'s `memory::allowance`).
const BESIDE: u64 = 64 << 20;
const SPARE: u64 = 192 << 20;

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
    // A tenth for everybody else.
    let sensible = (room.min(total - total / 10) >> 20 << 20).max(LEAST_MEMORY);
    if wanted > room {
        let why = match &case.node {
            None => "A node takes all its memory at its start and refuses to start without it.",
            Some(_) => {
                "The kernel ends processes, perhaps the node, when memory that was promised is asked for."
            }
        };
        return Some(
            Finding::problem(TOPIC, found, why).mend("give the store less memory", case.serve(sensible)),
        );
    }
    if wanted > total - total / 10 {
        let why = "Less than a tenth is left for all other programs, and the kernel ends processes when \
                   there is none.";
        return Some(
            Finding::advice(TOPIC, found, why).mend("give the store less memory", case.serve(sensible)),
        );
    }
    Some(Finding::ok(TOPIC, found).because(irrelevant))
}

/// The memory limit of the container or service this runs in.
fn container(case: &Case) -> Option<Finding> {
    const TOPIC: &str = "container_memory";
    let (process, is_node) = case.process();
    let Allowance { limit, used, file } = cgroup::allowance(|path| case.files.text(path), &process)?;
    // What the node has it would give back if it stopped; of others in its group nothing is known to be given
    // back.
    let others = if is_node { used.saturating_sub(case.node_base_bytes()) } else { used };
    let room = limit.saturating_sub(others);
    let arena = if pages::suffice(case) { 0 } else { case.memory };
    let found = format!(
        "{} allowed here ({file}), {} of it used by others, {} wanted for objects",
        size(limit),
        size(others),
        size(case.memory)
    );
    if arena + BESIDE + SPARE <= room {
        return Some(Finding::ok(TOPIC, found));
    }
    let why = "The memory of objects counts as the node's, and some beside it: the kernel ends the node \
        when it is over the limit. One that cannot fit does not start.";
    let finding = match arena + BESIDE <= room {
        true => Finding::advice(TOPIC, found, why),
        false => Finding::problem(TOPIC, found, why),
    };
    let sensible = room.saturating_sub(BESIDE + SPARE).max(LEAST_MEMORY) >> 20 << 20;
    Some(finding.mend(
        "raise the limit (--memory of docker, MemoryMax= of systemd), or give the store less memory",
        case.serve(sensible),
    ))
}

/// Under strict accounting, a page that cannot be committed is an error at its first touch.
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
        "{} are wanted for objects. Under strict accounting, whoever touches a page beyond the limit gets \
         SIGBUS.",
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
