//! Memory: what is available, what a container allows, what may be committed, and swap.

use super::files::meminfo;
use super::finding::Finding;
use super::{Case, pages};
use crate::output::size;

const CGROUPS: &str = "/sys/fs/cgroup";

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
    let sensible = (room.min(total - total / 10) >> 20 << 20).max(1 << 20);
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
    let (process, _) = case.process();
    let limit = container_limit(case, &case.files.text(&format!("{process}/cgroup"))?)?;
    let found = format!("{} allowed here, {} wanted for objects", size(limit), size(case.memory));
    if case.memory < limit || pages::suffice(case) {
        return Some(Finding::ok(TOPIC, found));
    }
    let why =
        "The memory of objects counts as the node's: the kernel ends the node when it is over the limit.";
    let sensible = (limit - limit / 10) >> 20 << 20;
    Some(Finding::problem(TOPIC, found, why).mend(
        "raise the limit (--memory of docker, MemoryMax= of systemd), or give the store less memory",
        case.serve(sensible),
    ))
}

/// The least limit of the groups a process is in, by its `/proc/<pid>/cgroup`; nothing if there is none.
fn container_limit(case: &Case, groups: &str) -> Option<u64> {
    // What is not limited has a limit beyond all memory.
    const UNLIMITED: u64 = 1 << 60;
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (root, file) = match controllers {
            "" => (CGROUPS.to_owned(), "memory.max"),
            all if all.split(',').any(|one| one == "memory") => {
                (format!("{CGROUPS}/memory"), "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        let limit = |group: &str| case.files.number(&format!("{root}{}/{file}", group.trim_end_matches('/')));
        let ancestors = std::path::Path::new(path).ancestors().filter_map(|group| group.to_str());
        ancestors.filter_map(limit).collect()
    });
    limits.filter(|limit| *limit < UNLIMITED).min()
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
